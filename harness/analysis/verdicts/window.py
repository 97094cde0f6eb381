"""Whether a level was measured for long enough, in a state steady enough, for its figures."""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.analysis.stats import SAMPLES, half_width
from harness.analysis.verdicts.server import answered, too_many_fail
from harness.analysis.window import REQUESTS_A_SLOT, Little
from harness.data.judgement import Code, Verdict, doubt, invalid, note
from harness.data.record import LevelNote
from harness.data.summary import LevelSummary

_REQUEST_TIMES = 20  # that a window needs for an interval


def window_too_short(s: LevelSummary) -> Verdict | None:
    if s.throughput.ci95 is not None:
        return None
    request = s.e2e_s.mean
    if request is None:
        return doubt(
            Code.WINDOW_TOO_SHORT,
            f"no request that began in the window of {s.window_s:.3g} s succeeded: no interval",
            "hold the level longer, or look at its errors",
            s.load,
        )
    if s.window_s < _REQUEST_TIMES * request:
        return note(
            Code.WINDOW_TOO_SHORT,
            f"the window of {s.window_s:.3g} s is {s.window_s / request:.1f} times as long as a request of "
            f"{request:.3g} s; an interval needs {_REQUEST_TIMES} times",
            f"hold each level for at least {_REQUEST_TIMES * request:.3g} s",
            s.load,
        )
    return doubt(
        Code.WINDOW_TOO_SHORT,
        f"throughput varies too slowly for an interval from a window of {s.window_s:.3g} s",
        "hold each level longer",
        s.load,
    )


def fit_error_assumed(s: LevelSummary) -> Verdict | None:
    if not s.output_tokens_per_s_se_assumed or not s.output_tokens_per_s_se or not s.throughput.mean:
        return None
    share = s.output_tokens_per_s_se / s.throughput.mean
    return note(
        Code.FIT_ERROR_ASSUMED,
        f"a window of {s.window_s:.3g} s is too short for an error of its throughput ({share:.1%} by the number of "
        "requests); the fit takes it from the scatter of the levels",
        "measure each level for at least 4 times as long as a request takes, better 20 times",
        s.load,
    )


def little_mismatch(s: LevelSummary, little: Little) -> Verdict | None:
    if not little.mismatch or little.apart is None:
        return None
    message = (
        f"{little.counted:.2f} requests counted in flight, {little.by_law:.2f} by Little's law "
        f"({little.apart:.0%} apart)"
    )
    if not little.enough:
        return note(
            Code.LITTLE_MISMATCH,
            message + f", with fewer than {REQUESTS_A_SLOT} requests a slot",
            "hold the level longer before reading much into it",
            s.load,
        )
    return invalid(
        Code.LITTLE_MISMATCH,
        message,
        "the level was not in steady state, or times were lost: hold it longer and look at the records",
        s.load,
    )


def not_settled(s: LevelSummary, notes: Sequence[str]) -> Verdict | None:
    if LevelNote.NOT_SETTLED not in notes:
        return None
    return doubt(
        Code.NOT_SETTLED,
        "throughput was still changing half-way through warm-up and window",
        "hold the level longer",
        s.load,
    )


def not_precise(s: LevelSummary, notes: Sequence[str], precision: float | None, drift: float | None) -> Verdict | None:
    """A window that ended before its throughput was known to the requested precision, and why.

    `drift`: share of its mean by which throughput moved over the window, None where that is chance.
    """
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
    elif drift is not None:
        why, advice = f"it moved by {drift:+.1%} over the window", "look for a cache that warms or other load"
    elif LevelNote.CUT_SHORT in notes:
        why, advice = "the window was cut short", "give the run more time or requests"
    else:
        why, advice = f"it still varies after {s.window_s:.3g} s", "ask for less precision, or for --level-seconds"
    return doubt(Code.NOT_PRECISE, f"throughput {known}, ±{precision:.1%} was requested: {why}", advice, s.load)


def cut_short(s: LevelSummary, notes: Sequence[str]) -> Verdict | None:
    """A level that ended before the last request of its window, or a window that ended early, and what ended it."""
    budget, found = "a budget ended", set(notes)
    if LevelNote.INTERRUPTED in found:
        message = f"an interrupt ended the level after {s.window_s:.3g} s of its window"
        return doubt(Code.CUT_SHORT, message, "`knee run --resume` measures it again", s.load)
    cut = LevelNote.COOLDOWN_CUT in found
    if LevelNote.COOLDOWN_STALLED in found or (cut and LevelNote.STALLED in found):
        why, advice = "the server stalled, which ended", "see the server's log"
    elif LevelNote.COOLDOWN_FAILING in found or (cut and LevelNote.FAILING in found):
        why, advice = "most requests failed, which ended", "see its errors first"
    elif LevelNote.COOLDOWN_TIMETABLE in found:
        why, advice = "the timetable of the shards ended", "give a --level-seconds of at least two request times"
    elif cut:
        why, advice = budget, "give the run more time or requests"
    elif LevelNote.CUT_SHORT in found:
        message = f"{budget} the window after {s.window_s:.3g} s"
        return doubt(Code.CUT_SHORT, message, "give the run more time or requests", s.load)
    else:
        return None
    message = f"{why} the level before the last request of its window had ended: slow ones are missing"
    return doubt(Code.CUT_SHORT, message, advice, s.load)


def transient_unchecked(s: LevelSummary, notes: Sequence[str]) -> Verdict | None:
    if LevelNote.TRANSIENT_UNCHECKED not in notes:
        return None
    return note(
        Code.TRANSIENT_UNCHECKED,
        "too short to tell whether the server was still warming up when the window began",
        "hold the level longer",
        s.load,
    )


def too_few_samples(s: LevelSummary) -> Verdict | None:
    n = s.first_s.n
    if n >= SAMPLES[99]:
        return None
    carried = [q for q, needed in SAMPLES.items() if n >= needed]
    upto = f"percentiles up to p{carried[-1]:g}" if carried else "no percentile"
    return note(
        Code.TOO_FEW_SAMPLES,
        f"{n} requests are enough for {upto}; p99 needs {SAMPLES[99]}",
        "hold the level longer for higher percentiles",
        s.load,
    )


def too_few_steps(s: LevelSummary, gaps: int) -> Verdict | None:
    """Why there is no p99 of many gaps, and how long a window gives it."""
    n = s.icl_s.n
    if not n or n >= SAMPLES[99] or gaps < SAMPLES[99] or s.icl_s.p50 is None:
        return None
    name = "ICL" if s.itl_s.p50 is None else "ITL"
    seconds = SAMPLES[99] * s.window_s / n
    return note(
        Code.TOO_FEW_STEPS,
        f"{name} p99 left out: the {gaps:,} gaps come from {n} engine steps, p99 needs {SAMPLES[99]}",
        f"hold the level for {seconds:.3g} s: --level-seconds {math.ceil(seconds)}",
        s.load,
    )


def by_count(s: LevelSummary, notes: Sequence[str]) -> Verdict | None:
    if LevelNote.COUNTED not in notes:
        return None
    return note(
        Code.BY_COUNT,
        f"all {s.requests} requests count, from the first to the end of the last: the figures hold the beginning and "
        "the end, with fewer in flight",
        "give more requests, or --level-seconds, for a steady state",
        s.load,
    )
