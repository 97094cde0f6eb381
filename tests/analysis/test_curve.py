"""The knee on any grid, on curves of many kinds and under noise, and what is read off the curve."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from harness.analysis.curve import Fit, Point, fit, interval, operating_point, throughput
from harness.analysis.rules.levels import Concluded, dip_confirmed
from harness.base import decoding
from harness.data.levels import LevelSummary
from harness.data.views import ServerView, Value
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
DOUBLING = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]


def capped(N: float, a: float, b: float, B: float) -> float:
    """Return the throughput of a capped hyperbola: N/(a + bN) up to the hinge B, flat past it."""
    return 1 / (a / min(N, B) + b)


def measured(levels: Sequence[float], X: Sequence[float], noise: float = 0.0, seed: int = 0) -> list[Point]:
    """Return levels of those throughputs with a relative noise, which they know; none is known where there is none."""
    rng = np.random.default_rng(seed)
    found = [x * math.exp(rng.normal(0, noise) if noise else 0.0) for x in X]
    return [Point(N, float(N), x, noise * x or None) for N, x in zip(levels, found, strict=True)]


def dense(
    levels: Sequence[float], B: float = 48.0, b: float = 0.0001, noise: float = 0.0, seed: int = 0
) -> list[Point]:
    return measured(levels, [capped(N, 0.01, b, B) for N in levels], noise, seed)


def hinge(found: Fit) -> float:
    value = found.curve.hinge_concurrency.value
    assert value is not None
    return value


def ends(value: Value | None) -> tuple[float, float]:
    """Return the ends of an interval; an open one is 0 or inf."""
    assert value is not None
    low, high = value.ci95 or (None, None)
    return low or 0.0, math.inf if high is None else high


def holds(value: Value | None, truth: float) -> bool:
    low, high = ends(value)
    return low <= truth <= high


def narrow(found: Fit) -> float:
    """Return the knee's upper end over its lower."""
    low, high = ends(found.curve.hinge_concurrency)
    return high / low


# ---- capped hyperbolas ----------------------------------------------------------------------------------


@pytest.mark.parametrize("b", [0.0, 0.0001], ids=["straight", "bent"])
@pytest.mark.parametrize("name", GRIDS)
def test_an_exact_knee_at_48_is_48_on_any_grid(name: str, b: float) -> None:
    """Where others answer 60, 67, 139 or 32 by the grid they are given."""
    found = fit(dense(GRIDS[name], b=b))
    assert found.curve.state == "found"
    assert found.curve.plateau_reached
    assert hinge(found) == pytest.approx(48.0, rel=0.03)
    assert holds(found.curve.hinge_concurrency, 48.0)
    above = min(N for N in GRIDS[name] if N >= 48)  # the next level, which the interval reaches
    assert narrow(found) < max(1.25, min(1.15 * above / 48, 1.5001))
    assert found.curve.plateau_tokens_per_s.value == pytest.approx(capped(48, 0.01, b, 48), rel=0.005)


def test_a_rise_that_slows_before_the_plateau_is_no_knee_that_comes_earlier() -> None:
    """From 0.7 of the knee on each request brings half: a corner at 40.8 fits all levels, and the knee is 48."""
    rates = [min(N, 33.6 + max(0.0, min(N, 48.0) - 33.6) / 2) for N in DOUBLING]
    found = fit(measured(DOUBLING, rates, 0.01))
    assert holds(found.curve.hinge_concurrency, 48.0)
    assert found.curve.state == "found"


