"""Whether a level had the load that it was to have: what failed, what was sent late, what the server did not answer."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from harness.analysis.rules import Finding, Purpose, rule
from harness.analysis.stats import incomplete_beta
from harness.analysis.window import REQUESTS_A_SLOT, Backlog, Little
from harness.data.judgement import DOUBT, INVALID, NOTE
from harness.data.levels import LevelSummary
from harness.data.record import Level, LevelNote
from harness.data.views import ClientView
from harness.spec.traffic import Traffic
from harness.spec.work import Unit

ERROR_RATE = 0.01  # share of failed requests above which, beyond doubt, a level is no point of the curve
_UNLIKELY = 0.025  # chance of so many failures at that share, below which more fail beyond doubt
IN_FLIGHT = 0.95  # share of the requests in flight that a level is to have; below it there is no plateau
_AT_QUOTA = 0.9  # share of the client's quota, from which on it bounds the requests
HARM = 0.02  # share of the slots' time left empty by the client, above which the load is not the requested one
CPU, MERGED = 0.80, 0.05  # above these the client was short of time
NEAR, TOO_NEAR = 0.50, 0.80  # share of the calibrated ceiling, and of one that is a lower bound: from here a doubt
PROCESSOR_IDLE = 0.5  # processors of this machine, below which all count as busy
WITHHELD = 0.05  # share of the time without a processor, above which that is the cause
KEPT, LATE_S = 0.98, 0.010  # an open loop sends at least this share of its rate, half of it no later than this
_OVERLOAD = (Purpose.MISS,)  # a limit that is missed for it is missed


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a level, and those of its records that its summary does not contain."""

    s: LevelSummary
    level: Level
    conditions: Conditions
    little: Little
    backlog: Backlog | None = None  # how the queue of an open loop grows, if that is known
    late: LevelSummary | None = None  # the summary with the percentiles that late reads have spoilt
    events_at_once: float | None = None  # events that the server sends at once; None: one
    median_lag_s: float | None = None
    hung: int = 0  # requests in flight that got nothing
    failing_since_s: float | None = None  # seconds into the level, from which on every request failed
    hung_at: str = ""  # the replica that all of them went to; "": there is one server, or they went to several
    silence_s: float | None = None  # seconds without a token, though answers streamed
    usage_tokens: float = 0.0  # output tokens of the requests whose usage the server counted

    @property
    def at(self) -> float | None:
        return self.s.load

    @property
    def notes(self) -> tuple[str, ...]:
        return self.level.notes

    @property
    def rising(self) -> bool:
        """Whether requests pile up, so that there is no steady state."""
        return self.backlog is not None and self.backlog.rising


def too_many_fail(error_rate: float | None, requests: int | None) -> bool:
    """Return whether surely more than 1 % fail: by the low end of the exact 95 % interval; by the share without n.

    That end (Clopper and Pearson 1934) is above 1 % where 1 % would make so many failures with a chance below 2.5 %.

    >>> too_many_fail(1 / 8, 8), too_many_fail(2 / 8, 8), too_many_fail(1 / 60, 60), too_many_fail(3 / 60, 60)
    (False, True, False, True)
    """
    if not error_rate:
        return False
    if not requests:
        return error_rate > ERROR_RATE
    failed = round(error_rate * requests)
    return incomplete_beta(failed, requests - failed + 1, ERROR_RATE) < _UNLIKELY


def answered(level: LevelSummary) -> int | None:
    """Return the requests by which a level's error rate is judged: those that were not cut or given up."""
    return round(level.errors / level.error_rate) if level.error_rate else None


@rule(Measured, INVALID, brief="more than 1 % of the requests failed{}", excused_for=_OVERLOAD)
def errors_above_1_percent(level: Measured) -> Finding | None:
    """More than 1 % of the requests failed, by the lower end of the exact 95 % interval (Clopper and Pearson 1934)."""
    s, whole = level.s, answered(level.s)
    if not too_many_fail(s.error_rate, whole):
        return None
    assert s.error_rate is not None
    kinds = ", ".join(f"{kind} {n}" for kind, n in s.errors_by_type.items())
    return Finding(
        f"{s.errors} of {whole} requests failed ({s.error_rate:.1%}): {kinds}",
        "find out what the server refuses; its throughput here is not that of the requested load",
    )


