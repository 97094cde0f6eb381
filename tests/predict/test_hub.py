"""A model's config from the hub, through its own client and a real socket: what a hub answers, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from harness.predict.catalog import model_config

pytestmark = pytest.mark.slow

NAME = "some-lab/own-7b"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = json.dumps(model_config("llama-2-7b") | {"num_hidden_layers": 30}).encode()  # as nothing that is shipped


class Hub(ThreadingHTTPServer):
    """One public model and one that needs a token, by the hub's route for a file: /NAME/resolve/REVISION/FILE."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, str, str | None]] = []  # method, path, authorisation

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        token = self.headers["Authorization"]
        self.server.requests.append((self.command, self.path, token))
        if self.path == f"/{NAME}/resolve/main/config.json":
            self.send(200, CONFIG, {"X-Repo-Commit": COMMIT, "ETag": '"a1b2c3"', "Content-Type": "application/json"})
        elif self.path == "/some-lab/closed/resolve/main/config.json" and token != "Bearer hf_right":
            message = "Access to model some-lab/closed is restricted. You must be authenticated to access it."
            self.send(401, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": message})
        elif self.path.startswith("/some-lab/closed/"):
            self.send(200, CONFIG, {"X-Repo-Commit": COMMIT, "ETag": '"a1b2c3"'})
        elif self.path.startswith("/some-lab/bare/"):
            head = {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found", "X-Repo-Commit": COMMIT}
            self.send(404, b"", head)
        else:
            self.send(404, b"", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})

    def send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def knee(hub: Hub | None, home: Path, name: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """`knee predict` in a process of its own: the hub's client takes its address when it is imported."""
    pytest.importorskip("huggingface_hub")
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    environ |= {"HF_HOME": str(home), "HF_ENDPOINT": hub.url if hub else "http://127.0.0.1:9", **more}
    environ |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    command = [sys.executable, "-m", "harness", "predict", "--model", name, "--gpu", "h100-sxm", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environ)


def test_a_name_that_is_not_shipped_is_looked_up_at_the_hub_once(hub: Hub, tmp_path: Path) -> None:
    got = knee(hub, tmp_path, NAME, "--hub", "--json")
    assert got.returncode == 0, got.stderr
    found = json.loads(got.stdout)
    assert found["model"] == NAME
    assert found["assumptions"]["kv_bytes_per_token"] == 2 * 30 * 4096 * 2  # its own 30 layers, not a shipped model's
    path = f"/{NAME}/resolve/main/config.json"
    files = [each for each in hub.requests if "/resolve/" in each[1]]
    beside = f"/{NAME}/resolve/main/hf_quant_config.json"  # which this one does not have
    assert files == [("HEAD", path, None), ("GET", path, None), ("HEAD", beside, None)]
    again = knee(None, tmp_path, NAME, "--hub", "--json")  # nobody listens there: it is kept
    assert json.loads(again.stdout) == found, again.stderr


def test_without_hub_no_name_leaves_this_machine(hub: Hub, tmp_path: Path) -> None:
    got = knee(hub, tmp_path, NAME)
    assert got.returncode == 1
    assert f"unknown model '{NAME}'" in got.stderr
    assert hub.requests == []


def test_a_model_that_needs_a_token_is_read_with_one_and_refused_without(hub: Hub, tmp_path: Path) -> None:
    refused = knee(hub, tmp_path, "some-lab/closed", "--hub")
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: --hub: no config.json of 'some-lab/closed' (")
    assert refused.stderr.count("\n") == 1
    assert "HF_TOKEN" in refused.stderr
    read = knee(hub, tmp_path, "some-lab/closed", "--hub", HF_TOKEN="hf_right")
    assert read.returncode == 0, read.stderr
    assert "hf_right" not in read.stdout + read.stderr


@pytest.mark.parametrize("name", ["some-lab/none", "some-lab/bare"])
def test_what_the_hub_does_not_have_is_one_line(hub: Hub, tmp_path: Path, name: str) -> None:
    got = knee(hub, tmp_path, name, "--hub")
    assert got.returncode == 1
    assert got.stderr.startswith(f"error: --hub: no config.json of '{name}' (")
    assert got.stderr.count("\n") == 1


def test_a_machine_that_may_not_ask_is_told_in_one_line(hub: Hub, tmp_path: Path) -> None:
    got = knee(hub, tmp_path, NAME, "--hub", HF_HUB_OFFLINE="1")
    assert hub.requests == []
    assert got.returncode == 1
    assert got.stderr.startswith(f"error: --hub: no config.json of '{NAME}' (")
    assert got.stderr.count("\n") == 1
