"""When requests begin: the staggered start of a closed loop, the arrivals of an open one, a quota. Pure."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from harness import units


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
