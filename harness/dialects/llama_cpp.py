"""llama-server's own API: one prompt in, an event a token out.

Facts: ggml-org/llama.cpp, tools/server/README.md, `POST /completion`. `tokens_predicted` runs, `tokens_evaluated` is
the length of the prompt, and `timings.cache_n` what of it the slot had before. Tools and sampling are left out.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from harness.dialects.body import Body, PromptEncoder, Settings, one_text, prompt_texts
from harness.dialects.chunk import ABSENT, Choice, Chunk, Count, usage_of
from harness.dialects.decoder import StreamDecoder
from harness.dialects.dialect import Answer, Dialect, Events, Server
from harness.dialects.sse import event


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


class _Body(msgspec.Struct):
    prompt: str | list[str | int] | None = None
    n_predict: int | None = None
    ignore_eos: bool = False
    stream: bool = False


def _body(data: bytes) -> Body:
    body = msgspec.json.decode(data, type=_Body)
    most = None if body.n_predict == -1 else body.n_predict
    return Body(prompt=body.prompt, max_tokens=most, ignore_eos=body.ignore_eos, stream=body.stream)


def _token(answer: Answer, position: int, text: str, last: bool) -> bytes:
    counts = {"tokens_predicted": position + 1, "tokens_evaluated": answer.prompt_tokens}
    return event({"index": 0, "content": text, "tokens": [0], "stop": False, "id_slot": 0, **counts})


def _whole(answer: Answer, text: str, reasoning: str) -> dict[str, Any]:
    counts = {"tokens_predicted": answer.output_tokens, "tokens_evaluated": answer.prompt_tokens}
    ended = {"stop": True, "stop_type": "limit" if answer.finish_reason == "length" else "eos"}
    return {"index": 0, "content": text, **ended, **counts, "timings": {"cache_n": answer.cached_tokens or 0}}


LLAMA_CPP = Dialect(
    name="llama-cpp",
    path="/completion",
    root="",
    encoder=partial(PromptEncoder, lambda messages, tools: {"prompt": one_text(messages, tools)}, _fields),
    decoder=partial(StreamDecoder, read=_read),
    server=Server(
        body=_body,
        texts=prompt_texts,
        wording=Events(token=_token, closing=lambda answer: [event(_whole(answer, "", ""))], whole=_whole),
    ),
)
