"""How long a slot of a closed loop rests between two requests: its user reads and thinks. Pure.

The pause behind a request follows from (seed, number) alone, whichever worker has sent it. Left out: what pauses are
like; that is a distribution's.
"""

from __future__ import annotations

import random
from typing import Protocol


class Pauses(Protocol):
    """A distribution of whole milliseconds."""

    def draw(self, rng: random.Random) -> int: ...


def think_s(pauses: Pauses, seed: int, number: int) -> float:
    """Seconds from the end of the n-th request until its slot sends again."""
    return pauses.draw(random.Random(f"{seed}:think:{number}")) / 1000
