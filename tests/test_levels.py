"""When a window may begin and end: one level held over a worker that tells what a test wants, on a virtual clock."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness import scenario, store
from harness.experiment import levels as levels_module
from harness.experiment.launch import Address, Launch
from harness.experiment.levels import Before, Levels
from harness.load.driver import Hold, Progress
from harness.load.transport import Target
from harness.record import Level
from tests import virtual
from tests.records import request

LAUNCH = Launch(
    address=Address("http://h:1", "h", 1, ""), model="m", path="/v1/chat/completions", drop=frozenset(), words=("a",),
    target=Target(scheme="http", host="h", port=1, path="/v1/chat/completions", headers={}), tokenizer_json="",
    prompt_words=4, prompts_used=1, input_tokens=4, e2e_s=0.5, itl_s=0.01, server={}, cache_config={},
    metrics=False, notes=(),
)  # fmt: skip


class Quiet:
    def level_started(self, *_: Any) -> None: ...

    def update(self, *_: Any) -> None: ...

    def level_finished(self, **_: Any) -> None: ...

    def note(self, text: str) -> None: ...


class FakeWorker:
    """Keeps what it is told in flight: each request takes `takes` seconds; tokens come at `pace(t)` a second."""

    def __init__(self, watch: Any, *, takes: float = 0.5, pace: Any = lambda t: 100.0, noise: float = 0.2) -> None:
        self.takes, self.pace, self.watch, self.noise = takes, pace, watch, noise
        self.held: Hold | None = None
        self.random = random.Random(0)
        self.began = self.tokens = 0.0
        self.requests = 0

    async def hold(self, hold: Hold, connections: int) -> None:
        self.held, self.began, self.connections = hold, virtual.clock_ns() * 1e-9, connections

    async def news(self) -> Progress:
        await asyncio.sleep(0.05)
        assert self.held is not None
        flying = self.held.concurrency or 8
        now = virtual.clock_ns() * 1e-9
        self.tokens += 0.05 * self.pace(now) * (1 + self.random.uniform(-self.noise, self.noise))
        ended = int(flying * max(0.0, now - self.began) / self.takes)
        self.requests += flying
        progress = Progress(
            time_s=now, level=self.held.index, in_flight=flying, ended=ended, failed=0, waiting=0,
            tokens=int(self.tokens), oldest_sent_s=now - self.takes, begun_in_run=ended, cpu_s=0.0,
            reads=0, unstamped=0,
        )  # fmt: skip
        self.watch(progress)
        return progress


def held(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    concurrency: int | None = 4,
    rate: float | None = None,
    ramp: dict[str, Any],
    before: Before = Before(),
    change: Callable[[Progress], Progress] = lambda p: p,
    **fake: Any,
) -> tuple[Level | None, list[Level]]:
    """Hold one level; its last frame in the spool, and all of them."""
    monkeypatch.setattr(levels_module.time, "monotonic_ns", virtual.clock_ns)
    spool = store.Spool(tmp_path, store.header(0, 0.0))
    frames: list[Level] = []
    keep = spool.level
    spool.level = lambda level: (frames.append(level), keep(level))[1]  # type: ignore[method-assign]
    given = scenario.build({"ramp": ramp}, place="test")
    levels = Levels(given, LAUNCH, spool, Quiet(), 0, before)
    worker = FakeWorker(lambda p: levels._on_progress(change(p)), **fake)

    async def main() -> None:
        level = Level(0, concurrency, 0, levels._now(), rate=rate)
        await levels._hold(worker, level)  # type: ignore[arg-type]

    virtual.run(main())
    spool.close()
    return (frames[-1] if frames else None), frames


def test_a_level_warms_up_measures_and_holds_until_the_window_s_last_request_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    level, frames = held(tmp_path, monkeypatch, ramp={"level_seconds": 5})
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
    level, _ = held(tmp_path, monkeypatch, concurrency=None, rate=16.0, ramp={"level_seconds": 5})
    assert level is not None
    assert level.window_start_s is not None
    assert level.window_start_s == pytest.approx(1.0, abs=0.11)
    assert level.finished
    assert level.rate == 16.0


def test_the_default_window_is_twenty_five_request_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    level, _ = held(tmp_path, monkeypatch, ramp={})
    assert level is not None
    assert level.window_start_s is not None
    assert level.window_end_s is not None
    assert level.window_end_s - level.window_start_s == pytest.approx(12.5, abs=0.11)


def test_a_transient_moves_the_window_s_start_and_keeps_its_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    level, _ = held(tmp_path, monkeypatch, ramp={"level_seconds": 10}, pace=lambda t: 1000.0 if t > 3.0 else 100.0)
    assert level is not None
    assert level.window_start_s is not None
    assert level.window_end_s is not None
    assert 2.9 <= level.window_start_s <= 3.5
    assert level.window_end_s - level.window_start_s == pytest.approx(10.0, abs=0.11)


def test_a_trend_extends_the_window_once_and_is_then_doubted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    level, _ = held(tmp_path, monkeypatch, ramp={"level_seconds": 5}, pace=lambda t: 1000.0 * t, noise=0.0)
    assert level is not None
    assert level.window_start_s is not None
    assert level.window_end_s is not None
    assert level.notes == ("not_settled",)
    assert level.window_end_s - level.window_start_s == pytest.approx(10.0, abs=0.11)


def test_a_window_of_few_bins_says_that_nothing_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    level, _ = held(tmp_path, monkeypatch, concurrency=1, ramp={"level_seconds": 0.1}, takes=0.2)
    assert level is not None
    assert level.notes == ("transient_unchecked",)


def test_a_budget_cuts_the_window_and_the_cooldown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    level, _ = held(tmp_path, monkeypatch, ramp={"level_seconds": 60, "max_seconds": 8}, takes=30.0, concurrency=100)
    assert level is not None
    assert not level.finished, "it ended in the warm-up"
    (tmp_path / "b").mkdir()
    level, _ = held(tmp_path / "b", monkeypatch, ramp={"level_seconds": 60, "max_seconds": 8})
    assert level is not None
    assert level.window_end_s == pytest.approx(8.0, abs=0.11)
    assert level.notes == ("cut_short",)


def test_a_budget_does_not_wait_for_a_request_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = msgspec.structs.replace
    monkeypatch.setattr(
        FakeWorker,
        "news",
        _with(FakeWorker.news, lambda p: hanging(p, oldest_sent_s=0.5 if p.time_s > 4 else p.time_s)),
    )
    level, _ = held(tmp_path, monkeypatch, ramp={"level_seconds": 5, "max_seconds": 20})
    assert level is not None
    assert level.finished
    assert level.end_s == pytest.approx(20.0, abs=1.5)
    assert "cooldown_cut" in level.notes


def pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any, at_s: Callable[[float], float] = lambda t: 0.0
) -> list[tuple[str, float]]:
    """What a level's telemetry says of pauses; `at_s` gives how long the machine has slept."""
    monkeypatch.setattr(levels_module, "_asleep", lambda: at_s(virtual.clock_ns() * 1e-9 if _running() else 0.0))
    held(tmp_path, monkeypatch, ramp={"level_seconds": 5}, change=change)
    samples = store.read(tmp_path).samples
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
    """News that come a second late, and say that their worker was not held up."""
    late = FakeWorker.news

    async def news(self: FakeWorker) -> Progress:
        if 2.0 < virtual.clock_ns() * 1e-9 < 2.06:
            await asyncio.sleep(1.0)
        return await late(self)

    monkeypatch.setattr(FakeWorker, "news", news)
    held(tmp_path, monkeypatch, ramp={"level_seconds": 5})
    found = [(s.metric, s.value) for s in store.read(tmp_path).samples if s.metric.endswith("paused_s")]
    assert found == [("parent_paused_s", pytest.approx(1.05, abs=0.01))]


