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
    from harness.experiment.levels import Levels

_MOMENT_S = 0.5  # that a run may still take to finish after a signal
_ONE_PRESS_S = 1.0  # between two signals that are meant as one


class Signals:
    """The first signal ends the run in order; one after the load shortens the rest."""

    def __init__(self) -> None:
        self.number: int | None = None  # of the first
        self.at_s = 0.0  # when that was
        self.levels: Levels | None = None  # once there are any
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # nohup: a terminal may go away
        self._numbers = [signal.SIGINT, signal.SIGTERM] + ([] if ignored else [signal.SIGHUP])

    @contextlib.contextmanager
    def finishing(self) -> Iterator[None]:
        """After the load: a signal ends the process within a second, though the calls left are long.

        Most runs finish in that time, and what was measured is on disk already. The signal that ended the load does not
        count, nor does another one of the same key press.
        """
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
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def interrupt(number: int) -> None:
            if self.number is None:
                self.number, self.at_s = number, time.monotonic()
                if self.levels is None or not self.levels.over:
                    task.cancel()

        for number in self._numbers:
            loop.add_signal_handler(number, interrupt, number)


def _leave(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)
