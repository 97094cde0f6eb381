"""Several workers are one load: a level is split, begun at once, reported as one, and nothing is counted twice."""

from __future__ import annotations

from collections import Counter

import pytest

from harness.load.messages import Progress
from harness.load.workers import together
from harness.run.launch.limits import placement
from harness.run.trial import Load, errors, run_trial
from harness.sim.profile import StreamPace
from harness.spec.scenario import Ramp, Scenario, Target


def progress(worker: int, **changes: object) -> Progress:
    fields: dict[str, object] = {
        "time_s": 1.0, "level": 0, "in_flight": 4, "ended": 8, "failed": 1, "waiting": 0, "tokens": 100,
        "oldest_sent_s": 0.5, "begun_in_run": 12, "cpu_s": 0.1, "reads": 100, "unstamped": 0, "worker": worker,
        "prepared": 1, "took_s": 0.001,
    }  # fmt: skip
    return Progress(**(fields | changes))  # type: ignore[arg-type]


def test_the_workers_progress_is_added_up_as_of_the_one_that_is_furthest_behind() -> None:
    whole = together([progress(0), progress(1, time_s=1.02, level=1, oldest_sent_s=None, took_s=0.004, prepared=2)])
    assert (whole.in_flight, whole.ended, whole.failed, whole.tokens, whole.begun_in_run) == (8, 16, 2, 200, 24)
    assert (whole.time_s, whole.level, whole.prepared) == (1.0, 0, 1)
    assert (whole.oldest_sent_s, whole.took_s) == (0.5, 0.004)
    alone = progress(0)
    assert together([alone]) is alone


@pytest.mark.alone
@pytest.mark.slow
def test_two_workers_keep_one_level_and_nothing_is_counted_twice() -> None:
    load = Load(pace=StreamPace(ttft_s=0.05, itl_s=0.01), streams=9, output_tokens=12, seconds=1.0, workers=2)
    trial = run_trial(load)
    assert trial.after.progress.in_flight == 9
    names = Counter(r.request_id for r in trial.records)
    assert set(names.values()) == {1}
    assert set(names) == {entry.id for entry in trial.entries}
    assert {r.worker for r in trial.records} == {0, 1}
    assert {r.concurrency for r in trial.records} == {9}
    first = [r for r in trial.records if r.scheduled_s < trial.before.progress.time_s]
    assert Counter(r.worker for r in first).most_common(1)[0][0] == 0, "the first worker has the odd slot"
    assert len(errors(trial.records, trial.entries, trial.origin_ns)[0]) >= 12 * 9


@pytest.mark.alone
@pytest.mark.slow
def test_two_workers_of_an_open_loop_send_the_requested_rate_together() -> None:
    load = Load(pace=StreamPace(ttft_s=0.01, itl_s=0.005), rate=200.0, output_tokens=2, seconds=2.0, workers=2)
    trial = run_trial(load)
    assert 300 < len(trial.inside) < 520
    by_worker = Counter(r.worker for r in trial.inside)
    assert min(by_worker.values()) > 0.35 * len(trial.inside)
    assert {r.concurrency for r in trial.records} == {None}


def scenario(url: str, workers: int | None, levels: list[int]) -> Scenario:
    return Scenario(target=Target(url=url), ramp=Ramp(levels=levels, workers=workers))


def test_workers_and_the_simulated_endpoint_have_processors_of_their_own_where_there_are_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {2, 3, 5, 7})
    assert placement(scenario("sim:", 2, [64])) == (2, [(7,), (5,)])
    assert placement(scenario("sim:", 4, [64])) == (2, [(), (), (), ()])
    assert placement(scenario("http://h", 3, [64])) == (None, [(7,), (5,), (3,)])
    assert placement(scenario("http://h", None, [64])) == (None, [(7,)])
    assert placement(scenario("http://h", None, [1024])) == (None, [(7,), (5,), (3,)])
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {1})
    assert placement(scenario("sim:", None, [1024])) == (None, [()])
