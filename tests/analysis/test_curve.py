"""The knee: on any grid, under noise, past a dip, and when there is none (docs/method.md, The knees)."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import decoding
from harness.analysis import curve
from harness.analysis.curve import Fit, Point, fit, throughput
from harness.analysis.verdicts.curve import dip_confirmed
from harness.summary import LevelSummary, ServerView
from tests.builders.summaries import level

HERE = Path(__file__).parents[1]
GRIDS = {
    "powers of two": [1, 2, 4, 8, 16, 32, 64, 128, 256],
    "even": [8, 24, 40, 56, 72, 88, 104, 120],
    "tens": [10, 20, 30, 40, 50, 60, 70, 80, 90, 100],
    "1-3-7-19": [1, 3, 7, 19, 53, 139, 359, 919],
    "odd": [1, 3, 7, 19, 43, 61, 97, 151, 211],
    "few above": [1, 4, 12, 24, 36, 72, 144],
}


def capped(N: float, a: float, b: float, B: float, d: float = 0.0) -> float:
    """The linear-knee-plateau's throughput: N/(a + bN) up to the hinge B, flat after it or with d falling."""
    return 1 / (a / min(N, B) + b + d * math.log(max(N / B, 1.0)))


def measured(
    levels: Sequence[float], a: float, b: float, B: float, noise: float = 0.0, seed: int = 0, d: float = 0.0
) -> list[Point]:
    rng = np.random.default_rng(seed)
    out = []
    for N in levels:
        X = capped(N, a, b, B, d) * math.exp(rng.normal(0, noise) if noise else 0.0)
        out.append(Point(N, float(N), X, se=max(noise, 0.005) * X))
    return out


def hinge(found: Fit) -> float:
    value = found.curve.hinge_concurrency.value
    assert value is not None
    return value


def covers(found: Fit, truth: float) -> bool:
    ci = found.curve.hinge_concurrency.ci95
    return ci is not None and (ci[0] or 0.0) <= truth and (ci[1] is None or truth <= ci[1])


@pytest.mark.parametrize("name", GRIDS)
def test_an_exact_knee_at_48_is_48_on_any_grid(name: str) -> None:
    """min(aN, P) at 48: where others answer 60, 67, 139 or 32 by the grid they are given."""
    found = fit(measured(GRIDS[name], 0.01, 0.0, 48.0))
    assert hinge(found) == pytest.approx(48.0, rel=1e-3)
    assert covers(found, 48.0)
    assert found.curve.plateau_reached
    assert found.curve.plateau_tokens_per_s.value == pytest.approx(4800.0, rel=1e-3)


@pytest.mark.parametrize("name", GRIDS)
def test_a_bent_rise_changes_nothing(name: str) -> None:
    found = fit(measured(GRIDS[name], 0.01, 0.0001, 48.0))
    assert hinge(found) == pytest.approx(48.0, rel=1e-3)
    assert found.curve.single_stream_tokens_per_s.value == pytest.approx(1 / 0.0101, rel=1e-3)
    slope = found.curve.slope_tokens_per_s
    assert slope is not None
    assert slope.value == pytest.approx(100.0, rel=1e-3)
    assert slope.ci95 is not None
    low, high = slope.ci95
    assert (low or 0.0) < 100.0 < (high or 0.0)


def test_every_knee_is_its_own_number() -> None:
    # y = 0.01 + 0.0001·N, hinge 48: P = 48/0.0148 = 3243.2. Half of it: 1621.6 = N/(0.01 + 0.0001·N), N = 19.35.
    found = fit(measured(GRIDS["powers of two"], 0.01, 0.0001, 48.0))
    half, most = found.knees.half_point, found.knees.plateau95
    assert half is not None
    assert most is not None
    assert half.value == pytest.approx(19.355, rel=0.01)
    # 3081.1 = N/(0.01 + 0.0001·N): N = 30.811/(1 - 0.30811) = 44.53.
    assert most.value == pytest.approx(44.53, rel=0.01)
    assert found.knees.slo is None


