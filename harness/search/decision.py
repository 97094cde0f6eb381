"""What a search decides: a level in its role, or its end, with the reason; the sentences of all reasons are here.

A reason is an enumeration whose value is its sentence, with places for figures. Sentences are for people: result
folders also have the role of a level, and whether an end is a stop.
"""

from __future__ import annotations

import enum
import math
from typing import Any

import msgspec

from harness.data.record import Role

_APART = "; "  # parts of a reason
_STOPPED = "stopped: "  # the reason of a stop follows


class Reason(enum.StrEnum):
    """Why a level is measured."""

    FIXED = "given"
    SINGLE_STREAM = "the ramp begins with a single stream"
    DOUBLING = "doubling"
    FOURFOLD = "twice a doubling: the time allows for few levels"
    HALF_A_DOUBLING = "half a doubling: {last} gained nothing"
    INVALID = "{level} again: the level was invalid"
    STILL_RISES = "throughput still rises at {last}: up to {level}"
    FEW_LEVELS = "only {levels} levels so far: {level} lies near the bend"
    LITTLE_TIME = "{left:.3g} s are left: {level} tells whether there is a plateau"
    FALLS_AGAIN = "{level} again: throughput seems to fall past the knee"
    CONTROL = "{level} again: whether the server is as it was"
    WAITS = "requests wait at {load:g}: {level} tells how many are served at once"
    FAR = "far above the knee: whether throughput falls at {level}"
    HIGHER = "the knee lies below {bound:.3g} with {chance:.0%} only: up to {level}"
    PREDICTED = "{known}: predicted at {hinge:.3g}"
    INFORMATION = "{known}: {level} tells most per second"
    SLO_UNRESOLVED = "{level:g} again: whether it meets the SLO is unresolved"
    SLO_UNDECIDED = "{level:g} for longer: enough requests to decide the SLO"
    SLO_MET = "the SLO is still met at {met:g}: doubling"
    SLO_BETWEEN = "the SLO is met at {met:g} and not at {missed:g}: {level:g} lies between"
    ONE_IN_FLIGHT = "the search begins with about one request in flight"
    FIRST_RATE = "begin"
    RATE_MET = "{met:g} requests per second are met: doubling"
    RATE_MISSED = "{missed:g} requests per second are not met: half of it"
    REPLICA_STOPPED = "{level} again, while a replica is stopped"
    SOAK = "soak at {share:.0%} of {what}"
    PROMPT_LENGTH = "prefill probe: prompts of {tokens:,} tokens, one request in flight"


class End(enum.StrEnum):
    """Why a search ends, or a part of it."""

    ALL_MEASURED = "all given {loads} are held"
    SOAKED = "the soak is over"
    QUICK = "--quick: the first pass has an answer, a {state} one"
    FLAT = "throughput rose by less than {share:.0%} per doubling, twice"  # the first pass's, as are the next two
    NO_GAIN = "two levels above {best} gained nothing on it"
    WAITING = "requests wait from {load:g} on"
    CEILING = "{bar}"
    SLO_PASSED = "the SLO is missed at {last}"  # the first pass's
    SLO = "{edge}"
    SLO_STOPPED = "{edge}; {why}"


class Stop(enum.StrEnum):
    """Why a search ends before all is known; the end is shown at once, and as a remark in the report."""

    STALLED = "the server stalled at {levels} levels in a row"
    DEAD = "nobody has answered since {since_s:.1f} s into the run"
    FAILED = "{failure}"
    TOO_SLOW = "{ttft}"
    BUDGET = "{bound}"
    NOTHING_ALLOWED = "{bar}"
    FEW_LEVELS = "a knee needs {needed} valid levels, there are {valid}; {bar}"
    MANY_LEVELS = "{levels} levels were measured after the climb; {found}"
    FOUND = "{found}"
    OUT_OF_REACH = "{found}; {bar}"
    NOTHING_HELPS = "{found}; {why}"


