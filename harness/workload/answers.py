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
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

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
    """Return how many words two answers have in common from the start, by their digests; None: they are equal.

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
    """Return the flaw of an answer's text: "empty", "invalid_utf8" or "repetition"; "" if it has none.

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
    """Return whether a text ends in one phrase repeated, at least three times and over at least twelve words."""
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


Kind: TypeAlias = Literal["object", "array", "string", "boolean", "null", "number", "integer"]
_Size: TypeAlias = int | None


class JsonSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The keywords of a JSON Schema that are understood, and those that say nothing of a value."""

    type: Kind | Annotated[list[Kind], msgspec.Meta(min_length=1)] | None = None
    enum: list[Any] | None = None
    const: Any = msgspec.UNSET
    minimum: float | None = None
    maximum: float | None = None
    min_length: _Size = msgspec.field(name="minLength", default=None)
    max_length: _Size = msgspec.field(name="maxLength", default=None)
    min_items: _Size = msgspec.field(name="minItems", default=None)
    max_items: _Size = msgspec.field(name="maxItems", default=None)
    items: JsonSchema | None = None
    required: list[str] = []
    properties: dict[str, JsonSchema] = {}
    additional: bool = msgspec.field(name="additionalProperties", default=True)
    draft: Any = msgspec.field(name="$schema", default=None)
    title: Any = None
    description: Any = None
    examples: Any = None
    default: Any = None


class Schema(msgspec.Struct, frozen=True, tag="json_schema", tag_field="kind"):
    """The whole answer as JSON, which may be in a fence of Markdown."""

    schema: JsonSchema


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


def _as_json(text: str, schema: JsonSchema) -> bool:
    text = text.strip()
    if text.startswith(_FENCE) and text.endswith(_FENCE):
        text = text.removesuffix(_FENCE).partition("\n")[2]
    try:
        return holds(schema, decoding.json(text.encode()))
    except decoding.WRONG:
        return False


def holds(schema: JsonSchema, value: Any) -> bool:
    """Return whether a JSON value is valid by a schema; keywords for other types than the value's are passed over.

    >>> holds(msgspec.convert({"required": ["n"], "properties": {"n": {"minimum": 1}}}, JsonSchema), {"n": 0})
    False
    """
    kinds = schema.type if isinstance(schema.type, list) else [schema.type]
    if schema.type is not None and not any(_is(kind, value) for kind in kinds):
        return False
    if schema.enum is not None and not any(_equal(value, each) for each in schema.enum):
        return False
    if schema.const is not msgspec.UNSET and not _equal(value, schema.const):
        return False
    if _is("number", value):
        return _within(value, schema.minimum, schema.maximum)
    if isinstance(value, str):
        return _within(len(value), schema.min_length, schema.max_length)
    if isinstance(value, list):
        every = schema.items is None or all(holds(schema.items, each) for each in value)
        return every and _within(len(value), schema.min_items, schema.max_items)
    if isinstance(value, dict):
        known = schema.additional or set(value) <= set(schema.properties)
        inner = all(holds(each, value[name]) for name, each in schema.properties.items() if name in value)
        return known and inner and set(schema.required) <= set(value)
    return True


def _is(kind: str | None, value: Any) -> bool:
    """Say whether a value is of a JSON type; 3.0 is an integer, and true no number."""
    if kind in ("number", "integer"):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and (kind == "number" or value == int(value))
    types = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    return isinstance(value, types[str(kind)])


def _within(size: float, least: float | None, most: float | None) -> bool:
    return (least is None or size >= least) and (most is None or size <= most)


def _equal(one: Any, other: Any) -> bool:
    """Say whether two values are equal as JSON has it: true is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
