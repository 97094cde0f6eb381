"""What a run may spend, in time, requests, dollars and room on the disk, and what is left of it.

The bounds are the run's: what earlier sessions of it spent counts. Repeats of a ramp that chooses its levels share
what is left, except for the room on the disk. Left out: what a provider bills beyond tokens and time.
"""

from __future__ import annotations

import enum
import math

import msgspec

from harness.base import units
from harness.data.record import Record
from harness.spec.scenario import Hardware, Ramp


class Usage(msgspec.Struct, frozen=True):
    """Tokens that a server processed; cached ones are input too."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    @classmethod
    def of(cls, record: Record) -> Usage:
        """Return one request's usage, as far as the server counted."""
        return cls(record.input_tokens or 0, record.cached_tokens or 0, record.output_tokens or 0)

    def times(self, requests: int) -> Usage:
        """Return the usage of so many requests like it."""
        return Usage(self.input_tokens * requests, self.cached_tokens * requests, self.output_tokens * requests)

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
        )


def dollars(hardware: Hardware, seconds: float, usage: Usage) -> float | None:
    """Return what it cost in USD, GPUs by the hour and tokens by the million; None if no price is known.

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
    bytes: int = 0  # bytes of records on the disk


class Bound(enum.Enum):
    """What a run may not exceed."""

    SECONDS = enum.auto()
    REQUESTS = enum.auto()
    DOLLARS = enum.auto()
    DISK = enum.auto()


def sharing(ramp: Ramp, repeat: int, last_begun: int = 0) -> float:
    """Return among how many repeats of a ramp the rest of the budget is divided when `repeat` begins, itself included.

    1 where levels are given: each of their repeats may use all that is left. In a resumed run a repeat that a later one
    has followed is over: nothing is left to it (inf).

    >>> three = Ramp(repeat=3)
    >>> sharing(three, 0), sharing(three, 2), sharing(three, 0, last_begun=1), sharing(Ramp(repeat=3, levels=[1]), 0)
    (3, 1, inf, 1)
    """
    if ramp.load.is_given:
        return 1
    return math.inf if repeat < last_begun else ramp.repeat - repeat


class Budget(msgspec.Struct, frozen=True):
    """The bounds of a run, or of one of its repeats, and what is spent of them."""

    ramp: Ramp = Ramp()
    spent: Spent = Spent()
    before: Spent = Spent()  # what was spent when the repeat began, or was resumed
    repeats: float = 1  # the repeat and those to come, which share what was left then; inf: nothing is left to it

    def whole(self) -> Budget:
        """Return the budget of the whole run, in place of the part that one repeat has of it.

        >>> Budget(Ramp(max_seconds=100.0), Spent(50.0), repeats=2).whole().over() is None
        True
        """
        return msgspec.structs.replace(self, before=Spent(), repeats=1)

    def reached(self, ahead_s: float = 0.0) -> tuple[Bound, ...]:
        """Return the bounds (seconds, requests, dollars, disk) that are reached, or will be in `ahead_s` seconds.

        >>> [bound.name for bound in Budget(Ramp(max_seconds=9.0, max_requests=10), Spent(8.0, 10)).reached(1.0)]
        ['SECONDS', 'REQUESTS']
        """
        spent, before, disk = self.spent, self.before, self.ramp.max_disk or None
        pairs = (
            (Bound.SECONDS, spent.seconds - before.seconds + ahead_s, self.seconds),
            (Bound.REQUESTS, spent.requests - before.requests, self.requests),
            (Bound.DOLLARS, spent.dollars - before.dollars, self.dollars),
            (Bound.DISK, spent.bytes, disk),
        )
        return tuple(bound for bound, used, most in pairs if most is not None and used >= most)

    def over(self, ahead_s: float = 0.0) -> str | None:
        """Return a sentence on the bound that is reached, or will be in `ahead_s` seconds; None while there is room.

        >>> Budget(Ramp(max_seconds=100.0), Spent(95.0)).over(), Budget(Ramp(max_seconds=100.0), Spent(95.0)).over(5.0)
        (None, '--max-seconds 100 is used up')
        >>> Budget(Ramp(max_seconds=100.0), Spent(50.0), repeats=2).over()
        "this repeat's part of --max-seconds 100 is used up"
        """
        if not (reached := self.reached(ahead_s)):
            return None
        ramp = self.ramp
        if reached[0] is Bound.DISK:
            return f"--max-disk {units.bytes_text(ramp.max_disk or 0)} is reached"
        part, are = ("", "are") if self.repeats == 1 else ("this repeat's part of ", "is")
        if reached[0] is Bound.SECONDS:
            return f"{part}--max-seconds {ramp.max_seconds:g} is used up"
        if reached[0] is Bound.REQUESTS:
            return f"{part}--max-requests {ramp.max_requests} {are} sent"
        return f"{part}--max-dollars {ramp.max_dollars:g} {are} spent"

    @property
    def seconds(self) -> float | None:
        """Return the seconds that this repeat may take, its part of --max-seconds; None if they are not bounded.

        >>> Budget(Ramp(max_seconds=100.0), before=Spent(40.0), repeats=2).seconds
        30.0
        """
        return self._part(self.ramp.max_seconds, self.before.seconds)

    @property
    def requests(self) -> float | None:
        """Return how many requests the repeat may send; None if they are not bounded."""
        return self._part(self.ramp.max_requests, self.before.requests)

    @property
    def dollars(self) -> float | None:
        """Return the dollars that the repeat may spend; None if they are not bounded."""
        return self._part(self.ramp.max_dollars, self.before.dollars)

    def _part(self, most: float | None, before: float) -> float | None:
        """Return the repeat's part of what was left of a bound before the repeats; None if there is no bound."""
        return None if most is None else (most - before) / self.repeats

    @property
    def seconds_left(self) -> float | None:
        """Return the seconds until the repeat's time, or money at the rate so far, is used up; None if unbounded.

        >>> Budget(Ramp(max_seconds=100.0, max_dollars=3.0), Spent(40.0, 10, 2.0)).seconds_left
        20.0
        """
        spent, before, left = self.spent, self.before, []
        if self.seconds is not None:
            left.append(self.seconds - (spent.seconds - before.seconds))
        if self.dollars is not None and spent.dollars > 0:
            left.append((self.dollars - (spent.dollars - before.dollars)) * spent.seconds / spent.dollars)
        return max(0.0, min(left)) if left else None

    @property
    def requests_left(self) -> int | None:
        """Return how many requests may still be sent; None if they are not bounded."""
        most, sent = self.requests, self.spent.requests - self.before.requests
        return None if most is None else max(0, math.floor(most - sent))
