"""The exports of `aiperf profile` and of its forerunner `genai-perf`: one level, a table a metric with its unit.

Fields: AIPerf, docs/reference/json-export-schema.md and exporters/csv_exporter.py. Its "inter token latency" is a mean
of each request, TPOT here; its gaps between chunks are ITL here. The CSV does not name the load.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from harness.results.readers.level import LACKS, Latencies, Reader, at, positive, text

_FORERUNNER = "genai-perf"


def _matches(document: Any) -> bool:
    return at(document, "output_token_throughput", "avg") is not None and at(document, "request_latency") is not None


def _load(document: Any) -> dict[str, Any]:
    """Return {"rate": …} or {"concurrency": …} of an AIPerf file, from the places where its versions keep them."""
    config, values = at(document, "input_config"), at(document, "run_info", "variation_values")
    phases = at(config, "phases")
    phases = [phase for phase in phases if text(phase, "name") != "warmup"] if isinstance(phases, list) else []
    stimulus = at(config, "perf_analyzer", "stimulus")  # genai-perf writes this
    places = [at(config, "loadgen"), *phases, stimulus, config]
    rates = [positive(place, "request_rate") or positive(place, "rate") for place in places]
    loads = [positive(values, "phases.profiling.concurrency"), *(positive(place, "concurrency") for place in places)]
    rate = next(filter(None, rates), None)
    return {"rate": rate} if rate else {"concurrency": next(filter(None, loads), None)}


def _facts(document: Any) -> dict[str, Any]:
    models = at(document, "input_config", "endpoint", "model_names") or at(document, "input_config", "model_names")
    named = isinstance(models, list) and models and isinstance(models[0], str)
    cut = {"lacks": (*LACKS, "its run was cancelled")} if at(document, "was_cancelled") is True else {}
    source = {"source": _FORERUNNER} if at(document, "input_config", "perf_analyzer") is not None else {}
    return {"model": models[0][:200] if named else None, **source, **cut}


def _matches_rows(rows: Sequence[Sequence[str]]) -> bool:
    return bool(rows) and list(rows[0][:2]) in (["Metric", "avg"], ["Metric", "Value"])


def _table(rows: Sequence[Sequence[str]]) -> list[dict[str, dict[str, str]]]:
    """Return AIPerf's CSV in the form of its JSON, {metric: {statistic: text}}; its blocks begin with headings."""
    table: dict[str, dict[str, str]] = {}
    heads: Sequence[str] = ()
    for row in rows:
        if row[:1] == ["Metric"]:
            heads = ["avg" if head == "Value" else head for head in row[1:]]
        elif row:
            name, _, unit = row[0].partition(" (")  # "Time to First Token (ms)"
            cells = dict(zip(heads, row[1:], strict=False))
            table[name.lower().replace(" ", "_")] = cells | {"unit": unit.removesuffix(")")}
    return [table]


JSON = Reader(
    name="aiperf",
    matches=_matches,
    figures={
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
    },
    latencies=Latencies(names={"mean": ("avg",)}, unit_at="{name}.unit"),
    more=_load,
    facts=_facts,
)
READERS = {"aiperf": (JSON, msgspec.structs.replace(JSON, matches=_matches_rows, levels=_table, rows=True))}
