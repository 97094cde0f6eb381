"""The benchmark's short measurements: the servers behind them, what a window of them says, and how it is judged."""

from __future__ import annotations

import itertools
import math
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from harness.analysis.summarise import summarise
from harness.data.record import Role
from harness.data.views import Value
from harness.results.result import Result
from harness.search.decision import Reason, measure

sys.path.append(str(Path(__file__).parents[2] / "bench"))

import knee_published
import knee_short
import knee_windows
from knee_windows import FittedKnee

NOTHING = FittedKnee("none", Value(None), Value(None))


def known(drift: float = 0.0) -> knee_windows.Closed:
    return knee_windows.closed(2.5, knee_short.KNOWN, np.random.default_rng(0), drift)


@pytest.mark.parametrize("C", [1, 2, 16, 24, 32, 200])
def test_a_long_window_of_the_closed_server_says_the_truth(C: int) -> None:
    server, rng = known(), np.random.default_rng(C)
    long = knee_windows.fixed(server, C, None, 100.0, rng)
    assert pytest.approx(server.truth.throughput(C), rel=0.005) == long.X
    assert long.request_s == pytest.approx(server.request_s(C), rel=0.005)
    assert not long.assumed
    assert long.requests == pytest.approx(100 * C, abs=C)


def test_a_request_alone_takes_as_long_as_was_asked_and_seats_are_whole() -> None:
    rng = np.random.default_rng(0)
    for seconds in knee_short.ANSWERS_S:
        server = knee_windows.drawn(seconds, rng, least=24.0, drifts=False)
        assert server.request_s(1) == pytest.approx(seconds)
        assert server.truth.B == server.seats >= 24


def test_short_windows_err_by_where_they_begin_and_most_with_one_in_flight() -> None:
    server, rng = known(), np.random.default_rng(0)

    def scatter(C: int, window_s: float) -> float:
        levels = [knee_windows.fixed(server, C, window_s, 0.0, rng) for _ in range(50)]
        return float(np.std([level.X for level in levels])) / server.truth.throughput(C)

    assert scatter(1, 1.25) > 0.03
    assert scatter(24, 1.25) < 0.005
    assert scatter(1, 12.5) < 0.005


def test_a_window_of_less_than_four_answers_has_to_assume_its_error() -> None:
    levels = [knee_windows.fixed(known(), C, 3.0, 0.0, np.random.default_rng(0)) for C in knee_short.KNOWN_LEVELS]
    assert all(level.assumed and level.point.assumed for level in levels)
    assert all((level.se or 0.0) / level.X >= 0.15 for level in levels)


def test_a_server_that_drifts_moves_its_levels_as_a_whole() -> None:
    server, rng = known(drift=0.03), np.random.default_rng(0)
    levels = [knee_windows.fixed(server, 8, None, 20.0, rng) for _ in range(200)]
    assert np.std(np.log([level.X for level in levels])) == pytest.approx(0.03, rel=0.2)
    assert np.median([(level.se or 0.0) / level.X for level in levels]) < 0.01


def test_a_long_window_of_the_machine_says_what_its_plateau_is() -> None:
    server, rng = knee_windows.StepMachineServer(8, 72), np.random.default_rng(0)
    long = knee_windows.fixed(server, 16, None, 50.0, rng)
    assert pytest.approx(server.plateau, rel=0.005) == long.X
    assert pytest.approx(knee_windows.fixed(server, 32, None, 20.0, rng).X, rel=0.005) == long.X
    assert long.request_s == pytest.approx(16 * 72 / long.X, rel=0.02)
    assert server.request_s(1) == pytest.approx(0.5, rel=0.1)


def test_sweeps_and_ramps_are_the_same_by_their_seed() -> None:
    assert knee_short.swept("closed", 3.0, 1, 4) == knee_short.swept("closed", 3.0, 1, 4)
    assert knee_short.swept("closed", 3.0, 1, 4) != knee_short.swept("closed", 3.0, 2, 4)
    assert knee_short.ramped(None, 4, (1.0,), 1, 3) == knee_short.ramped(None, 4, (1.0,), 1, 3)


def test_every_other_sweep_ends_below_its_hinge_after_four_levels_at_least() -> None:
    found = [knee_short.swept("drift", None, 1, i) for i in range(12)]
    assert all(o.last <= o.hinge and o.levels >= 4 for o in found[1::2])
    assert all(o.last >= 4 * o.hinge for o in found[::2])
    assert {o.answer_s for o in found} == set(knee_short.ANSWERS_S)


def test_a_ramp_keeps_to_its_budget_and_to_its_number_of_levels() -> None:
    server = known()
    steps = list(knee_windows.ramped(server, np.random.default_rng(0), max_seconds=120.0))
    assert steps
    assert steps[-1].seconds <= 120.0 + 2 * server.request_s(1)
    assert all(a.seconds < b.seconds for a, b in itertools.pairwise(steps))
    cut = list(knee_windows.ramped(server, np.random.default_rng(0), most=3))
    assert [step.level.concurrency for step in cut] == [1, 2, 4]


