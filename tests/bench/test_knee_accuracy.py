"""The benchmark of the knee doubts itself first: its truths, the rules it compares with, and how it judges."""

from __future__ import annotations

import doctest
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from harness.data.views import Value

BENCH = Path(__file__).parents[2] / "bench"
sys.path.append(str(BENCH))

import knee_accuracy as bench  # noqa: E402
import knee_peers  # noqa: E402
import knee_sockets  # noqa: E402
import knee_truths  # noqa: E402
from knee_truths import TrueCurve  # noqa: E402

EXACT = TrueCurve(0.02, 0.0, 48.0)  # min(50·N, 2400)


def test_a_capped_hyperbola_rises_to_its_hinge_and_stays_there():
    truth = TrueCurve(0.02, 0.0001, 50.0)  # y(50) = 0.02 + 0.005, so P = 50/0.025
    assert truth.plateau == pytest.approx(2000.0)
    assert truth.throughput(25) == pytest.approx(25 / 0.0225)
    assert truth.throughput(50) == truth.throughput(500) == pytest.approx(2000.0)


def test_the_examples_in_the_docstrings_of_the_socket_rows_hold():
    found = doctest.testmod(knee_sockets)
    assert found.attempted
    assert found.failed == 0


def test_a_hyperbola_tends_to_one_over_b():
    truth = TrueCurve(0.02, 0.0001, math.inf)
    assert truth.plateau == pytest.approx(10_000.0)
    assert truth.throughput(200) == pytest.approx(5000.0)  # its half-point a/b
    assert bench.scale(truth) == pytest.approx(200.0)


def test_a_dip_loses_what_its_logarithm_says():
    truth = TrueCurve(0.02, 0.0, 50.0, d=0.1 / 2500)
    assert truth.throughput(50) == pytest.approx(2500.0)
    assert truth.throughput(100) == pytest.approx(2500 / (1 + 0.1 * math.log(2)))


@pytest.mark.parametrize("kind", knee_truths.KINDS)
def test_drawn_curves_have_their_hinge_where_it_is_to_be(kind):
    rng = np.random.default_rng(0)
    drawn = [knee_truths.drawn(kind, rng) for _ in range(3000)]
    scales = [bench.scale(truth) for truth in drawn]
    assert 4 <= min(scales) < 4.5
    assert 350 < max(scales) <= 400
    assert math.exp(np.mean(np.log(scales))) == pytest.approx(40, rel=0.1)  # log-uniform: the geometric mean
    assert all((truth.d > 0) == (kind == "dip") and math.isinf(truth.B) == (kind == "hyperbola") for truth in drawn)


def test_a_level_errs_as_much_as_it_says_and_less_in_a_longer_window():
    for window, sigma in ((22.0, 0.03), (198.0, 0.01), (1e6, 0.005)):  # 9 times as long: a third; then the floor
        hold, rng = knee_truths.noisy(EXACT, 0.03, window), np.random.default_rng(1)
        levels = [hold(96, rng) for _ in range(2000)]
        assert np.std([h.throughput for h in levels]) == pytest.approx(sigma * 2400, rel=0.05)
        assert levels[0].se == pytest.approx(sigma * levels[0].throughput)


def test_a_level_lasts_its_warm_up_window_and_cooldown_in_request_times():
    level = knee_truths.noisy(EXACT, 0.01)(96, np.random.default_rng(0))
    assert level.request_s == pytest.approx(96 * 128 / 2400)
    assert level.seconds == pytest.approx(25 * 96 * 128 / 2400)
    assert level.requests == 25 * 96


def test_doubling_goes_four_times_past_the_hinge_and_has_levels_enough_for_one():
    assert knee_truths.doubling(48) == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert knee_truths.doubling(4) == [1, 2, 4, 8, 16, 32, 64]


def test_lognormal_lengths_keep_their_mean_and_spread():
    lengths, rng = knee_truths.Lengths(512, 64, 0.6), np.random.default_rng(0)
    drawn = np.array([lengths.draw(512, rng) for _ in range(20_000)])
    assert drawn.mean() == pytest.approx(512, rel=0.02)
    assert drawn.std() / drawn.mean() == pytest.approx(0.6, rel=0.05)
    assert {lengths._replace(spread=0.0).draw(64, rng) for _ in range(5)} == {64}


