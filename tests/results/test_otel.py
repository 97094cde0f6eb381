"""Metrics to a collector: what arrives, and what is said where it is not taken."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from harness.base.errors import HarnessError
from harness.results.exporters import otel
from tests.builders.summaries import MANIFEST, full


class Collector(HTTPServer):
    status, answer = 200, b"{}"

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        self.address = f"http://127.0.0.1:{self.server_port}"


class Receiver(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.answer)))
        self.end_headers()
        self.wfile.write(self.server.answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_metrics_arrive_with_the_headers(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b,tenant=x")
    document = otel.of_run(full(), MANIFEST)
    assert otel.post(document, collector.address) == f"{collector.address}/v1/metrics: sent"
    ((path, headers, body),) = collector.got
    assert (path, headers["api-key"], headers["tenant"]) == ("/v1/metrics", "a b", "x")
    assert headers["content-type"] == "application/json"
    assert json.loads(body) == document


def test_opentelemetrys_own_types_read_what_arrives(collector: Collector) -> None:
    reason = "opentelemetry-proto is not installed"
    service = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2", reason=reason)
    json_format = pytest.importorskip("google.protobuf.json_format", reason=reason)
    otel.post(otel.of_run(full(), MANIFEST), collector.address)
    found = json_format.Parse(collector.got[0][2], service.ExportMetricsServiceRequest())
    assert "knee.ttft" in {metric.name for metric in found.resource_metrics[0].scope_metrics[0].metrics}


def test_refused_points_are_reported(collector: Collector) -> None:
    collector.answer = b'{"partialSuccess": {"rejectedDataPoints": "3", "errorMessage": "too old"}}'
    with pytest.raises(HarnessError, match=r"/v1/metrics: the collector answered 200 .*: .*too old"):
        otel.post({}, collector.address + "/v1/metrics")


@pytest.mark.parametrize("status", [401, 503])
def test_a_refusal_is_one_line(collector: Collector, status: int) -> None:
    collector.status = status
    with pytest.raises(HarnessError, match=f"the collector answered {status}") as caught:
        otel.post({}, collector.address)
    assert "\n" not in str(caught.value)


def test_no_collector_is_one_line_without_the_password() -> None:
    with pytest.raises(HarnessError, match="was not reached") as caught:
        otel.post({}, "http://user:secret@127.0.0.1:1?key=secret")
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_broken_headers_are_named_without_their_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "secret")
    with pytest.raises(HarnessError, match="OTEL_EXPORTER_OTLP_HEADERS") as caught:
        otel.post({}, "http://127.0.0.1:1")
    assert "secret" not in str(caught.value)
