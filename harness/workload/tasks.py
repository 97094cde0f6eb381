"""The tasks that a scenario asks for: sessions or graphs, what their requests say, and how long those are. Pure.

How long a prompt is follows from the history before it. So mean lengths are those of the run's own first tasks, with
answers of the asked length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from harness.spec.distribution import parse
from harness.spec.scenario import Scenario
from harness.workload import prefix, think
from harness.workload.conversation import Conversation
from harness.workload.graph import Graph, Step
from harness.workload.prefix import Prefixes
from harness.workload.recorded import Recorded
from harness.workload.request import Request
from harness.workload.rows import Rows
from harness.workload.session import Sessions
from harness.workload.task import Task
from harness.workload.text import Vocabulary

_SAMPLE = 1_000  # requests whose lengths stand for all, in whole tasks
_TIMED = 20  # tasks whose times stand for all


class Tasks(msgspec.Struct, frozen=True, kw_only=True, tag="tasks", tag_field="kind"):
    """A source of tasks that any worker can hold: each is a function of its number, its requests of answers too."""

    kinds: Sessions | Graph | Recorded
    conversation: Conversation

    @property
    def seed(self) -> int:
        return self.kinds.seed

    @property
    def live(self) -> bool:
        """Whether requests hold the server's own answers."""
        return self.conversation.history == "live"

    def task(self, number: int) -> Task:
        """The n-th task."""
        return self.kinds.task(number)

    def request(self, task: Task, node: int, answers: Mapping[int, str]) -> Request:
        """The request of a node whose parents have ended."""
        return self.conversation.request(task, node, answers)


def of(
    scenario: Scenario,
    words: Sequence[str] = ("a",),
    tokens_per_word: float = 1.0,
    rows: str = "",
    added_tokens: int = 0,
) -> Tasks | None:
    """The tasks of a run, whose texts are of these words; None where its requests do not belong together.

    `rows` is the path of the table of its dataset, without which its sessions are not known.

    >>> from harness.spec.reuse import SessionSpec
    >>> from harness.spec.scenario import WorkloadSpec
    >>> asked = Scenario(workload=WorkloadSpec(session=SessionSpec(turns=3, user_tokens=20, think=2.0)))
    >>> [node.pause_s for node in of(asked).task(0).nodes]
    [0.0, 2.0, 2.0]
    """
    workload = scenario.workload
    if workload.dataset and workload.dataset.sessions:
        return _of_rows(scenario, words, tokens_per_word, rows, added_tokens) if rows else None
    kinds = _kinds(scenario)
    if kinds is None:
        return None
    vocabulary = Vocabulary(words=tuple(words), seed=kinds.seed, tokens_per_word=tokens_per_word)
    system, session = prefix.of(scenario, vocabulary), workload.session
    if system is None and session and session.system_tokens:
        system = Prefixes(vocabulary=vocabulary, tokens=session.system_tokens)
    conversation = Conversation(
        vocabulary=vocabulary,
        history=session.history if session else "live",
        system=system,
        tools=tuple(workload.tools) if workload.tools else None,
    )
    return Tasks(kinds=kinds, conversation=conversation)


def _of_rows(scenario: Scenario, words: Sequence[str], tokens_per_word: float, rows: str, added_tokens: int) -> Tasks:
    """The sessions of a dataset."""
    workload, spec = scenario.workload, scenario.workload.dataset
    assert spec
    recorded = Rows(
        path=rows,
        words=tuple(words),
        seed=workload.seed or 0,
        output_tokens=round(parse(workload.output_tokens).mean()),
        added_tokens=added_tokens,
        tokens_per_word=tokens_per_word,
    )
    conversation = Conversation(
        vocabulary=Vocabulary(words=recorded.words, seed=recorded.seed, tokens_per_word=tokens_per_word),
        history=spec.history,
        tools=tuple(workload.tools) if workload.tools else None,
        recorded=recorded,
    )
    return Tasks(kinds=Recorded(rows=recorded, think_ms=think.pauses(spec.think)), conversation=conversation)


def lengths(scenario: Scenario, rows: str = "") -> list[tuple[int, int]]:
    """(prompt, answer) tokens of each request of the first tasks, without a server's template; empty without tasks."""
    tasks = of(scenario, rows=rows)
    found: list[tuple[int, int]] = []
    number = 0
    while tasks is not None and len(found) < _SAMPLE:
        task = tasks.task(number)
        prompts = tasks.conversation.input_tokens(task)
        found += zip(prompts, (node.output_tokens for node in task.nodes), strict=True)
        number += 1
    return found


def per_second(scenario: Scenario, request_s: float, rows: str = "") -> float:
    """Requests per second of one slot of a closed loop whose requests take so long each, pauses included.

    >>> from harness.spec.scenario import Ramp
    >>> per_second(Scenario(ramp=Ramp(think=1.5)), 0.5)
    0.5
    """
    tasks = of(scenario, rows=rows)
    if tasks is None:
        return 1 / (request_s + rest_s(scenario))
    requests = sum(len(tasks.task(number).nodes) for number in range(_TIMED)) / _TIMED
    return requests / seconds(scenario, request_s, rows)


def rest_s(scenario: Scenario, rows: str = "") -> float:
    """Mean seconds that a slot rests for each request: think time, or a task's pauses by its requests in a row."""
    if (pauses := seconds(scenario, 0.0, rows)) or scenario.has_tasks:
        return pauses / max(1.0, seconds(scenario, 1.0, rows) - pauses)
    think_ms = think.pauses(scenario.ramp.think or 0.0)
    return think_ms.mean() / 1000 if think_ms else 0.0


def seconds(scenario: Scenario, request_s: float, rows: str = "") -> float:
    """Mean time of a task whose requests take so long each, pauses included; of a single request, that time."""
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
    """The most requests of one task in flight at once: of the steps that are as far from its beginning."""
    kinds = _kinds(scenario)
    if not isinstance(kinds, Graph):
        return 1
    depths: list[int] = []
    for node in kinds.task(0).nodes:
        depths.append(1 + max((depths[parent] for parent in node.parents), default=0))
    return max(depths.count(depth) for depth in depths)


def _kinds(scenario: Scenario) -> Sessions | Graph | None:
    workload = scenario.workload
    seed, session = workload.seed or 0, workload.session
    if session:
        return Sessions(
            turns=parse(session.turns),
            input_tokens=parse(session.user_tokens),
            output_tokens=parse(workload.output_tokens),
            think_ms=think.pauses(session.think),
            seed=seed,
        )
    if not workload.node:
        return None
    steps = [
        Step(
            name=node.name,
            after=tuple(node.after),
            input_tokens=parse(node.input_tokens or workload.input_tokens),
            output_tokens=parse(node.output_tokens or workload.output_tokens),
            pause_ms=think.pauses(node.pause),
            fan_out=node.fan_out,
            fresh=node.fresh,
        )
        for node in workload.node
    ]
    return Graph(steps=tuple(steps), seed=seed)
