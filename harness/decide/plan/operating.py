"""The load at which each replica is to run, one of those that were measured.

    slo    the highest load that meets the limits
    cost   the lowest load with 99 % of the highest throughput, of those that meet the limits where there are any
    knee   likewise with 95 %

Throughput is that of the curve, so that a level which had luck is not chosen for it. Offline work has no limits and
runs by cost. `knee` needs no limits: beyond it more load only waits.
"""

from __future__ import annotations

import msgspec

from harness.base.errors import HarnessError
from harness.data.judgement import Outcome
from harness.decide.plan.capacity import Capacity, MeasuredLoad
from harness.decide.plan.question import By

MOST_OF_IT = 0.95  # as `knees.plateau95`
_ALL_OF_IT = 0.99  # a plateau is not known better, and more load on it only waits


class OperatingPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A measured load, or why none will do."""

    by: str
    at: MeasuredLoad | None
    outcome: str  # met | missed | unresolved: of the SLO; "": there is none, or it does not count
    missed_at: float | None = None  # the lowest load that misses the SLO


def choose(capacity: Capacity, by: By | None = None, *, offline: bool = False) -> OperatingPoint:
    """The operating point; without `by` that of the SLO where there is one, else the knee."""
    limited = bool(capacity.slo) and not offline
    by = by or ("cost" if offline else "slo" if limited else "knee")
    if by == "slo" and not limited:
        fact = "offline work has no limits" if offline else "the run has no SLO"
        raise HarnessError(fact, place="--by slo", way_out="leave it out" if offline else "add --slo ttft_p99=2s")
    if not limited:
        return OperatingPoint(by=by, at=_best(capacity.loads, by), outcome="")
    if capacity.slo_load is None:
        outcome = Outcome.MISSED if capacity.loads[0].slo == Outcome.MISSED else Outcome.UNRESOLVED
        return OperatingPoint(by=by, at=None, outcome=outcome.value, missed_at=capacity.slo_missed)
    within = [each for each in capacity.loads if each.load <= capacity.slo_load]
    at = within[-1] if by == "slo" else _best(within, by)
    return OperatingPoint(by=by, at=at, outcome=Outcome.MET.value, missed_at=capacity.slo_missed)


def _best(loads: list[MeasuredLoad], by: str) -> MeasuredLoad:
    most = max(each.work_per_s.value or 0.0 for each in loads)
    enough = most * (_ALL_OF_IT if by == "cost" else MOST_OF_IT)
    return next(each for each in loads if (each.work_per_s.value or 0.0) >= enough)
