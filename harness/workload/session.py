"""Sessions: a user's turns one after the other, each with all that was said before; a task that is a chain. Pure."""

from __future__ import annotations

import random

import msgspec

from harness.spec.distribution import Distribution
from harness.workload.task import MOST_NODES, Node, Task


class Sessions(msgspec.Struct, frozen=True, kw_only=True, tag="sessions", tag_field="kind"):
    """Sessions whose turns, lengths and pauses are drawn, each a function of (seed, number)."""

    turns: Distribution  # at most MOST_NODES are taken of them
    input_tokens: Distribution  # of a user's message
    output_tokens: Distribution
    think_ms: Distribution | None = None  # from the end of an answer to the next message; None: no time
    seed: int
    class_: str = ""

    def task(self, number: int) -> Task:
        """The n-th session; its first turn is due at once."""
        rng = random.Random(f"{self.seed}:session:{number}")
        nodes = [self._turn(k, rng) for k in range(min(self.turns.draw(rng), MOST_NODES))]
        return Task(number=number, nodes=tuple(nodes), class_=self.class_)

    def _turn(self, k: int, rng: random.Random) -> Node:
        return Node(
            name=f"turn {k + 1}",
            parents=(k - 1,) if k else (),
            input_tokens=self.input_tokens.draw(rng),
            output_tokens=self.output_tokens.draw(rng),
            pause_s=self.think_ms.draw(rng) / 1000 if self.think_ms and k else 0.0,
        )
