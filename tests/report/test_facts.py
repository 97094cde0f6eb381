"""What the head of a result says of its workload."""

from __future__ import annotations

import pytest

from harness.report.facts import tool_times
from harness.spec.reading import build


@pytest.mark.parametrize(("scale", "words"), [({}, ""), ({"tool_time_scale": 0.05}, "tools' times × 0.05")])
def test_the_head_says_by_how_much_tools_times_are_scaled(scale: dict[str, float], words: str) -> None:
    workload = {"session": {"turns": 2, "user_tokens": 9}} | scale
    assert tool_times(build({"workload": workload}, place="test")) == words
