"""When a window may begin and end: one level over a fake worker, on a virtual clock."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.base import files
from harness.data.manifest import Manifest, read
from harness.data.progress import LevelProgress
from harness.data.record import Level, Record, Role
from harness.data.summary import RampStep
from harness.load.messages import BeginLevel, Progress
from harness.results import frames
from harness.results.folder import MANIFEST
from harness.results.result import Result
from harness.results.spool import Spool, finish, header
from harness.run import live_state
from harness.run.launch.endpoint import Alone, Prompts
from harness.run.levels import Levels
from harness.run.resume import Earlier, RampInputs
from harness.search.budget import Budget, Spent
from harness.search.level import Task
from harness.search.state import MeasuredLevel, measured
from harness.spec import reading
from tests.builders import virtual
from tests.builders.endpoints import checked
from tests.builders.records import request

ENDPOINT = checked(
    prompts=Prompts(words=("a",), count=4, tokens=4, used=1),
    alone=Alone(e2e_s=0.5, itl_s=0.01),
)


class Quiet:
    def measuring(self, *_: Any) -> None: ...

    def level_started(self, *_: Any) -> None: ...

    def update(self, now: LevelProgress) -> None: ...

    def level_finished(self, *_: Any) -> None: ...

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


class FakeWorker:
    """Keeps the level in flight: a request takes `takes` seconds, tokens come at `pace(t)` a second."""

    def __init__(self, watch: Any, *, takes: float = 0.5, pace: Any = lambda t: 100.0, noise: float = 0.2) -> None:
        self.takes, self.pace, self.watch, self.noise = takes, pace, watch, noise
        self.current: BeginLevel | None = None
        self.random = random.Random(0)
        self.began = self.tokens = 0.0
        self.requests = 0

    async def begin_level(self, level: BeginLevel, connections: int) -> None:
        self.current, self.began, self.connections = level, virtual.clock_ns() * 1e-9, connections

    async def next_progress(self) -> Progress:
        await asyncio.sleep(0.05)
        assert self.current is not None
        flying = self.current.concurrency or 8
        now = virtual.clock_ns() * 1e-9
        self.tokens += 0.05 * self.pace(now) * (1 + self.random.uniform(-self.noise, self.noise))
        ended = int(flying * max(0.0, now - self.began) / self.takes)
        self.requests += flying
        progress = Progress(
            time_s=now, level=self.current.index, in_flight=flying, ended=ended, failed=0, waiting=0,
            tokens=int(self.tokens), oldest_sent_s=now - self.takes, begun_in_run=ended, cpu_s=0.0,
            reads=0, unstamped=0,
        )  # fmt: skip
        self.watch(progress)
        return progress


def run_level(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    concurrency: int | None = 4,
    rate: float | None = None,
    ramp: dict[str, Any],
    before: Earlier = Earlier(),
    change: Callable[[Progress], Progress] = lambda p: p,
    view: Quiet | None = None,
    **fake: Any,
) -> tuple[Level | None, list[Level]]:
    """Hold one level; its last frame in the spool, and all of them."""
    monkeypatch.setattr(live_state.time, "monotonic_ns", virtual.clock_ns)
    spool = Spool(tmp_path, header(0, 0.0))
    frames: list[Level] = []
    keep = spool.level
    spool.level = lambda level: (frames.append(level), keep(level))[1]  # type: ignore[method-assign]
    spec = reading.read({"ramp": ramp}, place="test")
    levels = Levels(spec, ENDPOINT, spool, view or Quiet(), 0, before)
    worker = FakeWorker(lambda p: levels._shown.report(change(p)), **fake)

    async def main() -> None:
        level = Level(0, concurrency, 0, levels.live.now(), rate=rate)
        await levels._drive(worker, level)  # type: ignore[arg-type]

    virtual.run(main())
    spool.close()
    return (frames[-1] if frames else None), frames


def test_a_level_warms_up_measures_and_holds_until_the_window_s_last_request_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    level, frames = run_level(tmp_path, monkeypatch, ramp={"level_seconds": 5})
    assert level is not None
    assert level.window_start_s is not None
    assert level.window_end_s is not None
    assert level.end_s is not None
    assert level.window_start_s >= 1.0, "two requests a slot, half a second each"
    assert level.window_end_s - level.window_start_s == pytest.approx(5.0, abs=0.11)
    assert level.end_s >= level.window_end_s + 0.5, "the last one to begin takes half a second"
    assert level.notes == ()
    assert [f.finished for f in frames] == [False, False, False, True]


def test_an_open_level_warms_up_for_two_request_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    level, _ = run_level(tmp_path, monkeypatch, concurrency=None, rate=16.0, ramp={"level_seconds": 5})
    assert level is not None
    assert level.window_start_s is not None
    assert level.window_start_s == pytest.approx(1.0, abs=0.11)
    assert level.finished
    assert level.rate == 16.0


def window_s(level: Level | None) -> float:
    assert level is not None
    assert level.window_start_s is not None
    assert level.window_end_s is not None
    return level.window_end_s - level.window_start_s


def test_without_a_length_the_shortest_window_that_is_precise_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    level, _ = run_level(tmp_path, monkeypatch, ramp={}, noise=0.0)
    assert window_s(level) == pytest.approx(22 * 0.5, abs=0.11)
    assert level is not None
    assert level.notes == ()


def test_a_window_goes_on_from_look_to_look_until_it_is_precise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    level, _ = run_level(tmp_path, monkeypatch, ramp={"precision": 0.01})
    assert level is not None
    assert level.notes == ()
    lengths = [11 * 1.5**k for k in range(6)]
    assert min(abs(window_s(level) - length) for length in lengths[1:]) < 0.11, "no other length ends it"
    (tmp_path / "b").mkdir()
    wider, _ = run_level(tmp_path / "b", monkeypatch, ramp={"precision": 0.1})
    assert window_s(wider) == pytest.approx(lengths[0], abs=0.11)


def test_a_window_that_never_is_precise_ends_at_its_last_look_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    level, _ = run_level(tmp_path, monkeypatch, ramp={"precision": 0.0005})
    assert level is not None
    assert level.notes == ("not_precise",)
    assert window_s(level) == pytest.approx(11 * 1.5**5, abs=0.11)


def test_a_budget_ends_a_window_that_is_not_precise_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    level, _ = run_level(tmp_path, monkeypatch, ramp={"precision": 0.0005, "max_seconds": 20})
    assert level is not None
    assert level.notes == ("cut_short", "not_precise")
    assert level.window_end_s == pytest.approx(20.0, abs=0.11)


def test_a_trend_is_no_precision_and_does_not_keep_the_window_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    level, _ = run_level(tmp_path, monkeypatch, ramp={}, pace=lambda t: 1000.0 * t, noise=0.0)
    assert level is not None
    assert level.notes == ("not_settled", "not_precise")
    assert window_s(level) == pytest.approx(11 * 1.5, abs=0.11)


def test_after_a_transient_the_looks_count_from_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    level, _ = run_level(tmp_path, monkeypatch, ramp={}, pace=lambda t: 1000.0 if t > 3.0 else 100.0, noise=0.05)
    assert level is not None
    assert level.window_start_s is not None
    assert 2.9 <= level.window_start_s <= 3.5
    assert window_s(level) == pytest.approx(11.0, abs=0.11)


def test_a_lower_level_begins_when_the_higher_one_s_requests_and_those_beside_them_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Surplus requests run until 4 s; by then 2 C of the level's own have ended, but all together with the surplus."""
    surplus = msgspec.structs.replace
    monkeypatch.setattr(
        FakeWorker,
        "next_progress",
        _with(FakeWorker.next_progress, lambda p: surplus(p, in_flight=40 if p.time_s < 4.0 else 4)),
    )
    level, _ = run_level(tmp_path, monkeypatch, ramp={"level_seconds": 1})
    assert level is not None
    assert level.window_start_s == pytest.approx(4.5, abs=0.11), "a request time after the last one of them"


