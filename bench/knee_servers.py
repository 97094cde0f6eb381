"""Servers that no family of curves describes, and whether the knee that is found holds on them.

The truth of each was written beside it before its first ramp:

    experts       ten mixtures of experts as the roofline predicts them; the seats
    mva           a closed network of queues, solved exactly; N* = (think time + ΣD)/max D
    padded        batches padded to 8, 16, 32 or 64; the 64 that run at once
    two-plateaus  flat from 8 to 16, rising again to 40; the load from which throughput stays where it is
    memory        the step machine bound by KV memory, and with preemptions; the mean running batch at saturation
    wander        a speed that is an Ornstein–Uhlenbeck process, ramps in continuous time; the seats
    changes       a server that slows, or doubles its seats, during its ramp; the seats after that, and a doubt

An interval without an end covers every truth, so each row asks for sharp answers too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import knee_truths
import knee_windows
import msgspec
import numpy as np
from knee_table import Bench, Line, Outcome, Sharp, judged, share
from knee_truths import Floats, TrueCurve

from harness.analysis import answer, change, seats, stats
from harness.analysis.curve import Point, fit
from harness.data.views import Value
from harness.library.prediction import predict
from harness.search.ramp import next_level
from harness.search.state import MeasuredLevel, Search

NOISES = (0.0, 0.03, 0.05)
DOUBTED, FALSE_ALARMS = 0.95, 0.01  # of the servers that change, and of those that do not
MOST = 1024  # in flight
SHARP = {0.0: Sharp(None, 1.6), 0.03: Sharp(0.50, 2.0), 0.05: Sharp(None, 2.5)}


def outcome(levels: Sequence[MeasuredLevel], truth: float, seed: int) -> Outcome:
    """Return the knee that heads a run, beside the truth: the seats where the levels show them, else the corner."""
    crowd = [level.occupancy for level in levels if level.occupancy is not None]
    highest = max((level.users for level in levels), default=0)
    return headed(knee_truths.points(levels), crowd, truth, seed, highest, len(levels))


def headed(
    points: Sequence[Point], crowd: Sequence[seats.Occupancy], truth: float, seed: int, highest: int, levels: int
) -> Outcome:
    """Return the knee that heads a run of these points, and of what they show of the seats."""
    found = fit(points, seed=seed)
    knees = msgspec.structs.replace(found.knees, seats=seats.as_value(seats.find(crowd)))
    knee = answer.headline(knees, found.curve)
    return Outcome(truth, knee.state, Value(knee.value, knee.ci95), highest, levels)


def generator(seed: int, name: str, *numbers: int) -> np.random.Generator:
    """Return the generator of one ramp, the same whatever else is run."""
    return np.random.default_rng([seed, 53, *name.encode(), *numbers])


# ---- curves ---------------------------------------------------------------------------------------------


class KnownServer(NamedTuple):
    """Output tok/s at 1, 2, … MOST in flight, and the concurrency that is its knee."""

    X: Floats
    truth: float

    def throughput(self, N: float, /) -> float:
        """Return output tok/s with N in flight, a whole number of them."""
        return float(self.X[int(N) - 1])


N = np.arange(1, MOST + 1)

EXPERTS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("qwen3-30b-a3b", "h100-sxm", {}),
    ("gpt-oss-120b", "h100-sxm", {"tp": 2}),
    ("gpt-oss-20b", "h100-sxm", {}),
    ("mixtral-8x7b", "h100-sxm", {"tp": 2}),
    ("qwen3-235b-a22b", "h200-sxm", {"tp": 4, "dtype": "fp8"}),
    ("deepseek-r1", "h200-sxm", {"tp": 8}),
    ("kimi-k2", "b200-sxm", {"tp": 8}),
    ("glm-4.6", "h200-sxm", {"tp": 8, "dtype": "fp8"}),
    ("minimax-m2.5", "h200-sxm", {"tp": 4}),
    ("qwen3.5-35b-a3b", "h100-sxm", {"tp": 2}),
)
PROMPT = ANSWER = 256  # tokens
SEATS = (8, 32, 100)


@cache
def experts(seats: int, which: int) -> KnownServer:
    """Return a mixture of experts with so many seats, as `knee predict` computes it; truth: the seats."""
    model, gpu, where = EXPERTS[which]
    levels = [*range(1, seats + 2), MOST]  # past its seats the prediction is flat
    figures: dict[str, Any] = {**where, "max_num_seqs": seats}
    found = predict(model, gpu, input_tokens=PROMPT, output_tokens=ANSWER, levels=levels, **figures)
    X = [level.output_tokens_per_s.mid for level in found.levels]
    return KnownServer(np.interp(N, levels, X), float(seats))


@cache
def mva(demands: tuple[float, ...], knee: float) -> KnownServer:
    """Return a closed network of single servers with these demands, in seconds, whose N* is `knee`.

    Exact mean value analysis (Reiser and Lavenberg 1980): R_k = D_k·(1 + Q_k), X = N/(Z + ΣR_k), Q_k = X·R_k; the think
    time Z is what N* = (Z + ΣD)/max D leaves.
    """
    D = np.array(demands)
    Z, Q = knee * D.max() - D.sum(), np.zeros(len(D))
    X = np.empty(MOST)
    for n in N:
        R = D * (1 + Q)
        X[n - 1] = n / (Z + R.sum())
        Q = X[n - 1] * R
    return KnownServer(knee_truths.TOKENS * X, knee)


PADS = (8, 16, 32, 64)
STEP_S, STEP_EACH_S = 0.02, 0.02 / 64  # of a batch, and more for each of its places: twice as long when full


@cache
def padded() -> KnownServer:
    """Return a server whose batches are padded; truth: the most that run at once.

    With 33 in flight it is slower than with 32.
    """
    running = np.minimum(N, PADS[-1])
    places = np.array(PADS)[np.searchsorted(PADS, running)]
    return KnownServer(running / (STEP_S + STEP_EACH_S * places), float(PADS[-1]))


@cache
def two_plateaus() -> KnownServer:
    """Return a server that is flat from 8 to 16 and from 40 on; truth: 40, from where throughput stays."""
    return KnownServer(np.minimum(N, 8.0) / 0.02 * np.clip(N / 16, 1.0, 40 / 16), 40.0)


STATIONS = {"mva-one-station": (0.02,), "mva-two-stations": (0.02, 0.01)}  # seconds; beside them only think time
KNEE = 48.0  # N* of both
CURVES: dict[str, Sequence[Callable[[], KnownServer]]] = {  # ramps take these in turn
    **{f"experts-{seats}": [partial(experts, seats, which) for which in range(len(EXPERTS))] for seats in SEATS},
    **{name: [partial(mva, demands, KNEE)] for name, demands in STATIONS.items()},
    "padded": [padded],
    "two-plateaus": [two_plateaus],
}


def ramped(name: str, noise: float, seed: int, index: int) -> Outcome:
    """Return what one adaptive ramp finds on that server."""
    server = CURVES[name][index % len(CURVES[name])]()
    rng = generator(seed, name, round(1000 * noise), index)
    levels = knee_truths.adaptive(knee_truths.noisy(server, noise), rng, seed=index)
    return outcome(levels, server.truth, index)


def curves(name: str, work: Bench) -> Iterator[Line]:
    """Yield a line for each noise of that server's levels."""
    for noise in NOISES:
        todo = partial(ramped, name, noise, work.options.seed)
        outcomes = list(work.pool.map(todo, range(work.options.server_runs), chunksize=4))
        yield judged(f"{name}-{100 * noise:g}", f"ramps on {name}, {noise:.0%} noise", outcomes, SHARP[noise])