def test_a_trace_holds_what_was_asked_and_runs_no_more_than_the_server_can():
    below = knee_truths.trace(knee_truths.SERVERS["lognormal"], 8, 500)
    assert below.running == pytest.approx(8.0)
    assert set(below.tokens) == {8.0}
    assert (np.diff(below.at) > 0).all()
    above = knee_truths.trace(knee_truths.SERVERS["lognormal"], 60, 500)
    assert above.running == pytest.approx(48.0)
    # Little: 60 in flight stay for N·G/X, G being 64.
    X = above.tokens.sum() / above.at[-1]
    assert above.request_s == pytest.approx(60 * 64 / X, rel=0.15)


def test_both_replicas_of_a_rounded_corner_run_and_are_full_one_after_the_other():
    rounded = knee_truths.SERVERS["rounded"]
    assert [round(knee_truths.trace(rounded, C, 800).running) for C in (32, 48, 96)] == [32, 45, 48]


def test_two_lines_err_by_the_grid_where_the_knee_is_between_levels():
    """The facts that the benchmark sets beside the fit: an exact knee at 48 read as 60."""
    X = [EXACT.throughput(C) for C in bench.GRIDS["powers of two"]]
    assert knee_peers.two_lines(bench.GRIDS["powers of two"], X) == pytest.approx(60.0, abs=0.1)
    on_a_level = [1, 16, 32, 48, 64, 80, 96]
    assert knee_peers.two_lines(on_a_level, [EXACT.throughput(C) for C in on_a_level]) == pytest.approx(48.0)


def test_two_lines_find_nothing_in_a_line_a_short_tail_or_few_levels():
    assert knee_peers.two_lines([1, 2, 4, 8, 16, 32], [1, 2, 4, 8, 16, 32]) is None
    assert knee_peers.two_lines([1, 2, 4, 8], [1, 2, 2, 2]) is None
    assert knee_peers.two_lines([1, 2, 4, 8, 16], [5, 5, 5, 5, 5]) is None
    grid = [1, 2, 4, 8, 16, 32, 64, 128]  # the break at 64 would leave a tail of two levels
    assert knee_peers.two_lines(grid, [EXACT.throughput(C) for C in grid]) is None


@pytest.mark.parametrize(("grid", "read"), [("powers of two", 64), ("odd", 67), ("1-3-7-19-…", 139)])
def test_a_latency_threshold_answers_the_next_level_up(grid, read):
    latency = [C / EXACT.throughput(C) for C in bench.GRIDS[grid]]
    assert knee_peers.latency_threshold(bench.GRIDS[grid], latency) == read


def test_a_latency_threshold_answers_too_early_where_every_request_slows_the_others():
    bent = TrueCurve(0.02, 0.0002, 48.0)
    latency = [C / bent.throughput(C) for C in bench.GRIDS["powers of two"]]
    assert knee_peers.latency_threshold(bench.GRIDS["powers of two"], latency) == 32
    assert knee_peers.latency_threshold([1, 2, 4], [1.0, 1.0, 1.1]) is None


@pytest.mark.parametrize(
    ("value", "truth", "covered", "wide"),
    [
        (Value(50.0, (45.0, 55.0)), 48.0, True, 0.2),
        (Value(50.0, (49.0, 55.0)), 48.0, False, 0.12),
        (Value(50.0, (45.0, None)), 48.0, True, math.inf),
        (Value(50.0, (45.0, None)), math.inf, True, math.inf),
        (Value(50.0, (45.0, 55.0)), math.inf, False, 0.2),
        (Value(None, (45.0, None)), 30.0, False, math.inf),
    ],
)
def test_an_interval_covers_what_lies_between_its_ends(value, truth, covered, wide):
    assert bench.covers(value, truth) is covered
    assert bench.width(value) == pytest.approx(wide)