def test_a_transient_moves_the_window_s_start_and_keeps_its_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    level, _ = run_level(tmp_path, monkeypatch, ramp={"level_seconds": 10}, pace=lambda t: 1000.0 if t > 3.0 else 100.0)
    assert level is not None
    assert level.window_start_s is not None
    assert level.window_end_s is not None
    assert 2.9 <= level.window_start_s <= 3.5
    assert level.window_end_s - level.window_start_s == pytest.approx(10.0, abs=0.11)


def test_a_trend_extends_the_window_once_and_is_then_doubted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    level, _ = run_level(tmp_path, monkeypatch, ramp={"level_seconds": 5}, pace=lambda t: 1000.0 * t, noise=0.0)
    assert level is not None
    assert level.window_start_s is not None
    assert level.window_end_s is not None
    assert level.notes == ("not_settled",)
    assert level.window_end_s - level.window_start_s == pytest.approx(10.0, abs=0.11)


def test_a_window_of_few_bins_says_that_nothing_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    level, _ = run_level(tmp_path, monkeypatch, concurrency=1, ramp={"level_seconds": 0.1}, takes=0.2)
    assert level is not None
    assert level.notes == ()


def test_a_budget_cuts_the_window_and_the_cooldown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    level, _ = run_level(
        tmp_path, monkeypatch, ramp={"level_seconds": 60, "max_seconds": 8}, takes=30.0, concurrency=100
    )
    assert level is not None
    assert not level.finished, "it ended in the warm-up"
    (tmp_path / "b").mkdir()
    level, _ = run_level(tmp_path / "b", monkeypatch, ramp={"level_seconds": 60, "max_seconds": 8})
    assert level is not None
    assert level.window_end_s == pytest.approx(8.0, abs=0.11)
    assert level.notes == ("cut_short",)


