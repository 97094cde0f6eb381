"""Requests that wait for each other, as tasks: a user's sessions, agents' graphs, a dataset's sessions. Pure.

A session is a chain of turns, each with all that came before it. A graph has steps that wait for others, run side by
side and come together again. What a request asks is the conversation that it goes on with, and its own new message.
The first message is the system's, where there is a system prompt. A node goes on with the conversation of its first
parent, whose answer is the assistant's message; answers of its other parents are in its own message, as results of
tools and sub-agents do. Answers are the server's own (`live`), or texts of the asked length (`scripted`), with which
all prompts are known before the run. A dataset's texts, where it has any, replace such texts. A fresh node
begins anew, with the same system prompt.

How long a prompt is follows from the history before it. So mean lengths are those of the run's own first tasks, with
answers of the asked length.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

import msgspec

from harness.base.errors import HarnessError
from harness.spec import reuse
from harness.spec.distribution import Distribution, parse
from harness.spec.scenario import Scenario
from harness.workload import rows as dataset_rows
from harness.workload.arrivals import pauses
from harness.workload.request import Message, Request
from harness.workload.rows import Recorded, Rows
from harness.workload.task import MOST_NODES, Node, Task
from harness.workload.text import Prefixes, PromptWords, Vocabulary, prefixes

BETWEEN = "\n\n"  # texts in one message
_SAMPLE = 1_000  # requests whose lengths represent all, in whole tasks
_TIMED = 20  # tasks whose times represent all
_WIDE = 200  # tasks that show how many sub-agents one has at once


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of request of a task."""

    name: str
    after: tuple[str, ...] = ()  # steps that it waits for; it goes on with the conversation of the first
    input_tokens: Distribution  # tokens of its own message
    output_tokens: Distribution
    pause_ms: Distribution | None = None  # from the end of the last that it waits for: a tool's time; None: none
    fan_out: int = 1  # times that it is sent, with texts of their own; a step that waits for it waits for all of them
    fresh: bool = False  # begins a conversation of its own: a sub-agent


class SubAgents(msgspec.Struct, frozen=True, kw_only=True):
    """What the turns of a session send out: how often, how many at once, and the turns of each."""

    share: float
    count: Distribution
    turns: Distribution


class Graph(msgspec.Struct, frozen=True, kw_only=True, dict=True, tag="graph", tag_field="kind"):
    """Tasks of the same steps, whose lengths and pauses are drawn, each a function of (seed, number)."""

    steps: tuple[Step, ...]
    turns: Distribution | None = None  # how often the one step of a session comes; at most MOST_NODES are taken of them
    sub_agents: SubAgents | None = None  # sub-agents of a session's turns
    seed: int

    def __post_init__(self) -> None:
        if self.turns is None and len(self._nodes) > MOST_NODES:
            fact = f"a task of {len(self._nodes):,} requests is more than {MOST_NODES:,} at $.workload.node"
            raise HarnessError(fact, way_out="lower fan_out")

    def task(self, number: int) -> Task:
        """Return the n-th task, a graph with drawn lengths; its first nodes are due at once, or after a pause."""
        rng = random.Random(f"{self.seed}:{'graph' if self.turns is None else 'session'}:{number}")
        nodes = [
            Node(
                name=name,
                parents=parents,
                input_tokens=step.input_tokens.draw(rng),
                output_tokens=step.output_tokens.draw(rng),
                pause_s=step.pause_ms.draw(rng) / 1000 if step.pause_ms else 0.0,
                fresh=step.fresh,
            )
            for name, step, parents in (self._nodes if self.turns is None else self._turns(self.turns.draw(rng), rng))
        ]
        return Task(number=number, nodes=tuple(nodes))

    def _turns(self, turns: int, rng: random.Random) -> list[tuple[str, Step, tuple[int, ...]]]:
        """Return name, step and parents of each node of a session with `turns` turns, each after the one before.

        A turn that sends agents out is followed by theirs, each a chain, and the next turn waits for their ends too.
        """
        step, sent = self.steps[0], self.sub_agents
        first = msgspec.structs.replace(step, pause_ms=None)
        nodes: list[tuple[str, Step, tuple[int, ...]]] = []
        before: tuple[int, ...] = ()
        for k in range(min(turns, MOST_NODES)):
            nodes.append((f"{step.name} {k + 1}", step if k else first, before))
            before = (len(nodes) - 1,)
            if sent is None or k + 1 == turns or rng.random() >= sent.share:
                continue
            turn = before
            for agent in range(sent.count.draw(rng)):
                last = turn
                for j in range(sent.turns.draw(rng)):
                    one = step if j else msgspec.structs.replace(first, fresh=True)
                    nodes.append((f"{step.name} {k + 1}, agent {agent + 1}, {j + 1}", one, last))
                    last = (len(nodes) - 1,)
                before += last
        return nodes[:MOST_NODES]

    @cached_property
    def _nodes(self) -> list[tuple[str, Step, tuple[int, ...]]]:
        """Return name, step and parents of each node, each behind its parents, shape [nodes]."""
        after = {step.name: step.after for step in self.steps}
        steps = {step.name: step for step in self.steps}
        nodes: list[tuple[str, Step, tuple[int, ...]]] = []
        places: dict[str, range] = {}
        for name in reuse.order([step.name for step in self.steps], after, path="$.workload.node"):
            step = steps[name]
            parents = tuple(place for parent in step.after for place in places[parent])
            places[name] = range(len(nodes), len(nodes) + step.fan_out)
            names = [name] if step.fan_out == 1 else [f"{name} {copy + 1}" for copy in range(step.fan_out)]
            nodes += [(each, step, parents) for each in names]
        return nodes


