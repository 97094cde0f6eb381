"""A run's verdicts as remarks: those with one code together, the gravest first; each in full, and in one line."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from harness.analysis.rules import Place, Purpose, by_code, invalid_by, usable
from harness.analysis.rules.figures import too_few_samples
from harness.analysis.rules.levels import drift
from harness.analysis.rules.requests import stalled
from harness.analysis.rules.run import incomplete, run_note, server_changed, spool_damaged
from harness.data.judgement import Gravity, Verdict, rank
from harness.data.levels import LevelSummary
from harness.data.summary import Summary
from harness.report.document import Remark
from harness.report.format import load, loads, plain

SIGNS = {Gravity.INVALID: "✗", Gravity.DOUBT: "?", Gravity.NOTE: "·"}
_OF_THE_RECORDS = (incomplete.code, spool_damaged.code)  # what is shown is not the whole run
_OF_THE_SERVER = (incomplete.code, stalled.code, server_changed.code, drift.code)  # it was not the same all the time


def worst(level: LevelSummary) -> Gravity | None:
    """Return the severity of the level's gravest finding; None if it has none."""
    return next((gravity for gravity in Gravity if any(v.level == gravity for v in level.verdicts)), None)


def legend(levels: Sequence[LevelSummary]) -> str:
    """Return the meaning of the signs that these levels have in a table; "" when there are none."""
    seen = {worst(level) for level in levels}
    return ", ".join(f"{SIGNS[gravity]} {gravity}" for gravity in Gravity if gravity in seen)


def remarks(summary: Summary) -> list[Remark]:
    """Return the verdicts of the run, its curve and its levels as remarks, one for all levels with the same code.

    The gravest come first, but an early end before all, and notes about the run as such after those on its figures.
    """
    groups: dict[tuple[str, str, str], list[Verdict]] = {}
    levels = [
        msgspec.structs.replace(verdict, at=level.load) if verdict.at is None else verdict
        for level in summary.levels
        for verdict in level.verdicts
    ]
    for verdict in [*summary.verdicts, *(summary.curve.verdicts if summary.curve else []), *levels]:
        apart = verdict.message if verdict.at is None else ""  # a run's verdicts differ by their messages
        groups.setdefault((verdict.level, verdict.code, apart), []).append(verdict)

    def order(group: list[Verdict]) -> tuple[bool, int, bool]:
        return not incomplete.made(group[0]), rank(group[0]), run_note.made(group[0])

    return [_remark(group, summary) for group in sorted(groups.values(), key=order)]


def warning(remarks: Sequence[Remark]) -> str:
    """Return what a reader has to know before the figures: the server died or changed, or the run ended early."""
    lines = [(remark.message, remark.where) for remark in remarks if remark.code in _OF_THE_SERVER]
    return ". ".join(f"{message[:1].upper()}{message[1:]}{f' ({where})' if where else ''}" for message, where in lines)


def first_lines(summary: Summary, remarks: Sequence[Remark], most: int) -> list[Remark]:
    """Return up to `most` remarks, one line each, the gravest first; without doubts or worse, one note at most."""
    repeated = _repeated(summary)
    invalid = [
        remark
        for remark in remarks
        if remark.code in _OF_THE_RECORDS or (remark.gravity == Gravity.INVALID and remark.code not in repeated)
    ]
    others = [remark for remark in remarks if remark not in invalid and _is_news(remark, summary)]
    others.sort(key=lambda each: (each.gravity == Gravity.INVALID, _is_usual(each)))
    lines = [Remark(each.gravity, "", "", each.brief, "") for each in [*invalid, *others]]
    return lines[: most if any(line.gravity != Gravity.NOTE for line in lines) else 1]


def _is_news(remark: Remark, summary: Summary) -> bool:
    """Return whether the rest of the first screen does not say it."""
    if remark.code == too_few_samples.code:  # a table with percentiles shows which are missing
        return all(level.first_s.p90 is None for level in summary.levels)
    rule = by_code(remark.code)
    return rule is None or rule.place is not Place.NOWHERE


def _is_usual(remark: Remark) -> bool:
    rule = by_code(remark.code)
    return remark.gravity == Gravity.NOTE and rule is not None and rule.place is Place.LAST


def _repeated(summary: Summary) -> set[str]:
    """Return the codes of verdicts that void only levels whose load has a valid repeat, which is shown instead."""
    valid = {level.load for level in summary.levels if usable(level, Purpose.ANSWER)}
    voided: dict[str, set[float | None]] = {}
    for level in summary.levels:
        for code in invalid_by(level):
            voided.setdefault(code, set()).add(level.load)
    return {code for code, loads in voided.items() if loads <= valid}


def _remark(group: list[Verdict], summary: Summary) -> Remark:
    """Return the verdicts of one code as one remark, in the words of the highest load, with all their loads."""
    at = sorted({verdict.at for verdict in group if verdict.at is not None})
    last = max(group, key=lambda verdict: -1 if verdict.at is None else verdict.at)
    message, open_loop = plain(last.message), summary.open_loop
    place = _place(at, summary)
    rule = by_code(last.code)
    if rule is not None and rule.brief:
        line = rule.brief.format(place)
    else:
        line = f"{place.removeprefix(' at ')}: {message}" if place else message
    if len({verdict.message for verdict in group}) > 1 and last.at is not None:
        message = f"{message} (at {load(open_loop, last.at)})"
    return Remark(last.level, last.code, load(open_loop, *at) if at else "", message, plain(last.advice), line)


def _place(at: Sequence[int | float], summary: Summary) -> str:
    """Return in words at which levels a remark holds: their loads, how many of all, or every one; "" for the run."""
    levels = len({level.load for level in summary.levels})
    if not at:
        return ""
    if len(at) == levels > 1:
        return " at every level"
    return f" at {loads(summary.open_loop, at, f'of {levels} ')}"