def test_a_bound_on_the_disk_ends_a_window_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    level, frames = run_level(tmp_path, monkeypatch, ramp={"level_seconds": 600, "max_disk": "40kB"})
    assert level is not None
    assert level.notes == ("cut_short",)
    assert level.finished
    assert window_s(level) < 600
    assert 40_000 <= (tmp_path / "requests.spool").stat().st_size < 80_000
    assert frames[-1] == level


def test_a_budget_does_not_wait_for_a_request_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = msgspec.structs.replace
    monkeypatch.setattr(
        FakeWorker,
        "next_progress",
        _with(FakeWorker.next_progress, lambda p: hanging(p, oldest_sent_s=0.5 if p.time_s > 4 else p.time_s)),
    )
    level, _ = run_level(tmp_path, monkeypatch, ramp={"level_seconds": 5, "max_seconds": 20})
    assert level is not None
    assert level.finished
    assert level.end_s == pytest.approx(20.0, abs=1.5)
    assert "cooldown_cut" in level.notes


def test_a_level_ends_within_seconds_where_its_server_stalls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No token from 3 s on, requests of half a second: ended after 5 s."""
    stuck = msgspec.structs.replace
    monkeypatch.setattr(
        FakeWorker,
        "next_progress",
        _with(
            FakeWorker.next_progress, lambda p: stuck(p, tokens=min(p.tokens, 300), oldest_sent_s=min(p.time_s, 4.0))
        ),
    )
    level, _ = run_level(tmp_path, monkeypatch, ramp={"level_seconds": 300}, pace=lambda t: 100.0, noise=0.0)
    assert level is not None
    assert "stalled" in level.notes
    assert level.window_end_s == pytest.approx(3.0 + 5.0, abs=0.5)


def pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any, at_s: Callable[[float], float] = lambda t: 0.0
) -> list[tuple[str, float]]:
    """What a level's telemetry says of pauses; `at_s` gives how long the machine has slept."""
    monkeypatch.setattr(live_state, "_asleep", lambda: at_s(virtual.clock_ns() * 1e-9 if _running() else 0.0))
    run_level(tmp_path, monkeypatch, ramp={"level_seconds": 5}, change=change)
    samples = Result.open(tmp_path).samples
    return [(s.metric, s.value) for s in samples if s.metric.endswith(("paused_s", "slept_s"))]


def _running() -> bool:
    return asyncio._get_running_loop() is not None


def test_a_worker_that_stood_still_the_machine_that_slept_and_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
    stood = msgspec.structs.replace
    assert pauses(tmp_path / "a", monkeypatch, lambda p: p) == []
    paused = pauses(tmp_path / "b", monkeypatch, lambda p: stood(p, paused_s=0.7 if 2 < p.time_s < 2.06 else 0.01))
    assert paused == [("0/paused_s", 0.7)]
    slept = pauses(tmp_path / "c", monkeypatch, lambda p: p, lambda t: 100.0 if t > 3 else 40.0 if t > 2 else 0.0)
    assert slept == [("slept_s", 40.0), ("slept_s", 60.0)]


