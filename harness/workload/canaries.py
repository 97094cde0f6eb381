"""Canaries: fixed prompts among a load's own requests, whose answers are compared with an unloaded server's.

What is kept of an answer is judged where it is read, so that its text goes no further. The prompts are Knee's, or those
of the file of [quality]: JSON lines, each a prompt, most of them with what is expected of its answer.

    {"prompt": "What is the capital of France?", "regex": "\\\\bParis\\\\b"}

Beside `prompt` a line has one of `exact`, `regex`, `choice` with `choices`, `json_schema`, or none of them, and it may
have `output_tokens`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from harness.base import decoding
from harness.base.errors import HarnessError
from harness.spec.scenario import QualitySpec
from harness.workload import answers
from harness.workload.answers import Choice, Exact, Expected, JsonSchema, Pattern, Schema
from harness.workload.request import Message, Request

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
    """One prompt, what is expected of its answer, and the digests of its first answer (`answers.digests`)."""

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
        answers.differs_at(canary.first, answers.digests(text)) if canary.first else None,
        answers.flaw(text),
        None if canary.expected is None else answers.score(canary.expected, text),
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
    """Return the canaries of a scenario; HarnessError for a line that is none, with its place."""
    from harness.workload.dataset import files  # of no use to a worker

    if spec.file is None:
        return tuple(Canary(prompt=prompt, output_tokens=spec.output_tokens) for prompt in PROMPTS)
    found: list[Canary] = []
    characters = 0
    with decoding.reading(spec.file, "a file of prompts", "give JSON lines"):
        for place, line in files.json_lines(Path(spec.file), _Line):
            with decoding.reading(f"{spec.file}, {place}", "a prompt", _WAY_OUT):
                if isinstance(line, Exception):
                    raise line
                found.append(_canary(line, spec.output_tokens))
                characters += len(line.prompt)
                if len(found) > MOST or characters > _LONGEST:
                    raise ValueError(f"more than {MOST:,} prompts, or {_LONGEST >> 20} Mi characters, before its end")
    if not found:
        raise HarnessError("it has no prompt", place=spec.file, way_out=_WAY_OUT)
    return tuple(found)


def _canary(line: _Line, output_tokens: int) -> Canary:
    if not line.prompt.strip():
        raise ValueError("its prompt is empty")
    return Canary(prompt=line.prompt, output_tokens=line.output_tokens or output_tokens, expected=_expected(line))


def _expected(line: _Line) -> Expected | None:
    """Return what answer a line of the canaries' file expects (exact, regex, choice or schema); None: nothing."""
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
        answers.matches(line.regex, "")
        return Pattern(line.regex)
    if line.choice is not None:
        return _choice(line.choice, line.choices)
    return None if line.json_schema is None else Schema(line.json_schema)


def _choice(right: str, choices: Sequence[str]) -> Choice:
    if right not in choices:
        raise ValueError("choice is none of its choices")
    if any(each != each.strip() or not each or len(each.split()) > 1 for each in choices):
        raise ValueError("a choice is one word")
    return Choice(right, tuple(choices))
