"""A measurement in a notebook: requests, levels and telemetry as data frames, and a few lines of HTML.

The columns are those of docs/library.md. Missing is null, never 0 and never an empty text: whole numbers have pandas'
nullable types. Every text of the HTML is escaped: a model's name and a server's come from outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from harness.analysis import metrics
from harness.analysis.table import Floats, Table
from harness.data.levels import LevelSummary
from harness.data.manifest import Manifest
from harness.data.record import Record, Sample
from harness.data.summary import Summary
from harness.report.answer import answer, unit_of
from harness.report.facts import simulated_words, subject
from harness.report.format import label, ms, number, percent
from harness.report.remarks import worst
from harness.results import columns
from harness.results.exporters import csv
from harness.results.result import Result

if TYPE_CHECKING:
    import pandas

_MOST = 40  # levels that are shown; the frame has them all


_MAY_BE_EMPTY = ("error", "error_message", "finish_reason", "token_source", "class", "session_id", "noted")
_LATENCIES = {"ttft": "ttft_s", "ttfat": "ttfat_s", "tpot": "tpot_s", "e2e": "e2e_s", "icl": "icl_max_s"}
ADDED = (*_LATENCIES.values(), "lag_s", "rate", "in_window")  # columns that requests.parquet has not
_WHOLE = ("concurrency", "repeat", "requests", "errors", "cancelled", "abandoned")


def requests(run: Result) -> pandas.DataFrame:
    """Return a row a request, in the order they were sent: the columns of requests.parquet, then what they imply.

    Added are `ttft_s`, `ttfat_s`, `tpot_s`, `e2e_s`, `icl_max_s`, `lag_s`, `rate`, and `in_window`: whether it began in
    its level's window.
    """
    import pandas as pd
    import pyarrow as pa

    records = columns.ordered(run.records)
    nullable = {pa.int32(): pd.Int32Dtype(), pa.int64(): pd.Int64Dtype()}
    frame = columns.table(records, run.header, run.levels).to_pandas(types_mapper=nullable.get)
    frame.attrs = {}  # pandas would keep the table's own description
    for name in _MAY_BE_EMPTY:
        frame[name] = frame[name].where(frame[name] != "")
    for name, values in _latencies(run, records).items():
        frame[name] = values
    frame["lag_s"] = frame["sent_s"] - frame["scheduled_s"]
    rates = {level.index: level.rate for level in run.levels}
    frame["rate"] = np.array([rates[index] for index in frame["level"]], dtype=np.float64)
    frame["in_window"] = (frame["phase"] == "measure").astype(bool)
    return frame


def _latencies(run: Result, records: Sequence[Record]) -> dict[str, Floats]:
    """Return seconds by column, each shape [requests]; in open loop they start at the schedule, as in the summary."""
    table = Table.of(records)
    latencies = {name: np.full(len(records), np.nan) for name in _LATENCIES.values()}
    for level in run.levels:
        mine = table.level == level.index
        if mine.any():
            figures = metrics.figures(table.only(mine), level, stalled=True)
            for figure, name in _LATENCIES.items():
                latencies[name][mine] = figures[figure]
    return latencies


def levels(summary: Summary) -> pandas.DataFrame:
    """Return a row a level in the order of measuring; the columns are those of `results.exporters.csv`."""
    import pandas as pd

    kinds = (
        dict.fromkeys(csv.NAMES, "float64") | dict.fromkeys(_WHOLE, "Int64") | {"verdicts": "str", "simulated": "bool"}
    )
    return pd.DataFrame(csv.rows(summary), columns=list(csv.NAMES)).astype(kinds)


def telemetry(samples: Sequence[Sample]) -> pandas.DataFrame:
    """Return a row a figure: `time_s`, `source` (server, client, host, gpu), `metric`, `value`."""
    import pandas as pd

    names = Sample.__struct_fields__
    return pd.DataFrame({name: [getattr(sample, name) for sample in samples] for name in names}, columns=list(names))


def html(summary: Summary, manifest: Manifest) -> str:
    """Return the run's answer and a table of its levels as a `div` without scripts and styles."""
    title, about = subject(summary, manifest)
    lines = [f"<b>{escape(title)}</b> {escape(about)}".rstrip(), f"<b>{escape(answer(summary).sentence)}</b>"]
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
