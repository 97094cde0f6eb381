"""Whether a level was measured for long enough, on a server in a state steady enough, for its figures."""

from __future__ import annotations

from harness.analysis.rules import Finding, rule
from harness.analysis.rules.requests import Measured, answered, too_many_fail
from harness.analysis.stats import half_width
from harness.data.judgement import Gravity
from harness.data.record import LevelNote
from harness.data.summary import GpuView

UNEVEN = 0.25  # of the engines' mean running requests, by which the busiest may exceed the idlest
UNEVEN_KV = 0.20  # of the KV cache, by which its use may differ
_ONE_MORE = 1.5  # requests: one more on one engine than on another is how numbers divide
THROTTLED = 0.10  # of the window, above which a GPU's clocks are not those of its data sheet
_REQUEST_TIMES = 20  # that a window needs for an interval


@rule(Measured, Gravity.DOUBT, brief="throughput was still changing{}: measure for longer")
def not_settled(level: Measured) -> Finding | None:
    """Throughput was still changing half-way through warm-up and window."""
    if LevelNote.NOT_SETTLED not in level.notes:
        return None
    return Finding("throughput was still changing half-way through warm-up and window", "hold the level longer")


@rule(Measured, Gravity.DOUBT, brief="throughput is less precise than asked{}")
def not_precise(level: Measured) -> Finding | None:
    """The window ended before its throughput was as precise as asked."""
    s, precision, notes = level.s, level.conditions.precision, level.notes
    if LevelNote.NOT_PRECISE not in notes or precision is None:
        return None
    half = half_width(s.throughput)
    known = "is not known to any interval" if half is None else f"is known to ±{half:.1%}"
    if too_many_fail(s.error_rate, answered(s)):
        why, advice = f"{s.error_rate:.1%} of the requests failed", "see its errors first"
    elif LevelNote.FAILING in notes:
        why, advice = "most requests failed, which ended the window", "see its errors first"
    elif LevelNote.STALLED in notes:
        why, advice = "the server stalled, which ended the window", "see the server's log"
    elif s.client.limited:
        why, advice = "the load generator was the limit", "see what it was short of first"
    elif level.drift is not None:
        why, advice = f"it moved by {level.drift:+.1%} over the window", "look for a cache that warms or other load"
    elif LevelNote.CUT_SHORT in notes:
        why, advice = "the window was cut short", "give the run more time or requests"
    else:
        why, advice = f"it still varies after {s.window_s:.3g} s", "ask for less precision, or for --level-seconds"
    return Finding(f"throughput {known}, ±{precision:.1%} was requested: {why}", advice)


@rule(Measured, Gravity.DOUBT, brief="the measurement was cut short{}")
def cut_short(level: Measured) -> Finding | None:
    """A budget, an interrupt, failures, a stall or a shard's timetable ended the window early, or the level before the
    last request of its window.
    """
    window, found = level.s.window_s, set(level.notes)
    cut = LevelNote.COOLDOWN_CUT in found
    if LevelNote.INTERRUPTED in found:
        message = f"an interrupt ended the level after {window:.3g} s of its window"
        return Finding(message, "`knee run --resume` measures it again")
    if LevelNote.COOLDOWN_STALLED in found or (cut and LevelNote.STALLED in found):
        why, advice = "the server stalled, which ended", "see the server's log"
    elif LevelNote.COOLDOWN_FAILING in found or (cut and LevelNote.FAILING in found):
        why, advice = "most requests failed, which ended", "see its errors first"
    elif LevelNote.COOLDOWN_TIMETABLE in found:
        why, advice = "the timetable of the shards ended", "give a --level-seconds of at least two request times"
    elif cut:
        why, advice = "a budget ended", "give the run more time or requests"
    elif LevelNote.CUT_SHORT in found:
        message = f"a budget ended the window after {window:.3g} s"
        return Finding(message, "give the run more time or requests")
    else:
        return None
    message = f"{why} the level before the last request of its window had ended: slow ones are missing"
    return Finding(message, advice)


