"""What is kept of an answer whose text is not: digests of its beginnings, its flaws, and whether it is as expected.

A digest is of an answer's words, whatever blanks are between them. The digests of its beginnings tell the word at
which two answers part. Patterns are RE2's, by Arrow: their time is linear in the text, so that no pattern of a file
holds up the load. A JSON Schema has type, enum, const, properties, required, items and bounds, with the meanings of
draft 2020-12 (json-schema.org); what else it may have is refused when it is read.

Pure. Left out: languages that put no blanks between words, whose answers are one word; partial credit, and judging by
another model; of schemas references, patterns, formats, and combining them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from harness.base import decoding
from harness.results import columns

REPLACEMENT = "\ufffd"  # what servers put for bytes that are no UTF-8
EMPTY, INVALID_UTF8, REPETITION = "empty", "invalid_utf8", "repetition"

_LONGEST = 65_536  # characters of an answer that are looked at
_WHOLE, _BEGINNING = 16, 4  # hex digits of a digest
_BEGINNINGS = 256  # words up to which an answer's beginnings have one each
_PERIOD = 16  # words of a phrase that may come again and again
_AGAIN, _TIMES = 12, 3  # words, and times, that it has to for an answer to count as repeating itself


def digests(text: str) -> str:
    """Return the digest of an answer's words, then one of each of its beginnings, in hex.

    >>> len(digests("to be")), digests("to be")[:20] == digests("to  be\\n")[:20]
    (24, True)
    """
    words = text[:_LONGEST].split()
    running = hashlib.blake2b(digest_size=_WHOLE // 2)
    beginnings = []
    for number, word in enumerate(words):
        running.update(word.encode("utf-8", "replace") + b" ")
        if number < _BEGINNINGS:
            beginnings.append(running.hexdigest()[:_BEGINNING])
    return running.hexdigest() + "".join(beginnings)


def differs_at(one: str, other: str) -> int | None:
    """Return the words that two answers begin with alike, by their digests; None where they are alike to the end.

    >>> differs_at(digests("to be or"), digests("to be and")), differs_at(digests("to be"), digests("to be"))
    (2, None)
    """
    if one[:_WHOLE] == other[:_WHOLE]:
        return None
    begins, others = (
        [text[at : at + _BEGINNING] for at in range(_WHOLE, len(text), _BEGINNING)] for text in (one, other)
    )
    alike = 0
    for a, b in zip(begins, others, strict=False):
        if a != b:
            break
        alike += 1
    return alike


def flaw(text: str) -> str:
    """Return what makes a text no answer at all, "" where nothing does.

    An answer that is cut may end inside a character: that is no flaw.

    >>> flaw(" \\n"), flaw("caf\\ufffd au lait"), flaw("the same " * 8), flaw("one, two, three")
    ('empty', 'invalid_utf8', 'repetition', '')
    """
    text = text[:_LONGEST]
    if not text.strip():
        return EMPTY
    if REPLACEMENT in text.rstrip(REPLACEMENT):
        return INVALID_UTF8
    return REPETITION if _repeats(text.split()) else ""


def _repeats(words: Sequence[str]) -> bool:
    """Say whether the last words are one phrase, at least three times and twelve words."""
    for period in range(1, min(_PERIOD, len(words) // _TIMES) + 1):
        alike = period
        while alike < len(words) and words[-alike - 1] == words[-alike - 1 + period]:
            alike += 1
        if alike >= max(_AGAIN, _TIMES * period):
            return True
    return False


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
    """The whole answer as JSON, which may be in a fence of Markdown."""

    schema: dict[str, Any]


Expected: TypeAlias = Exact | Pattern | Choice | Schema


def score(expected: Expected, text: str) -> float:
    """Return 1.0 for an answer that is as expected, else 0.0.

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
    """Say whether an RE2 pattern is found in a text; ValueError where it is none.

    >>> matches(r"\\b4[0-9]\\b", "it is 42"), matches("(a+)+$", "a" * 10_000 + "b")
    (True, False)
    """
    import pyarrow.compute as pc

    whole = text.encode("utf-8", "replace").decode()  # half a character is none
    found = pc.match_substring_regex(columns.array([whole], "string"), pattern)
    return bool(found[0].as_py())


