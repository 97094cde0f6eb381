"""Servers whose knee is known, seen through windows of any length: and what a short level shows of it.

A level here is tokens with their times and requests with theirs, cut by a window that begins at a random moment; its
throughput and its error come from the functions that a real level's do. Nothing is added to them: what a short window
errs by is the moment that it began at and the requests that it cut. Two servers:

    Closed    every request in flight has a seat, every step gives each a token, and a step takes a + b·(seats taken):
              the capped hyperbola to the letter, with prompts that take a share of a request's steps
    Machine   the step machine of predict.batching in a closed loop

Left out: the way from one level to the next. A window begins when the level is steady; what that takes is only time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import knee_truths
import msgspec
import numpy as np
from knee_truths import Floats, TrueCurve

from harness.analysis import curve, stats
from harness.analysis.curve import Point
from harness.data.record import Role
from harness.data.summary import NONE
from harness.data.views import Value
from harness.load.messages import BATCH_EVERY_S, PROGRESS_EVERY_S
from harness.predict.batching import StepMachine as StepMachine
from harness.predict.sequence import SimulatedRequest
from harness.search import pace, timing
from harness.search.decision import Decision
from harness.search.ramp import next_level
from harness.search.state import MeasuredLevel, Search
from harness.spec.scenario import Scenario

ITL = 0.015  # seconds a token of a single stream, of the closed server
PROMPTS = (0.02, 0.10)  # share of a request's steps before its first token
DRIFTS = (0.01, 0.05)  # relative, from level to level
PROMPT, STEP_ITL = 256, 0.0069  # tokens, and seconds a token of a single stream, of the step machine
_LONG = 10.0  # request times of the window that the machine's plateau is read from
_STEADY = 2.0  # request times after which the step machine is steady, as it starts with rests of requests


# ---- what a level costs ---------------------------------------------------------------------------------


class LevelTiming(NamedTuple):
    """What one level takes, seconds."""

    warm_up_s: float
    looks_s: tuple[float, ...]  # window lengths, rising: it ends at the first at which it is precise, or at the last
    cooldown_s: float
    reserve_s: float  # of a budget that the window leaves to the cooldown, once it is half as long itself
    fresh: Fresh | None = None  # nothing warmed up


class Fresh(NamedTuple):
    """A window that begins with the last slot: so many were there before, the others began over the spread."""

    before: int
    spread_s: float


def level_timing(step: Decision, measured: Sequence[MeasuredLevel], request_s: float, search: Search) -> LevelTiming:
    """Return how long the ramp's next level lasts by the time of a request there: the product's policy (search.timing).

    Everything that the virtual ramps know of the time of a level stands here.
    """
    C, had = step.concurrency or 1, measured[-1].users if measured else 0
    before = measured[-1].request_s or request_s if measured else request_s
    warming = _pace(step.role, before, search.seconds_left)
    spread = warming.spread_s * (1 - 1 / max(C - had, 1))
    warm_up = _warm_up_s(C, had, request_s, before, spread, warming.warm_up)
    left = None if search.seconds_left is None else max(0.0, search.seconds_left - warm_up)
    measuring = _pace(step.role, request_s, left)
    fresh = Fresh(had, spread) if not warming.warm_up and had < C else None
    # A single stream that did not warm up is measured over a whole request, and ends with it.
    single = C == 1 and not warming.warm_up
    if measuring.window_s is None:
        looks = tuple(timing.check_lengths(request_s))
    else:
        looks = (max(measuring.window_s, before if single else 0.0),)
    last = 0.0 if single else request_s
    return LevelTiming(warm_up, looks, last + BATCH_EVERY_S + PROGRESS_EVERY_S, last, fresh)


def _pace(role: Role, request_s: float, left: float | None) -> pace.Pace:
    return pace.of_level(Scenario(), role, request_s, left)


def _warm_up_s(C: int, had: int, request_s: float, before_s: float, spread_s: float, requests: int) -> float:
    """Until every slot has begun and so many requests of each have ended; those of a higher level before it first.

    Of C slots the C' that were there end one after the other, the new ones, which begin over the spread, from one
    request time on: C't/R + (C - C')·(t - R)/spread = C.
    """
    if had > C:
        return min((had - C) / C * request_s, before_s) + max(requests, 1) * request_s
    if not requests:
        return spread_s if had < C else 0.0
    new, spread = (C - had) / C, spread_s / request_s
    first = (1 + new / spread) / (1 - new + new / spread) if spread and new else 1.0
    return request_s * (first + requests - 1)


# ---- a level --------------------------------------------------------------------------------------------


class ServedTokens(msgspec.Struct, frozen=True):
    """What a server sent during a level: arrivals in order, and its requests, each [n]; seconds."""

    at: Floats
    tokens: Floats
    sent: Floats
    first: Floats
    done: Floats
    request_s: float  # mean time of a request
    steady_s: float  # from here on a window may begin
    cycle_s: float  # and within so much after it


class WindowSample(msgspec.Struct, frozen=True):
    """A level by one window."""

    concurrency: int
    X: float
    se: float | None
    assumed: bool
    window_s: float
    request_s: float | None
    requests: int  # that began in the window

    @property
    def point(self) -> Point:
        return Point(float(self.concurrency), float(self.concurrency), self.X, self.se, assumed=self.assumed)


# C in flight for the longest window of so many seconds; `factor` is by how much every step is slower.
Server = Callable[[int, float, np.random.Generator], ServedTokens]


def sample(series: ServedTokens, C: int, start: float, window_s: float) -> WindowSample:
    """Return the window [start, start + window_s), by the functions that judge a real one (analysis.metrics)."""
    end = start + window_s
    low, high = np.searchsorted(series.at, (start, end))
    at, tokens = series.at[low:high], series.tokens[low:high]
    began = (series.sent >= start) & (series.sent < end)
    request_s = float(np.mean((series.done - series.sent)[began])) if began.any() else None
    answer_s = float(np.mean((series.done - series.first)[began])) if began.any() else None
    completions = int(np.count_nonzero((series.done >= start) & (series.done < end)))
    se, assumed = stats.fit_error(at, tokens, start, end, request_s, completions, answer_s)
    X = float(stats.batches(at, tokens, start, end, 1)[0])
    return WindowSample(C, X, se, assumed, window_s, request_s, int(np.count_nonzero(began)))


def fixed(server: Server, C: int, window_s: float | None, times: float, rng: np.random.Generator) -> WindowSample:
    """Return a level whose window is so long, or where that is None so many request times."""
    series = server(C, window_s or 0.0, rng)
    if window_s is None:
        window_s = times * series.request_s
        series = server(C, window_s, rng)
    return sample(series, C, series.steady_s + rng.uniform() * series.cycle_s, window_s)


# ---- the closed server ----------------------------------------------------------------------------------


class Closed(NamedTuple):
    """A capped hyperbola with whole seats; `prompt` and `answer` in steps."""

    truth: TrueCurve
    prompt: int
    answer: int
    drift: float = 0.0  # standard deviation of ln(step time) from level to level

    @property
    def seats(self) -> int:
        return round(self.truth.B)

    def request_s(self, C: int) -> float:
        return C * self.answer / self.truth.throughput(C)

    def __call__(self, C: int, window_s: float, rng: np.random.Generator, fresh: Fresh | None = None) -> ServedTokens:
        """C staggered users, each somewhere within its share of a request time, and a queue for the others."""
        n, L = min(C, self.seats), self.prompt + self.answer
        step = self.request_s(n) / L * math.exp(self.drift * rng.normal())
        phases = (np.arange(n) + rng.uniform(size=n)) / n
        if fresh is not None:  # the last of the new ones begins when the window does
            old = min(fresh.before, n)
            ages = np.linspace(fresh.spread_s, 0.0, n - old) / (L * step)
            phases = np.concatenate([(np.arange(old) + rng.uniform(size=old)) / max(old, 1), (1 - ages) % 1])
        phases = np.sort((phases * L).astype(np.int64))
        # Requests end in the order of the seats' phases, one round after the other; the one that waited longest takes
        # the seat, and its user sends another request.
        waiting = C - n
        request_s = L * step * C / n
        begun = math.ceil(waiting / n) * L  # steps until one that was sent after the start has a seat
        steps = begun + 2 * L + math.ceil(window_s / step)
        rounds = math.ceil((steps + math.ceil(request_s / step)) / L) + 2
        ends = (np.arange(rounds)[:, None] * L + phases).ravel()
        k = np.arange(waiting, len(ends) - n)
        sent, seated, done = ends[k - waiting], ends[k], ends[k + n]
        # In one round, tokens of a step: of all seats but those whose request is in its prompt then.
        of_round = np.full(L, float(n))
        for late in range(1, self.prompt + 1):
            np.add.at(of_round, (phases + late) % L, -1.0)
        m = np.arange(begun, steps)
        return ServedTokens(
            at=m * step, tokens=of_round[m % L], sent=sent * step, first=(seated + self.prompt + 1) * step,
            done=done * step, request_s=request_s, steady_s=(begun + (0.5 if fresh else 0.0)) * step,
            cycle_s=0.0 if fresh else L * step,
        )  # fmt: skip


def closed(answer_s: float, truth: TrueCurve, rng: np.random.Generator, drift: float = 0.0) -> Closed:
    """Return a server of that shape whose answers take so long alone."""
    seats = round(truth.B)
    steps = max(20, round(answer_s / ITL))
    prompt = max(1, round(steps * rng.uniform(*PROMPTS)))
    scale = answer_s / (steps - prompt) / (truth.a + truth.b)
    return Closed(TrueCurve(truth.a * scale, truth.b * scale, float(seats)), prompt, steps - prompt, drift)


def drawn(answer_s: float, rng: np.random.Generator, *, least: float, drifts: bool) -> Closed:
    """Return a server with a random hinge, `least` or more, and shape."""
    while least > (truth := knee_truths.drawn("capped", rng)).B:
        pass
    drift = math.exp(rng.uniform(*np.log(DRIFTS))) if drifts else 0.0
    return closed(answer_s, truth, rng, drift)


# ---- the step machine -----------------------------------------------------------------------------------


class StepMachineServer(NamedTuple):
    """The step machine with so many seats, answers of so many tokens, all of one length."""

    seats: int
    answer: int

    @property
    def plateau(self) -> float:
        return _machine_plateau(self.seats, self.answer)

    def request_s(self, C: int) -> float:
        return _machine_request_s(self.seats, self.answer, C)

    def __call__(self, C: int, window_s: float, rng: np.random.Generator) -> ServedTokens:
        """C users without think time; the first requests are rests, spread evenly."""
        where = msgspec.structs.replace(
            knee_truths.H100, max_num_seqs=self.seats, kv_tokens=2 * self.seats * (PROMPT + self.answer)
        )
        machine = StepMachine(knee_truths.MODEL, where)
        rests = np.maximum(1, ((np.arange(C) + rng.uniform(size=C)) / C * self.answer).astype(int))
        rng.shuffle(rests)
        sent, first, done = [0.0] * C, [math.nan] * C, [math.nan] * C
        for user, rest in enumerate(rests):
            machine.submit(SimulatedRequest(user, PROMPT, int(rest) if user < self.seats else self.answer))
        at: list[Floats] = []
        tokens: list[Floats] = []
        now, steady, start, finish, due = 0.0, 0, math.inf, math.inf, 0
        while True:
            stride = machine.stride()
            assert stride is not None
            begin = now
            i = np.arange(stride.steps)
            ends = begin + (i + 1) * stride.first + stride.growth * i * (i + 1) / 2
            now = float(ends[-1])
            at.append(ends)
            tokens.append(np.full(stride.steps, stride.tokens / stride.steps))
            for request in stride.started:
                first[request] = float(ends[0])
            for request in stride.finished:
                done[request] = now
                machine.submit(SimulatedRequest(len(sent), PROMPT, self.answer))
                sent.append(now)
                first.append(math.nan)
                done.append(math.nan)
            steady += len(stride.finished)
            if math.isinf(start) and steady >= _STEADY * C:
                start, request_s = now, now / _STEADY
                finish = start + window_s + request_s
            if now >= finish:  # the window is over; the last request that began in it is answered
                due = due or len(sent)
                if not np.isnan(done[due - 1]):
                    break
        over = ~np.isnan(done)
        began = np.array(sent)[over]
        spans = np.array(done)[over] - began
        late = began > 0
        return ServedTokens(
            at=np.concatenate(at), tokens=np.concatenate(tokens), sent=began, first=np.array(first)[over],
            done=np.array(done)[over], request_s=float(spans[late].mean()), steady_s=start, cycle_s=request_s,
        )  # fmt: skip


@lru_cache(maxsize=4096)
def _machine_request_s(seats: int, answer: int, C: int) -> float:
    return StepMachineServer(seats, answer)(C, 0.0, np.random.default_rng(0)).request_s


@lru_cache(maxsize=4096)
def _machine_plateau(seats: int, answer: int) -> float:
    return fixed(StepMachineServer(seats, answer), 2 * seats, None, _LONG, np.random.default_rng(0)).X


# ---- sweeps and ramps -----------------------------------------------------------------------------------


class FittedKnee(msgspec.Struct, frozen=True):
    """The fit of some levels."""

    state: str
    hinge: Value
    plateau: Value

    @property
    def has_answer(self) -> bool:
        return self.state != NONE


def fitted_knee(levels: Sequence[WindowSample], seed: int = 0, draws: int = 400) -> FittedKnee:
    """Return the fit through the levels."""
    found = curve.fit([level.point for level in levels], seed=seed, draws=draws).curve
    return FittedKnee(found.state, found.hinge_concurrency, found.plateau_tokens_per_s)


class RampLevel(NamedTuple):
    """A level of a ramp, and when it was over."""

    level: WindowSample
    seconds: float


def ramped(
    server: Closed,
    rng: np.random.Generator,
    *,
    max_seconds: float | None = None,
    most: int | None = None,
    seed: int = 0,
) -> Iterator[RampLevel]:
    """Yield the levels that the ramp chooses on a virtual clock, until it or its time ends, or `most` are measured.

    A window that the budget ends counts as far as it came, a warm-up that it ends leaves no level: as search.timing
    has it.
    """
    measured: list[MeasuredLevel] = []
    now = 0.0
    while most is None or len(measured) < most:
        left = None if max_seconds is None else max_seconds - now
        search = Search(
            levels=None, rates=None, max_concurrency=1024, search_rate=False, slo=False, max_ttft_s=None,
            predicted_hinge=None, seed=seed, seconds_left=left, requests_left=None, seconds=max_seconds, paced=True,
        )  # fmt: skip
        step = next_level(measured, search)
        if step.over:
            return
        C = step.concurrency
        assert C is not None
        timing = level_timing(step, measured, server.request_s(C), search)
        room = math.inf if left is None else left - timing.warm_up_s
        if room <= 0:
            return
        reserve = timing.reserve_s
        room = min(room, max(reserve / 2, room - reserve))
        looks = [length for length in timing.looks_s if length < room]
        if len(looks) < len(timing.looks_s):
            looks.append(room)
        level = measured_level(server, C, looks, rng, timing.fresh)
        taken = timing.warm_up_s + level.window_s + timing.cooldown_s
        if left is not None:  # a spent budget ends at once
            taken = min(taken, max(left, timing.warm_up_s + level.window_s) + BATCH_EVERY_S + PROGRESS_EVERY_S)
        now += taken
        measured.append(_as_measured(level, taken))
        yield RampLevel(level, now)
        if max_seconds is not None and now >= max_seconds:
            return


def measured_level(
    server: Closed, C: int, looks: Sequence[float], rng: np.random.Generator, fresh: Fresh | None
) -> WindowSample:
    """Return a level whose window ends at the first look at which it is precise, or at the last."""
    entropy = int(rng.integers(2**63))  # the same level, for as long as it is wanted
    where = rng.uniform()
    for i, length in enumerate(looks):
        series = server(C, length, np.random.default_rng(entropy), fresh)
        start = series.steady_s + where * series.cycle_s
        if i == len(looks) - 1:
            break
        counts = np.concatenate(([0.0], np.cumsum(series.tokens)))
        times = np.concatenate(([series.at[0] - 1e-9], series.at))
        if pace.precise(times, counts, start, start + length, series.request_s, 0.02):
            break
    return sample(series, C, start, length)


def _as_measured(level: WindowSample, seconds: float) -> MeasuredLevel:
    return MeasuredLevel(
        concurrency=level.concurrency, rate=None, in_flight=float(level.concurrency), throughput=level.X,
        se=level.se, error_rate=0.0, seconds=seconds, requests=round(level.requests * seconds / level.window_s),
        request_s=level.request_s, valid=True, in_flight_ok=True, ttft_p99_s=None, slo=None, assumed=level.assumed,
    )  # fmt: skip
