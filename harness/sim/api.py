"""What the endpoint reads and writes: bodies in, an answer's bytes out. No sockets, no clock.

Chat and completions are written as vLLM does, and fast. No other API is simulated.

Tokens here are words: a prompt has as many as its text has between blanks, behind a fixed few of the chat
template, and an answer has one in each chunk. That makes every count exact from the outside, and a conversation that
goes on begins with the tokens of the request before it, but for its reasoning.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import msgspec

from harness.dialects import DIALECTS
from harness.dialects.body import StreamOptions, read_body
from harness.dialects.dialect import Server
from harness.sim.machines import Machine
from harness.sim.profile import Profile, Reference
from harness.workload.hit_rate import hashes

GENERATE = {dialect.root + dialect.path: dialect.server for dialect in DIALECTS.values() if dialect.server is not None}
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
_ANSWER = [word.decode().strip() for word in WORDS]  # words as they come back in the next prompt
_TEMPLATE = [""] * CHAT_OVERHEAD  # tokens that no text has


class RefusalError(Exception):
    """A request that is answered by an error, worded as vLLM words it."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.body = msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": status}})


def bad_request(message: str) -> RefusalError:
    return RefusalError(400, "BadRequestError", message)


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """A request as the engine needs it."""

    server: Server  # its dialect's
    prompt_tokens: int
    output_tokens: int
    reasoning_tokens: int  # output tokens that are reasoning
    finish_reason: str
    priority: int
    hashes: Sequence[int]  # hashes of the whole KV blocks of prompt and answer; none without a prefix cache
    salt: int  # decides which words the answer has
    stream: bool
    include_usage: bool
    continuous_usage: bool


