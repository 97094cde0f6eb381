"""The levels as OpenTelemetry metrics, in OTLP's JSON: a file that `otlpjsonfile` reads, or sent to a collector.

Encoding: opentelemetry-proto, docs/specification.md (JSON Protobuf Encoding): camel case, 64-bit integers as text. Each
figure is a gauge with a point a level, of the level's window. A figure that was not measured has no point.

Protocol: opentelemetry.io/docs/specs/otlp (OTLP/HTTP); headers by OTEL_EXPORTER_OTLP_HEADERS, `name=value` with commas
between, values percent-encoded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec
from msgspec import UNSET

from harness.base import __version__
from harness.base.errors import HarnessError
from harness.data.figures import Declared
from harness.data.levels import LevelSummary
from harness.data.manifest import Manifest
from harness.data.summary import Summary
from harness.data.views import Spread
from harness.results.exporters import Exporter
from harness.results.exporters.csv import FIGURES, Cell, columns, row

_PATH = "/v1/metrics"
_HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"
_TIMEOUT_S = 10.0  # OpenTelemetry's own


def of_run(summary: Summary, manifest: Manifest) -> dict[str, Any]:
    """Return all levels as one request of OTLP; moments are 0, which is unknown there, where the run's clock is."""
    about: dict[str, Cell] = {
        "service.name": "knee",
        "knee.run": manifest.scenario_digest,
        "knee.scenario": manifest.name,
        "knee.model": manifest.model,
        "knee.gpu": manifest.gpu,
        "knee.simulated": summary.simulated,
    }
    scope = {"name": "knee", "version": manifest.harness_version or __version__}
    rows = [(level, row(level)) for level in summary.levels]
    metrics = [_metric(figure, rows, manifest) for figure in FIGURES.values()]
    found = [metric for metric in metrics if metric["gauge"]["dataPoints"]]
    resource = {"attributes": _attributes(about)}
    return {"resourceMetrics": [{"resource": resource, "scopeMetrics": [{"scope": scope, "metrics": found}]}]}


def _metric(
    figure: Declared, rows: Sequence[tuple[LevelSummary, Mapping[str, Cell]]], manifest: Manifest
) -> dict[str, Any]:
    """Return a gauge; of a latency each statistic is a point of its own."""
    times, points = figure.kind is Spread, []
    for level, figures in rows:
        common = {"concurrency": level.concurrency, "rate": level.rate, "repeat": level.repeat}
        for column, part in columns(figure).items():
            value = figures[column]
            if isinstance(value, int | float) and (times or not part):
                labels = _attributes({**common, "statistic": part})
                points.append({**_window(level, manifest), "asDouble": value, "attributes": labels})
    name = figure.name.removesuffix("_s") if times else figure.name
    return {"name": f"knee.{name}", "unit": _ucum(figure.about.unit), "gauge": {"dataPoints": points}}


def _ucum(unit: str) -> str:
    """Return a unit as OpenTelemetry asks for: what is counted is in braces.

    >>> _ucum("token/s"), _ucum("request"), _ucum("1"), _ucum("s")
    ('{token}/s', '{request}', '1', 's')
    """
    counted, per, time = unit.partition("/")
    return unit if counted in ("1", "s") else f"{{{counted}}}{per}{time}"


def _window(level: LevelSummary, manifest: Manifest) -> dict[str, str]:
    if manifest.clock is UNSET:
        return {"startTimeUnixNano": "0", "timeUnixNano": "0"}
    start, end = (str(round((manifest.clock.unix_origin + at) * 1e9)) for at in level.window)
    return {"startTimeUnixNano": start, "timeUnixNano": end}


def _attributes(values: Mapping[str, Cell]) -> list[dict[str, Any]]:
    """Return OTLP's attributes of those that have a value.

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


# ---- to a collector -------------------------------------------------------------------------------------------------


def post(document: dict[str, Any], address: str) -> str:
    """Send it, and return what became of it in a line; HarnessError where the collector did not take it."""
    import httpx

    try:
        url = httpx.URL(address)
        if not url.path.rstrip("/").endswith(_PATH):
            url = url.copy_with(path=url.path.rstrip("/") + _PATH)
        place = str(url.copy_with(userinfo=b"", query=None))  # either may hold a secret
    except httpx.InvalidURL:
        raise HarnessError("no address", place="--out", way_out="give http://HOST:4318") from None
    headers = {**_headers(os.environ.get(_HEADERS, "")), "Content-Type": "application/json"}
    content = msgspec.json.encode(document)
    try:
        answer = httpx.post(url, content=content, headers=headers, timeout=_TIMEOUT_S, trust_env=False)
    except (httpx.HTTPError, UnicodeError) as error:
        fact = f"the collector was not reached ({type(error).__name__})"
        raise HarnessError(fact, place=place, way_out="see that it runs and takes OTLP over HTTP") from None
    if not answer.is_success or "rejectedDataPoints" in answer.text:
        fact = f"the collector answered {answer.status_code} and did not take all points: {answer.text[:200]!r}"
        raise HarnessError(fact, place=place, way_out=f"see its log, and {_HEADERS}")
    return f"{place}: sent"


def _headers(text: str) -> dict[str, str]:
    """Return the headers of the variable; its values are never shown.

    >>> _headers("api-key=a%20b, tenant=x")
    {'api-key': 'a b', 'tenant': 'x'}
    """
    pairs = [(name.strip(), unquote(value.strip())) for name, _, value in (e.partition("=") for e in text.split(","))]
    if text and not all(name and value and f"{name}{value}".isascii() for name, value in pairs):
        raise HarnessError("not name=value with commas between", place=_HEADERS, way_out="percent-encode the values")
    return dict(pairs) if text else {}


EXPORTER = Exporter(
    files=lambda run: {"metrics.otlp.json": of_run(run.summary, run.manifest)},
    send=lambda run, address: post(of_run(run.summary, run.manifest), address),
)