def test_every_knee_is_its_own_number() -> None:
    # y = 0.01 + 0.0001·N, hinge 48: P = 48/0.0148 = 3243.2. Half of it: 1621.6 = N/(0.01 + 0.0001·N), N = 19.35.
    found = fit(dense(GRIDS["powers of two"]))
    assert found.knees.half_point is not None
    assert found.knees.half_point.value == pytest.approx(19.355, rel=0.01)
    # 3081.1 = N/(0.01 + 0.0001·N): N = 30.811/(1 - 0.30811) = 44.53.
    assert holds(found.knees.plateau95, 44.53)
    assert found.knees.plateau95 is not None
    assert found.knees.plateau95.value == pytest.approx(44.53, rel=0.02)
    assert found.knees.peak == found.knees.hinge == found.curve.hinge_concurrency
    assert found.curve.single_stream_tokens_per_s.value == pytest.approx(1 / 0.0101, rel=0.005)
    assert found.knees.slo is None
    assert set(found.curve.parameters) == {"noise", "roughness", "softness"}
    assert (found.curve.family, found.curve.weights) == (None, None)


def test_invalid_levels_are_left_out_of_the_fit() -> None:
    points = dense(GRIDS["powers of two"])
    bad = msgspec.structs.replace(points[-1], throughput=points[-1].throughput / 3, valid=False)
    assert fit([*points, bad]).curve == fit(points).curve


def test_fewer_in_flight_past_the_hinge_voids_the_plateau_but_not_the_fit() -> None:
    points = dense(GRIDS["powers of two"])
    found = fit([*points[:-1], msgspec.structs.replace(points[-1], in_flight_ok=False)])
    assert hinge(found) == hinge(fit(points))
    assert not found.curve.plateau_reached
    assert found.curve.reasons == ["fewer in flight than 95% of what was requested"]


def test_knees_are_given_in_concurrency_where_fewer_are_in_flight() -> None:
    points = dense(GRIDS["powers of two"])
    twice = [msgspec.structs.replace(each, concurrency=2 * each.concurrency) for each in points]
    assert hinge(fit(twice)) == pytest.approx(2 * hinge(fit(points)))


# ---- what changes nothing, and what narrows -------------------------------------------------------------


def test_the_same_points_and_seed_give_the_same_answer() -> None:
    points = dense(GRIDS["odd"], noise=0.02)
    one, two = fit(points, seed=3), fit(points, seed=3)
    assert (one.curve, one.knees) == (two.curve, two.knees)


def test_the_order_of_the_levels_changes_nothing() -> None:
    points = dense(DOUBLING, noise=0.02, seed=3)
    assert fit(points[::-1]).curve == fit(points).curve


@pytest.mark.parametrize("speed", [0.001, 37.0])
def test_the_unit_of_throughput_changes_nothing_but_itself(speed: float) -> None:
    points = dense(DOUBLING, noise=0.02, seed=4)
    other = [
        msgspec.structs.replace(p, throughput=p.throughput * speed, se=None if p.se is None else p.se * speed)
        for p in points
    ]
    one, two = fit(points, draws=50), fit(other, draws=50)
    assert two.curve.state == one.curve.state
    assert ends(two.knees.hinge) == pytest.approx(ends(one.knees.hinge), rel=1e-6)
    assert ends(two.knees.plateau95) == pytest.approx(ends(one.knees.plateau95), rel=1e-6)
    wanted = [speed * end for end in ends(one.curve.plateau_tokens_per_s)]
    assert ends(two.curve.plateau_tokens_per_s) == pytest.approx(wanted, rel=1e-6)


def test_repeats_and_smaller_errors_narrow_the_knee() -> None:
    once = dense(GRIDS["powers of two"], noise=0.03, seed=1)
    again = [each for seed in (2, 3, 4) for each in dense(GRIDS["powers of two"], noise=0.03, seed=seed)]
    assert narrow(fit(once + again)) < narrow(fit(once))
    exact = [dense(GRIDS["powers of two"], noise=1e-9)] * 3
    widths = [
        narrow(fit([msgspec.structs.replace(p, se=e * p.throughput) for p in points]))
        for points, e in zip(exact, (0.01, 0.03, 0.06), strict=True)
    ]
    assert widths == sorted(widths)


