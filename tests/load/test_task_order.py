"""Tasks, think time and static batches on a virtual clock, against a server that records who was sent when."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.data.record import Record
from harness.load.messages import BeginLevel, Command, Progress, Stop
from harness.load.transport import Exchange
from harness.spec.distribution import Fixed, Range, parse
from harness.workload.dataset import Row, table
from harness.workload.rows import Recorded, Rows
from harness.workload.source import Uniform
from harness.workload.task import MOST_NODES
from harness.workload.tasks import Graph, Step, Tasks, session
from harness.workload.text import COMMON, Vocabulary
from tests.builders import virtual
from tests.builders.streams import delta, usage
from tests.load.test_driver import drive as run_driver
from tests.load.test_driver import on_schedule

SINGLE = Uniform(words=COMMON, prompt_words=5, output_tokens=4, seed=0)
WORDS = Vocabulary(words=COMMON, seed=0)


class Recorder:
    """A transport without sockets: each request takes a time of its own, and its answer names it."""

    stamped, resent = False, 0

    def __init__(
        self, failing: Collection[int] = (), takes_s: tuple[float, float] = (0.5, 1.5), retry_after: str = ""
    ) -> None:
        self.failing, self.takes_s, self.retry_after = failing, takes_s, retry_after
        self.bodies: dict[int, Any] = {}
        self.sent_s: dict[int, float] = {}  # by number
        self.ended_s: dict[int, float] = {}
        self.in_flight = self.most = 0

    async def prepare(self, connections: int) -> None: ...

    def request(self, request_id: str, body: bytes, session: str = "") -> bytes:
        return body

    async def send(self, exchange: Exchange, request: bytes, timeout_s: float) -> None:
        number = int(exchange.request_id.rpartition("-")[2])
        assert number not in self.sent_s, "every request is sent once"
        loop = asyncio.get_running_loop()
        exchange.sent_ns = max(1, virtual.clock_ns())
        self.sent_s[number], self.bodies[number] = loop.time(), json.loads(request)
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            await asyncio.sleep(random.Random(number).uniform(*self.takes_s))
            exchange.response.status = 200
            if number in self.failing:
                exchange.fail("reset", "cut")
                exchange.response.headers = {"retry-after": self.retry_after} if self.retry_after else {}
            exchange.take(virtual.clock_ns(), delta("length", usage(7, 1), content=f"answer {number}"))
            self.ended_s[number] = loop.time()
        except asyncio.CancelledError:
            exchange.fail("cancelled", "cut by us")
            raise
        finally:
            self.in_flight -= 1
            exchange.done_ns = max(1, virtual.clock_ns())
            exchange.take(exchange.done_ns, None)

    async def aclose(self) -> None: ...


def drive(
    source: Any, server: Recorder, *levels: tuple[float, int], until: float, **changes: Any
) -> tuple[list[Record], list[Progress]]:
    """Records and reports of a driver whose levels, as (begin, slots), begin at their times."""
    script: list[tuple[float, Command]] = [
        (at, BeginLevel(index, 0, slots, slots, 1.0, 1_000_000, round(at * 1e9)))
        for index, (at, slots) in enumerate(levels)
    ]
    changes = {"start": "burst"} | changes
    return run_driver([*script, (until, Stop())], server, source=source, **changes)


def sessions(turns: int = 3, think_ms: int = 2000, **fields: Any) -> Tasks:
    kinds = session(turns=Fixed(turns), input_tokens=Fixed(6), output_tokens=Fixed(4), think_ms=Fixed(think_ms), seed=0)
    return Tasks(kinds=kinds, vocabulary=WORDS, **fields)


def graph(*steps: Step) -> Tasks:
    return Tasks(kinds=Graph(steps=steps, seed=0), vocabulary=WORDS)


def step(name: str, *after: str, **fields: Any) -> Step:
    return Step(name=name, after=after, input_tokens=Fixed(6), output_tokens=Fixed(4), **fields)


def random_graph(seed: int) -> Tasks:
    """Steps that wait for some of those before them, some side by side, with pauses."""
    rng = random.Random(seed)
    names = [f"s{i}" for i in range(rng.randint(2, 7))]
    return graph(
        *(
            step(
                name, *rng.sample(names[:i], rng.randint(0, min(i, 3))), fan_out=rng.randint(1, 3),
                fresh=rng.random() < 0.3, pause_ms=Range(1, 3000) if rng.random() < 0.5 else None,
            )
            for i, name in enumerate(names)
        )
    )  # fmt: skip


AGENT = graph(
    step("plan"),
    step("search", "plan", fan_out=3, fresh=True, pause_ms=Fixed(500)),
    step("write", "plan"),
    step("join", "write", "search"),
)


@pytest.mark.parametrize("source", [sessions(), AGENT, *map(random_graph, range(8))])
def test_each_request_is_sent_once_all_that_it_waits_for_has_ended_and_its_pause_is_over(source: Tasks) -> None:
    server = Recorder()
    drive(source, server, (0.0, 3), until=60.0)
    whole = 0
    for number in {request // MOST_NODES for request in server.sent_s}:
        task = source.task(number)
        sent = [server.sent_s.get(task.request_number(node)) for node in range(len(task.nodes))]
        ended = [server.ended_s.get(task.request_number(node)) for node in range(len(task.nodes))]
        for node, sent_s in zip(task.nodes, sent, strict=True):
            if sent_s is None:
                continue
            parents = [ended[parent] for parent in node.parents]
            assert None not in parents, "it waits for an answer that never came"
            if parents:
                assert sent_s == pytest.approx(max(filter(None, parents)) + node.pause_s, abs=1e-6)
        whole += None not in ended
    assert whole >= 3


def test_a_live_history_holds_the_server_s_own_answers_and_a_scripted_one_does_not() -> None:
    for history in ("live", "scripted"):
        server = Recorder()
        drive(sessions(history=history), server, (0.0, 1), until=20.0)
        last = [(each["role"], each["content"]) for each in server.bodies[2]["messages"]]
        assert [role for role, _ in last] == ["user", "assistant", "user", "assistant", "user"]
        answers = [text for role, text in last if role == "assistant"]
        assert (answers == ["answer 0", "answer 1"]) == (history == "live")


def test_the_answers_of_tools_stand_in_the_message_that_waited_for_them() -> None:
    server = Recorder()
    drive(AGENT, server, (0.0, 1), until=20.0)
    messages = server.bodies[5]["messages"]  # join: it goes on with write, which went on with plan
    assert [each["content"] for each in messages if each["role"] == "assistant"] == ["answer 0", "answer 4"]
    assert messages[-1]["content"].startswith("answer 1\n\nanswer 2\n\nanswer 3\n\n")


def test_a_slot_holds_one_session_at_a_time_and_the_next_begins_when_it_is_over() -> None:
    server = Recorder()
    records, _ = drive(sessions(turns=2), server, (0.0, 3), until=30.0)
    spans = {}
    for number in {request // MOST_NODES for request in server.sent_s}:
        ends = [server.ended_s.get(number * MOST_NODES + turn, 30.0) for turn in (0, 1)]
        spans[number] = (server.sent_s[number * MOST_NODES], max(ends))
    for moment in (5.0, 10.0, 20.0):
        assert sum(begin <= moment <= end for begin, end in spans.values()) == 3
    for record in records:
        assert record.sent_s is not None
        assert record.sent_s - record.scheduled_s == pytest.approx(0.0, abs=1e-6), "a pause is no lag"


def test_records_name_their_session_and_their_turn() -> None:
    records, _ = drive(sessions(), Recorder(), (0.0, 2), until=12.0)
    whole = [(r.session_id, r.turn) for r in sorted(records, key=lambda r: r.sent_s or 0.0) if not r.error]
    assert {("0", 0), ("0", 1), ("0", 2), ("1", 0)} <= set(whole)
    assert len(set(whole)) == len(whole)


def test_what_waits_for_a_failed_request_is_not_sent_and_the_slot_goes_on_with_the_next_task() -> None:
    server = Recorder(failing={0, 1001})
    drive(sessions(), server, (0.0, 1), until=30.0)
    assert {0, 1000, 1001, 2000, 2001, 2002} <= set(server.sent_s)
    assert not {1, 2, 1002} & set(server.sent_s)
    assert server.sent_s[1000] == pytest.approx(server.ended_s.get(0, 0.0) + 0.05), "the pause after a failure"


def test_a_lower_level_lets_requests_end_and_sends_no_more_of_the_tasks_beyond_it() -> None:
    server = Recorder()
    _, reports = drive(sessions(turns=50), server, (0.0, 4), (10.2, 1), until=40.0)
    late = {number // MOST_NODES for number, sent_s in server.sent_s.items() if sent_s > 10.2}
    assert late == {0}
    after = [p for p in reports if p.level == 1]
    assert after[0].surplus == 3
    assert after[-1].surplus == 0


def test_the_requests_of_tasks_are_the_same_whichever_worker_sends_them() -> None:
    def bodies(workers: int) -> dict[int, Any]:
        found: dict[int, Any] = {}
        for worker in range(workers):
            server = Recorder()
            drive(random_graph(3), server, (0.0, 4 // workers), until=60.0, worker=worker, workers=workers)
            found |= server.bodies
        return found

    one, two = bodies(1), bodies(2)
    common = one.keys() & two.keys()
    assert len(common) > 20
    assert all(one[number] == two[number] for number in common)


def test_every_request_ends_as_one_record_also_of_those_that_are_cut() -> None:
    server = Recorder()
    records, _ = drive(AGENT, server, (0.0, 5), until=7.3)
    assert sorted(int(r.request_id.rpartition("-")[2]) for r in records) == sorted(server.sent_s)
    assert any(r.error == "cancelled" for r in records)


def test_a_slot_thinks_between_its_requests_as_long_as_is_drawn() -> None:
    """From 1 to 3 s: of 30 pauses the mean is 2 s, within four standard errors of 0.58 / √30."""
    pauses: dict[int, list[float]] = {}
    for workers in (1, 2):
        found = []
        for worker in range(workers):
            server = Recorder()
            changes: dict[str, Any] = {"think_ms": parse("1000..3000"), "worker": worker, "workers": workers}
            drive(SINGLE, server, (0.0, 1), until=120.0, **changes)
            numbers = sorted(server.ended_s)
            found += [(n, server.sent_s[m] - server.ended_s[n]) for n, m in itertools.pairwise(numbers)]
        pauses[workers] = [pause for _, pause in sorted(found)][:30]
    assert pauses[1] == pytest.approx(pauses[2], abs=1e-6), "a function of the request's number"
    assert sum(pauses[1]) / 30 == pytest.approx(2.0, abs=4 * 0.58 / 30**0.5)


def test_think_time_is_no_lag() -> None:
    records, _ = drive(SINGLE, Recorder(), (0.0, 2), until=30.0, think_ms=Fixed(1500))
    assert max(r.sent_s - r.scheduled_s for r in records if r.sent_s is not None) < 1e-6


def test_a_static_batch_is_sent_at_once_and_the_next_when_the_last_of_it_is_over() -> None:
    server = Recorder()
    records, _ = drive(SINGLE, server, (0.0, 4), (10.0, 2), until=20.0, start="batch")
    batches: dict[float, list[int]] = {}
    for number, sent_s in server.sent_s.items():
        batches.setdefault(sent_s, []).append(number)
    assert server.most == 4, "batches do not overlap where the level changes either"
    assert {len(numbers) for at, numbers in batches.items() if at < 9.0} == {4}
    assert {len(numbers) for at, numbers in batches.items() if at > 11.6} == {2}
    for (_, numbers), later in itertools.pairwise(sorted(batches.items())):
        assert later[0] == pytest.approx(max(server.ended_s[n] for n in numbers))
    assert len(records) == len(server.sent_s)


@pytest.mark.parametrize(("retry_after", "rest_s"), [("", 0.05), ("0", 0.05), ("60", 1.0)])
def test_after_a_failed_task_a_slot_rests_as_long_as_the_server_says_up_to_a_second(
    retry_after: str, rest_s: float
) -> None:
    server = Recorder(failing={0}, retry_after=retry_after)
    drive(sessions(), server, (0.0, 1), until=8.0)
    assert server.sent_s[MOST_NODES] == pytest.approx(server.ended_s[0] + rest_s)


TRACE = [("a", 0.0, None), ("b", 3.0, None), ("a", 4.0, 1.5), ("c", 6.0, None), ("a", 7.0, 0.5)]  # pauses in seconds


def recorded(folder: Path) -> Tasks:
    rows = (Row(input_tokens=9, output_tokens=4, at_s=at, session=name, pause_s=pause) for name, at, pause in TRACE)
    table.write(rows, folder / "rows")
    kinds = Recorded(rows=Rows(path=str(folder / "rows"), words=COMMON, seed=0, output_tokens=4))
    return Tasks(kinds=kinds, vocabulary=WORDS)


@pytest.mark.parametrize("workers", [1, 2])
def test_recorded_sessions_begin_at_their_times_on_every_level_and_go_on_by_their_pauses(
    tmp_path: Path, workers: int
) -> None:
    """Five rows in 7 s: at 4/7 a second as recorded, and again after 5/(4/7) s; at twice that rate in half the time."""
    rate, again_s = 4 / 7, 5 / (4 / 7)
    began: dict[int, list[tuple[int, float]]] = {0: [], 1: []}
    for worker in range(workers):
        levels = [
            msgspec.structs.replace(on_schedule(0, rate, arrivals="trace"), first_request=0),
            msgspec.structs.replace(on_schedule(1, 2 * rate, at=20.0, arrivals="trace"), first_request=300),
        ]
        server = Recorder(takes_s=(0.3, 0.6))
        script: list[tuple[float, Command]] = [(0.0, levels[0]), (20.0, levels[1]), (30.0, Stop())]
        run_driver(script, server, source=recorded(tmp_path), worker=worker, workers=workers)
        for request, sent_s in server.sent_s.items():
            session, turn = divmod(request, MOST_NODES)
            if turn:
                pause = [1.5, 0.5][turn - 1]
                assert sent_s == pytest.approx(server.ended_s[request - 1] + pause, abs=0.01)
            else:
                level = int(session >= 300)
                began[level].append((session % 300, sent_s - 20.0 * level))
    starts = [0.0, 3.0, 6.0, again_s, again_s + 3.0, again_s + 6.0, 2 * again_s]
    for level, found in began.items():
        assert [number for number, _ in sorted(found)] == list(range(len(starts)))
        expected = [each / (level + 1) for each in starts]
        assert [at for _, at in sorted(found)] == pytest.approx(expected, abs=0.01)


def test_what_recorded_sessions_send_beyond_the_limit_waits_for_a_place(tmp_path: Path) -> None:
    server = Recorder(takes_s=(4.0, 4.0))
    level = msgspec.structs.replace(on_schedule(0, 4 / 7, arrivals="trace"), first_request=0)
    records, _ = run_driver([(0.0, level), (40.0, Stop())], server, source=recorded(tmp_path), max_in_flight=1)
    assert server.most == 1
    first = [r.sent_s - r.scheduled_s for r in records if r.turn == 0 and r.sent_s is not None]
    assert first[:2] == pytest.approx([0.0, 1.0], abs=0.01), "the second session is due 3 s after the first"
