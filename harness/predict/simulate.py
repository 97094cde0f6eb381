"""Predictions on a clock that jumps from step to step: what the closed form cannot give.

Requests of any lengths, in a closed loop or as they arrive: queues, bursts, tails, preemption. The step machine of
predict.batching does the serving, one replica of it; predict.stepped puts replicas together. Lengths and arrival times
come from outside, and with them all randomness. Step times are those of predict.roofline.

Left out: replicas behind one queue, clients that give up, think time that varies.
"""

from __future__ import annotations

import heapq
import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from harness.base.errors import HarnessError
from harness.data.prediction import SteppedLevel
from harness.data.views import Spread
from harness.predict.batching import StepMachine, Stride
from harness.predict.sequence import SimulatedRequest
from harness.predict.steady import least
from harness.spec.work import MeanLengths

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Lengths = MeanLengths | Iterable[tuple[int, int]]  # the same for all, or (P, G) of one request after the other

CARRIED = {0.5: 11, 0.9: 64, 0.95: 130, 0.99: 662}  # samples that a percentile needs, docs/method.md, Percentiles
_BINS = 20  # bins of the window, to see whether the number in flight grows
_EXACT = 1e-13  # relative, of a percentile of gaps
_T95 = 1.729  # one-sided, _BINS - 1 degrees of freedom
_DEFICIT = 0.02  # share of the arrivals that may be left over without being called growth


def closed_loop(
    machine: StepMachine,
    lengths: Lengths,
    C: int,
    *,
    requests: int,
    stagger: float = 0.0,
    turnaround: float = 0.0,
) -> SteppedLevel:
    """Simulate C users, each of whom sends the next request when the last one is answered; return the level.

    They begin spread over `stagger` seconds; the first 2 C answers are warm-up, the `requests` after them the
    window. Latencies are of the requests that ended in it. A user needs `turnaround` seconds for the next request,
    which may cost it the step that has just begun.
    """
    clock = _VirtualClock(machine, lengths, turnaround=turnaround)
    for user in range(C):
        clock.send(stagger * user / C)
    while len(clock.answers) < 2 * C and clock.advance():
        pass
    opened = clock.mark()
    while len(clock.answers) < opened.answers + requests and clock.advance():
        pass
    closed = clock.mark()
    if closed.answers == opened.answers:
        raise ValueError(f"the lengths end within the warm-up, which takes {2 * C} requests")
    return _level(clock, opened, closed, clock.answers[opened.answers : closed.answers], C)


def open_loop(
    machine: StepMachine,
    lengths: Lengths,
    arrivals: Iterable[float],
    *,
    warm_up: float = 0.0,
    seconds: float = math.inf,
) -> SteppedLevel:
    """Simulate requests that come whether or not others are answered, at `arrivals` seconds: a trace or endless.

    Latencies are of the requests that came in the window; None if the server falls behind, since they then grow with
    its length.

    The window is the first `seconds` after `warm_up`, or until all of a trace is answered. Requests go on coming until
    those that came in the window have their answers; a server that cannot keep up is not waited for. Growth looks like
    a queue that still fills, so the warm-up should be several times as long as a request.
    """
    clock = _VirtualClock(machine, lengths, arrivals=iter(arrivals))
    clock.next_arrival()
    while clock.now < warm_up and clock.advance(warm_up):
        pass
    opened = clock.mark()
    end = opened.now + seconds
    while clock.now < end and clock.advance(end):
        pass
    closed = clock.mark()
    if closed.steps == opened.steps:
        raise ValueError(f"nothing is served in {seconds:g} s after {warm_up:g} s")
    came = clock.came
    last = closed.now if came[-1] > closed.now else came[-1]  # a trace may be over long before its answers
    queued = clock.no_queue < (opened.now + last) / 2
    unstable = _grows(came, sorted(answer.done for answer in clock.answers), opened.now, last, queued)
    wanted = {each for each, sent in clock.sent.items() if opened.now <= sent < closed.now}
    while wanted and not unstable and clock.advance():
        wanted &= clock.sent.keys()
    theirs = [answer for answer in clock.answers if opened.now <= answer.sent < closed.now]
    found = _level(clock, opened, closed, [] if unstable else theirs)
    offered = bisect_left(came, closed.now) - bisect_left(came, opened.now)
    rate = offered / (last - opened.now) if last > opened.now else None
    return msgspec.structs.replace(found, offered_requests_per_s=rate, unstable=unstable)


# ---- the clock ------------------------------------------------------------------------------------------


class _RequestTimes(NamedTuple):
    """When one request was sent and answered; seconds."""

    sent: float
    first: float
    done: float
    tokens: int


class _Gaps(NamedTuple):
    """Gaps between tokens in an arithmetic series, each seen by `weight` requests."""

    first: float
    growth: float
    steps: int
    weight: int


