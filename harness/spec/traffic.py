"""How an open loop's requests arrive, as a scenario writes it: how the gaps scatter, and how the rate goes over time.

    poisson, constant, gamma(K)                       at the level's rate
    series(0s:10,60s:40)                              10 a second for a minute, 40 for the next, and again
    wave(period=60s,low=5,high=20)                    a sine that begins at its low, in 720 steps
    spike(period=120s,for=10s,low=5,high=50)          once a period, in its middle or at=30s
    trace, trace(speed=2)                             the times of a dataset's rows, twice as fast

A series lasts as long after its last rate as before it, or until a time that ends it: `series(0s:10,60s:40,90s)`. Gaps
are Poisson's; `gaps=constant` or `gaps=gamma(K)` in the brackets makes them others. Series, wave, spike and trace have
rates of their own. A level's rate scales them: it is their mean over a period.

Λ(t), the integral of the rate, is how many requests are expected until t. A process of one request a second becomes one
of that rate where its request at s is due at Λ⁻¹(s) (inversion; E. Çinlar, Introduction to Stochastic Processes, 1975).
Pure, and without chance: `workload.arrivals` draws the gaps.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise

import msgspec

from harness.base import units
from harness.base.errors import HarnessError, nearest

LEAST_SHAPE = 0.001  # smallest shape of a gamma distribution: burstier gaps are 0 to the clock, and never end
MOST_RATES = 10_000  # most rates of a series
_STEPS = 720  # steps of a wave: the rate of a step is within 0.5 % of the sine's range
_EXAMPLES = {
    "poisson": "poisson",
    "constant": "constant",
    "gamma": "gamma(0.25)",
    "series": "series(0s:10,60s:40)",
    "wave": "wave(period=60s,low=5,high=20)",
    "spike": "spike(period=120s,for=10s,low=5,high=50)",
    "trace": "trace(speed=2)",
}
_GAPS = "poisson", "constant", "gamma"

_Keys = Mapping[str, Callable[[str, str], float]]  # reads the values in a kind's brackets, by name
_WAVE: _Keys = {"period": units.seconds, "low": units.number, "high": units.number}
_SPIKE: _Keys = {**_WAVE, "for": units.seconds, "at": units.seconds}
_TRACE: _Keys = {"speed": units.number}
_OPTIONAL = "at", "speed"


class Series(msgspec.Struct, frozen=True, dict=True):
    """Rates one after the other, and again from the first.

    >>> day = Series((0.0, 60.0), (10.0, 40.0), 120.0)
    >>> day.mean, day.until(90.0), day.due(1800.0), day.due(3000.0)
    (25.0, 1800.0, 90.0, 120.0)
    """

    starts: tuple[float, ...]  # start of each rate, seconds, rising; the first is 0
    rates: tuple[float, ...]  # requests per second
    period_s: float

    @property
    def mean(self) -> float:
        return self._counts[-1] / self.period_s

    @property
    def peak(self) -> float:
        return max(self.rates)

    @cached_property
    def _counts(self) -> tuple[float, ...]:
        """Return the requests until each rate's start, and until the end of the period; shape [rates + 1]."""
        lengths = (end - start for start, end in pairwise((*self.starts, self.period_s)))
        parts = (rate * length for rate, length in zip(self.rates, lengths, strict=True))
        return tuple(accumulate(parts, initial=0.0))

    def until(self, t: float) -> float:
        """Return the requests that are expected until t seconds: Λ(t)."""
        periods, rest = divmod(t, self.period_s)
        i = bisect_right(self.starts, rest) - 1
        return periods * self._counts[-1] + self._counts[i] + (rest - self.starts[i]) * self.rates[i]

    def due(self, s: float) -> float:
        """Return the time, in seconds, by which s requests are expected, Λ⁻¹(s); after any pause with rate 0."""
        counts = self._counts
        periods, rest = divmod(s, counts[-1])
        i = bisect_right(counts, rest) - 1
        return periods * self.period_s + self.starts[i] + (rest - counts[i]) / self.rates[i]


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """How an open loop's requests arrive. By default Poisson, at the level's rate all the time."""

    shape: float = (
        1.0  # K of the gamma distribution of the gaps: 1 is Poisson, inf even; the variance is 1/K of Poisson's
    )
    profile: Series | None = None  # rate over time; None: the level's, all the time
    speed: float | None = None  # speed of a trace; None: there is none

    @property
    def own_rate(self) -> float | None:
        """Return the mean requests per second where no level says another; None if a level or the trace says it."""
        return self.profile.mean if self.profile is not None else None

    @property
    def period_s(self) -> float | None:
        """Return the seconds after which the rate begins anew; None if it does not vary, or nobody knows how."""
        return self.profile.period_s if self.profile is not None else None

    @property
    def peak(self) -> float:
        """Return the highest rate over the mean."""
        return self.profile.peak / self.profile.mean if self.profile is not None else 1.0

    def expected(self, rate: float, start_s: float, end_s: float) -> float:
        """Return the requests that are due from start to end at a mean rate; seconds since the level began.

        >>> parse("series(0s:10,60s:40)").expected(25.0, 30.0, 90.0)
        1500.0
        """
        if self.profile is None:
            return rate * (end_s - start_s)
        return rate / self.profile.mean * (self.profile.until(end_s) - self.profile.until(start_s))

    def clock(self, rate: float) -> Callable[[float], float]:
        """Return a function that maps s, in a process with one request a second, to seconds at this mean rate.

        >>> parse("series(0s:10,60s:40)").clock(50.0)(1200.0)
        60.0
        """
        if self.profile is None:
            return lambda s: s / rate
        due, times = self.profile.due, rate / self.profile.mean
        return due if times == 1.0 else lambda s: due(s / times)


