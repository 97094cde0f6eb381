"""The table of `knee export --to csv`: a line a level, its columns those of `results.exports.rows`.

Its verdicts say which levels are no points of a curve, and which errors were assumed: its curve is the folder's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from harness.base.errors import HarnessError
from harness.data.judgement import Gravity
from harness.results.exports.table import LEVELS
from harness.results.foreign import knee
from harness.results.foreign.fields import number, positive, whole
from harness.results.foreign.measured import NO_SERVER, ForeignLevel, ForeignResult, Latency
from harness.results.points import ERROR, LOAD, PLAIN, RATE

_NO = ("", "false", "falsch", "faux", "falso", "onwaar", "0")
FIT_ERROR_ASSUMED = "fit_error_assumed"  # the code of the rule, which is above this room
_NEEDED = (LOAD, "rate", RATE, ERROR)
_DECIMAL = re.compile(r"-?\d+,\d+(E[+-]?\d+)?", re.IGNORECASE)


def matches_rows(rows: Sequence[Sequence[str]]) -> bool:
    return bool(rows) and list(rows[0]) == list(LEVELS)


def read_rows(rows: Sequence[Sequence[str]], separator: str, place: str) -> ForeignResult:
    """Its levels; HarnessError where a cell may be another number than it seems.

    Where the columns are not separated by commas, these are decimal points: so a spreadsheet saves the table.
    """
    found = [
        _checked(dict(zip(LEVELS, row, strict=False)), separator, f"{place}, line {line}")
        for line, row in enumerate(rows[1:], 2)
        if row
    ]
    return ForeignResult(
        source=knee.NAME,
        levels=[_level(row) for row in found],
        simulated=any(_simulated(row) for row in found),
        lacks=(NO_SERVER,),
    )


def _checked(row: dict[str, str], separator: str, place: str) -> dict[str, str]:
    """The row with decimal points."""
    if separator != ",":
        row = {name: cell.replace(",", ".") if _DECIMAL.fullmatch(cell.strip()) else cell for name, cell in row.items()}
    for name, cell in row.items():
        unread = name in _NEEDED and cell.strip() and number(row, name) is None
        if unread or ("," in cell and name != "verdicts"):
            raise HarnessError(f"{name} {cell[:40]!r} is not a number", place=place, way_out=PLAIN)
    return row


def _simulated(row: dict[str, str]) -> bool:
    """Whether the row says so, in a spreadsheet's language as well: only no is no."""
    return row.get("simulated", "").strip().lower() not in _NO


def _level(row: dict[str, str]) -> ForeignLevel:
    began, *others = (number(row, name) or 0.0 for name in ("requests", "errors", "cancelled", "abandoned"))
    X, se, verdicts = number(row, "output_tokens_per_s"), positive(row, ERROR), row.get("verdicts", "").split()
    valid, in_flight_ok = knee.validity(verdicts)
    ended = (number(row, "requests_per_s") or 0.0) * (number(row, "window_s") or 0.0)
    assumed = se is None and f"{Gravity.NOTE}:{FIT_ERROR_ASSUMED}" in verdicts
    return ForeignLevel(
        concurrency=positive(row, "concurrency"),
        rate=positive(row, "rate"),
        in_flight=positive(row, "in_flight"),
        output_tokens_per_s=X,
        se=X / math.sqrt(max(1.0, ended)) if assumed and X else se,
        se_assumed=assumed,
        valid=valid,
        in_flight_ok=in_flight_ok,
        requests_per_s=number(row, "requests_per_s"),
        requests=round(began - sum(others)) or None,
        failed=whole(row, "errors"),
        input_tokens_mean=number(row, "input_tokens_mean"),
        output_tokens_mean=number(row, "output_tokens_mean"),
        ttft_s=_latency(row, "ttft"),
        itl_s=_latency(row, "icl"),
        tpot_s=_latency(row, "tpot"),
        itl_mean_s=number(row, "itl_mean_s"),
        e2e_s=_latency(row, "e2e"),
    )


def _latency(row: dict[str, str], name: str) -> Latency:
    mean, p50, p90, p95, p99 = (number(row, f"{name}_{each}_s") for each in ("mean", "p50", "p90", "p95", "p99"))
    return Latency(mean=mean, p50=p50, p90=p90, p95=p95, p99=p99)