class _Series(NamedTuple):
    """The columns of all gaps."""

    first: npt.NDArray[np.float64]
    growth: npt.NDArray[np.float64]
    steps: npt.NDArray[np.int64]
    weight: npt.NDArray[np.int64]


class _Totals(NamedTuple):
    """Running totals at one moment."""

    now: float
    answers: int
    gaps: int
    steps: int
    tokens: int
    preemptions: int
    busy: float  # integral of the number in flight
    ran: float  # integral of the batch


class _VirtualClock:
    """A step machine, its users, and a virtual clock."""

    def __init__(
        self,
        machine: StepMachine,
        lengths: Lengths,
        *,
        arrivals: Iterator[float] | None = None,
        turnaround: float | None = None,
    ) -> None:
        self.now = 0.0
        self.answers: list[_RequestTimes] = []
        self.gaps: list[_Gaps] = []
        self.no_queue = 0.0  # when the queue was last empty
        self.came: list[float] = []  # when each request was or will be sent
        self.sent: dict[int, float] = {}  # send times of requests not answered
        self.one_by_one = machine.cost.accepted == 1.0  # tokens
        self._machine = machine
        self._lengths = _each(lengths)
        self._arrivals, self._turnaround = arrivals, turnaround
        self._requests: dict[int, SimulatedRequest] = {}
        self._first: dict[int, float] = {}
        self._later: dict[int, float] = {}  # how much later than in the machine its tokens are seen
        self._last: dict[int, float] = {}  # time of a preempted request's last token before it was preempted
        self._due: list[tuple[float, int]] = []  # when it reaches the machine, and which
        self._steps = self._tokens = 0
        self._answered = self._ran = 0.0  # seconds in flight of all that are answered; integral of the batch

    def send(self, at: float) -> None:
        """Send the next request, with the next lengths, at time `at`; do nothing if there are no more lengths.

        Raise HarnessError if it does not fit into the KV cache.
        """
        lengths = next(self._lengths, None)
        if lengths is None:
            return
        request = SimulatedRequest(len(self.came), *lengths)
        if not self._machine.fits(request):
            fact = f"a request of {sum(lengths)} tokens does not fit into a KV cache of "
            fact += f"{self._machine.num_blocks * self._machine.block_size}"
            raise HarnessError(fact, place="--input-tokens", way_out="send shorter requests")
        self.came.append(at)
        self.sent[request.id] = at
        self._requests[request.id] = request
        heapq.heappush(self._due, (at + self._machine.cost.api, request.id))

    def next_arrival(self) -> None:
        """Send the next request of an open loop at its time of arrival; in a closed loop do nothing."""
        if self._arrivals is not None and (at := next(self._arrivals, None)) is not None:
            if self.came and at < self.came[-1]:
                raise ValueError(f"arrivals go back from {self.came[-1]:g} to {at:g} s")
            self.send(at)

    def advance(self, edge: float = math.inf) -> bool:
        """Advance the clock by some steps of the machine, at most to about `edge`; False if no request is left."""
        due = self._due
        while due and due[0][0] <= self.now:
            self._machine.submit(self._requests[heapq.heappop(due)[1]])
            self.next_arrival()
        ahead = min(due[0][0], edge) if due else edge
        running = self._machine.stride(ahead - self.now)
        if running is not None:
            self._take(running)
        elif not due:
            return False
        else:
            self.now = ahead
        return True

    def mark(self) -> _Totals:
        busy = self._answered + sum(self.now - sent for sent in self.sent.values() if sent < self.now)
        totals = self._steps, self._tokens, self._machine.preemptions
        return _Totals(self.now, len(self.answers), len(self.gaps), *totals, busy, self._ran)

    def _take(self, stride: Stride) -> None:
        """Advance the time by a stride of the machine, record its tokens' times, and send each user's next request."""
        begin, self.now = self.now, self.now + stride.duration
        self._steps += stride.steps
        self._tokens += stride.tokens
        self._ran += self._machine.running * stride.duration
        if not self._machine.waiting:
            self.no_queue = begin
        weight = stride.batch - len(stride.started) - len(stride.resumed)
        if weight:
            self.gaps.append(_Gaps(stride.first, stride.growth, stride.steps, weight))
        for request in stride.preempted:
            self._last[request] = begin
        for request in stride.started:
            self._first[request] = self.now
            self._later[request] = self._machine.taking_in(self._requests[request])
        for request in stride.resumed:
            self.gaps.append(_Gaps(self.now - self._last.pop(request), 0.0, 1, 1))
        for request in stride.finished:
            sent, first, later = self.sent.pop(request), self._first.pop(request), self._later.pop(request)
            self._answered += self.now - sent
            tokens = self._requests.pop(request).output_tokens
            self.answers.append(_RequestTimes(sent, first + later, self.now + later, tokens))
            if self._turnaround is not None:
                self.send(self.now + self._turnaround)


