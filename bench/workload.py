"""A long trace with long prompts in it, replayed fast: is the schedule kept, in how much memory, at which cost?

The whole file is read and planned before the load; the run replays its beginning. The server does as little as a server
can: it reads a request whole and answers it at once, with two tokens. It has the first processor, the load generator's
worker the last. Exit status 1 where p99 of send - due is not below 1 ms, or the parent's memory not below 300 MB.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import select
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

LATE_S, MEMORY = 1e-3, 300e6  # seconds, bytes
EVERY, LONG = 500, 32_000  # one request in so many is so long, tokens
SHORT = 50, 600
IN_FLIGHT = 16  # of the closed loop
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n"
_MODELS = json.dumps({"object": "list", "data": [{"id": "minimal", "max_model_len": 131_072}]}).encode()


def trace(path: Path, rows: int, rate: float) -> None:
    """Write a trace of requests that come independently of each other."""
    rng, at_s = random.Random(1), 0.0
    with path.open("w") as file:
        for number in range(rows):
            at_s += rng.expovariate(rate)
            tokens = LONG if number % EVERY == EVERY // 2 else rng.randint(*SHORT)
            file.write(f'{{"at_s": {at_s:.6f}, "input_tokens": {tokens}, "output_tokens": 2}}\n')


# ---- the minimal server -----------------------------------------------------------------------------------


def serve() -> None:
    """Answer until killed; the port is printed."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    print(listener.getsockname()[1], flush=True)
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    clients: dict[int, tuple[socket.socket, bytearray]] = {}
    while True:
        for fd, _ in poll.poll():
            if fd == listener.fileno():
                client = listener.accept()[0]
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                clients[client.fileno()] = client, bytearray()
                poll.register(client, select.EPOLLIN)
                continue
            client, inbox = clients[fd]
            try:
                data = client.recv(1 << 18)
                inbox += data
                if data and (answer := answered(inbox)):
                    client.sendall(answer)
            except OSError:
                data = b""
            if not data:
                del clients[fd]
                client.close()


def answered(inbox: bytearray) -> bytes:
    """Return the answer to the request in the inbox, which is taken out; empty while it is not all here."""
    end = inbox.find(b"\r\n\r\n") + 4
    if end < 4:
        return b""
    head = bytes(inbox[:end]).lower()
    _, _, length = head.partition(b"content-length:")
    total = end + (int(length.split(b"\r\n", 1)[0]) if length else 0)
    if len(inbox) < total:
        return b""
    words = inbox.count(b" ", end, total)  # a token each; JSON has no other blanks
    del inbox[:total]
    if head.startswith(b"post"):
        body = _stream(words)
        return _HEAD % (b"text/event-stream", len(body)) + body
    if head.startswith(b"get /v1/models "):
        return _HEAD % (b"application/json", len(_MODELS)) + _MODELS
    return b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"


def _stream(words: int) -> bytes:
    event = b'data: {"choices":[{"index":0,"delta":{"content":" a"},"finish_reason":%s}]}\n\n'
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":2,"total_tokens":%d}}\n\n'
    return event % b"null" + event % b'"length"' + usage % (words, words + 2) + b"data: [DONE]\n\n"


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """Yield the minimal server in a process of its own; its URL."""
    with subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()


# ---- the runs ---------------------------------------------------------------------------------------------


class Measured(NamedTuple):
    """One run: its only level, and the parent's highest resident memory, bytes."""

    level: dict[str, Any]
    memory: int
    seconds: float

    @property
    def cpu_s(self) -> float:
        """CPU seconds of the worker for a request."""
        return float(self.level["client"]["cpu_fraction"] * self.level["window_s"] / self.level["requests"])


def run(url: str, folder: Path, *options: str) -> Measured:
    """One `knee run`; exits with its message where it does not measure."""
    out = folder / "out"
    command = ["-m", "harness", "run", "--url", url, "--out", str(out), "--no-plots", "--quiet", "--workers", "1"]
    began, memory = time.monotonic(), 0
    print(f"    knee {shlex.join([*command[2:3], *options])}", flush=True)
    with subprocess.Popen([sys.executable, *command, *options], stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            with contextlib.suppress(OSError):
                memory = max(memory, peak(process.pid))
            time.sleep(0.1)
    if process.returncode not in (0, 3):
        sys.exit(process.returncode)
    (level,) = json.loads((out / "summary.json").read_text())["levels"]
    return Measured(level, memory, time.monotonic() - began)


def peak(pid: int) -> int:
    """Highest resident memory of a process so far, bytes; 0 once it is over."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def main() -> int:
    if sys.argv[1:] == ["--serve"]:
        serve()
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, default=2_000.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    window = ["--level-seconds", f"{options.seconds:g}", "--seed", "1"]
    with tempfile.TemporaryDirectory(prefix="knee-bench-") as scratch, serving() as url:
        folder = Path(scratch)
        trace(folder / "trace.jsonl", options.rows, options.rate)
        for name in ("replay", "plain"):
            (folder / name).mkdir()
        asked = ["--dataset", str(folder / "trace.jsonl"), "--arrivals", "trace"]
        replay = run(url, folder / "replay", *asked, *window)
        lengths = ["--input-tokens", "325", "--output-tokens", "2", "--levels", str(IN_FLIGHT)]
        plain = run(url, folder / "plain", *lengths, *window)
    late_s = replay.level["lag_s"]["p99"] or float("inf")
    print(f"replay of {options.rows:,} rows: {replay.level['requests']:,} requests, {replay.level['errors']} failed,")
    print(f"    {replay.level['requests_per_s']['mean']:,.0f} requests/s in {replay.level['window_s']:.1f} s")
    print(f"    send - due: p50 {replay.level['lag_s']['p50'] * 1e3:.3f} ms, p99 {late_s * 1e3:.3f} ms (below 1)")
    print(
        f"    memory of the parent: {replay.memory / 1e6:.0f} MB (below 300); closed loop {plain.memory / 1e6:.0f} MB"
    )
    print(f"    CPU a request: {replay.cpu_s * 1e6:.0f} µs; closed loop of one length {plain.cpu_s * 1e6:.0f} µs")
    print(f"    whole run, reading and reporting with it: {replay.seconds:.1f} s")
    return 0 if late_s < LATE_S and replay.memory < MEMORY else 1


if __name__ == "__main__":
    sys.exit(main())