def session(
    *,
    turns: Distribution,
    input_tokens: Distribution,
    output_tokens: Distribution,
    think_ms: Distribution | None = None,
    seed: int,
) -> Graph:
    """Return the source of sessions: each of `turns` requests one after the other, with think time between them."""
    turn = Step(name="turn", input_tokens=input_tokens, output_tokens=output_tokens, pause_ms=think_ms)
    return Graph(steps=(turn,), turns=turns, seed=seed)


class Tasks(msgspec.Struct, frozen=True, kw_only=True, tag="tasks", tag_field="kind"):
    """A source of tasks that any worker can hold: each is a function of its number, its requests of answers too."""

    kinds: Graph | Recorded
    vocabulary: Vocabulary
    history: Literal["live", "scripted"] = "live"  # where earlier answers come from
    system: Prefixes | None = None  # system prompts; which one goes by the task
    tools: tuple[dict[str, Any], ...] | None = None
    pause_scale: float = 1.0  # factor of all pauses, drawn or recorded

    @property
    def seed(self) -> int:
        return self.kinds.seed

    @property
    def live(self) -> bool:
        """Return whether requests hold the server's own answers."""
        return self.history == "live"

    @property
    def recorded(self) -> Rows | None:
        """Return the rows whose messages and answers replace words."""
        return self.kinds.rows if isinstance(self.kinds, Recorded) else None

    def task(self, number: int) -> Task:
        """Return the n-th task."""
        task = self.kinds.task(number)
        if self.pause_scale == 1:
            return task
        scaled = (msgspec.structs.replace(node, pause_s=node.pause_s * self.pause_scale) for node in task.nodes)
        return msgspec.structs.replace(task, nodes=tuple(scaled))

    def request(self, task: Task, node: int, answers: Mapping[int, str]) -> Request:
        """Return the request of a node whose parents have ended, by the answers of the nodes so far, by their place."""
        number, tools, class_, cancel = task.request_number(node), self.tools, "", None
        if self.recorded is not None:
            row = self.recorded.of_turn(task.number, node)
            tools, (class_, cancel) = tools or row.tools, self.recorded.classed(row, number)
        return Request(
            number=number,
            prompt=self._messages(task, node, answers),
            output_tokens=task.nodes[node].output_tokens,
            tools=tools,
            class_=class_,
            cancel=cancel,
            session=str(task.number),
            turn=node,
            after=tuple(task.request_number(parent) for parent in task.nodes[node].parents),
        )

    def input_tokens(self, task: Task) -> list[int]:
        """Return the prompt tokens of each node if every answer has the length that is asked for, shape [nodes].

        Without what a server's template and the tools add.
        """
        system = self.system
        first = system.tokens if system is not None and system.index(task.number) is not None else 0
        counts: list[int] = []
        for node in task.nodes:
            before = first
            if node.answers:
                before = counts[node.parents[0]] + sum(task.nodes[parent].output_tokens for parent in node.answers)
            counts.append(before + node.input_tokens)
        return counts

    def _messages(self, task: Task, node: int, answers: Mapping[int, str]) -> tuple[Message, ...]:
        newest_first = self._own(task, node, answers)
        while (parents := task.nodes[node].parents) and not task.nodes[node].fresh:
            node = parents[0]
            newest_first.append(Message("assistant", self._answer(task, node, answers)))
            newest_first += self._own(task, node, answers)
        if self.system is not None and (text := self.system.text(task.number)):
            newest_first.append(Message("system", text))
        return tuple(reversed(newest_first))

    def _own(self, task: Task, node: int, answers: Mapping[int, str]) -> list[Message]:
        """Return the messages that a node adds to the conversation, the newest first."""
        request = task.nodes[node]
        if self.recorded is not None:
            *before, last = self.recorded.own(task.number, node, request.input_tokens)
        else:
            before, last = [], Message("user", self.vocabulary.text(request.input_tokens, f"task:{task.number}:{node}"))
        results = [self._answer(task, parent, answers) for parent in request.answers[1:]]
        joined = msgspec.structs.replace(last, content=BETWEEN.join([*results, last.content])) if results else last
        return [joined, *reversed(before)]

    def _answer(self, task: Task, node: int, answers: Mapping[int, str]) -> str:
        if self.history == "live":
            return answers[node]
        if self.recorded is not None and (text := self.recorded.answer(task.number, node)) is not None:
            return text
        return self.vocabulary.text(task.nodes[node].output_tokens, f"task:{task.number}:{node}:answer")


