"""Signals during a run: the first one ends the load, and what was measured is still written."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from harness.run.levels import Levels

_MOMENT_S = 0.5  # that a run may still take to finish after a signal
_ONE_PRESS_S = 1.0  # between two signals that are meant as one


class Signals:
    """The first signal ends the run in order; one after the load shortens the rest.

    A run in a thread of a program that has signals of its own does not handle any (`handled`): `interrupt` stands in
    for the first.
    """

    def __init__(self, *, handled: bool = True) -> None:
        self.number: int | None = None  # of the first
        self.at_s = 0.0  # when that was
        self.levels: Levels | None = None  # once there are any
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # nohup: a terminal may go away
        numbers = [signal.SIGINT, signal.SIGTERM] + ([] if ignored else [signal.SIGHUP])
        self._numbers = numbers if handled else []
        self._task: asyncio.Task[object] | None = None

    def interrupt(self) -> None:
        """End the run in order, as Ctrl-C does; from any thread."""
        task = self._task
        if task is None:  # `inside` finds it
            self.number = self.number or signal.SIGINT
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the run is over
                task.get_loop().call_soon_threadsafe(self._first, signal.SIGINT)

    @contextlib.contextmanager
    def finishing(self) -> Iterator[None]:
        """After the load: a signal ends the process within a second, though the calls left are long.

        Most runs finish in that time, and what was measured is on disk already. The signal that ended the load does not
        count, nor does another one of the same key press.
        """
        if not self._numbers:
            yield
            return
        loop = asyncio.get_running_loop()

        def leave(*_: object) -> NoReturn:
            sys.exit(128 + (self.number or signal.SIGINT))

        def cut(number: int, _: object) -> None:
            if self.number is not None and time.monotonic() - self.at_s < _ONE_PRESS_S:
                return
            if self.number is None:
                self.number, self.at_s = number, time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, _MOMENT_S)

        before = signal.signal(signal.SIGALRM, leave)
        for number in self._numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, cut)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for number in self._numbers[1:]:
                signal.signal(number, _leave)

    @contextlib.contextmanager
    def outside(self) -> Iterator[None]:
        """Before the event loop: a signal ends the process with its status, and what is open is closed."""
        before = {number: signal.signal(number, _leave) for number in self._numbers[1:]}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def inside(self) -> None:
        """On the event loop: a signal cancels the current task, unless the load is over."""
        loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        assert self._task is not None
        for number in self._numbers:
            loop.add_signal_handler(number, self._first, number)
        if self.number is not None:  # it was interrupted before there was a loop
            self._task.cancel()

    def _first(self, number: int) -> None:
        if self.number is None:
            self.number, self.at_s = number, time.monotonic()
            if self._task is not None and (self.levels is None or not self.levels.over):
                self._task.cancel()


def _leave(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)
