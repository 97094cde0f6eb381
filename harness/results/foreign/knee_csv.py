"""The table of `knee export --to csv`: a line a level, its columns those of `results.exports.rows`."""

from __future__ import annotations

from collections.abc import Sequence

from harness.results.exports.table import LEVELS
from harness.results.foreign.fields import number, positive
from harness.results.foreign.measured import NO_SERVER, ForeignLevel, ForeignResult, Latency
from harness.results.points import ERROR

NAME = "knee"


def matches_rows(rows: Sequence[Sequence[str]]) -> bool:
    return bool(rows) and list(rows[0]) == list(LEVELS)


def read_rows(rows: Sequence[Sequence[str]]) -> ForeignResult:
    levels = [_level(dict(zip(LEVELS, row, strict=False))) for row in rows[1:] if row]
    return ForeignResult(source=NAME, levels=levels, lacks=(NO_SERVER,))


def _level(row: dict[str, str]) -> ForeignLevel:
    began, *others = (number(row, name) or 0.0 for name in ("requests", "errors", "cancelled", "abandoned"))
    return ForeignLevel(
        concurrency=positive(row, "concurrency"),
        rate=positive(row, "rate"),
        in_flight=positive(row, "in_flight"),
        output_tokens_per_s=number(row, "output_tokens_per_s"),
        se=positive(row, ERROR),
        requests_per_s=number(row, "requests_per_s"),
        requests=round(began - sum(others)) or None,
        input_tokens_mean=number(row, "input_tokens_mean"),
        output_tokens_mean=number(row, "output_tokens_mean"),
        ttft_s=_latency(row, "ttft"),
        itl_s=_latency(row, "icl"),
        tpot_s=_latency(row, "tpot"),
        e2e_s=_latency(row, "e2e"),
    )


def _latency(row: dict[str, str], name: str) -> Latency:
    mean, p50, p90, p95, p99 = (number(row, f"{name}_{each}_s") for each in ("mean", "p50", "p90", "p95", "p99"))
    return Latency(mean=mean, p50=p50, p90=p90, p95=p95, p99=p99)
