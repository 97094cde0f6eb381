"""The process that serves the page of a running measurement on this machine.

It gets how the run goes as lines on stdin (`live_page`), and makes the page anew whenever a level has ended. It has
the lowest priority. When the run is over it serves the report itself until a watcher has it, and ends.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec

from harness.base.errors import HarnessError
from harness.cli.report import summaries
from harness.data.progress import RunProgress
from harness.data.summary import Summary
from harness.report import document as doc
from harness.report import live, page, run_report
from harness.results.result import Result

_WATCHES_S = 3.0  # somebody watches if a page asked in the last 3 s
_LOOKS_S = 0.5  # for levels that have ended


class _Board:
    """What is served: how the run goes, and the page of the levels so far with its version."""

    def __init__(self) -> None:
        self.now = RunProgress()
        self.version = -1
        self.show(doc.Document(title="Knee measures", sections=[]))
        self.asked_s = -_WATCHES_S  # when a page last asked how the run goes
        self.seen = threading.Event()  # the report was fetched
        self.ended = threading.Event()  # the run sends no more

    def show(self, measured: doc.Document) -> None:
        """Serve another page; the part that changes from second to second is filled in when it is asked for."""
        part = page.Running("", "", []).html
        around = page.render(measured, page.Running("", "", [])).split(part)
        self.version, self.around = self.version + 1, around

    def state(self) -> bytes:
        """Return what the page asks for, as JSON."""
        self.asked_s = time.monotonic()
        head, facts = live.words(self.now)
        cards = [(fact.label, fact.value, fact.detail) for fact in facts]
        state = {"version": str(self.version), "head": head, "note": self.now.note, "facts": cards}
        return msgspec.json.encode(state)

    def page(self) -> bytes:
        """Return the page; of a run that is over it is the report."""
        if self.now.report:
            self.seen.set()
            return Path(self.now.report).read_bytes()
        version, around = str(self.version), self.around
        head, facts = live.words(self.now)
        return page.Running(version, head, facts, self.now.note).html.join(around).encode()

    def follow(self) -> None:
        """Read the run's progress from stdin, line by line, until it ends; count a version for each new report."""
        decode = msgspec.json.Decoder(RunProgress).decode
        for line in sys.stdin.buffer:
            self.now = decode(line)
            if self.now.report:
                self.version += 1
        self.ended.set()


def _handler(board: _Board) -> type[BaseHTTPRequestHandler]:
    """Return a request handler that serves the board's page at / and its state as JSON at /now.

    A request by another name than 127.0.0.1 or localhost is refused.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            name = (self.headers.get("Host") or "").rpartition(":")[0]
            if name not in ("127.0.0.1", "localhost"):  # a site whose name leads here
                self.send_error(403)
                return
            pages = {"/": ("text/html; charset=utf-8", board.page), "/now": ("application/json", board.state)}
            if self.path not in pages:
                self.send_error(404)
                return
            kind, made = pages[self.path]
            body = made()
            self.send_response(200)
            for header, value in (("Content-Type", kind), ("Cache-Control", "no-store"), ("Content-Length", len(body))):
                self.send_header(header, str(value))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing: the terminal is the run's."""

    return Handler


def _document(folder: Path, summary: Summary) -> doc.Document:
    """Return the report on the levels so far; that the run has not ended is no news."""
    run = Result.open(folder)
    levels = msgspec.structs.replace(summary, verdicts=[v for v in summary.verdicts if v.code != "incomplete"])
    return run_report.with_records(run_report.report(levels, run.manifest), levels, run)


def _levels(board: _Board) -> None:
    """Render the page anew after each level of a run, and of each run that follows, until the last one has ended."""
    folder = ""
    while not board.ended.wait(_LOOKS_S):
        if board.now.folder == folder:
            continue
        folder = board.now.folder
        for summary in summaries(Path(folder), lambda: board.ended.wait(_LOOKS_S)):
            with contextlib.suppress(HarnessError, FileNotFoundError):  # it is being packed: the run is over
                board.show(_document(Path(folder), summary))


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Print nothing: a reader that went away in the middle of the page is no news of the run's."""


def main(descriptor: int) -> None:
    """Serve on a socket that listens already, until the run has ended and its report was seen."""
    os.nice(19)
    board = _Board()
    server = _Server(("127.0.0.1", 0), _handler(board), bind_and_activate=False)
    server.socket.close()
    server.socket = socket.socket(fileno=descriptor)
    for work in (server.serve_forever, board.follow):
        threading.Thread(target=work, daemon=True).start()
    _levels(board)
    watched = time.monotonic() - board.asked_s < _WATCHES_S
    if board.now.report and watched:
        board.seen.wait(2 * _WATCHES_S)
        time.sleep(_LOOKS_S)  # the last bytes are on their way
    server.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