# ---- the load generator -------------------------------------------------------------------------------------


def read_late(level: LevelSummary) -> bool:
    """Return whether the load generator read answers too late for their gaps: more than half of the mean ITL."""
    delay, itl = level.client.read_delay_p99_s, level.itl_s.mean
    return delay is not None and itl is not None and delay > itl / 2


def sent_late(client: ClientView) -> bool:
    """Return whether late sends of the load generator lowered throughput: slots stood empty for more than HARM of time.

    docs/method.md, Limits of the client.
    """
    return client.late_fraction is not None and client.late_fraction > HARM


@rule(Measured, INVALID, brief="--max-rps holds requests back{}", excused_for=(Purpose.TOP,))
def held_back(level: Measured) -> Finding | None:
    """`--max-rps` held requests back, and lowered throughput by more than 2 %."""
    if not _is_held(level):
        return None
    return Finding(
        f"--max-rps {level.conditions.max_rps:g} held requests back: slots were without a request for "
        f"{level.s.client.late_fraction or 0.0:.1%} of the time",
        "the server could do more: raise --max-rps, or ask for the rate that it is to serve with --rate",
    )


def _is_held(level: Measured) -> bool:
    """Return whether as many requests began as the quota of the client allows, and slots waited for it."""
    quota, began = level.conditions.max_rps, level.s.requests / level.s.window_s
    return quota is not None and sent_late(level.s.client) and began >= _AT_QUOTA * quota


@rule(Measured, INVALID, brief="the load generator sent late{}: what else runs here?", excused_for=(Purpose.TOP,))
def client_limited(level: Measured) -> Finding | None:
    """The load generator sent late, and lowered throughput by more than 2 %."""
    client = level.s.client
    if client.late_fraction is None or not sent_late(client) or _is_held(level):
        return None
    cause, remedy = remedy_for(client)
    because = f"; {cause}" if cause else ""
    return Finding(
        f"the load generator sent late: slots were without a request for {client.late_fraction:.1%} of the time "
        f"(limit {HARM:.0%}), so the load was lower than requested{because}",
        remedy if cause else f"{remedy}, and whether --max-rps holds requests back",
    )


@rule(Measured, DOUBT, brief="the load generator was short of time{}")
def client_busy(level: Measured) -> Finding | None:
    """The load generator was short of time; throughput stands.

    Being near a calibrated ceiling that is only a lower bound matters less.
    """
    reasons, client, lower_bound = [], level.s.client, level.conditions.ceiling_is_lower_bound
    share, delay, itl = client.ceiling_fraction, client.read_delay_p99_s or 0.0, level.s.itl_s.mean or 0.0
    if share is not None and share >= (TOO_NEAR if lower_bound else NEAR):
        reasons.append(f"at {share:.0%} of {'what it is known to follow' if lower_bound else 'its ceiling'}")
    if client.cpu_fraction is not None and client.cpu_fraction > CPU:
        reasons.append(f"{client.cpu_fraction:.0%} of its processor used")
    if client.merged_fraction is not None and client.merged_fraction > MERGED:
        reasons.append(f"{client.merged_fraction:.1%} of the events read late, together with others")
    if read_late(level.s):
        reasons.append(f"read delay p99 {delay * 1e3:.3g} ms (ITL {itl * 1e3:.3g} ms)")
    if not reasons:
        return None
    cause, remedy = remedy_for(client)
    busy = f"the load generator was busy: {', '.join(reasons)}"
    stands = "" if client.late_fraction is None or sent_late(client) else "; throughput stands"
    return Finding(f"{busy}; {cause}{stands}" if cause else busy + stands, remedy)


def remedy_for(client: ClientView) -> tuple[str, str]:
    """Return (why the load generator was slow, "" if not known; what to do about it), by its use of the processors."""
    withheld = (
        (client.throttled_fraction, "held at this container's CPU limit", "raise the container's CPU limit"),
        (client.steal_fraction, "given to others by the hypervisor", "run the client on a host of its own"),
        (
            client.waited_fraction,
            "taken by another process on its core",
            "give the client cores of its own with taskset",
        ),
    )
    for share, what, remedy in withheld:
        if (share or 0.0) > WITHHELD:
            return f"{share:.0%} of its processor's time was {what}", remedy
    busiest = max(client.cpu_fraction or 0.0, client.ceiling_fraction or 0.0)
    if busiest > CPU and client.idle_processors is not None and client.idle_processors < PROCESSOR_IDLE:
        return "all processors of this machine were busy", "run the client on a larger machine"
    if busiest > CPU:
        return "too few workers", "give it more workers: --workers"
    if (client.ceiling_fraction or 0.0) >= NEAR:
        return "", "give it more workers: --workers"
    return "", "see what else runs on this machine"


