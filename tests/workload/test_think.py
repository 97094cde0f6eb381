"""Pauses of a closed loop: each a function of seed and number."""

import random
import statistics

import pytest

from harness.workload.arrivals import think_s


class Even:
    """Pauses between one and three seconds."""

    def draw(self, rng: random.Random) -> int:
        return rng.randint(1000, 3000)


def test_the_pause_behind_a_request_is_its_own_whichever_worker_asks_and_when() -> None:
    pauses = [think_s(Even(), 0, number) for number in range(2000)]
    assert pauses[::-1] == [think_s(Even(), 0, number) for number in reversed(range(2000))]
    assert pauses != [think_s(Even(), 1, number) for number in range(2000)]
    assert (min(pauses), max(pauses)) == (pytest.approx(1.0, abs=0.01), pytest.approx(3.0, abs=0.01))
    assert statistics.fmean(pauses) == pytest.approx(2.0, abs=0.05)
    # Neighbours are independent: their products have the product of their means.
    assert statistics.correlation(pauses[1:], pauses[:-1]) == pytest.approx(0.0, abs=0.06)