def test_a_main_process_that_reads_late_is_told_from_a_worker_that_stood_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reports that come a second late, from a worker that was not delayed."""
    late = FakeWorker.next_progress

    async def next_progress(self: FakeWorker) -> Progress:
        if 2.0 < virtual.clock_ns() * 1e-9 < 2.06:
            await asyncio.sleep(1.0)
        return await late(self)

    monkeypatch.setattr(FakeWorker, "next_progress", next_progress)
    run_level(tmp_path, monkeypatch, ramp={"level_seconds": 5})
    found = [(s.metric, s.value) for s in Result.open(tmp_path).samples if s.metric.endswith("paused_s")]
    assert found == [("parent_paused_s", pytest.approx(1.05, abs=0.01))]


def finished(index: int, concurrency: int, repeat: int = 0) -> Level:
    at = 10.0 * index
    return Level(index, concurrency, repeat, at, at + 2, at + 8, at + 9, reason="given", role=Role.FIXED)


def manifest_of(data: dict[str, Any]) -> Manifest:
    found = read(data)
    assert isinstance(found, Manifest)
    return found


def resumed(levels: list[Level], records: list[Record], **manifest: Any) -> Earlier:
    run = Result(path=Path(), manifest=manifest_of(manifest), header=header(0, 0.0), levels=levels, records=records,
                    samples=[], finished=False)  # fmt: skip
    return Earlier.of(run, 60.0)


def test_a_resumed_run_goes_on_behind_its_finished_levels_of_each_repeat() -> None:
    levels = [finished(0, 1), finished(1, 2), finished(2, 1, 1), Level(3, 2, 1, 30.0, 32.0)]
    # 3 requests in each window, 5 chunks each; two of level 1 fail.
    records = [
        request(10.0 * level.index + 3 + i, [10.0 * level.index + 3.5 + i] * 5, level=level.index,
                error="reset" if level.index == 1 and i < 2 else "")
        for level in levels
        for i in range(3)
    ]  # fmt: skip
    before = resumed(levels, records)
    assert [h is None for _, h in before.levels] == [False, False, False, True]
    _, (_, failed), *_ = before.levels
    assert failed is not None
    assert failed.error_rate == pytest.approx(2 / 3)
    (first,) = before.measured(0)
    assert (first.concurrency, first.throughput, first.error_rate) == (1, 15 / 6, 0.0)
    assert before.requests == 12
    # Two thirds of level 1 failed, which ended its ramp: a resumed run measures it again, and goes on with the rest.
    assert before.steps(1) == [RampStep(1, "given", None, 1, Role.FIXED)]


def test_a_probe_s_lengths_are_no_levels_of_the_ramp_and_are_held_once() -> None:
    probed = msgspec.structs.replace(finished(0, 1), input_tokens=64)
    records = [request(10.0 * i + 3 + k, [10.0 * i + 3.5 + k], level=i) for i in range(2) for k in range(3)]
    before = resumed([probed, finished(1, 1)], records)
    assert len(before.measured(0)) == 1
    assert before.probed(0) == {64}


class Serving:
    """A worker of C slots that serve themselves: a request takes a second at up to 4 in flight, then C/4; 9 tokens."""

    def __init__(self, live: Any) -> None:
        self.live, self.number, self.tokens, self.ended = live, 0, 0, 0
        self.current: Any = None
        self.slots: dict[int, Any] = {}

    async def begin(self, *_: Any) -> None: ...

    async def end(self) -> None: ...

    async def begin_level(self, level: BeginLevel, connections: int) -> None:
        self.current, self.ended = level, 0
        for slot in range(level.concurrency or 0):
            self.slots.setdefault(slot, None)

    async def next_progress(self) -> Progress:
        await asyncio.sleep(0.05)
        now, level = virtual.clock_ns() * 1e-9, self.current
        takes = max(1.0, level.concurrency / 4) * (1 + 0.02 * random.Random(self.number).uniform(-1, 1))
        done = []
        for slot, flying in list(self.slots.items()):
            if flying is not None and now >= flying[0] + flying[1]:
                sent, took, of = flying
                done.append(
                    request(sent, [sent + took * (0.2 + 0.1 * i) for i in range(9)], level=of.index,
                            concurrency=of.concurrency, request_id=f"{self.number}")
                )  # fmt: skip
                self.number, self.tokens, flying = self.number + 1, self.tokens + 9, None
                self.ended += of is level
            if flying is None and slot < level.concurrency:
                self.slots[slot] = (now, takes, level)
            elif flying is None:
                del self.slots[slot]
        if done:
            self.live.batch(frames.batch(done))
        sent = [flying[0] for flying in self.slots.values() if flying]
        progress = Progress(
            time_s=now, level=level.index, in_flight=len(sent), ended=self.ended, failed=0, waiting=0,
            tokens=self.tokens, oldest_sent_s=min(sent), begun_in_run=self.number + len(sent), cpu_s=0.0,
            reads=0, unstamped=0,
        )  # fmt: skip
        self.live.progress(progress)
        return progress


@pytest.mark.slow
def test_a_ramp_that_goes_on_and_one_that_is_resumed_see_the_same_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upwards and down again; what the live ramp took from each level is what the folder says of it later."""
    monkeypatch.setattr(live_state.time, "monotonic_ns", virtual.clock_ns)
    spool = Spool(tmp_path, header(0, 0.0))
    spec = reading.build({"ramp": {"level_seconds": 25}, "slo": {"ttft_p50": 0.3}}, place="test")
    manifest = {"scenario": msgspec.to_builtins(spec), "workload": {"input_tokens": 10, "output_tokens": 9}}
    levels = Levels(spec, ENDPOINT, spool, Quiet(), 0, inputs=RampInputs.of(manifest_of(manifest)))
    live, parts = [], []

    async def main() -> None:
        worker = Serving(levels.live)
        for index, C in enumerate([2, 8, 3]):
            begun = Level(index, C, 0, levels.live.now(), reason="a reason")
            level = await levels._drive(worker, begun)  # type: ignore[arg-type]
            assert level is not None
            made = levels._summary(levels.live.part, level)
            parts.append(len(spool.between(*levels.live.part).records))
            live.append(measured(made, level))

    virtual.run(main())
    spool.close()
    files.write_json(tmp_path / MANIFEST, manifest)
    again = Earlier.of(Result.open(tmp_path), 0.0)
    assert again.measured(0) == live
    assert [h.slo for h in live] == ["met", "missed", "met"]
    assert all(h.valid and h.in_flight_ok for h in live)
    assert live[2].in_flight == pytest.approx(3.0, rel=0.05), "no more of the level above"
    assert parts[-1] < len(Result.open(tmp_path).records), "older ones are not read again"
    finish(tmp_path)
    files.write_json(tmp_path / MANIFEST, manifest)
    from_parquet = Earlier.of(Result.open(tmp_path), 0.0).measured(0)
    assert [h.throughput for h in from_parquet] == pytest.approx([h.throughput for h in live])


