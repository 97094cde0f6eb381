"""This machine's wall clock: where it lies on CLOCK_MONOTONIC, and how far it may be off, by the kernel."""

from __future__ import annotations

import ctypes
import time

from harness.data.manifest import WallClock

_UNSYNCHRONISED = 0x0040  # STA_UNSYNC of adjtimex(2)


class _Timex(ctypes.Structure):
    """`struct timex` of adjtimex(2), as far as it is read."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),  # microseconds
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


def ahead_ns() -> int:
    """The wall clock minus CLOCK_MONOTONIC; it changes only where the wall clock is set."""
    before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
    return wall - (before + after) // 2


def error() -> WallClock:
    """What the kernel knows of the wall clock's error; nothing where it may not be asked.

    The error is the largest possible one, which a daemon (chrony, ntpd, systemd-timesyncd) keeps up to date.
    """
    found = _Timex()
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.byref(found))
    except (OSError, AttributeError):
        return WallClock()
    if state < 0:
        return WallClock()
    synchronised = not found.status & _UNSYNCHRONISED
    return WallClock(synchronised=synchronised, error_s=found.maxerror * 1e-6 if synchronised else None)
