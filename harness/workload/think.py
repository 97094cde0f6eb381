"""How long a slot of a closed loop rests between two requests: its user reads and thinks. Pure.

The pause behind a request follows from (seed, number) alone, whichever worker has sent it.
"""

from __future__ import annotations

import random

import msgspec

from harness.spec import reuse
from harness.spec.distribution import Distribution


def pauses(pause: float | str, place: str = "") -> Distribution | None:
    """The distribution of a pause in whole milliseconds, by seconds or by a text; None where there is none.

    >>> pauses("2s..4s")
    Range(low=2000, high=4000)
    """
    data = reuse.pauses(pause, place)
    return None if data is None else msgspec.convert(data, Distribution)


def think_s(pauses_ms: Distribution, seed: int, number: int) -> float:
    """Seconds from the end of the n-th request until its slot sends again."""
    return pauses_ms.draw(random.Random(f"{seed}:think:{number}")) / 1000
