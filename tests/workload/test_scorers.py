"""Scorers, each held against answers that are right and answers that are not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from harness.workload import canaries
from harness.workload.canaries import Choice, Exact, Expected, JsonSchema, Pattern, Schema, score

CHOICES = Choice("B", ("A", "B", "C"))
CITY: dict[str, Any] = {
    "type": "object",
    "required": ["name", "size"],
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "size": {"type": "integer", "minimum": 1},
        "kinds": {"type": "array", "items": {"enum": ["port", "capital"]}, "maxItems": 2},
    },
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("expected", "right", "wrong"),
    [
        (Exact("Paris"), ["Paris", " Paris\n"], ["paris", "Paris.", "It is Paris"]),
        (Pattern(r"\b42\b"), ["It is 42.", "42"], ["142", "forty-two", ""]),
        (Pattern(r"(?i)^yes"), ["Yes, it is"], ["No, yes"]),
        (CHOICES, ["B", "(B)", "The answer is B.", "**B** because A is wrong"], ["A, not B", "Because", "b", ""]),
        (
            Schema(msgspec.convert(CITY, JsonSchema)),
            [
                '{"name": "Rome", "size": 3}',
                '```json\n{"name": "Rome", "size": 3.0, "kinds": ["capital"]}\n```',
            ],
            [
                '{"name": "Rome"}',
                '{"name": "", "size": 3}',
                '{"name": "Rome", "size": 0}',
                '{"name": "Rome", "size": true}',
                '{"name": "Rome", "size": 1.5}',
                '{"name": "Rome", "size": 3, "more": 1}',
                '{"name": "Rome", "size": 3, "kinds": ["village"]}',
                '{"name": "Rome", "size": 3, "kinds": ["port", "port", "port"]}',
                '["Rome", 3]',
                'Here it is: {"name": "Rome", "size": 3}',
                '{"name": "Rome", "size": 3',
                "[" * 10_000,
            ],
        ),
    ],
)
def test_an_answer_is_right_or_wrong(expected: Expected, right: list[str], wrong: list[str]) -> None:
    assert [score(expected, text) for text in right] == [1.0] * len(right)
    assert [score(expected, text) for text in wrong] == [0.0] * len(wrong)


def test_a_pattern_that_would_take_forever_elsewhere_takes_no_longer_here() -> None:
    """With backtracking this one takes 2^60 steps."""
    assert score(Pattern(r"^(a|a)*$"), "a" * 60 + "b") == 0.0


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ([], "Expected `object`"),
        ({"type": "text"}, r"Invalid enum value 'text' - at `\$.type`"),
        ({"type": []}, r"length >= 1 - at `\$.type`"),
        ({"enum": 1}, r"\$.enum"),
        ({"properties": {"a": {"$ref": "#/b"}}}, r"unknown field `\$ref` - at `\$.properties"),
        ({"items": {"minLength": "1"}}, r"\$.items.minLength"),
        ({"required": "name"}, r"\$.required"),
        ({"additionalProperties": {}}, r"\$.additionalProperties"),
    ],
)
def test_half_a_schema_is_refused(schema: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        msgspec.convert(schema, JsonSchema)


@pytest.mark.parametrize(
    ("schema", "value", "holds"),
    [
        ({}, None, True),
        ({"const": 1}, True, False),
        ({"enum": [1, "a"]}, 1.0, True),
        ({"type": ["string", "null"]}, None, True),
        ({"minimum": 3}, "short", True),  # a bound of numbers says nothing of a text
        ({"maximum": 3}, 4, False),
        ({"maxLength": 2}, "abc", False),
        ({"minItems": 1}, [], False),
        ({"title": "anything", "default": 1}, [1], True),
    ],
)
def test_a_schema_holds_as_its_draft_says(schema: dict[str, Any], value: Any, *, holds: bool) -> None:
    assert canaries.holds(msgspec.convert(schema, JsonSchema), value) is holds
