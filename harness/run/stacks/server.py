"""A server of a recipe as long as a `with` block lasts, owned by a watchdog that outlives this process."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from harness.base import interpreter
from harness.base.errors import HarnessError
from harness.base.secrecy import redact
from harness.base.terminal import clean
from harness.run.stacks.command import Command
from harness.run.stacks.watchdog import Task

_BEYOND_S = 90.0  # that the watchdog may take besides the server: what is left of it, and its containers
_USAGE = 2  # exit status of a program whose command line is wrong, by argparse and click
_SHOWN_LINES, _SHOWN = 12, 1_500  # of the end of a log


class Server:
    """The knee's end of the watchdog's pipes."""

    def __init__(self, watchdog: subprocess.Popen[bytes]) -> None:
        self.pid: int | None = None  # of the server's own process, once it is started
        self.status: int | None = None  # it ended by itself
        self.error = ""  # why it was never started
        self.log = ""  # the end of it, once it has ended
        self._watchdog = watchdog
        self._unread = b""

    @property
    def over(self) -> bool:
        """Whether the server has ended, or never began."""
        self.listen(0.0)
        return self.status is not None or bool(self.error) or self._watchdog.poll() is not None

    def listen(self, within_s: float) -> bool:
        """Take in what the watchdog reports within so long; False at its end."""
        assert self._watchdog.stdout is not None
        pipe = self._watchdog.stdout.fileno()
        if not select.select([pipe], [], [], within_s)[0]:
            return True
        data = os.read(pipe, 1 << 20)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._take(json.loads(line))
        return bool(data)

    def _take(self, message: dict[str, Any]) -> None:
        self.pid = message.get("pid", self.pid)
        self.status = message.get("ended", self.status)
        self.error = message.get("error", self.error)
        self.log = message.get("log", self.log)

    def end(self, within_s: float) -> None:
        """End the server and everything of it; its group by ourselves where the watchdog is gone or late."""
        assert self._watchdog.stdin is not None
        with contextlib.suppress(OSError):
            self._watchdog.stdin.write(b"end\n")
            self._watchdog.stdin.flush()
        until = time.monotonic() + within_s
        while self.listen(max(0.0, until - time.monotonic())) and time.monotonic() < until:
            pass
        with contextlib.suppress(OSError):
            self._watchdog.stdin.close()
        if self._watchdog.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._watchdog.wait(1.0)
        if self._watchdog.poll() is None or self._watchdog.returncode:
            if self.pid is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)
            self._watchdog.kill()


@contextlib.contextmanager
def running(command: Command, *, stop_s: float, cpus: Sequence[int] = ()) -> Iterator[Server]:
    """The server of that command, on those cores; afterwards nothing of it runs, also if knee was killed."""
    task = Task(words=command.words, env=command.env, cpus=list(cpus), stop_s=stop_s, cleanup=command.cleanup)
    words = interpreter.module("harness.run.stacks.watchdog")
    # A session of its own: Ctrl-C is for the run, which still has to end its requests at the server.
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as watchdog:
        assert watchdog.stdin is not None
        server = Server(watchdog)
        try:
            watchdog.stdin.write(json.dumps(task).encode() + b"\n")
            watchdog.stdin.flush()
            while server.pid is None and not server.over:
                server.listen(1.0)
            yield server
        finally:
            server.end(stop_s + _BEYOND_S)


def last_lines(log: str) -> str:
    r"""Return the end of a log on one line, for a person.

    >>> print(last_lines("first\n\nload \x1b[31merror\n"))
    first | load \u001b[31merror
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return clean(" | ".join(lines[-_SHOWN_LINES:])[-_SHOWN:], _SHOWN)


class RefusedError(HarnessError):
    """The server ended before it was ready with status 2, which is that of a command line that it does not know."""


def failed(server: Server, name: str, fact: str, secrets: Iterable[str] = ()) -> HarnessError:
    """Return the error of a server that is not ready, with the end of its log, in which secrets are hidden."""
    if server.error:
        return HarnessError(
            f"it cannot be started: {server.error}", place=name, way_out="install it, or mend its recipe"
        )
    if server.status is not None:
        fact = f"it ended with status {server.status} before it was ready"
    log = last_lines(redact(server.log, secrets))
    kind = RefusedError if server.status == _USAGE else HarnessError
    return kind(f"{fact}; the end of its log: {log}" if log else fact, place=name, way_out="see why, and resume")
