"""The levels as OpenTelemetry metrics, in OTLP's JSON: what `POST /v1/metrics` takes and `otlpjsonfile` reads.

Encoding: opentelemetry-proto, docs/specification.md (JSON Protobuf Encoding): camel case, 64-bit integers as text. Each
figure is a gauge with a point a level, of the level's window. A figure that was not measured has no point.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET

from harness.base.version import __version__
from harness.data.manifest import Manifest
from harness.data.summary import LevelSummary, Summary
from harness.results.exports import rows
from harness.results.exports.rows import Cell

_UNITS = {  # UCUM, as OpenTelemetry asks for: what is counted stands in braces
    "in_flight": "{request}", "requests": "{request}", "errors": "{request}", "cancelled": "{request}",
    "abandoned": "{request}", "error_rate": "1", "input_tokens_mean": "{token}", "output_tokens_mean": "{token}",
    "output_tokens_per_s": "{token}/s", "input_tokens_per_s": "{token}/s", "requests_per_s": "{request}/s",
    "documents_per_s": "{document}/s", "output_tokens_per_s_per_gpu": "{token}/s", "tokens_per_s_per_user": "{token}/s",
    "goodput_requests_per_s": "{request}/s", "slo_met_fraction": "1", "cached_input_fraction": "1",
}  # fmt: skip


def of_run(summary: Summary, manifest: Manifest) -> dict[str, Any]:
    """All levels as one request of OTLP; moments are 0, which is unknown there, where the run's clock is."""
    about: dict[str, Cell] = {
        "service.name": "knee",
        "knee.run": manifest.scenario_digest,
        "knee.scenario": manifest.name,
        "knee.model": manifest.model,
        "knee.gpu": manifest.gpu,
        "knee.simulated": summary.simulated,
    }
    scope = {"name": "knee", "version": manifest.harness_version or __version__}
    metrics = [_metric(name, unit, summary, manifest) for name, unit in _UNITS.items()]
    metrics += [_metric(name.removesuffix("_s"), "s", summary, manifest) for name in rows.SPREADS]
    found = [metric for metric in metrics if metric["gauge"]["dataPoints"]]
    resource = {"attributes": _attributes(about)}
    return {"resourceMetrics": [{"resource": resource, "scopeMetrics": [{"scope": scope, "metrics": found}]}]}


def _metric(name: str, unit: str, summary: Summary, manifest: Manifest) -> dict[str, Any]:
    """A gauge; of a latency each statistic is a point of its own."""
    points = []
    for level in summary.levels:
        row = rows.row(level)
        common = {"concurrency": level.concurrency, "rate": level.rate, "repeat": level.repeat}
        for each in rows.STATISTICS if unit == "s" else (None,):
            value = row[name if each is None else f"{name}_{each}_s"]
            if isinstance(value, int | float):
                labels = _attributes({**common, "statistic": each})
                points.append({**_window(level, manifest), "asDouble": value, "attributes": labels})
    return {"name": f"knee.{name}", "unit": unit, "gauge": {"dataPoints": points}}


def _window(level: LevelSummary, manifest: Manifest) -> dict[str, str]:
    if manifest.clock is UNSET:
        return {"startTimeUnixNano": "0", "timeUnixNano": "0"}
    start, end = (str(round((manifest.clock.unix_origin + at) * 1e9)) for at in level.window)
    return {"startTimeUnixNano": start, "timeUnixNano": end}


def _attributes(values: Mapping[str, Cell]) -> list[dict[str, Any]]:
    """OTLP's attributes of those that have a value.

    >>> _attributes({"concurrency": 8, "rate": None, "statistic": "p50"})
    [{'key': 'concurrency', 'value': {'intValue': '8'}}, {'key': 'statistic', 'value': {'stringValue': 'p50'}}]
    """
    return [
        {"key": name, "value": _value(value)} for name, value in values.items() if value is not None and value != ""
    ]


def _value(value: Cell) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}
