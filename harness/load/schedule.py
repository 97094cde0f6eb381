"""A worker's time: its share of a level, the rest after a failure, the tick of its loop. Pure: times in, times out."""

from __future__ import annotations


def shares(total: int, workers: int) -> list[int]:
    """How many of a level's slots each worker has: evenly, the first ones one more.

    >>> shares(10, 4)
    [3, 3, 2, 2]
    """
    return [total // workers + (i < total % workers) for i in range(workers)]


def pause_after(failures: int, retry_after_s: float = 0.0) -> float:
    """How long a slot rests after so many failures in a row, seconds.

    A server that refuses at once must not be flooded; the rest is lag in the record. A Retry-After is kept up to the
    longest rest, since by then the errors have voided the level.

    >>> [pause_after(n) for n in (0, 1, 2, 3, 9)]
    [0.0, 0.05, 0.1, 0.2, 1.0]
    >>> pause_after(1, retry_after_s=0.5), pause_after(1, retry_after_s=60)
    (0.5, 1.0)
    """
    return 0.0 if failures == 0 else min(1.0, max(retry_after_s, 0.05 * 2.0 ** min(failures - 1, 5)))


def tick_ns(itl_s: float | None, e2e_s: float | None) -> int:
    """How long the loop may sleep, nanoseconds: clamp(min(ITL/8, E2E/256), 0.25 ms, 3 ms).

    Stamps are the kernel's, so the tick costs no accuracy of arrival; it bounds how late the next send is.

    >>> tick_ns(0.016, 2.0), tick_ns(None, None)
    (2000000, 1000000)
    """
    known = [t for t in (itl_s and itl_s / 8, e2e_s and e2e_s / 256) if t]
    return round(min(0.003, max(0.00025, min(known))) * 1e9) if known else 1_000_000
