"""Anthropic's messages: messages in, content blocks in pieces out. vLLM, SGLang and llama-server speak it too.

Facts: anthropics/anthropic-sdk-python, src/anthropic/types (RawMessageStreamEvent and what it holds). The prompt's
count comes first and leaves out what a cache served; the answer's comes with its end. A signature is no token.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from harness.dialects.body import PromptEncoder, Settings, Tools, calls
from harness.dialects.chunk import ABSENT, Choice, Chunk, Count, Delta, Usage, usage_of
from harness.dialects.decoder import StreamDecoder
from harness.dialects.dialect import Dialect
from harness.workload.request import Message


class _Usage(msgspec.Struct, gc=False):
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None
    cache_read_input_tokens: Count | None = None


class _Message(msgspec.Struct, gc=False):
    usage: _Usage | None = None


class _Block(msgspec.Struct, gc=False):
    text: str | None = None
    name: str | None = None  # name of a tool


class _Delta(msgspec.Struct, gc=False):
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _Event(msgspec.Struct, gc=False):
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None
    error: msgspec.Raw = ABSENT


_SYSTEMS = ("system", "developer")
_SIGNATURE = _Delta()  # or whatever else is neither text nor an end
_event = msgspec.json.Decoder(_Event).decode


def _read(data: bytes) -> Chunk:
    event = _event(data)
    delta, usage = event.delta, None
    if event.message is not None and event.message.usage is not None:
        usage = _usage(event.message.usage, None)  # its count of output tokens is that of no token yet
    elif event.usage is not None:
        usage = _usage(event.usage, event.usage.output_tokens)
    choices = None
    if delta is not None and delta != _SIGNATURE:
        text = delta.partial_json if delta.text is None else delta.text
        choices = [Choice(Delta(text, reasoning=delta.thinking), finish_reason=delta.stop_reason)]
    elif event.content_block is not None and (text := event.content_block.name or event.content_block.text):
        choices = [Choice(text=text)]
    return Chunk(choices, usage, event.error)


def _usage(usage: _Usage, output_tokens: int | None) -> Usage:
    prompt, cached = usage.input_tokens, usage.cache_read_input_tokens
    if prompt is not None:
        prompt += (usage.cache_creation_input_tokens or 0) + (cached or 0)
    return usage_of(prompt, output_tokens, cached if prompt else None)  # without a prompt they are placeholders


def _prompt(messages: Sequence[Message], tools: Tools) -> dict[str, Any]:
    """Return the fields of a prompt: system texts apart, tools' results as the user's, blank answers left out.

    The API refuses blank answers.
    """
    system = "\n\n".join(message.content for message in messages if message.role in _SYSTEMS)
    rest = [
        {"role": "assistant" if message.role == "assistant" else "user", "content": _content(message, tools)}
        for message in messages
        if message.role not in _SYSTEMS and (message.role != "assistant" or message.text.strip())
    ]
    functions = [tool.get("function", tool) for tool in tools]
    defined = [
        {
            "name": function.get("name"),
            "description": function.get("description", ""),
            "input_schema": function.get("parameters") or {"type": "object", "properties": {}},
        }
        for function in functions
    ]
    fields: dict[str, Any] = {"messages": rest}
    return fields | ({"system": system} if system else {}) | ({"tools": defined} if tools else {})


def _content(message: Message, tools: Tools) -> str | list[dict[str, Any]]:
    """Return a message's text, or its blocks where it calls tools that are defined, or has the result of one."""
    if tools and (of := (message.more or {}).get("tool_call_id")):
        return [{"type": "tool_result", "tool_use_id": of, "content": message.content}]
    if not tools or not (called := calls(message)):
        return message.text
    before = [{"type": "text", "text": message.content}] if message.content.strip() else []
    uses = [{"type": "tool_use", "id": id_, "name": name, "input": msgspec.Raw(args)} for id_, name, args in called]
    return [*before, *uses]


def _fields(settings: Settings) -> dict[str, Any]:
    fields: dict[str, Any] = {"model": settings.model, "max_tokens": settings.output_tokens, "stream": True}
    return fields | {"temperature": 0.0, "ignore_eos": True}  # the last: of servers that speak it, not of the API


ANTHROPIC = Dialect(
    name="anthropic",
    path="/messages",
    headers={"anthropic-version": "2023-06-01"},
    key="x-api-key",
    encoder=partial(PromptEncoder, _prompt, _fields),
    decoder=partial(StreamDecoder, read=_read),
)
