"""The knee unqualified, which a run is headed by: of its limits, else the seats, else that of the curve."""

from __future__ import annotations

import msgspec

from harness.analysis.conclusion import NARROW
from harness.data.summary import FOUND, NONE, PROVISIONAL, Curve, Headline, Knees, Value


def of(knees: Knees, fitted: Curve | None, *, has_slo: bool = False, sessions: bool = False) -> Headline:
    """Return the knee unqualified (docs/definitions.md, The answer), in the levels' own unit.

    Seats are requests, so that they are no knee of levels that count sessions.
    """
    if has_slo:
        return _of_value("slo", knees.slo)
    if knees.seats and not sessions:
        return _of_value("seats", knees.seats)
    state = fitted.state if fitted else NONE
    if fitted is None or state not in (FOUND, PROVISIONAL):
        return Headline("hinge", state)
    found = _of_value("hinge", fitted.hinge_concurrency)
    return msgspec.structs.replace(found, state=PROVISIONAL) if state == PROVISIONAL else found


def _of_value(kind: str, value: Value | None) -> Headline:
    """Return a knee with its state by its interval alone."""
    if value is None or value.value is None:
        return Headline(kind, NONE)
    low, high = value.ci95 or (None, None)
    narrow = low is not None and high is not None and high <= NARROW * low
    return Headline(kind, FOUND if narrow else PROVISIONAL, value.value, value.ci95)
