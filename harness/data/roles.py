"""What a level is measured for, and which ends of a ramp are remarks, read from the sentences in result folders.

The sentences are made in `search.decision`, and versions word them differently; a test keeps the two in step.
"""

from __future__ import annotations

import enum

_FIRST_PASS = ("the ramp begins with", "doubling", "twice a doubling", "half a doubling")
_FIRST_RATES = ("begin", "the search begins with about one request in flight")


class Role(enum.StrEnum):
    """What a level is measured for, which decides how long it lasts (`search.pace`)."""

    FIXED = "given"  # the operator chose it
    FIRST_PASS = "first pass"  # where the bend lies at all
    REFINEMENT = "refinement"  # what narrows the answer
    REPEAT = "repeat"  # a level of the refinement that was measured before
    SLO = "slo"  # where an SLO stops being met
    SLO_DECISION = "slo decision"  # a load next to that, for as long as it takes to decide it
    PROBE = "probe"  # a prompt length of a phase probe
    SOAK = "soak"  # for long, at a share of the knee


def role_of(reason: str) -> Role | None:
    """What a level was measured for, by the sentence in its result folder; None where there is none.

    >>> role_of("given"), role_of("31 again: throughput seems to fall past the hinge"), role_of("")
    (<Role.FIXED: 'given'>, <Role.REPEAT: 'repeat'>, None)
    """
    if not reason:
        return None
    if reason == "given":
        return Role.FIXED
    if reason.startswith("prefill probe: "):
        return Role.PROBE
    if reason.startswith("soak at "):
        return Role.SOAK
    if reason.startswith(_FIRST_PASS):
        return Role.FIRST_PASS
    if reason.endswith("enough requests to decide the SLO"):
        return Role.SLO_DECISION
    if "the SLO" in reason or "requests per second" in reason or reason in _FIRST_RATES:
        return Role.SLO
    again = " again: " in reason or reason.startswith(("repeat of ", "back to "))
    return Role.REPEAT if again else Role.REFINEMENT


def stopped(reason: str) -> bool:
    """Whether a ramp's end is worth a remark, by the sentence in its result folder."""
    return reason.startswith("stopped: ")
