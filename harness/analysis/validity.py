"""Which levels may be used for what: an invalid level is void for most purposes and good enough for some.

Left out: what makes a level invalid (`verdicts`), and whether it has the figure that is wanted of it.
"""

from __future__ import annotations

import enum

from harness.data.judgement import Code, Gravity
from harness.data.summary import LevelSummary


class Purpose(enum.Enum):
    """What a level is wanted for; `usable` says what each excuses."""

    ANSWER = enum.auto()
    POINT = enum.auto()
    TOP = enum.auto()
    MISS = enum.auto()


_EXCUSED: dict[Purpose, set[str]] = {
    Purpose.ANSWER: set(),
    Purpose.POINT: {Code.IN_FLIGHT_LOW},
    Purpose.TOP: {Code.IN_FLIGHT_LOW, Code.CLIENT_LIMITED, Code.WORKER_PAUSED},
    Purpose.MISS: {Code.IN_FLIGHT_LOW, Code.ERRORS_ABOVE_1_PERCENT, Code.UNSTABLE},
}


def usable(level: LevelSummary, for_: Purpose) -> bool:
    """Whether a level may be used for a purpose: no verdict on it is invalid but those that the purpose excuses.

    ======  ==========================================================  ============================================
    for_    what the level is wanted for                                excused
    ======  ==========================================================  ============================================
    ANSWER  its own figures: exit status 0, the headline, an SLO that    nothing
            is met, to compare with, calibrate or replace a prediction
    POINT   a point of the curve, in the ramp and in the fit; a probe;  in_flight_low: the point is at as many as were
            the single stream against its prediction                    in flight
    TOP     the highest level against its prediction                    in_flight_low, client_limited,
                                                                        worker_paused: the client ended the ramp,
                                                                        and the gap has to name it
    MISS    a load at which the SLO is missed                           in_flight_low, errors_above_1_percent,
                                                                        unstable: overload is a miss too; with
                                                                        unstable, schedule_not_kept
    ======  ==========================================================  ============================================

    Cost at the fastest level, drift between repeats and the signs of a dip are read off all levels, usable or not.
    """
    found, excused = invalid_by(level), _EXCUSED[for_]
    if for_ is Purpose.MISS and Code.UNSTABLE in found:  # the requests that could not be sent would wait as well
        excused = excused | {Code.SCHEDULE_NOT_KEPT}
    return found <= excused


def invalid_by(level: LevelSummary) -> set[str]:
    """Codes of the verdicts that make a level invalid; empty for a valid one."""
    return {verdict.code for verdict in level.verdicts if verdict.level == Gravity.INVALID}
