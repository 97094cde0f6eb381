"""When requests begin: a closed loop's staggered start and pauses, an open one's schedule, a quota. Pure."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence

import msgspec

from harness.base.errors import HarnessError
from harness.spec import reuse
from harness.spec.distribution import Distribution
from harness.spec.traffic import Traffic


def stagger(slots: int, over_s: float, start: str, *, worker: int = 0, workers: int = 1) -> list[float]:
    """Return the delay of each new slot's first request, seconds, shape [slots].

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


def due_times(
    traffic: Traffic,
    rate: float,
    *,
    seed: int,
    level: int,
    worker: int = 0,
    workers: int = 1,
    trace: Sequence[float] = (),
    starts: Sequence[float] | None = None,
) -> Iterator[float]:
    """Return the due times of an open loop's requests, seconds since the level began, rising; without end.

    An absolute schedule: no time depends on when an answer came. `rate` is the mean of all workers together. The times
    follow from (seed, level) alone; each worker works the schedule out and takes its turn of it, so that they are the
    same, bit for bit, however many workers there are. `trace` has the times of a trace's rows, rising; by itself it
    comes at `trace_rate` times its speed. `starts` has those of them at which its sessions begin, where a session is
    sent as one: then only these are due times.

    >>> from harness.spec import traffic
    >>> times = due_times(traffic.parse("constant"), 10.0, seed=0, level=0, worker=1, workers=2)
    >>> list(itertools.islice(times, 3))
    [0.1, 0.3, 0.5]
    """
    if traffic.speed is not None:
        return replay(trace, rate, starts, worker=worker, workers=workers)
    process = _process(traffic.shape, f"{seed}:arrivals:{level}")
    return map(traffic.clock(rate), itertools.islice(process, worker, None, workers))


def _process(shape: float, seed: str) -> Iterator[float]:
    """Return the times of a process with one request a second, whose gaps have a gamma distribution of this shape."""
    if math.isinf(shape):
        return map(float, itertools.count())
    gaps = map(random.Random(seed).gammavariate, itertools.repeat(shape), itertools.repeat(1 / shape))
    return itertools.accumulate(gaps)


def replay(
    times: Sequence[float], rate: float, starts: Sequence[float] | None = None, *, worker: int = 0, workers: int = 1
) -> Iterator[float]:
    """Yield the due times of a trace's requests, in seconds from its first, scaled to the mean `rate`, without end.

    After the last request the trace begins anew, behind a gap of the mean length. With `starts` only those times.

    >>> list(itertools.islice(replay([100.0, 100.5, 104.0], 1.0), 5))
    [0.0, 0.25, 2.0, 3.0, 3.25]
    >>> list(itertools.islice(replay([100.0, 100.5, 104.0], 1.0, [100.0, 104.0]), 3))
    [0.0, 2.0, 3.0]
    """
    scale, first, again_s = trace_rate(times) / rate, float(times[0]), len(times) / rate
    due = times if starts is None else starts
    turns = (divmod(i, len(due)) for i in itertools.count(worker, workers))
    return (again * again_s + (float(due[i]) - first) * scale for again, i in turns)


def trace_rate(times: Sequence[float]) -> float:
    """Return the mean requests per second of a trace's times: gaps over the time that they take.

    >>> trace_rate([100.0, 100.5, 104.0])
    0.5
    """
    span = float(times[-1] - times[0]) if len(times) > 1 else 0.0
    if not 0 < span < math.inf:
        fact = f"the {len(times)} requests of the trace take no time"
        raise HarnessError(fact, place="trace", way_out="give one whose times differ and rise")
    return (len(times) - 1) / span


def quota(per_s: float) -> tuple[int, float]:
    """Return a quota per second as (whole requests, seconds in which no more than these are allowed).

    >>> quota(40.0), quota(1.5)
    ((40, 1.0), (1, 0.6666666666666666))
    """
    requests = max(1, int(per_s))
    return requests, requests / per_s


def pauses(pause: float | str, place: str = "") -> Distribution | None:
    """Return the distribution of a pause, in whole ms, from seconds or a text like "1s..3s"; None: no pause.

    >>> pauses("2s..4s")
    Range(low=2000, high=4000)
    """
    data = reuse.pauses(pause, place)
    return None if data is None else msgspec.convert(data, Distribution)


def think_s(pauses_ms: Distribution, seed: int, number: int) -> float:
    """Return the think time, in seconds, after the n-th request: until its slot sends the next one.

    They follow from (seed, number) alone, whichever worker has sent the request.
    """
    return pauses_ms.draw(random.Random(f"{seed}:think:{number}")) / 1000
