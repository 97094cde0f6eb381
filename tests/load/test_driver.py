"""The worker's tasks on a virtual clock, over a transport that keeps the contract of the real one."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
from click.testing import CliRunner

from harness.base.errors import HarnessError
from harness.cli import cli
from harness.data.record import Record, arrivals_of
from harness.load.driver import Driver
from harness.load.messages import BeginLevel, Codec, Command, Plan, Prepare, Progress, Replica, Rest, Stop
from harness.load.transport import Exchange, Target
from harness.predict import stepped
from harness.spec.classes import Cancel
from harness.spec.distribution import parse
from harness.workload.dataset import Row, table
from harness.workload.rows import Rows
from harness.workload.shape import Class, Mix
from harness.workload.source import Mixed, Uniform
from harness.workload.text import COMMON
from tests.builders import virtual
from tests.builders.streams import delta, usage

TARGET = Target(scheme="http", host="h", port=1, path="/v1/chat/completions", headers={})
SOURCE = Uniform(words=COMMON, prompt_words=5, output_tokens=4, seed=0)


def plan(**changes: Any) -> Plan:
    fields: dict[str, Any] = {
        "worker": 0, "workers": 1, "run_id": "run", "replicas": (Replica("http://h:1", TARGET),),
        "source": SOURCE, "first_request": 0, "request_timeout_s": 60.0, "max_rps": None, "start": "staggered",
        "tick_ns": 1_000_000, "origin_ns": 0, "max_in_flight": 1024,
    }  # fmt: skip
    spoken = {name: changes.pop(name) for name in list(changes) if name in Codec.__struct_fields__}
    made = Plan(**fields | changes, codec=Codec(**{"model": "toy"} | spoken))
    return msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=Plan)  # as a worker gets it


class FakeServer:
    """A transport without sockets: each request takes `takes` seconds and streams four tokens in it."""

    stamped, resent = False, 0

    def __init__(self, takes: float = 1.0, fails: bool = False, clock: Callable[[], int] = virtual.clock_ns) -> None:
        self.takes, self.fails, self._clock = takes, fails, clock
        self.bodies: list[bytes] = []
        self.in_flight = self.most = self.prepared = 0
        self.sent_at: list[float] = []

    async def prepare(self, connections: int) -> None:
        self.prepared = max(self.prepared, connections)

    def request(self, request_id: str, body: bytes, session: str = "") -> bytes:
        return body

    def begin(self, exchange: Exchange, request: bytes) -> None:
        exchange.sent_ns = max(1, self._clock())
        self.sent_at.append(asyncio.get_running_loop().time())
        self.bodies.append(request)
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        exchange.connection = self
        exchange.over = asyncio.get_running_loop().create_future()

    async def send(self, exchange: Exchange, request: bytes, timeout_s: float) -> None:
        if exchange.connection is None:
            self.begin(exchange, request)
        assert exchange.over is not None
        deadline = self._clock() + round(timeout_s * 1e9)
        try:
            if self.fails:
                exchange.fail("refused", "nobody there")
                return
            exchange.response.status = 200
            for i in range(4):
                await asyncio.sleep(min(self.takes / 4, (deadline - self._clock()) * 1e-9))
                if self._clock() >= deadline:
                    exchange.fail("client_deadline", "no end in time")
                if exchange.error:
                    return
                last = i == 3
                piece = delta("length" if last else None, usage=usage(7, i + 1) if last else None, content="x")
                exchange.take(self._clock(), piece)
                if exchange.over.done():  # the rest is not read
                    return
        except asyncio.CancelledError:
            exchange.fail("cancelled", "cut by us")
            raise
        finally:
            self.in_flight -= 1
            exchange.done_ns = max(1, self._clock())
            exchange.take(exchange.done_ns, None)

    async def aclose(self) -> None:
        pass


def drive(
    script: list[tuple[float, Command]], server: Any, *, run: Callable[..., Any] = virtual.run, **changes: Any
) -> tuple[list[Record], list[Progress]]:
    """Run a driver whose commands come at the given times; its records and reports."""
    records: list[Record] = []
    reports: list[Progress] = []

    async def send(payload: bytes) -> None:
        value = msgspec.msgpack.decode(payload)
        if isinstance(value, list):
            records.extend(msgspec.msgpack.decode(payload, type=list[Record]))
        else:
            reports.append(msgspec.msgpack.decode(payload, type=Progress))

    async def main() -> None:
        commands: asyncio.Queue[Command] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        for at, command in script:
            loop.call_later(at, commands.put_nowait, command)
        await Driver(plan(**changes), server, send, clock=virtual.clock_ns).run(commands)

    run(main())
    return records, reports


def begin_level(index: int, concurrency: int, spread: float = 1.0, slots: int | None = None) -> BeginLevel:
    return BeginLevel(index, 0, concurrency, concurrency if slots is None else slots, spread, 1_000_000, 0)


def number(record: Record) -> int:
    """Of its prompt, in the order in which they are built."""
    return int(record.request_id.rpartition("-")[2])


def on_schedule(index: int, rate: float, at: float = 0.0, arrivals: str = "constant") -> BeginLevel:
    return BeginLevel(index, 0, None, 0, 1.0, 1_000_000, round(at * 1e9), rate, arrivals)


def test_a_level_keeps_exactly_its_requests_in_flight() -> None:
    server = FakeServer()
    records, reports = drive([(0.0, begin_level(0, 5)), (10.0, Stop())], server)
    assert server.most == 5
    steady = [p.in_flight for p in reports if 1.0 < p.time_s < 9.9]
    assert set(steady) == {5}
    assert sum(r.error == "" for r in records) in range(45, 51)


def test_a_level_of_a_given_number_of_requests_sends_exactly_these() -> None:
    server = FakeServer()
    records, reports = drive(
        [(0.0, msgspec.structs.replace(begin_level(0, 5, spread=0.0), requests=12)), (20.0, Stop())], server
    )
    assert Counter(r.error for r in records) == {"": 12}
    assert server.most == 5
    assert (reports[-1].ended, reports[-1].in_flight) == (12, 0)


def test_connections_that_find_no_server_are_counted_until_one_answers() -> None:
    class Flipping(FakeServer):
        async def send(self, exchange: Exchange, request: bytes, timeout_s: float) -> None:
            self.fails = not 2.0 < asyncio.get_running_loop().time() < 4.0
            await super().send(exchange, request, timeout_s)
            exchange.bytes_received = 0 if exchange.error else 1

    _, reports = drive([(0.0, begin_level(0, 1)), (6.0, Stop())], Flipping(takes=0.1))
    assert max(p.refused for p in reports if p.time_s < 1.9) > 2
    assert {p.refused for p in reports if 3.2 < p.time_s < 3.9} == {0}
    assert reports[-1].refused > 2


def test_a_server_that_answers_others_is_there_and_a_new_level_begins_to_count_anew() -> None:
    class Choosy(FakeServer):
        """Every request but the first finds no server, while the first one streams."""

        async def send(self, exchange: Exchange, request: bytes, timeout_s: float) -> None:
            exchange.bytes_received = int(len(self.sent_at) == 0)
            self.fails = bool(self.sent_at)
            await super().send(exchange, request, timeout_s)

    _, reports = drive([(0.0, begin_level(0, 3, spread=0.3)), (4.0, Stop())], Choosy(takes=5.0))
    assert {p.refused for p in reports} == {0}

    gone = FakeServer(fails=True)
    _, reports = drive([(0.0, begin_level(0, 1)), (3.0, begin_level(1, 1)), (3.06, Stop())], gone)
    assert max(p.refused for p in reports if p.time_s < 3.0) > 2
    assert reports[-1].refused <= 1


def test_the_oldest_requests_in_flight_are_reported_by_their_age() -> None:
    _, reports = drive([(0.0, begin_level(0, 3, spread=0.9)), (0.95, Stop())], FakeServer(takes=5.0))
    assert list(reports[-1].oldest) == pytest.approx([0.0, 0.3, 0.6], abs=0.01)


def test_a_level_is_made_ready_before_it_begins_and_reports_it() -> None:
    server = FakeServer()
    _, reports = drive([(0.0, Prepare(7, 5)), (1.0, Stop())], server)
    assert server.prepared == 5
    assert server.sent_at == []
    assert reports[-1].prepared == 7


def test_a_level_begins_at_the_moment_that_it_names() -> None:
    server = FakeServer()
    named = msgspec.structs.replace(begin_level(0, 3), at_ns=500_000_000)
    _, reports = drive([(0.1, named), (1.0, Stop())], server, start="burst")
    assert server.sent_at[:3] == pytest.approx([0.5] * 3)
    assert reports[-1].took_s == pytest.approx(0.0, abs=1e-9)


def test_every_request_ends_as_one_record() -> None:
    server = FakeServer()
    records, _ = drive([(0.0, begin_level(0, 5)), (3.0, begin_level(1, 8)), (7.3, Stop())], server)
    assert len(records) == len(server.bodies)
    assert len({r.request_id for r in records}) == len(records)
    assert Counter(r.error for r in records)["cancelled"] == 8


def test_starts_are_spread_over_one_request_time_and_a_burst_is_not() -> None:
    server = FakeServer()
    drive([(0.0, begin_level(0, 4, spread=2.0)), (1.9, Stop())], server)
    assert server.sent_at[:1] + server.sent_at[1:3] == pytest.approx([0.0, 0.5, 1.0])
    burst = FakeServer()
    drive([(0.0, begin_level(0, 4, spread=2.0)), (0.5, Stop())], burst, start="burst")
    assert burst.sent_at == [0.0] * 4


def test_a_rising_level_drains_nothing_and_tags_requests_by_when_they_were_sent() -> None:
    server = FakeServer()
    records, reports = drive([(0.0, begin_level(0, 2)), (5.25, begin_level(1, 4)), (10.0, Stop())], server)
    around = [p.in_flight for p in reports if 5.0 < p.time_s < 6.5]
    assert min(around) == 2
    for r in records:
        assert r.sent_s is not None
        assert (r.level, r.concurrency) == ((0, 2) if r.sent_s < 5.25 else (1, 4))
    assert any(r.level == 0 and r.done_s is not None and r.done_s > 5.25 for r in records)


def test_a_falling_level_lets_the_surplus_end_by_itself() -> None:
    server = FakeServer()
    records, reports = drive([(0.0, begin_level(0, 6)), (5.0, begin_level(1, 2)), (10.0, Stop())], server)
    assert {p.in_flight for p in reports if 6.2 < p.time_s < 9.9} == {2}
    assert Counter(r.error for r in records)["cancelled"] == 2


def test_prompts_are_never_repeated_across_levels() -> None:
    server = FakeServer(takes=0.1)
    drive([(0.0, begin_level(0, 3)), (2.0, begin_level(1, 6)), (5.0, Stop())], server)
    prompts = [json.loads(b)["messages"][0]["content"] for b in server.bodies]
    assert len(prompts) > 150
    assert len(set(prompts)) == len(prompts)


def words_sent(server: FakeServer) -> list[int]:
    return [len(json.loads(b)["messages"][0]["content"].split()) for b in server.bodies]


def test_a_level_has_prompts_of_its_own_length_from_its_first_request_to_its_last() -> None:
    server = FakeServer(takes=0.1)
    script: list[tuple[float, Command]] = [(0.0, Prepare(1, 2)), (0.0, begin_level(0, 2)), (8.0, Stop())]
    for index, words in enumerate((11, 40, None), start=1):
        script[-1:-1] = [
            (2.0 * index, Prepare(index + 1, 3)),
            (2.0 * index, msgspec.structs.replace(begin_level(index, 3), prompt_words=words)),
        ]
    records, _ = drive(script, server)
    of = {r.request_id: r.level for r in records}
    assert len(of) == len(server.bodies) > 150
    lengths: dict[int, set[int]] = {}
    by_send = sorted(records, key=lambda r: (r.sent_s or 0.0, number(r)))
    for record, words in zip(by_send, words_sent(server), strict=True):
        lengths.setdefault(record.level, set()).add(words)
    assert lengths == {0: {5}, 1: {11}, 2: {40}, 3: {5}}


def test_no_prompt_is_used_twice_where_lengths_change() -> None:
    server = FakeServer(takes=0.1)
    changes = [msgspec.structs.replace(begin_level(i, 2), prompt_words=w) for i, w in enumerate((5, 9, 5, None, 9))]
    records, _ = drive([*((1.0 * i, each) for i, each in enumerate(changes)), (5.0, Stop())], server)
    starts = {tuple(json.loads(b)["messages"][0]["content"].split()[:5]) for b in server.bodies}
    assert len(starts) == len(server.bodies) > 80, "one number at two lengths would begin with the same words"
    assert len({r.request_id for r in records}) == len(records)


def test_what_an_open_loop_sends_late_has_the_length_of_the_level_that_it_was_due_in() -> None:
    server = FakeServer(takes=1.0)
    script: list[tuple[float, Command]] = [
        (0.0, msgspec.structs.replace(on_schedule(0, 8.0), prompt_words=3)),
        (1.05, msgspec.structs.replace(on_schedule(1, 8.0, at=1.05), prompt_words=7)),
        (3.05, Stop()),
    ]
    records, _ = drive(script, server, max_in_flight=2)
    by_send = sorted(records, key=lambda r: (r.sent_s or 0.0, number(r)))
    sent = {(r.level, words) for r, words in zip(by_send, words_sent(server), strict=False)}
    assert sent == {(0, 3)}, "two a second: none of the later level's"


def test_workers_share_a_level_s_slots_its_starts_and_the_numbers_of_its_prompts() -> None:
    whole, sent = [], []
    for worker in range(2):
        server = FakeServer(takes=9.0)  # so that each slot sends once
        script: list[tuple[float, Command]] = [(0.0, begin_level(0, 4, spread=2.0, slots=2)), (1.9, Stop())]
        records, _ = drive(script, server, worker=worker, workers=2)
        assert {r.concurrency for r in records} == {4}
        assert {r.worker for r in records} == {worker}
        whole += server.bodies
        sent += server.sent_at
    assert sorted(sent) == pytest.approx([0.0, 0.5, 1.0, 1.5])
    assert len(set(whole)) == 4


def test_a_request_is_the_same_whichever_worker_sends_it() -> None:
    def bodies(worker: int, workers: int) -> list[bytes]:
        server = FakeServer(takes=9.0)
        script: list[tuple[float, Command]] = [(0.0, begin_level(0, 8, spread=0.0, slots=8 // workers)), (1.0, Stop())]
        drive(script, server, worker=worker, workers=workers)
        return server.bodies

    assert len(bodies(0, 1)) == 8
    assert sorted(bodies(0, 1)) == sorted(bodies(0, 2) + bodies(1, 2))


def test_requests_that_differ_are_the_same_on_any_worker_and_recorded_with_their_class() -> None:
    chat = Class(name="chat", share=3, input=parse("3..9"), output=parse("lognormal(30,9)"))
    rag = Class(name="rag", input=parse(200), output=parse(5))
    source = Mixed(mix=Mix((chat, rag), seed=4), words=COMMON)

    def sent(worker: int, workers: int) -> dict[int, tuple[str, int, int, int | None]]:
        server = FakeServer(takes=9.0)  # so that each slot sends once
        level = begin_level(0, 40, spread=0.0, slots=40 // workers)
        script: list[tuple[float, Command]] = [(0.0, level), (1.0, Stop())]
        classes = {"rag": {"priority": 7}}
        records, _ = drive(script, server, source=source, worker=worker, workers=workers, classes=classes)
        bodies = map(json.loads, server.bodies)
        return {
            number(r): (r.class_, len(b["messages"][0]["content"].split()), b["max_tokens"], b.get("priority"))
            for r, b in zip(sorted(records, key=number), bodies, strict=True)
        }

    alone = sent(0, 1)
    assert len(alone) == 40
    assert alone == sent(0, 2) | sent(1, 2)
    for n, (name, words, tokens, priority) in alone.items():
        assert (name, words, tokens) == (source.mix.shape(n).class_, *msgspec.structs.astuple(source.mix.shape(n))[:2])
        assert priority == (7 if name == "rag" else None)
    assert {each[0] for each in alone.values()} == {"chat", "rag"}


def test_an_open_loop_sends_on_schedule_whatever_becomes_of_the_answers() -> None:
    server = FakeServer(takes=3.0)
    records, reports = drive([(0.0, on_schedule(0, 4.0)), (10.1, Stop())], server)
    assert server.sent_at == pytest.approx([i / 4 for i in range(41)])
    assert reports[-1].in_flight == 12
    for r in records:
        assert r.concurrency is None
        assert r.sent_s is not None
        assert r.sent_s == pytest.approx(r.scheduled_s, abs=1e-6)


def test_a_request_that_is_sent_in_the_turn_in_which_the_load_ends_has_its_record() -> None:
    server = FakeServer(takes=3.0)
    records, _ = drive([(0.0, on_schedule(0, 4.0)), (2.0, Stop())], server)
    assert server.sent_at[-1] == pytest.approx(2.0)
    assert len(records) == len(server.sent_at)
    assert {r.error for r in records} == {"cancelled"}


def test_between_levels_an_open_loop_can_rest_until_what_it_has_sent_is_over() -> None:
    server = FakeServer(takes=1.0)
    script: list[tuple[float, Command]] = [(0.0, on_schedule(0, 8.0)), (2.06, Rest()), (6.0, Stop())]
    records, reports = drive(script, server, max_in_flight=4)
    assert len(records) == 17, "those that were due are sent, though only 4 a second can be"
    assert {r.error for r in records} == {""}
    resting = [p for p in reports if p.time_s > 2.1]
    assert {p.level for p in resting} == {-1}
    assert all(p.oldest_sent_s is not None for p in resting if p.time_s < 4.9), "one waits for its place, or flies"
    assert all(p.oldest_sent_s is None for p in resting if p.time_s > 5.1)


def test_an_open_loop_whose_request_cannot_be_built_ends_the_worker() -> None:
    class Broken(FakeServer):
        def begin(self, exchange: Exchange, request: bytes) -> None:
            raise RuntimeError("a bug")

    with pytest.raises(ExceptionGroup) as caught:
        drive([(0.0, on_schedule(0, 4.0)), (60.0, Stop())], Broken())
    assert caught.group_contains(RuntimeError, match="a bug")


def test_the_workers_of_an_open_loop_lie_between_each_other() -> None:
    sent = []
    for worker in range(2):
        server = FakeServer()
        drive([(0.0, on_schedule(0, 4.0)), (5.1, Stop())], server, worker=worker, workers=2)
        sent += server.sent_at
    assert sorted(sent) == pytest.approx([i / 4 for i in range(21)])


def test_poisson_arrivals_have_the_requested_rate_and_differ_from_level_to_level() -> None:
    server = FakeServer()
    script: list[tuple[float, Command]] = [
        (0.0, on_schedule(0, 100.0, arrivals="poisson")),
        (20.0, on_schedule(1, 100.0, at=20.0, arrivals="poisson")),
        (40.0, Stop()),
    ]
    drive(script, server)
    first, second = ([t for t in server.sent_at if low <= t < low + 20] for low in (0.0, 20.0))
    assert 1800 < len(first) < 2200
    gaps = [b - a for a, b in itertools.pairwise(first)]
    mean = sum(gaps) / len(gaps)
    assert sum((g - mean) ** 2 for g in gaps) / len(gaps) == pytest.approx(mean**2, rel=0.2)
    assert [t - 20 for t in second[:5]] != pytest.approx(first[:5])


@pytest.mark.parametrize("kind", ["poisson", "gamma(0.3)", "wave(period=5s,low=5,high=35)"])
def test_requests_are_due_when_the_prediction_of_the_run_has_them(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    predicted: list[list[float]] = []

    def simulated(machine: Any, lengths: Any, arrivals: Iterator[float], **times: float) -> NoReturn:
        predicted.append(list(itertools.islice(arrivals, 100)))
        raise HarnessError("enough")

    monkeypatch.setattr(stepped, "open_loop", simulated)
    asked = ["--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--simulate", "--rate", "20", "--arrivals", kind]
    CliRunner().invoke(cli, ["predict", *asked])
    records = []
    for worker in range(2):
        script = [(0.0, on_schedule(0, 20.0, arrivals=kind)), (12.0, Stop())]
        records += drive(script, FakeServer(), worker=worker, workers=2)[0]
    due = sorted(r.scheduled_s for r in records)[:100]
    assert due == pytest.approx(predicted[0], abs=1e-8)


def test_what_is_due_beyond_the_limit_of_an_open_loop_waits_and_its_wait_is_lag() -> None:
    server = FakeServer(takes=2.0)
    records, reports = drive([(0.0, on_schedule(0, 2.0)), (20.1, Stop())], server, max_in_flight=2)
    assert server.most == 2
    lags = [r.sent_s - r.scheduled_s for r in records if r.sent_s is not None]
    assert max(lags) > 8, "half of what is due can be sent"
    assert reports[-1].oldest_sent_s is not None
    assert reports[-1].oldest_sent_s < 11, "what waits longest counts, not what was sent longest ago"


def test_a_trace_sends_each_row_at_its_own_time_on_every_level(tmp_path: Path) -> None:
    """Three rows in a second: at 2 a second they come at 0, 0.25 and 1 s, and again from 1.5 s on."""
    table.write(
        (Row(input_tokens=n, output_tokens=4, at_s=at) for n, at in ((3, 0.0), (5, 0.25), (7, 1.0))), tmp_path / "rows"
    )
    source = Rows(path=str(tmp_path / "rows"), words=COMMON, seed=0, prompt_words=5, output_tokens=4)
    for workers in (1, 2):
        sent: dict[int, list[tuple[float, int]]] = {0: [], 1: []}
        for worker in range(workers):
            levels = [
                msgspec.structs.replace(
                    on_schedule(index, 2.0, at=5.0 * index, arrivals="trace"), first_request=300 * index
                )
                for index in range(2)
            ]
            server = FakeServer(takes=0.1)
            script: list[tuple[float, Command]] = [
                (0.0, Prepare(1, 2)),
                (0.0, levels[0]),
                (5.0, levels[1]),
                (7.0, Stop()),
            ]
            records, _ = drive(script, server, source=source, worker=worker, workers=workers)
            for r, words in zip(sorted(records, key=lambda r: r.sent_s or 0.0), words_sent(server), strict=True):
                assert words == 3 + 2 * (number(r) % 3)
                sent[r.level].append((round(r.scheduled_s - 5.0 * r.level, 6), words))
        assert sorted(sent[1])[:4] == sorted(sent[0])[:4] == [(0.0, 3), (0.25, 5), (1.0, 7), (1.5, 3)]


@pytest.mark.parametrize(
    ("cancel", "took_s", "chunks"),
    [(Cancel(share=0.25, after_s=0.6), 0.6, 2), (Cancel(share=0.25, after_tokens=3), 0.75, 3)],
)
def test_a_share_of_the_requests_is_given_up_and_their_slots_go_on(cancel: Cancel, took_s: float, chunks: int) -> None:
    """Four tokens in a second: after 0.6 s two of them have come, and three after 0.75 s."""
    source = Mixed(mix=Mix((Class(name="a", input=parse(5), output=parse(4), cancel=cancel),), seed=1), words=COMMON)
    records, reports = drive([(0.0, begin_level(0, 4)), (50.1, Stop())], FakeServer(), source=source)
    over = [r for r in records if r.error != "cancelled"]
    given_up = [r for r in over if r.error == "abandoned"]
    assert [r.error for r in over] == ["abandoned" if source.mix.shape(number(r)).cancel else "" for r in over]
    assert 0.1 < len(given_up) / len(over) < 0.4
    for r in given_up:
        assert r.done_s is not None
        assert r.sent_s is not None
        assert r.done_s - r.sent_s == pytest.approx(took_s)
        assert len(arrivals_of(r)) == chunks
    assert {p.in_flight for p in reports if 1.0 < p.time_s < 50.0} == {4}, "no slot rests after it"
    assert reports[-1].failed == 0


def test_an_open_loop_ends_with_its_level() -> None:
    server = FakeServer()
    script: list[tuple[float, Command]] = [(0.0, on_schedule(0, 10.0)), (2.05, begin_level(1, 1)), (6.0, Stop())]
    records, reports = drive(script, server)
    assert sum(r.level == 0 for r in records) == 21
    assert {p.in_flight for p in reports if p.time_s > 3.2} == {1}


def test_lag_in_closed_loop_is_the_turnaround_of_the_slot() -> None:
    records, _ = drive([(0.0, begin_level(0, 2)), (6.0, Stop())], FakeServer())
    for r in records:
        assert r.sent_s is not None
        assert r.sent_s - r.scheduled_s == pytest.approx(0.0, abs=1e-6)


def test_arrivals_are_times_since_the_origin() -> None:
    records, _ = drive([(0.0, begin_level(0, 1, spread=0.0)), (2.5, Stop())], FakeServer())
    first = min(records, key=lambda r: r.sent_s or 0.0)
    assert [t * 1e-9 for t in arrivals_of(first)] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert (first.output_tokens, first.input_tokens, first.token_source) == (4, 7, "chunks")


def test_a_server_that_refuses_is_not_flooded_and_nothing_is_hidden() -> None:
    server = FakeServer(fails=True)
    records, reports = drive([(0.0, begin_level(0, 3, spread=0.0)), (10.0, Stop())], server)
    assert {r.error for r in records} == {"refused"}
    assert len(records) == len(server.bodies)
    # 0.05 + 0.1 + 0.2 + 0.4 + 0.8 + 1 + 1 …: about 13 tries a slot in ten seconds.
    assert 3 * 10 <= len(records) <= 3 * 16
    assert reports[-1].failed == reports[-1].ended > 0


def test_a_slot_rests_once_after_a_failure_and_not_again_after_the_success_behind_it() -> None:
    class Refuses(FakeServer):
        """Its fifth request only."""

        async def send(self, exchange: Exchange, request: bytes, timeout_s: float) -> None:
            self.fails = len(self.sent_at) == 4
            await super().send(exchange, request, timeout_s)

    records, _ = drive([(0.0, begin_level(0, 1, spread=0.0)), (10.5, Stop())], Refuses())
    lags = [round((r.sent_s or 0.0) - r.scheduled_s, 3) for r in sorted(records, key=lambda r: r.scheduled_s)]
    assert lags == pytest.approx([0.05 if i == 5 else 0.0 for i in range(len(lags))], abs=0.01)
    assert len(lags) == 12


class Says(FakeServer):
    """Answers 200 with the given events at once; only decoding, a tick later, tells what they say."""

    def __init__(self, *events: bytes) -> None:
        super().__init__()
        self._events = events

    async def send(self, exchange: Exchange, request: bytes, timeout_s: float) -> None:
        exchange.sent_ns = exchange.done_ns = max(1, self._clock())
        self.sent_at.append(asyncio.get_running_loop().time())
        exchange.response.status = 200
        await asyncio.sleep(0.002)
        asyncio.get_running_loop().call_later(0.001, self.decode, exchange)

    def decode(self, exchange: Exchange) -> None:
        for event in self._events:
            exchange.take(1, event)
        exchange.take(1, None)


def test_an_error_inside_the_stream_slows_the_slot_and_is_counted() -> None:
    server = Says(b'data: {"error": {"message": "x"}}\n\n')
    records, reports = drive([(0.0, begin_level(0, 1, spread=0.0)), (1.2, Stop())], server)
    assert {r.error for r in records} == {"stream_error"}
    late = [t for t in server.sent_at if t > server.sent_at[0] + 0.2]
    assert len(late) < 12
    assert reports[-1].failed > 0


def test_only_requests_of_the_level_count_for_its_warm_up() -> None:
    _, reports = drive([(0.0, begin_level(0, 32)), (5.5, begin_level(1, 1)), (10.0, Stop())], FakeServer())
    falling = [p for p in reports if p.level == 1]
    assert max(p.in_flight for p in falling) > 1, "the higher level's requests are still there at first"
    assert max(p.ended for p in falling) <= 5, "one slot, one second a request, four and a half seconds"


@pytest.mark.slow
def test_a_quota_is_kept_and_waiting_for_it_is_lag() -> None:
    server = FakeServer(takes=0.01)  # in real time: the quota's clock is not ours
    script: list[tuple[float, Command]] = [(0.0, begin_level(0, 8, spread=0.0)), (1.5, Stop())]
    records, _ = drive(script, server, run=asyncio.run, max_rps=40.0)
    assert 40 < len(server.sent_at) <= 80
    first = server.sent_at[0]
    assert sum(t - first < 0.99 for t in server.sent_at) == 40
    assert max(r.sent_s - r.scheduled_s for r in records if r.sent_s is not None) > 0.5


@pytest.mark.slow
def test_those_that_wait_for_the_quota_go_on_in_their_order() -> None:
    """Of an open loop above its quota; each request keeps the time at which it was due."""
    server = FakeServer(takes=0.01)
    level = on_schedule(0, 60.0, at=time.monotonic() + 0.1)  # by the clock of a real loop
    records, _ = drive([(0.0, level), (2.0, Stop())], server, run=asyncio.run, max_rps=20.0)
    sent = sorted((r.sent_s, r.scheduled_s, number(r)) for r in records if r.sent_s is not None)
    assert len(sent) > 30
    assert [due for _, due, _ in sent] == sorted(due for _, due, _ in sent)
    assert [n for *_, n in sent] == sorted(n for *_, n in sent)


@pytest.mark.slow
def test_a_quota_of_a_part_of_a_request_a_second_is_kept_too() -> None:
    server = FakeServer(takes=0.01)
    script: list[tuple[float, Command]] = [(0.0, begin_level(0, 8, spread=0.0)), (3.0, Stop())]
    drive(script, server, run=asyncio.run, max_rps=2.5)
    assert len(server.sent_at) in (7, 8), "2.5 a second for 3 s, not 2"


@pytest.mark.slow
def test_a_static_batch_keeps_to_its_quota() -> None:
    server = FakeServer(takes=0.01)
    script: list[tuple[float, Command]] = [(0.0, begin_level(0, 8)), (1.5, Stop())]
    drive(script, server, run=asyncio.run, max_rps=20.0, start="batch")
    first = server.sent_at[0]
    assert sum(t - first < 0.99 for t in server.sent_at) == 20
    assert 20 < len(server.sent_at) <= 40


def test_the_oldest_request_is_reported() -> None:
    _, reports = drive([(0.0, begin_level(0, 2)), (4.0, Stop())], FakeServer())
    for before, after in itertools.pairwise(p for p in reports if p.oldest_sent_s is not None):
        assert after.oldest_sent_s is not None
        assert before.oldest_sent_s is not None
        assert after.oldest_sent_s >= before.oldest_sent_s
        assert after.time_s - after.oldest_sent_s <= 1.0 + 1e-6


@pytest.mark.parametrize("start", ["staggered", "batch"])
def test_a_slot_rests_after_an_answer_without_a_token(start: str) -> None:
    """A dead engine behind an API that goes on is not asked a thousand times a second."""
    server = Says(delta("stop", role="assistant", content=""), b"data: [DONE]\n\n")
    records, reports = drive([(0.0, begin_level(0, 1, spread=0.0)), (10.0, Stop())], server, start=start)
    assert {r.error for r in records} == {"empty_response"}
    assert len(server.sent_at) < 30
    assert reports[-1].failed > 5


def test_a_slot_does_not_rest_where_the_connection_broke_behind_the_end_of_the_answer() -> None:
    class Breaks(Says):
        async def send(self, exchange: Exchange, request: bytes, timeout_s: float) -> None:
            await super().send(exchange, request, timeout_s)
            exchange.fail("reset", "by the server")

    server = Breaks(delta("length", content="abcd"), b"data: [DONE]\n\n")
    records, reports = drive([(0.0, begin_level(0, 1, spread=0.0)), (1.0, Stop())], server)
    assert {(r.error, r.noted) for r in records} == {("", "cut_after_end,asked")}
    assert len(records) > 100
    assert reports[-1].failed == 0


@pytest.mark.parametrize(
    ("extra", "asked"), [({}, True), ({"top_p": 1}, True), ({"max_tokens": 9}, False), ({"options": {}}, False)]
)
def test_what_a_request_asks_for_is_the_count_of_an_answer_that_nobody_counts(
    extra: dict[str, Any], asked: bool
) -> None:
    server = Says(delta(content="abcd"), delta("length", content="ab"), b"data: [DONE]\n\n")
    records, _ = drive([(0.0, begin_level(0, 1, spread=0.0)), (0.1, Stop())], server, extra_body=extra)
    found = {(r.output_tokens, r.noted) for r in records if not r.error}
    assert found == {(4, "asked") if asked else (2, "")}
