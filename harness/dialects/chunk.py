"""One event of a stream, in the shape that the decoder accounts for: OpenAI's chunk; odd values are left out.

The events of chat and completions are read as they are; a dialect with other events has a function that makes chunks of
them.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from harness.dialects.unlisted import MOST, UNREADABLE, texts

Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]  # a usage outside this is left out
ABSENT = msgspec.Raw()
_MOST_LEFT_OUT = 8  # values of one event that are left out
_AT = re.compile(r" - at `\$([^`]+)`$")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_COUNT = re.compile(r"\d{1,18}(?:\.0+)?")  # in other words than a number's
_PLACES, _TEXTS = ("choices", "message", "token"), ("delta", "content", "text", "text_output")  # of an answer


class Delta(msgspec.Struct, gc=False):
    content: str | list[dict[str, Any]] | None = None  # in parts: Mistral's, Databricks' (type, text, thinking …)
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class Choice(msgspec.Struct, gc=False):
    delta: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: Count | None = None


class OutputDetails(msgspec.Struct, gc=False):
    reasoning_tokens: Count | None = None


class Usage(msgspec.Struct, gc=False):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: OutputDetails | None = None
    total_tokens: int | None = None  # only compared, and so of any size


class Chunk(msgspec.Struct, gc=False):
    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: msgspec.Raw = ABSENT  # not decoded: it may be anything, of any depth
    timings: msgspec.Raw = ABSENT  # not decoded but for llama-server's count


class _Timings(msgspec.Struct, gc=False):
    cache_n: Count | None = None  # llama-server's: prompt tokens that a slot had from the request before


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    function: _Function | None = None


read_chunk = msgspec.json.Decoder(Chunk).decode
_call = msgspec.json.Decoder(_Call).decode
_timings = msgspec.json.Decoder(_Timings).decode


def join_parts(choice: Choice) -> str:
    """Return the answer's text of a content in parts; their other text is reasoning, and becomes the delta's.

    >>> choice = Choice(Delta([{"thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "a"}]))
    >>> join_parts(choice), choice.delta.reasoning
    ('a', 'hm')
    """
    delta = choice.delta
    if delta is None or not isinstance(delta.content, list):
        return ""
    answer = texts([part.pop("text", "") for part in delta.content])
    delta.reasoning = texts(delta.content) or delta.reasoning
    return answer


def output_tokens(usage: Usage, reasoning: int) -> int | None:
    """Return the output tokens with those of reasoning, which xAI leaves out of `completion_tokens`; by the total.

    >>> output_tokens(Usage(12, 2, total_tokens=331), 317), output_tokens(Usage(12, 319, total_tokens=331), 317)
    (319, 319)
    """
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    if prompt is None or completion is None or usage.total_tokens != prompt + completion + reasoning:
        return completion
    return min(completion + reasoning, MOST)


def cached_tokens(timings: msgspec.Raw) -> int | None:
    """Return the prompt tokens that were not computed, by llama-server's timings; None if these do not say."""
    try:
        return _timings(timings).cache_n
    except UNREADABLE:
        return None


def call_text(call: msgspec.Raw) -> str:
    """Return the text that a tool call's delta brings: its function's name and arguments; "" if it only announces it.

    Of a call without a function all text counts; a delta of unexpected form that has text is returned as its JSON.

    >>> call_text(msgspec.Raw(b'{"id": "c1", "type": "function", "function": null}'))
    ''
    >>> call_text(msgspec.Raw(b'{"id": "c1", "type": "custom", "custom": {"name": "sql", "input": " from"}}'))
    'sql from'
    """
    with contextlib.suppress(*UNREADABLE):
        if (function := _call(call).function) is not None:
            return (function.name or "") + (function.arguments or "")
        return texts(msgspec.json.decode(call))
    with contextlib.suppress(*UNREADABLE):
        if not texts(msgspec.json.decode(call)):
            return ""
    return bytes(call).decode("utf-8", "replace")


def usage_of(prompt: int | None, completion: int | None, cached: int | None = None) -> Usage:
    """Return the usage from an API that names its counts otherwise, or in parts; a count not given is None."""
    return Usage(
        None if prompt is None else min(prompt, MOST),
        None if completion is None else min(completion, MOST),
        None if cached is None else PromptDetails(cached),
    )


def salvage(event: bytes, read: Callable[[bytes], Chunk]) -> tuple[Chunk, bytes, list[str]] | None:
    """Read an event without its odd values: (chunk, the event's whole JSON, what was left out); None: it has no sense.

    Servers write counts as words, details as lists, -Infinity, halves of characters. The value at the path that msgspec
    names is left out, and the event is read again. What holds the answer itself is never left out: such an event stays
    unreadable.
    """
    left_out: list[str] = []

    def constant(_: str) -> None:
        left_out.append("constants")

    with contextlib.suppress(*UNREADABLE):
        return read(event), event, left_out
    with contextlib.suppress(*UNREADABLE, ValueError):
        # The longest integers stay words, which are no count.
        text, integer = event.decode("utf-8", "replace"), lambda digits: int(digits) if len(digits) < 19 else digits
        document = json.loads(text, parse_int=integer, parse_constant=constant)
        whole = rest = _bytes(document)
        for attempt in range(_MOST_LEFT_OUT if isinstance(document, dict) else 0):
            try:
                return read(rest), whole, left_out or ([] if attempt else ["characters"])
            except msgspec.ValidationError as error:
                if (path := _leave_out(document, str(error))) is None:
                    return None
                left_out += path
                rest = _bytes(document)
    return None


def _bytes(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")  # half a character becomes a "?"


def _leave_out(found: Any, why: str) -> list[str] | None:
    """Mend or delete the value that msgspec complains about; return the deleted paths, None if it must stay.

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
