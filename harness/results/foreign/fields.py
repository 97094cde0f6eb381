"""Single fields of another tool's file: a value that is not what it should be counts as absent."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from harness.base import decoding
from harness.results.foreign.measured import Latency

_BEYOND = 1e15  # of any figure
_LONGEST = 200  # characters of a name
_THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+(\.\d*)?")  # commas that are no decimal points
MS = 1e-3


def plain(data: bytes) -> Any:
    """JSON as plain data; `NaN` and `Infinity`, which Python's writers use, are None. One of decoding.WRONG."""
    value = json.loads(data, parse_constant=lambda _: None)
    decoding.check(value, numbers=False)
    return value


def at(tree: Any, *path: str) -> Any:
    """What lies at a path of names; None where there is nothing.

    >>> at({"a": {"b": 1}}, "a", "b"), at({"a": 1}, "a", "b")
    (1, None)
    """
    for name in path:
        if not isinstance(tree, Mapping):
            return None
        tree = tree.get(name)
    return tree


def number(tree: Any, *path: str, unit: float = 1.0) -> float | None:
    """A finite number from 0 on, of so many of our units; of text too, as a CSV has it, with commas for thousands.

    >>> number({"a": 20}, "a", unit=1e-3), number({"a": "n/a"}, "a"), number({"a": -1}, "a"), number({"a": True}, "a")
    (0.02, None, None, None)
    """
    value = at(tree, *path)
    if isinstance(value, str):
        try:
            value = float(value.replace(",", "") if _THOUSANDS.fullmatch(value.strip()) else value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) * unit if math.isfinite(value) and 0 <= value < _BEYOND else None


def positive(tree: Any, *path: str, unit: float = 1.0) -> float | None:
    """The same above 0."""
    return number(tree, *path, unit=unit) or None


def count(tree: Any, *path: str) -> int | None:
    """A whole number above 0."""
    found = positive(tree, *path)
    return None if found is None else round(found) or None


def whole(tree: Any, *path: str) -> int | None:
    """A whole number from 0 on."""
    found = number(tree, *path)
    return None if found is None else round(found)


def text(tree: Any, *path: str) -> str | None:
    """A name that is not empty."""
    value = at(tree, *path)
    return value[:_LONGEST] if isinstance(value, str) and value else None


def mean(total: float | None, n: float | None) -> float | None:
    """A mean by its sum."""
    return total / n if total is not None and n else None


def flat(tree: Any, name: str, *, unit: float = MS) -> Latency:
    """A latency whose figures are fields like mean_ttft_ms and p99_ttft_ms of one table."""
    p50 = number(tree, f"p50_{name}", unit=unit)
    return Latency(
        mean=number(tree, f"mean_{name}", unit=unit),
        p50=number(tree, f"median_{name}", unit=unit) if p50 is None else p50,
        p90=number(tree, f"p90_{name}", unit=unit),
        p95=number(tree, f"p95_{name}", unit=unit),
        p99=number(tree, f"p99_{name}", unit=unit),
    )


def nested(tree: Any, *path: str, unit: float, middle: str = "p50", average: str = "mean") -> Latency:
    """A latency whose figures are a table of their own."""
    found = at(tree, *path)
    return Latency(
        mean=number(found, average, unit=unit),
        p50=number(found, middle, unit=unit),
        p90=number(found, "p90", unit=unit),
        p95=number(found, "p95", unit=unit),
        p99=number(found, "p99", unit=unit),
    )
