"""The load generator: what it did not keep in flight, where it was short of time, what it read late."""

from __future__ import annotations

import math

from harness.data.judgement import Code, Verdict, doubt, invalid, note
from harness.data.record import Level
from harness.data.summary import ClientView, LevelSummary
from harness.spec.traffic import Traffic

IN_FLIGHT = 0.95  # of the requests in flight that a level is to have; below it there is no plateau
HARM = 0.02  # of the slots' time left empty by the client, above which the load is not the requested one
CPU, MERGED = 0.80, 0.05  # above these the client was short of time
NEAR, TOO_NEAR = 0.50, 0.80  # of the calibrated ceiling, and of one that is a lower bound: from here a doubt
WITHHELD = 0.05  # of the time without a processor, above which that is the cause
STAMPS_OFF = 0.05  # of a latency, by which the clock's stamps may be late
PERCENTILES = (50, 90, 95, 99)
KEPT, LATE_S = 0.98, 0.010  # an open loop sends at least this share of its rate, half of it no later than this


def client_limited(s: LevelSummary, client: ClientView) -> Verdict | None:
    """Invalid where the load generator has lowered throughput, and only there: it sent late.

    docs/method.md, Limits of the client.

    Records that are lost and requests that are not in flight have verdicts of their own.
    """
    if client.late_fraction is None or client.late_fraction <= HARM:
        return None
    cause, remedy = _remedy(client)
    because = f"; {cause}" if cause else ""
    return invalid(
        Code.CLIENT_LIMITED,
        f"the load generator sent late: slots were without a request for {client.late_fraction:.1%} of the time "
        f"(limit {HARM:.0%}), so the load was lower than requested{because}",
        remedy if cause else f"{remedy}, and whether --max-rps holds requests back",
        s.load,
    )


def client_busy(s: LevelSummary, client: ClientView, lower_bound: bool = False) -> Verdict | None:
    """Where the load generator was short of time; throughput stands.

    `lower_bound`: its calibrated ceiling is only a lower bound, so being near it matters less.
    """
    reasons = []
    share, delay, itl = client.ceiling_fraction, client.read_delay_p99_s, s.itl_s.mean
    if share is not None and share >= (TOO_NEAR if lower_bound else NEAR):
        reasons.append(f"at {share:.0%} of {'what it is known to follow' if lower_bound else 'its ceiling'}")
    if client.cpu_fraction is not None and client.cpu_fraction > CPU:
        reasons.append(f"{client.cpu_fraction:.0%} of its processor used")
    if client.merged_fraction is not None and client.merged_fraction > MERGED:
        reasons.append(f"{client.merged_fraction:.1%} of the events read late, together with others")
    if delay is not None and itl is not None and delay > itl / 2:
        reasons.append(f"read delay p99 {delay * 1e3:.3g} ms (ITL {itl * 1e3:.3g} ms)")
    if not reasons:
        return None
    cause, remedy = _remedy(client)
    busy = f"the load generator was busy: {', '.join(reasons)}"
    stands = "" if client.late_fraction is None or client.late_fraction > HARM else "; throughput stands"
    return doubt(Code.CLIENT_BUSY, f"{busy}; {cause}{stands}" if cause else busy + stands, remedy, s.load)


def _remedy(client: ClientView) -> tuple[str, str]:
    """What slowed the load generator, as far as the figures show, and what helps against it."""
    if (client.throttled_fraction or 0.0) > WITHHELD:
        cause = f"this container was held at its CPU limit for {client.throttled_fraction:.0%} of the time"
        return cause, "raise the container's CPU limit"
    if (client.steal_fraction or 0.0) > WITHHELD:
        cause = f"the hypervisor gave {client.steal_fraction:.0%} of the processors' time to others"
        return cause, "run the client on a host of its own"
    if (client.waited_fraction or 0.0) > WITHHELD:
        cause = (
            f"it waited for a processor for {client.waited_fraction:.0%} of the time: another process ran on its core"
        )
        return cause, "stop the other process, or give the client cores of its own with taskset"
    if max(client.cpu_fraction or 0.0, client.ceiling_fraction or 0.0) > CPU:
        idle = client.idle_processors
        if idle is not None and idle < 0.5:
            return "all processors of this machine were busy", "run the client on a larger machine"
        return "too few workers", "give it more workers: --workers"
    if client.ceiling_fraction is not None and client.ceiling_fraction >= NEAR:
        return "", "give it more workers: --workers"
    return "", "see what else runs on this machine"


