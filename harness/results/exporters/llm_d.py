"""A level as llm-d's benchmark report, version 0.2, as JSON, which is YAML too.

Fields: llm-d-benchmark, llmdbenchmark/analysis/benchmark_report, schema_v0_2.py. A statistic there needs a mean, an
engine its accelerator: what Knee does not know of these is left out. Its ITL are gaps between chunks, ICL here.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from datetime import UTC, datetime
from typing import Any

from msgspec import UNSET

from harness.base import __version__
from harness.data.levels import LevelSummary
from harness.data.manifest import Manifest
from harness.data.views import Spread
from harness.results.exporters import Exporter, by_level, of_point, verdicts

VERSION = "0.2"
_PERCENTILES = ("p50", "p90", "p95", "p99", "max")


def of_level(level: LevelSummary, manifest: Manifest, index: int = 0, simulated: bool = False) -> dict[str, Any]:
    """Return one level as plain data; `index` is its place in the run."""
    return {
        "version": VERSION,
        "run": _run(level, manifest, index, simulated=simulated),
        "scenario": _present({"stack": _stack(manifest), "load": _load(level, manifest, index)}),
        "results": {"request_performance": {"aggregate": _aggregate(level)}},
    }


def _run(level: LevelSummary, manifest: Manifest, index: int, *, simulated: bool) -> dict[str, Any]:
    run = uuid.uuid5(uuid.NAMESPACE_OID, f"{manifest.created} {manifest.scenario_digest}")
    found: dict[str, Any] = {
        "uid": str(uuid.uuid5(run, str(index))),
        "eid": str(run),
        "description": "SIMULATED: no GPU was measured" if simulated else manifest.name,
        "keywords": ["knee", *["simulated"] * simulated, *verdicts(level), *_pairs(of_point(level))],
    }
    if manifest.clock is not UNSET:
        start, end = (datetime.fromtimestamp(manifest.clock.unix_origin + at, UTC).isoformat() for at in level.window)
        found["time"] = {"start": start, "end": end, "duration": f"PT{level.window_s:.6f}S"}
    return _present(found)


def _pairs(fields: dict[str, Any]) -> list[str]:
    """Return fields as words, since the schema has no place for others."""
    return [f"{name}={json.dumps(value)}" for name, value in fields.items() if value is not None]


def _load(level: LevelSummary, manifest: Manifest, index: int) -> dict[str, Any] | None:
    workload = manifest.scenario.workload
    inputs = _length(workload.input_tokens, level.input_tokens_mean)
    if inputs is None:
        return None
    standardized = {
        "tool": "knee",
        "tool_version": manifest.harness_version or __version__,
        "parallelism": manifest.client.workers,
        "source": "sampled" if workload.dataset else "random",
        "stage": index,
        "input_seq_len": inputs,
        "output_seq_len": _length(workload.output_tokens, level.output_tokens_mean),
        "rate_qps": level.rate,
        "concurrency": level.concurrency,
    }
    return {"metadata": {}, "standardized": _present(standardized), "native": {}}


def _length(asked: object, mean: float | None) -> dict[str, Any] | None:
    """Return a length as it was asked for; of a distribution the mean of what was sent."""
    if isinstance(asked, int):
        return {"distribution": "fixed", "value": asked}
    return None if mean is None else {"distribution": "other", "value": mean}


def _stack(manifest: Manifest) -> list[dict[str, Any]] | None:
    """Return the engine, where its model, its GPUs and its name are known."""
    server, hardware = manifest.server, manifest.scenario.hardware
    if not (manifest.model and manifest.gpu and manifest.gpus and server.get("name")):
        return None
    tp = hardware.tp or 1
    replicas = max(1, manifest.gpus // tp)
    accelerator = {"model": manifest.gpu, "count": tp, "parallelism": {"tp": tp}}
    engine = {
        "kind": "inference_engine",
        "tool": str(server["name"]),
        "tool_version": str(server.get("version") or "unknown"),
        "role": "replica",
        "replicas": replicas,
        "model": {"name": manifest.model},
        "accelerator": accelerator,
    }
    digest = hashlib.sha256(json.dumps(engine, sort_keys=True).encode()).hexdigest()
    return [{"metadata": {"label": "engine", "cfg_id": digest[:16]}, "standardized": engine, "native": {}}]


def _aggregate(level: LevelSummary) -> dict[str, Any]:
    requests = {
        "total": level.requests,
        "failures": level.errors,
        "incomplete": level.cancelled,
        "input_length": _mean(level.input_tokens_mean, "count"),
        "output_length": _mean(level.output_tokens_mean, "count"),
    }
    throughput = {
        "input_token_rate": _mean(level.input_tokens_per_s.mean, "tokens/s"),
        "output_token_rate": _mean(level.output_tokens_per_s.mean, "tokens/s"),
        "request_rate": _mean(level.requests_per_s.mean, "queries/s"),
    }
    latency = {
        "time_to_first_token": _statistics(level.ttft_s, "s"),
        "time_per_output_token": _statistics(level.tpot_s, "s/token"),
        "inter_token_latency": _statistics(level.icl_s, "s/token"),
        "request_latency": _statistics(level.e2e_s, "s"),
    }
    return {"requests": _present(requests), "latency": _present(latency), "throughput": _present(throughput)}


def _mean(value: float | None, units: str) -> dict[str, Any] | None:
    return None if value is None else {"units": units, "mean": value}


def _statistics(spread: Spread, units: str) -> dict[str, Any] | None:
    found = _mean(spread.mean, units)
    return found and found | _present({name: getattr(spread, name) for name in _PERCENTILES})


def _present(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


EXPORTER = Exporter(files=lambda run: by_level(run, "llm-d", of_level))
