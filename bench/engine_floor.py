"""The machine's own floor: what receiving streams costs where nothing is made of them.

    python bench/engine_floor.py --url http://127.0.0.1:PORT --streams 512 --answer 120 --seconds 6 --cpu 1

One thread that sleeps to the next tick, asks the poll which sockets have something, reads each once, and sends the next
request where an answer has ended: no stamps, no framing, no JSON, no records. It prints the CPU seconds of that and the
tokens that the endpoint wrote meanwhile, by the endpoint's own count.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import select
import socket
import time
from urllib.parse import urlsplit

TICK_S = 0.003  # the worker's at 40 tokens a second and stream
END = b"0\r\n\r\n"  # of a chunked answer
READ = 65_536
_TOKENS = re.compile(rb"^vllm:generation_tokens_total\S* (\S+)", re.MULTILINE)


def request(host: str, answer: int) -> bytes:
    """One request for a stream of so many tokens."""
    message = {
        "model": "reference", "messages": [{"role": "user", "content": "one two three four five six seven eight"}],
        "max_tokens": answer, "stream": True, "ignore_eos": True,
    }  # fmt: skip
    body = json.dumps(message).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body


def tokens(host: str, port: int) -> float:
    """Tokens that the endpoint has written since it began."""
    with socket.create_connection((host, port)) as connection:
        connection.sendall(f"GET /metrics HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
        page = b"".join(iter(lambda: connection.recv(READ), b""))
    found = _TOKENS.search(page)
    assert found is not None, page
    return float(found[1])


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Streams:
    """Open connections, of which as many as were begun keep a request in flight."""

    def __init__(self, host: str, port: int, count: int, answer: int) -> None:
        self._data = request(host, answer)
        self._poll = select.epoll()
        self._waiting = [socket.create_connection((host, port)) for _ in range(count)]
        self._sockets = {each.fileno(): each for each in self._waiting}
        for fd, each in self._sockets.items():
            each.setblocking(False)
            self._poll.register(fd, select.EPOLLIN)

    def begin(self, count: int) -> None:
        """Let so many more send their first request."""
        for each in self._waiting[:count]:
            each.send(self._data)
        del self._waiting[:count]

    def receive(self, seconds: float, begin_each_s: float | None = None) -> None:
        """Read what comes for so long; streams that wait begin one after the other."""
        due, end = time.monotonic(), time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            if begin_each_s is not None and now >= due:
                late = int((now - due) / begin_each_s) + 1
                self.begin(late)
                due += late * begin_each_s
            for fd, _ in self._poll.poll(0):
                sock = self._sockets[fd]
                if sock.recv(READ).endswith(END):
                    sock.send(self._data)
            time.sleep(TICK_S - time.monotonic() % TICK_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="of the reference endpoint")
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--answer", type=int, required=True, help="tokens of an answer")
    parser.add_argument("--seconds", type=float, required=True, help="that are counted")
    parser.add_argument("--spread", type=float, default=3.2, help="seconds over which the streams begin")
    parser.add_argument("--settle", type=float, default=3.0, help="seconds after that, before counting")
    parser.add_argument("--cpu", type=int, required=True, help="the processor to run on")
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.cpu})
    where = urlsplit(options.url)
    host, port = where.hostname or "", where.port or 80
    streams = Streams(host, port, options.streams, options.answer)
    streams.receive(options.spread, options.spread / options.streams)
    streams.begin(options.streams)
    streams.receive(options.settle)
    before, spent = tokens(host, port), cpu_s()
    streams.receive(options.seconds)
    spent = cpu_s() - spent
    print(json.dumps({"cpu_s": spent, "tokens": tokens(host, port) - before}))


if __name__ == "__main__":
    main()
