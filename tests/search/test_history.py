"""A running count over a long level is bounded in memory, and thinned evenly."""

from __future__ import annotations

import itertools

import pytest

from harness.search import level
from harness.search.level import History


def filled(points: int) -> History:
    found = History()
    for i in range(points):
        found.add(0.05 * i, 10 * i)
    return found


def test_a_short_level_has_every_point() -> None:
    found = filled(100)
    assert (len(found.times), found.counts[-1]) == (100, 990)


@pytest.mark.parametrize("points", [17, 40, 100, 1001])
def test_a_long_one_has_points_at_even_distances_from_its_first_to_its_latest(
    points: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(level, "MOST_POINTS", 16)
    found = filled(points)
    assert len(found.times) <= 16
    assert (found.times[0], found.times[-1], found.counts[-1]) == (0.0, 0.05 * (points - 1), 10 * (points - 1))
    assert [round(c / t) for t, c in zip(found.times[1:], found.counts[1:], strict=True)] == [200] * (
        len(found.times) - 1
    )
    gaps = [after - before for before, after in itertools.pairwise(found.times)]
    assert max(gaps[:-1]) <= 2.1 * min(gaps[:-1])


def test_the_rate_of_the_last_second_is_known_of_a_long_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(level, "MOST_POINTS", 16)
    found = filled(1000)
    assert found.per_s(1.0) == pytest.approx(200.0)
    assert History().per_s(1.0) == 0.0 == filled(1).per_s(1.0)
