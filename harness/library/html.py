"""A measurement as a few lines of HTML for a notebook's cell: what, the answer, a table of the levels.

Every text is escaped: a model's name and a server's come from outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from harness.data.manifest import Manifest
from harness.data.summary import LevelSummary, Summary
from harness.report.format import label, ms, number, percent
from harness.report.headline import sentence, unit_of
from harness.report.remarks import worst
from harness.report.subject import simulated_words, subject

_MOST = 40  # levels that are shown; the frame has them all


def of_measurement(summary: Summary, manifest: Manifest) -> str:
    """A `div` without scripts and styles."""
    title, about = subject(summary, manifest)
    lines = [f"<b>{escape(title)}</b> {escape(about)}".rstrip(), f"<b>{escape(sentence(summary))}</b>"]
    if simulated := simulated_words(summary, manifest):
        lines.insert(0, f"<b>SIMULATED</b>: {escape(simulated)}")
    if not summary.complete:
        lines.append("The run did not come to its end; these are the levels that did.")
    if len(summary.levels) > _MOST:
        lines.append(f"The first {_MOST} of {len(summary.levels):,} levels:")
    heads = (
        "load", f"{unit_of(summary)}/s", "requests/s", "TTFT p50, ms", "TTFT p99, ms", "ITL mean, ms", "E2E p50, ms",
        "errors", "",
    )  # fmt: skip
    rows = [_row("th", heads), *(_row("td", _cells(level)) for level in summary.levels[:_MOST])]
    return f"<div>{''.join(f'<p>{line}</p>' for line in lines)}<table>{''.join(rows)}</table></div>"


def _cells(level: LevelSummary) -> Sequence[str]:
    return (
        label(level), number(level.throughput.mean), number(level.requests_per_s.mean), ms(level.ttft_s.p50),
        ms(level.ttft_s.p99), ms(level.itl_s.mean), ms(level.e2e_s.p50), percent(level.error_rate), worst(level) or "",
    )  # fmt: skip


def _row(cell: str, texts: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{cell}>{escape(text)}</{cell}>' for text in texts)}</tr>"
