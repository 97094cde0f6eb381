"""Canaries: fixed prompts among a load's own requests, whose answers are compared with an unloaded server's.

An answer is judged where it is read, so that its text goes no further. What is kept of it is where it parts from the
first one, by digests of its beginnings, its flaws, and whether it is as expected. A digest is of an answer's words,
whatever blanks are between them. Patterns are RE2's, by Arrow: their time is linear in the text, so that no pattern of
a file holds up the load. A JSON Schema has type, enum, const, properties, required, items and bounds, with the meanings
of draft 2020-12 (json-schema.org); what else it may have is refused when it is read. The prompts are Knee's, or those
of the file of [quality]: JSON lines, each a prompt, most of them with what is expected of its answer.

    {"prompt": "What is the capital of France?", "regex": "\\\\bParis\\\\b"}

Beside `prompt` a line has one of `exact`, `regex`, `choice` with `choices`, `json_schema`, or none of them, and it may
have `output_tokens`.

Pure. Left out: languages that put no blanks between words, whose answers are one word; partial credit, and judging by
another model; of schemas references, patterns, formats, and combining them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from harness.base import decoding
from harness.base.errors import HarnessError
from harness.results import columns
from harness.spec.scenario import QualitySpec
from harness.workload.request import Message, Request

REPLACEMENT = "\ufffd"  # what servers put for bytes that are no UTF-8
EMPTY, INVALID_UTF8, REPETITION = "empty", "invalid_utf8", "repetition"

_LONGEST_ANSWER = 65_536  # characters of an answer that are looked at
_WHOLE, _BEGINNING = 16, 4  # hex digits of a digest
_BEGINNINGS = 256  # words up to which an answer's beginnings have one each
_PERIOD = 16  # words of a phrase that may come again and again
_AGAIN, _TIMES = 12, 3  # words, and times, that it has to for an answer to count as repeating itself


def digests(text: str) -> str:
    """Return the digest of an answer's words, then one of each of its beginnings, in hex.

    >>> len(digests("to be")), digests("to be")[:20] == digests("to  be\\n")[:20]
    (24, True)
    """
    words = text[:_LONGEST_ANSWER].split()
    running = hashlib.blake2b(digest_size=_WHOLE // 2)
    beginnings = []
    for number, word in enumerate(words):
        running.update(word.encode("utf-8", "replace") + b" ")
        if number < _BEGINNINGS:
            beginnings.append(running.hexdigest()[:_BEGINNING])
    return running.hexdigest() + "".join(beginnings)


def differs_at(one: str, other: str) -> int | None:
    """Return how many words two answers have in common from the start, by their digests; None: they are equal.

    Digests know only the beginnings of so many words, which is the most that is returned.

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
    text = text[:_LONGEST_ANSWER]
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


_AROUND = "\"'`*.,:;!?()[]{}"  # marks around a word that names a choice
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
    text = text[:_LONGEST_ANSWER]
    match expected:
        case Exact(text=right):
            correct = text.strip() == right.strip()
        case Pattern(pattern=pattern):
            correct = matches(pattern, text)
        case Choice(right=right, choices=choices):
            correct = _named(text, choices) == right
        case Schema(schema=schema):
            correct = _as_json(text, schema)
    return float(correct)


def matches(pattern: str, text: str) -> bool:
    """Say whether an RE2 pattern is found in a text; raise ValueError if it is none.

    >>> matches(r"\\b4[0-9]\\b", "it is 42"), matches("(a+)+$", "a" * 10_000 + "b")
    (True, False)
    """
    import pyarrow.compute as pc

    whole = text.encode("utf-8", "replace").decode()  # half a character is none
    found = pc.match_substring_regex(columns.array([whole], "string"), pattern)
    return bool(found[0].as_py())


def _named(text: str, choices: tuple[str, ...]) -> str | None:
    """Return the first of the choices that a text names; None if it names none."""
    return next((word for word in (each.strip(_AROUND) for each in text.split()) if word in choices), None)


def _as_json(text: str, schema: JsonSchema) -> bool:
    """Return whether a text, or what is fenced in it, is JSON that the schema allows."""
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


# ---- the prompts and their judgement

