"""The knee against truths that are known: coverage, bias, cost and speed of the adaptive ramp and its fit.

Every row has its target, the figure found, and whether the target is met. Levels come from curves with a known error,
from the step machine's traces, and at last from the simulated endpoint behind its socket; the first two need no clock,
so thousands of ramps take minutes. The last column has what helps to read the figure.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import partial
from multiprocessing import get_context

import knee_peers
import knee_servers
import knee_short
import knee_sockets
import knee_truths
import msgspec
import numpy as np
from knee_table import COVERED, Line, Options, Tally, covers, kept, promise, share, tally, width
from knee_truths import KINDS, SERVERS, Floats, TrueCurve, Window, window

from harness.analysis import stats
from harness.analysis.curve import Point, fit
from harness.data.summary import FOUND
from harness.data.views import Value
from harness.search.state import MeasuredLevel

NOISES = (0.01, 0.03, 0.05)
REACHED, PAST = 0.95, 3.0  # "plateau reached" is due in this share of the ramps that went so many hinges far
BIAS, CHEAPER, FIT_S = 0.02, 0.40, 0.2
LENGTHS = 1.25  # ratio of two window lengths that the fixed sweep tries
STEPS, LEVEL_STEPS = 25_000, 250_000  # of a trace, for each replica; of one that the truth of a level is read from
LEVEL_TRACES = 5  # that the windows of one level are cut from

LONG = (1, 2, 4, 8, 16, 24, 32, 36, 40, 44, 48, 52, 64, 96, 128)

GRIDS = {
    "powers of two": [2**i for i in range(10)],
    "even": list(range(10, 191, 20)),
    "odd": [1, 3, 7, 19, 37, 67, 139, 271],
    "1-3-7-19-…": [1, 3, 7, 19, 53, 139, 359, 919],
    "one below": list(range(20, 301, 40)),  # a single level on the rise of knees at 48 and 30
}
KNEES = (48.0, 30.0, 75.0, 100.0)  # peers are compared at the first


class SweepResult(msgspec.Struct, frozen=True):
    """The fit of a sweep, and what the sweep took."""

    hinge: Value
    plateau: Value  # by the posterior, whether it is shown or not
    shown: Value  # as it is shown: only where the plateau counts as reached
    reached: bool
    levels: int
    highest: int
    seconds: float


class Run(msgspec.Struct, frozen=True):
    """One truth, measured by the adaptive ramp and by doubling."""

    index: int
    truth: TrueCurve
    adaptive: SweepResult
    doubling: SweepResult | None  # of the first runs only, for comparison


# ---- ramps over curves ----------------------------------------------------------------------------------


def of_draws(draws: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Value:
    """Median of the draws, and the 2.5 % and 97.5 % of them, outwards; what is infinite is None.

    >>> of_draws(np.array([10.0] * 90 + [np.inf] * 10))
    Value(value=10.0, ci95=(10.0, None))
    """
    lo, hi = np.quantile(draws, 0.025, method="lower"), np.quantile(draws, 0.975, method="higher")
    value, low, high = (float(x) if np.isfinite(x) else None for x in (np.median(draws), lo, hi))
    return Value(value, (low, high))


def sweep_result(levels: Sequence[MeasuredLevel], seed: int = 0) -> SweepResult:
    """Return the fit through the levels, and what they took."""
    fitted = fit(knee_truths.points(levels), seed=seed)
    found = fitted.curve
    return SweepResult(
        hinge=found.hinge_concurrency,
        plateau=Value(None) if fitted.draws is None else of_draws(fitted.draws.plateau),
        shown=found.plateau_tokens_per_s,
        reached=found.plateau_reached,
        levels=len(levels),
        highest=max(h.concurrency or 0 for h in levels),
        seconds=sum(h.seconds for h in levels),
    )


def streams(seed: int, kind: str, noise: float, index: int, n: int) -> list[np.random.Generator]:
    """Independent generators of one run, the same whatever else is run: of the truth, and of each sweep."""
    root = np.random.SeedSequence([seed, KINDS.index(kind), round(1000 * noise), index])
    return [np.random.default_rng(child) for child in root.spawn(n)]


def scale(truth: TrueCurve) -> float:
    """Return the concurrency at which the curve bends: its hinge, or a hyperbola's half-point."""
    return truth.B if math.isfinite(truth.B) else truth.a / truth.b


