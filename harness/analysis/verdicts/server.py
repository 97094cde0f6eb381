"""What the server, or a GPU under it, did to a level."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.stats import wilson
from harness.analysis.window import Backlog
from harness.data.judgement import Code, Verdict, doubt, invalid, note
from harness.data.record import LevelNote
from harness.data.summary import GpuView, LevelSummary

ERROR_RATE = 0.01  # share of failed requests above which, beyond doubt, a level is no point of the curve
LUMPED = 0.05  # of the events, above which the server counts as sending several at a time
LATE_END = 0.10  # of the time of a request, that an answer may take to end after its last token
KV_FULL = 0.95  # from here on the KV cache counts as full
UNEVEN = 0.25  # of the engines' mean running requests, by which the busiest may exceed the idlest
UNEVEN_KV = 0.20  # of the KV cache, likewise
_ONE_MORE = 1.5  # requests: one more on one engine than on another is how numbers divide
THROTTLED = 0.10  # of the window, above which a GPU's clocks are not those of its data sheet


def too_many_fail(error_rate: float | None, requests: int | None) -> bool:
    """Return whether more than 1 % fail, by the lower end of the 95 % interval; by the share where n is not known.

    >>> too_many_fail(1 / 60, 60), too_many_fail(3 / 60, 60)
    (False, True)
    """
    if not error_rate:
        return False
    ends = wilson(error_rate * requests, requests) if requests else None
    return (ends[0] if ends else error_rate) > ERROR_RATE


def answered(s: LevelSummary) -> int | None:
    """Return the requests by which a level's error rate is judged: those that were not cut or given up."""
    return round(s.errors / s.error_rate) if s.error_rate else None


def errors_above_1_percent(s: LevelSummary) -> Verdict | None:
    whole = answered(s)
    if not too_many_fail(s.error_rate, whole):
        return None
    assert s.error_rate is not None
    kinds = ", ".join(f"{kind} {n}" for kind, n in s.errors_by_type.items())
    return invalid(
        Code.ERRORS_ABOVE_1_PERCENT,
        f"{s.errors} of {whole} requests failed ({s.error_rate:.1%}): {kinds}",
        "find out what the server refuses; its throughput here is not that of the requested load",
        s.load,
    )


def stalled(s: LevelSummary, notes: Sequence[str]) -> Verdict | None:
    if LevelNote.REFUSED in notes:
        message = "the server was gone: connections were refused, which ended the level"
    elif LevelNote.STALLED in notes:
        message = f"no token arrived for so long that the level was ended; {s.in_flight or 0:.0f} requests were waiting"
    else:
        return None
    return invalid(Code.STALLED, message, "see the server's log; measure again once it answers", s.load)


def hung(s: LevelSummary, requests: int) -> Verdict | None:
    """Requests that were in flight and got nothing: fewer worked than were asked for."""
    if not requests:
        return None
    return doubt(
        Code.HUNG,
        f"{requests} {'request' if requests == 1 else 'requests'} hung: in flight much longer than any that succeeded, "
        "while the others went on; the figures are those of the others",
        "see the server's log for requests that never end; --request-timeout gives them up earlier",
        s.load,
    )


def silence(s: LevelSummary, seconds: float | None) -> Verdict | None:
    if seconds is None:
        return None
    return doubt(
        Code.SILENCE,
        f"no token came for {seconds:.3g} s of the window of {s.window_s:.3g} s, though answers streamed",
        "see what the server did then; throughput without that time was higher",
        s.load,
    )


def late_end(s: LevelSummary) -> Verdict | None:
    tail, e2e = s.tail_s.mean if s.tail_s else None, s.e2e_s.mean
    if not tail or not e2e or tail < LATE_END * e2e:
        return None
    return note(
        Code.LATE_END,
        f"answers end {tail * 1e3:.0f} ms after their last token, {tail / e2e:.0%} of the time of a request",
        "E2E and requests per second have that time in them; look at what the server does after the last token",
        s.load,
    )


def unstable(s: LevelSummary, backlog: Backlog | None) -> Verdict | None:
    if backlog is None or not backlog.rising:
        return None
    return invalid(
        Code.UNSTABLE,
        f"requests in flight rose by {backlog.slope:.3g} a second over the whole window: the rate is above what the "
        "server sustains, and there are no latencies of a steady state",
        "lower the rate; offered and completed requests per second stand",
        s.load,
    )


def server_lumps(s: LevelSummary, events_at_once: float | None) -> Verdict | None:
    """Events that came in one segment: the server's doing, or that of a proxy before it."""
    if events_at_once is None:
        return None
    return note(
        Code.SERVER_LUMPS,
        f"the server sends {events_at_once:.3g} events at a time: ITL percentiles are left out, ICL is the time "
        "between such bundles, throughput stands",
        "a proxy that buffers, speculation or steps of several tokens do this; look at the proxy first",
        s.load,
    )


def engines_imbalanced(s: LevelSummary) -> Verdict | None:
    """Whether one of several engines had clearly more to do than another: the routing is then part of the figures."""
    if s.server is None or len(s.server.engines) < 2:
        return None
    running = [engine.running or 0.0 for engine in s.server.engines.values()]
    uneven = (s.server.running_imbalance or 0.0) > UNEVEN and max(running) - min(running) > _ONE_MORE
    if not uneven and (s.server.kv_usage_imbalance or 0.0) <= UNEVEN_KV:
        return None
    shares = "" if s.server.kv_usage_imbalance is None else f", KV use {s.server.kv_usage_imbalance:.2f} apart"
    return doubt(
        Code.ENGINES_IMBALANCED,
        f"{len(running)} engines ran {min(running):.3g} to {max(running):.3g} requests on average{shares}",
        "look at how requests are routed: the busiest engine sets the latencies, and the idlest has room",
        s.load,
    )


def gpu_throttled(s: LevelSummary) -> Verdict | None:
    """Heat and power brakes; the ordinary power cap only has a note."""
    if s.gpu is None or s.gpu.throttled_fraction is None or s.gpu.throttled_fraction <= THROTTLED:
        return None
    reasons = [f"{name} {share:.0%}" for name, share in (s.gpu.throttle or {}).items() if name != "sw_power_cap"]
    return doubt(
        Code.GPU_THROTTLED,
        f"a GPU was slowed down in {s.gpu.throttled_fraction:.0%} of the window ({', '.join(reasons)}){_clock(s.gpu)}",
        "look at its cooling and its power supply: another card of its kind would be faster",
        s.load,
    )


def gpu_power_capped(s: LevelSummary) -> Verdict | None:
    share = (s.gpu.throttle or {}).get("sw_power_cap", 0.0) if s.gpu else 0.0
    if s.gpu is None or share <= THROTTLED:
        return None
    return note(
        Code.GPU_POWER_CAPPED,
        f"a GPU was at its power limit in {share:.0%} of the window{_clock(s.gpu)}",
        "usual under full load; compare with cards of the same power limit only",
        s.load,
    )


def _clock(gpu: GpuView) -> str:
    if gpu.sm_clock_hz is None or gpu.sm_clock_min_hz is None:
        return ""
    return f"; SM clock {gpu.sm_clock_hz / 1e6:.0f} MHz on average, {gpu.sm_clock_min_hz / 1e6:.0f} at least"
