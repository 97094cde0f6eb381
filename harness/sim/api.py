"""What the endpoint is asked and what it says: OpenAI's bodies in, vLLM's bytes out. No sockets, no clock.

Tokens here are words: a prompt has as many as its text has between blanks, plus a fixed few for the chat
template, and an answer has one in each chunk. That makes every count exact from the outside.
"""

from __future__ import annotations

import zlib
from typing import Any

import msgspec

from harness.predict.batching import Machine
from harness.sim.pacer import Flood, Pacer
from harness.sim.profile import Profile, Reference

CHAT_OVERHEAD = 8  # tokens that the chat template adds to the words of the messages

# All of one length, so that every chunk of a stream has the same size and only its word changes.
WORDS = [
    b" " + word.encode()
    for word in (
        "about above actor after again agent along angle apple beach begin below black board bread bring "
        "brown build carry cause chair chart clear climb cloud coast count cover dance dream drive early "
        "earth eight enter every field final first floor fresh front fruit glass grass green group guess "
        "happy heart heavy horse house human juice large laugh learn level light lucky metal money month"
    ).split()
]


class RefusalError(Exception):
    """A request that gets an error for an answer."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.body = msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": status}})


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class _Part(msgspec.Struct):
    text: str = ""


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None


class _Body(msgspec.Struct, kw_only=True):
    """The fields that change the answer; all others are let through, as vLLM does."""

    messages: list[_Message] | None = None
    prompt: str | list[str | int] | None = None
    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A request as the engine needs it."""

    chat: bool
    prompt_tokens: int
    output_tokens: int
    finish_reason: str
    salt: int  # which words the answer has
    stream: bool
    include_usage: bool
    continuous_usage: bool


def read(path: str, data: bytes, profile: Profile | Reference) -> Ask:
    """The request in a body posted to /v1/chat/completions or /v1/completions; raises RefusalError."""
    try:
        body = msgspec.json.decode(data, type=_Body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _bad(str(error)) from None
    chat = path == "/v1/chat/completions"
    if body.model not in (None, profile.model_name):
        raise RefusalError(404, "NotFoundError", f"The model `{body.model}` does not exist.")
    if body.n not in (None, 1):
        raise _bad("only n = 1 is simulated")
    prompt = _chat_tokens(body.messages) if chat else _completion_tokens(body.prompt)
    room = profile.max_model_len - prompt
    asked = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    limit = (room if chat else 16) if asked is None else asked
    if limit < 1 and asked is not None:
        raise _bad(f"max_tokens must be at least 1, got {limit}")
    if limit > room or room < 1:
        raise _bad(
            f"This model's maximum context length is {profile.max_model_len} tokens; {prompt} in the prompt "
            f"and {max(limit, 1)} in the answer are more."
        )
    salt = zlib.crc32(data, profile.seed)
    endless = body.ignore_eos or isinstance(profile, Reference)
    natural = limit if endless else 16 + salt % 512
    options = body.stream_options or _StreamOptions()
    return Ask(
        chat=chat,
        prompt_tokens=prompt,
        output_tokens=min(limit, natural),
        finish_reason="length" if natural >= limit else "stop",
        salt=salt,
        stream=bool(body.stream),
        include_usage=bool(options.include_usage),
        continuous_usage=bool(options.include_usage and options.continuous_usage_stats),
    )


def _bad(message: str) -> RefusalError:
    return RefusalError(400, "BadRequestError", message)


def _chat_tokens(messages: list[_Message] | None) -> int:
    if not messages:
        raise _bad("messages must be a list with at least one message")
    words = CHAT_OVERHEAD
    for message in messages:
        content = message.content or ""
        texts = [content] if isinstance(content, str) else [part.text for part in content]
        words += sum(len(text.split()) for text in texts)
    return words


def _completion_tokens(prompt: str | list[str | int] | None) -> int:
    if isinstance(prompt, list) and all(isinstance(each, int) for each in prompt):
        tokens = len(prompt)  # token ids
    elif isinstance(prompt, list) and len(prompt) == 1:
        tokens = len(str(prompt[0]).split())
    else:
        tokens = len(prompt.split()) if isinstance(prompt, str) else 0
    if not tokens:
        raise _bad("prompt must be one text or one list of token ids, and not empty")
    return tokens


class Voice:
    """The bytes of one answer, token by token or whole."""

    def __init__(self, ask: Ask, request_id: str, model: str, created: int) -> None:
        self._ask = ask
        self._id = ("chatcmpl-" if ask.chat else "cmpl-") + request_id
        self._model, self._created = model, created
        self._stride = ask.salt | 1  # odd, so that it visits all 64 words before one comes again
        kind = "chat.completion.chunk" if ask.chat else "text_completion"
        opening = msgspec.json.encode(
            {"id": self._id, "object": kind, "created": created, "model": model, "choices": []}
        )
        self._opening = b"data: " + opening[:-2]  # up to and with the bracket of the choices
        event = self._event(WORDS[0], None, b"" if ask.continuous_usage else None)
        self._size = len(event)  # without its usage
        self._before, _, self._after = event.rpartition(WORDS[0])
        if ask.continuous_usage:
            self._after = self._after.removesuffix(b"}\n\n")
        else:
            self._before, self._after = b"%x\r\n" % self._size + self._before, self._after + b"\r\n"
        self._loop = b""  # of `run`: the chunks of all 64 words, and again as many as one run has

    def middle(self, position: int) -> bytes:
        """`chunk` of a token that is neither the first nor the last: most of them, so this is quick."""
        word = WORDS[(self._ask.salt + position * self._stride) & 63]
        if not self._ask.continuous_usage:
            return b"".join((self._before, word, self._after))
        usage = self._usage(position + 1)
        return b"%x\r\n%s%s%s%s}\n\n\r\n" % (self._size + len(usage), self._before, word, self._after, usage)

    def run(self, position: int, tokens: int, finished: bool) -> bytes | memoryview:
        """What leaves with several tokens at once, the last of which may end the answer."""
        if tokens == 1:
            return self.chunk(position, finished)
        end = position + tokens
        if not position or finished or self._ask.continuous_usage:
            return b"".join(self.chunk(each, finished and each == end - 1) for each in range(position, end))
        size = len(self._before) + len(WORDS[0]) + len(self._after)
        if len(self._loop) < (64 + tokens) * size:
            self._loop = b"".join(map(self.middle, range(64 + tokens)))
        at = (position & 63) * size  # after 64 positions the words come again
        return memoryview(self._loop)[at : at + tokens * size]

    def chunk(self, position: int, finished: bool) -> bytes:
        """What leaves with one token: its HTTP chunk, and around it those that have no token."""
        if position and not finished:
            return self.middle(position)
        word, ask = self._word(position), self._ask
        parts = []
        if position == 0 and ask.chat:
            parts.append(_framed(self._role()))
        usage = self._usage(position + 1) if ask.continuous_usage else None
        parts.append(_framed(self._event(word, ask.finish_reason if finished else None, usage)))
        if finished:
            if ask.include_usage:
                parts.append(_framed(self._opening + b'],"usage":' + self._usage(position + 1) + b"}\n\n"))
            parts.append(_framed(b"data: [DONE]\n\n"))
            parts.append(b"0\r\n\r\n")
        return b"".join(parts)

    def lump(self, position: int, tokens: int, finished: bool) -> bytes:
        """Several tokens, an event each, in one HTTP chunk; what ends the answer has its own."""
        ask, end = self._ask, position + tokens
        events = [self._role()] if position == 0 and ask.chat else []
        for each in range(position, end):
            usage = self._usage(each + 1) if ask.continuous_usage else None
            last = finished and each == end - 1
            events.append(self._event(self._word(each), ask.finish_reason if last else None, usage))
        out = _framed(b"".join(events))
        if finished:
            if ask.include_usage:
                out += _framed(self._opening + b'],"usage":' + self._usage(end) + b"}\n\n")
            out += _framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"
        return out

    def whole(self) -> bytes:
        """The body of an answer that is not streamed."""
        ask = self._ask
        text = b"".join(self._word(each) for each in range(ask.output_tokens)).decode()
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": ask.finish_reason}
        if ask.chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        return msgspec.json.encode(
            {
                "id": self._id,
                "object": "chat.completion" if ask.chat else "text_completion",
                "created": self._created,
                "model": self._model,
                "choices": [choice],
                "usage": msgspec.Raw(self._usage(ask.output_tokens)),
            }
        )

    def _word(self, position: int) -> bytes:
        return WORDS[(self._ask.salt + position * self._stride) & 63]

    def _event(self, word: bytes, finish: str | None, usage: bytes | None) -> bytes:
        text = b'"delta":{"content":"%s"}' if self._ask.chat else b'"text":"%s"'
        reason = b'"%s"' % finish.encode() if finish else b"null"
        return (
            self._opening
            + b'{"index":0,'
            + text % word
            + b',"logprobs":null,"finish_reason":'
            + reason
            + (b"}]}\n\n" if usage is None else b'}],"usage":' + usage + b"}\n\n")
        )

    def _role(self) -> bytes:
        delta = b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        usage = b',"usage":' + self._usage(0) if self._ask.continuous_usage else b""
        return self._opening + delta + usage + b"}\n\n"

    def _usage(self, completion: int) -> bytes:
        prompt = self._ask.prompt_tokens
        return b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":null}' % (
            prompt,
            prompt + completion,
            completion,
        )


