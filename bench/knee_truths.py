"""Servers whose knee is known, and the levels that would be measured on them.

Two kinds. Curves: the families of docs/method.md, The curve, with drawn coefficients; a level is the curve's
throughput with a relative error of known size. Machines: the step machine of predict.batching in a closed loop, which
none of the families describes exactly; a level is a window cut at random from one long trace, with its error by batch
means, as a real level has it.

What a level costs: 2 request times of warm-up, the window, 1 of cooldown; a request time is N·G/X.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from harness.analysis import stats
from harness.analysis.curve import Point
from harness.analysis.seats import Occupancy
from harness.data.views import Estimate
from harness.predict.batching import StepMachine
from harness.predict.catalog import gpu, model_config
from harness.predict.deployment import Deployment, deployment
from harness.predict.model import model
from harness.predict.sequence import SimulatedRequest
from harness.search import pace
from harness.search.ramp import next_level
from harness.search.state import MeasuredLevel, Search
from harness.spec.scenario import PRECISION

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Measure = Callable[[int, np.random.Generator], MeasuredLevel]  # a concurrency in, the measured level out

KINDS = ("capped", "hyperbola", "dip")
HINGES = (4.0, 400.0)  # drawn log-uniform between them
BENDS = (0.05, 2.0)  # bB/a, log-uniform: elasticity right below the hinge is 1/(1 + bB/a), 0.95 to 0.33
DIPS = (0.05, 0.25)  # d·P, uniform: throughput 4 times past the hinge is down by 6 to 26 %
SINGLE = 0.02  # a, seconds a token
TOKENS = 128  # G
WARM_UP, WINDOW, COOLDOWN = 2.0, float(pace.REQUEST_TIMES), 1.0  # request times; the shortest window


class KnownCurve(Protocol):
    """A server whose throughput at every load is known."""

    def throughput(self, N: float, /) -> float: ...


class TrueCurve(NamedTuple):
    """y = max(a + bN, N/P) + d·N·ln(N/B)₊ with 1/P = a/B + b; B = inf is the hyperbola."""

    a: float
    b: float
    B: float
    d: float = 0.0

    @property
    def plateau(self) -> float:
        """P; of a hyperbola what it tends to, 1/b."""
        return 1 / (self.a / self.B + self.b)

    def throughput(self, N: float) -> float:
        """Output tok/s with N in flight.

        >>> TrueCurve(0.02, 0.0, 48.0).throughput(64)
        2400.0
        """
        y = max(self.a + self.b * N, N / self.plateau)
        return N / (y + self.d * N * math.log(max(N / self.B, 1.0)))


def drawn(kind: str, rng: np.random.Generator) -> TrueCurve:
    """Return a curve of that kind with a random hinge; of a hyperbola it is the half-point a/b that is drawn so."""
    scale = math.exp(rng.uniform(*np.log(HINGES)))
    if kind == "hyperbola":
        return TrueCurve(SINGLE, SINGLE / scale, math.inf)
    bend = math.exp(rng.uniform(*np.log(BENDS)))
    capped = TrueCurve(SINGLE, bend * SINGLE / scale, scale)
    if kind == "capped":
        return capped
    return capped._replace(d=rng.uniform(*DIPS) / capped.plateau)


def noisy(truth: KnownCurve, noise: float, window: float = WINDOW) -> Measure:
    """Levels of a curve with the relative error `noise` in the shortest window; in f times as long 1/√f of it.

    No level is known better than stats.FLOOR. Without noise a level is exact and nothing is known of its error, as in
    a file that has no column of errors.
    """

    def measure(C: int, rng: np.random.Generator) -> MeasuredLevel:
        X = truth.throughput(C)
        sigma = max(noise * math.sqrt(WINDOW / window), stats.FLOOR) if noise else 0.0
        return measured_level(C, X * (1 + sigma * rng.normal()), sigma or None, C * TOKENS / X, window)

    return measure


def measured_level(C: int, X: float, sigma: float | None, request_s: float, window: float) -> MeasuredLevel:
    """Return a level of which nothing is wrong; `sigma` relative, None: not known; `window` in request times."""
    times = WARM_UP + window + COOLDOWN
    return MeasuredLevel(
        concurrency=C, rate=None, in_flight=float(C), throughput=X, se=None if sigma is None else sigma * X,
        error_rate=0.0, seconds=times * request_s, requests=round(times * C), request_s=request_s, valid=True,
        in_flight_ok=True, ttft_p99_s=None, slo=None,
    )  # fmt: skip


def adaptive(
    measure: Measure, rng: np.random.Generator, max_concurrency: int = 1024, seed: int = 0
) -> list[MeasuredLevel]:
    """Return the levels that the ramp chooses, to its end."""
    search = Search(
        levels=None, rates=None, max_concurrency=max_concurrency, search_rate=False, slo=False, max_ttft_s=None,
        predicted_hinge=None, seed=seed, seconds_left=None, requests_left=None,
    )  # fmt: skip
    levels: list[MeasuredLevel] = []
    while not (step := next_level(levels, search)).over:
        assert step.concurrency is not None
        levels.append(measure(step.concurrency, rng))
    return levels


def doubling(scale: float) -> list[int]:
    """1, 2, 4, … to the first that is 4 times past the hinge, but not below 64, that a hinge can be fitted at all.

    >>> doubling(20)
    [1, 2, 4, 8, 16, 32, 64, 128]
    """
    last = math.ceil(math.log2(max(4 * scale, 64.0)))
    return [2**i for i in range(last + 1)]


def fixed(measure: Measure, levels: Sequence[int], rng: np.random.Generator) -> list[MeasuredLevel]:
    """Those levels, one after another."""
    return [measure(C, rng) for C in levels]


def points(levels: Sequence[MeasuredLevel]) -> list[Point]:
    """Return the levels as the fit takes them."""
    return [Point(float(h.users), h.in_flight, h.throughput, h.se, h.valid, h.in_flight_ok, h.assumed) for h in levels]


# ---- the step machine -----------------------------------------------------------------------------------


class Lengths(NamedTuple):
    """Prompt and answer lengths: lognormal with these means and one coefficient of variation; 0: all the same."""

    prompt: float
    answer: float
    spread: float

    def draw(self, mean: float, rng: np.random.Generator) -> int:
        if self.spread == 0:
            return round(mean)
        s2 = math.log(1 + self.spread**2)
        return max(1, round(rng.lognormal(math.log(mean) - s2 / 2, math.sqrt(s2))))


class Server(NamedTuple):
    """Replicas with their share of the users, and the requests that they get."""

    lengths: Lengths
    deployment: Deployment
    shares: tuple[int, ...] = (1,)  # users are pinned to a replica, so many of each round


MODEL = model(model_config("llama-3.1-8b"), "llama-3.1-8b")
H100 = deployment(gpu("h100-sxm"), max_num_seqs=48)


def _with(**changes: int) -> Deployment:
    return msgspec.structs.replace(H100, **changes)


SERVERS = {
    "lognormal": Server(Lengths(256, 64, 0.6), H100),
    # 48 whole requests' worth of KV and no other cap that binds; prompts are most of a request, so few are preempted.
    "kv-limited": Server(Lengths(512, 64, 0.3), _with(max_num_seqs=1024, kv_tokens=48 * (512 + 32))),
    # Answers outgrow their prompts: what is admitted does not fit any more when it has grown.
    "preemption": Server(Lengths(64, 128, 0.6), _with(max_num_seqs=1024, kv_tokens=48 * (64 + 64))),
    # Two replicas of 24; one has 9 of 16 users and is full at 42.7, the other at 54.9.
    "rounded": Server(Lengths(256, 64, 0.6), _with(max_num_seqs=24), (9, 7)),
}


class Trace(msgspec.Struct, frozen=True):
    """What a server with C in flight sent: tokens and when, seconds from the start of the first request."""

    at: Floats
    tokens: Floats
    counts: Floats  # of tokens so far
    request_s: float  # mean time of a request
    running: float  # mean running batch, all replicas
    warm_s: float  # from here on it is steady


def trace(server: Server, C: int, steps: int, seed: int = 0) -> Trace:
    """C users without think time, for so many engine steps.

    The first requests are cut to random rests of their length, as if the window had come at a random moment.
    """
    rng = np.random.default_rng([seed, C])
    machines = [StepMachine(MODEL, server.deployment) for _ in server.shares]
    pins = [replica for replica, share in enumerate(server.shares) for _ in range(share)]
    order = rng.permutation(len(pins))  # the same mixture for every number of users, as even as it can be
    lengths, sent, spans, issued = server.lengths, dict[int, float](), list[float](), 0

    def submit(replica: int, now: float, rest: float = 1.0) -> None:
        nonlocal issued
        answer = max(1, round(lengths.draw(lengths.answer, rng) * rest))
        machines[replica].submit(SimulatedRequest(issued, lengths.draw(lengths.prompt, rng), answer))
        sent[issued] = now
        issued += 1

    for user in range(C):
        submit(pins[order[user % len(pins)]], 0.0, rng.uniform())
    at, tokens, busy = np.empty(steps), np.empty(steps), 0.0
    due = []
    for replica, machine in enumerate(machines):
        if (step := machine.step()) is not None:
            heapq.heappush(due, (step.duration, replica, step))
    for i in range(steps):
        now, replica, step = heapq.heappop(due)
        machine = machines[replica]
        at[i], tokens[i] = now, len(step.tokens)
        if i > steps // 4:
            busy += len(step.tokens) * step.duration
        for request, _, finished in step.tokens:
            if finished:
                spans.append(now - sent.pop(request))
                submit(replica, now)
        after = machine.step()
        assert after is not None  # every answered user has sent another request
        heapq.heappush(due, (now + after.duration, replica, after))
    steady = spans[len(spans) // 4 :]
    request_s = sum(steady) / len(steady)
    running = busy / float(at[-1] - at[steps // 4])
    return Trace(at, tokens, np.cumsum(tokens), request_s, running, warm_s=min(WARM_UP * request_s, float(at[-1]) / 2))


@cache
def traced(name: str, steps: int, C: int) -> Trace:
    """Return the trace of that server at C, so many steps of each replica; made once."""
    return trace(SERVERS[name], C, steps * len(SERVERS[name].shares))


class Window(msgspec.Struct, frozen=True):
    """A window that ended at a check: its length, and the throughput in it."""

    seconds: float
    estimate: Estimate


def window(times: Floats, counts: Floats, start: float, request_s: float, most: float = math.inf) -> Window:
    """Return the window of a whole series: from check to check until it is precise or the last check has come.

    The series has to reach as far as the last check may. `times` rise, `counts` are shape of `times`.
    """
    for length in pace.lengths(request_s, most=most):
        if pace.precise(times, counts, start, start + length, request_s, PRECISION):
            break
    return Window(length, stats.running_means(times, counts, start, start + length, request_s))


def windowed(name: str, steps: int, C: int, rng: np.random.Generator) -> MeasuredLevel:
    """Return a level: a window cut at random from the trace, as long as a real one, at most half of the trace."""
    found = traced(name, steps, C)
    half = (float(found.at[-1]) - found.warm_s) / 2
    start = found.warm_s + rng.uniform() * half
    made = window(found.at, found.counts, start, found.request_s, most=half)
    return _level(found, C, start, start + made.seconds)


def whole(name: str, steps: int, C: int) -> MeasuredLevel:
    """Return a level that lasts as long as its trace."""
    found = traced(name, steps, C)
    return _level(found, C, found.warm_s, float(found.at[-1]))


def _level(found: Trace, C: int, start: float, end: float) -> MeasuredLevel:
    """Return the level by the tokens between two moments; the fit's own error as a real level has it."""
    rate, times = stats.batches(found.at, found.tokens, start, end, 1), (end - start) / found.request_s
    se, _ = stats.fit_error(found.at, found.tokens, start, end, found.request_s, round(C * times))
    X = float(rate[0])
    assert se is not None
    level = measured_level(C, X, se / X, found.request_s, times)
    return msgspec.structs.replace(level, occupancy=_occupancy(found, C, start, end))


