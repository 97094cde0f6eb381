"""How well draws fit the distribution that they are said to come from: the test of Kolmogorov and Smirnov."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence


def kolmogorov_smirnov(draws: Sequence[int], cdf: Callable[[int], float]) -> float:
    """p-value of whole numbers against a cumulative distribution; of a discrete one it is larger than it says."""
    counts, n, below, D = Counter(draws), len(draws), 0, 0.0
    for value in sorted(counts):
        before, below = below, below + counts[value]
        D = max(D, abs(before / n - cdf(value - 1)), abs(below / n - cdf(value)))
    return p_value(D, n)


def p_value(D: float, n: int) -> float:
    """p-value of the largest distance D between the distribution of n draws and the one that they are said to be from.

    With λ = D (√n + 0.12 + 0.11/√n): p = 2 Σ (-1)^(k-1) exp(-2 k² λ²) (Stephens 1970).
    """
    lam = D * (math.sqrt(n) + 0.12 + 0.11 / math.sqrt(n))
    if lam < 0.2:  # the series does not converge there, and p is 1
        return 1.0
    return min(1.0, 2 * math.fsum((-1) ** (k - 1) * math.exp(-2 * (k * lam) ** 2) for k in range(1, 101)))
