"""Which receive path runs: the compiled one, or pure Python, which does the same more slowly.

The compiled one is `_receive`, from the C files in `compiled/`. It is missing where Knee was installed without a C
compiler. `KNEE_RECEIVE=pure` leaves it out, for tests and to compare; the results are the same to the byte.
"""

from __future__ import annotations

import os
import select
from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.load._receive import Poller

COMPILED, PURE = "compiled", "pure"
OVER = 2  # result of a stream's `feed`: the response is over


def _compiled() -> type[Poller] | None:
    """Return the compiled poller; None if it was not built, is switched off, or the system has no epoll."""
    if os.environ.get("KNEE_RECEIVE") == PURE or not hasattr(select, "epoll"):
        return None
    try:
        from harness.load import _receive
    except ImportError:
        return None
    return _receive.Poller


def shifted(numbers: array[int], by: int) -> bytes:
    """Return an array of int64 with `by` added to each number, as bytes; in compiled code if it is there."""
    if poller is None:
        return array("q", map(by.__add__, numbers)).tobytes()
    from harness.load import _receive

    return _receive.shifted(numbers, by)


poller: type[Poller] | None = _compiled()  # tests set it


def path() -> str:
    """Return the name of the path that this process receives by."""
    return PURE if poller is None else COMPILED