def _occupancy(found: Trace, C: int, start: float, end: float) -> Occupancy:
    """Return how many requests stream in that window: each gives a token a step, and holds it for the step."""
    inside = slice(*np.searchsorted(found.at, (start, end)).tolist())
    steps = np.diff(found.at, prepend=0.0)[inside]
    streaming = float(found.tokens[inside] @ steps) / float(steps.sum())
    rate = float(found.tokens[inside].sum()) / (end - start)
    return Occupancy(load=C, in_flight=C, streaming=streaming, tpot_s=streaming / rate, seconds=end - start)


def saturated(name: str, steps: int) -> float:
    """Mean running batch where far more are in flight than can run."""
    return traced(name, steps, 192).running


# ---- series of tokens whose rate is known ---------------------------------------------------------------

LONGEST = pace.lengths(1.0)[-1]  # request times that a window may last
_BINS, _RHO, _VARIES = 10, 0.8, 0.10  # bins a request time, their lag-1 correlation and relative deviation
_GAPS = 200  # mean arrivals a request time
RATE = 1000.0  # tokens a request time of both series


def correlated(rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Times and running count of tokens in bins that follow AR(1), from its steady state; a request time is 1."""
    n = math.ceil(LONGEST * _BINS) + 1
    x = rng.normal(size=n)
    x[1:] *= math.sqrt(1 - _RHO**2)
    for i in range(1, n):
        x[i] += _RHO * x[i - 1]
    tokens = RATE / _BINS * (1 + _VARIES * x)
    return np.arange(n + 1) / _BINS, np.concatenate(([0.0], np.cumsum(tokens)))


def renewal(rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Times and running count of tokens that come a few at a time, after independent lognormal gaps of variation 1."""
    s2, early = math.log(2), 10.0  # by then it has forgotten how it began
    n = math.ceil((LONGEST + early) * _GAPS * 1.2)
    times = np.cumsum(rng.lognormal(-s2 / 2, math.sqrt(s2), n)) / _GAPS - early
    return times, np.arange(n) * (RATE / _GAPS)