# ---- machines -------------------------------------------------------------------------------------------

MEMORY = ("kv-limited", "preemption")
STEPS = 12_500  # of a trace: 190 request times of one alone, 60 at three times the knee


def traced(seed: int, runs: int, name: str) -> list[Outcome]:
    """Return what adaptive ramps find on that step machine; all in one process, which makes each trace once."""
    truth, measure = knee_truths.saturated(name, STEPS), partial(knee_truths.windowed, name, STEPS)
    ramps = (knee_truths.adaptive(measure, generator(seed, name, i), seed=i) for i in range(runs))
    return [outcome(levels, truth, i) for i, levels in enumerate(ramps)]


def memory(work: Bench) -> Iterator[Line]:
    """Yield a line for each machine that KV memory binds; its windows have errors of their own."""
    found = work.pool.map(partial(traced, work.options.seed, work.options.server_runs), MEMORY)
    for name, outcomes in zip(MEMORY, found, strict=True):
        yield judged(f"memory-{name}", f"ramps on the step machine, {name}", outcomes, SHARP[0.03])


# ---- ramps in continuous time ---------------------------------------------------------------------------

BUDGET_S = 240.0
REQUEST_S = 3.0  # of a request alone
TICK_S = 0.1  # of a speed, and between arrivals of tokens
DECODES = 0.95  # share of the time in service from a request's first token on