def ramped(kind: str, noise: float, seed: int, doubled: int, index: int) -> Run:
    """One drawn truth under the adaptive ramp, and for the first `doubled` of them under doubling."""
    drawing, first, second = streams(seed, kind, noise, index, 3)
    truth = knee_truths.drawn(kind, drawing)
    measure = knee_truths.noisy(truth, noise)
    adaptive = sweep_result(knee_truths.adaptive(measure, first, seed=index), index)
    if index >= doubled:
        return Run(index, truth, adaptive, None)
    doubling = knee_truths.fixed(measure, knee_truths.doubling(scale(truth)), second)
    return Run(index, truth, adaptive, sweep_result(doubling, index))


def cut_below(noise: float, seed: int, index: int) -> tuple[TrueCurve, SweepResult]:
    """Return a capped hyperbola whose ramp --max-concurrency ends at 50 to 100 % of the hinge."""
    drawing, first, where = streams(seed + 1, "capped", noise, index, 3)
    truth = knee_truths.drawn("capped", drawing)
    most = max(1, math.ceil(truth.B * where.uniform(0.5, 1.0)) - 1)
    return truth, sweep_result(knee_truths.adaptive(knee_truths.noisy(truth, noise), first, most, index), index)


def lengthened(noise: float, seed: int, run: Run) -> float | None:
    """Seconds of the shortest doubling sweep, all windows lengthened alike, whose hinge interval is as narrow.

    None where even windows of the best error that a level can have leave it wider. Errors of one run only shrink as
    windows grow (the same draws), so the shortest is found by bisection.
    """
    goal = width(run.adaptive.hinge)
    if math.isnan(goal):
        return None
    levels = knee_truths.doubling(scale(run.truth))
    most = math.ceil(math.log((noise / stats.FLOOR) ** 2, LENGTHS))

    def swept(rung: int) -> SweepResult:
        measure = knee_truths.noisy(run.truth, noise, knee_truths.WINDOW * LENGTHS**rung)
        return sweep_result(
            knee_truths.fixed(measure, levels, streams(seed, "capped", noise, run.index, 3)[2]), run.index
        )

    def narrow(found: SweepResult) -> bool:
        return width(found.hinge) <= goal

    low, high, best = -1, most, swept(most)
    if not narrow(best):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        found = swept(middle)
        if narrow(found):
            high, best = middle, found
        else:
            low = middle
    return best.seconds


class SharedRamps:
    """The processes, and the ramps that several rows share, made once."""

    def __init__(self, options: Options, pool: ProcessPoolExecutor) -> None:
        self.options, self.pool = options, pool
        self._runs: dict[tuple[str, float], list[Run]] = {}

    def runs(self, kind: str, noise: float) -> list[Run]:
        key = kind, noise
        if key not in self._runs:
            todo = partial(ramped, kind, noise, self.options.seed, self.options.cost_runs)
            self._runs[key] = list(self.pool.map(todo, range(self.options.runs), chunksize=8))
        return self._runs[key]


def coverage(kind: str, work: SharedRamps) -> Iterator[Line]:
    """Intervals of hinge and plateau, by ramps that choose their own levels."""
    for noise in NOISES:
        runs = work.runs(kind, noise)
        name, strict = f"coverage-{kind}-{noise:.0%}".replace("%", ""), noise == NOISES[0]
        counts = sorted(run.adaptive.levels for run in runs)
        counted = f"{counts[len(counts) // 2]} levels (median; {counts[0]} … {counts[-1]})"
        if kind == "hyperbola":
            yield from _no_hinge(name, noise, runs, counted)
            continue
        reached = share([run.adaptive.reached for run in runs])
        for figure, what in FIGURES.items():
            ramp, grid = (tally([(_read(a, figure), _truth(t, figure)) for t, a in of]) for of in _both(runs))
            yield Line(
                f"{name}-{figure}", f"95 % intervals of the {what} that cover, {kind}, {noise:.0%} noise",
                promise(strict), str(ramp), kept(ramp, strict),
                f"{counted}; plateau said in {reached:.1%}; doubling: {grid}",
            )  # fmt: skip