@pytest.mark.slow
def test_a_ramp_that_ends_below_the_hinge_never_reached_the_plateau() -> None:
    for seed in range(20):
        found = fit(measured([1, 2, 4, 8, 16, 24, 32], 0.01, 0.0001, 48.0, 0.02, seed))
        assert not found.curve.plateau_reached
        assert found.curve.plateau_tokens_per_s.value is None
        assert any(v.code == "plateau_not_reached" for v in found.curve.verdicts)


@pytest.mark.slow
def test_a_hyperbola_has_no_hinge_or_an_unbounded_one() -> None:
    for seed in range(10):
        found = fit(measured(GRIDS["powers of two"], 0.01, 0.0002, math.inf, 0.01, seed))
        value = found.curve.hinge_concurrency
        assert value.value is None or value.ci95 is None or value.ci95[1] is None
        assert not found.curve.plateau_reached


def test_five_levels_are_too_few_for_a_found_hinge_and_say_so() -> None:
    found = fit(measured([1, 4, 16, 64, 256], 0.01, 0.0001, 48.0))
    assert found.curve.state == "provisional"
    assert hinge(found) == pytest.approx(48.0, rel=0.01)
    assert found.curve.reasons == ["5 levels, 6 are needed"]
    assert any(v.code == "knee_not_identifiable" for v in found.curve.verdicts)
    nothing = fit(measured([1, 4], 0.01, 0.0001, 48.0))
    assert nothing.curve.family is None
    assert nothing.curve.state == "beyond"
    assert nothing.curve.at_least_concurrency == 4
    assert fit([]).curve.state == "none"


def test_invalid_levels_are_left_out_of_the_fit() -> None:
    points = measured(GRIDS["powers of two"], 0.01, 0.0001, 48.0)
    bad = [Point(p.concurrency, p.in_flight, p.throughput / 3, p.se, valid=False) for p in points[-1:]]
    assert hinge(fit(points[:-1] + bad)) == pytest.approx(48.0, rel=1e-3)


def test_fewer_in_flight_past_the_hinge_voids_the_plateau_but_not_the_fit() -> None:
    points = measured(GRIDS["powers of two"], 0.01, 0.0001, 48.0)
    low = [Point(p.concurrency, p.in_flight, p.throughput, p.se, in_flight_ok=False) for p in points[-1:]]
    found = fit(points[:-1] + low)
    assert hinge(found) == pytest.approx(48.0, rel=1e-3)
    assert not found.curve.plateau_reached


def test_knees_are_given_in_concurrency_where_fewer_are_in_flight() -> None:
    points = [
        Point(2 * p.concurrency, p.in_flight, p.throughput, p.se)
        for p in measured(GRIDS["powers of two"], 0.01, 0.0001, 48.0)
    ]
    assert hinge(fit(points)) == pytest.approx(96.0, rel=1e-3)


def test_repeats_of_a_level_are_pooled() -> None:
    once = measured(GRIDS["powers of two"], 0.01, 0.0001, 48.0, 0.01, 1)
    twice = once + measured(GRIDS["powers of two"], 0.01, 0.0001, 48.0, 0.01, 2)
    one, two = fit(once), fit(twice)
    assert len(curve.pool(twice).N) == len(GRIDS["powers of two"])
    width = [ci[1] - ci[0] for f in (one, two) if (ci := f.curve.hinge_concurrency.ci95) and ci[0] and ci[1]]
    assert width[1] < width[0]


def drifting(*levels: tuple[float, float]) -> list[Point]:
    """Levels of (concurrency, tok/s) that each know themselves to 1 %."""
    return [Point(C, C, X, se=0.01 * X) for C, X in levels]


