"""What Knee's own exports say of a level beside the other format's fields: their tool, and the level's verdicts.

Left out: where each format keeps them, which is that format's reader's.
"""

from __future__ import annotations

from typing import Any

from harness.data.judgement import Gravity

NAME = "knee"
IN_FLIGHT_LOW = "in_flight_low"  # the code of the rule, which is above this room


def validity(verdicts: Any) -> tuple[bool, bool]:
    """(valid as a point of a curve, as many in flight as were requested), by verdicts like "invalid: stalled".

    Whatever else stands among them says nothing.

    >>> validity(["note: fit_error_assumed", "invalid: in_flight_low"]), validity(["invalid:stalled", "knee"])
    ((True, False), (False, True))
    """
    words = [each for each in verdicts if isinstance(each, str)] if isinstance(verdicts, list) else []
    parts = (each.partition(":") for each in words)
    invalid = {code.strip() for gravity, _, code in parts if gravity == Gravity.INVALID}
    return invalid <= {IN_FLIGHT_LOW}, IN_FLIGHT_LOW not in invalid  # as in `analysis.rules.usable`, of a point
