"""A run's verdicts as remarks: those with one code together, the gravest first."""

from __future__ import annotations

import msgspec

from harness.judgement import Gravity, rank
from harness.report.document import Remark
from harness.report.format import load, plain
from harness.report.headline import is_open
from harness.summary import LevelSummary, Summary, Verdict

SIGNS = {Gravity.INVALID: "✗", Gravity.DOUBT: "?", Gravity.NOTE: "·"}


def worst(level: LevelSummary) -> Gravity | None:
    """The gravity of the level's gravest verdict; None when there are none."""
    return next((gravity for gravity in Gravity if any(v.level == gravity for v in level.verdicts)), None)


def legend(summary: Summary) -> str:
    """The meaning of the signs in the level table that occur; "" when there are none."""
    seen = {worst(level) for level in summary.levels}
    return ", ".join(f"{SIGNS[gravity]} {gravity}" for gravity in Gravity if gravity in seen)


def remarks(summary: Summary) -> list[Remark]:
    """All verdicts of the run, its curve and its levels; those of several levels with one code are one remark."""
    found: dict[tuple[str, str, str], list[Verdict]] = {}
    levels = [
        msgspec.structs.replace(verdict, at=level.concurrency or level.rate) if verdict.at is None else verdict
        for level in summary.levels
        for verdict in level.verdicts
    ]
    for verdict in [*summary.verdicts, *(summary.curve.verdicts if summary.curve else []), *levels]:
        apart = verdict.message if verdict.at is None else ""  # a run's verdicts differ by their messages
        found.setdefault((verdict.level, verdict.code, apart), []).append(verdict)
    open_loop = is_open(summary)
    return [_remark(group, open_loop) for _, group in sorted(found.items(), key=lambda item: rank(item[1][0]))]


def _remark(group: list[Verdict], open_loop: bool) -> Remark:
    at = sorted({verdict.at for verdict in group if verdict.at is not None})
    last = max(group, key=lambda verdict: -1 if verdict.at is None else verdict.at)
    message = plain(last.message)
    if len({verdict.message for verdict in group}) > 1 and last.at is not None:
        message = f"{message} (at {load(open_loop, last.at)})"
    return Remark(last.level, last.code, load(open_loop, *at) if at else "", message, plain(last.advice))