def _named(text: str, choices: tuple[str, ...]) -> str | None:
    """Return the first of the choices that a text names; None where it names none."""
    return next((word for word in (each.strip(_AROUND) for each in text.split()) if word in choices), None)


def _as_json(text: str, schema: dict[str, Any]) -> bool:
    text = text.strip()
    if text.startswith(_FENCE) and text.endswith(_FENCE):
        text = text.removesuffix(_FENCE).partition("\n")[2]
    try:
        return holds(schema, decoding.json(text.encode()))
    except decoding.WRONG:
        return False


_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: (
        not isinstance(value, bool) and (isinstance(value, int) or value == int(value))
        if isinstance(value, int | float)
        else False
    ),
}
_OF_TYPE = {
    "minimum": "number", "maximum": "number", "minLength": "string", "maxLength": "string", "minItems": "array",
    "maxItems": "array", "required": "object", "properties": "object", "additionalProperties": "object",
    "items": "array",
}  # fmt: skip
_NUMBERS = ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems")
_ANNOTATIONS = ("$schema", "title", "description", "examples", "default")
KNOWN = ("type", "enum", "const", *_OF_TYPE)


def check_schema(schema: Any, path: str = "$") -> None:
    """Raise ValueError, with its path, for what is no schema or one that is not understood here.

    >>> check_schema({"type": "object", "properties": {"a": {"pattern": "x"}}})
    Traceback (most recent call last):
    ValueError: 'pattern' at $.properties.a is not supported
    """
    if not isinstance(schema, dict):
        raise ValueError(f"no schema at {path}")
    for key, value in schema.items():
        at = f"{path}.{key[:40]}"
        if key not in KNOWN and key not in _ANNOTATIONS:
            raise ValueError(f"'{key[:40]}' at {path} is not supported")
        if key == "type" and not set(_names(value)) <= set(_TYPES):
            raise ValueError(f"no known type at {at}")
        if (key == "enum" and not isinstance(value, list)) or (key == "properties" and not isinstance(value, dict)):
            raise ValueError(f"no {'list' if key == 'enum' else 'table'} at {at}")
        if key in _NUMBERS and not _TYPES["number"](value):
            raise ValueError(f"no number at {at}")
        if key == "required" and not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
            raise ValueError(f"no list of names at {at}")
        if key == "additionalProperties" and not isinstance(value, bool):
            raise ValueError(f"neither true nor false at {at}")
        if key == "items":
            check_schema(value, at)
        for name, inner in value.items() if key == "properties" else ():
            check_schema(inner, f"{at}.{name[:40]}")


def _names(kind: Any) -> list[str]:
    kinds = kind if isinstance(kind, list) else [kind]
    return [each if isinstance(each, str) else "" for each in kinds] or [""]


def holds(schema: dict[str, Any], value: Any) -> bool:
    """Say whether a value is as a checked schema says.

    >>> holds({"type": "object", "required": ["n"], "properties": {"n": {"minimum": 1}}}, {"n": 0})
    False
    """
    return all(_one_holds(key, schema, value) for key in schema if key in KNOWN)


def _one_holds(key: str, schema: dict[str, Any], value: Any) -> bool:
    """Say whether one of a schema's keywords allows a value; one for another type than the value's allows all."""
    asked = schema[key]
    if key in _OF_TYPE and not _TYPES[_OF_TYPE[key]](value):
        return True
    match key:
        case "type":
            return any(_TYPES[name](value) for name in _names(asked))
        case "enum":
            return any(_equal(value, each) for each in asked)
        case "const":
            return _equal(value, asked)
        case "minimum" | "maximum":
            return bool(value >= asked if key == "minimum" else value <= asked)
        case "minLength" | "minItems":
            return bool(len(value) >= asked)
        case "maxLength" | "maxItems":
            return bool(len(value) <= asked)
        case "required":
            return all(name in value for name in asked)
        case "properties":
            return all(holds(inner, value[name]) for name, inner in asked.items() if name in value)
        case "items":
            return all(holds(asked, each) for each in value)
        case _:  # additionalProperties
            return bool(asked) or set(value) <= set(schema.get("properties", {}))


def _equal(one: Any, other: Any) -> bool:
    """Say whether two values are equal as JSON has it: true is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
