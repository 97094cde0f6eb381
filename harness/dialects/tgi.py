"""Text Generation Inference's own API: one prompt in, an event a token out.

Facts: huggingface/text-generation-inference, router/src/lib.rs (StreamResponse, StreamDetails). `index` counts the
tokens from 1; the last event has the whole text, and `details` where they were requested. An answer may end early: the
API has no way to go on after the end of text. Tools and sampling are left out.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from harness.dialects.body import PromptEncoder, Settings, one_text
from harness.dialects.chunk import ABSENT, Choice, Chunk, Count, usage_of
from harness.dialects.decoder import StreamDecoder
from harness.dialects.dialect import Dialect


class _Token(msgspec.Struct, gc=False):
    text: str = ""


class _Details(msgspec.Struct, gc=False):
    finish_reason: str | None = None
    generated_tokens: Count | None = None
    input_length: Count | None = None


class _Event(msgspec.Struct, gc=False):
    index: Count | None = None
    token: _Token | None = None
    generated_text: str | None = None
    details: _Details | None = None
    error: msgspec.Raw = ABSENT


_event = msgspec.json.Decoder(_Event).decode


def _read(data: bytes) -> Chunk:
    found = _event(data)
    text = found.token.text if found.token is not None else ""
    details = found.details or _Details(generated_tokens=found.index)
    finish = None if found.generated_text is None else details.finish_reason or "unknown"
    usage = usage_of(details.input_length, details.generated_tokens)
    return Chunk([Choice(text=text, finish_reason=finish)], usage, found.error)


def _fields(settings: Settings) -> dict[str, Any]:
    return {"parameters": {"max_new_tokens": settings.output_tokens, "do_sample": False, "details": True}}


TGI = Dialect(
    name="tgi",
    path="/generate_stream",
    root="",
    encoder=partial(PromptEncoder, lambda messages, tools: {"inputs": one_text(messages, tools)}, _fields),
    decoder=partial(StreamDecoder, read=_read),
)
