"""OpenAI's chat, messages in and deltas out, and its text completions, one prompt in and pieces of text out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from harness.dialects.body import (
    PromptEncoder,
    Tools,
    message_texts,
    one_text,
    openai_fields,
    openai_messages,
    prompt_texts,
)
from harness.dialects.chunk import ABSENT, Choice, Chunk, Delta, Usage
from harness.dialects.decoder import StreamDecoder
from harness.dialects.dialect import Dialect, Server, Wording
from harness.dialects.sse import DocumentParser
from harness.workload.request import Message


class _Choice(msgspec.Struct):
    message: Delta | None = None
    finish_reason: str | None = None


class _Whole(msgspec.Struct):
    choices: list[_Choice] = []
    usage: Usage | None = None
    error: msgspec.Raw = ABSENT
    timings: msgspec.Raw = ABSENT


_whole = msgspec.json.Decoder(_Whole).decode


def _read_whole(data: bytes) -> Chunk:
    """Return the chunk of an answer that did not stream."""
    whole = _whole(data)
    choices = [Choice(choice.message or Delta(), finish_reason=choice.finish_reason) for choice in whole.choices]
    return Chunk(choices, whole.usage, whole.error, whole.timings)


def _prompt(messages: Sequence[Message], tools: Tools) -> dict[str, Any]:
    fields: dict[str, Any] = {"messages": openai_messages(messages)}
    return fields | {"tools": tools} if tools else fields


def _choice(text: str, reasoning: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {"message": message | {"reasoning": reasoning} if reasoning else message}


CHAT = Dialect(
    name="chat",
    path="/chat/completions",
    images=True,
    encoder=partial(PromptEncoder, _prompt, openai_fields),
    decoder=StreamDecoder,
    whole=partial(StreamDecoder, read=_read_whole, events=DocumentParser),
    server=Server(
        texts=message_texts,
        template=True,
        output_tokens=None,
        wording=Wording(
            id="chatcmpl-",
            event="chat.completion.chunk",
            whole="chat.completion",
            opening=b'"delta":{"role":"assistant","content":""}',
            token=b'"delta":{"content":"%s"}',
            reasoning=b'"delta":{"reasoning":"%s"}',
            choice=_choice,
        ),
    ),
)


COMPLETIONS = Dialect(
    name="completions",
    path="/completions",
    encoder=partial(PromptEncoder, lambda messages, tools: {"prompt": one_text(messages, tools)}, openai_fields),
    decoder=StreamDecoder,
    whole=partial(StreamDecoder, events=DocumentParser),
    server=Server(
        texts=prompt_texts,
        output_tokens=16,
        wording=Wording(
            id="cmpl-",
            event="text_completion",
            whole="text_completion",
            opening=None,
            token=b'"text":"%s"',
            reasoning=None,
            choice=lambda text, _: {"text": text},
        ),
    ),
)
