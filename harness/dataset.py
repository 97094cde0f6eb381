"""A scenario's table [workload.dataset]: the file of requests that a run sends, and what was found in it."""

from __future__ import annotations

import msgspec


class DatasetSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Requests from a file, in its order, and again from the first. What is below the line a run fills in."""

    path: str  # a file of one of the formats of `workload.dataset`, or a result folder
    format: str | None = None  # None: known by its contents
    skip_broken: bool = False  # leave broken rows out, and count them
    # ---
    requests: int | None = None
    skipped: int = 0
    input_tokens: float | None = None  # mean of its prompts
    output_tokens: float | None = None  # mean of its answers