# A plateau is shown where it is reached; the posterior of every run has one.
FIGURES = {"hinge": "hinge", "plateau": "plateau", "shown": "plateau where it is said to be reached"}


def _both(runs: Sequence[Run]) -> Iterator[list[tuple[TrueCurve, SweepResult]]]:
    """Yield what the adaptive ramps answered, with their truths, and then what the doubling sweeps did."""
    yield [(run.truth, run.adaptive) for run in runs]
    yield [(run.truth, run.doubling) for run in runs if run.doubling is not None]


def _read(found: SweepResult, figure: str) -> Value:
    return {"hinge": found.hinge, "plateau": found.plateau, "shown": found.shown}[figure]


def _truth(truth: TrueCurve, figure: str) -> float:
    return truth.B if figure == "hinge" else truth.plateau


def _no_hinge(name: str, noise: float, runs: Sequence[Run], counted: str) -> Iterator[Line]:
    """Yield the line of curves that only tend to a plateau: they have no knee, or one without an upper end."""
    ramp, grid = (share([a.hinge.value is None or covers(a.hinge, math.inf) is not False for _, a in of])
                  for of in _both(runs))  # fmt: skip
    reached = share([run.adaptive.reached for run in runs])
    yield Line(
        f"{name}-hinge", f"hinge null or unbounded, hyperbola, {noise:.0%} noise", f"≥ {COVERED:.0%}",
        f"{ramp:.1%} of {len(runs)}", ramp >= COVERED,
        f"{counted}; plateau said in {reached:.1%}; doubling: {grid:.1%}",
    )  # fmt: skip


def reached(work: SharedRamps) -> Iterator[Line]:
    """When the plateau counts as reached."""
    for noise in NOISES:
        found = list(work.pool.map(partial(cut_below, noise, work.options.seed), range(work.options.runs), chunksize=8))
        claimed = sum(a.reached for _, a in found)
        enough = sum(a.levels >= 6 for _, a in found)
        yield Line(
            f"below-{noise:.0%}".replace("%", ""), f"ramps ended below the hinge that say plateau, {noise:.0%} noise",
            "0", f"{claimed} of {len(found)}", claimed == 0, f"{enough} of them have 6 levels or more",
        )  # fmt: skip
    for noise in NOISES:
        far = [run.adaptive for run in work.runs("capped", noise) if run.adaptive.highest >= PAST * run.truth.B]
        share = sum(a.reached for a in far) / len(far) if far else math.nan
        required = noise == NOISES[0]
        yield Line(
            f"past-{noise:.0%}".replace("%", ""), f"ramps {PAST:g} times past the hinge that say so, {noise:.0%} noise",
            f"≥ {REACHED:.0%}" if required else "–", f"{share:.1%}", share >= REACHED if required else None,
            f"{len(far)} of {work.options.runs} ramps went that far",
        )  # fmt: skip


def cost(work: SharedRamps) -> Iterator[Line]:
    """Measuring time of the adaptive ramp against a doubling sweep whose hinge is as narrow."""
    for noise in NOISES:
        runs = work.runs("capped", noise)[: work.options.cost_runs]
        seconds = list(work.pool.map(partial(lengthened, noise, work.options.seed), runs, chunksize=2))
        ratio, never, unknown = ratios(runs, seconds)
        widths = statistics.median(width(run.adaptive.hinge) for run in runs)
        yield Line(
            f"cost-{noise:.0%}".replace("%", ""), f"adaptive time / doubling's, hinge as narrow, {noise:.0%} noise",
            f"≤ {CHEAPER:.0%}", f"{ratio:.1%} (median of {len(runs) - unknown})", ratio <= CHEAPER,
            f"doubling never gets there in {never / len(runs):.1%}; hinge interval {widths:.1%} wide (median)",
        )  # fmt: skip


