"""How lengths in tokens are distributed: what each law is, and how one length is drawn from it. Pure.

Every law is its quantile function: a draw is the quantile of one random number. A length is a whole number of tokens,
at least 1. A normal and a lognormal distribution are cut off at their bounds (what lies outside is drawn again, not
moved to the bound) and then rounded; `mean`, `quantile` and `cdf` are those of what is drawn.

Left out: how lengths of prompt and answer belong together (`workload.shape`), and reading the text (`units.lengths`).
"""

from __future__ import annotations

import itertools
import math
import random
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from functools import cached_property
from statistics import NormalDist

import msgspec

from harness.base import units
from harness.base.units import MOST_TOKENS

_RARE = 1e-9  # share of the draws on either side that a mean may leave out
_FEW = 2_000  # steps of a mean: with so many, their length does not move it by 0.001
_LEAST, _GREATEST = 1e-300, 1 - 2**-53  # bounds of a probability whose quantile is finite


class _Law(msgspec.Struct, frozen=True, tag_field="kind", dict=True):
    """A distribution of lengths, by its quantiles."""

    def quantile(self, p: float) -> int:
        """Return the smallest length that a share `p` of the draws, 0 to 1, does not pass."""
        raise NotImplementedError

    def draw(self, rng: random.Random) -> int:
        """Draw one length; takes one random number."""
        return self.quantile(rng.random())

    def cdf(self, n: float) -> float:
        """Return the share of the draws up to `n` tokens."""
        raise NotImplementedError

    def mean(self) -> float:
        """Return the mean of the draws, in tokens."""
        raise NotImplementedError


class Fixed(_Law, frozen=True, tag="fixed"):
    """Always the same length."""

    tokens: int

    def __str__(self) -> str:
        return str(self.tokens)

    def quantile(self, p: float) -> int:
        return self.tokens

    def cdf(self, n: float) -> float:
        return float(n >= self.tokens)

    def mean(self) -> float:
        return self.tokens


class Range(_Law, frozen=True, tag="range"):
    """Every length from `low` to `high`, both included, as often as any other.

    >>> Range(1, 6).mean(), Range(1, 6).cdf(2) * 6
    (3.5, 2.0)
    """

    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.low}..{self.high}"

    def quantile(self, p: float) -> int:
        return self.low + max(0, math.ceil(p * (self.high - self.low + 1)) - 1)

    def cdf(self, n: float) -> float:
        return min(1.0, max(0.0, (math.floor(n) - self.low + 1) / (self.high - self.low + 1)))

    def mean(self) -> float:
        return (self.low + self.high) / 2


