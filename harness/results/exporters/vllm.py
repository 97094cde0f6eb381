"""A level as the result file of `vllm bench serve --save-result`.

Fields: vLLM, vllm/benchmarks/serve.py. Its ITL are gaps between chunks, ICL here. What that tool has no field for
comes after its own, as its `--metadata` would: whether the endpoint was simulated, the verdicts, and what a fit needs.
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

from harness.data.levels import LevelSummary
from harness.data.manifest import Manifest
from harness.results.exporters import Exporter, by_level, of_point, verdicts
from harness.spec.traffic import parse

_ENDPOINTS = {"chat": "openai-chat", "completions": "openai", "embeddings": "openai-embeddings"}  # vLLM's names
_STATISTICS = {"mean": "mean", "median": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}


def of_level(level: LevelSummary, manifest: Manifest, index: int = 0, simulated: bool = False) -> dict[str, Any]:
    """Return one level as plain data; milliseconds, null where Knee has no value."""
    endpoint = _ENDPOINTS.get(manifest.api or "chat", manifest.api)
    done = level.requests - level.errors - level.cancelled - (level.abandoned or 0)
    output, inputs = level.output_tokens_per_s.mean, level.input_tokens_per_s.mean
    fields: dict[str, Any] = {
        "date": _date(manifest.created),
        "endpoint_type": endpoint,
        "backend": endpoint,
        "label": manifest.name,
        "model_id": manifest.model,
        "tokenizer_id": None,
        "num_prompts": level.requests,
        "request_rate": "inf" if level.rate is None else level.rate,
        "burstiness": None if level.rate is None else _burstiness(manifest),
        "max_concurrency": level.concurrency,
        "duration": level.window_s,
        "completed": done,
        "failed": level.errors,
        "total_input_tokens": _total(level.input_tokens_mean, done),
        "total_output_tokens": _total(level.output_tokens_mean, done),
        "request_throughput": level.requests_per_s.mean,
        "request_goodput": level.goodput_requests_per_s,
        "output_throughput": output,
        "total_token_throughput": None if output is None or inputs is None else output + inputs,
    }
    spreads = {"ttft": level.ttft_s, "tpot": level.tpot_s, "itl": level.icl_s, "e2el": level.e2e_s}
    for name, spread in spreads.items():
        for theirs, ours in _STATISTICS.items():
            value = getattr(spread, ours)
            fields[f"{theirs}_{name}_ms"] = None if value is None else value * 1e3
    return fields | {"tool": "knee", "simulated": simulated, "verdicts": verdicts(level), **of_point(level)}


def _total(mean: float | None, n: int) -> float | None:
    """Return the tokens of all requests, by their mean; whole if they are whole but for rounding."""
    if mean is None:
        return None
    return round(mean * n) if abs(mean * n - round(mean * n)) < 1e-6 else mean * n


def _burstiness(manifest: Manifest) -> float | None:
    """Return the shape of the gamma distribution of the gaps: 1 for Poisson; None if arrivals have none."""
    arrivals = parse(manifest.scenario.ramp.arrivals)
    steady = arrivals.own_rate is None and arrivals.speed is None and math.isfinite(arrivals.shape)
    return arrivals.shape if steady else None


def _date(created: str | None) -> str | None:
    """Return the moment as that tool writes it; None if it is not known.

    >>> _date("2026-11-20T22:44:13+00:00")
    '20261120-224413'
    """
    try:
        return datetime.fromisoformat(created or "").strftime("%Y%m%d-%H%M%S")
    except ValueError:
        return None


EXPORTER = Exporter(files=lambda run: by_level(run, "vllm", of_level))
