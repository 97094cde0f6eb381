"""The page of a running measurement, `--live`: what the run tells the process that serves it (`live_server`).

That process has the lowest priority and reads the levels from the result folder, as `knee report --follow` does. The
run sends one line for each report of its workers, and never waits: a line that does not fit into the pipe is left out.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from pathlib import Path
from types import TracebackType

import msgspec

from harness.base import interpreter
from harness.base.errors import HarnessError
from harness.data.levels import LevelSummary
from harness.data.progress import LevelProgress, RunProgress
from harness.report.live import LiveView

_LONGEST_NOTE = 400  # characters: a line has to fit into a pipe at once
_LEAVES_S = 15.0  # the longest that the page's server lives after the end of the run


def listening(port: int) -> socket.socket:
    """Return a socket that listens on this machine alone, port 0 for a free one; raise HarnessError if it is taken."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        listener.close()
        way_out = "give another port, or --live alone for a free one"
        raise HarnessError(f"port {port} cannot be had: {error.strerror}", place="--live", way_out=way_out) from None
    listener.listen()
    return listener


class LivePage:
    """Shows a run on its page and on another view; a context manager, which ends the page's process."""

    def __init__(self, view: LiveView, at: socket.socket) -> None:
        """Start the process that serves the live page on the socket `at`, and note its address."""
        self._view = view
        self._now = RunProgress()
        self.address = f"http://127.0.0.1:{at.getsockname()[1]}/"
        with at:
            # A session of its own: Ctrl-C reaches the run alone.
            self._server = subprocess.Popen(
                interpreter.module("harness.cli.live_server", str(at.fileno())), pass_fds=[at.fileno()],
                stdin=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
        assert self._server.stdin is not None
        self._pipe = self._server.stdin.fileno()
        os.set_blocking(self._pipe, False)
        view.note(f"live page: {self.address}")

    def __enter__(self) -> LivePage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()  # the end of its stdin ends it
        try:
            self._server.wait(_LEAVES_S)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()

    def over(self, report: Path) -> None:
        """End as the report, which is written."""
        os.set_blocking(self._pipe, True)  # nothing is measured any more
        self._send(report=str(report.absolute()))

    @property
    def unit(self) -> str:
        return self._view.unit

    @unit.setter
    def unit(self, unit: str) -> None:
        self._view.unit = unit
        self._send(unit=unit)

    def measuring(self, folder: Path) -> None:
        self._view.measuring(folder)
        self._send(folder=str(folder.absolute()), level="", place="", now=None, note="")

    def level_started(self, level: str, index: int, total: int | None = None, reason: str = "") -> None:
        self._view.level_started(level, index, total, reason)
        place = f"{index + 1} of {total}" if total else f"{index + 1}"
        self._send(level=level, place=place, reason=reason[:_LONGEST_NOTE], now=None)

    def update(self, now: LevelProgress) -> None:
        self._view.update(now)
        self._send(now=now)

    def level_finished(self, level: LevelSummary) -> None:
        """Show the level's figures, which the page's process finds in the folder."""
        self._view.level_finished(level)
        self._send(level="", now=None)

    def note(self, text: str) -> None:
        self._view.note(text)
        self._send(note=text[:_LONGEST_NOTE])

    def _send(self, **changes: object) -> None:
        """Send all that the page shows, with these changes; a page whose process is gone shows nothing."""
        self._now = msgspec.structs.replace(self._now, **changes)
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._pipe, msgspec.json.encode(self._now) + b"\n")
