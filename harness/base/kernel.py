"""What only Linux has, and what stands in for it elsewhere: waiting for sockets, and the processors of a process.

On Linux a poller is an epoll itself. Elsewhere (macOS) it is the best selector of the standard library, behind the same
methods. A process that cannot be bound to processors runs where the system likes.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import select
import selectors
import struct
from collections.abc import Iterable
from typing import Any, TypeAlias, cast

_MACOS_FILES = 10_240  # OPEN_MAX of sys/syslimits.h
IN, OUT = 1, 4  # EPOLLIN and EPOLLOUT of linux/eventpoll.h


class _Selector:
    """A selector of the standard library as a poller."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def register(self, fd: int, mask: int, /) -> None:
        try:
            self._selector.register(fd, _events(mask))
        except KeyError:  # the number of a descriptor that was closed meanwhile: an epoll forgets those by itself
            self._selector.unregister(fd)
            self._selector.register(fd, _events(mask))

    def modify(self, fd: int, mask: int, /) -> None:
        self._selector.modify(fd, _events(mask))

    def unregister(self, fd: int, /) -> None:
        try:
            self._selector.unregister(fd)
        except (KeyError, ValueError) as error:  # epoll raises these for a descriptor that it does not have
            raise FileNotFoundError(str(error)) from None

    def poll(self, timeout: float, most: int, /) -> list[tuple[int, int]]:
        found = self._selector.select(timeout)[:most]
        return [(key.fd, _mask(events)) for key, events in found]

    def wait(self, timeout: float | None) -> None:
        self._selector.select(timeout)

    def close(self) -> None:
        self._selector.close()


def _events(mask: int) -> int:
    return (selectors.EVENT_READ if mask & IN else 0) | (selectors.EVENT_WRITE if mask & OUT else 0)


def _mask(events: int) -> int:
    return (IN if events & selectors.EVENT_READ else 0) | (OUT if events & selectors.EVENT_WRITE else 0)


Poller: TypeAlias = "select.epoll | _Selector"  # a string, since only Linux has epoll


def poller() -> Poller:
    """Return a new poller."""
    return select.epoll() if hasattr(select, "epoll") else _Selector()


def wait(of: Poller, timeout: float | None) -> None:
    """Sleep until something stirs, at most so many seconds; None: without a limit."""
    if isinstance(of, _Selector):
        of.wait(timeout)
    else:  # select on the epoll itself: it sleeps by the microsecond, epoll.poll by the millisecond
        select.select([cast(Any, of)], [], [], timeout)


def cpus() -> list[int]:
    """Return the processors that this process may use, in order."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def bind(processors: Iterable[int]) -> None:
    """Bind this thread to these processors, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, processors)


def allow_files() -> None:
    """Let this process open as many files as it may; macOS takes no more than 10,240 where its limit is infinite."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (_MACOS_FILES, most))


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process (prctl(2)), where the system has it."""
    function = getattr(ctypes.CDLL(None), "prctl", None)
    if function is not None:
        function(option, ctypes.c_ulong(value), 0, 0, 0)


_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}  # the call's number, by machine
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")  # struct sched_attr of linux/sched/types.h, its first version


def shorten_turns(ns: int) -> None:
    """Ask for turns of so long on a busy processor, where the system can (Linux 6.12, sched_setattr(2)).

    Whoever has shorter ones is run sooner after a sleep, and has no more of the processor in all.
    """
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None or not hasattr(os, "sched_getscheduler") or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    wanted = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, ns, 0, 0)
    ctypes.CDLL(None).syscall(number, 0, wanted, 0)


def pipe() -> tuple[int, int]:
    """Return the two ends of a pipe that neither blocks nor is inherited, for a signal that wakes a loop."""
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends


def waited_s() -> float | None:
    """Return the seconds that this process waited for a processor since it began; None if the kernel lacks that."""
    try:
        with open("/proc/self/schedstat", "rb", buffering=0) as file:
            return int(file.read(64).split()[1]) * 1e-9  # the kernel's Documentation/scheduler/sched-stats.rst
    except (OSError, IndexError, ValueError):
        return None
