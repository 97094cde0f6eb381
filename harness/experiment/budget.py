"""What a run may cost, in time, requests and dollars, and what is left of it. Pure.

The bounds are the run's, not the sitting's: what earlier sittings spent is in `Spent`.
"""

from __future__ import annotations

import msgspec

from harness.scenario import Ramp


class Spent(msgspec.Struct, frozen=True):
    """So far, what is in flight included."""

    seconds: float
    requests: int
    dollars: float = 0.0


def over(spec: Ramp, spent: Spent) -> str | None:
    """Why nothing may follow; None while something may."""
    if spec.max_seconds is not None and spent.seconds >= spec.max_seconds:
        return f"--max-seconds {spec.max_seconds:g} is used up"
    if spec.max_requests is not None and spent.requests >= spec.max_requests:
        return f"--max-requests {spec.max_requests} are sent"
    if spec.max_dollars is not None and spent.dollars >= spec.max_dollars:
        return f"--max-dollars {spec.max_dollars:g} are spent"
    return None


def seconds_left(spec: Ramp, spent: Spent) -> float | None:
    """Seconds until time or money ends, money at the pace so far; None where neither is bounded.

    >>> seconds_left(Ramp(max_seconds=100.0, max_dollars=3.0), Spent(40.0, 10, 2.0))
    20.0
    """
    left = []
    if spec.max_seconds is not None:
        left.append(spec.max_seconds - spent.seconds)
    if spec.max_dollars is not None and spent.dollars > 0:
        left.append((spec.max_dollars - spent.dollars) * spent.seconds / spent.dollars)
    return max(0.0, min(left)) if left else None


def requests_left(spec: Ramp, spent: Spent) -> int | None:
    """Requests that may still be sent; None where they are not bounded."""
    return None if spec.max_requests is None else max(0, spec.max_requests - spent.requests)