def _framed(event: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(event), event)


def models(profile: Profile | Reference) -> bytes:
    """The body of /v1/models."""
    card = {
        "id": profile.model_name,
        "object": "model",
        "created": 0,
        "owned_by": "knee-sim",
        "root": profile.model_name,
        "parent": None,
        "max_model_len": profile.max_model_len,
    }
    return msgspec.json.encode({"object": "list", "data": [card]})


class Counts:
    """The counters that /metrics publishes; a request that its client cuts is in none of `success`."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.success = {"stop": 0, "length": 0, "abort": 0}


def metrics(machine: Machine | Pacer | Flood, counts: Counts, model: str) -> bytes:
    """The body of /metrics, under vLLM's names."""
    label = f'engine="0",model_name="{model}"'
    rows = [
        ("num_requests_running", "gauge", machine.running),
        ("num_requests_waiting", "gauge", machine.waiting),
        ("kv_cache_usage_perc", "gauge", machine.kv_usage),
        ("prefix_cache_queries_total", "counter", counts.prompt_tokens),
        ("prefix_cache_hits_total", "counter", 0),
        ("prompt_tokens_total", "counter", counts.prompt_tokens),
        ("generation_tokens_total", "counter", counts.generation_tokens),
        ("num_preemptions_total", "counter", machine.preemptions),
    ]
    lines = [f"# TYPE vllm:{name} {kind}\nvllm:{name}{{{label}}} {float(value)}" for name, kind, value in rows]
    lines.append("# TYPE vllm:request_success_total counter")
    lines += [
        f'vllm:request_success_total{{{label},finished_reason="{reason}"}} {float(count)}'
        for reason, count in counts.success.items()
    ]
    cache = f'block_size="{machine.block_size}",engine="0",num_gpu_blocks="{machine.num_blocks}"'
    lines.append(f"# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{{cache}}} 1.0")
    return "\n".join([*lines, ""]).encode()
