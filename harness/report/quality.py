"""The table of canaries: whether answers under load are those of an unloaded server, and right."""

from __future__ import annotations

from collections.abc import Callable

from harness.data.summary import AnswerQuality, Estimate, Summary
from harness.report import document as doc
from harness.report.format import MISSING, number, percent
from harness.report.workload import loads

_NOTE = (
    "agreement: answers with the words of the first one, unloaded; part after: words that the others begin with alike; "
    "detectable: the smallest share of changed answers that would have been found"
)


def section(summary: Summary) -> doc.Section:
    """A row for the unloaded server and one for each level; empty, and not shown, without canaries."""
    if not summary.unloaded_quality:
        return doc.Section()
    levels = [level for level in summary.levels if level.quality]
    rows: list[AnswerQuality] = [summary.unloaded_quality, *(level.quality for level in levels if level.quality)]

    def column(head: str, text: Callable[[AnswerQuality], str]) -> doc.Column:
        return doc.Column(head, [text(each) for each in rows])

    load = loads(summary, levels)
    columns = [
        doc.Column(load.head, ["unloaded", *load.cells]),
        column("answers", lambda x: number(x.answers)),
        column("agreement", lambda x: _interval(x.agreement)),
        column("part\nafter", lambda x: number(x.differs_at)),
        column("flawed", lambda x: number(sum(x.flaws.values()))),
        column("accuracy", lambda x: _interval(x.accuracy) if x.accuracy else MISSING),
        column("detectable", lambda x: percent(x.detectable)),
    ]
    return doc.Section("Answers of the canaries", columns=doc.shown(columns), note=_NOTE)


def _interval(share: Estimate) -> str:
    if share.mean is None or share.ci95 is None:
        return MISSING
    low, high = share.ci95
    return f"{percent(share.mean)} ({number(100 * low)}–{number(100 * high)})"