@rule(Measured, Gravity.DOUBT, brief="a GPU was slowed down by heat or power{}")
def gpu_throttled(level: Measured) -> Finding | None:
    """Heat or a power brake slowed a GPU down; the ordinary power cap only has a note."""
    gpu = level.s.gpu
    if gpu is None or gpu.throttled_fraction is None or gpu.throttled_fraction <= THROTTLED:
        return None
    reasons = [f"{name} {share:.0%}" for name, share in (gpu.throttle or {}).items() if name != "sw_power_cap"]
    return Finding(
        f"a GPU was slowed down in {gpu.throttled_fraction:.0%} of the window ({', '.join(reasons)}){clock(gpu)}",
        "look at its cooling and its power supply: another card of its kind would be faster",
    )


def clock(gpu: GpuView) -> str:
    if gpu.sm_clock_hz is None or gpu.sm_clock_min_hz is None:
        return ""
    return f"; SM clock {gpu.sm_clock_hz / 1e6:.0f} MHz on average, {gpu.sm_clock_min_hz / 1e6:.0f} at least"


@rule(Measured, Gravity.DOUBT, brief="one engine had more requests than another{}")
def engines_imbalanced(level: Measured) -> Finding | None:
    """One of several engines ran a quarter more requests than another, by the mean of all, or its KV use was 0.2
    higher.

    The routing is then part of the figures.
    """
    server = level.s.server
    if server is None or len(server.engines) < 2:
        return None
    running = [engine.running or 0.0 for engine in server.engines.values()]
    uneven = (server.running_imbalance or 0.0) > UNEVEN and max(running) - min(running) > _ONE_MORE
    if not uneven and (server.kv_usage_imbalance or 0.0) <= UNEVEN_KV:
        return None
    shares = "" if server.kv_usage_imbalance is None else f", KV use {server.kv_usage_imbalance:.2f} apart"
    return Finding(
        f"{len(running)} engines ran {min(running):.3g} to {max(running):.3g} requests on average{shares}",
        "look at how requests are routed: the busiest engine sets the latencies, and the idlest has room",
    )


@rule(Measured, Gravity.DOUBT, Gravity.NOTE, brief="no interval{}: measure for longer")
def window_too_short(level: Measured) -> Finding | None:
    """Throughput has no interval; a note where a longer window gives one."""
    s, request = level.s, level.s.e2e_s.mean
    if level.rising or s.throughput.ci95 is not None:
        return None
    if request is None:
        message = f"no request that began in the window of {s.window_s:.3g} s succeeded: no interval"
        return Finding(message, "hold the level longer, or look at its errors")
    if s.window_s < _REQUEST_TIMES * request:
        return Finding(
            f"the window of {s.window_s:.3g} s is {s.window_s / request:.1f} times as long as a request of "
            f"{request:.3g} s; an interval needs {_REQUEST_TIMES} times",
            f"hold each level for at least {_REQUEST_TIMES * request:.3g} s",
            Gravity.NOTE,
        )
    return Finding(
        f"throughput varies too slowly for an interval from a window of {s.window_s:.3g} s", "hold each level longer"
    )


# Where a level has no interval, this says no more on the first screen.
@rule(Measured, Gravity.NOTE, on_first_screen=False)
def fit_error_assumed(level: Measured) -> Finding | None:
    """The window is too short for an error of its throughput; the fit takes it from the scatter of the levels."""
    s = level.s
    if not s.output_tokens_per_s_se_assumed or not s.output_tokens_per_s_se or not s.throughput.mean:
        return None
    share = s.output_tokens_per_s_se / s.throughput.mean
    return Finding(
        f"a window of {s.window_s:.3g} s is too short for an error of its throughput ({share:.1%} by the number of "
        "requests); the fit takes it from the scatter of the levels",
        "measure each level for at least 4 times as long as a request takes, better 20 times",
    )
