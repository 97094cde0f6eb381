"""An event with an odd value: read without it, where no token is lost with it.

Servers write counts as words, details as lists, -Infinity, halves of characters. The value at the path that msgspec
names is left out, and the event is read again. What holds the answer itself is never left out: such an event stays
unreadable.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from typing import Any

import msgspec

from harness.dialects.chunk import Chunk
from harness.dialects.unlisted import UNREADABLE, texts

_MOST = 8  # values of one event that are left out
_AT = re.compile(r" - at `\$([^`]+)`$")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_COUNT = re.compile(r"\d{1,18}(?:\.0+)?")  # in other words than a number's
_PLACES, _TEXTS = ("choices", "message", "token"), ("delta", "content", "text", "text_output")  # of an answer


def salvage(event: bytes, read: Callable[[bytes], Chunk]) -> tuple[Chunk, bytes, list[str]] | None:
    """(chunk, the event's whole JSON, what was left out of it); None where it has no sense without its odd values."""
    left_out: list[str] = []

    def constant(_: str) -> None:
        left_out.append("constants")

    with contextlib.suppress(*UNREADABLE):
        return read(event), event, left_out
    with contextlib.suppress(*UNREADABLE, ValueError):
        # The longest integers stay words, which are no count.
        text, integer = event.decode("utf-8", "replace"), lambda digits: int(digits) if len(digits) < 19 else digits
        found = json.loads(text, parse_int=integer, parse_constant=constant)
        whole = rest = _bytes(found)
        for attempt in range(_MOST if isinstance(found, dict) else 0):
            try:
                return read(rest), whole, left_out or ([] if attempt else ["characters"])
            except msgspec.ValidationError as error:
                if (path := _leave_out(found, str(error))) is None:
                    return None
                left_out += path
                rest = _bytes(found)
    return None


def _bytes(found: Any) -> bytes:
    return json.dumps(found, ensure_ascii=False).encode("utf-8", "replace")  # half a character becomes a "?"


def _leave_out(found: Any, why: str) -> list[str] | None:
    """Take out the value that msgspec complains about: its path, none where it is a plain number; None: it must stay.

    >>> event = {"usage": {"prompt_tokens": -1, "completion_tokens": "16"}}
    >>> _leave_out(event, "Expected `int` >= 0 - at `$.usage.prompt_tokens`")
    ['usage.prompt_tokens']
    >>> _leave_out(event, "Expected `int | null`, got `str` - at `$.usage.completion_tokens`"), event
    ([], {'usage': {'completion_tokens': 16}})
    """
    if (match := _AT.search(why)) is None:
        return None
    *steps, last = [name or int(number) for name, number in _STEP.findall(match[1])]
    for step in steps:
        found = found[step]
    value, names = found[last], [step for step in (*steps, last) if isinstance(step, str)]
    if "`int" in why and isinstance(value, str | float) and _COUNT.fullmatch(str(value)):
        found[last] = int(float(value))
        return []
    if value and (names[-1] in _PLACES or (names[-1] in _TEXTS and not texts(value))):
        return None
    del found[last]
    return [".".join(names)]
