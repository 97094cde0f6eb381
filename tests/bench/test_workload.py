"""What bench/workload replays, and the server that it replays it against."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    path = Path(__file__).parents[2] / "bench/workload.py"
    spec = importlib.util.spec_from_file_location("bench_workload", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_trace_has_its_rate_and_one_long_prompt_in_so_many(tmp_path: Path, bench: ModuleType) -> None:
    bench.trace(tmp_path / "t.jsonl", 5_000, 2_000.0)
    rows = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert len(rows) == 5_000
    assert rows[-1]["at_s"] == pytest.approx(2.5, rel=0.1)
    assert [row["input_tokens"] for row in rows].count(32_000) == 10


def test_the_server_answers_a_request_once_it_is_whole(bench: ModuleType) -> None:
    body = b'{"messages":[{"content":" one two three"}]}'
    request = b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    inbox = bytearray(request[:-1])
    assert bench.answered(inbox) == b""
    inbox += request[-1:]
    answer = bench.answered(inbox)
    head, _, events = answer.partition(b"\r\n\r\n")
    assert f"content-length: {len(events)}".encode() in head
    assert b'"prompt_tokens":3' in events
    assert not inbox
