"""How far a worker's clock is from ours, by round trips. Pure.

CLOCK_MONOTONIC counts from the boot of each machine. A worker reads its own between the moment at which we ask and the
one at which its answer comes, so each round trip bounds the offset from both sides, however uneven the two ways are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

_TRIPS = 16  # of one estimate; the quickest ways out and back bound it, and most trips are slower
_LONGEST_NS = 1_000_000_000  # of an estimate: a level waits for it


class RoundTrip(msgspec.Struct, frozen=True):
    """One reading of a worker's clock, nanoseconds: the first two by our clock, the last by the worker's."""

    sent_ns: int
    answered_ns: int
    theirs_ns: int


class Offset(msgspec.Struct, frozen=True):
    """A worker's clock minus ours, nanoseconds; the true offset lies within the error."""

    ns: int
    error_ns: int


def offset(trips: Sequence[RoundTrip]) -> Offset:
    """The offset that all round trips allow: the middle of what their bounds have in common.

    A trip bounds it to [theirs − answered, theirs − sent]. The bounds of clocks that drift during the trips may miss
    each other by little; then the error is half of what they miss.

    >>> offset([RoundTrip(100, 300, 5_200), RoundTrip(400, 700, 5_420)])
    Offset(ns=4960, error_ns=60)
    """
    least = max(trip.theirs_ns - trip.answered_ns for trip in trips)
    most = min(trip.theirs_ns - trip.sent_ns for trip in trips)
    return Offset((least + most) // 2, (abs(most - least) + 1) // 2)


async def estimated(theirs: Callable[[], Awaitable[int]], ours: Callable[[], int]) -> Offset:
    """The offset by some round trips, one after the other; `theirs` reads the worker's clock over its link."""
    trips: list[RoundTrip] = []
    while len(trips) < _TRIPS and (not trips or trips[-1].answered_ns - trips[0].sent_ns < _LONGEST_NS):
        sent_ns = ours()
        theirs_ns = await theirs()
        trips.append(RoundTrip(sent_ns, ours(), theirs_ns))
    return offset(trips)
