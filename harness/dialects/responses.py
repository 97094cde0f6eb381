"""OpenAI's responses: items in, named events out. vLLM and SGLang speak it too.

Facts: openai/openai-python, src/openai/types/responses. Only the events named `…delta` bring tokens, and the last one
the counts. A response that met its limit is `incomplete`, and says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from harness.dialects.body import PromptEncoder, Settings, Tools, calls
from harness.dialects.chunk import ABSENT, Choice, Chunk, Count, Delta, OutputDetails, PromptDetails, Usage
from harness.dialects.decoder import StreamDecoder
from harness.dialects.dialect import Dialect
from harness.dialects.sse import DocumentParser
from harness.workload.request import Message

_ANSWERS = {
    "response.output_text.delta", "response.refusal.delta", "response.function_call_arguments.delta",
    "response.custom_tool_call_input.delta", "response.mcp_call_arguments.delta",
}  # fmt: skip
_REASONS = {"response.reasoning_text.delta", "response.reasoning_summary_text.delta"}
_ENDS = {"response.completed", "response.incomplete", "response.failed"}
_FAILED = msgspec.Raw(b'"the response failed"')


class _Usage(msgspec.Struct, gc=False):
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    input_tokens_details: PromptDetails | None = None
    output_tokens_details: OutputDetails | None = None


class _Incomplete(msgspec.Struct, gc=False):
    reason: str | None = None


class _Part(msgspec.Struct, gc=False):
    text: str | None = None
    refusal: str | None = None


class _Item(msgspec.Struct, gc=False):
    type: str = ""
    content: list[_Part] | None = None
    summary: list[_Part] | None = None
    name: str | None = None  # name of a function
    arguments: str | None = None


class _Response(msgspec.Struct, gc=False):
    status: str | None = None
    incomplete_details: _Incomplete | None = None
    usage: _Usage | None = None
    output: list[_Item] | None = None
    error: msgspec.Raw = ABSENT


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    delta: Any = None  # text if it brings tokens
    item: _Item | None = None
    response: _Response | None = None
    message: str | None = None  # message of an error
    error: msgspec.Raw = ABSENT


_event = msgspec.json.Decoder(_Event).decode
_response = msgspec.json.Decoder(_Response).decode


def _read(data: bytes) -> Chunk:
    """Return the chunk of one event: text of the answer or the reasoning, the end with its usage, or an error."""
    event = _event(data)
    kind = event.type
    if kind in _ANSWERS and isinstance(event.delta, str):
        return Chunk([Choice(text=event.delta)])
    if kind in _REASONS and isinstance(event.delta, str):
        return Chunk([Choice(Delta(reasoning=event.delta))])
    if kind in _ENDS and event.response is not None:
        return _end(event.response, Delta(), failed=kind == "response.failed")
    if kind == "response.output_item.added" and event.item is not None and event.item.name:
        return Chunk([Choice(text=event.item.name)])
    if kind == "error" and event.error is ABSENT:
        return Chunk(error=msgspec.Raw(msgspec.json.encode(event.message or "an error without a message")))
    return Chunk(error=event.error)


def _read_whole(data: bytes) -> Chunk:
    """Return the chunk of a response that did not stream."""
    response = _response(data)
    reasoning, answer = "", ""
    for item in response.output or ():
        text = "".join(part.text or part.refusal or "" for part in (*(item.summary or ()), *(item.content or ())))
        if item.type == "reasoning":
            reasoning += text
        else:
            answer += text + (item.name or "") + (item.arguments or "")
    return _end(response, Delta(answer, reasoning=reasoning or None), failed=response.status == "failed")


def _end(response: _Response, delta: Delta, *, failed: bool) -> Chunk:
    """Return the last chunk: why the response ended, its usage, its error; one that `failed` always has an error."""
    reason = response.incomplete_details.reason if response.incomplete_details is not None else None
    counts = response.usage or _Usage()
    usage = Usage(counts.input_tokens, counts.output_tokens, counts.input_tokens_details, counts.output_tokens_details)
    error = response.error
    if failed and (error is ABSENT or bytes(error) == b"null"):
        error = _FAILED
    return Chunk([Choice(delta, finish_reason=reason or response.status)], usage, error)


def _prompt(messages: Sequence[Message], tools: Tools) -> dict[str, Any]:
    fields: dict[str, Any] = {"input": [item for message in messages for item in _items(message)]}
    return (
        fields | {"tools": [{"type": "function", **tool.get("function", tool)} for tool in tools]} if tools else fields
    )


def _items(message: Message) -> list[dict[str, Any]]:
    """Return a message as items of the API; a tool's result without the id of its call is sent as the user's."""
    if of := (message.more or {}).get("tool_call_id"):
        return [{"type": "function_call_output", "call_id": of, "output": message.content}]
    called = [
        {"type": "function_call", "call_id": id_, "name": name, "arguments": arguments}
        for id_, name, arguments in calls(message)
    ]
    role, text = "user" if message.role == "tool" else message.role, message.content if called else message.text
    return [*([] if called and not text.strip() else [{"role": role, "content": text}]), *called]


def _fields(settings: Settings) -> dict[str, Any]:
    fields: dict[str, Any] = {"model": settings.model, "max_output_tokens": settings.output_tokens}
    fields |= {"stream": settings.stream, "store": False}
    return fields | {"temperature": 0.0, "ignore_eos": True}  # the last: of servers that speak it, not of the API


RESPONSES = Dialect(
    name="responses",
    path="/responses",
    encoder=partial(PromptEncoder, _prompt, _fields),
    decoder=partial(StreamDecoder, read=_read),
    whole=partial(StreamDecoder, read=_read_whole, events=DocumentParser),
)
