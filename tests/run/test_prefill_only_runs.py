"""Whole runs of embeddings and rerank, against a server that counts words with the special tokens of BERT."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import pytest

from harness.data.summary import Summary
from harness.results.result import Result


def tokens(body: dict[str, Any]) -> list[int]:
    """[CLS] text [SEP], or [CLS] query [SEP] document [SEP]."""
    if "input" in body:
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        return [len(text.split()) + 2 for text in texts]
    return [len(body["query"].split()) + len(text.split()) + 3 for text in body["documents"]]


class Encoder(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        found = {"data": [{"id": "encoder"}]} if self.path == "/v1/models" else None
        self.said(200 if found else 404, found or {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        counts = tokens(body)
        usage = {"prompt_tokens": sum(counts), "total_tokens": sum(counts)}
        data = [{"index": i, "object": "embedding", "embedding": [0.5]} for i in range(len(counts))]
        results = [{"index": i, "relevance_score": 0.5} for i in range(len(counts))]
        self.said(200, {"usage": usage} | ({"data": data} if "input" in body else {"results": results}))

    def said(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in (("Content-Type", "application/json"), ("Content-Length", str(len(data)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Encoder) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "texts"), [("embeddings", 1), ("embeddings", 3), ("rerank", 4)])
def test_a_run_counts_what_the_server_counted(scenario: str, texts: int, url: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "harness", "run", scenario, "--url", url, "--inputs", str(texts)]
    command += ["--input-tokens", "40", "--levels", "1,2", "--level-seconds", "1", "--out", str(out), "--quiet"]
    done = subprocess.run([*command, "--no-plots"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 3), done.stderr  # 3: this machine was too busy for the client
    run = Result.open(out)
    assert {r.input_tokens for r in run.records if not r.error} == {40 * texts}
    assert {(r.output_tokens, r.first_token_s, r.arrivals) for r in run.records if not r.error} == {(None, None, b"")}
    summary = msgspec.json.decode((out / "summary.json").read_bytes(), type=Summary)
    assert (summary.unit, run.manifest.unit) == ("input tokens", "input tokens")
    for level in summary.levels:
        assert level.documents_per_s
        assert level.documents_per_s.mean == pytest.approx(texts * (level.requests_per_s.mean or 0))
        assert level.throughput.mean == pytest.approx(40 * texts * (level.requests_per_s.mean or 0), rel=0.02)
        assert (level.itl_s.n, level.ttft_s.n) == (0, 0)
    assert "ITL" not in (out / "report.md").read_text()


def test_the_simulated_endpoint_is_none_of_such_an_api() -> None:
    command = [sys.executable, "-m", "harness", "run", "embeddings", "--url", "sim:"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "'sim:' generates text" in done.stderr