@rule(
    Measured,
    INVALID,
    brief="fewer requests in flight than asked for{}",
    excused_for=(Purpose.POINT, Purpose.TOP, Purpose.MISS),
)
def in_flight_low(level: Measured) -> Finding | None:
    """On average fewer than 95 % of the level's slots had a request in flight, though no pause was asked for. The level
    stays a point of the curve, but does not show a plateau.

    The curve is fitted against what was measured in flight.
    """
    s = level.s
    if level.conditions.pauses or LevelNote.COUNTED in level.notes:
        return None
    if s.in_flight is None or s.concurrency is None or s.in_flight >= IN_FLIGHT * s.concurrency:
        return None
    return Finding(
        f"{s.in_flight:.1f} of {s.concurrency} requests were in flight "
        f"({s.in_flight / s.concurrency:.0%}; a plateau needs {IN_FLIGHT:.0%})",
        "look for refused requests or a slow client, or make the requests longer",
    )


@rule(Measured, INVALID, brief="requests left too late{}: raise --max-concurrency")
def schedule_not_kept(level: Measured) -> Finding | None:
    """An open loop did not send as many requests as were due, or sent half of them late
    ([Open loop](method.md#7-open-loop)).
    """
    s, traffic = level.s, level.conditions.traffic
    if s.rate is None or s.offered_requests_per_s is None or level.rising:  # those that could not be sent wait as well
        return None
    reasons = []
    start, end = level.level.window
    due = traffic.expected(s.rate, start - level.level.begin_s, end - level.level.begin_s)
    missed = due - s.offered_requests_per_s * s.window_s
    # By chance alone a Poisson count is below its mean by more than three times its root once in 700 windows; a count
    # of bursts scatters as much more as their gaps do. How many of a trace are due only its dataset says.
    few = missed > (1 - KEPT) * due and missed > 3 * math.sqrt(due / min(1.0, traffic.shape))
    if few and traffic.speed is None:
        offered, wanted = s.offered_requests_per_s, due / s.window_s
        reasons.append(f"{offered:.4g} of {wanted:.4g} requests per second were due")
    if level.median_lag_s is not None and level.median_lag_s >= LATE_S:
        reasons.append(f"half of the requests left {level.median_lag_s * 1e3:.3g} ms late or later")
    if not reasons:
        return None
    return Finding(
        "the schedule was not kept: " + "; ".join(reasons), "raise --max-concurrency or --workers, or lower the rate"
    )


@rule(Measured, INVALID, brief="no request was due in the window{}: hold it longer")
def nothing_due(level: Measured) -> Finding | None:
    """No request of an open loop was due in the window: the level says nothing of the server."""
    if level.s.rate is None or level.s.requests:
        return None
    return Finding(
        f"no request was due in the window of {level.s.window_s:.3g} s",
        "hold the level longer with --level-seconds, or raise the rate; a trace goes faster with 'trace(speed=60)'",
    )


# ---- the server ---------------------------------------------------------------------------------------------


@rule(Measured, INVALID, brief="the rate is above what the server sustains{}", excused_for=_OVERLOAD)
def unstable(level: Measured) -> Finding | None:
    """Requests of an open loop come faster than the server answers them."""
    if level.backlog is None or not level.backlog.rising:
        return None
    return Finding(
        f"requests in flight rose by {level.backlog.slope:.3g} a second over the whole window: the rate is above what "
        "the server sustains, and there are no latencies of a steady state",
        "lower the rate; offered and completed requests per second stand",
    )


