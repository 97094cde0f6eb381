"""Calls beside the loop that nobody has to wait for: whoever is interrupted leaves them behind.

The usual executor's threads are waited for when the loop ends and again when the interpreter does, so that a name
that is looked up for a minute makes Ctrl-C deaf for a minute.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Abandoned(ThreadPoolExecutor):
    """A daemon thread for every call; the end of the loop and of the process waits for none of them."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001  # it is raised where the result is awaited
                future.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, **_: Any) -> None:
        """Nothing is waited for."""
