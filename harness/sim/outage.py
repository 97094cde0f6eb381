"""Times in which a simulated endpoint does not answer, or answers slowly: a lost node, planted at a known moment."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

import msgspec

from harness.base import units
from harness.base.errors import HarnessError

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset, as the kernel does for a process that is killed


class Outage(msgspec.Struct, frozen=True):
    """One such time; seconds since the endpoint began to serve."""

    start_s: float
    end_s: float
    slowdown: float | None = None  # how many times as long its steps take; None: it does not answer


def parse(text: str) -> Outage:
    """An outage as it is written.

    >>> parse("10s..12s"), parse("10s..1m,4")
    (Outage(start_s=10.0, end_s=12.0, slowdown=None), Outage(start_s=10.0, end_s=60.0, slowdown=4.0))
    """
    place = "--outage"
    times, comma, factor = text.partition(",")
    start, dots, end = times.partition("..")
    way_out = "write it like 10s..12s, or 10s..12s,4 for steps four times as long"
    if not dots:
        raise HarnessError(f"{text[:80]!r} has no '..'", place=place, way_out=way_out)
    found = Outage(
        units.seconds(start, place), units.seconds(end, place), units.number(factor, place) if comma else None
    )
    if not 0 <= found.start_s < found.end_s or (found.slowdown is not None and found.slowdown < 1):
        raise HarnessError(f"{text[:80]!r} ends before it begins, or is faster", place=place, way_out=way_out)
    return found


class Outages:
    """The outages of a process that began to serve at a time of CLOCK_MONOTONIC; nanoseconds."""

    def __init__(self, outages: Sequence[Outage], began_ns: int) -> None:
        moments = [(each.start_s, 0.0 if each.slowdown is None else each.slowdown) for each in outages]
        moments += [(each.end_s, 1.0) for each in outages]
        self._moments = [(began_ns + round(at_s * 1e9), pace) for at_s, pace in sorted(moments)]
        self.slowdown = 1.0  # 0: it does not answer

    @property
    def due(self) -> int | None:
        """When the next one begins or ends."""
        return self._moments[0][0] if self._moments else None

    def change(self) -> None:
        """The moment that is due has come."""
        _, self.slowdown = self._moments.pop(0)


def reset(sock: socket.socket) -> None:
    """Make closing this connection a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