def finished(index: int, concurrency: int, repeat: int = 0) -> Level:
    return Level(index, concurrency, repeat, 10.0 * index, 10.0 * index + 2, 10.0 * index + 8, 10.0 * index + 9)


def test_a_resumed_run_goes_on_behind_its_finished_levels_of_each_repeat() -> None:
    spec = scenario.build({"ramp": {"levels": [1, 2, 4], "repeat": 2}}, place="test").ramp
    levels = [finished(0, 1), finished(1, 2), finished(2, 1, 1), Level(3, 2, 1, 30.0, 32.0)]
    # 3 requests in each window, 5 chunks each; one of level 1 fails.
    records = [
        request(10.0 * level.index + 3 + i, [10.0 * level.index + 3.5 + i] * 5, level=level.index,
                error="reset" if level.index == 1 and i == 0 else "")
        for level in levels
        for i in range(3)
    ]  # fmt: skip
    run = store.Run(path=Path(), manifest={}, header=store.header(0, 0.0), levels=levels, records=records,
                    samples=[], complete=False)  # fmt: skip
    before = Before.of(run, 60.0)
    assert [h is None for _, h in before.levels] == [False, False, False, True]
    first = before.levels[0][1]
    assert first is not None
    assert (first.concurrency, first.output_tokens_per_s, first.error_rate) == (1, 15 / 6, 0.0)
    assert before.requests == 12
    # A third of level 1 failed: that ended its ramp, and it stays ended.
    one, two = before.reasons(spec)
    assert [step.concurrency for step in one] == [1, 2, None]
    assert "33.3% of the requests failed" in one[2].reason
    assert [step.concurrency for step in two] == [1, 2]
    assert before.leaves_something(spec)
    assert not Before.of(run, 0.0).leaves_something(msgspec.structs.replace(spec, repeat=1))


def test_budgets_are_the_run_s_not_the_sitting_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    level, _ = held(tmp_path, monkeypatch, ramp={"level_seconds": 60, "max_seconds": 108}, before=Before((), 100.0, 0))
    assert level is not None
    assert level.window_end_s == pytest.approx(8.0, abs=0.11)


def _with(news: Any, change: Any) -> Any:
    async def changed(self: FakeWorker) -> Progress:
        return change(await news(self))

    return changed
