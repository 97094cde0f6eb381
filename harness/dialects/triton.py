"""Triton's generate extension: one prompt in, an event a response of the model out.

Facts: triton-inference-server/server, docs/protocol/extension_generate.md; tensorrtllm_backend, docs/model_config.md;
vllm_backend, docs/additional_outputs.md. TensorRT-LLM's models give neither counts nor a reason for the end, those of
the vLLM backend give both on request: each event's own count. What a model does not know of the parameters it passes
over. Tools are text before the prompt.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from harness.dialects.body import PromptEncoder, Settings, one_text
from harness.dialects.chunk import ABSENT, Choice, Chunk, Count, usage_of
from harness.dialects.decoder import StreamDecoder
from harness.dialects.dialect import Dialect
from harness.dialects.tokens import TokenPlacer


class _Event(msgspec.Struct, gc=False):
    text_output: str | list[str] = ""
    finish_reason: str | None = None
    num_input_tokens: Count | None = None
    num_output_tokens: Count | None = None  # of this event
    error: msgspec.Raw = ABSENT


_event = msgspec.json.Decoder(_Event).decode


class _Reader:
    """Reads the events of one response, and adds up their counts."""

    __slots__ = ("_tokens",)

    def __init__(self) -> None:
        self._tokens: int | None = None

    def __call__(self, data: bytes) -> Chunk:
        """Return the chunk of one event; its usage counts the output tokens of all events so far."""
        found = _event(data)
        if found.num_output_tokens is not None:
            self._tokens = (self._tokens or 0) + found.num_output_tokens
        text = found.text_output if isinstance(found.text_output, str) else "".join(found.text_output)
        usage = usage_of(found.num_input_tokens, self._tokens)
        return Chunk([Choice(text=text, finish_reason=found.finish_reason)], usage, found.error)


def _decoder(placer: TokenPlacer | None = None, **options: Any) -> StreamDecoder:
    return StreamDecoder(placer, **options, read=_Reader(), finishes=False)


def _fields(settings: Settings) -> dict[str, Any]:
    length = {"max_tokens": settings.output_tokens, "min_tokens": settings.output_tokens}
    parameters: dict[str, Any] = {"stream": True, **length, "exclude_input_in_output": True}
    for name in ("return_num_input_tokens", "return_num_output_tokens", "return_finish_reason"):
        parameters[name] = True
    return {"parameters": parameters}


TRITON = Dialect(
    name="triton",
    path="/v2/models/{model}/generate_stream",
    root="",
    encoder=partial(PromptEncoder, lambda messages, tools: {"text_input": one_text(messages, tools)}, _fields),
    decoder=_decoder,
)