def in_flight_low(s: LevelSummary) -> Verdict | None:
    """Voids a plateau, not the level's own point: the curve is fitted against the measured in flight."""
    if s.in_flight is None or s.concurrency is None or s.in_flight >= IN_FLIGHT * s.concurrency:
        return None
    return invalid(
        Code.IN_FLIGHT_LOW,
        f"{s.in_flight:.1f} of {s.concurrency} requests were in flight "
        f"({s.in_flight / s.concurrency:.0%}; a plateau needs {IN_FLIGHT:.0%})",
        "look for refused requests or a slow client, or make the requests longer",
        s.load,
    )


def schedule_not_kept(s: LevelSummary, level: Level, traffic: Traffic, median_lag_s: float | None) -> Verdict | None:
    """Open loop: whether requests were sent at the requested rate and on time (docs/method.md, Open loop)."""
    if s.rate is None or s.offered_requests_per_s is None:
        return None
    reasons = []
    start, end = level.window
    due = traffic.expected(s.rate, start - level.begin_s, end - level.begin_s)
    missed = due - s.offered_requests_per_s * s.window_s
    # By chance alone a Poisson count is below its mean by more than three times its root once in 700 windows; a count
    # of bursts scatters as much more as their gaps do. How many of a trace are due only its dataset says.
    few = missed > (1 - KEPT) * due and missed > 3 * math.sqrt(due / min(1.0, traffic.shape))
    if few and traffic.speed is None:
        offered, wanted = s.offered_requests_per_s, due / s.window_s
        reasons.append(f"{offered:.4g} of {wanted:.4g} requests per second were due")
    if median_lag_s is not None and median_lag_s >= LATE_S:
        reasons.append(f"half of the requests left {median_lag_s * 1e3:.3g} ms late or later")
    if not reasons:
        return None
    return invalid(
        Code.SCHEDULE_NOT_KEPT,
        "the schedule was not kept: " + "; ".join(reasons),
        "raise --max-concurrency or --workers, or lower the rate",
        s.load,
    )


def spoilt(s: LevelSummary) -> dict[str, tuple[int, ...]]:
    """Percentiles that late reads have spoilt, by the figure's name in the summary.

    Where the kernel stamps, only gaps are: events that shared a read share its stamp. A percentile of gaps is given
    while fewer were merged than lie beyond it. The clock's stamps are as late as their reads, whatever they are of.
    """
    client, itl = s.client, s.itl_s.mean
    merged, delay = client.merged_fraction or 0.0, client.read_delay_p99_s or 0.0
    late = itl is not None and delay > itl / 2
    lost = tuple(q for q in PERCENTILES if late or merged > min(MERGED, round(1 - q / 100, 6)))
    out = {"itl_s": lost, "icl_s": lost} if lost else {}
    if client.timestamp_source == "user":
        for name in ("ttft_s", "ttfat_s", "tpot_s", "e2e_s"):
            mean = getattr(s, name).mean
            if mean is not None and delay > STAMPS_OFF * mean:
                out[name] = PERCENTILES
    return out


def late_reads(s: LevelSummary) -> Verdict | None:
    """Which percentiles are left out on account of late reads, and why; `s` still has them."""
    lost = spoilt(s)
    had = {name for name, qs in lost.items() if any(getattr(getattr(s, name), f"p{q}") is not None for q in qs)}
    if not had:
        return None
    names = ", ".join(name.removesuffix("_s").upper() for name in lost if name in had)
    some = min((lost[name] for name in had), key=len)
    which = "percentiles" if len(some) == len(PERCENTILES) else " and ".join(f"p{q}" for q in some)
    delay, itl = s.client.read_delay_p99_s, s.itl_s.mean
    if delay is not None and itl is not None and delay > itl / 2:
        why = f"reads were up to {delay * 1e3:.3g} ms late (p99), more than half of ITL {itl * 1e3:.3g} ms"
    elif s.client.merged_fraction and "itl_s" in lost:
        why = f"{s.client.merged_fraction:.1%} of the events were read late, together with others"
    else:
        why = f"the clock stamped them up to {(delay or 0.0) * 1e3:.3g} ms late (p99)"
    return note(Code.LATE_READS, f"{names} {which} left out: {why}", _remedy(s.client)[1], s.load)