def ratios(runs: Sequence[Run], seconds: Sequence[float | None]) -> tuple[float, int, int]:
    """Median of adaptive / doubling time; runs where doubling never gets as narrow; runs without an interval.

    Where doubling never gets there its time has no end, and the ratio is 0.
    """
    known = [(run, s) for run, s in zip(runs, seconds, strict=True) if run.adaptive.hinge.ci95 is not None]
    found = [0.0 if s is None else run.adaptive.seconds / s for run, s in known]
    return (statistics.median(found) if found else math.nan), sum(s is None for _, s in known), len(runs) - len(known)


# ---- servers that no family describes -------------------------------------------------------------------


def misfit(seed: int, runs: int, name: str) -> tuple[str, float, Value, list[SweepResult]]:
    """Ramps over one server's traces, its mean running batch at saturation, and its hinge by whole traces."""
    measure = partial(knee_truths.windowed, name, STEPS)
    found = []
    for index in range(runs):
        rng = np.random.default_rng([seed, 17, list(SERVERS).index(name), index])
        found.append(sweep_result(knee_truths.adaptive(measure, rng, seed=index), index))
    long = sweep_result([knee_truths.whole(name, STEPS, C) for C in LONG])
    return name, knee_truths.saturated(name, STEPS), long.hinge, found


def machine(work: SharedRamps) -> Iterator[Line]:
    """Coverage where the truth is the step machine's."""
    servers = work.pool.map(partial(misfit, work.options.seed, work.options.server_runs), SERVERS)
    for name, truth, long, found in servers:
        ramp = tally([(a.hinge, truth) for a in found])
        middle = statistics.median(a.hinge.value or math.inf for a in found)
        bend = long.value or math.inf
        around = share([covers(a.hinge, bend) is True for a in found])
        counts = statistics.median(a.levels for a in found)
        yield Line(
            f"machine-{name}", "95 % intervals that hold the mean running batch at saturation", "–", str(ramp), None,
            f"truth {truth:.1f}, median hinge {middle:.1f}; whole traces bend at {bend:.1f}, held "
            f"by {around:.1%}; plateau said in {share([a.reached for a in found]):.1%}; {counts:.0f} levels (median)",
        )  # fmt: skip


# ---- one level ------------------------------------------------------------------------------------------

ONE_LEVEL = ("correlated", "renewal", "lognormal 16", "lognormal 44", "lognormal 96", "preemption 96", "kv-limited 48")


Series = Callable[[np.random.Generator], tuple[Floats, Floats]]  # times and running count of tokens
Cut = tuple[Window, float, float]  # a window, the true throughput, seconds of a request


def _drawn(series: Series, rng: np.random.Generator, runs: int) -> Iterator[Cut]:
    """Windows of series that are drawn anew for each."""
    for _ in range(runs):
        times, counts = series(rng)
        yield window(times, counts, 0.0, 1.0), knee_truths.RATE, 1.0


