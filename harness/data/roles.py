"""What a level is measured for."""

from __future__ import annotations

import enum


class Role(enum.StrEnum):
    """What a level is measured for, which decides how long it lasts (`search.pace`); files contain the values."""

    FIXED = "given"  # the operator chose it
    FIRST_PASS = "first pass"  # where the bend lies at all
    REFINEMENT = "refinement"  # what narrows the answer
    REPEAT = "repeat"  # a level of the refinement that was measured before
    SLO = "slo"  # where an SLO stops being met
    SLO_DECISION = "slo decision"  # a load next to that, for as long as it takes to decide it
    PROBE = "probe"  # a prompt length of a phase probe
    SOAK = "soak"  # for long, at a share of the knee
