"""An agent's task as a graph: steps that wait for others, run side by side and come together again.

A step with a fan-out is sent so many times, each with texts of its own; a step that waits for it waits for all of them.
"""

from __future__ import annotations

import random
from functools import cached_property

import msgspec

from harness.base.errors import HarnessError
from harness.spec import precedence
from harness.spec.distribution import Distribution
from harness.workload.task import MOST_NODES, Node, Task


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of request of a task."""

    name: str
    after: tuple[str, ...] = ()  # steps that it waits for; it goes on with the conversation of the first
    input_tokens: Distribution  # of its own message
    output_tokens: Distribution
    pause_ms: Distribution | None = None  # from the end of the last that it waits for: a tool's time; None: none
    fan_out: int = 1
    fresh: bool = False  # begins a conversation of its own: a sub-agent


class Graph(msgspec.Struct, frozen=True, kw_only=True, dict=True, tag="graph", tag_field="kind"):
    """Tasks of the same steps, whose lengths and pauses are drawn, each a function of (seed, number)."""

    steps: tuple[Step, ...]
    seed: int
    class_: str = ""

    def __post_init__(self) -> None:
        if len(self._kinds) > MOST_NODES:
            fact = f"a task of {len(self._kinds):,} requests is more than {MOST_NODES:,} at $.workload.node"
            raise HarnessError(fact, way_out="lower fan_out")

    def task(self, number: int) -> Task:
        """The n-th task."""
        rng = random.Random(f"{self.seed}:graph:{number}")
        nodes = [
            Node(
                name=name,
                parents=parents,
                input_tokens=step.input_tokens.draw(rng),
                output_tokens=step.output_tokens.draw(rng),
                pause_s=step.pause_ms.draw(rng) / 1000 if step.pause_ms else 0.0,
                fresh=step.fresh,
            )
            for name, step, parents in self._kinds
        ]
        return Task(number=number, nodes=tuple(nodes), class_=self.class_)

    @cached_property
    def _kinds(self) -> list[tuple[str, Step, tuple[int, ...]]]:
        """Name, step and parents of each node, each behind its parents, shape [nodes]."""
        after = {step.name: step.after for step in self.steps}
        steps = {step.name: step for step in self.steps}
        kinds: list[tuple[str, Step, tuple[int, ...]]] = []
        places: dict[str, range] = {}
        for name in precedence.order([step.name for step in self.steps], after, path="$.workload.node"):
            step = steps[name]
            parents = tuple(place for parent in step.after for place in places[parent])
            places[name] = range(len(kinds), len(kinds) + step.fan_out)
            names = [name] if step.fan_out == 1 else [f"{name} {copy + 1}" for copy in range(step.fan_out)]
            kinds += [(each, step, parents) for each in names]
        return kinds
