"""Rows of the knee's benchmark for short measurements: short windows, ramps that are cut, budgets.

The targets: a knee or a bound of it in all but 2 %, intervals that cover, and no plateau where the levels ended far
below the hinge.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import knee_published
import knee_windows
import msgspec
import numpy as np
from knee_table import COVERED, Bench, Line, share, tally
from knee_truths import TrueCurve, doubling
from knee_windows import Closed, FittedKnee, StepMachineServer

from harness.data.summary import FOUND, PROVISIONAL
from harness.data.views import Value

ANSWERED, FALSE = 0.98, 0.01  # of all runs that have an answer; of those that ended far below the hinge that say found
FAR_BELOW, FAR_PAST = 0.7, 4.0  # hinges that the last level lies at
ANSWERS_S = (1.0, 2.5, 5.0, 20.0)  # an answer alone
BUDGET_ANSWERS_S = (1.0, 5.0, 20.0)
TRUTHS = ("closed", "drift", "machine")
CUT_AT = (0.35, 1.0)  # hinges at which a sweep that ends below it does, log-uniform
CUT_HINGES = 24.0  # least hinge of such a sweep: four levels lie below it
SEATS = (4.0, 128.0)  # of the step machine, log-uniform

# A server as it was measured with windows of 3 s: 66, 130, …, 871, 1,207, 1,214 tok/s at 1 … 64.
KNOWN, KNOWN_ANSWER_S, KNOWN_LEVELS = TrueCurve(0.01494, 0.000215, 24.0), 2.5, (1, 2, 4, 8, 16, 32, 64)


class SearchOutcome(msgspec.Struct, frozen=True):
    """One server measured: the truth, the fit, and when it came."""

    hinge: float
    plateau: float
    answer_s: float
    last: int  # highest level
    levels: int
    fitted: FittedKnee
    drift: float = 0.0
    seconds: float = math.nan
    provisional_s: float = math.inf  # until the first answer with a hinge, provisional or found
    found_s: float = math.inf


def generator(seed: int, *which: int) -> np.random.Generator:
    return np.random.default_rng([seed, 41, *which])


# ---- sweeps ---------------------------------------------------------------------------------------------


def swept(truth: str, window_s: float | None, seed: int, index: int) -> SearchOutcome:
    """Return a doubling sweep with windows of so many seconds, or None: of half a request time each.

    Every other one ends below its hinge, the others four times past it.
    """
    rng = generator(seed, TRUTHS.index(truth), 0 if window_s is None else 1, index)
    answer_s, below = ANSWERS_S[index // 2 % len(ANSWERS_S)], index % 2 == 1
    least = CUT_HINGES if below else 0.0
    server: Closed | StepMachineServer
    if truth == "machine":
        seats = round(math.exp(rng.uniform(math.log(max(SEATS[0], least)), math.log(SEATS[1]))))
        server = StepMachineServer(seats, round(answer_s / knee_windows.STEP_ITL))
        plateau = server.plateau
    else:
        server = knee_windows.drawn(answer_s, rng, least=least, drifts=truth == "drift")
        plateau = server.truth.plateau
    levels = doubling(server.seats)
    if below:
        end = server.seats * math.exp(rng.uniform(*np.log(CUT_AT)))
        levels = [C for C in levels if end >= C]
    found = [knee_windows.fixed(server, C, window_s, 0.5, rng) for C in levels]
    fitted = knee_windows.fitted_knee(found, index)
    return SearchOutcome(float(server.seats), plateau, answer_s, levels[-1], len(levels), fitted)


def windows(window_s: float | None, work: Bench) -> Iterator[Line]:
    """Fixed sweeps with short windows."""
    name = "window-half" if window_s is None else f"window-{window_s:g}s"
    what = "half a request time" if window_s is None else f"{window_s:g} s"
    for truth in TRUTHS:
        todo = partial(swept, truth, window_s, work.options.seed)
        outcomes = list(work.pool.map(todo, range(work.options.short_runs), chunksize=4))
        yield from judged(f"{name}-{truth}", f"doubling sweeps, windows of {what}, {truth}", outcomes)


def known_once(seed: int, index: int) -> FittedKnee:
    rng = generator(seed, 7, index)
    server = knee_windows.closed(KNOWN_ANSWER_S, KNOWN, rng)
    return knee_windows.fitted_knee([knee_windows.fixed(server, C, 3.0, 0.0, rng) for C in KNOWN_LEVELS], index)


def known(work: Bench) -> Iterator[Line]:
    """One server with an obvious plateau, whenever its windows begin."""
    runs = work.options.short_runs
    found = list(work.pool.map(partial(known_once, work.options.seed), range(runs), chunksize=4))
    found_share = share([answer.state == FOUND for answer in found])
    hinge = tally([(a.hinge, KNOWN.B) for a in found if a.state in (FOUND, PROVISIONAL)])
    yield Line(
        "known-24", "sweeps 1 … 64 of 24 seats, answers of 2.5 s, windows of 3 s: found", f"≥ {ANSWERED:.0%}",
        f"{found_share:.1%} of {runs}", found_share >= ANSWERED, f"states: {_states(found)}; hinge: {hinge}",
    )  # fmt: skip


# ---- ramps ----------------------------------------------------------------------------------------------


def ramped(
    max_seconds: float | None, most: int | None, answers_s: Sequence[float], seed: int, index: int
) -> SearchOutcome:
    """Return an adaptive ramp that a budget or a number of levels ends, with the answer after every level."""
    answer_s = answers_s[index % len(answers_s)]
    rng = generator(seed, 11, round(max_seconds or 0), most or 0, index)
    server = knee_windows.drawn(answer_s, rng, least=0.0, drifts=index // len(answers_s) % 2 == 1)
    steps = list(knee_windows.ramped(server, rng, max_seconds=max_seconds, most=most, seed=index))
    levels = [step.level for step in steps]
    provisional_s = found_s = math.inf
    fitted = FittedKnee("none", Value(None), Value(None))
    for i, step in enumerate(steps):
        whole = i == len(steps) - 1
        if max_seconds is None and not whole:
            continue
        fitted = knee_windows.fitted_knee(levels[: i + 1], index, 400 if whole else 100)
        if fitted.state in (FOUND, PROVISIONAL):
            provisional_s = min(provisional_s, step.seconds)
        if fitted.state == FOUND:
            found_s = min(found_s, step.seconds)
    return SearchOutcome(
        float(server.seats), server.truth.plateau, answer_s, max((level.concurrency for level in levels), default=0),
        len(levels), fitted, server.drift, steps[-1].seconds if steps else 0.0, provisional_s, found_s,
    )  # fmt: skip


def cut(most: int, work: Bench) -> Iterator[Line]:
    """Adaptive ramps that ended after so many levels."""
    todo = partial(ramped, None, most, ANSWERS_S, work.options.seed)
    outcomes = list(work.pool.map(todo, range(work.options.short_runs), chunksize=4))
    yield from _apart(f"cut-{most}", f"ramps cut after {most} levels", outcomes)


def budget(max_seconds: float, work: Bench) -> Iterator[Line]:
    """Adaptive ramps that have so many seconds."""
    runs = 2 * len(BUDGET_ANSWERS_S) * math.ceil(work.options.short_runs / 6)
    todo = partial(ramped, max_seconds, None, BUDGET_ANSWERS_S, work.options.seed)
    outcomes = list(work.pool.map(todo, range(runs), chunksize=4))
    name, what = f"budget-{max_seconds:g}", f"ramps of {max_seconds:g} s"
    for answer_s in BUDGET_ANSWERS_S:
        some = [o for o in outcomes if o.answer_s == answer_s]
        answered = share([o.fitted.has_answer for o in some])
        yield Line(
            f"{name}-answers-{answer_s:g}s", f"{what}, answers of {answer_s:g} s: with an answer", f"≥ {ANSWERED:.0%}",
            f"{answered:.1%} of {len(some)}", answered >= ANSWERED,
            f"{_states([o.fitted for o in some])}; {statistics.median(o.levels for o in some):.0f} levels; provisional "
            f"after {_median_s([o.provisional_s for o in some])}, found after {_median_s([o.found_s for o in some])} "
            "(medians)",
        )  # fmt: skip
    yield from _apart(name, what, outcomes)


def _apart(name: str, what: str, outcomes: Sequence[SearchOutcome]) -> Iterator[Line]:
    """Servers that keep their speed, and those that drift from level to level by 1 to 5 %."""
    yield from judged(f"{name}-closed", f"{what}, closed", [o for o in outcomes if not o.drift])
    yield from judged(f"{name}-drift", f"{what}, drift", [o for o in outcomes if o.drift])


# ---- targets of all rows -------------------------------------------------------------------------------


def judged(name: str, what: str, outcomes: Sequence[SearchOutcome]) -> Iterator[Line]:
    """Yield an answer, intervals that cover, and no plateau that is none; finding a true plateau has no target."""
    answered = share([o.fitted.has_answer for o in outcomes])
    apart = [
        f"{s:g} s {share([o.fitted.has_answer for o in outcomes if o.answer_s == s]):.0%}"
        for s in sorted({o.answer_s for o in outcomes})
    ]
    yield Line(
        f"{name}-answer", f"{what}: with an answer", f"≥ {ANSWERED:.0%}", f"{answered:.1%} of {len(outcomes)}",
        answered >= ANSWERED, f"{_states([o.fitted for o in outcomes])}; by answer: {', '.join(apart)}",
    )  # fmt: skip
    valued = [o for o in outcomes if o.fitted.state in (FOUND, PROVISIONAL)]
    for figure, values in (
        ("hinge", [(o.fitted.hinge, o.hinge) for o in valued]),
        ("plateau", [(o.fitted.plateau, o.plateau) for o in valued]),
    ):
        found = tally(values)
        off = [abs(value.value / truth - 1) for value, truth in values if value.value]
        yield Line(
            f"{name}-{figure}", f"{what}: 95 % intervals of the {figure} that cover, found and provisional",
            f"≥ {COVERED:.0%}", str(found), found.intervals > 0 and found.covered >= COVERED,
            f"off by {statistics.median(off):.1%} (median)" if off else "",
        )  # fmt: skip
    below = [o for o in outcomes if o.last < FAR_BELOW * o.hinge]
    false = [o for o in below if o.fitted.state == FOUND]
    yield Line(
        f"{name}-false", f"{what}: ended below {FAR_BELOW:g} of the hinge and say found", f"≤ {FALSE:.0%}",
        f"{len(false)} of {len(below)}", len(false) <= FALSE * len(below) if below else None,
        f"{_states([o.fitted for o in below])}",
    )  # fmt: skip
    past = [o for o in outcomes if o.last >= FAR_PAST * o.hinge]
    if past:
        yield Line(
            f"{name}-found", f"{what}: ended {FAR_PAST:g} times past the hinge and say found", "–",
            f"{share([o.fitted.state == FOUND for o in past]):.1%} of {len(past)}", None,
            f"{_states([o.fitted for o in past])}",
        )  # fmt: skip


def _states(answers: Sequence[FittedKnee]) -> str:
    """Return how often each state came out.

    >>> _states([FittedKnee("found", Value(None), Value(None))])
    '1 found'
    """
    counts = {state: sum(a.state == state for a in answers) for state in ("found", "provisional", "beyond", "none")}
    return ", ".join(f"{n} {state}" for state, n in counts.items() if n) or "no run"


def _median_s(seconds: Sequence[float]) -> str:
    middle = statistics.median(seconds)
    return f"{middle:.0f} s" if math.isfinite(middle) else "never"


ROWS: dict[str, Callable[[Bench], Iterator[Line]]] = {
    "known-24": known,
    "window-3s": partial(windows, 3.0),
    "window-half": partial(windows, None),
    "cut-5": partial(cut, 5),
    "cut-7": partial(cut, 7),
    **{f"budget-{seconds}": partial(budget, float(seconds)) for seconds in (60, 120, 240)},
    "published": knee_published.published,
}
