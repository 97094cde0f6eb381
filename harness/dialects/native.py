"""The own APIs of llama-server, Ollama, Text Generation Inference and Triton: a prompt in, an event a token out.

llama-server counts the tokens so far in `tokens_predicted` and those of the prompt in `tokens_evaluated`;
`timings.cache_n` says how many of these its slot had before. Source: ggml-org/llama.cpp, tools/server/README.md.

Ollama takes messages and answers with a line of JSON a token; only the last line has counts. Source: ollama/ollama,
api/types.go (ChatRequest, ChatResponse, Metrics) and server/routes.go.

TGI counts the tokens in `index`, from 1; the last event has the whole text, and `details` where they were requested.
Source: huggingface/text-generation-inference, router/src/lib.rs (StreamResponse, StreamDetails).

Triton's generate extension sends an event for each response of the model. TensorRT-LLM's models give neither counts nor
a reason for the end. Those of the vLLM backend give both on request, and each event counts its own tokens. A model
ignores parameters that it does not know. Sources: triton-inference-server/server,
docs/protocol/extension_generate.md; tensorrtllm_backend, docs/model_config.md; vllm_backend,
docs/additional_outputs.md.

Answers of Ollama and TGI may end early: these have no way to go on after the end of text. Where a prompt is one text,
tools are text before it. Sampling is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from harness.dialects.body import PromptEncoder, Settings, Tools, one_text
from harness.dialects.chunk import ABSENT, Choice, Chunk, Count, Delta, usage_of
from harness.dialects.decoder import StreamDecoder
from harness.dialects.dialect import Dialect
from harness.dialects.sse import LineParser
from harness.dialects.tokens import TokenPlacer
from harness.workload.request import Message


def _text_in(name: str, fields: Callable[[Settings], dict[str, Any]]) -> Callable[..., PromptEncoder]:
    """Return what makes bodies whose field `name` has the prompt as one text."""
    return partial(PromptEncoder, lambda messages, tools: {name: one_text(messages, tools)}, fields)


# ---- llama-server


class _LlamaEvent(msgspec.Struct, gc=False):
    content: str = ""
    stop: bool = False
    stop_type: str | None = None
    tokens_predicted: Count | None = None
    tokens_evaluated: Count | None = None
    error: msgspec.Raw = ABSENT
    timings: msgspec.Raw = ABSENT


_llama_event = msgspec.json.Decoder(_LlamaEvent).decode


def _read_llama(data: bytes) -> Chunk:
    event = _llama_event(data)
    finish = (event.stop_type or "unknown") if event.stop else None
    usage = usage_of(event.tokens_evaluated, event.tokens_predicted)
    return Chunk([Choice(text=event.content, finish_reason=finish)], usage, event.error, event.timings)


def _for_llama(settings: Settings) -> dict[str, Any]:
    return {"n_predict": settings.output_tokens, "stream": True, "temperature": 0.0, "ignore_eos": True}


LLAMA_CPP = Dialect(
    name="llama-cpp",
    path="/completion",
    root="",
    encoder=_text_in("prompt", _for_llama),
    decoder=partial(StreamDecoder, read=_read_llama),
)


# ---- Ollama


class _OllamaMessage(msgspec.Struct, frozen=True, gc=False):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _OllamaLine(msgspec.Struct, gc=False):
    message: _OllamaMessage = _OllamaMessage()
    done: bool = False
    done_reason: str | None = None
    prompt_eval_count: Count | None = None
    eval_count: Count | None = None
    error: msgspec.Raw = ABSENT


_ollama_line = msgspec.json.Decoder(_OllamaLine).decode


def _read_ollama(data: bytes) -> Chunk:
    line = _ollama_line(data)
    message = line.message
    delta = Delta(message.content, reasoning=message.thinking, tool_calls=message.tool_calls)
    finish = (line.done_reason or "unknown") if line.done else None
    usage = usage_of(line.prompt_eval_count, line.eval_count)
    return Chunk([Choice(delta, finish_reason=finish)], usage, line.error)


def _ollama_prompt(messages: Sequence[Message], tools: Tools) -> dict[str, Any]:
    fields: dict[str, Any] = {"messages": [{"role": message.role, "content": message.text} for message in messages]}
    return fields | {"tools": tools} if tools else fields


def _for_ollama(settings: Settings) -> dict[str, Any]:
    options = {"num_predict": settings.output_tokens, "temperature": 0.0}
    return {"model": settings.model, "stream": True, "options": options}


OLLAMA = Dialect(
    name="ollama",
    path="/api/chat",
    root="",
    encoder=partial(PromptEncoder, _ollama_prompt, _for_ollama),
    decoder=partial(StreamDecoder, read=_read_ollama, events=LineParser),
)


# ---- Text Generation Inference


class _TgiToken(msgspec.Struct, gc=False):
    text: str = ""


class _TgiDetails(msgspec.Struct, gc=False):
    finish_reason: str | None = None
    generated_tokens: Count | None = None
    input_length: Count | None = None


class _TgiEvent(msgspec.Struct, gc=False):
    index: Count | None = None
    token: _TgiToken | None = None
    generated_text: str | None = None
    details: _TgiDetails | None = None
    error: msgspec.Raw = ABSENT


_tgi_event = msgspec.json.Decoder(_TgiEvent).decode


def _read_tgi(data: bytes) -> Chunk:
    event = _tgi_event(data)
    text = event.token.text if event.token is not None else ""
    details = event.details or _TgiDetails(generated_tokens=event.index)
    finish = None if event.generated_text is None else details.finish_reason or "unknown"
    usage = usage_of(details.input_length, details.generated_tokens)
    return Chunk([Choice(text=text, finish_reason=finish)], usage, event.error)


def _for_tgi(settings: Settings) -> dict[str, Any]:
    return {"parameters": {"max_new_tokens": settings.output_tokens, "do_sample": False, "details": True}}


TGI = Dialect(
    name="tgi",
    path="/generate_stream",
    root="",
    encoder=_text_in("inputs", _for_tgi),
    decoder=partial(StreamDecoder, read=_read_tgi),
)


# ---- Triton


class _TritonEvent(msgspec.Struct, gc=False):
    text_output: str | list[str] = ""
    finish_reason: str | None = None
    num_input_tokens: Count | None = None
    num_output_tokens: Count | None = None  # tokens of this event
    error: msgspec.Raw = ABSENT


_triton_event = msgspec.json.Decoder(_TritonEvent).decode


class _TritonReader:
    """Reads the events of one response, and adds up their counts."""

    __slots__ = ("_tokens",)

    def __init__(self) -> None:
        self._tokens: int | None = None

    def __call__(self, data: bytes) -> Chunk:
        """Return the chunk of one event; its usage counts the output tokens of all events so far."""
        event = _triton_event(data)
        if event.num_output_tokens is not None:
            self._tokens = (self._tokens or 0) + event.num_output_tokens
        text = event.text_output if isinstance(event.text_output, str) else "".join(event.text_output)
        usage = usage_of(event.num_input_tokens, self._tokens)
        return Chunk([Choice(text=text, finish_reason=event.finish_reason)], usage, event.error)


def _triton_decoder(placer: TokenPlacer | None = None, **options: Any) -> StreamDecoder:
    return StreamDecoder(placer, **options, read=_TritonReader(), finishes=False)


def _for_triton(settings: Settings) -> dict[str, Any]:
    length = {"max_tokens": settings.output_tokens, "min_tokens": settings.output_tokens}
    wanted = dict.fromkeys(("return_num_input_tokens", "return_num_output_tokens", "return_finish_reason"), True)
    return {"parameters": {"stream": True, **length, "exclude_input_in_output": True, **wanted}}


TRITON = Dialect(
    name="triton",
    path="/v2/models/{model}/generate_stream",
    root="",
    encoder=_text_in("text_input", _for_triton),
    decoder=_triton_decoder,
)
