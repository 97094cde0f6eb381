"""A level while it runs, as a person is shown it."""

from __future__ import annotations

import msgspec


class LevelProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How a level runs at one moment. What is None is not known yet."""

    phase: str  # warm-up, window or cooldown
    elapsed_s: float  # of the phase
    expected_s: float | None = None  # of the phase
    in_flight: float | None = None  # requests
    output_tokens_per_s: float | None = None
    errors: int = 0
    ttft_s: float | None = None  # median of the last requests
    left_s: float | None = None  # of the run