PROMPTS = (
    "List the first twelve prime numbers.",
    "Explain in two sentences why the sky is blue.",
    "Write the alphabet backwards, with a comma between letters.",
    "What is 17 times 23? Show the steps.",
    "Translate into French: The library opens at nine on Sundays.",
    "Name the planets of the solar system, from the Sun outwards.",
    "Write a Python function that reverses a string.",
    "Who wrote 'Pride and Prejudice', and when was it published?",
    "Give three reasons to use version control.",
    "Summarise in one sentence what photosynthesis does.",
    "Count from 40 to 60 in steps of two.",
    "Write a JSON object with the keys name, age and city for a person you invent.",
    "Which is larger, 9.9 or 9.11? Answer with the number first.",
    "Describe how to boil an egg, in numbered steps.",
    "Write one line of SQL that counts the rows of a table called orders.",
    "Finish the sentence: The quick brown fox",
)


class Canary(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt, what is expected of its answer, and the digests of its first answer (`digests`)."""

    prompt: str
    output_tokens: int
    expected: Expected | None = None  # None: nothing, but that the answer stays the same
    first: str = ""  # "": there is none

    def request(self, number: int, canary: int) -> Request:
        """Return its request as the number-th of a run; `canary` is its place among the canaries."""
        prompt = (Message("user", self.prompt),)
        return Request(number=number, prompt=prompt, output_tokens=self.output_tokens, canary=canary)


class Judged(msgspec.Struct, frozen=True):
    """What is kept of an answer."""

    differs_at: int | None
    flaw: str
    score: float | None


def judge(canary: Canary, text: str) -> Judged:
    """Return where a canary's answer differs from its first one, its flaw, and its score against what is expected."""
    return Judged(
        differs_at(canary.first, digests(text)) if canary.first else None,
        flaw(text),
        None if canary.expected is None else score(canary.expected, text),
    )


MOST = 1_000  # prompts of a file
_LONGEST = 4 << 20  # characters of all of them together: every worker has them in memory
_LONGEST_PATTERN = 1_000  # characters
_WAY_OUT = 'write each line like {"prompt": "2 + 2 = ", "regex": "4"}'


class _Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    prompt: str
    exact: str | None = None
    regex: str | None = None
    choice: str | None = None
    choices: tuple[str, ...] = ()
    json_schema: JsonSchema | None = None
    output_tokens: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None


def read(spec: QualitySpec) -> tuple[Canary, ...]:
    """Return the canaries of a scenario; raise HarnessError for a line that is none, with its place."""
    from harness.workload.dataset import files  # no worker needs it

    if spec.file is None:
        return tuple(Canary(prompt=prompt, output_tokens=spec.output_tokens) for prompt in PROMPTS)
    canaries: list[Canary] = []
    characters = 0
    with decoding.reading(spec.file, "a file of prompts", "give JSON lines"):
        for place, line in files.json_lines(Path(spec.file), _Line):
            with decoding.reading(f"{spec.file}, {place}", "a prompt", _WAY_OUT):
                if isinstance(line, Exception):
                    raise line
                canaries.append(_canary(line, spec.output_tokens))
                characters += len(line.prompt)
                if len(canaries) > MOST or characters > _LONGEST:
                    raise ValueError(f"more than {MOST:,} prompts, or {_LONGEST >> 20} Mi characters, before its end")
    if not canaries:
        raise HarnessError("it has no prompt", place=spec.file, way_out=_WAY_OUT)
    return tuple(canaries)


def _canary(line: _Line, output_tokens: int) -> Canary:
    if not line.prompt.strip():
        raise ValueError("its prompt is empty")
    return Canary(prompt=line.prompt, output_tokens=line.output_tokens or output_tokens, expected=_expected(line))


def _expected(line: _Line) -> Expected | None:
    """Return what answer a line of the canaries' file expects (exact, regex, choice or schema); None: nothing.

    Raise ValueError for several expectations, choices without the right one, or a pattern that is too long or wrong.
    """
    named = [name for name in ("exact", "regex", "choice", "json_schema") if getattr(line, name) is not None]
    if len(named) > 1:
        raise ValueError(f"{' and '.join(named)} exclude each other")
    if line.choices and line.choice is None:
        raise ValueError("choices without the right one, choice")
    if line.exact is not None:
        return Exact(line.exact)
    if line.regex is not None:
        if len(line.regex) > _LONGEST_PATTERN:
            raise ValueError(f"its regex is longer than {_LONGEST_PATTERN:,} characters")
        matches(line.regex, "")
        return Pattern(line.regex)
    if line.choice is not None:
        return _choice(line.choice, line.choices)
    return None if line.json_schema is None else Schema(line.json_schema)


def _choice(right: str, choices: Sequence[str]) -> Choice:
    if right not in choices:
        raise ValueError("choice is none of its choices")
    if any(choice != choice.strip() or not choice or len(choice.split()) > 1 for choice in choices):
        raise ValueError("a choice is one word")
    return Choice(right, tuple(choices))
