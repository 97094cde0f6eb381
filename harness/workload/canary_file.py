"""The file of [quality]: JSON lines, each a prompt, most of them with what is expected of its answer.

    {"prompt": "What is the capital of France?", "regex": "\\\\bParis\\\\b"}

Beside `prompt` a line has one of `exact`, `regex`, `choice` with `choices`, `json_schema`, or none of them, and it may
have `output_tokens`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from harness.base import decoding
from harness.base.errors import HarnessError
from harness.spec.quality import QualitySpec
from harness.workload import json_schema, scorers
from harness.workload.canaries import PROMPTS, Canary
from harness.workload.dataset import json_lines
from harness.workload.scorers import Choice, Exact, Expected, Pattern, Schema

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
    json_schema: dict[str, Any] | None = None
    output_tokens: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None


def read(spec: QualitySpec) -> tuple[Canary, ...]:
    """The canaries of a scenario; HarnessError for a line that is none, with its place."""
    if spec.file is None:
        return tuple(Canary(prompt=prompt, output_tokens=spec.output_tokens) for prompt in PROMPTS)
    found: list[Canary] = []
    characters = 0
    with decoding.reading(spec.file, "a file of prompts", "give JSON lines"):
        for place, line in json_lines.records(Path(spec.file), _Line):
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
    """What a line expects; ValueError where it is contradictory, or cannot be held against an answer."""
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
        scorers.matches(line.regex, "")
        return Pattern(line.regex)
    if line.choice is not None:
        return _choice(line.choice, line.choices)
    if line.json_schema is not None:
        decoding.check(line.json_schema)
        json_schema.check(line.json_schema)
        return Schema(line.json_schema)
    return None


def _choice(right: str, choices: Sequence[str]) -> Choice:
    if right not in choices:
        raise ValueError("choice is none of its choices")
    if any(each != each.strip() or not each or len(each.split()) > 1 for each in choices):
        raise ValueError("a choice is one word")
    return Choice(right, tuple(choices))
