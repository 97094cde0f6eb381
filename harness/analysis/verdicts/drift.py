"""What moves over a level's window: throughput, TTFT, memory, and changes at once."""

from __future__ import annotations

import functools

from harness.base.units import span
from harness.data.judgement import Code, Verdict, doubt, note
from harness.data.summary import Drift, Trend, Value

# Shares by which a figure has to move over the window before it counts; a slope that is smaller may be as sure.
DECAYS, CREEPS, GROWS = 0.02, 0.10, 0.02

_CAUSES = {
    "restart": "the server's counters began anew: it restarted",
    "throttle": "the GPUs' clock fell with it",
    "neighbour": "others used the server or this machine from then on",
    "": "nothing that was recorded tells why",
}


def verdicts(drift: Drift, window: tuple[float, float], at: float | None) -> list[Verdict]:
    """Those of one level; `window` in seconds since the run began, `at` its load."""
    changed = _changed(drift, window[0], at)
    out = [changed] if changed else []
    moved = functools.partial(_moved, window[1] - window[0])
    if message := moved(
        "throughput", drift.throughput, -DECAYS, "a leak, a cache that fills up or a hot GPU does this"
    ):
        advice = "compare with KV use, memory and GPU clock over time; restart the server, and see whether it is back"
        out.append(doubt(Code.THROUGHPUT_DECAYS, message, advice, at))
    if message := moved("TTFT p99", drift.ttft_p99_s, CREEPS, "a queue that builds up, or colder caches, do this"):
        advice = "lower the load; see the server's waiting requests and cache hits over time"
        out.append(doubt(Code.LATENCY_CREEPS, message, advice, at))
    host = "a leak, or a cache in host memory that is not full yet, does this"
    for name, trend, why in (
        ("the server's memory", drift.memory_bytes, host),
        ("GPU memory", drift.gpu_memory_bytes, "fragments or a leak do this"),
    ):
        if message := moved(name, trend, GROWS, why):
            out.append(doubt(Code.MEMORY_GROWS, message, "soak for longer: a cache ends growing, a leak does not", at))
    return out


def _moved(seconds: float, name: str, trend: Trend | None, least: float, why: str) -> str:
    """What a figure did over a window of so many seconds; "" where it moved by less than `least`, or all at once."""
    if trend is None or trend.share_per_hour is None or not trend.sure or trend.change is not None:
        return ""
    moved = (trend.share_per_hour.value or 0.0) * seconds / 3600
    if moved / least < 1:
        return ""
    verb = "falls" if least < 0 else "rises"
    return f"{name} {verb} by {per_hour(trend.share_per_hour)}, {abs(moved):.1%} in this window; {why}"


def per_hour(share: Value) -> str:
    """A slope in words, without its sign.

    >>> per_hour(Value(-0.6, (-0.63, -0.57)))
    '60.0 % an hour (95 % interval 57.0–63.0)'
    """
    return f"{abs(share.value or 0.0) * 100:.1f} % an hour{_interval(share, 100, '.1f')}"


def _changed(drift: Drift, start_s: float, at: float | None) -> Verdict | None:
    """The change of throughput, else of TTFT p99."""
    for name, trend, least in (("throughput", drift.throughput, DECAYS), ("TTFT p99", drift.ttft_p99_s, CREEPS)):
        share = _share(trend)
        if trend is None or trend.change is None or share is None or abs(share.value or 0.0) < least:
            continue
        change, moment = trend.change, trend.change.at_s.value or 0.0
        verb = "rose" if (share.value or 0.0) > 0 else "fell"
        why = _CAUSES.get(change.cause, _CAUSES[""])
        message = (
            f"{name} {verb} at once by {abs(share.value or 0.0) * 100:.1f} %{_interval(share, 100, '.1f')}, "
            f"{span(moment - start_s)} into the window, {moment:,.0f} s into the run"
            f"{_interval(change.at_s, 1, ',.0f')}; {why}"
        )
        advice = "see the server's log, the GPUs' cooling and what else ran at that time"
        worse = (verb == "fell") == (trend is drift.throughput)
        return (doubt if worse else note)(Code.CHANGEPOINT, message, advice, at)
    return None


def _share(trend: Trend | None) -> Value | None:
    return trend.change.share if trend is not None and trend.change is not None else None


def _interval(value: Value, times: float, form: str) -> str:
    """Its 95 % interval by size, in brackets; "" without one."""
    if value.ci95 is None or None in value.ci95:
        return ""
    ends = [(end or 0.0) * times for end in value.ci95]
    low, high = sorted(ends, key=abs) if ends[0] * ends[1] > 0 else ends
    sign = -1 if high < 0 else 1
    return f" (95 % interval {sign * low:{form}}–{sign * high:{form}})"
