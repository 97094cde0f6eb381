"""What a run may spend, in time, requests, dollars and room on the disk, and what is left of it.

The bounds are the run's: what earlier sessions of it spent counts. Left out: what a provider bills beyond
tokens and time.
"""

from __future__ import annotations

import msgspec

from harness import units
from harness.record import Record
from harness.scenario import Hardware, Ramp


class Usage(msgspec.Struct, frozen=True):
    """Tokens that a server processed; cached ones are input too."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    @classmethod
    def of(cls, record: Record) -> Usage:
        """One request's, as far as the server counted."""
        return cls(record.input_tokens or 0, record.cached_tokens or 0, record.output_tokens or 0)

    def times(self, requests: int) -> Usage:
        """Of so many requests like it."""
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


class Spent(msgspec.Struct, frozen=True):
    """What was spent so far, requests in flight included."""

    seconds: float = 0.0
    requests: int = 0
    dollars: float = 0.0
    bytes: int = 0  # of records on the disk


class Budget(msgspec.Struct, frozen=True):
    """The bounds of a run, and what is spent of them."""

    ramp: Ramp = Ramp()
    spent: Spent = Spent()

    def over(self, ahead_s: float = 0.0) -> str | None:
        """Which bound is reached, or will be in so many seconds; None while there is room.

        >>> Budget(Ramp(max_seconds=100.0), Spent(95.0)).over(), Budget(Ramp(max_seconds=100.0), Spent(95.0)).over(5.0)
        (None, '--max-seconds 100 is used up')
        """
        ramp, spent = self.ramp, self.spent
        if ramp.max_seconds is not None and spent.seconds + ahead_s >= ramp.max_seconds:
            return f"--max-seconds {ramp.max_seconds:g} is used up"
        if ramp.max_requests is not None and spent.requests >= ramp.max_requests:
            return f"--max-requests {ramp.max_requests} are sent"
        if ramp.max_dollars is not None and spent.dollars >= ramp.max_dollars:
            return f"--max-dollars {ramp.max_dollars:g} are spent"
        if ramp.max_disk and spent.bytes >= ramp.max_disk:
            return f"--max-disk {units.bytes_text(ramp.max_disk)} is reached"
        return None

    @property
    def seconds_left(self) -> float | None:
        """Seconds until time or money ends, money at the pace so far; None where neither is bounded.

        >>> Budget(Ramp(max_seconds=100.0, max_dollars=3.0), Spent(40.0, 10, 2.0)).seconds_left
        20.0
        """
        left = []
        if self.ramp.max_seconds is not None:
            left.append(self.ramp.max_seconds - self.spent.seconds)
        if self.ramp.max_dollars is not None and self.spent.dollars > 0:
            left.append((self.ramp.max_dollars - self.spent.dollars) * self.spent.seconds / self.spent.dollars)
        return max(0.0, min(left)) if left else None

    @property
    def requests_left(self) -> int | None:
        """Requests that may still be sent; None where they are not bounded."""
        most = self.ramp.max_requests
        return None if most is None else max(0, most - self.spent.requests)
