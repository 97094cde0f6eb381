"""Ollama's own chat API: messages in, a line of JSON a token out.

Facts: ollama/ollama, api/types.go (ChatRequest, ChatResponse, Metrics) and server/routes.go. Counts come with the last
line alone. An answer may end early: the API has no way to go on after the end of text.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from harness.dialects.body import Body, PromptEncoder, SentMessage, Settings, Tools, message_texts
from harness.dialects.chunk import ABSENT, Choice, Chunk, Count, Delta, usage_of
from harness.dialects.decoder import StreamDecoder
from harness.dialects.dialect import Answer, Dialect, Events, Server
from harness.dialects.sse import NDJSON, LineParser
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


class _Options(msgspec.Struct, frozen=True):
    num_predict: int | None = None


class _Body(msgspec.Struct):
    model: str | None = None
    messages: list[SentMessage] | None = None
    stream: bool = True
    options: _Options = _Options()


def _body(data: bytes) -> Body:
    body = msgspec.json.decode(data, type=_Body)
    # The simulated endpoint goes on after the end of text, as it does where a request can say so.
    return Body(
        model=body.model,
        messages=body.messages,
        max_tokens=body.options.num_predict,
        ignore_eos=True,
        stream=body.stream,
    )


def _token(answer: Answer, position: int, text: str, last: bool) -> bytes:
    fields = {"content": "", "thinking": text} if position < answer.reasoning_tokens else {"content": text}
    line = {"model": answer.model, "created_at": _DATE, "message": {"role": "assistant", **fields}, "done": False}
    return msgspec.json.encode(line) + b"\n"


def _whole(answer: Answer, text: str, reasoning: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text} | ({"thinking": reasoning} if reasoning else {})
    counts = {"prompt_eval_count": answer.prompt_tokens, "eval_count": answer.output_tokens}
    ended = {"done": True, "done_reason": answer.finish_reason}
    return {"model": answer.model, "created_at": _DATE, "message": message, **ended, **counts}


_DATE = "1970-01-01T00:00:00Z"

OLLAMA = Dialect(
    name="ollama",
    path="/api/chat",
    root="",
    encoder=partial(PromptEncoder, _prompt, _fields),
    decoder=partial(StreamDecoder, read=_read, events=LineParser),
    server=Server(
        body=_body,
        texts=message_texts,
        template=True,
        wording=Events(
            media=NDJSON,
            token=_token,
            closing=lambda answer: [msgspec.json.encode(_whole(answer, "", "")) + b"\n"],
            whole=_whole,
            reasons=True,
        ),
    ),
)
