"""What two JSON texts say is compared, apart from the digits in which processors differ."""

from __future__ import annotations

import json
from typing import Any

import pytest


def figures(value: Any, place: str = "") -> dict[str, Any]:
    """Everything in a JSON value by its place in it."""
    if not isinstance(value, dict | list):
        return {place: value}
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    return {path: x for name, each in inside for path, x in figures(each, f"{place}/{name}").items()}


def same(again: str | bytes, committed: str | bytes) -> None:
    """Two JSON texts say the same; processors and Python's versions round sums differently in the last digits."""
    one, other = figures(json.loads(again)), figures(json.loads(committed))
    assert one.keys() == other.keys()
    for place, value in one.items():
        assert value == (pytest.approx(other[place], rel=1e-9) if isinstance(value, float) else other[place]), place
