"""An executor whose threads neither the loop nor the process waits for.

The usual executor's threads are joined when the loop ends and again when the interpreter does: a name lookup that takes
a minute would keep Ctrl-C waiting for a minute.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DaemonExecutor(ThreadPoolExecutor):
    """A daemon thread for every call."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
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