def test_no_interval_is_neither_right_nor_wrong_and_is_counted_apart():
    assert bench.covers(Value(None), 48.0) is None
    assert math.isnan(bench.width(Value(None)))
    found = bench.tally([(Value(None), 48.0), (Value(50.0, (45.0, 55.0)), 48.0), (Value(50.0, (45.0, None)), 30.0)])
    assert (found.intervals, found.of, found.covered, found.unbounded) == (2, 3, 0.5, 0.5)


def test_draws_without_a_plateau_leave_its_interval_open():
    few = np.concatenate((np.linspace(10, 20, 39), [math.inf]))  # of 40: its 2.5 % reach up to the last one
    assert bench.of_draws(few) == Value(pytest.approx(np.median(few)), (10.0, None))
    assert bench.of_draws(np.linspace(10, 20, 41)).ci95 == pytest.approx(
        (10.25, 19.75)
    )  # the second and the last but one
    assert bench.of_draws(np.full(40, math.inf)) == Value(None, (None, None))


def test_a_series_has_the_rate_that_it_is_said_to_have():
    rng = np.random.default_rng(0)
    for draw in (knee_truths.correlated, knee_truths.renewal):
        counts = []
        for _ in range(20):
            times, count = draw(rng)
            assert times[0] <= 0.0
            assert times[-1] >= knee_truths.LONGEST
            counts.append(np.interp(100.0, times, count) - np.interp(0.0, times, count))
        assert np.mean(counts) == pytest.approx(100 * knee_truths.RATE, rel=0.02)


@pytest.mark.slow
def test_a_window_of_a_trace_says_what_the_whole_trace_does():
    whole = knee_truths.whole("lognormal", 4000, 16)
    rng = np.random.default_rng(0)
    levels = [knee_truths.windowed("lognormal", 4000, 16, rng) for _ in range(50)]
    assert np.mean([h.throughput for h in levels]) == pytest.approx(whole.throughput, rel=0.02)
    assert {h.in_flight for h in levels} == {16.0}
    assert all(h.se is not None and h.se >= 0.005 * h.throughput for h in levels)
    assert max(h.seconds for h in levels) < whole.seconds


@pytest.mark.parametrize(
    ("covered", "strict", "kept"),
    [(0.92, True, True), (0.919, True, False), (0.99, True, False), (0.99, False, True), (0.9, False, False)],
)
def test_intervals_that_cover_too_often_are_a_no_only_where_it_is_strict(covered, strict, kept):
    assert bench.kept(bench.Tally(500, 500, covered, 0.0, 0.1), strict) is kept


def test_no_intervals_at_all_is_a_no():
    assert not bench.kept(bench.tally([(Value(None), 48.0)]), strict=False)


def answered(hinge: Value, seconds: float) -> bench.SweepResult:
    return bench.SweepResult(hinge, Value(None), Value(None), reached=True, levels=9, highest=256, seconds=seconds)


def test_the_cost_is_the_median_ratio_and_says_where_doubling_never_gets_there():
    narrow = Value(48.0, (46.0, 50.0))
    hinges = [narrow, narrow, narrow, Value(None)]
    runs = [bench.Run(i, EXACT, answered(hinge, 10.0), None) for i, hinge in enumerate(hinges)]
    assert bench.ratios(runs, [20.0, None, 100.0, None]) == (0.1, 1, 1)


def test_runs_draw_the_same_whatever_else_is_run():
    first = bench.streams(1, "dip", 0.03, 7, 3)[0].normal()
    assert bench.streams(1, "dip", 0.03, 7, 2)[0].normal() == first
    assert bench.streams(1, "dip", 0.03, 8, 3)[0].normal() != first


def test_the_table_says_yes_no_or_nothing():
    line = bench.Line("row", "what", "≤ 2%", "1%", True, "beside")
    assert bench.shown(line) == "| row | what | ≤ 2% | 1% | yes | beside |"
    assert "| no |" in bench.shown(bench.Line("row", "what", "", "", False))
    assert "| – |" in bench.shown(bench.Line("row", "what", "", "", None))


@pytest.mark.slow
def test_an_unknown_row_is_named_with_those_there_are():
    done = subprocess.run(
        [sys.executable, BENCH / "knee_accuracy.py", "--rows", "grids,cots"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert "no rows cots" in done.stderr
    assert "cost" in done.stderr