class _Bounded(_Law, frozen=True):
    """A normal distribution, cut at its bounds and rounded to tokens, on a scale of its own.

    `_of` turns a length into a value on that scale, `_back` turns it back.
    """

    nominal: float  # mean, before what is out of bounds is left out
    sd: float  # standard deviation, before what is out of bounds is left out
    low: int = 1
    high: int = MOST_TOKENS

    def quantile(self, p: float) -> int:
        law, below, mass = self._cut
        length = self._back(law.inv_cdf(min(max(below + p * mass, _LEAST), _GREATEST)))
        return min(max(math.ceil(length - 0.5), self.low), self.high)

    def cdf(self, n: float) -> float:
        if n < self.low:
            return 0.0
        law, below, mass = self._cut
        return min(1.0, max(0.0, (law.cdf(self._of(math.floor(n) + 0.5)) - below) / mass))

    def mean(self) -> float:
        """Return the sum over n of the share above n, in tokens; in steps of several where lengths lie far apart."""
        low, high = self.quantile(_RARE), self.quantile(1 - _RARE)
        step = (high - low) // _FEW | 1  # odd, so that its middle is a length
        return low + step * math.fsum(1 - self.cdf(n) for n in range(low + step // 2, high, step))

    @cached_property
    def _cut(self) -> tuple[NormalDist, float, float]:
        """Return the normal distribution, and the shares of it that lie below the bounds and between them."""
        law = self._law()
        below = law.cdf(self._of(self.low - 0.5))
        return law, below, law.cdf(self._of(self.high + 0.5)) - below

    def _law(self) -> NormalDist:
        return NormalDist(self.nominal, self.sd)

    def _of(self, length: float) -> float:
        return length

    def _back(self, x: float) -> float:
        return x


class Normal(_Bounded, frozen=True, tag="normal"):
    """A normal distribution within its bounds, rounded."""

    def __str__(self) -> str:
        return f"{_plain(self.nominal)}±{_plain(self.sd)}{_bounds(self.low, self.high)}"


class Lognormal(_Bounded, frozen=True, tag="lognormal"):
    """A lognormal distribution within its bounds, rounded.

    Mean and standard deviation are those of the lengths themselves: their logarithms have the variance
    σ² = ln(1 + (sd / nominal)²) and the mean ln(nominal) - σ² / 2.
    """

    def __str__(self) -> str:
        return f"lognormal({_plain(self.nominal)},{_plain(self.sd)}){_bounds(self.low, self.high)}"

    def _law(self) -> NormalDist:
        variance = math.log1p((self.sd / self.nominal) ** 2)
        return NormalDist(math.log(self.nominal) - variance / 2, math.sqrt(variance))

    def _of(self, length: float) -> float:
        return math.log(length)

    def _back(self, x: float) -> float:
        return math.exp(x)


class Empirical(_Law, frozen=True, tag="empirical"):
    """Lengths as often as each was seen, or as its weight says.

    >>> few = Empirical((100, 900), (3.0, 1.0))
    >>> few.mean(), few.quantile(0.5), few.cdf(500)
    (300.0, 100, 0.75)
    """

    values: tuple[int, ...]  # rising
    weights: tuple[float, ...]  # above 0, one a value

    def __str__(self) -> str:
        return ",".join(f"{n}:{_plain(weight)}" for n, weight in zip(self.values, self.weights, strict=True))

    def quantile(self, p: float) -> int:
        return self.values[min(bisect_left(self._upto, p * self._upto[-1]), len(self.values) - 1)]

    def cdf(self, n: float) -> float:
        i = bisect_right(self.values, n)
        return self._upto[i - 1] / self._upto[-1] if i else 0.0

    def mean(self) -> float:
        return math.fsum(n * weight for n, weight in zip(self.values, self.weights, strict=True)) / self._upto[-1]

    @cached_property
    def _upto(self) -> tuple[float, ...]:
        """Return the weight of each length and all that are shorter."""
        return tuple(itertools.accumulate(self.weights))


Distribution = Fixed | Normal | Range | Lognormal | Empirical


def parse(text: str | int, place: str = "") -> Distribution:
    """Return the distribution of lengths that a text or a number describes; parse(str(it)) gives the same again.

    >>> parse("512+-64"), str(parse("lognormal(1k,300) in 1..4096"))
    (Normal(nominal=512.0, sd=64.0, low=1, high=10000000), 'lognormal(1000,300) in 1..4096')
    """
    made: Distribution = msgspec.convert(units.lengths(text, place), Distribution)
    return made


def observed(lengths: Iterable[int]) -> Empirical:
    """Return the empirical distribution of observed lengths, each at least 1, at least one of them.

    >>> str(observed([7, 7, 40]))
    '7:2,40:1'
    """
    counts = Counter(lengths)
    values = tuple(sorted(counts))
    return Empirical(values, tuple(float(counts[n]) for n in values))


def _plain(number: float) -> str:
    """Return a number as text without an exponent; nothing of it is lost."""
    return f"{Decimal(str(number)):f}".removesuffix(".0")


def _bounds(low: int, high: int) -> str:
    """Return the bounds as text; "" if they are the usual ones."""
    return "" if (low, high) == (1, MOST_TOKENS) else f" in {low}..{high}"