def of(scenario: Scenario, words: PromptWords = PromptWords(), rows: str = "") -> Tasks | None:
    """Return the source of a run's tasks (sessions or graphs), with texts of `words`; None if requests are single.

    `rows` is the path of the table of its dataset, without which its sessions are not known.

    >>> from harness.spec.reuse import SessionSpec
    >>> from harness.spec.scenario import WorkloadSpec
    >>> asked = Scenario(workload=WorkloadSpec(session=SessionSpec(turns=3, user_tokens=20, think=2.0)))
    >>> [node.pause_s for node in of(asked).task(0).nodes]
    [0.0, 2.0, 2.0]
    """
    workload = scenario.workload
    kinds: Graph | Recorded | None
    system, vocabulary = None, words.vocabulary(workload.seed or 0)
    if (dataset := workload.dataset) and dataset.sessions:
        if not rows:
            return None
        think_ms, drawn = pauses(dataset.think), dataset.pauses == "drawn"
        kinds = Recorded(rows=dataset_rows.of(scenario, words, rows), think_ms=think_ms, drawn=drawn)
    elif (kinds := _graph(scenario)) is None:
        return None
    else:
        system = prefixes(scenario, vocabulary)
        if system is None and workload.session and workload.session.system_tokens:
            system = Prefixes(vocabulary=vocabulary, tokens=workload.session.system_tokens)
    spec = workload.session or dataset
    return Tasks(
        kinds=kinds,
        vocabulary=vocabulary,
        history=spec.history if spec else "live",
        system=system,
        tools=tuple(workload.tools) if workload.tools else None,
        pause_scale=1.0 if workload.tool_time_scale is msgspec.UNSET else workload.tool_time_scale,
    )


