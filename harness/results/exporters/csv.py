"""The levels of a summary as flat rows, and as CSV: one name a figure, its unit at the name's end.

A figure without a value is None, and an empty cell. The columns `concurrency`, `output_tokens_per_s` and `error` are
those by which `knee fit` reads the table.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

from harness.data.levels import LevelSummary
from harness.data.summary import Summary
from harness.data.views import Estimate, Spread
from harness.results.exporters import Exporter, Run, of_point

LOAD, RATE, ERROR = "concurrency", "output_tokens_per_s", "error"
Cell = str | int | float | bool | None

PLAIN = (
    "concurrency", "rate", "repeat", "in_flight", "window_s", "requests", "errors", "cancelled", "abandoned",
    "error_rate", "input_tokens_mean", "output_tokens_mean",
)  # fmt: skip
ESTIMATES = ("output_tokens_per_s", "input_tokens_per_s", "requests_per_s", "documents_per_s")
MORE = (
    "output_tokens_per_s_per_gpu", "tokens_per_s_per_user", "tokens_per_chunk", "cached_input_fraction",
    "goodput_requests_per_s", "slo_met_fraction",
)  # fmt: skip
SPREADS = ("ttft_s", "ttfat_s", "itl_s", "icl_s", "tpot_s", "e2e_s", "lag_s")
STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")
SERVICE = (
    "assumed_error", "in_service", "in_service_most", "in_service_most_fraction", "server_running", "server_waiting",
)  # fmt: skip
_NONE = Estimate(None)
NAMES = (
    *PLAIN,
    *(f"{name}{end}" for name in ESTIMATES for end in ("", "_low", "_high")),
    "output_tokens_per_s_se",
    *MORE,
    *(f"{name.removesuffix('_s')}_{each}_s" for name in SPREADS for each in STATISTICS),
    *SERVICE,
    "verdicts",
    "simulated",
)
_SE = "output_tokens_per_s_se"
LEVELS = (LOAD, RATE, ERROR, *(name for name in NAMES if name not in (LOAD, RATE, _SE)))
_LEFT_OUT = ("arrivals_s", "arrival_tokens", "error_message")  # of requests.csv: lists, and text of any length
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would take a text that begins so for a formula


def rows(summary: Summary) -> list[dict[str, Cell]]:
    """Return a row for each level, in the order of measuring; every row has the same names in the same order."""
    return [row(level) | {"simulated": summary.simulated} for level in summary.levels]


def row(level: LevelSummary) -> dict[str, Cell]:
    """Return the figures of one level: of an estimate the mean and its 95 % interval, of a spread each statistic."""
    found: dict[str, Cell] = {name: getattr(level, name) for name in PLAIN} | {"abandoned": level.abandoned or None}
    for name in ESTIMATES:
        estimate: Estimate = getattr(level, name) or _NONE  # one that is not in the file is false
        low, high = estimate.ci95 or (None, None)
        found |= {name: estimate.mean, f"{name}_low": low, f"{name}_high": high}
    # An error that was assumed is a weight, not a measurement.
    se = None if level.output_tokens_per_s_se_assumed else level.output_tokens_per_s_se
    found |= {"output_tokens_per_s_se": se, **{name: getattr(level, name) for name in MORE}}
    for name in SPREADS:
        spread: Spread = getattr(level, name)
        found |= {f"{name.removesuffix('_s')}_{each}_s": getattr(spread, each) for each in STATISTICS}
    weight = level.output_tokens_per_s_se if level.output_tokens_per_s_se_assumed else None
    found |= {"assumed_error": weight, **{name: each for name, each in of_point(level).items() if name in SERVICE}}
    return found | {"verdicts": " ".join(dict.fromkeys(f"{each.level}:{each.code}" for each in level.verdicts))}


def levels(summary: Summary) -> str:
    """Return a line for each level; `error` is one standard error of `output_tokens_per_s`, where it was measured."""
    return text(LEVELS, (each | {ERROR: each[_SE]} for each in rows(summary)))


def text(names: Sequence[str], found: Iterable[Mapping[str, Cell]]) -> str:
    r"""Return the columns of these names, with a heading.

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