class Wander(NamedTuple):
    """An Ornstein–Uhlenbeck process of the logarithm of a speed."""

    sd: float
    correlation_s: float

    def drawn(self, seconds: float, rng: np.random.Generator) -> Floats:
        """Return the speed, relative, at every TICK_S and one more; shape [seconds / TICK_S + 1]."""
        keeps, kicks = math.exp(-TICK_S / self.correlation_s), rng.normal(size=math.ceil(seconds / TICK_S) + 1)
        kicks[1:] *= math.sqrt(1 - keeps**2)
        for i in range(1, len(kicks)):
            kicks[i] += keeps * kicks[i - 1]
        return np.exp(self.sd * kicks)


WANDERS = Wander(0.15, 5.0)
# A window of T = 6 requests then errs by 3 %: sd·√(2·correlation/T).
CALM = Wander(0.03 * math.sqrt(6 * REQUEST_S / (2 * 0.3)), 0.3)

SINGLE_S = 0.02  # a token of a request alone
DENSE = TrueCurve(SINGLE_S / 1.01, 0.01 * SINGLE_S / 1.01, 24.0)
FLAT = TrueCurve(SINGLE_S / 5, 4 * SINGLE_S / 5, 4.0)  # a + b is 1/0.85 of a/4 + b: one alone has 85 % of the plateau
TOKENS = REQUEST_S / SINGLE_S  # of an answer


class MovingServer(NamedTuple):
    """A server whose speed moves, and whose curve may change at a moment; seconds from the start of the run."""

    before: TrueCurve
    speed: Floats  # at every TICK_S
    after: TrueCurve | None = None
    moment_s: float = math.inf
    records: bool = False  # whether its levels have records, which show how many requests stream

    def at(self, now: float) -> TrueCurve:
        """Return the curve at that moment."""
        return self.before if self.after is None or now < self.moment_s else self.after

    def request_s(self, C: int, now: float) -> float:
        """Return the seconds of a request at C, at the mean speed."""
        return C * TOKENS / self.at(now).throughput(C)

    def tokens(self, C: int, start: float, end: float) -> tuple[Floats, Floats]:
        """Return the times of arrivals in [start, end) and the tokens of each; shape [n]."""
        ticks = np.arange(math.ceil(start / TICK_S), math.ceil(end / TICK_S))
        at = TICK_S * ticks.astype(np.float64)
        early, late = self.before.throughput(C), self.at(math.inf).throughput(C)
        return at, np.where(at < self.moment_s, early, late) * self.speed[ticks] * TICK_S