def _graph(scenario: Scenario) -> Graph | None:
    """Return the sessions or the graph that a scenario describes; None if it describes neither."""
    workload = scenario.workload
    seed = workload.seed or 0
    if spec := workload.session:
        sessions = session(
            turns=parse(spec.turns),
            input_tokens=parse(spec.user_tokens),
            output_tokens=parse(workload.output_tokens),
            think_ms=pauses(spec.think),
            seed=seed,
        )
        if sent := spec.sub_agents:
            drawn = SubAgents(share=sent.share, count=parse(sent.count), turns=parse(sent.turns))
            sessions = msgspec.structs.replace(sessions, sub_agents=drawn)
        return sessions
    steps = [
        Step(
            name=node.name,
            after=tuple(node.after),
            input_tokens=parse(node.input_tokens or workload.input_tokens),
            output_tokens=parse(node.output_tokens or workload.output_tokens),
            pause_ms=pauses(node.pause),
            fan_out=node.fan_out,
            fresh=node.fresh,
        )
        for node in workload.node or ()
    ]
    return Graph(steps=tuple(steps), seed=seed) if steps else None


def lengths(scenario: Scenario, rows: str = "") -> list[tuple[int, int]]:
    """Return (prompt, answer) tokens, without the template's, of each request of the first tasks; [] without any."""
    tasks = of(scenario, rows=rows)
    pairs: list[tuple[int, int]] = []
    number = 0
    while tasks is not None and len(pairs) < _SAMPLE:
        task = tasks.task(number)
        prompts = tasks.input_tokens(task)
        pairs += zip(prompts, (node.output_tokens for node in task.nodes), strict=True)
        number += 1
    return pairs


def requests_per_s(scenario: Scenario, request_s: float, rows: str = "") -> float:
    """Return the requests per second of one slot of a closed loop, its pauses included, if each takes `request_s`.

    A slot runs whole tasks, whose requests may overlap. `rows` is the path of the dataset's table, without which pauses
    of its sessions count as 0.

    >>> from harness.spec.scenario import Ramp
    >>> requests_per_s(Scenario(ramp=Ramp(think=1.5)), 0.5)
    0.5
    """
    tasks = of(scenario, rows=rows)
    if tasks is None:
        return 1 / (request_s + rest_s(scenario))
    requests = sum(len(tasks.task(number).nodes) for number in range(_TIMED)) / _TIMED
    return requests / seconds(scenario, request_s, rows)


def rest_s(scenario: Scenario, rows: str = "") -> float:
    """Return the mean seconds that a slot rests per request: think time, or a task's pauses on its longest path."""
    if (paused_s := seconds(scenario, 0.0, rows)) or scenario.has_tasks:
        return paused_s / max(1.0, seconds(scenario, 1.0, rows) - paused_s)
    think_ms = pauses(scenario.ramp.think or 0.0)
    return think_ms.mean() / 1000 if think_ms else 0.0


def seconds(scenario: Scenario, request_s: float, rows: str = "") -> float:
    """Return the mean seconds of a task, pauses included, if each request takes `request_s`; without tasks, that."""
    tasks, ends = of(scenario, rows=rows), list[float]()
    if tasks is None:
        return request_s
    for number in range(_TIMED):
        ended: list[float] = []
        for node in tasks.task(number).nodes:
            begun = max((ended[parent] for parent in node.parents), default=0.0) + node.pause_s
            ended.append(begun + request_s)
        ends.append(max(ended))
    return sum(ends) / len(ends)


def width(scenario: Scenario) -> int:
    """Return the most requests of one task that may be in flight at once: those at the same depth of its graph."""
    if (graph := _graph(scenario)) is None:
        return 1
    widest = 1
    for number in range(_WIDE if graph.sub_agents else 1):
        depths: list[int] = []
        for node in graph.task(number).nodes:
            depths.append(1 + max((depths[parent] for parent in node.parents), default=0))
        widest = max(widest, *Counter(depths).values())
    return widest