class Part(enum.StrEnum):
    """Parts of several sentences: what forbids more levels, and what is known so far."""

    HIGHEST = "--max-concurrency {concurrency} is reached"
    TTFT = "TTFT p99 of {ttft:.3g} s at {concurrency} is past {bound:g} s"
    IN_FLIGHT = "only {in_flight:.3g} were in flight at {concurrency}"
    FAILED = "{error_rate:.1%} of the requests failed at {concurrency} in flight"
    FAILED_RATE = "{error_rate:.1%} of the requests failed at {rate:g} requests per second"
    SPENT = "nothing is left to spend"
    LEVELS = "{levels} levels were measured"
    RISES = "throughput still rises at {concurrency:g}"
    KNEE = "the 95 % interval of the knee {hinge}, that of the plateau {plateau}{past}"
    SEATS = "the server serves {seats:.3g} at once"
    BETWEEN = "the knee lies between {low:.3g} and {high:.3g} (95 %)"
    ABOVE = "the knee lies above {low:.3g} (95 %)"
    NO_SLO = "no level says anything about the SLO"
    SLO_MET = "the SLO is {meets} up to {met:g} {unit}"
    SLO_NEVER = "the SLO is {how} even at {missed:g} {unit}"
    SLO_BETWEEN = "the SLO is {meets} up to {met:g} {unit} and {how} at {missed:g}"

    def words(self, **figures: Any) -> str:
        return self.value.format(**figures)


class Decision(msgspec.Struct, frozen=True):
    """The next level, or neither concurrency nor rate and the search is over; always with the reason in words."""

    why: Reason | End | Stop
    reason: str
    concurrency: int | None = None
    rate: float | None = None
    role: Role = Role.REFINEMENT
    window_s: float | None = None  # seconds of window that it needs; None: by its role

    @property
    def over(self) -> bool:
        return self.concurrency is None and self.rate is None

    @property
    def stopped(self) -> bool:
        """Whether the search ended before all was known."""
        return isinstance(self.why, Stop)

    @property
    def cause(self) -> str:
        """The reason alone, as a part of another sentence."""
        return self.reason.removeprefix(_STOPPED)


def measure(concurrency: int, why: Reason, role: Role = Role.REFINEMENT, /, **figures: Any) -> Decision:
    """Return the decision to measure a level of this concurrency next, with its reason in words.

    >>> measure(8, Reason.INVALID).reason
    '8 again: the level was invalid'
    """
    return Decision(why, why.value.format(level=concurrency, **figures), concurrency, role=role)


def measure_rate(rate: float, why: Reason, role: Role = Role.SLO, /, **figures: Any) -> Decision:
    """A level of a rate in requests per second comes next."""
    return Decision(why, why.value.format(level=rate, **figures), rate=rate, role=role)


def end(why: End | Stop, /, **figures: Any) -> Decision:
    """The search is over, or a part of it."""
    return Decision(why, _STOPPED * isinstance(why, Stop) + why.value.format(**figures))


def both(knee: Decision, slo: Decision) -> Decision:
    """Return the decision to end a search for a knee and an SLO, with the reasons of both ends joined, each part once.

    >>> found = end(End.SLO_STOPPED, edge="the SLO is met up to 2 in flight", why="no time is left")
    >>> both(end(Stop.NOTHING_HELPS, found="the knee lies above 4", why="no time is left"), found).reason
    'stopped: the knee lies above 4; the SLO is met up to 2 in flight; no time is left'
    """
    of_slo = slo.reason.split(_APART)
    of_knee = [part for part in knee.reason.split(_APART) if part not in of_slo and not part.startswith("the SLO is ")]
    return msgspec.structs.replace(knee, reason=_APART.join([*of_knee, *of_slo]))


def not_enough(seconds: float | None, requests: int | None, need: str) -> str:
    """Return what is left of the bounds, as too little for `need`; "" if neither is bounded."""
    if seconds is not None and seconds < 0.5:
        return f"no time is left for {need}"
    if requests == 0:
        return f"no request is left for {need}"
    left = [f"{seconds:.3g} s"] if seconds is not None else []
    left += [f"{requests} request{'s' * (requests != 1)}"] if requests is not None else []
    return f"the {' and '.join(left)} left are too few for {need}" if left else ""


def interval_width(width: float) -> str:
    """Return the relative width of an interval, in words; an infinite one has no upper end."""
    return f"is {width:.0%} wide" if math.isfinite(width) else "has no upper end"