def test_repeats_that_differ_widen_the_knee() -> None:
    levels = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
    points = measured(levels, [capped(C, 0.01, 0.0001, 12.0) for C in levels])
    points = [msgspec.structs.replace(p, se=0.01 * p.throughput) for p in points]

    def repeated(by: float) -> Fit:
        return fit(
            [*points, *(msgspec.structs.replace(p, throughput=p.throughput * by) for p in (points[0], points[7]))]
        )

    assert math.log(narrow(repeated(0.85))) > 2 * math.log(narrow(repeated(1.0)))
    assert repeated(0.85).curve.parameters["noise"] > 2 * repeated(1.0).curve.parameters["noise"]


# ---- curves that are no capped hyperbola ----------------------------------------------------------------


def experts(N: int, count: int, active: int, seats: int, shared: float) -> float:
    """Return the throughput of a mixture: a step reads a shared part and each expert that a token of the batch hits."""
    batch = min(N, seats)
    return batch / (shared + (1 - math.pow(1 - active / count, batch)) + 0.0005 * batch)


@pytest.mark.parametrize("seats", [32, 100])
@pytest.mark.parametrize(
    ("count", "active", "shared"), [(128, 8, 0.05), (128, 4, 0.1), (64, 6, 0.1), (32, 4, 0.2), (8, 2, 0.3)]
)
def test_the_seats_of_a_mixture_of_experts_are_in_the_interval(
    count: int, active: int, shared: float, seats: int
) -> None:
    """N/X is concave while the share of experts hit still grows."""
    found = fit(measured(DOUBLING, [experts(N, count, active, seats, shared) for N in DOUBLING]))
    assert holds(found.knees.hinge, seats)
    assert math.isfinite(narrow(found))
    assert hinge(found) == pytest.approx(seats, rel=0.15)


def test_ten_levels_of_a_predicted_mixture_and_of_a_dense_model_have_100_seats() -> None:
    """The closed forms of two deployments with --max-num-seqs 100."""
    plateau = [4545.45] * 3
    mixture = fit(measured(DOUBLING, [187.62, 307.51, 472.91, 714.04, 1134.81, 1948.77, 3347.62, *plateau]))
    assert holds(mixture.knees.hinge, 100)
    assert narrow(mixture) < 1.6
    control = fit(measured(DOUBLING, [71.02, 141.24, 279.33, 546.45, 1047.12, 1932.37, 3347.28, *plateau]))
    assert control.curve.state == "found"
    assert holds(control.knees.hinge, 100)
    assert narrow(control) < narrow(mixture)


def closed_network(levels: Sequence[int], demand: float, think: float) -> list[float]:
    """Return the exact throughput of one queue and think time, by mean value analysis (Reiser and Lavenberg 1980)."""
    X, Q = [], 0.0
    for n in range(1, max(levels) + 1):
        R = demand * (1 + Q)
        X.append(n / (R + think))
        Q = X[-1] * R
    return [X[n - 1] for n in levels]


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.03])
def test_the_corner_of_a_soft_curve_is_where_its_asymptotes_meet(noise: float) -> None:
    """N* = (47 + 1)/1 = 48; 95 % of the plateau are at 52.5, past the corner."""
    found = fit(measured(DOUBLING, closed_network(DOUBLING, 1.0, 47.0), noise))
    assert holds(found.knees.hinge, 48)
    assert holds(found.knees.plateau95, 52.5)


def test_batches_that_are_padded_make_no_found_knee_below_the_last_step() -> None:
    """A step is as long as a batch of 8, 16, 32 or 64 takes, so throughput falls where one more needs the next size."""

    def padded(N: int) -> float:
        return min(N, 64) / (0.01 + 0.0002 * next(size for size in (8, 16, 32, 64) if size >= min(N, 64)))

    levels = [1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 64, 96, 128]
    assert padded(40) < padded(32)
    found = fit(measured(levels, [padded(N) for N in levels]))
    assert found.curve.state == "provisional"
    assert holds(found.knees.hinge, 64)
    on_powers = fit(measured(DOUBLING, [padded(N) for N in DOUBLING]))
    assert holds(on_powers.knees.hinge, 64)


