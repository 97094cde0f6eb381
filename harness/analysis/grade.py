"""How much a result may be relied on, as MLPerf has it: quick, standard or submission (docs/method.md, Grades).

A level is standard when it has an interval of its own and no verdict that it was too short. It is submission when its
window is as long and its requests are as many as a published result needs. A run has the lowest grade of its levels;
for submission it also has to be long enough and to repeat every level. Left out: whether a level is valid; one that is
not has the lowest grade.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.stats import SAMPLES
from harness.analysis.validity import Purpose, usable
from harness.judgement import Code, GradeName
from harness.summary import Grade, LevelSummary

QUICK, STANDARD, SUBMISSION = GradeName
SHORT = {Code.WINDOW_TOO_SHORT, Code.FIT_ERROR_ASSUMED, Code.NOT_SETTLED, Code.NOT_PRECISE, Code.CUT_SHORT}
WINDOW_S, REQUEST_TIMES = 30.0, 20
COMPLETIONS, COMPLETIONS_A_SLOT = 100, 5
RUN_S, REPEATS = 600.0, 3

_Key = tuple[int | float | None, int | None]  # concurrency or rate, and a probe's prompt length


def of_level(s: LevelSummary) -> GradeName:
    """The level's grade by its interval, its verdicts, its length and its requests.

    Standard: valid, with an interval of its own, and no doubt about its length. Submission: also a window of at
    least max(30 s, 20 request times) in which at least max(5 C, 100) requests were completed.
    """
    short = SHORT & {verdict.code for verdict in s.verdicts}
    if s.throughput.ci95 is None or s.e2e_s.mean is None or short or not usable(s, Purpose.ANSWER):
        return QUICK
    enough = s.window_s >= max(WINDOW_S, REQUEST_TIMES * s.e2e_s.mean) and _completions(s) >= _needed(s)
    return SUBMISSION if enough else STANDARD


def of_run(levels: Sequence[LevelSummary]) -> Grade:
    """The run's grade by its levels (their own grades filled in), and what the next grade would need, in words.

    Submission: every level at submission grade and measured at least 3 times, enough requests at each for a p99, and
    windows of at least 600 s together.
    """
    by_level: dict[_Key, list[LevelSummary]] = {}
    for s in levels:
        by_level.setdefault(_key(s), []).append(s)
    repeats = min(map(len, by_level.values()), default=0)
    spread, at = _spread(by_level)
    if not levels:
        return Grade(name=QUICK, missing=["a level that is measured to its end"], repeats=0, spread=None)

    missing = []
    if quick := [s for s in levels if s.grade == QUICK]:
        missing.append(f"an interval and no doubt at {_where(quick)}: hold it longer, and see its verdicts")
        return Grade(name=QUICK, missing=missing, repeats=repeats, spread=spread, spread_at=at)
    if brief := [s for s in levels if s.window_s < max(WINDOW_S, REQUEST_TIMES * (s.e2e_s.mean or 0.0))]:
        longest = max(max(WINDOW_S, REQUEST_TIMES * (s.e2e_s.mean or 0.0)) for s in brief)
        missing.append(f"windows of {longest:.3g} s ({WINDOW_S:g} s, {REQUEST_TIMES} request times) at {_where(brief)}")
    if few := [s for s in levels if _completions(s) < _needed(s)]:
        missing.append(f"{COMPLETIONS} requests, and {COMPLETIONS_A_SLOT} in each slot, completed at {_where(few)}")
    if unsampled := [s for s in levels if s.first_s.n < SAMPLES[99]]:
        missing.append(f"{SAMPLES[99]} requests, which p99 needs, at {_where(unsampled)}")
    if seldom := [same[0] for same in by_level.values() if len(same) < REPEATS]:
        missing.append(f"{REPEATS} repeats of {_where(seldom)}: --repeat {REPEATS}")
    if (measured := sum(s.window_s for s in levels)) < RUN_S:
        missing.append(f"{RUN_S:g} s of windows, not {measured:.0f}")
    name = STANDARD if missing else SUBMISSION
    return Grade(name=name, missing=missing, repeats=repeats, spread=spread, spread_at=at)


def _spread(by_level: dict[_Key, list[LevelSummary]]) -> tuple[float | None, int | float | None]:
    """(largest half-range of one level's repeats as a share of their mean, at which level)."""
    widest: tuple[float | None, int | float | None] = None, None
    for (at, _), same in by_level.items():
        X = [s.throughput.mean for s in same if s.throughput.mean]
        if len(X) < 2:
            continue
        share = (max(X) - min(X)) / 2 / (sum(X) / len(X))
        if widest[0] is None or share > widest[0]:
            widest = share, at
    return widest


def _completions(s: LevelSummary) -> float:
    """Successes that ended in the window."""
    return round((s.requests_per_s.mean or 0.0) * s.window_s)


def _needed(s: LevelSummary) -> float:
    return max(COMPLETIONS, COMPLETIONS_A_SLOT * (s.concurrency or s.in_flight or 0))


def _key(s: LevelSummary) -> _Key:
    return s.load, s.input_tokens_asked


def _where(levels: Sequence[LevelSummary]) -> str:
    """Levels by their load, each once: "1, 4 in flight", "2.5 req/s"."""
    closed, open_ = {s.concurrency for s in levels if s.rate is None}, {s.rate for s in levels if s.rate is not None}
    words = [", ".join(f"{C:,}" for C in sorted(filter(None, closed))) + " in flight"] if closed else []
    words += [", ".join(f"{rate:g}" for rate in sorted(filter(None, open_))) + " req/s"] if open_ else []
    return " and ".join(words)