@lru_cache(maxsize=16)  # a level that runs asks for its own many times a second
def parse(text: str, place: str = "--arrivals") -> Traffic:
    """Return arrivals from the text that people write.

    >>> parse("gamma(0.25)").shape, parse("constant").shape, parse("trace(speed=2)").speed
    (0.25, inf, 2.0)
    >>> parse("spike(period=120s,for=10s,low=5,high=50)").profile
    Series(starts=(0.0, 55.0, 65.0), rates=(5.0, 50.0, 5.0), period_s=120.0)
    """
    name, parts = _named(text, _EXAMPLES, "arrivals", place)
    if name in _GAPS:
        return Traffic(shape=_shape(name, parts, place))
    if name == "trace":
        speed = _values(name, parts, _TRACE, place).get("speed", 1.0)
        _must(speed > 0, "speed is not above 0", name, place)
        return Traffic(speed=speed)
    gaps = [part.removeprefix("gaps=") for part in parts if part.startswith("gaps=")]
    _must(len(gaps) < 2, "gaps is given twice", name, place)
    shape = _shape(*_named(gaps[0], _GAPS, "gaps", place), place) if gaps else 1.0
    profile = _PROFILES[name]([part for part in parts if not part.startswith("gaps=")], place)
    return Traffic(shape=shape, profile=profile)


def _named(text: str, known: Collection[str], what: str, place: str) -> tuple[str, list[str]]:
    """Return (name, list of the arguments in the brackets behind it) of a text: 'gamma(0.25)' is 'gamma', ['0.25']."""
    name, bracket, rest = "".join(text.split()).partition("(")
    if name not in known:
        raise HarnessError(f"unknown {what} {text[:80]!r}", place=place, way_out=nearest(name, known))
    _must(not bracket or rest.endswith(")"), f"{text[:80]!r} has no closing bracket", name, place)
    return name, rest[:-1].split(",") if rest[:-1] else []


def _must(holds: bool, fact: str, name: str, place: str) -> None:
    """Raise HarnessError with the fact, and an example of the shape of that name, unless it holds."""
    if not holds:
        raise HarnessError(fact, place=place, way_out=f"write it like {_EXAMPLES[name]}")


