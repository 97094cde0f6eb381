"""How the load of a session ends: by itself, by a failure or by a signal. What was measured is still written."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

import msgspec

from harness.base import ExitStatus
from harness.base.errors import HarnessError
from harness.load.receive import COMPILED, PURE

if TYPE_CHECKING:
    from harness.load.messages import Done
    from harness.load.workers import Workers
    from harness.observe.gpu import Gpus
    from harness.run.levels import Levels

P = ParamSpec("P")
T = TypeVar("T")
_MOMENT_S = 0.5  # longest that a run may still take to finish after a signal
_ONE_PRESS_S = 1.0  # between two signals that are meant as one


class RunEnd(enum.Enum):
    COMPLETE = "complete"  # what was asked for is measured, or a bound ended the search for it
    SHORT = "short"  # it is not: the server was gone, or levels that were given were not measured
    SIGNAL = "signal"
    FAILURE = "failure"  # a worker was lost, or nothing could be written any more


class Ended(msgspec.Struct, frozen=True):
    """Why the load ended, as the manifest words it, with the failure."""

    why: RunEnd
    words: str
    failure: HarnessError | None = None

    @classmethod
    def by_itself(cls, missing: str) -> Ended:
        """Return the end that no signal and no failure made; `missing` of what was asked for, "" if nothing is."""
        return cls(RunEnd.SHORT, missing) if missing else cls(RunEnd.COMPLETE, RunEnd.COMPLETE.value)


async def load(
    levels: Levels, workers: Workers, placed: Sequence[tuple[int, ...]], gpus: Gpus | None, signals: Signals
) -> Ended:
    """Measure level after level until the ramp, a signal or a failure ends it."""
    task = asyncio.current_task()
    assert task is not None
    try:
        await levels.run(workers, placed, gpus)
    except asyncio.CancelledError:
        if signals.number is None:
            raise
        task.uncancel()
        return Ended(RunEnd.SIGNAL, signal.Signals(signals.number).name)
    except HarnessError as failure:
        return Ended(RunEnd.FAILURE, str(failure), failure)
    return Ended.by_itself(levels.missing)


def timestamp_source(done: list[Done]) -> str | None:
    """Return who stamped the arrivals: "kernel" if it did for every worker, else "user"; None without workers."""
    sources = {each.timestamp_source for each in done}
    return None if not sources else "kernel" if sources == {"kernel"} else "user"


def receive_path(done: list[Done]) -> str:
    """Return how the workers received: "compiled" if each of them did so, else "pure"."""
    return COMPILED if done and all(each.receive == COMPILED for each in done) else PURE


class Signals:
    """The first signal ends the run in order; one after the load shortens the rest.

    A run in a thread of a program that has signals of its own does not handle any (`handled`): `interrupt` replaces
    for the first.
    """

    def __init__(self, *, handled: bool = True) -> None:
        self.number: int | None = None  # number of the first signal
        self.at_s = 0.0  # when that was
        self.levels: Levels | None = None  # once there are any
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # nohup: a terminal may go away
        numbers = [signal.SIGINT, signal.SIGTERM] + ([] if ignored else [signal.SIGHUP])
        self._numbers = numbers if handled else []
        self._task: asyncio.Task[object] | None = None

    def interrupt(self) -> None:
        """End the run in order, as Ctrl-C does; any thread may call it."""
        task = self._task
        if task is None:  # `inside` finds it
            self.number = self.number or signal.SIGINT
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the run is over
                task.get_loop().call_soon_threadsafe(self._first, signal.SIGINT)

    @contextlib.contextmanager
    def finishing(self) -> Iterator[None]:
        """While the block runs, after the load: let a signal end the process within a second, whatever still runs.

        Most runs finish in that time, and what was measured is on disk already. The signal that ended the load does not
        count, nor does another one of the same key press.
        """
        if not self._numbers:
            yield
            return
        loop = asyncio.get_running_loop()

        def leave(*_: object) -> NoReturn:
            sys.exit(ExitStatus.SIGNALLED + (self.number or signal.SIGINT))

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
        """While the block runs, before the event loop: let SIGTERM end the process in order, with status 143."""
        before = {number: signal.signal(number, _leave) for number in self._numbers[1:]}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def inside(self) -> None:
        """Install signal handlers on the running event loop that cancel the current task."""
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
    sys.exit(ExitStatus.SIGNALLED + number)


class DaemonExecutor(ThreadPoolExecutor):
    """A daemon thread for every call, which neither the loop nor the process waits for.

    The usual executor's threads are joined when the loop ends and again when the interpreter does: a name lookup that
    takes a minute would keep Ctrl-C waiting for a minute.
    """

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `fn` in a daemon thread of its own, which does not keep the process alive; return the result's future."""
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001  # raised where the result is awaited
                future.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, **_: Any) -> None:
        """Nothing is waited for."""
