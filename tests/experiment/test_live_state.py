"""What is kept in memory while a run goes on, and what is known of the last requests."""

from __future__ import annotations

import gc
import itertools
import tracemalloc
from pathlib import Path

import pytest

from harness.experiment import client
from harness.experiment.live_state import LiveState
from harness.load.messages import Progress
from harness.record import Level, Sample
from harness.results import frames
from harness.results.result import Result
from harness.results.spool import Spool, header
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


def test_what_is_kept_of_a_level_does_not_grow_with_it(tmp_path: Path) -> None:
    live = live_state(tmp_path)
    live.begin(Level(0, 1, 0, 0.0), 1)

    def take(seconds: range) -> int:
        for s in seconds:
            live.batch(frames.batch([request(float(s), [s + 0.01 * i for i in range(100)], level=0)]))
            for i in range(20):
                live.progress(report(20 * s + i))
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        early, late = take(range(300)), take(range(300, 600))  # what is kept of the last requests is full by then
    finally:
        tracemalloc.stop()
    assert late - early < 20_000, "of 30,000 tokens and 6,000 reports: 240,000 bytes of stamps alone"


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


def report(i: int, worker: int = 0) -> Progress:
    """The i-th of a worker; every fourth has its read delays, as a worker sends them."""
    late, waited_s = ((1, 2), 0.01 * i) if i % 4 == 0 else ((), None)
    return Progress(
        time_s=0.05 * i, level=0, in_flight=1, ended=i, failed=0, waiting=0, tokens=i, oldest_sent_s=None,
        begun_in_run=i, cpu_s=0.0, reads=10 * i, unstamped=i, late=late, worker=worker, waited_s=waited_s,
    )  # fmt: skip


def test_a_long_level_s_reports_are_added_up_and_say_the_same() -> None:
    reports = [report(i, worker) for i in range(401) for worker in (0, 1)]
    kept = client.Reports()
    for each in reports:
        kept.add(each)
    fewer = kept.since(0.0)
    assert len(fewer) < len(reports) / 1.5
    for worker in (0, 1):
        assert sum(p.late[1] for p in fewer if p.late and p.worker == worker) == 202
    assert client.read_delay(fewer, 20.0, 0.0) == client.read_delay(reports, 20.0, 0.0)


@pytest.mark.parametrize("count", [1, 255, 256, 257, 1000, 5000, 20_001])
def test_spans_of_reports_are_few_alike_and_without_a_gap(count: int) -> None:
    kept = client.Reports()
    for i in range(count):
        kept.add(report(i))
    found = kept.since(0.0)
    assert len(found) < client.MOST_REPORTS
    assert sum(p.late[1] for p in found if p.late) == 2 * len(range(0, count, 4))
    if count > 1000:
        assert len(found) >= client.MOST_REPORTS / 2
        gaps = [after.time_s - before.time_s for before, after in itertools.pairwise(found[:-1])]
        assert max(gaps) < 2.1 * min(gaps)
    half = kept.since(0.05 * count / 2)
    assert sum(p.late[1] for p in half if p.late) == pytest.approx(count / 4, abs=max(2.0, count / 100))
