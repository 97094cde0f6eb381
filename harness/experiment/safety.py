"""What keeps a target safe while it is loaded: what the load has cost, and when a server has had enough. Pure.

Left out: what a provider bills beyond tokens and time.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from harness.record import Record
from harness.scenario import Hardware

FAILING = 0.5  # of the last requests: more than that and the level tells nothing but that they fail
_LOOKED_AT = 50  # of the last requests, at least


class Usage(msgspec.Struct, frozen=True):
    """Tokens that were asked of a server; the cached ones are input too."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    @classmethod
    def of(cls, record: Record) -> Usage:
        """One request's, as far as the server counted."""
        return cls(record.input_tokens or 0, record.cached_tokens or 0, record.output_tokens or 0)

    def times(self, requests: int) -> Usage:
        """Of so many like it."""
        return Usage(self.input_tokens * requests, self.cached_tokens * requests, self.output_tokens * requests)

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
        )


def dollars(hardware: Hardware, seconds: float, usage: Usage) -> float | None:
    """What it cost by the prices that are known, GPUs by the hour and tokens by the million; USD. None without any.

    price · GPUs · s/3600 + ((in - cached) · p_in + cached · p_cached + out · p_out)/1e6

    >>> dollars(Hardware(price=3.0, gpus=2), 1800, Usage())
    3.0
    >>> dollars(Hardware(price_per_mtok=[1.0, 4.0, 0.5]), 60, Usage(2_000_000, 1_000_000, 500_000))
    3.5
    """
    if hardware.price is None and hardware.price_per_mtok is None:
        return None
    total = (hardware.price or 0.0) * hardware.gpus * seconds / 3600
    if hardware.price_per_mtok is not None:
        per_in, per_out, *rest = hardware.price_per_mtok
        per_cached = rest[0] if rest else per_in
        fresh = usage.input_tokens - usage.cached_tokens
        total += (fresh * per_in + usage.cached_tokens * per_cached + usage.output_tokens * per_out) / 1e6
    return total


def looked_at(in_flight: float) -> int:
    """How many of the last requests tell whether a level fails: two of each slot, and enough to be no accident.

    >>> looked_at(4), looked_at(256)
    (50, 512)
    """
    return max(_LOOKED_AT, int(2 * in_flight))


def failing(outcomes: Collection[bool], last: int) -> bool:
    """Whether most of the `last` requests failed (True); fewer than that tell nothing yet.

    >>> failing([True] * 30 + [False] * 20, 50), failing([True] * 49, 50)
    (True, False)
    """
    return len(outcomes) >= last and sum(outcomes) >= FAILING * last
