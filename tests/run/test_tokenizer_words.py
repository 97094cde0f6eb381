"""A tokenizer by its name: where no hub answers, that is found by one short question."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from harness.run.launch import words

constants = pytest.importorskip("huggingface_hub.constants")


class _Refuses(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(403)

    def log_message(self, *_: object) -> None:  # type: ignore[override]
        """Print nothing."""


@pytest.fixture
def refusing_hub() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refuses) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_hub_that_refuses_is_there_and_one_that_nobody_is_at_is_not(
    refusing_hub: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(constants, "ENDPOINT", refusing_hub)
    assert words._hub_answers()
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert not words._hub_answers()


def test_a_name_that_is_not_in_the_cache_is_not_tried_again_and_again_without_a_hub(tmp_path: Path) -> None:
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    environ |= {"HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, "-m", "harness.run.launch.words", "org/name"]
    done = subprocess.run(command, capture_output=True, check=False, env=environ, timeout=120)
    assert done.returncode == 0
    assert b"_Failed" in done.stdout
    assert b"Retry" not in done.stderr
