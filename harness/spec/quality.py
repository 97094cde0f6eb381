"""A scenario's table [quality]: which answers are compared with those of an unloaded server, and how often."""

from __future__ import annotations

from typing import Annotated

import msgspec

from harness.spec.bounds import above_0, bound

MOST_SHARE = 0.02  # of the load: what is measured stays the workload's
_SHARE = bound("canaries are more than 0 and at most 2 % of the load", "write 0.02", gt=0, le=MOST_SHARE)
_REPEATS = bound("a first answer is compared with at least one more, at most 100", "give 2 to 100", ge=2, le=100)


class QualitySpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Canaries: requests with fixed prompts and temperature 0, in place of a share of the load's own."""

    file: str | None = None  # path of a JSONL file of prompts; None: those that come with Knee
    share: Annotated[float, _SHARE] = MOST_SHARE  # share of the requests that are canaries
    repeats: Annotated[int, _REPEATS] = 3  # how often each is asked before the load, one request in flight
    output_tokens: Annotated[int, above_0("give 1 or more")] = 64  # tokens of an answer, at most