class TimedLevel(NamedTuple):
    """A level, and when its window was; seconds from the start of the run."""

    level: MeasuredLevel
    start_s: float
    end_s: float


def in_time(server: MovingServer, seed: int, max_seconds: float = BUDGET_S) -> list[TimedLevel]:
    """Return the levels that the ramp chooses, one after another in the time that each takes, to its end."""
    measured: list[TimedLevel] = []
    now = 0.0
    while (left := max_seconds - now) > 0:
        search = Search(
            levels=None, rates=None, max_concurrency=MOST, search_rate=False, slo=False, max_ttft_s=None,
            predicted_hinge=None, seed=seed, seconds_left=left, requests_left=None, seconds=max_seconds, paced=True,
        )  # fmt: skip
        levels = [each.level for each in measured]
        step = next_level(levels, search)
        if step.over:
            break
        C = step.concurrency
        assert C is not None
        timing = knee_windows.level_timing(step, levels, server.request_s(C, now), search)
        start, room = now + timing.warm_up_s, left - timing.warm_up_s
        if room <= TICK_S:
            break
        end = start + min(timing.looks_s[-1], max(timing.reserve_s / 2, room - timing.reserve_s), room)
        measured.append(TimedLevel(measured_level(server, C, start, end, end + timing.cooldown_s - now), start, end))
        now = end + timing.cooldown_s
    return measured


def measured_level(server: MovingServer, C: int, start: float, end: float, seconds: float) -> MeasuredLevel:
    """Return the level of that window, its error by the function that judges a real one; it took so many seconds."""
    at, tokens = server.tokens(C, start, end)
    X, curve = float(tokens.sum()) / (end - start), server.at(start)
    request_s, answer_s = C * TOKENS / X, DECODES * min(C, curve.B) * TOKENS / X
    completions = round(X * (end - start) / TOKENS)
    se, assumed = stats.fit_error(at, tokens, start, end, request_s, completions, answer_s)
    level = knee_truths.measured_level(C, X, None, request_s, (end - start) / request_s)
    return msgspec.structs.replace(
        level, se=se, assumed=assumed, seconds=seconds, time_s=(start + end) / 2,
        occupancy=occupancy(curve, level, end - start) if server.records else None,
    )  # fmt: skip


def occupancy(curve: TrueCurve, level: MeasuredLevel, seconds: float) -> seats.Occupancy:
    """Return what the records of a level show of the seats: as many stream at most as the curve has seats."""
    most = min(level.users, curve.B)
    tpot_s = DECODES * most / level.throughput
    return seats.Occupancy(level.users, float(level.users), DECODES * most, tpot_s, seconds, int(most), 0.5)


def levels_of(timed: Sequence[TimedLevel]) -> list[MeasuredLevel]:
    """Return the levels without their times."""
    return [each.level for each in timed]


def wandering(name: str, curve: TrueCurve, records: bool, seed: int, index: int) -> Outcome:
    """Return what one ramp finds on a server with that curve whose speed wanders."""
    server = MovingServer(curve, WANDERS.drawn(BUDGET_S, generator(seed, name, index)), records=records)
    return outcome(levels_of(in_time(server, index)), curve.B, index)


def wander(name: str, curve: TrueCurve, work: Bench) -> Iterator[Line]:
    """Yield lines of a server whose speed wanders by more than any noise that the sharpness has a target for.

    One is with its records, as every run has them, and one by its throughput alone, as in other tools' files.
    """
    for records in (True, False):
        todo = partial(wandering, name, curve, records, work.options.seed)
        outcomes = list(work.pool.map(todo, range(work.options.server_runs), chunksize=4))
        row = name if records else f"{name}-alone"
        what = f"ramps of {BUDGET_S:g} s, {row}: speed off by {WANDERS.sd:.0%}, for {WANDERS.correlation_s:g} s"
        yield judged(row, what, outcomes, Sharp())


# ---- servers that change --------------------------------------------------------------------------------

