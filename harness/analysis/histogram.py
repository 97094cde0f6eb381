"""Quantiles and means of what is known by the buckets of a histogram alone. Pure.

A server counts its observations in buckets with fixed bounds, and publishes how many there were so far. What a window
adds to each bucket is the histogram of the window.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from harness.analysis.stats import SAMPLES
from harness.data.summary import Spread

Buckets = Mapping[float, float]  # upper bound: observations up to there, and above the bound before
_LARGEST_POWER = 2.0**1023  # of two, that a float has


def quantile(buckets: Buckets, q: float) -> float | None:
    """The value that a share q of the observations does not pass, by linear interpolation inside its bucket.

    With n observations the quantile has rank r = q n. It lies in the first bucket (a, b] up to whose end r of them
    come: below of them before a, k inside it, so that x = a + (b − a)(r − below)/k. The lowest bucket begins at 0.
    None where there are no observations, or where it lies in the bucket without an end: only its start is known.

    Ten observations, 2 up to .3, 6 more up to .5, and 2 more up to .8: the median has rank 5, the third of the six
    in the second bucket, .3 + .2 · 3/6 = .4; p95 has rank 9.5, .5 + .3 · 1.5/2 = .725.

    >>> ten = {0.3: 2, 0.5: 6, 0.8: 2, math.inf: 0}
    >>> round(quantile(ten, 0.5), 6), round(quantile(ten, 0.95), 6), quantile({1.0: 1, math.inf: 1}, 0.9)
    (0.4, 0.725, None)
    """
    rank, below, start = q * sum(buckets.values()), 0.0, 0.0
    for end, count in sorted(buckets.items()):
        if count > 0 and below + count >= rank:
            return start + (end - start) * (rank - below) / count if math.isfinite(end) else None
        below, start = below + count, end
    return None


def spread(buckets: Buckets, mean: float | None) -> Spread:
    """The distribution by its buckets; `max` is not known, a percentile only where n carries it (`stats.SAMPLES`)."""
    n = int(sum(buckets.values()))
    p50, p90, p95, p99 = (quantile(buckets, q / 100) if n >= SAMPLES[q] else None for q in (50, 90, 95, 99))
    return Spread(mean, p50, p90, p95, p99, None, n)


def shares(counts: Iterable[tuple[float, float]]) -> list[tuple[float | None, float]]:
    """Counts of numbers up to a bound as shares of few buckets: up to 0, 1, 2, 4, 8 …, None for one without an end.

    >>> shares([(0, 1), (3, 4), (4, 2), (100, 1)])
    [(0.0, 0.125), (4.0, 0.75), (128.0, 0.125)]
    >>> shares([(1e308, 1)])  # a number beyond the last power of two has a bucket of its own
    [(1e+308, 1.0)]
    """
    found: dict[float, float] = {}
    for bound, count in counts:
        end = 2.0 ** math.ceil(math.log2(bound)) if 0 < bound <= _LARGEST_POWER else bound
        found[float(end)] = found.get(end, 0.0) + count
    n = sum(found.values())
    return [(end if math.isfinite(end) else None, count / n) for end, count in sorted(found.items()) if count]
