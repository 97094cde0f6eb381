"""A run's verdicts as remarks: those with one code together, the gravest first; each in full, and in one line."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from harness.analysis.validity import Purpose, invalid_by, usable
from harness.data.judgement import Code, Gravity, rank
from harness.data.summary import LevelSummary, Summary, Verdict
from harness.report.document import Remark
from harness.report.format import load, loads, plain
from harness.report.headline import REASONS, by_curve, is_open, of_ramp, unsettled

_OF_THE_FIT = (Code.FIT_ERROR_ASSUMED, Code.TRANSIENT_UNCHECKED)  # of a level that has no interval, which says enough
SIGNS = {Gravity.INVALID: "✗", Gravity.DOUBT: "?", Gravity.NOTE: "·"}
# One line each, with a place for the levels; a code that is not here has a message that is as short.
_BRIEF = {
    Code.ABOVE_PEAK: "a figure of the hardware is wrong: MBU or MFU is above 1",
    Code.CLIENT_LIMITED: "the load generator sent late{}: what else runs here?",
    Code.CLIENT_BUSY: "the load generator was short of time{}",
    Code.WORKER_PAUSED: "the load generator stood still{}: what else runs here?",
    Code.PARENT_PAUSED: "Knee's main process stood still{}",
    Code.IN_FLIGHT_LOW: "fewer requests in flight than asked for{}",
    Code.SCHEDULE_NOT_KEPT: "requests left too late{}: raise --max-concurrency",
    Code.LATE_READS: "percentiles are left out{}: the client read late",
    Code.ERRORS_ABOVE_1_PERCENT: "more than 1 % of the requests failed{}",
    Code.STALLED: "nobody answered{}: see the server's log",
    Code.HUNG: "requests hung{}: their slots did no work",
    Code.SILENCE: "no token came for seconds{}: --verbose says how long",
    Code.LATE_END: "answers end long after their last token{}",
    Code.UNSTABLE: "the rate is above what the server sustains{}",
    Code.SERVER_LUMPS: "several tokens come at once{}: no ITL percentiles",
    Code.ITL_CHUNKED: "several tokens come in a chunk{}: no ITL percentiles",
    Code.REPLICAS_UNEVEN: "one replica had more than its share{}",
    Code.QUOTA_LIMITED: "a quota, not the server, sets the throughput{}",
    Code.GPU_THROTTLED: "a GPU was slowed down by heat or power{}",
    Code.GPU_POWER_CAPPED: "a GPU was at its power limit{}",
    Code.ENGINES_IMBALANCED: "one engine had more requests than another{}",
    Code.HOST_BOUND: "the host, not the GPU, is the limit{}",
    Code.UNPLACED_TOKENS: "tokens that were counted were not seen to arrive{}",
    Code.OUTPUT_LENGTH_OFF: "answers have other lengths than asked{}",
    Code.INPUT_LENGTH_OFF: "prompts have other lengths than asked{}: --tokenizer",
    Code.PREFIX_CACHE_HITS: "prompts came from the prefix cache{}",
    Code.TOKEN_COUNTS_DISAGREE: "server and client count other tokens{}: other users?",
    Code.LENGTHS_OFF: "mean lengths are not those asked{}",
    Code.SYNTHETIC_TEXT: "prompts are random words: use a --dataset of real ones",
    Code.WINDOW_TOO_SHORT: "no interval{}: measure for longer",
    Code.FIT_ERROR_ASSUMED: "too short for an error of its own{}",
    Code.LITTLE_MISMATCH: "in flight and Little's law differ{}",
    Code.NOT_SETTLED: "throughput was still changing{}: measure for longer",
    Code.NOT_PRECISE: "throughput is less precise than asked{}",
    Code.CUT_SHORT: "the measurement was cut short{}",
    Code.TRANSIENT_UNCHECKED: "too short to tell whether it warmed up{}",
    Code.BY_COUNT: "all requests count{}, to the end of the last",
    Code.TOO_FEW_SAMPLES: "too few requests for p99{}: measure for longer",
    Code.TOO_FEW_STEPS: "too few engine steps for p99 of ITL{}",
    Code.THROUGHPUT_DECAYS: "throughput falls over the window{}: --verbose",
    Code.LATENCY_CREEPS: "TTFT p99 rises over the window{}: --verbose",
    Code.MEMORY_GROWS: "the server's memory grows over the window{}: --verbose",
    Code.DRIFT: "the server changed during the run: --verbose says when",
    Code.DIP_CONFIRMED: "throughput falls past the knee{}",
    Code.THROUGHPUT_COLLAPSES: "throughput collapses past the knee: keep the load below it",
    Code.PLATEAU_NOT_REACHED: "the plateau is not reached",
    Code.KNEE_NOT_IDENTIFIABLE: "too few levels for a knee",
    Code.PHASE_PLATEAU_NOT_REACHED: "the phase's plateau is not reached",
    Code.NODE_LOSS: "a replica was lost{}: see Lost replicas, --verbose",
}

_OF_THE_RECORDS = (Code.INCOMPLETE, Code.SPOOL_DAMAGED)  # what is shown is not the whole run


def worst(level: LevelSummary) -> Gravity | None:
    """The gravity of the level's gravest verdict; None when there are none."""
    return next((gravity for gravity in Gravity if any(v.level == gravity for v in level.verdicts)), None)


