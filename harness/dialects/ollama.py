"""Ollama's own chat API: messages in, a line of JSON a token out.

Facts: ollama/ollama, api/types.go (ChatRequest, ChatResponse, Metrics) and server/routes.go. Counts come with the last
line alone. An answer may end early: the API has no way to go on after the end of text.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from harness.dialects.body import PromptEncoder, Settings, Tools
from harness.dialects.chunk import ABSENT, Choice, Chunk, Count, Delta, usage_of
from harness.dialects.decoder import StreamDecoder
from harness.dialects.dialect import Dialect
from harness.dialects.sse import LineParser
from harness.workload.request import Message


class _Message(msgspec.Struct, frozen=True, gc=False):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Line(msgspec.Struct, gc=False):
    message: _Message = _Message()
    done: bool = False
    done_reason: str | None = None
    prompt_eval_count: Count | None = None
    eval_count: Count | None = None
    error: msgspec.Raw = ABSENT


_line = msgspec.json.Decoder(_Line).decode


def _read(data: bytes) -> Chunk:
    found = _line(data)
    message = found.message
    delta = Delta(message.content, reasoning=message.thinking, tool_calls=message.tool_calls)
    finish = (found.done_reason or "unknown") if found.done else None
    return Chunk(
        [Choice(delta, finish_reason=finish)], usage_of(found.prompt_eval_count, found.eval_count), found.error
    )


def _prompt(messages: Sequence[Message], tools: Tools) -> dict[str, Any]:
    fields: dict[str, Any] = {"messages": [{"role": each.role, "content": each.text} for each in messages]}
    return fields | {"tools": tools} if tools else fields


def _fields(settings: Settings) -> dict[str, Any]:
    options = {"num_predict": settings.output_tokens, "temperature": 0.0}
    return {"model": settings.model, "stream": True, "options": options}


OLLAMA = Dialect(
    name="ollama",
    path="/api/chat",
    root="",
    encoder=partial(PromptEncoder, _prompt, _fields),
    decoder=partial(StreamDecoder, read=_read, events=LineParser),
)