def test_what_repeats_differ_by_beyond_their_errors_is_counted_at_every_level() -> None:
    still = curve.pool(drifting((1, 100), (1, 101), (2, 200), (4, 400), (4, 398)))
    assert still.drift == 0
    assert still.sigma == pytest.approx([0.01 / math.sqrt(2), 0.01, 0.01 / math.sqrt(2)])
    moved = curve.pool(drifting((1, 100), (1, 110), (2, 200), (4, 400), (4, 360), (4, 380)))
    assert 0.04 < moved.drift < 0.08
    one = math.hypot(0.01, moved.drift)
    assert moved.sigma == pytest.approx([one / math.sqrt(2), one, one / math.sqrt(3)])
    assert pytest.approx([105, 200, 380], rel=1e-3) == moved.X


def test_drift_widens_the_interval_of_levels_that_were_held_once() -> None:
    rise = [(C, capped(C, 0.01, 0.0001, 12.0)) for C in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)]
    still, moved = (fit(drifting(*rise, (1, X), (16, Y))) for X, Y in ((rise[0][1], rise[7][1]), (90.0, 1000.0)))
    assert still.curve.parameters["drift"] == 0
    assert moved.curve.parameters["drift"] > 0.03
    width = [ci[1] - ci[0] for f in (still, moved) if (ci := f.curve.hinge_concurrency.ci95) and ci[0] and ci[1]]
    assert width[1] > 1.5 * width[0]


def test_a_level_without_an_error_among_others_has_an_assumed_one() -> None:
    pooled = curve.pool([*drifting((1, 100), (2, 200), (2, 190), (4, 400), (8, 800)), Point(16, 16, 1100)])
    assert pooled.assumed.tolist() == [False, False, False, False, True]


def test_levels_without_errors_are_fitted_from_their_scatter() -> None:
    points = [Point(p.concurrency, None, p.throughput) for p in measured(GRIDS["tens"], 0.01, 0.0001, 48.0, 0.01)]
    found = fit(points)
    assert hinge(found) == pytest.approx(48.0, rel=0.1)
    assert covers(found, 48.0)


def test_the_same_points_and_seed_give_the_same_answer() -> None:
    points = measured(GRIDS["odd"], 0.01, 0.0001, 48.0, 0.02)
    one, two = fit(points, seed=3), fit(points, seed=3)
    assert (one.curve, one.knees) == (two.curve, two.knees)
    assert one.draws is not None
    assert two.draws is not None
    assert np.array_equal(one.draws.hinge, two.draws.hinge)


def test_the_drawn_curve_is_the_fitted_one() -> None:
    found = fit(measured(GRIDS["powers of two"], 0.01, 0.0001, 48.0)).curve
    got = throughput(found, np.array([1.0, 16.0, 48.0, 300.0]))
    assert got.tolist() == pytest.approx([capped(N, 0.01, 0.0001, 48.0) for N in (1, 16, 48, 300)], rel=1e-3)


# The dip: y = max(a + bN, N/P) + d·N·ln(N/B)₊. Hinge 48, P = 48/0.0148 = 3243.24; with d = 0.1/P throughput at 512
# is P/(1 + 0.1·ln(512/48)) = P/1.23671, so 19.14 % are lost.
FALLING = 0.1 * 0.0148 / 48
DOUBLING = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]


def codes(found: Fit) -> list[str]:
    return [v.code for v in found.curve.verdicts]


def test_a_dip_is_found_with_its_hinge_and_its_coefficient() -> None:
    found = fit(measured(DOUBLING, 0.01, 0.0001, 48.0, d=FALLING))
    assert found.curve.family == "dip"
    assert hinge(found) == pytest.approx(48.0, rel=1e-3)
    assert found.curve.parameters["d"] == pytest.approx(FALLING, rel=1e-3)
    assert found.curve.parameters["P"] == pytest.approx(3243.24, rel=1e-3)
    got = throughput(found.curve, np.array([16.0, 48.0, 512.0]))
    assert got.tolist() == pytest.approx([capped(N, 0.01, 0.0001, 48.0, FALLING) for N in (16, 48, 512)], rel=1e-3)