def legend(levels: Sequence[LevelSummary]) -> str:
    """The meaning of the signs that these levels have in a table; "" when there are none."""
    seen = {worst(level) for level in levels}
    return ", ".join(f"{SIGNS[gravity]} {gravity}" for gravity in Gravity if gravity in seen)


def remarks(summary: Summary) -> list[Remark]:
    """All verdicts of the run, its curve and its levels; those of several levels with one code are one remark.

    The gravest come first, but an early end before all, and notes about the run as such after those on its figures.
    """
    found: dict[tuple[str, str, str], list[Verdict]] = {}
    levels = [
        msgspec.structs.replace(verdict, at=level.load) if verdict.at is None else verdict
        for level in summary.levels
        for verdict in level.verdicts
    ]
    for verdict in [*summary.verdicts, *(summary.curve.verdicts if summary.curve else []), *levels]:
        apart = verdict.message if verdict.at is None else ""  # a run's verdicts differ by their messages
        found.setdefault((verdict.level, verdict.code, apart), []).append(verdict)
    return [_remark(group, summary) for group in sorted(found.values(), key=lambda group: _order(group[0]))]


def first_lines(summary: Summary, found: Sequence[Remark], most: int) -> list[Remark]:
    """The first remarks in one line each, without those that repeat the headline; what would settle it among them."""
    loads = [level.concurrency for level in of_ramp(summary.levels) if level.concurrency is not None]
    asked = len(set(loads)) > 1 and by_curve(summary)  # one level shows no knee, and limits and seats make their own
    curve = unsettled(summary.curve, loads) if asked else []
    settle = [fact for fact in curve if fact.label == "To settle it"]
    repeated = _repeated(summary)
    invalid = [
        each
        for each in found
        if each.code in _OF_THE_RECORDS or (each.gravity == Gravity.INVALID and each.code not in repeated)
    ]
    said = [each for each in found if each.code.startswith(Code.ERROR_MESSAGE)]  # stands under the table
    others = [each for each in found if each not in (*invalid, *said) and each.code not in (*REASONS, *_OF_THE_FIT)]
    others.sort(key=lambda each: each.gravity == Gravity.INVALID)
    lines = [
        *(Remark(each.gravity, "", "", each.brief, "") for each in invalid),
        *(Remark(Gravity.NOTE, "", "", f"to settle the knee: {fact.text}", "") for fact in settle),
        *(Remark(each.gravity, "", "", each.brief, "") for each in others),
    ]
    return lines[:most]


def _repeated(summary: Summary) -> set[str]:
    """Codes that void only levels of which there is a valid repeat, and so nothing that is shown."""
    valid = {level.load for level in summary.levels if usable(level, Purpose.ANSWER)}
    voided: dict[str, set[float | None]] = {}
    for level in summary.levels:
        for code in invalid_by(level):
            voided.setdefault(code, set()).add(level.load)
    return {code for code, loads in voided.items() if loads <= valid}


def _order(verdict: Verdict) -> tuple[bool, int, bool]:
    return verdict.code != Code.INCOMPLETE, rank(verdict), verdict.code == Code.RUN_NOTE


def _remark(group: list[Verdict], summary: Summary) -> Remark:
    at = sorted({verdict.at for verdict in group if verdict.at is not None})
    last = max(group, key=lambda verdict: -1 if verdict.at is None else verdict.at)
    message, open_loop = plain(last.message), is_open(summary)
    place = _place(at, summary)
    line = (
        _BRIEF[Code(last.code)].format(place)
        if last.code in list(_BRIEF)
        else f"{place.removeprefix(' at ')}: {message}"
        if place
        else message
    )
    if len({verdict.message for verdict in group}) > 1 and last.at is not None:
        message = f"{message} (at {load(open_loop, last.at)})"
    return Remark(last.level, last.code, load(open_loop, *at) if at else "", message, plain(last.advice), line)


def _place(at: Sequence[int | float], summary: Summary) -> str:
    """Where, in few words: the levels, or how many of them."""
    levels = len({level.load for level in summary.levels})
    if not at:
        return ""
    if len(at) == levels > 1:
        return " at every level"
    return f" at {loads(is_open(summary), at, f'of {levels} ')}"
