"""Which level comes next, and why. Pure: the levels measured so far in, the next one or the end out.

Fixed levels, of concurrency or of rate, are measured in their order. Else a first pass of short levels climbs until
throughput does not rise any more (`first_pass`). An SLO is then bisected between the largest level that met it and the
smallest that did not; so is the largest rate of an open loop, which needs no knee (`slo`). In the time left further
levels narrow hinge and plateau (`refinement`). A soak then measures one level more, at a share of the knee.

Everything follows from the levels measured: a run that is resumed goes on as if it had never ended. Left out: how long
a level lasts (`pace`, `timing`) and when the budget is spent (`budget`); the
ramp only uses what a level would cost.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from harness.data.roles import Role
from harness.data.summary import FOUND, PROVISIONAL
from harness.search import first_pass, refinement, slo
from harness.search.decision import Decision, End, Part, Reason, Stop, both, end, measure, measure_rate
from harness.search.state import MeasuredLevel, Search, State, fit
from harness.spec.scenario import Ramp

SLO_LEVELS = 16  # after the first pass, that an SLO may take

_STALLS = 2  # levels in a row without a token, after which the run ends


def next_level(measured: Sequence[MeasuredLevel], search: Search) -> Decision:
    """Return the next level of one repeat of the ramp, from the levels that it has measured."""
    if measured and measured[-1].soak:
        return end(End.SOAKED)
    step = _searched(measured, search)
    soaks = step.over and step.why is not Stop.STALLED and search.knee_share
    return (_soak(measured, search) or step) if soaks else step


def _soak(measured: Sequence[MeasuredLevel], search: Search) -> Decision | None:
    """Return the level of a soak, at a share of the knee; None where its load is fixed, or nothing is known.

    With an SLO the knee is the highest load that met it; where throughput still rises, it is the highest measured.
    """
    counting = [m for m in measured if m.counts]
    if search.levels is not None or search.rates is not None or not counting:
        return None
    if search.slo:
        load, what = slo.edge_so_far(measured).met or 0.0, "the SLO knee"
    else:
        found = fit(State.of(measured, search, len(measured))).curve
        hinge = found.hinge_concurrency.value if found.state in (FOUND, PROVISIONAL) else None
        top = float(max(m.users for m in counting))
        load, what = (hinge, "the knee") if hinge else (top, "the highest level, for no knee was found")
    share = search.knee_share or 1.0
    return measure(max(1, round(share * load)), Reason.SOAK, Role.SOAK, share=share, what=what) if load else None


def _searched(measured: Sequence[MeasuredLevel], search: Search) -> Decision:
    """Return the next level or the end, without a soak."""
    if over := _abandoned(measured, search):
        return over
    if search.levels is not None or search.rates is not None:
        return _next_fixed(len(measured), search)
    if search.search_rate:
        return slo.by_rate(measured, search, refinement.MOST + SLO_LEVELS)
    climbed, step = first_pass.walk(measured, search)
    state = State.of(measured, search, climbed)
    if step.concurrency is not None and state.affordable(step.concurrency) and not first_pass.is_sure(state):
        return _in_role(Role.FIRST_PASS, step)
    limit = slo.by_concurrency(state, SLO_LEVELS) if search.slo else None
    if limit and (search.quick or not limit.over):
        return limit
    step = refinement.next_step(state, step.reason if step.over else state.no_more)
    if not step.over:
        before = any(m.concurrency == step.concurrency for m in measured)
        return _in_role(Role.REPEAT if before else Role.REFINEMENT, step)
    return both(step, limit) if limit else step


def missing(asked: Ramp, why: Decision, known: Sequence[MeasuredLevel]) -> str:
    """Return what a repeat should have measured and did not; "" where nothing is missing."""
    if why.why is Stop.TOO_SLOW:  # --max-ttft asks for no more
        return ""
    if why.why in (Stop.STALLED, Stop.DEAD):
        return why.cause
    left = [f"{load:g}" for load in asked.load.loads[len(known) :]]
    what = "requests per second" if asked.load.is_open else "in flight"
    return f"{', '.join(left)} {what}: not measured, {why.cause}" if left else ""


def _in_role(role: Role, step: Decision) -> Decision:
    return msgspec.structs.replace(step, role=role)


def _abandoned(measured: Sequence[MeasuredLevel], search: Search) -> Decision | None:
    """Return the end of the run where the server stalls, or where a fixed level failed."""
    last = measured[-_STALLS:]
    if len(last) == _STALLS and all(m.stalled for m in last):
        return end(Stop.STALLED, levels=_STALLS)
    fixed = search.levels is not None or search.rates is not None
    if fixed and not search.keep_going and measured and measured[-1].fails:
        return end(Stop.FAILED, failure=measured[-1].failure)
    bound, ttft = search.max_ttft_s, (measured[-1].ttft_p99_s or 0.0) if measured else 0.0
    if fixed and bound is not None and ttft > bound:
        load = measured[-1].concurrency or measured[-1].rate
        return end(Stop.TOO_SLOW, ttft=Part.TTFT.words(ttft=ttft, concurrency=load, bound=bound))
    return None


def _next_fixed(done: int, search: Search) -> Decision:
    """Return the next of the fixed rates, or levels."""
    if search.rates is not None:
        if done < len(search.rates):
            return measure_rate(search.rates[done], Reason.FIXED, Role.FIXED)
        return end(End.ALL_MEASURED, loads="rates")
    levels = search.levels or ()
    if done < len(levels):
        return measure(levels[done], Reason.FIXED, Role.FIXED)
    return end(End.ALL_MEASURED, loads="levels")