# A small real server, concave at low load: output tok/s of vLLM on a CPU at these levels, max-num-seqs 16.
CONCAVE = {1: 86, 2: 150, 4: 262, 8: 470, 12: 620, 16: 748, 20: 742, 24: 738, 32: 731, 48: 733, 64: 730}


@pytest.mark.slow
def test_a_server_that_is_concave_at_low_load_still_shows_its_knee() -> None:
    good = 0
    for seed in range(40):
        found = fit(measured(list(CONCAVE), list(CONCAVE.values()), 0.01, seed), seed=seed)
        good += holds(found.knees.hinge, 16) and narrow(found) <= 1.5
    assert good >= 36, f"{good} of 40 hold 16 with close ends"


def test_published_sweeps_have_an_answer_and_a_flat_tail_is_found() -> None:
    rows = list(csv.DictReader((HERE / "data" / "published_sweeps.csv").read_text().splitlines()))
    for name in {row["id"] for row in rows}:
        found = fit([Point(float(r["c"]), None, float(r["out_tok_s"])) for r in rows if r["id"] == name])
        assert found.curve.state == ("found" if name == "sixteen_seats" else "provisional"), name
        assert None not in (found.knees.plateau95 or Value(None)).ci95, name  # type: ignore[operator]
    assert len(rows) == 25


def test_published_curves_are_reproduced() -> None:
    rows = list(csv.DictReader((HERE / "data" / "measured_curves.csv").read_text().splitlines()))
    for name in {row["id"] for row in rows}:
        points = [Point(float(r["c"]), None, float(r["out_tok_s"])) for r in rows if r["id"] == name]
        N, X = np.array([p.concurrency for p in points]), np.array([p.throughput for p in points])
        off = throughput(fit(points).curve, N) / X - 1
        assert float(np.sqrt(np.median(off**2))) < 0.06, name


# ---- coverage -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "runs"), [(0.01, 120), (0.03, 200)])
def test_intervals_cover_the_true_knee_plateau_and_its_95_percent(noise: float, runs: int) -> None:
    """Random capped hyperbolas; the full coverage tables are a benchmark, this is its alarm."""
    rng = np.random.default_rng(7)
    hits = np.zeros(3)
    reached = 0
    for i in range(runs):
        B = math.exp(rng.uniform(math.log(6), math.log(60)))
        b = rng.uniform(0.0, 0.5) * 0.01 / B
        P = capped(B, 0.01, b, B)
        levels = sorted({round(x) for x in np.geomspace(1, 4 * B, 12)})
        found = fit(dense(levels, B, b, noise, i), seed=i)
        truths = B, P, 0.95 * P * 0.01 / (1 - 0.95 * P * b)
        values = found.knees.hinge, found.curve.plateau_tokens_per_s, found.knees.plateau95
        hits += [holds(value, truth) for value, truth in zip(values, truths, strict=True)]
        reached += found.curve.plateau_reached
    assert (hits >= 0.92 * runs).all(), f"knee, plateau and 95 % of it are covered in {hits} of {runs}"
    assert reached >= 0.3 * runs


# ---- the curve itself -----------------------------------------------------------------------------------


def test_the_curve_that_is_kept_is_the_measured_one_with_a_band() -> None:
    found = fit(dense(GRIDS["powers of two"])).curve
    N = np.array([1.0, 16.0, 40.0, 64.0, 250.0])
    assert throughput(found, N).tolist() == pytest.approx([capped(n, 0.01, 0.0001, 48.0) for n in N], rel=0.02)
    assert [found.line[0].concurrency, found.line[-1].concurrency] == pytest.approx([1, 256])
    assert any(each.in_flight == pytest.approx(found.hinge_concurrency.value) for each in found.line)
    assert all(each.low <= each.per_s <= each.high for each in found.line)
    decoding.json(msgspec.json.encode(found))


