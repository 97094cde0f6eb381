"""The levels of a summary as flat rows, and as CSV: one name a figure, its unit at the name's end.

A figure without a value is None, and an empty cell. The columns `concurrency`, `output_tokens_per_s` and `error` are
those by which `knee fit` reads the table.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from msgspec import UnsetType

from harness.data.figures import NOT_EXPORTED, Declared, declared
from harness.data.levels import LevelSummary
from harness.data.summary import Summary
from harness.data.views import Estimate, Spread
from harness.results.exporters import Exporter, Run, of_point

LOAD, RATE, ERROR = "concurrency", "output_tokens_per_s", "error"
Cell = str | int | float | bool | None

STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")
SERVICE = (
    "assumed_error", "in_service", "in_service_most", "in_service_most_fraction", "server_running", "server_waiting",
)  # fmt: skip
FIGURES = {name: each for name, each in declared(LevelSummary).items() if NOT_EXPORTED not in each.marks}
_ABOUT = ("concurrency", "rate", "repeat", "window_s")
_SE = "output_tokens_per_s_se"


def columns(figure: Declared) -> dict[str, str]:
    """Return the columns of a figure, with the statistic that each has; "" is the figure itself."""
    if figure.kind is Spread:
        return {f"{figure.name.removesuffix('_s')}_{statistic}_s": statistic for statistic in STATISTICS}
    return {f"{figure.name}{end}": end for end in (("", "_low", "_high") if figure.kind is Estimate else ("",))}


_COLUMNS = (name for each in FIGURES.values() for name in columns(each))
NAMES = (*_ABOUT, *_COLUMNS, _SE, *SERVICE, "verdicts", "simulated")
LEVELS = (LOAD, RATE, ERROR, *(name for name in NAMES if name not in (LOAD, RATE, _SE)))
_LEFT_OUT = ("arrivals_s", "arrival_tokens", "error_message")  # not in requests.csv: lists, and text of any length
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would take a text that begins so for a formula


def rows(summary: Summary) -> list[dict[str, Cell]]:
    """Return a row for each level, in the order of measuring; every row has the same names in the same order."""
    return [row(level) | {"simulated": summary.simulated} for level in summary.levels]


def row(level: LevelSummary) -> dict[str, Cell]:
    """Return a CSV row of one level by column: of an estimate mean and interval, of a distribution each statistic."""
    cells: dict[str, Cell] = {name: getattr(level, name) for name in _ABOUT}
    for name, figure in FIGURES.items():
        cells |= {column: _cell(getattr(level, name), part) for column, part in columns(figure).items()}
    # An error that was assumed is a weight, not a measurement.
    cells[_SE] = None if level.output_tokens_per_s_se_assumed else level.output_tokens_per_s_se
    weight = level.output_tokens_per_s_se if level.output_tokens_per_s_se_assumed else None
    cells |= {"assumed_error": weight, **{name: each for name, each in of_point(level).items() if name in SERVICE}}
    return cells | {"verdicts": " ".join(dict.fromkeys(f"{each.level}:{each.code}" for each in level.verdicts))}


def _cell(value: Estimate | Spread | float | UnsetType | None, part: str) -> Cell:
    if isinstance(value, Spread):
        return cast(float | None, getattr(value, part))
    if isinstance(value, Estimate):
        low, high = value.ci95 or (None, None)
        return {"": value.mean, "_low": low, "_high": high}[part]
    return None if isinstance(value, UnsetType) else value


def levels(summary: Summary) -> str:
    """Return a line for each level; `error` is one standard error of `output_tokens_per_s`, if it was measured."""
    return text(LEVELS, (each | {ERROR: each[_SE]} for each in rows(summary)))


def text(names: Sequence[str], found: Iterable[Mapping[str, Cell]]) -> str:
    r"""Return rows as CSV text with the columns `names`, headings first; cells that a spreadsheet would run are quoted.

    >>> text(["a", "b"], [{"a": 0.5, "b": None}, {"a": 1, "b": "=2+2"}])
    "a,b\r\n0.5,\r\n1,'=2+2\r\n"
    """
    out = io.StringIO()
    lines = csv.writer(out)
    lines.writerow(names)
    lines.writerows([_plain(row[name]) for name in names] for row in found)
    return out.getvalue()


def _plain(cell: Cell) -> Cell:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


def _files(run: Run) -> dict[str, str]:
    made = {"levels.csv": levels(run.summary)}
    if run.has_requests:
        frame = run.requests.drop(columns=list(_LEFT_OUT)).astype(object)
        made["requests.csv"] = text(list(frame.columns), frame.where(frame.notna(), None).to_dict("records"))
    return made


EXPORTER = Exporter(files=_files, text=lambda run: levels(run.summary))