def _each(lengths: Lengths) -> Iterator[tuple[int, int]]:
    if isinstance(lengths, MeanLengths):
        return itertools.repeat((round(lengths.input_tokens), round(lengths.output_tokens)))
    return iter(lengths)


# ---- what comes out -------------------------------------------------------------------------------------


def _level(
    clock: _VirtualClock,
    opened: _Totals,
    closed: _Totals,
    answers: Sequence[_RequestTimes],
    concurrency: int | None = None,
) -> SteppedLevel:
    """Return rates between two readings of the totals, and the latencies of these answers."""
    seconds = closed.now - opened.now
    requests = closed.answers - opened.answers
    long = [answer for answer in answers if answer.tokens > 1]
    decoding = sum(answer.done - answer.first for answer in long)
    gaps = clock.gaps[opened.gaps : closed.gaps] if clock.one_by_one else []
    itl = _spread_of_gaps(gaps, decoding / sum(answer.tokens - 1 for answer in long)) if long else None
    return SteppedLevel(
        concurrency=concurrency,
        window_s=seconds,
        requests=requests,
        output_tokens_per_s=(closed.tokens - opened.tokens) / seconds,
        requests_per_s=requests / seconds,
        in_flight=(closed.busy - opened.busy) / seconds,
        running=(closed.ran - opened.ran) / seconds,
        preemptions=closed.preemptions - opened.preemptions,
        ttft_s=_spread([answer.first - answer.sent for answer in answers]),
        itl_s=itl,
        e2e_s=_spread([answer.done - answer.sent for answer in answers]),
    )


def _spread(values: Sequence[float]) -> Spread | None:
    """Return the distribution of values, each percentile one of the values; None for no values."""
    if not values:
        return None
    n, ordered = len(values), sorted(values)
    at = [ordered[math.ceil(share * n) - 1] if n >= need else None for share, need in CARRIED.items()]
    p50, p90, p95, p99 = at
    return Spread(mean=sum(values) / n, p50=p50, p90=p90, p95=p95, p99=p99, max=ordered[-1], n=n)


def _spread_of_gaps(gaps: Sequence[_Gaps], mean: float) -> Spread:
    """Return the distribution of gaps, each weighted by the streams that saw it; n is the number of steps."""
    if not gaps:
        return Spread(mean=mean, p50=None, p90=None, p95=None, p99=None, max=None, n=0)
    import numpy as np

    series = _Series(*(np.array(column) for column in zip(*gaps, strict=True)))
    n, seen = int(series.steps.sum()), float((series.steps * series.weight).sum())
    p50, p90, p95, p99 = (
        _at(series, share * seen * (1 - 1e-12)) if n >= need else None for share, need in CARRIED.items()
    )
    longest = float((series.first + (series.steps - 1) * series.growth).max())
    return Spread(mean=mean, p50=p50, p90=p90, p95=p95, p99=p99, max=longest, n=n)


def _at(series: _Series, rank: float) -> float:
    """Return the gap below which `rank` of all gaps lie, each counted once for each stream that saw it.

    Searched, not sorted: an answer of 50,000 tokens has tens of millions of gaps.
    """
    longest = float((series.first + series.steps * series.growth).max())
    return least(lambda gap: (_up_to(series, gap) * series.weight).sum() >= rank, 0.0, longest, close=_EXACT)


def _up_to(series: _Series, gap: float) -> npt.NDArray[np.int64]:
    """Return how many gaps of each arithmetic series (first + i · growth) are at most `gap` long."""
    import numpy as np

    with np.errstate(divide="ignore", invalid="ignore"):
        rising = np.floor((gap - series.first) / series.growth) + 1
    level = np.where(series.first <= gap, series.steps, 0)
    return np.where(series.growth > 0, np.clip(np.nan_to_num(rising), 0, series.steps), level).astype(np.int64)


def _grows(came: Sequence[float], done: Sequence[float], start: float, end: float, queued: bool) -> bool:
    """Return whether the number in flight grew over a window by more than a share of the arrivals, surely.

    Surely: requests wait all through the second half (`queued`), or the changes over equal parts of the window
    have a mean above 0 with 95 % (t). Were they the independent steps of a walk that would be exact; in a steady
    state a rise is followed by a fall, and the test is on the safe side.
    """
    edges = [start + (end - start) * i / _BINS for i in range(_BINS + 1)]
    flight = [bisect_right(came, at) - bisect_right(done, at) for at in edges]
    grown, arrivals = flight[-1] - flight[0], bisect_right(came, end) - bisect_left(came, start)
    if grown <= _DEFICIT * arrivals:
        return False
    mean = grown / _BINS
    variance = sum((after - before - mean) ** 2 for before, after in itertools.pairwise(flight)) / (_BINS - 1)
    return queued or mean > _T95 * math.sqrt(variance / _BINS)
