"""When requests begin: the levels, the staggered start, the pace after a failure. Pure: times come in and go out."""

from __future__ import annotations


def stagger(slots: int, over_s: float, start: str) -> list[float]:
    """Delay of each new slot's first request, seconds, shape [slots].

    Spread evenly over one request time, so that fixed lengths do not march in step; a burst starts at once.

    >>> stagger(4, 2.0, "staggered")
    [0.0, 0.5, 1.0, 1.5]
    """
    if start == "burst":
        return [0.0] * slots
    return [over_s * i / slots for i in range(slots)]


def pause_after(failures: int) -> float:
    """How long a slot rests after so many failures in a row, seconds.

    A server that refuses at once must not be met by a flood; what the rest costs stands in the record as lag.

    >>> [pause_after(n) for n in (0, 1, 2, 3, 9)]
    [0.0, 0.05, 0.1, 0.2, 1.0]
    """
    return 0.0 if failures == 0 else min(1.0, 0.05 * 2.0 ** (failures - 1))


def tick_ns(itl_s: float | None, e2e_s: float | None) -> int:
    """How long the loop may sleep, nanoseconds: clamp(min(ITL/8, E2E/256), 0.25 ms, 3 ms).

    Stamps are the kernel's, so the tick costs no accuracy of arrival; it bounds how late the next send is.

    >>> tick_ns(0.016, 2.0), tick_ns(None, None)
    (2000000, 1000000)
    """
    known = [t for t in (itl_s and itl_s / 8, e2e_s and e2e_s / 256) if t]
    return round(min(0.003, max(0.00025, min(known))) * 1e9) if known else 1_000_000
