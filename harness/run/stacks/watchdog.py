"""The process that owns a server: started before it, and there until nothing of it is left.

knee starts it and keeps the other end of its standard input. A line there ends the server in order; the end of the
pipe, which also comes when knee is killed, ends it at once. What the server starts and leaves behind becomes this
process's child (PR_SET_CHILD_SUBREAPER, prctl(2)), in whatever session it is, and is ended as well.

The first line of the input is JSON (`Task`), each line of the output too: `{"pid": 1}`, `{"ended": 0}`, `{"log": ""}`.
Of what the server prints only the end is kept, in memory. Left out: containers, which are no children of anybody here.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from typing import TypedDict

import psutil

from harness.base import interpreter, kernel

KEPT = 64 << 10  # bytes of the server's log
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of linux/prctl.h
_AT_ONCE_S = 2.0  # between the signals to a server whose knee has gone
_REST_S = 5.0  # in which what was killed has to go
_TICK_S = 0.05


class Task(TypedDict):
    """What is to be run, and how it is ended."""

    words: list[str]
    env: dict[str, str]
    cpus: list[int]  # []: wherever the system likes
    stop_s: float


class _Owner:
    """The server, the end of its log, and its ways to end."""

    def __init__(self, task: Task) -> None:
        """Start the task's process in a session of its own, with its stdout and stderr on one non-blocking pipe."""
        self.task = task
        self.log = bytearray()
        self.status: int | None = None
        process = subprocess.Popen(
            task["words"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=os.environ | task["env"], start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        self.pid, self.output = process.pid, process.stdout.fileno()
        self._process = process  # closes the pipe once it is forgotten
        os.set_blocking(self.output, False)

    def wait(self, others: list[int], within_s: float) -> list[int]:
        """Read the log and reap children for so long at most; which of the others can be read, at once if any can."""
        ready, _, _ = select.select([*others, *([self.output] if self.output >= 0 else [])], [], [], within_s)
        if self.output in ready:
            self.read()
        self.reap()
        return [each for each in ready if each in others]

    def read(self) -> None:
        """Return what the server has printed."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.output, KEPT):
                self.log += data
                del self.log[:-KEPT]
            self.output = -1  # nobody can write to it any more

    def reap(self) -> None:
        """Every child that has ended, the server or what it left."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self.pid:
                    self.status = os.waitstatus_to_exitcode(ended[1])

    def end(self, stop_s: float) -> None:
        """End the server's group, killed if it lasts longer than `stop_s` seconds, then kill all else that it began."""
        self._signal(signal.SIGTERM)
        until = time.monotonic() + stop_s
        while self.status is None and time.monotonic() < until:
            self.wait([], _TICK_S)
        self._signal(signal.SIGKILL)
        until = time.monotonic() + _REST_S
        while (left := psutil.Process().children(recursive=True)) and time.monotonic() < until:
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self.wait([], _TICK_S)
        if self.output >= 0:
            self.read()

    def _signal(self, number: int) -> None:
        if self.status is None or number == signal.SIGKILL:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)


def _report(**message: object) -> None:
    """Write a line for knee, if it is still there."""
    with contextlib.suppress(OSError, ValueError):
        os.write(1, json.dumps(message).encode() + b"\n")


def main() -> None:
    """Run the server that the first line of stdin describes, until it ends, another line comes, or the input ends.

    Then end all its processes, at once if the input has ended, for knee is gone. Its pid, status and log go to stdout.
    """
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD):
        # They are knee's, which then ends the pipe. Not SIG_IGN, which the server would inherit.
        signal.signal(number, lambda *_: None)
    line = interpreter.next_line()
    if not line:
        return
    task: Task = json.loads(line)
    kernel.prctl(_SUBREAPER, 1)
    if task["cpus"]:
        kernel.bind(task["cpus"])
    woken, wake = kernel.pipe()
    signal.set_wakeup_fd(wake)  # a child's end wakes `select`
    try:
        owner = _Owner(task)
    except OSError as error:
        _report(error=f"{task['words'][0]}: {error.strerror or error}")
        return
    _report(pid=owner.pid)
    in_order = True
    while owner.status is None:
        ready = owner.wait([0, woken], 60.0)
        if woken in ready:
            os.read(woken, KEPT)
        if 0 in ready:
            in_order = bool(interpreter.next_line())
            break
    if owner.status is not None:
        _report(ended=owner.status)
    owner.end(task["stop_s"] if in_order else _AT_ONCE_S)
    _report(log=owner.log.decode("utf-8", "replace"))


if __name__ == "__main__":
    main()
