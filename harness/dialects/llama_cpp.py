"""llama-server's own API: one prompt in, an event a token out.

Facts: ggml-org/llama.cpp, tools/server/README.md, `POST /completion`. `tokens_predicted` runs, `tokens_evaluated` is
the length of the prompt, and `timings.cache_n` what of it the slot had before. Tools and sampling are left out.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from harness.dialects.body import PromptEncoder, Settings, one_text
from harness.dialects.chunk import ABSENT, Choice, Chunk, Count, usage_of
from harness.dialects.decoder import StreamDecoder
from harness.dialects.dialect import Dialect


class _Event(msgspec.Struct, gc=False):
    content: str = ""
    stop: bool = False
    stop_type: str | None = None
    tokens_predicted: Count | None = None
    tokens_evaluated: Count | None = None
    error: msgspec.Raw = ABSENT
    timings: msgspec.Raw = ABSENT


_event = msgspec.json.Decoder(_Event).decode


def _read(data: bytes) -> Chunk:
    found = _event(data)
    finish = (found.stop_type or "unknown") if found.stop else None
    usage = usage_of(found.tokens_evaluated, found.tokens_predicted)
    return Chunk([Choice(text=found.content, finish_reason=finish)], usage, found.error, found.timings)


def _fields(settings: Settings) -> dict[str, Any]:
    return {"n_predict": settings.output_tokens, "stream": True, "temperature": 0.0, "ignore_eos": True}


LLAMA_CPP = Dialect(
    name="llama-cpp",
    path="/completion",
    root="",
    encoder=partial(PromptEncoder, lambda messages, tools: {"prompt": one_text(messages, tools)}, _fields),
    decoder=partial(StreamDecoder, read=_read),
)