def test_only_levels_held_twice_confirm_a_dip() -> None:
    once = measured(DOUBLING, 0.01, 0.0001, 48.0, 0.01, 1, FALLING)
    found = fit(once)
    assert found.curve.family == "dip"
    assert found.curve.dip is None
    assert "dip_unconfirmed" in codes(found)
    one_twice = fit(once + measured([512], 0.01, 0.0001, 48.0, 0.01, 2, FALLING))
    assert one_twice.curve.dip is None
    confirmed = fit(once + measured([256, 512], 0.01, 0.0001, 48.0, 0.01, 3, FALLING))
    assert "dip_unconfirmed" not in codes(confirmed)
    depth = confirmed.curve.dip
    assert depth is not None
    assert depth.value == pytest.approx(0.1914, abs=0.03)
    assert depth.ci95 is not None
    assert depth.ci95[0] is not None
    assert depth.ci95[1] is not None
    assert 0 < depth.ci95[0] <= 0.1914 <= depth.ci95[1] < 0.3
    assert confirmed.knees.peak == confirmed.curve.hinge_concurrency


def test_a_dip_that_too_few_levels_show_is_left_to_a_note() -> None:
    """Two levels lie past the hinge at 48 and three are needed: no draw has a dip either."""
    found = fit(measured([1, 2, 4, 8, 16, 32, 44, 128, 256], 0.01, 0.0001, 48.0, 0.005, 4, 4 * FALLING))
    assert found.draws is not None
    assert found.draws.family.max() <= curve.CAPPED
    assert "dip_unconfirmed" in codes(found)
    assert any("2 levels past the knee, 3 are needed" in v.message for v in found.curve.verdicts)
    assert set(found.curve.weights) == {"hyperbola", "capped_hyperbola"}


def test_a_family_that_an_exact_knee_rules_out_weighs_nothing_that_a_reader_would_refuse() -> None:
    found = fit(measured(DOUBLING, 0.01, 0.0001, 48.0))
    assert found.curve.weights["hyperbola"] == 0.0
    assert sum(found.curve.weights.values()) == pytest.approx(1.0)
    decoding.json(msgspec.json.encode(found.curve))


@pytest.mark.slow
def test_the_interval_covers_the_true_hinge_and_depth_of_a_dip() -> None:
    hits = depths = fitted = 0
    levels = sorted([*DOUBLING, 24, 40, 56, 96])
    for seed in range(120):
        points = measured(levels, 0.01, 0.0001, 48.0, 0.02, seed, FALLING)
        found = fit(points + measured([256, 512], 0.01, 0.0001, 48.0, 0.02, seed + 1000, FALLING), seed=seed)
        hits += covers(found, 48.0)
        if found.curve.dip is not None:
            fitted += 1
            low, high = found.curve.dip.ci95 or (None, None)
            depths += (low or 0.0) <= 0.19140 <= (high or 1.0)
    assert hits >= 0.92 * 120, f"hinge covered in {hits} of 120"
    assert fitted >= 100
    assert depths >= 0.92 * fitted, f"depth covered in {depths} of {fitted}"


@pytest.mark.slow
def test_noise_of_3_percent_is_no_dip() -> None:
    chosen = confirmed = 0
    for seed in range(100):
        points = measured(DOUBLING, 0.01, 0.0001, 48.0, 0.03, seed) + measured(
            [256, 512], 0.01, 0.0001, 48, 0.03, -seed % 1000
        )
        found = fit(points, seed=seed, draws=100)
        chosen += found.curve.family == "dip"
        confirmed += found.curve.dip is not None
    assert chosen <= 5
    assert confirmed == 0