@rule(Measured, INVALID, NOTE, brief="in flight and Little's law differ{}")
def little_mismatch(level: Measured) -> Finding | None:
    """Requests in flight as counted and by Little's law differ; a note where a slot had too few requests."""
    little = level.little
    if level.rising or not little.mismatch or little.apart is None:
        return None
    message = (
        f"{little.counted:.2f} requests counted in flight, {little.by_law:.2f} by Little's law "
        f"({little.apart:.0%} apart)"
    )
    if not little.enough:
        few = f", with fewer than {REQUESTS_A_SLOT} requests a slot"
        return Finding(message + few, "hold the level longer before reading much into it", NOTE)
    return Finding(
        message, "the level was not in steady state, or times were lost: hold it longer and look at the records"
    )


@rule(Measured, INVALID, brief="nobody answered{}: see the server's log")
def stalled(level: Measured) -> Finding | None:
    """The server refused connections, or requests waited and no token came for long
    ([Nobody answers](method.md#nobody-answers)).
    """
    if LevelNote.REFUSED in level.notes:
        message = "the server was gone: connections were refused, which ended the level"
    elif LevelNote.STALLED in level.notes:
        waiting = f"{level.hung or level.s.in_flight or 0:.0f} requests were waiting"
        message = f"no token arrived for so long that the level was ended; {waiting}{_all_at(level)}"
    else:
        return None
    return Finding(message, "see the server's log; measure again once it answers")


@rule(Measured, INVALID, brief="no request succeeded any more{}: see the server's log", excused_for=_OVERLOAD)
def fails_to_its_end(level: Measured) -> Finding | None:
    """From some moment on every request failed, more of them than by chance. Refusals of a quota (429) do not count."""
    if level.failing_since_s is None or {LevelNote.REFUSED, LevelNote.STALLED} & {*level.notes}:
        return None
    kinds = ", ".join(f"{kind} {n}" for kind, n in level.s.errors_by_type.items())
    message = f"no request that began later than {level.failing_since_s:.3g} s into the level succeeded ({kinds})"
    return Finding(message, "see the server's log; measure again once it answers")


def _all_at(level: Measured) -> str:
    return f", all at {level.hung_at}" if level.hung_at else ""


@rule(Measured, DOUBT, brief="requests hung{}: their slots did no work")
def hung(level: Measured) -> Finding | None:
    """Requests were in flight for half of the window or more and got no token; in flight and the rates are those of the
    others.
    """
    if not level.hung:
        return None
    return Finding(
        f"{level.hung} {'request' if level.hung == 1 else 'requests'} hung{_all_at(level)}: in flight much longer than "
        "any that succeeded; the figures are those of the others",
        "see the server's log for requests that never end; --request-timeout gives them up earlier",
    )


@rule(Measured, DOUBT, brief="no token came for seconds{}: --verbose says how long")
def silence(level: Measured) -> Finding | None:
    """An answer streamed, and no token came for more than a second and five times what is usual."""
    if level.silence_s is None:
        return None
    return Finding(
        f"no token came for {level.silence_s:.3g} s of the window of {level.s.window_s:.3g} s, though answers streamed",
        "see what the server did then; throughput without that time was higher",
    )


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """What was requested of a level and what served it; by default nothing is known."""

    unit: Unit = Unit.OUTPUT_TOKENS  # what throughput counts
    inputs: int = 1  # documents of a request
    gpus: int | None = None
    replicas: int = 1  # engines that serve side by side
    slo: Mapping[str, float] = {}  # seconds a request by figure: ttft, ttfat, tpot or itl, icl (its stall), e2e
    input_tokens: float | None = None  # a request, as requested
    template_tokens: float = 0.0  # tokens that every prompt begins with, part of the prompt tokens
    output_tokens: float | None = None  # a request, as requested
    streams: bool = True  # whether answers are to come piece by piece
    expected_hit_rate: float = 0.0  # share of the prompt tokens that a prefix cache is to serve, as requested
    images: int = 0  # in each request
    image_bytes: int = 0  # bytes of a request's images together
    pauses: bool = False  # slots rest by request: they think, or wait for others of their batch or task
    max_rps: float | None = None  # the client's quota, requests per second
    counted: bool = False  # a number of requests was asked for, all of them at one load
    precision: float | None = None  # half-width at which a window might end; None: it had a length of its own
    ceiling: float | None = None  # events per second that the load generator can process
    ceiling_is_lower_bound: bool = False
    traffic: Traffic = Traffic()  # the arrivals of an open loop
