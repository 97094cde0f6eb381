"""What is kept in memory while a run goes on, and what is known of the last requests."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import msgspec
import pytest

from harness.data.record import Level, Sample
from harness.load.loop import LATE_BINS
from harness.load.messages import Progress
from harness.results import frames
from harness.results.result import Result
from harness.results.spool import Spool, header
from harness.run import telemetry
from harness.run.live_state import LiveState
from tests.builders.records import request


def live_state(tmp_path: Path) -> LiveState:
    return LiveState(Spool(tmp_path, header(0, 0.0)), 0, "run", e2e_s=2.0, itl_s=0.1)


def test_a_level_s_part_of_the_spool_is_its_own_and_that_of_the_one_before(tmp_path: Path) -> None:
    spool = Spool(tmp_path, header(0, 0.0))
    live = LiveState(spool, 0, "run", e2e_s=2.0, itl_s=0.1)
    for index in range(3):
        live.begin(Level(index, 1, 0, 10.0 * index), 1)
        live.batch(frames.batch([request(10.0 * index + 1, [10.0 * index + 2], level=index)]))
        live.add_samples([Sample(10.0 * index + 3, "server", "running", 1.0)])
    found = spool.between(*live.part)
    assert [r.level for r in found.records] == [1, 2] == [int(s.time_s / 10) for s in found.samples]
    live.batch(frames.batch([request(2.0, [29.0], level=0)]))  # it hung all the time
    live.begin(Level(3, 1, 0, 30.0), 1)
    assert [r.level for r in spool.between(*live.part).records] == [2, 0]
    assert len(Result.open(tmp_path).records) == 4


@pytest.mark.slow
def test_what_is_kept_of_a_level_does_not_grow_with_it(tmp_path: Path) -> None:
    live = live_state(tmp_path)
    live.begin(Level(0, 1, 0, 0.0), 1)

    def take(seconds: range) -> int:
        for s in seconds:
            live.batch(frames.batch([request(float(s), [s + 0.01 * i for i in range(100)], level=0)]))
            for i in range(5):
                live.progress(report(5 * s + i))
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        early, late = take(range(300)), take(range(300, 600))  # what is kept of the last requests is full by then
    finally:
        tracemalloc.stop()
    assert late - early < 20_000, "of 30,000 tokens and 1,500 reports: 240,000 bytes of stamps alone"


def test_a_level_s_request_time_is_that_of_its_window_once_enough_have_ended(tmp_path: Path) -> None:
    live = live_state(tmp_path)
    level = Level(0, 1, 0, 0.0)
    live.begin(level, 1)
    assert live.request_s(1) == 2.0, "the launch check's"
    live.batch(frames.batch([request(float(i), [i + 4.0]) for i in range(20)]))
    live.moment(Level(0, 1, 0, 0.0, 30.0))
    live.batch(frames.batch([request(float(i), [i + 1.0]) for i in range(30, 37)]))
    assert live.request_s(10) == pytest.approx((3 * 4.0 + 7 * 1.0) / 10), "seven are too few"
    live.batch(frames.batch([request(37.0, [38.0])]))
    assert live.request_s(10) == pytest.approx(1.0)


def test_what_the_level_s_last_requests_came_to_is_known_of_its_own_only(tmp_path: Path) -> None:
    live = live_state(tmp_path)
    live.begin(Level(1, 1, 0, 0.0), 1)
    live.batch(frames.batch([request(0.0, done=1.0, error="reset", level=0), request(0.0, [1.0], level=1),
                            request(0.0, done=1.0, error="reset", level=1),
                            request(0.0, done=1.0, error="cancelled", level=1)]))  # fmt: skip
    assert list(live.outcomes) == [False, True]
    assert live.answered == 4
    assert (live.usage.input_tokens, live.usage.output_tokens) == (40, 1)


def report(i: int, worker: int = 0, bin_: int = 0) -> Progress:
    """The i-th of a worker; every fourth has its read delays, as a worker sends them."""
    has_late = i % 4 == 0
    late = tuple(100 * (j == bin_) for j in range(LATE_BINS)) if has_late else ()
    return Progress(
        time_s=0.05 * i, level=0, in_flight=1, ended=i, failed=0, waiting=0, tokens=i, oldest_sent_s=None,
        begun_in_run=i, cpu_s=0.0, reads=25 * i, unstamped=i, late=late, worker=worker,
        waited_s=0.01 * i if has_late else None,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("count", [40, 256, 1000, 5000, 20_001])
def test_the_read_delays_of_a_window_are_its_own_in_a_level_of_any_length(count: int) -> None:
    """A worker that was late in the first half of a level only, and one in the second half only."""
    kept, half = telemetry.ReadDelays(), count // 2
    for i in range(count):
        kept.add(report(i, 0, bin_=500 if i < half else 0))
        kept.add(report(i, 1, bin_=500 if i >= half else 0))
    later = {s.metric: s.value for s in kept.between(0.05 * half * 1.05, 99.0, tick_s=0.0)}
    bin_s = 131.072e-6
    assert later["0/read_delay_p99_s"] == pytest.approx(bin_s), "the first half's delays are not the window's"
    assert later["1/read_delay_p99_s"] == pytest.approx(501 * bin_s)
    whole = {s.metric: s.value for s in kept.between(0.0, 99.0, tick_s=0.0)}
    for worker in "01":
        assert whole[f"{worker}/read_delay_p99_s"] == pytest.approx(501 * bin_s)
        for found in (later, whole):
            assert found[f"{worker}/waited_fraction"] == pytest.approx(0.2)
            assert found[f"{worker}/unstamped_fraction"] == pytest.approx(0.04)


def test_a_level_s_read_delays_are_not_those_of_another_level(tmp_path: Path) -> None:
    live = live_state(tmp_path)
    live.begin(Level(0, 1, 0, 0.0), 1)
    for i in range(40):
        live.progress(report(i, bin_=500))
    live.begin(Level(1, 2, 0, 2.0), 2)
    live.progress(report(40, bin_=500))  # a worker that has not begun the new level yet
    for i in range(41, 80):
        live.progress(msgspec.structs.replace(report(i), level=1))
    found = {s.metric: s.value for s in live.read_delays.between(2.0, 4.0, tick_s=0.0)}
    assert found["0/read_delay_p99_s"] == pytest.approx(131.072e-6)