def _cut(name: str, seed: int, rng: np.random.Generator, runs: int) -> Iterator[Cut]:
    """Windows cut at random from traces of a server at a concurrency; the truth is the trace's own throughput."""
    server, C = name.split()
    for number in range(LEVEL_TRACES):
        trace = knee_truths.trace(SERVERS[server], int(C), LEVEL_STEPS, seed + number)
        last, steady = float(trace.at[-1]), trace.at > trace.warm_s
        truth = float(trace.tokens[steady].sum()) / (last - float(trace.at[~steady][-1]))
        room = last - trace.warm_s - knee_truths.LONGEST * trace.request_s
        for _ in range(runs // LEVEL_TRACES):
            start = trace.warm_s + room * rng.uniform()
            yield window(trace.at, trace.counts, start, trace.request_s), truth, trace.request_s


def one_level(seed: int, runs: int, name: str) -> tuple[str, Tally, float, float]:
    """Windows that end when they are precise: their intervals, their length in request times, the share precise.

    Those of one trace overlap, so they are cut from several: one trace alone gave 91 to 99 % where 95 % is meant.
    """
    rng = np.random.default_rng([seed, 23, ONE_LEVEL.index(name)])
    drawn = {"correlated": knee_truths.correlated, "renewal": knee_truths.renewal}.get(name)
    intervals, lengths, precise = [], [], []
    for found, truth, request_s in _drawn(drawn, rng, runs) if drawn else _cut(name, seed, rng, runs):
        intervals.append((Value(found.estimate.mean, found.estimate.ci95), truth))
        lengths.append(found.seconds / request_s)
        precise.append(found.precise)
    return name, tally(intervals), statistics.median(lengths), share(precise)


def level(work: SharedRamps) -> Iterator[Line]:
    """Yield a level's own interval, where the window ends as soon as it is precise."""
    for name, found, length, precise in work.pool.map(
        partial(one_level, work.options.seed, 2 * work.options.runs), ONE_LEVEL
    ):
        yield Line(
            f"level-{name}", "95 % intervals of one level that cover its throughput", promise(strict=True), str(found),
            kept(found, strict=True), f"windows of {length:.0f} request times (median), {precise:.1%} precise",
        )  # fmt: skip


# ---- any grid -------------------------------------------------------------------------------------------


def grids(work: SharedRamps) -> Iterator[Line]:
    """Exact min(aN, P) on every grid, and what the peers' rules make of it."""
    for name, grid in GRIDS.items():
        errors, ours = [], 0.0
        for knee in KNEES:
            X = [min(C, knee) / 0.02 for C in grid]
            value = fit([Point(float(C), float(C), x) for C, x in zip(grid, X, strict=True)]).curve.hinge_concurrency
            errors.append(abs((value.value or math.inf) / knee - 1))
            if knee == KNEES[0]:
                ours = value.value or math.nan
                lines = knee_peers.two_lines(grid, X)
                threshold = knee_peers.latency_threshold(grid, [C / x for C, x in zip(grid, X, strict=True)])
        bent = [C / (min(C, KNEES[0]) / (1 + 0.01 * min(C, KNEES[0]))) for C in grid]
        yield Line(
            f"grid-{name}", f"bias of the hinge, exact knees at {', '.join(f'{k:g}' for k in KNEES)}", f"≤ {BIAS:.0%}",
            f"{max(errors):.2%}", max(errors) <= BIAS,
            f"{KNEES[0]:g} read as {ours:.1f}; by two lines {_or_none(lines)}; by latency threshold "
            f"{_or_none(threshold)}, {_or_none(knee_peers.latency_threshold(grid, bent))} where the rise is bent",
        )  # fmt: skip


def _or_none(value: float | None) -> str:
    return "none" if value is None else f"{value:.1f}"


# ---- one level that is off by itself --------------------------------------------------------------------

SLIPS = {  # factors on the throughput of one level that lies within a factor of 4 of the knee
    "none": (1.0,),
    "one": (0.8, 0.87, 1.15, 1.22),
}
SLIP_GRIDS = "powers of two", "even"
FEW_WRONG = 0.05  # share of the knees said to be found that may be wrong


def slips(work: SharedRamps) -> Iterator[Line]:
    """Knees that are said to be found, of levels of which one is off: how many are, and how many of them are wrong."""
    for noise in NOISES[:2]:
        for off, factors in SLIPS.items():
            cases = [
                (GRIDS[grid], noise, factor, seed)
                for grid in SLIP_GRIDS
                for factor in factors
                for seed in range(work.options.runs)
            ]
            said = [each for each in work.pool.map(_slip, cases, chunksize=8) if each is not None]
            wrong = sum(not each for each in said)
            share_wrong = wrong / max(1, len(said))
            yield Line(
                f"slips-{noise:.0%}-{off}".replace("%", ""),
                f"found knees that are wrong, {off} of the levels off, {noise:.0%} noise", f"≤ {FEW_WRONG:.0%}",
                f"{share_wrong:.1%} of {len(said)}", share_wrong <= FEW_WRONG, f"{len(said)} of {len(cases)} are found",
            )  # fmt: skip


def _slip(case: tuple[Sequence[int], float, float, int]) -> bool | None:
    """Return whether the interval of a found knee covers it; None if none is found."""
    grid, noise, factor, seed = case
    rng = np.random.default_rng(seed)
    knee, bend = np.exp(rng.uniform(*np.log([(8.0, 0.05), (100.0, 2.0)])))
    true = TrueCurve(0.02, 0.02 * float(bend / knee), float(knee))
    X = {C: true.throughput(C) * math.exp(rng.normal(0.0, noise)) for C in grid}
    X[int(rng.choice([C for C in grid if knee / 4 <= C <= 4 * knee]))] *= factor
    curve = fit([Point(float(C), float(C), x, noise * x) for C, x in X.items()]).curve
    return covers(curve.hinge_concurrency, float(knee)) if curve.state == FOUND else None


# ---- the rest -------------------------------------------------------------------------------------------


def fit_speed(work: SharedRamps) -> Iterator[Line]:
    """Seconds of one fit with 400 draws on 12 levels, here, while nothing else of this benchmark runs."""
    measure = knee_truths.noisy(TrueCurve(0.02, 0.0002, 48.0), 0.02)
    levels = knee_truths.fixed(measure, [1, 2, 4, 8, 16, 32, 40, 48, 56, 64, 128, 256], np.random.default_rng(0))
    points, taken = knee_truths.points(levels), []
    for _ in range(11):
        began = time.perf_counter()
        fit(points)
        taken.append(time.perf_counter() - began)
    middle = statistics.median(taken)
    yield Line(
        "fit-speed", "s, one fit with 400 draws on 12 levels", f"< {FIT_S:g}", f"{middle:.3f}", middle < FIT_S,
        f"{min(taken):.3f} … {max(taken):.3f} of {len(taken)}",
    )  # fmt: skip


ROWS: dict[str, Callable[[SharedRamps], Iterator[Line]]] = {
    "fit": fit_speed,
    "grids": grids,
    "slips": slips,
    **{f"coverage-{kind}": partial(coverage, kind) for kind in KINDS},
    "reached": reached,
    "cost": cost,
    "machine": machine,
    "level": level,
    **knee_servers.ROWS,
    **knee_short.ROWS,
    **knee_sockets.ROWS,
}


def shown(line: Line) -> str:
    """Return a line of the table in Markdown."""
    met = "–" if line.met is None else "yes" if line.met else "no"
    return f"| {line.row} | {line.what} | {line.reach} | {line.found} | {met} | {line.remark} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(ROWS), help=f"of {','.join(ROWS)}")
    parser.add_argument("--runs", type=int, default=500, help="ramps for each kind and noise")
    parser.add_argument("--server-runs", type=int, default=200, help="ramps for each server")
    parser.add_argument(
        "--cost-runs", type=int, default=150, help="of the ramps, those that doubling is lengthened for"
    )
    parser.add_argument("--short-runs", type=int, default=120, help="sweeps or ramps for each row of short ones")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="the lines as JSON, at the end")
    options = parser.parse_args()
    chosen = options.rows.split(",")
    if unknown := set(chosen) - set(ROWS):
        parser.error(f"no rows {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    command = f"bench/knee_accuracy {' '.join(sys.argv[1:])}".rstrip()
    about = f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, load {os.getloadavg()[0]:.2f}"
    cores = sorted(os.sched_getaffinity(0))
    talk = sys.stderr if options.json else sys.stdout
    print(f"{command}\n{about}, {len(cores)} processes\n", file=talk)
    print("| row | what | to reach | found | met | beside it |\n|---|---|---|---|---|---|", flush=True, file=talk)
    lines, walls = [], {}
    began = time.monotonic()
    with ProcessPoolExecutor(len(cores), mp_context=get_context("spawn")) as pool:
        work = SharedRamps(
            Options(options.runs, options.server_runs, options.cost_runs, options.short_runs, options.seed), pool
        )
        for name in chosen:
            since = time.monotonic()
            for line in ROWS[name](work):
                lines.append(line)
                print(shown(line), flush=True, file=talk)
            walls[name] = round(time.monotonic() - since, 1)
    wall = time.monotonic() - began
    print(f"\n{wall:.0f} s: " + ", ".join(f"{name} {seconds:.0f}" for name, seconds in walls.items()), file=talk)
    if options.json:
        document = {"command": command, "about": about, "wall_s": wall, "rows_s": walls, "lines": lines}
        sys.stdout.buffer.write(msgspec.json.encode(document) + b"\n")


if __name__ == "__main__":
    main()
