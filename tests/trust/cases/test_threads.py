"""Servers whose threads own a connection each until it is closed: ours never take one that the load needs.

Whole runs on real sockets; the servers are Python's own, with HTTP/1.1.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import queue
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import harness as knee

pytestmark = [pytest.mark.slow, pytest.mark.alone]

TOKENS = 16  # of each request of the load
FIRST_S, GAP_S = 0.05, 0.01  # to the first token, and between two: 16 take 0.2 s
PAGE = b"llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\nllamacpp:tokens_predicted_total 5\n"


class Handler(http.server.BaseHTTPRequestHandler):
    """A list of models, a page of figures, and streams of chat."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 5  # that a connection may idle

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def whole(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path.endswith("/models"):
            self.whole(200, b'{"object": "list", "data": [{"id": "toy"}]}')
        elif self.path == "/metrics":
            self.whole(200, PAGE)
        else:
            self.whole(404, b"{}")

    def do_POST(self) -> None:
        began = time.monotonic()
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        n = body["max_tokens"]
        for i in range(n):
            time.sleep(GAP_S if i else FIRST_S)
            self.event({"choices": [{"index": 0, "delta": {"content": " x"}, "finish_reason": None}]})
        counts = {"prompt_tokens": 32, "completion_tokens": n, "total_tokens": 32 + n}
        self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}], "usage": counts})
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")
        assert isinstance(self.server, Pool)
        if n == TOKENS:
            self.server.served_s.append(time.monotonic() - began)

    def event(self, data: Any) -> None:
        event = b"data: " + (data if isinstance(data, str) else json.dumps(data)).encode() + b"\n\n"
        self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))


class Pool(http.server.HTTPServer):
    """As many threads as there are seats, each with one connection until that is closed."""

    request_queue_size = 128

    def __init__(self, threads: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.served_s: list[float] = []  # of each request of the load
        self._accepted: queue.SimpleQueue[tuple[socket.socket, Any]] = queue.SimpleQueue()
        for _ in range(threads):
            threading.Thread(target=self._work, daemon=True).start()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._accepted.put((request, client_address))

    def _work(self) -> None:
        while True:
            request, address = self._accepted.get()
            with contextlib.suppress(OSError):
                self.finish_request(request, address)
            self.shutdown_request(request)


@contextlib.contextmanager
def pool(threads: int) -> Iterator[Pool]:
    with Pool(threads) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("threads", "transport"), [(1, "socket"), (1, "httpx"), (4, "socket")])
def test_as_many_requests_are_served_as_there_are_threads(threads: int, transport: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"levels": [threads], "level_seconds": 2.0, "input_tokens": 32, "output_tokens": TOKENS}
    more: dict[str, Any] = {"request_timeout": 5.0, "transport": transport}
    with pool(threads) as server:
        found = knee.run(f"http://127.0.0.1:{server.server_address[1]}", out=tmp_path / "out", **options, **more)
    (level,) = found.summary.levels
    alone = TOKENS * len(server.served_s) / sum(server.served_s)  # tokens/s of a thread that always has a request
    assert (level.concurrency, level.errors) == (threads, 0)
    assert level.throughput.mean == pytest.approx(threads * alone, rel=0.15)
