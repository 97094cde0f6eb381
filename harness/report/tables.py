"""The levels as a table, and the whole summary on a terminal; the words are those of `words`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from harness.report.format import MISSING, half_width, ms, number
from harness.report.headline import REASONS, is_open
from harness.report.words import SEVERITIES, Remark, facts, remarks, simulated_words, subject, worst
from harness.summary import LevelSummary, PredictedLevel, Summary

MARKS = {"invalid": "✗", "doubt": "?", "note": "·"}
FIRST_REMARKS = 3  # on a terminal, unless all are wanted: what is more stands in report.md
_STYLES = {"invalid": "bold red", "doubt": "yellow", "note": "dim"}


class Column(msgspec.Struct, frozen=True):
    """A column of the level table: two lines of heading, and its cells, top to bottom."""

    head: tuple[str, str]
    cells: list[str]


def level_columns(summary: Summary) -> list[Column]:
    """The level table as text, the same wherever it is shown; times in milliseconds."""
    predicted = {level.concurrency: level for level in summary.prediction.levels} if summary.prediction else {}
    own = summary.prediction.calibrated if summary.prediction else None
    calibrated = {level.concurrency: level for level in own.levels} if own else {}
    levels = summary.levels

    open_loop = is_open(summary)

    def asked(level: LevelSummary) -> str:
        what = level.concurrency if level.rate is None else f"{level.rate:g}"
        return f"{what}{f' #{level.repeat + 1}' if level.repeat else ''}"

    def tokens(level: LevelSummary, by: Mapping[int, PredictedLevel] = predicted) -> str:
        guess = by.get(level.concurrency or 0)
        return number(round(guess.output_tokens_per_s.mid, 1)) if guess else MISSING

    def ratio(level: LevelSummary, by: Mapping[int, PredictedLevel] = predicted) -> str:
        guess = by.get(level.concurrency or 0)
        value = guess.measured_over_predicted if guess else None
        return MISSING if value is None else f"{value:.2f}"

    def half(level: LevelSummary) -> str:
        width = half_width(level.output_tokens_per_s.ci95)
        return MISSING if width is None else f"±{number(width, 2)}"

    def joules(level: LevelSummary) -> str:
        return number(level.gpu.joules_per_output_token if level.gpu else None)

    def slo(level: LevelSummary) -> str:
        outcomes = [each.outcome for each in level.slo]
        return next((word for word in ("missed", "unresolved", "met") if word in outcomes), MISSING)

    columns = [
        Column(("asked", "req/s") if open_loop else ("", "C"), [asked(x) for x in levels]),
        Column(("in", "flight"), [MISSING if x.in_flight is None else f"{x.in_flight:,.1f}" for x in levels]),
        Column(("output", "tok/s"), [number(x.output_tokens_per_s.mean) for x in levels]),
        Column(("95 %", "±"), [half(x) for x in levels]),
        Column(("predicted", "tok/s"), [tokens(x) for x in levels]),
        Column(("meas./", "pred."), [ratio(x) for x in levels]),
        Column(("calibr.", "tok/s"), [tokens(x, calibrated) for x in levels]),
        Column(("meas./", "calibr."), [ratio(x, calibrated) for x in levels]),
        Column(("", "req/s"), [number(x.requests_per_s.mean) for x in levels]),
        Column(("TTFT ms", "p50"), [ms(x.ttft_s.p50) for x in levels]),
        Column(("TTFT ms", "p99"), [ms(x.ttft_s.p99) for x in levels]),
        Column(("ITL ms", "mean"), [ms(x.itl_s.mean) for x in levels]),
        Column(("E2E ms", "p50"), [ms(x.e2e_s.p50) for x in levels]),
        Column(("lag ms", "p99"), [ms(x.lag_s.p99) for x in levels]),
        Column(("J per", "token"), [joules(x) for x in levels]),
        Column(("", "SLO"), [slo(x) for x in levels]),
        Column(("", "errors"), [number(x.errors) for x in levels]),
        Column(("", ""), [MARKS.get(worst(x), "") for x in levels]),
    ]
    absent = set() if predicted and not open_loop else {"predicted", "meas./"}
    if not calibrated or open_loop:
        absent.add("calibr.")
    if not open_loop:
        absent.add("lag ms")
    if all(x.gpu is None or x.gpu.joules_per_output_token is None for x in levels):
        absent.add("J per")
    if not any(level.slo for level in levels):
        absent.add("SLO")
    return [column for column in columns if absent.isdisjoint(column.head)]


def print_rows(rows: Sequence[tuple[str, str, str]], console: Console) -> None:
    """What was measured, its figure, and a remark, a line each."""
    table = Table.grid(padding=(0, 2))
    for what, figure, remark in rows:
        table.add_row(what, Text(figure, style="bold"), Text(remark, style="dim"))
    if not console.is_terminal:  # a file has no width
        console.width = Measurement.get(console, console.options.update(max_width=10_000), table).maximum
    console.print(table)


def legend(summary: Summary) -> str:
    """What the marks beside the levels mean, for those that occur; "" when there are none."""
    seen = {worst(level) for level in summary.levels}
    return ", ".join(f"{MARKS[severity]} {severity}" for severity in SEVERITIES if severity in seen)


# The terminal


def print_summary(
    summary: Summary,
    manifest: Mapping[str, Any],
    paths: list[tuple[str, str | Path]],
    console: Console,
    *,
    verbose: bool = False,
) -> None:
    """The summary on a terminal of 80 columns or more, and as plain text where it is none.

    The gravest remarks stand below the answer, without those that repeat it; all of them where it is to be `verbose`.
    """
    title, below = subject(summary, manifest)
    if summary.simulated:
        console.print(Text.assemble(("SIMULATED", "bold black on yellow"), ": ", simulated_words(summary, manifest)))
        console.print()
    console.print(Text(title, "bold"))
    if below:
        console.print(Text(below, "dim"))
    console.print()
    if summary.levels:
        console.print(_level_table(summary, console))
        marks = legend(summary)
        if marks:
            console.print(Text(marks, "dim"))
        console.print()
    console.print(_grid([(Text(fact.label, "bold"), Text(fact.text)) for fact in facts(summary)]))
    found = remarks(summary)
    shown = found if verbose else [r for r in found if r.code not in REASONS][:FIRST_REMARKS]
    if shown:
        console.print()
        console.print(_grid([(Text(r.severity, _STYLES[r.severity]), _remark(r)) for r in shown]))
    if more := len(found) - len(shown):
        console.print(Text(f"{more} more remark{'' if more == 1 else 's'}: --verbose, or report.md", "dim"))
    if paths:
        console.print()
    width = max((len(label) for label, _ in paths), default=0)
    for label, path in paths:  # never folded, so that a path can be copied
        console.print(Text.assemble((label.ljust(width), "dim"), "  ", str(path)), soft_wrap=True)


def _level_table(summary: Summary, console: Console) -> Table:
    """The level table, without the columns that a narrow terminal can best spare."""
    spare = [
        ("calibr.", "tok/s"),
        ("predicted", "tok/s"),
        ("J per", "token"),
        ("", "req/s"),
        ("95 %", "±"),
        ("TTFT ms", "p99"),
        ("E2E ms", "p50"),
    ]
    columns = level_columns(summary)
    while True:
        table = Table(box=None, pad_edge=False, padding=(0, 2 if console.width >= 100 else 1, 0, 0))
        for column in columns:
            head = Text("\n".join(column.head), "dim", justify="right")
            table.add_column(head, justify="right", no_wrap=True, vertical="bottom")
        for level, cells in zip(summary.levels, zip(*(c.cells for c in columns), strict=True), strict=True):
            bad = worst(level) == "invalid"
            table.add_row(*(Text(cell) for cell in cells), style="red" if bad else "")
        if not spare or Measurement.get(console, console.options.update(width=1000), table).maximum <= console.width:
            return table
        dropped = spare.pop(0)
        columns = [column for column in columns if column.head != dropped]


def _grid(rows: list[tuple[Text, Text]]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for row in rows:
        grid.add_row(*row)
    return grid


def _remark(remark: Remark) -> Text:
    where = f" at {remark.where}" if remark.where else ""
    text = Text.assemble((remark.code, "bold"), f"{where}: {remark.message}")
    if remark.advice:
        text.append(f"\n→ {remark.advice}", "dim")
    return text