def _shape(name: str, parts: Sequence[str], place: str) -> float:
    """Return the shape of the gamma distribution of the gaps: 1 for poisson, inf for constant, K for gamma(K)."""
    if name != "gamma":
        _must(not parts, f"{name} has no brackets", name, place)
        return math.inf if name == "constant" else 1.0
    _must(len(parts) == 1, "gamma has one number, its shape K", name, place)
    shape = units.number(parts[0], place)
    _must(shape >= LEAST_SHAPE, f"a shape of {parts[0]} is below {LEAST_SHAPE:g}", name, place)
    return shape


def _values(name: str, parts: Sequence[str], read: _Keys, place: str) -> dict[str, float]:
    """Return {key: value} from parts like key=value; raise HarnessError for an unknown, repeated or missing key."""
    values: dict[str, float] = {}
    for part in parts:
        key, _, value = part.partition("=")
        if key not in read:
            raise HarnessError(f"unknown {key[:80]!r} in {name}", place=place, way_out=nearest(key, read))
        _must(key not in values, f"{key} is given twice", name, place)
        values[key] = read[key](value, place)
    for key in read:
        _must(key in values or key in _OPTIONAL, f"{name} has no {key}", name, place)
    return values


def _series(parts: Sequence[str], place: str) -> Series:
    """Return the rates of series(0s:5,60s:20,120s), requests/s; without an end the last lasts like the one before."""
    _must(len(parts) <= MOST_RATES, f"more than {MOST_RATES:,} rates", "series", place)
    ends = parts[-1:] if parts and ":" not in parts[-1] else ()
    times, rates = [], []
    for part in parts[: len(parts) - len(ends)]:
        start, colon, rate = part.partition(":")
        _must(bool(colon), f"{part[:80]!r} has no rate", "series", place)
        times.append(units.seconds(start, place))
        rates.append(units.number(rate, place))
    _must(len(rates) > 1, "a series has two rates or more", "series", place)
    period = units.seconds(ends[0], place) if ends else 2 * times[-1] - times[-2]
    _must(times[0] == 0, "a series begins at 0s", "series", place)
    _must(all(a < b for a, b in pairwise([*times, period])), "the times of a series rise", "series", place)
    _must(any(rates), "a series has a rate above 0", "series", place)
    return Series(tuple(times), tuple(rates), period)


def _wave(parts: Sequence[str], place: str) -> Series:
    """Return a sine between low and high, from its low on, as steps; each has the sine's rate at the step's middle."""
    wave = _values("wave", parts, _WAVE, place)
    period, low, high = (wave[key] for key in ("period", "low", "high"))
    _must(period > 0, "a period is above 0", "wave", place)
    _must(low < high, "low is not below high", "wave", place)
    turns = [(i + 0.5) / _STEPS for i in range(_STEPS)]
    rates = tuple((low + high - (high - low) * math.cos(math.tau * turn)) / 2 for turn in turns)
    return Series(tuple(i * period / _STEPS for i in range(_STEPS)), rates, period)


def _spike(parts: Sequence[str], place: str) -> Series:
    """Return a spike as a series of rates: low, high, low; without the part that has no length at either end."""
    spike = _values("spike", parts, _SPIKE, place)
    period, lasts, low, high = (spike[key] for key in ("period", "for", "low", "high"))
    _must(0 < lasts < period, "a spike is shorter than its period, and longer than 0", "spike", place)
    _must(low < high, "low is not below high", "spike", place)
    at = spike.get("at", (period - lasts) / 2)
    _must(at + lasts <= period, "the spike ends behind its period", "spike", place)
    steps = [(0.0, low), (at, high), (at + lasts, low), (period, low)]
    kept = [step for step, after in pairwise(steps) if step[0] < after[0]]
    return Series(tuple(start for start, _ in kept), tuple(rate for _, rate in kept), period)


_PROFILES: dict[str, Callable[[Sequence[str], str], Series]] = {
    "series": _series, "wave": _wave, "spike": _spike,
}  # fmt: skip
