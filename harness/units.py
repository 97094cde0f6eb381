"""Numbers as people write them: '50ms', '2s', '1.5k', '1,2,4,8'. Seconds and plain counts come out."""

from __future__ import annotations

import re

from harness.errors import HarnessError

_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-zA-Zµ]*)\s*")
_SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_COUNTS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9}


def _scaled(text: str, table: dict[str, float], what: str, place: str, example: str) -> float:
    match = _NUMBER.fullmatch(text)
    if not match or match[2] not in table:
        raise HarnessError(f"{text!r} is not {what}", place=place, way_out=f"write it like {example}")
    return float(match[1]) * table[match[2]]


def seconds(text: str | float, place: str = "") -> float:
    """A duration in seconds; a bare number is seconds already.

    >>> seconds("50ms"), seconds("2s"), seconds("1.5m"), seconds(3)
    (0.05, 2.0, 90.0, 3.0)
    """
    if isinstance(text, int | float):
        return float(text)
    return _scaled(text, _SECONDS, "a duration", place, "'50ms', '2s' or '5m'")


def count(text: str | float, place: str = "") -> int:
    """A whole count.

    >>> count("1.5k"), count("2M"), count(7)
    (1500, 2000000, 7)
    """
    value = (
        float(text) if isinstance(text, int | float) else _scaled(text, _COUNTS, "a count", place, "'128' or '1.5k'")
    )
    if value != int(value):
        raise HarnessError(f"{text!r} is not a whole number", place=place, way_out="write it like '128' or '1.5k'")
    return int(value)


def levels(text: str, place: str = "--levels") -> list[int]:
    """Concurrency levels, in the order given; each at least 1, none twice.

    >>> levels("1,2,4,1k")
    [1, 2, 4, 1000]
    """
    values = [count(part.strip(), place) for part in text.split(",") if part.strip()]
    if not values or min(values) < 1:
        raise HarnessError(f"{text!r} names no level of at least 1", place=place, way_out="write it like '1,2,4,8'")
    if len(set(values)) < len(values):
        raise HarnessError(f"{text!r} names a level twice", place=place, way_out="write each level once")
    return values


def rates(text: str, place: str = "--rate") -> list[float]:
    """Request rates per second, in the order given; each above 0, none twice.

    >>> rates("0.5,2,1k")
    [0.5, 2.0, 1000.0]
    """
    example = "'5' or '5,10,20'"
    values = [_scaled(part, _COUNTS, "a rate", place, example) for part in text.split(",") if part.strip()]
    if not values or min(values) <= 0:
        raise HarnessError(f"{text!r} names no rate above 0", place=place, way_out=f"write it like {example}")
    if len(set(values)) < len(values):
        raise HarnessError(f"{text!r} names a rate twice", place=place, way_out="write each rate once")
    return values


def prices(text: str, place: str = "--price-per-mtok") -> list[float]:
    """Prices in USD, in the order given.

    >>> prices("0.15,0.60,0.075")
    [0.15, 0.6, 0.075]
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise HarnessError(
            f"{text!r} is not a list of prices", place=place, way_out="write it like 0.15,0.60"
        ) from None
