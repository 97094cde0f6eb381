"""When requests begin: shares of workers, the staggered start, open-loop arrivals, the pace after a failure.

Pure: times come in and go out.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from harness import units


def shares(total: int, workers: int) -> list[int]:
    """How many of a level's slots each worker keeps: evenly, the first ones one more.

    >>> shares(10, 4)
    [3, 3, 2, 2]
    """
    return [total // workers + (i < total % workers) for i in range(workers)]


def stagger(slots: int, over_s: float, start: str, *, worker: int = 0, workers: int = 1) -> list[float]:
    """Delay of each new slot's first request, seconds, shape [slots].

    Spread evenly over one request time, so that fixed lengths do not march in step, and the slots of several
    workers between each other; a burst starts at once.

    >>> stagger(4, 2.0, "staggered")
    [0.0, 0.5, 1.0, 1.5]
    >>> stagger(2, 2.0, "staggered", worker=1, workers=2)
    [0.5, 1.5]
    """
    if start == "burst":
        return [0.0] * slots
    return [over_s * (i + worker / workers) / slots for i in range(slots)]


def arrivals(kind: str, rate: float, *, seed: str, worker: int = 0, workers: int = 1) -> Iterator[float]:
    """Due times of an open loop's requests, seconds since the level began, without end.

    An absolute schedule: no time depends on when an answer came. `rate` is that of all workers together; each
    draws its own part: Poisson processes add up to one, and constant ones lie between each other. Others do not add up:
    each worker draws the whole schedule and takes its turn of it.

    >>> list(itertools.islice(arrivals("constant", 10.0, seed="", worker=1, workers=2), 3))
    [0.1, 0.3, 0.5]
    """
    if kind == "constant":
        yield from ((worker + n * workers) / rate for n in itertools.count())
    shape = units.arrival_shape(kind, "arrivals")
    if shape != 1.0:
        gamma = random.Random(seed).gammavariate
        every = itertools.accumulate(gamma(shape, 1 / (shape * rate)) for _ in itertools.count())
        yield from itertools.islice(every, worker, None, workers)
    draw, due = random.Random(f"{seed}:{worker}").expovariate, 0.0
    while True:
        due += draw(rate / workers)
        yield due


def quota(per_s: float) -> tuple[int, float]:
    """Requests, and the seconds in which there may be no more, of a quota per second, whole or not.

    >>> quota(40.0), quota(1.5)
    ((40, 1.0), (1, 0.6666666666666666))
    """
    requests = max(1, int(per_s))
    return requests, requests / per_s


def pause_after(failures: int, asked_s: float = 0.0) -> float:
    """How long a slot rests after so many failures in a row, seconds.

    A server that refuses at once must not be met by a flood; what the rest costs stands in the record as lag. What
    the server asked for (Retry-After) is kept up to the longest rest: its errors have voided the level by then.

    >>> [pause_after(n) for n in (0, 1, 2, 3, 9)]
    [0.0, 0.05, 0.1, 0.2, 1.0]
    >>> pause_after(1, asked_s=0.5), pause_after(1, asked_s=60)
    (0.5, 1.0)
    """
    return 0.0 if failures == 0 else min(1.0, max(asked_s, 0.05 * 2.0 ** min(failures - 1, 5)))


def tick_ns(itl_s: float | None, e2e_s: float | None) -> int:
    """How long the loop may sleep, nanoseconds: clamp(min(ITL/8, E2E/256), 0.25 ms, 3 ms).

    Stamps are the kernel's, so the tick costs no accuracy of arrival; it bounds how late the next send is.

    >>> tick_ns(0.016, 2.0), tick_ns(None, None)
    (2000000, 1000000)
    """
    known = [t for t in (itl_s and itl_s / 8, e2e_s and e2e_s / 256) if t]
    return round(min(0.003, max(0.00025, min(known))) * 1e9) if known else 1_000_000