def test_below_the_levels_throughput_is_in_proportion_and_above_them_that_of_the_last() -> None:
    found = fit(dense(GRIDS["powers of two"])).curve
    low, high = found.line[0].per_s, found.line[-1].per_s
    assert throughput(found, np.array([0.5, 1000.0])).tolist() == pytest.approx([low / 2, high])
    assert np.isnan(throughput(fit([]).curve, np.array([1.0]))).all()


def test_an_operating_point_is_the_curve_s_with_its_interval_and_none_beyond_the_levels() -> None:
    """A level that was lucky is not what the server gives: 128 measured 8 % too high."""
    points = dense(GRIDS["powers of two"], noise=0.03, seed=5)
    truth = capped(128, 0.01, 0.0001, 48.0)
    lucky = [msgspec.structs.replace(p, throughput=1.08 * truth) if p.concurrency == 128 else p for p in points]
    found = fit(lucky).curve
    at = operating_point(found, 128)
    assert at.value is not None
    assert at.value < 1.056 * truth
    assert holds(at, truth)
    assert operating_point(found, 1) != Value(None)
    assert operating_point(found, 256) != Value(None)
    for concurrency in (0.5, 300):
        assert operating_point(found, concurrency) == Value(None)
    assert operating_point(None, 32) == operating_point(fit([]).curve, 32) == Value(None)


def test_draws_are_whole_curves() -> None:
    N = np.array([1.0, 48.0, 500.0])
    draws = fit(dense(DOUBLING, noise=0.02), draws=60).draws
    assert draws is not None
    assert draws.throughput(N).shape == (60, 3)
    assert draws.hinge.shape == draws.plateau.shape == (60,)
    assert np.median(draws.throughput(N), axis=0) == pytest.approx([capped(x, 0.01, 0.0001, 48) for x in N], rel=0.05)
    assert fit([]).draws is None


def test_an_interval_goes_outwards_to_the_next_draw() -> None:
    # 2.5 % and 97.5 % of 0 … 100 lie at 2.5 and 97.5.
    assert interval(np.arange(101.0)) == (2.0, 98.0)


# ---- a dip ----------------------------------------------------------------------------------------------


def falling() -> Fit:
    """Return the fit of a server that loses 10 % of its plateau for each e-fold of load past 48, up to 512."""
    X = [capped(N, 0.01, 0.0001, 48) * math.exp(-0.1 * max(math.log(N / 48), 0.0)) for N in DOUBLING]
    return fit(measured(DOUBLING, X, 0.01))


def seen(past: ServerView) -> list[LevelSummary]:
    return [level(16, server=ServerView(waiting=0.0)), level(256, server=past)]


def test_a_dip_is_explained_by_what_the_server_reported_past_the_hinge() -> None:
    fell = falling().curve
    for levels, words in (
        (seen(ServerView(preemptions=12.0, kv_usage=0.99)), ("12 preemptions", "99% full")),
        (seen(ServerView(waiting=208.0)), ("208 requests waiting", "limit the batch")),
        ([level(16, server=None), level(256, server=None)], ("reported nothing of itself",)),
    ):
        (verdict,) = dip_confirmed.findings(Concluded(curve=fell, levels=levels))
        assert (verdict.code, verdict.level) == ("dip_confirmed", "note")
        for word in words:
            assert word in f"{verdict.message} {verdict.advice}"
    unconfirmed = msgspec.structs.replace(fell, dip=None)
    assert dip_confirmed.findings(Concluded(curve=unconfirmed, levels=seen(ServerView(preemptions=12.0)))) == []


@pytest.mark.slow
def test_noise_of_3_percent_is_no_dip() -> None:
    shown = sum(
        fit(dense(DOUBLING, noise=0.03, seed=seed), seed=seed, draws=100).curve.dip is not None for seed in range(100)
    )
    assert shown <= 3