SLOWED = TrueCurve(DENSE.a / 0.6, DENSE.b / 0.6, DENSE.B)
DOUBLED = DENSE._replace(B=2 * DENSE.B)
CHANGES = {"slowed": SLOWED, "doubled": DOUBLED}
DIFFERS = 0.05  # relative throughput at a level that shows a change


def steady(levels: Sequence[TimedLevel]) -> change.Steady:
    """Return the last steady stretch of the levels, as a run takes it."""
    points = knee_truths.points(levels_of(levels))
    return change.steady(
        [
            change.TimedPoint(
                **msgspec.structs.asdict(point),
                time_s=(each.start_s + each.end_s) / 2,
                occupancy=each.level.occupancy,
            )
            for each, point in zip(levels, points, strict=True)
        ]
    )


class Watched(msgspec.Struct, frozen=True):
    """One ramp of a server that may change."""

    found: Outcome
    doubts: bool
    shows: bool  # whether levels on both sides of the change differ by it


def watched(server: MovingServer, timed: Sequence[TimedLevel], index: int) -> Watched:
    """Return what that ramp finds; the truth is that of the stretch it names, else that of the last."""
    last = server.at(math.inf)

    def differs(each: TimedLevel) -> bool:
        C = each.level.users
        return abs(last.throughput(C) / server.before.throughput(C) - 1) > DIFFERS

    sides = ([t for t in timed if t.end_s <= server.moment_s], [t for t in timed if t.start_s >= server.moment_s])
    shows = all(any(map(differs, side)) for side in sides)
    found = steady(timed)
    shift = found.shift
    before = shift is not None and shift.steady is not None and shift.steady[0] < shift.since
    truth = server.before.B if before else last.B
    highest = max(each.level.users for each in timed)
    return Watched(headed(found.points, found.crowd, truth, index, highest, len(timed)), shift is not None, shows)


def changed(seed: int, index: int) -> dict[str, Watched]:
    """Return one ramp of a calm server, and of its twins that change in the middle half of the time that it takes."""
    rng = generator(seed, "changes", index)
    calm = MovingServer(DENSE, CALM.drawn(BUDGET_S, rng), records=True)
    timed = in_time(calm, index)
    moment_s = timed[-1].end_s * rng.uniform(0.25, 0.75)
    found = {"calm": watched(calm, timed, index)}
    for name, after in CHANGES.items():
        server = calm._replace(after=after, moment_s=moment_s)
        found[name] = watched(server, in_time(server, index), index)
    return found


def changes(work: Bench) -> Iterator[Line]:
    """Yield how often a change is doubted, and what is found then."""
    ramps = list(work.pool.map(partial(changed, work.options.seed), range(work.options.server_runs), chunksize=2))
    for name in ("calm", *CHANGES):
        some = [ramp[name] for ramp in ramps]
        calm = name == "calm"
        shown = some if calm else [one for one in some if one.shows]
        doubts = share([one.doubts for one in shown])
        yield Line(
            f"changes-{name}-doubt", f"ramps of a server that {'keeps its speed' if calm else f'is {name}'}: a doubt",
            f"≤ {FALSE_ALARMS:.0%}" if calm else f"≥ {DOUBTED:.0%} of those whose levels on both sides show it",
            f"{doubts:.1%} of {len(shown)}",
            doubts <= FALSE_ALARMS if calm else doubts >= DOUBTED,
            "" if calm else f"{share([one.doubts for one in some]):.1%} of all {len(some)}",
        )  # fmt: skip
        yield judged(f"changes-{name}", f"the same ramps, {name}", [one.found for one in some], Sharp())


ROWS: dict[str, Callable[[Bench], Iterator[Line]]] = {
    **{name: partial(curves, name) for name in CURVES},
    "memory": memory,
    "wander-rising": partial(wander, "wander-rising", DENSE),
    "wander-flat": partial(wander, "wander-flat", FLAT),
    "changes": changes,
}