def read(path: str, data: bytes, profile: Profile | Reference) -> Generation:
    """Return the request in a body posted to one of the paths in GENERATE; raises RefusalError."""
    server = GENERATE[path]
    try:
        body = read_body(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(str(error)) from None
    if body.model not in (None, profile.model_name):
        raise RefusalError(404, "NotFoundError", f"The model `{body.model}` does not exist.")
    if body.n not in (None, 1):
        raise bad_request("only n = 1 is simulated")
    try:
        texts = server.texts(body)
    except ValueError as error:
        raise bad_request(str(error)) from None
    prompt = sum(len(text.split()) for text in texts) + (CHAT_OVERHEAD if server.template else 0)
    room = profile.max_model_len - prompt
    requested = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    usual = room if server.output_tokens is None else server.output_tokens
    limit = usual if requested is None else requested
    if limit < 1 and requested is not None:
        raise bad_request(f"max_tokens must be at least 1, got {limit}")
    if limit > room or room < 1:
        raise bad_request(
            f"This model's maximum context length is {profile.max_model_len} tokens; {prompt} in the prompt "
            f"and {max(limit, 1)} in the answer are more."
        )
    salt = zlib.crc32(data)
    endless = body.ignore_eos or isinstance(profile, Reference)
    natural = limit if endless else 16 + salt % 512
    output = min(limit, natural)
    reasoning = 0
    if isinstance(profile, Profile) and server.wording.reasoning is not None:
        reasoning = profile.reasoning_tokens
    options = body.stream_options or StreamOptions()
    return Generation(
        server=server,
        prompt_tokens=prompt,
        output_tokens=output,
        reasoning_tokens=min(output, reasoning),
        finish_reason="length" if natural >= limit else "stop",
        priority=body.priority or 0,
        hashes=_blocks(texts, server, salt, output, profile),
        salt=salt,
        stream=bool(body.stream),
        include_usage=bool(options.include_usage),
        continuous_usage=bool(options.include_usage and options.continuous_usage_stats),
    )


def _blocks(
    texts: Sequence[str], server: Server, salt: int, output_tokens: int, profile: Profile | Reference
) -> Sequence[int]:
    """Return the hashes of a request's whole KV blocks, the answer's too; none without a prefix cache."""
    if not isinstance(profile, Profile) or not profile.deployment.prefix_caching:
        return ()
    words = [*(_TEMPLATE if server.template else ()), *(word for text in texts for word in text.split())]
    words += [_ANSWER[_word(salt, position)] for position in range(output_tokens)]
    return hashes(words, profile.deployment.block_size)


def _word(salt: int, position: int) -> int:
    """Return which word an answer has at a position; the stride is odd, so all 64 come before one comes again."""
    return (salt + position * (salt | 1)) & 63


def framed(event: bytes) -> bytes:
    """Return an HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(event), event)


class EventWriter:
    """The bytes of one answer of chat or completions, token by token or whole."""

    def __init__(self, generation: Generation, request_id: str, model: str, created: int) -> None:
        self.cached_tokens: int | None = None  # cached tokens of the prompt, once they are known
        self._generation = generation
        self._reasoning = generation.reasoning_tokens
        self._wording = generation.server.wording
        self._id = self._wording.id + request_id
        self._model, self._created = model, created
        self._stride = generation.salt | 1  # `_word`'s
        opening = msgspec.json.encode(
            {"id": self._id, "object": self._wording.event, "created": created, "model": model, "choices": []}
        )
        self._opening = b"data: " + opening[:-2]  # up to and with the bracket of the choices
        event = self._event(self._wording.token % WORDS[0], None, b"" if generation.continuous_usage else None)
        self._size = len(event)  # bytes without the usage
        self._before, _, self._after = event.rpartition(WORDS[0])
        if generation.continuous_usage:
            self._after = self._after.removesuffix(b"}\n\n")
        else:
            self._before, self._after = b"%x\r\n" % self._size + self._before, self._after + b"\r\n"
        self._loop = b""  # bytes for `run`: the chunks of all 64 words, and again as many as one run has

    def middle(self, position: int) -> bytes:
        """Return `chunk` of a token that is neither the first nor the last: most of them, so this is quick."""
        if position < self._reasoning:
            return framed(self._piece(position, False))
        word = WORDS[(self._generation.salt + position * self._stride) & 63]
        if not self._generation.continuous_usage:
            return b"".join((self._before, word, self._after))
        usage = self._usage(position + 1)
        return b"%x\r\n%s%s%s%s}\n\n\r\n" % (self._size + len(usage), self._before, word, self._after, usage)

    def run(self, position: int, tokens: int, finished: bool) -> bytes | memoryview:
        """Return the events of several tokens that leave at once, the last of which may end the answer."""
        if tokens == 1:
            return self.chunk(position, finished)
        end = position + tokens
        if not position or finished or self._generation.continuous_usage:
            return b"".join(self.chunk(each, finished and each == end - 1) for each in range(position, end))
        size = len(self._before) + len(WORDS[0]) + len(self._after)
        if len(self._loop) < (64 + tokens) * size:
            self._loop = b"".join(map(self.middle, range(64 + tokens)))
        at = (position & 63) * size  # after 64 positions the words come again
        return memoryview(self._loop)[at : at + tokens * size]

    def chunk(self, position: int, finished: bool) -> bytes:
        """Return what leaves with one token: its HTTP chunk, and around it those that have no token."""
        if position and not finished:
            return self.middle(position)
        parts = [framed(event) for event in self._first(position)]
        parts.append(framed(self._piece(position, finished)))
        if finished:
            parts.append(self._last(position + 1))
        return b"".join(parts)

    def lump(self, position: int, tokens: int, finished: bool) -> bytes:
        """Return several tokens, an event each, in one HTTP chunk; what ends the answer has its own."""
        end = position + tokens
        events = self._first(position)
        events += [self._piece(each, finished and each == end - 1) for each in range(position, end)]
        out = framed(b"".join(events))
        return out + self._last(end) if finished else out

    def whole(self) -> bytes:
        """Return the body of an answer that is not streamed."""
        generation = self._generation
        words = [WORDS[_word(generation.salt, each)] for each in range(generation.output_tokens)]
        reasoning, text = (b"".join(part).decode() for part in (words[: self._reasoning], words[self._reasoning :]))
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": generation.finish_reason}
        return msgspec.json.encode(
            {
                "id": self._id,
                "object": self._wording.whole,
                "created": self._created,
                "model": self._model,
                "choices": [choice | self._wording.choice(text, reasoning)],
                "usage": msgspec.Raw(self._final_usage(generation.output_tokens)),
            }
        )

    def _first(self, position: int) -> list[bytes]:
        """Return the events that come before this token's own."""
        opening = self._wording.opening
        if position or opening is None:
            return []
        return [self._event(opening, None, self._usage(0) if self._generation.continuous_usage else None)]

    def _piece(self, position: int, last: bool) -> bytes:
        """Return the event of one token."""
        generation = self._generation
        usage = self._usage(position + 1) if generation.continuous_usage else None
        word = WORDS[_word(generation.salt, position)]
        token = (position < self._reasoning and self._wording.reasoning) or self._wording.token
        return self._event(token % word, generation.finish_reason if last else None, usage)

    def _last(self, tokens: int) -> bytes:
        """Return the chunks that end an answer of so many tokens."""
        end = framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"
        if not self._generation.include_usage:
            return end
        return framed(self._opening + b'],"usage":' + self._final_usage(tokens) + b"}\n\n") + end

    def _event(self, text: bytes, finish: str | None, usage: bytes | None) -> bytes:
        reason = b'"%s"' % finish.encode() if finish else b"null"
        return (
            self._opening
            + b'{"index":0,'
            + text
            + b',"logprobs":null,"finish_reason":'
            + reason
            + (b"}]}\n\n" if usage is None else b'}],"usage":' + usage + b"}\n\n")
        )

    def _usage(self, completion: int) -> bytes:
        prompt = self._generation.prompt_tokens
        usage = b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":null}' % (
            prompt,
            prompt + completion,
            completion,
        )
        if not self._reasoning:
            return usage
        reasoning = min(completion, self._reasoning)
        return b'%b,"completion_tokens_details":{"reasoning_tokens":%d}}' % (usage[:-1], reasoning)

    def _final_usage(self, completion: int) -> bytes:
        """Return the usage of the whole answer: here vLLM says how much of the prompt was cached, and only here."""
        usage = self._usage(completion)
        if self.cached_tokens is None:
            return usage
        return usage.replace(b"null", b'{"cached_tokens":%d}' % self.cached_tokens)


def models(profile: Profile | Reference) -> bytes:
    """Return the body of /v1/models."""
    name, most = profile.model_name, profile.max_model_len
    card = {"id": name, "object": "model", "created": 0, "owned_by": "knee-sim", "root": name, "parent": None}
    card["max_model_len"] = most
    return msgspec.json.encode({"object": "list", "data": [card]})


class Counts:
    """The counters that /metrics publishes; a request that its client cuts is in none of `success`."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.cached_tokens = 0  # prompt tokens from the cache
        self.generation_tokens = 0
        self.success = {"stop": 0, "length": 0, "abort": 0}


def metrics(machine: Machine, counts: Counts, model: str) -> bytes:
    """Return the body of /metrics, under vLLM's names."""
    label = f'engine="0",model_name="{model}"'
    rows = [
        ("num_requests_running", "gauge", machine.running),
        ("num_requests_waiting", "gauge", machine.waiting),
        ("kv_cache_usage_perc", "gauge", machine.kv_usage),
        ("prefix_cache_queries_total", "counter", counts.prompt_tokens),
        ("prefix_cache_hits_total", "counter", counts.cached_tokens),
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