def timing(
    C: int, measured: list[knee_windows.MeasuredLevel], request_s: float, left: float | None
) -> knee_windows.LevelTiming:
    search = knee_windows.Search(
        levels=None, rates=None, max_concurrency=1024, search_rate=False, slo=False, max_ttft_s=None,
        predicted_hinge=None, seed=0, seconds_left=left, requests_left=None, seconds=left, paced=True,
    )  # fmt: skip
    return knee_windows.level_timing(measure(C, Reason.DOUBLING, Role.FIRST_PASS), measured, request_s, search)


def test_a_level_of_the_first_pass_takes_as_long_as_its_slots_need_and_a_request_or_two() -> None:
    first = next(knee_windows.ramped(known(), np.random.default_rng(0), most=1)).level
    measured = [knee_windows._as_measured(msgspec.structs.replace(first, concurrency=8, request_s=2.0), 7.0)]
    up = timing(16, measured, 2.0, None)
    assert up.warm_up_s == pytest.approx(2.0 * 1.5, rel=0.1)  # half of the slots are new, and begin over 2 s
    assert up.looks_s == (3.0,)
    assert up.fresh is None
    assert timing(8, measured, 2.0, None).warm_up_s == pytest.approx(2.0)
    assert timing(4, measured, 1.5, None).warm_up_s == pytest.approx(3.0)  # half of eight end first
    hasty = timing(16, measured, 2.0, 15.0)  # nothing warms up
    assert hasty.warm_up_s == pytest.approx(1.0, rel=0.15)
    assert hasty.fresh is not None


def test_a_window_that_begins_with_its_requests_sees_their_prompts_first() -> None:
    server, rng = known(), np.random.default_rng(0)
    series = server(1, 2.5, rng, knee_windows.Fresh(0, 0.0))
    assert series.cycle_s == 0.0
    whole = knee_windows.sample(series, 1, series.steady_s, server.request_s(1))
    assert pytest.approx(server.truth.throughput(1), rel=0.01) == whole.X
    prompt = server.prompt * server.request_s(1) / (server.prompt + server.answer)
    assert knee_windows.sample(series, 1, series.steady_s, prompt).X == 0.0


def outcome(state: str, last: int, hinge: Value = Value(20.0, (18.0, 22.0))) -> knee_short.SearchOutcome:
    return knee_short.SearchOutcome(
        20.0, 1000.0, 1.0, last, 7, FittedKnee(state, hinge, Value(1000.0, (990.0, 1010.0)))
    )


def test_the_rows_judge_answers_intervals_and_false_plateaus() -> None:
    good = [outcome("found", 80), outcome("provisional", 16), outcome("beyond", 8)]
    lines = {line.row: line for line in knee_short.judged("r", "what", good)}
    assert [lines[f"r-{name}"].met for name in ("answer", "hinge", "plateau", "false", "found")] == [True] * 4 + [None]
    bad = [outcome("found", 8, Value(8.0, (7.0, 9.0))), knee_short.SearchOutcome(20.0, 1000.0, 1.0, 80, 7, NOTHING)]
    lines = {line.row: line for line in knee_short.judged("r", "what", bad)}
    assert [lines[f"r-{name}"].met for name in ("answer", "hinge", "plateau", "false")] == [False, False, True, False]
    assert lines["r-false"].found == "1 of 1"
    assert lines["r-found"].found == "0.0% of 1"


def test_no_run_that_ended_far_below_the_hinge_is_neither_right_nor_wrong() -> None:
    lines = {line.row: line for line in knee_short.judged("r", "what", [outcome("found", 80)])}
    assert lines["r-false"].met is None


def test_a_median_time_without_end_is_never() -> None:
    assert knee_short._median_s([10.0, math.inf, math.inf]) == "never"
    assert knee_short._median_s([10.0, 12.0, math.inf]) == "12 s"


@pytest.mark.parametrize("name", ["sixteen_seats", "llama70b_b200_long_prompts"])
def test_a_folder_of_a_published_sweep_was_measured_at_what_was_published(name: str, tmp_path: Path) -> None:
    levels = knee_published.sweeps()[name]
    knee_published.folder(tmp_path, levels, knee_published.WINDOWS_S.get(name, knee_published.WINDOW_S))
    found = summarise(Result.open(tmp_path)).levels
    expected = [(level.concurrency, level.output_tokens_per_s) for level in levels]
    assert [s.concurrency for s in found] == [C for C, _ in expected]
    assert [s.output_tokens_per_s.mean for s in found] == pytest.approx([X for _, X in expected], rel=0.01)
    assert all(s.output_tokens_per_s_se_assumed for s in found)
    assert knee_published.table(levels).splitlines()[1] == f"{expected[0][0]},{expected[0][1]:g}"
