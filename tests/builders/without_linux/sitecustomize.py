"""Take away what only Linux has, in every Python that has this folder on its PYTHONPATH.

What is left is what macOS has too: the selectors of the standard library, no processors to bind to, no stamps of the
kernel, no /proc. Packages (psutil) keep theirs, since they have code of their own for macOS.
"""

import builtins
import ctypes
import io
import os
import select
import selectors
import sys

for module, name in (
    (select, "epoll"), (selectors, "EpollSelector"), (os, "sched_getaffinity"), (os, "sched_setaffinity"),
    (os, "O_PATH"), (os, "pipe2"), (os, "memfd_create"), (os, "posix_fallocate"), (os, "pidfd_open"),
):  # fmt: skip
    if hasattr(module, name):
        delattr(module, name)
selectors.DefaultSelector = selectors.PollSelector


class _Library(ctypes.CDLL):
    def __getattr__(self, name: str) -> object:
        if name in ("prctl", "adjtimex"):
            raise AttributeError(name)
        return super().__getattr__(name)


ctypes.CDLL = _Library  # type: ignore[misc]
_open = builtins.open


def _opened(file, *arguments, **more):  # type: ignore[no-untyped-def]
    caller = sys._getframe(1)
    while caller is not None and caller.f_globals.get("__name__", "").startswith(("pathlib", "io")):
        caller = caller.f_back
    ours = caller is not None and caller.f_globals.get("__name__", "").startswith("harness")
    if ours and isinstance(file, str | os.PathLike) and os.fspath(file).startswith(("/proc/", "/sys/")):
        raise FileNotFoundError(2, "No such file or directory", os.fspath(file))
    return _open(file, *arguments, **more)


builtins.open = io.open = _opened