def test_usl_is_reported_beside_and_never_chosen() -> None:
    # y = 0.01 + 0.0001·N + 0.000001·N²: its peak is at √(0.01/0.000001) = 100.
    points = [Point(N, float(N), N / (0.01 + 1e-4 * N + 1e-6 * N**2), se=0.01 * N) for N in DOUBLING]
    found = fit(points).curve
    assert found.usl is not None
    assert found.usl["a"] == pytest.approx(0.01, rel=1e-6)
    assert found.usl["b"] == pytest.approx(1e-4, rel=1e-6)
    assert found.usl["k"] == pytest.approx(1e-6, rel=1e-6)
    assert found.usl["peak_concurrency"] == pytest.approx(100.0, rel=1e-6)
    assert found.usl["score"] == pytest.approx(6 + 24 / 6, abs=1e-6)  # χ² = 0, k = 3, n = 10
    assert found.family in curve.FAMILIES
    assert set(found.weights) <= set(curve.FAMILIES)
    straight = fit(measured(DOUBLING, 0.01, 0.0001, math.inf)).curve.usl
    assert straight is not None
    assert straight["k"] == pytest.approx(0.0, abs=1e-9)


def test_a_hyperbola_has_an_asymptote_and_nothing_else_has() -> None:
    found = fit(measured(DOUBLING, 0.01, 0.0002, math.inf, 0.01, 5))
    value = found.curve.asymptote_tokens_per_s
    assert found.curve.family == "hyperbola"
    assert value is not None
    assert value.ci95 is not None
    assert value.ci95[0] is not None
    assert value.ci95[1] is not None
    assert value.ci95[0] <= 1 / 0.0002 <= value.ci95[1]
    assert found.curve.plateau_tokens_per_s.value is None
    assert fit(measured(DOUBLING, 0.01, 0.0002, 48.0)).curve.asymptote_tokens_per_s is None


def test_draws_are_whole_curves() -> None:
    N = np.array([1.0, 48.0, 500.0])
    for B, count in ((48.0, 400), (math.inf, 60)):
        draws = fit(measured(DOUBLING, 0.01, 0.0001, B, 0.02), draws=count).draws
        assert draws is not None
        assert draws.throughput(N).shape == (count, 3)
        assert draws.hinge.shape == draws.plateau.shape == draws.family.shape == (count,)
        assert np.array_equal(np.isinf(draws.hinge), draws.family == curve.HYPERBOLA)
        assert np.array_equal(np.isinf(draws.plateau), np.isinf(draws.hinge))
        assert np.median(draws.throughput(N), axis=0) == pytest.approx(
            [capped(x, 0.01, 0.0001, B) for x in N], rel=0.05
        )
    assert fit([]).draws is None


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(scale=st.floats(0.01, 100.0), speed=st.floats(0.01, 100.0), seed=st.integers(0, 1000))
def test_units_of_load_and_of_output_change_nothing_but_themselves(scale: float, speed: float, seed: int) -> None:
    points = measured(DOUBLING, 0.01, 0.0001, 48.0, 0.02, seed)
    other = [
        Point(p.concurrency * scale, (p.in_flight or 0) * scale, p.throughput * speed, (p.se or 0) * speed)
        for p in points
    ]
    one, two = fit(points, draws=20).curve, fit(other, draws=20).curve
    assert two.family == one.family
    assert two.hinge_concurrency.value == pytest.approx((one.hinge_concurrency.value or 0) * scale, rel=1e-6)
    assert two.weights == pytest.approx(one.weights, rel=1e-5, abs=1e-12)


def test_the_order_of_the_levels_changes_nothing() -> None:
    points = measured(DOUBLING, 0.01, 0.0001, 48.0, 0.02, 3)
    assert fit(points[::-1]).curve == fit(points).curve


FELL = fit(
    measured(DOUBLING, 0.01, 0.0001, 48.0, 0.01, 1, FALLING)
    + measured([256, 512], 0.01, 0.0001, 48.0, 0.01, 3, FALLING)
).curve


