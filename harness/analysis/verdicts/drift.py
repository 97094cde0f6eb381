"""What moves over a level's window: throughput, TTFT, memory, and changes at once."""

from __future__ import annotations

from harness.judgement import Code, Verdict, doubt, note
from harness.summary import Drift, Trend, Value
from harness.units import span

# Shares by which a figure has to move over the window before it counts; a slope that is smaller may be as sure.
DECAYS, CREEPS, GROWS = 0.02, 0.10, 0.02

_CAUSES = {
    "restart": ("the server's counters began anew: it restarted", "see its log for why it ended"),
    "throttle": ("the GPUs' clock fell with it", "look at their cooling and power supply"),
    "neighbour": ("others used the server or this machine from then on", "measure again without them"),
    "": ("nothing that was recorded tells why", "see the server's log at that time, and what else ran"),
}


def verdicts(drift: Drift, window: tuple[float, float], at: float | None) -> list[Verdict]:
    """Those of one level; `window` in seconds since the run began, `at` its load."""
    seconds = window[1] - window[0]
    changed = _changed(drift, window[0], at)
    out = [changed] if changed else []
    for code, name, trend, least, why, advice in (
        (
            Code.THROUGHPUT_DECAYS, "throughput", drift.throughput, -DECAYS,
            "a leak, a cache that fills up or a hot GPU does this",
            "compare with KV use, memory and GPU clock over time; restart the server, and see whether it is back",
        ),
        (
            Code.LATENCY_CREEPS, "TTFT p99", drift.ttft_p99_s, CREEPS,
            "a queue that builds up, or a cache that finds less, does this",
            "lower the load; see the server's waiting requests and cache hits over time",
        ),
        (
            Code.MEMORY_GROWS, "the server's memory", drift.memory_bytes, GROWS,
            "a leak, or a cache in host memory that is not full yet, does this",
            "soak for longer: a cache ends growing, a leak does not",
        ),
        (
            Code.MEMORY_GROWS, "GPU memory", drift.gpu_memory_bytes, GROWS,
            "fragments or a leak do this",
            "soak for longer: an allocator ends growing, a leak does not",
        ),
    ):  # fmt: skip
        if trend is None or trend.share_per_hour is None or not trend.sure or trend.change is not None:
            continue
        moved = (trend.share_per_hour.value or 0.0) * seconds / 3600
        if moved / least >= 1:
            verb = "falls" if least < 0 else "rises"
            message = f"{name} {verb} by {per_hour(trend.share_per_hour)}, {abs(moved):.1%} in this window"
            out.append(doubt(code, f"{message}; {why}", advice, at))
    return out


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
        why, advice = _CAUSES.get(change.cause, _CAUSES[""])
        message = (
            f"{name} {verb} at once by {abs(share.value or 0.0) * 100:.1f} %{_interval(share, 100, '.1f')}, "
            f"{span(moment - start_s)} into the window, {moment:,.0f} s into the run"
            f"{_interval(change.at_s, 1, ',.0f')}; {why}"
        )
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
