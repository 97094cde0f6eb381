"""What a question expects of its answer, and whether an answer has it: 1.0 or 0.0.

Patterns are RE2's, by Arrow: their time is linear in the text, so that no pattern of a file holds up the load. Left
out: partial credit, and judging by another model.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from harness.base import decoding
from harness.results import arrow
from harness.workload import json_schema

_LONGEST = 65_536  # characters of an answer that are scored
_AROUND = "\"'`*.,:;!?()[]{}"  # of a word that names a choice
_FENCE = "```"


class Exact(msgspec.Struct, frozen=True, tag="exact", tag_field="kind"):
    """The whole answer, but for blanks around it."""

    text: str


class Pattern(msgspec.Struct, frozen=True, tag="regex", tag_field="kind"):
    """Something in the answer."""

    pattern: str


class Choice(msgspec.Struct, frozen=True, tag="choice", tag_field="kind"):
    """The first of the choices that the answer names as a word of its own."""

    right: str
    choices: tuple[str, ...]


class Schema(msgspec.Struct, frozen=True, tag="json_schema", tag_field="kind"):
    """The whole answer as JSON, which may stand in a fence of Markdown."""

    schema: dict[str, Any]


Expected: TypeAlias = Exact | Pattern | Choice | Schema


def score(expected: Expected, text: str) -> float:
    """1.0 for an answer that is as expected, else 0.0.

    >>> score(Choice("B", ("A", "B")), "The answer is (B), not A."), score(Exact("Paris"), " Paris\\n")
    (1.0, 1.0)
    """
    text = text[:_LONGEST]
    match expected:
        case Exact(text=right):
            found = text.strip() == right.strip()
        case Pattern(pattern=pattern):
            found = matches(pattern, text)
        case Choice(right=right, choices=choices):
            found = _named(text, choices) == right
        case Schema(schema=schema):
            found = _as_json(text, schema)
    return float(found)


def matches(pattern: str, text: str) -> bool:
    """Whether an RE2 pattern is found in a text; ValueError where it is none.

    >>> matches(r"\\b4[0-9]\\b", "it is 42"), matches("(a+)+$", "a" * 10_000 + "b")
    (True, False)
    """
    import pyarrow.compute as pc

    whole = text.encode("utf-8", "replace").decode()  # half a character is none
    found = pc.match_substring_regex(arrow.array([whole], "string"), pattern)
    return bool(found[0].as_py())


def _named(text: str, choices: tuple[str, ...]) -> str | None:
    """The first of the choices that a text names; None where it names none."""
    return next((word for word in (each.strip(_AROUND) for each in text.split()) if word in choices), None)


def _as_json(text: str, schema: dict[str, Any]) -> bool:
    text = text.strip()
    if text.startswith(_FENCE) and text.endswith(_FENCE):
        text = text.removesuffix(_FENCE).partition("\n")[2]
    try:
        return json_schema.holds(schema, decoding.json(text.encode()))
    except decoding.WRONG:
        return False
