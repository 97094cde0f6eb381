"""Requests at the percentiles of their lengths: how long one takes, and the fleet if all were so long.

Neither was measured. The measured TTFT is taken to grow with prompts above the mean, the measured ITL to stay.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from harness.base.errors import HarnessError
from harness.decide.plan.capacity import Capacity, MeasuredLoad
from harness.decide.plan.question import Demand


class LongRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One percentile."""

    percentile: str  # like p99
    input_tokens: float
    output_tokens: float
    seconds: float | None  # TTFT · max(1, in/mean in) + (out - 1)·ITL, at the operating point
    replicas: int  # if every request had these lengths


def long_requests(
    capacity: Capacity, at: MeasuredLoad, demand: Demand, count: Callable[[float], int]
) -> list[LongRequest]:
    """Of each percentile that is given for input or output; `count` gives the replicas for a request's work."""
    names = sorted({*demand.long_input, *demand.long_output}, key=lambda name: float(name.removeprefix("p")))
    if not names:
        return []
    mean_in, mean_out = capacity.input_tokens, capacity.output_tokens
    if not capacity.counts.decodes or not mean_in or not mean_out:
        fact = "the lengths of requests that were measured are not known, or nothing is decoded"
        raise HarnessError(fact, place="--long-input, --long-output", way_out="leave them out")
    found = []
    for name in names:
        tokens_in = demand.long_input.get(name, demand.input_tokens or mean_in)
        tokens_out = demand.long_output.get(name, demand.output_tokens or mean_out)
        ttft, itl = at.ttft_s.mean, at.itl_s.mean
        seconds = ttft * max(1.0, tokens_in / mean_in) + (tokens_out - 1) * itl if ttft and itl else None
        found.append(
            LongRequest(
                percentile=name,
                input_tokens=tokens_in,
                output_tokens=tokens_out,
                seconds=seconds,
                replicas=count(tokens_out),
            )
        )
    return found