def test_the_lengths_of_a_probe_share_half_of_the_time_and_leave_the_other_to_its_ramp() -> None:
    spec = reading.build({"ramp": {"probe": "prefill", "max_seconds": 80}}, place="test")
    lengths = (64, 128, 256)
    for done, tokens in enumerate(lengths):
        level = Level(done, 1, 0, 0.0, input_tokens=tokens, role=Role.PROBE)
        task = Task(scenario=spec, level=level, alone_s=0.5, settle_s=0.3, probes_left=len(lengths) - done)
        longest = task.longest(0.5, Budget(spec.ramp, Spent(10.0 * done, 0)))
        assert longest <= (40.0 - 10.0 * done) / (len(lengths) - done)
        # A repeat that begins after 50 s has 30 s, and half of them.
        found = task.longest(0.5, Budget(spec.ramp, Spent(50.0 + 5.0 * done, 0), before=Spent(50.0)))
        assert found == pytest.approx((15.0 - 5.0 * done) / (len(lengths) - done) - 1.5)


def test_budgets_are_the_run_s_not_the_sitting_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    level, _ = run_level(
        tmp_path, monkeypatch, ramp={"level_seconds": 60, "max_seconds": 108}, before=Earlier((), 100.0, 0)
    )
    assert level is not None
    assert level.window_end_s == pytest.approx(8.0, abs=0.11)


def earlier_level(index: int, concurrency: int, seconds: float) -> tuple[Level, MeasuredLevel]:
    level = Level(index, concurrency, 0, 100.0 * index, 100.0 * index, 100.0 * index + seconds, 100.0 * index + seconds)
    found = MeasuredLevel(
        concurrency=concurrency, rate=None, in_flight=float(concurrency), throughput=100.0, se=1.0,
        error_rate=0.0, seconds=seconds, requests=100, request_s=0.5, valid=True, in_flight_ok=True, ttft_p99_s=None,
        slo=None,
    )  # fmt: skip
    return level, found


def test_fixed_levels_that_an_earlier_session_finished_are_not_still_to_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 1, 2, 4 and 8 the last is left, which was broken off before, and has all of the 60 s that are."""
    left: list[float | None] = []

    class Shown(Quiet):
        def update(self, now: LevelProgress) -> None:
            left.append(now.left_s)

    three = tuple(earlier_level(i, C, 20.0) for i, C in enumerate((1, 2, 4)))
    ramp = {"levels": [1, 2, 4, 8], "max_seconds": 120, "precision": 0.0005}
    before = Earlier((*three, (Level(3, 8, 0, 300.0), None)), 60.0)
    level, _ = run_level(tmp_path, monkeypatch, concurrency=8, ramp=ramp, before=before, view=Shown())
    assert 30 < window_s(level) < 60, "a quarter of the time is 13.5 s"
    assert left[0] is not None
    assert left[0] == pytest.approx(20.0, abs=0.2), "one level, as long as those before it"


def _with(next_progress: Any, change: Any) -> Any:
    async def changed(self: FakeWorker) -> Progress:
        return change(await next_progress(self))

    return changed
