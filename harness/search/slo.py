"""Where an SLO stops being met: the largest load that met it and the smallest above it that did not.

Every load is judged by all of its repeats together. One that has too few requests to be decided still leans: towards
met where the share within each limit is what is needed, else towards missed. That is enough to find the edge by, and
the loads next to it are then measured for long enough to decide them, as far as the time left allows. Where time is
limited, a load a tenth below the edge comes before them, so that there is a load that is known to meet the SLO. Where
the one below the edge stays open, the next lower one is measured, too; where one is known to miss the SLO, before the
load above the edge. In concurrency or in requests per second.

The search bisects for it: by short levels first, by where they lean; then the loads on both sides of it are measured
for as long as decides them. Left out: what "met" is (`analysis.slo`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from harness.analysis import slo
from harness.data.judgement import Outcome
from harness.data.levels import Attainment
from harness.data.record import Role
from harness.search.decision import Decision, End, Part, Reason, Stop, end, measure, measure_rate, not_enough
from harness.search.pace import LONGEST_DECISION_S
from harness.search.state import MeasuredLevel, Search, State

REPEATS = 3  # times that an undecided load is measured; then that is the answer
CLOSE = 1.05  # largest met and smallest missed this near to each other: the edge is found

_SPARE = 1.1  # times the samples that decide a load if its share stays
_SHOW = 20  # samples that show a share: where fewer met the SLO, most of the next may miss it
_CLEARLY_BELOW = 0.9  # times a load


class JudgedLoad(msgspec.Struct, frozen=True):
    """One load by all of its repeats."""

    outcome: str  # an Outcome
    leans: str  # the outcome if it is decided, else the side that its share is on; unresolved if that says nothing
    times: int  # how often it was measured
    decidable: bool  # whether more samples may decide it in time
    window_s: float = 0.0  # seconds in which these would come, or as many as show where its share lies


class Edge(msgspec.Struct, frozen=True):
    """Where the SLO stops being met: in concurrency or in requests per second."""

    met: float | None  # the largest that leans to it
    missed: float | None  # the smallest above it that does not, be it that nothing is known of it
    likely: bool  # it is not decided that the SLO is met there
    unresolved: bool  # the smallest is not decided
    again: float | None  # load to measure once more before anything else
    undecided: float | None  # load to measure for long enough once the edge is found: next to it, else a lower one
    window_s: float = 0.0  # seconds of window that `undecided` needs


def edge_of(judged: Mapping[float, JudgedLoad], *, time_limited: bool = False) -> Edge:
    """Return the edge of the SLO (highest load that met it, lowest that missed) and the load to measure again.

    If `time_limited`, the first load to be decided is a tenth below the edge, unless a load is known to meet the SLO:
    the one next to the edge may be too near to the limit to be decided in time.

    >>> met, missed, open = (JudgedLoad(o, o, 1, True) for o in ("met", "missed", "unresolved"))
    >>> edge_of({1: met, 2: met, 4: missed})
    Edge(met=2, missed=4, likely=False, unresolved=False, again=None, undecided=None, window_s=0.0)
    >>> edge_of({1: met, 2: open, 4: missed}).again
    2
    >>> likely = JudgedLoad("unresolved", "met", 1, True)
    >>> edge_of({1: likely, 2: likely, 4: missed})
    Edge(met=2, missed=4, likely=True, unresolved=False, again=None, undecided=2, window_s=0.0)
    >>> edge_of({10: likely, 20: likely, 21: missed}, time_limited=True).undecided
    18
    """
    loads = sorted(judged)
    misses = [x for x in loads if judged[x].leans == Outcome.MISSED]
    # More load that meets what less has missed: one of the two is chance.
    odd = [x for x in misses if judged[x].times == 1 and any(y > x and judged[y].leans == Outcome.MET for y in loads)]
    lowest = misses[0] if misses else math.inf
    met = max((x for x in loads if judged[x].leans == Outcome.MET and x < lowest), default=None)
    missed = min((x for x in loads if judged[x].leans != Outcome.MET and x > (met or 0)), default=None)
    silent = missed is not None and judged[missed].leans == Outcome.UNRESOLVED and judged[missed].times < REPEATS
    surely_met = max((x for x in loads if judged[x].outcome == Outcome.MET and x < lowest), default=None)
    # A load that surely meets it and one that surely misses it come first, then those in between.
    below = [x for x in reversed(loads) if (surely_met or 0) < x <= (met or 0)]
    if time_limited and met is not None and surely_met is None:
        below.insert(0, _tenth_below(met))
    surely_missed = any(judged[x].outcome == Outcome.MISSED for x in misses)
    in_order = [*below, missed] if surely_missed else [*below[:1], missed, *below[1:]]
    undecided = next((x for x in in_order if x and _to_decide(judged.get(x, _NOT_MEASURED))), None)
    return Edge(
        met,
        missed,
        met is not None and judged[met].outcome == Outcome.UNRESOLVED,
        missed is not None and judged[missed].outcome == Outcome.UNRESOLVED,
        odd[0] if odd else missed if silent else None,
        undecided,
        judged.get(undecided or 0, _NOT_MEASURED).window_s,
    )


_NOT_MEASURED = JudgedLoad(Outcome.UNRESOLVED, Outcome.MET, 0, decidable=True)  # below one that leans to the SLO


def _to_decide(load: JudgedLoad) -> bool:
    """Return whether a load only leans to a side, and may be decided by one more level."""
    leans_only = load.outcome == Outcome.UNRESOLVED != load.leans
    return leans_only and load.decidable and load.times < REPEATS


def _tenth_below(load: float) -> float:
    """Return the load a tenth below another; a concurrency is rounded down to a whole number, at last to 0.

    >>> _tenth_below(19), _tenth_below(4.5), _tenth_below(1)
    (17, 4.05, 0)
    """
    return math.floor(_CLEARLY_BELOW * load) if isinstance(load, int) else _round(_CLEARLY_BELOW * load)


def judged(
    repeats: Sequence[MeasuredLevel], seconds_left: float | None = None, others: Sequence[MeasuredLevel] = ()
) -> JudgedLoad:
    """Return whether one load meets the SLO, by all of its repeats; a repeat with too many errors missed it.

    With `seconds_left` it is decidable only if its samples may come in that time. How its requests clump is taken from
    the `others` where no repeat is long enough to show it.
    """
    sound = [m for m in repeats if m.valid and m.in_flight_ok and not _failed(m)]
    found = slo.judged([m.attainments for m in sound], sum(map(_failed, repeats)))
    seconds = sum(m.window_s for m in repeats)
    window_s = 0.0
    for each in found.pooled:
        if each.outcome == Outcome.UNRESOLVED:
            effect = _clumping(sound, each) or _clumping(others, each) or 1.0
            shown_s = max(0.0, _SPARE * _SHOW / each.n - 1) * seconds if each.n else math.inf
            window_s = max(window_s, shown_s if each.n < _SHOW else _wanted(each, seconds, effect))
    most = LONGEST_DECISION_S if seconds_left is None else min(LONGEST_DECISION_S, seconds_left)
    return JudgedLoad(found.outcome, found.leans, len(repeats), window_s <= most, window_s)


def _failed(m: MeasuredLevel) -> bool:
    low = m.valid and not m.in_flight_ok  # fewer than asked for: they can show a miss, and not that the load meets it
    return m.unstable or m.fails or (low and m.slo == Outcome.MISSED)


def _wanted(open_: Attainment, seconds: float, effect: float) -> float:
    """Return how many more seconds of a window would decide an undecided limit, measured for `seconds`; inf: none.

    So many of the samples that come are worth one independent sample: `effect`.
    """
    wanted = slo.enough_independent(open_)
    if wanted is None or open_.ci95 is None:
        return math.inf
    return max(0.0, _SPARE * wanted - slo.independent(open_)) * effect * seconds / open_.n


def _clumping(levels: Sequence[MeasuredLevel], of: Attainment) -> float | None:
    """Return how many samples of a limit are worth one independent sample, by the levels long enough to show it."""
    long = [m for m in levels if m.request_s and m.window_s >= slo.CLUMP_TIMES * m.request_s]
    same = [each for m in long for each in m.attainments if (each.limit, each.class_) == (of.limit, of.class_)]
    known = [each for each in same if each.ci95 is not None]
    return sum(each.n for each in known) / sum(map(slo.independent, known)) if known else None


_ALONE = 0.1  # requests in flight: a rate below it that misses the SLO shows that a request alone does


def by_concurrency(state: State, at_most: int) -> Decision:
    """Return the next concurrency to measure to find the highest that meets the SLO, or the end of the search.

    It doubles while none has missed the SLO, then bisects log C between the largest that met it and the smallest that
    missed. A level that did not decide is measured again. The search ends where both are neighbours, where time is
    short, or after `at_most` levels behind the first pass.
    """
    edge = edge_so_far(state.measured, state.search.seconds_left)
    if edge.met is None and edge.missed is None:
        return end(End.SLO, edge=Part.NO_SLO.words())
    found = _in_words(edge, state.search.counted)
    if state.refined >= at_most:
        return end(End.SLO, edge=found)
    if edge.again is not None and edge.again <= state.top:
        C, why = int(edge.again), Reason.SLO_UNRESOLVED
    elif edge.missed is None:
        assert edge.met is not None
        C, why = min(2 * int(edge.met), state.top), Reason.SLO_MET
        if edge.met >= C:
            return _decide(state, edge) or end(End.SLO_STOPPED, edge=found, why=state.bar)
    else:
        met = edge.met or 0.0
        if edge.missed <= max(met + 1, met * CLOSE):
            return _decide(state, edge) or end(End.SLO, edge=found)
        C = min(max(round(math.sqrt(met * edge.missed)), int(met) + 1), math.ceil(edge.missed) - 1)
        why = Reason.SLO_BETWEEN
    if not state.affordable(C):
        return end(End.SLO_STOPPED, edge=found, why=state.no_more)
    return measure(C, why, Role.SLO, met=edge.met or 0.0, missed=edge.missed)


def _decide(state: State, edge: Edge) -> Decision | None:
    """Return the undecided load next to the edge again, for as long as decides it; None: none, --quick or no time."""
    if edge.undecided is None or state.search.quick:
        return None
    C = int(edge.undecided)
    if state.top < C or not state.affordable(C):
        return None
    step = measure(C, Reason.SLO_UNDECIDED, Role.SLO_DECISION)
    return msgspec.structs.replace(step, window_s=edge.window_s)


def edge_so_far(measured: Sequence[MeasuredLevel], seconds_left: float | None = None) -> Edge:
    """Return the edge of the SLO (highest load that met it, lowest that missed) by the levels measured so far.

    Its `undecided` can be decided in the time left.
    """
    loads: dict[float, list[MeasuredLevel]] = {}
    for m in measured:
        if m.slo is not None or not m.counts:
            loads.setdefault(m.users if m.rate is None else m.rate, []).append(m)
    of_loads = {load: judged(same, seconds_left, measured) for load, same in loads.items()}
    return edge_of(of_loads, time_limited=seconds_left is not None)


def by_rate(measured: Sequence[MeasuredLevel], search: Search, at_most: int) -> Decision:
    """Return the next rate: doubled until one misses the SLO or is unstable, then bisected; halved if all missed."""
    if not measured:
        first = _round(search.first_rate or 1.0)
        return measure_rate(first, Reason.ONE_IN_FLIGHT if search.first_rate else Reason.FIRST_RATE)
    edge = edge_so_far(measured, search.seconds_left)
    if edge.met is None and edge.missed is None:
        return end(End.SLO, edge=Part.NO_SLO.words())
    found = _in_words(edge, "requests per second")
    role = Role.SLO
    if edge.again is not None:
        rate, why = edge.again, Reason.SLO_UNRESOLVED
    elif edge.missed is None:
        assert edge.met is not None
        rate, why = _round(2 * edge.met), Reason.RATE_MET
    elif edge.met is None:
        if search.first_rate and edge.missed < _ALONE * search.first_rate:
            return end(Stop.FOUND, found=found)
        rate, why = _round(edge.missed / 2), Reason.RATE_MISSED
    elif edge.missed <= CLOSE * edge.met:
        if edge.undecided is None or search.quick:
            return end(Stop.FOUND, found=found)
        rate, why, role = edge.undecided, Reason.SLO_UNDECIDED, Role.SLO_DECISION
    else:
        rate, why = _round(math.sqrt(edge.met * edge.missed)), Reason.SLO_BETWEEN
    last = measured[-1]
    assert last.rate is not None
    if len(measured) >= at_most:
        return end(Stop.NOTHING_HELPS, found=found, why=Part.LEVELS.words(levels=len(measured)))
    if search.seconds_left is not None and last.seconds > search.seconds_left:
        left = not_enough(search.seconds_left, None, "another level")
        return end(Stop.NOTHING_HELPS, found=found, why=left)
    if search.requests_left is not None and last.requests / last.rate * rate > search.requests_left:
        left = not_enough(None, search.requests_left, "another level")
        return end(Stop.NOTHING_HELPS, found=found, why=left)
    step = measure_rate(rate, why, role, met=edge.met, missed=edge.missed)
    if role is not Role.SLO_DECISION:
        return step
    queue_s = slo.QUEUE_TIMES * slo.queue_s(rate, _capacity(measured))
    return msgspec.structs.replace(step, window_s=max(edge.window_s, min(queue_s, LONGEST_DECISION_S)))


def _capacity(measured: Sequence[MeasuredLevel]) -> float:
    """Return the requests per second that the server completes where more come; inf where none were too many."""
    most = max((m.throughput for m in measured if m.unstable), default=0.0)
    each = max((m.throughput / m.rate for m in measured if m.rate and not m.unstable), default=0.0)
    return most / each if most and each else math.inf


def _in_words(edge: Edge, unit: str) -> str:
    part = Part.SLO_NEVER if edge.met is None else Part.SLO_MET if edge.missed is None else Part.SLO_BETWEEN
    meets, how = "likely met" if edge.likely else "met", "unresolved" if edge.unresolved else "missed"
    return part.words(met=edge.met, missed=edge.missed, unit=unit, meets=meets, how=how)


def _round(rate: float) -> float:
    """Return a rate rounded to three significant digits.

    >>> _round(22.6274)
    22.6
    """
    return float(f"{rate:.3g}")
