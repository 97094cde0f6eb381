"""The exports of `aiperf profile`, profile_export_aiperf.json and .csv: one level, a table a metric with its unit.

Fields: AIPerf, docs/reference/json-export-schema.md and exporters/csv_exporter.py. Its "inter token latency" is a mean
of each request, TPOT here; its gaps between chunks are ITL here. The CSV does not name the load.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.results.readers.level import (
    MS,
    NO_ERROR,
    NO_SERVER,
    WHOLE_RUN,
    ForeignResult,
    Latencies,
    Reader,
    at,
    level,
    positive,
    text,
)

_NAME = "aiperf"
_FIGURES = {
    "output_tokens_per_s": "output_token_throughput.avg",
    "requests_per_s": "request_throughput.avg",
    "requests": "request_count.avg",
    "failed": "error_request_count.avg",
    "input_tokens_mean": "input_sequence_length.avg",
    "output_tokens_mean": "output_sequence_length.avg",
    "ttft_s": "time_to_first_token",
    "itl_s": "inter_chunk_latency",
    "tpot_s": "inter_token_latency",
    "e2e_s": "request_latency",
}
_LATENCIES = Latencies(
    at="{name}.{statistic}",
    names={"mean": ("avg",)},
    unit_at="{name}.unit",
    units={"ms": MS, "s": 1.0, "sec": 1.0, "us": 1e-6, "ns": 1e-9},
)


def _matches(found: Any) -> bool:
    return at(found, "output_token_throughput", "avg") is not None and at(found, "request_latency") is not None


def _read(found: Any) -> ForeignResult:
    concurrency, rate = _load(found)
    models = at(found, "input_config", "endpoint", "model_names")
    return ForeignResult(
        source=_NAME,
        levels=[level(found, _FIGURES, _LATENCIES, concurrency=concurrency, rate=rate)],
        model=models[0][:200] if isinstance(models, list) and models and isinstance(models[0], str) else None,
        lacks=(WHOLE_RUN, NO_ERROR, NO_SERVER),
    )


def _load(found: Any) -> tuple[float | None, float | None]:
    """Return requests in flight, or requests per second, from where the versions keep them."""
    config, values = at(found, "input_config"), at(found, "run_info", "variation_values")
    phases = at(config, "phases")
    phases = [each for each in phases if text(each, "name") != "warmup"] if isinstance(phases, list) else []
    places = [at(config, "loadgen"), *phases]
    rates = [positive(each, "request_rate") or positive(each, "rate") for each in places]
    rate = next((each for each in rates if each), None)
    loads = [positive(values, "phases.profiling.concurrency"), *(positive(each, "concurrency") for each in places)]
    return (None, rate) if rate else (next((each for each in loads if each), None), None)


def _matches_rows(rows: Sequence[Sequence[str]]) -> bool:
    return bool(rows) and list(rows[0][:2]) in (["Metric", "avg"], ["Metric", "Value"])


def _read_rows(rows: Sequence[Sequence[str]]) -> ForeignResult:
    """Read the CSV as the JSON would have it: its blocks begin with a line of headings."""
    found: dict[str, dict[str, str]] = {}
    heads: Sequence[str] = ()
    for row in rows:
        if row[:1] == ["Metric"]:
            heads = ["avg" if head == "Value" else head for head in row[1:]]
        elif row:
            name, _, unit = row[0].partition(" (")  # "Time to First Token (ms)"
            cells = dict(zip(heads, row[1:], strict=False))
            found[name.lower().replace(" ", "_")] = cells | {"unit": unit.removesuffix(")")}
    return _read(found)


READERS = (
    Reader(name=_NAME, matches=_matches, read=_read),
    Reader(name=_NAME, matches=_matches_rows, read=_read_rows, rows=True),
)
