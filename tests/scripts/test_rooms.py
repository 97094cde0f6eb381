"""docs/design.md shows the rooms as they are."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.test_rooms import modules

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import rooms  # noqa: E402


def test_the_picture_of_the_rooms_is_that_of_the_imports() -> None:
    now = rooms.PAGE.read_text()
    assert rooms.BEGIN in now
    assert rooms.page(now, rooms.text(modules())) == now, "run scripts/rooms"


def test_an_arrow_that_follows_from_others_is_left_out() -> None:
    assert rooms.direct({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {"a": {"b"}, "b": {"c"}, "c": set()}


def test_a_duty_is_the_first_sentence_of_a_docstring() -> None:
    assert rooms.duty('"""Results for people: tables.\n\nMore.\n"""') == "Results for people: tables"
