"""Levels as points: repeats pooled, errors that are assumed scaled by the scatter, and a fall at the end."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from harness.analysis.points import Point, chance, points_of, pool
from tests.builders.summaries import level


def of(*levels: tuple[float, float]) -> list[Point]:
    """Return levels of (concurrency, tok/s) that each know themselves to 1 %."""
    return [Point(C, C, X, se=0.01 * X) for C, X in levels]


def test_repeats_of_a_level_are_averaged_by_their_errors() -> None:
    pooled = pool([Point(4, None, 100, se=1.0), Point(4, None, 106, se=2.0), Point(1, None, 30, se=0.3)])
    assert pooled.C.tolist() == [1, 4]
    assert pooled.times.tolist() == [1, 2]
    # Weights 1/0.01² and 1/(2/106)², less what lies between the two.
    assert 100 < pooled.X[1] < 103
    assert pooled.sigma[0] == pytest.approx(math.hypot(0.01, pooled.drift))


def test_what_repeats_differ_by_beyond_their_errors_is_counted_at_every_level() -> None:
    still = pool(of((1, 100), (1, 101), (2, 200), (4, 400), (4, 398)))
    assert still.drift == 0
    assert still.sigma == pytest.approx([0.01 / math.sqrt(2), 0.01, 0.01 / math.sqrt(2)])
    moved = pool(of((1, 100), (1, 110), (2, 200), (4, 400), (4, 360), (4, 380)))
    assert 0.04 < moved.drift < 0.08
    one = math.hypot(0.01, moved.drift)
    assert moved.sigma == pytest.approx([one / math.sqrt(2), one, one / math.sqrt(3)])
    assert pytest.approx([105, 200, 380], rel=1e-3) == moved.X


def test_a_posterior_takes_repeats_by_their_scatter() -> None:
    """Levels of 100 and 110, of 360, 380 and 400: squares of ln about their means, and five less two degrees."""
    data = pool(of((1, 100), (1, 110), (4, 400), (4, 360), (4, 380))).data
    low, high = np.log([100, 110]), np.log([400, 360, 380])
    assert data.y == pytest.approx([low.mean(), high.mean()])
    assert data.scatter == pytest.approx(((low - low.mean()) ** 2).sum() + ((high - high.mean()) ** 2).sum())
    assert data.freedom == 3
    assert data.g == pytest.approx([1 / math.sqrt(2), 1 / math.sqrt(3)])
    assert data.error == pytest.approx(0.01)


def test_no_level_s_error_counts_as_more_than_three_times_another_s() -> None:
    errors = [0.001, 0.02, 0.02, 0.02, 0.94]
    data = pool([Point(C, None, 100 * C, se=100 * C * e) for C, e in zip([1, 2, 4, 8, 16], errors, strict=True)]).data
    assert data.g.max() / data.g.min() == pytest.approx(3.0)


def test_what_resting_slots_happen_to_send_is_an_error_of_its_own() -> None:
    """One of 10 slots is in flight on average, and 50 requests came: 0.9 · √(2/50) = 18 %."""
    agents = msgspec.structs.replace(level(10), in_flight=1.0, requests=50)
    assert chance(agents) == pytest.approx(0.18)
    assert points_of([agents])[0].chance == chance(agents)
    assert chance(msgspec.structs.replace(agents, in_flight=10.2)) == 0.0
    assert chance(msgspec.structs.replace(agents, concurrency=None)) == 0.0
    few = [Point(C, None, 100 * C, se=2 * C, chance=e) for C, e in zip([1, 2, 4], [0.9, 0.02, 0.02], strict=True)]
    pooled = pool(few)
    assert pooled.sigma == pytest.approx([0.9, 0.02, 0.02])
    assert pooled.data.g[0] / pooled.data.g[1] == pytest.approx(45.0)


def test_a_level_without_an_error_among_others_has_an_assumed_one() -> None:
    pooled = pool([*of((1, 100), (2, 200), (2, 190), (4, 400), (8, 800)), Point(16, 16, 1100)])
    assert pooled.sigma[-1] == pytest.approx(math.hypot(0.03, pooled.drift))
    assert pool([Point(C, None, C) for C in (1, 2, 4)]).data.error is None


def test_levels_of_which_as_many_were_in_flight_count_by_their_concurrency() -> None:
    """A server that runs 50 requests and no more."""
    pooled = pool([Point(C, n, x) for C, n, x in zip([8, 16, 32, 64], [8, 16, 50, 50], [7, 12, 16, 15], strict=True)])
    assert np.exp(pooled.data.u) == pytest.approx([8, 16, 32, 64])


@pytest.mark.parametrize(
    ("X", "upright"),
    [
        ([100, 195, 380, 740, 1300, 1310, 700, 650], 6),
        ([100, 195, 380, 740, 1300, 1310, 1300, 130], 7),
        ([100, 195, 380, 740, 1300, 1290, 1250, 1200], 8),  # a mild fall
        ([100, 195, 380, 90, 1300, 1310, 1305, 1300], 8),  # one level that is off
        ([100, 195, 380, 740, 13000, 1310, 1305, 1300], 8),  # one that is far above
    ],
)
def test_levels_have_collapsed_only_where_they_end_the_ramp(X: list[float], upright: int) -> None:
    assert pool([Point(2**i, None, x) for i, x in enumerate(X)]).upright == upright


def test_an_assumed_error_lies_between_3_and_8_percent_and_a_measured_one_is_as_it_is() -> None:
    errors = [(0.94, True), (0.001, True), (0.05, True), (0.2, False), (0.01, False)]
    levels = [Point(2**i, None, 100.0, se=100 * e, assumed=a) for i, (e, a) in enumerate(errors)]
    assert pool(levels).sigma == pytest.approx([0.08, 0.03, 0.05, 0.2, 0.01])


def test_a_level_whose_window_saw_hardly_any_of_its_requests_is_no_point() -> None:
    """An assumed error is 1/√requests: 1 and 60 requests of 192 in flight, and an error that was measured."""
    seen = [Point(192, None, 2139.0, se=2139.0 / math.sqrt(n), assumed=True) for n in (1, 60)]
    assert [len(pool([point]).N) for point in seen] == [0, 1]
    assert len(pool([Point(192, None, 2139.0, se=2139.0)]).N) == 1
