"""A proxy before a prefill and a decode server: the first makes one token of each request, the second the answer."""

from __future__ import annotations

import http.client
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

PREFILL, DECODE = (urlsplit(sys.argv[sys.argv.index(flag) + 1]).netloc for flag in ("--prefill", "--decode"))


class Proxy(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        self.relay("GET", b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        first = json.loads(body) | {"max_tokens": 1, "stream": False}
        first.pop("stream_options", None)
        self.ask(PREFILL, "POST", json.dumps(first).encode()).read()
        self.relay("POST", body)

    def ask(self, where: str, method: str, body: bytes) -> http.client.HTTPResponse:
        server = http.client.HTTPConnection(where, timeout=30)
        server.request(method, self.path, body or None, {"content-type": "application/json"})
        return server.getresponse()

    def relay(self, method: str, body: bytes) -> None:
        answer = self.ask(DECODE, method, body)
        self.send_response(answer.status)
        self.send_header("content-type", answer.getheader("content-type") or "text/plain")
        self.send_header("connection", "close")
        self.end_headers()
        while data := answer.read1(65536):
            self.wfile.write(data)


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Proxy).serve_forever()