def seen(**past: float) -> list[LevelSummary]:
    return [level(16, server=ServerView(waiting=0.0)), level(256, server=ServerView(**past))]


def test_a_confirmed_dip_is_explained_by_what_the_server_reported_past_the_hinge() -> None:
    for levels, words in (
        (seen(preemptions=12.0, kv_usage=0.99), ("12 preemptions", "99% full", "KV cache more memory")),
        (seen(waiting=208.0), ("208 requests waiting", "limit the batch")),
        (seen(waiting=0.0), ("nothing that the server reported",)),
        ([level(16, server=None), level(256, server=None)], ("reported nothing of itself",)),
    ):
        verdict = dip_confirmed(FELL, levels)
        assert verdict is not None
        assert (verdict.code, verdict.level) == ("dip_confirmed", "note")
        for word in words:
            assert word in f"{verdict.message} {verdict.advice}"
    unconfirmed = msgspec.structs.replace(FELL, dip=None)
    assert dip_confirmed(unconfirmed, seen(preemptions=12.0)) is None


# A small real server, concave at low load: output tok/s of vLLM on a CPU at these levels, max-num-seqs 16.
CONCAVE = {1: 86, 2: 150, 4: 262, 8: 470, 12: 620, 16: 748, 20: 742, 24: 738, 32: 731, 48: 733, 64: 730}


@pytest.mark.slow
def test_a_server_that_is_concave_at_low_load_still_shows_its_knee() -> None:
    good = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        points = [Point(c, float(c), x * math.exp(rng.normal(0, 0.01)), se=0.01 * x) for c, x in CONCAVE.items()]
        found = fit(points, seed=seed)
        ci = found.curve.hinge_concurrency.ci95
        assert ci is not None
        low, high = ci[0] or 0.0, ci[1] or math.inf
        good += low <= 16 <= high and low >= 0.75 * hinge(found) and high <= 1.25 * hinge(found)
    assert good >= 36, f"{good} of 40 hold 16 with both ends within 25 %"


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "runs"), [(0.01, 120), (0.03, 300)])
def test_the_interval_covers_the_true_hinge_and_plateau(noise: float, runs: int) -> None:
    """Random capped hyperbolas; the full coverage tables are a benchmark, this is its alarm."""
    rng = np.random.default_rng(7)
    hits = plateau = reached = 0
    for i in range(runs):
        B = math.exp(rng.uniform(math.log(6), math.log(60)))
        b = rng.uniform(0.0, 0.5) * 0.01 / B
        levels = sorted({round(x) for x in np.geomspace(1, 4 * B, 12)})
        found = fit(measured(levels, 0.01, b, B, noise, i), seed=i, draws=400)
        hits += covers(found, B)
        if found.curve.plateau_reached:
            reached += 1
            ci = found.curve.plateau_tokens_per_s.ci95
            assert ci is not None
            plateau += (ci[0] or 0.0) <= capped(4 * B, 0.01, b, B) <= (ci[1] or math.inf)
    assert hits >= 0.92 * runs, f"hinge covered in {hits} of {runs}"
    assert plateau >= 0.92 * reached, f"plateau covered in {plateau} of {reached}"
    assert reached >= 0.3 * runs


def test_published_curves_fit_and_are_reproduced() -> None:
    rows = list(csv.DictReader((HERE / "data" / "measured_curves.csv").read_text().splitlines()))
    for name in {row["id"] for row in rows}:
        points = [Point(float(r["c"]), None, float(r["out_tok_s"])) for r in rows if r["id"] == name]
        found = fit(points)
        if found.curve.family is None:
            assert len(points) < 5
            continue
        N = np.array([p.concurrency for p in points])
        X = np.array([p.throughput for p in points])
        rms = float(np.sqrt(np.median((throughput(found.curve, N) / X - 1) ** 2)))
        assert rms < 0.06, name
