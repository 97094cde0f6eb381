"""What the servers' events mean: which carry tokens, how many, and how the answer ended. No IO, no clock.

One decoder serves vLLM, SGLang, llama-server, transformers serve and OpenAI, because their streams differ in where
things stand, not in what they are called: a role-only chunk is no token, a reasoning or tool-call delta is; usage
comes in its own chunk, with the finish, or in every chunk; [DONE] may be missing. A stream without finish_reason
was cut: an error, not a success. Requests are built here too, since what may be asked is the dialect's.

Left out: tool-call contents, several choices, the text itself (only its length in bytes is kept).
"""

from __future__ import annotations

import json
from array import array
from typing import Annotated, Any

import msgspec

from harness.load.sse import Events

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
# Asked for where the server takes them; dropped when the first request says that it does not (contract.md).
OPTIONAL = ("ignore_eos", "stream_options.continuous_usage_stats", "stream_options")


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]  # a usage outside this is a lie: a malformed event


class _PromptDetails(msgspec.Struct):
    cached_tokens: _Count | None = None


class _OutputDetails(msgspec.Struct):
    reasoning_tokens: _Count | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _OutputDetails | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_chunk = msgspec.json.Decoder(_Chunk).decode


class Story:
    """One answer, told by its events in order of arrival.

    `feed` takes a body piece with the stamp of the read that brought it; `end` closes the account. Times are
    nanoseconds as given, 0 where a thing has not happened.
    """

    __slots__ = (
        "_counted",
        "_done",
        "_events",
        "_lengths",
        "arrivals",
        "cached_tokens",
        "error",
        "finish_reason",
        "first_content",
        "input_tokens",
        "merged",
        "message",
        "output_tokens",
        "reasoning_tokens",
        "token_source",
        "tokens",
    )

    def __init__(self) -> None:
        self._events = Events()
        self._counted: int | None = None  # the server's running count, where it gives one before the end
        self._done = False
        self._lengths = array("i")
        self.arrivals = array("q")
        self.tokens = array("i")
        self.first_content = 0
        self.merged = 0
        self.error = ""
        self.message = ""
        self.finish_reason = ""
        self.input_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.output_tokens: int | None = None
        self.reasoning_tokens: int | None = None
        self.token_source = ""

    def feed(self, stamp: int, piece: bytes) -> int:
        """Account for one body piece; returns the token-carrying chunks in it."""
        return self._tell(stamp, self._events.feed(piece))

    def _tell(self, stamp: int, events: list[bytes]) -> int:
        before = len(self.arrivals)
        for data in events:
            if data == b"[DONE]":
                self._done = True
                continue
            try:
                chunk = _chunk(data)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:  # ValidationError is a DecodeError
                self._fail("malformed_event", f"{error}: {data[:120]!r}")
                continue
            self._hear(stamp, chunk)
        carried = len(self.arrivals) - before
        if carried > 1:
            self.merged += carried
        return carried

    def _hear(self, stamp: int, chunk: _Chunk) -> None:
        if chunk.error is not None:
            self._fail("stream_error", str(chunk.error)[:200])
            return
        length, answer, finish = 0, False, False
        if chunk.choices:
            choice = chunk.choices[0]
            if choice.finish_reason:
                self.finish_reason, finish = choice.finish_reason, True
            delta = choice.delta
            if delta is not None:
                answer = bool(delta.content or delta.refusal or delta.tool_calls)
                # Lengths in characters stand for bytes: they only share out a total.
                length = (
                    len(delta.content or "")
                    + len(delta.reasoning_content or delta.reasoning or "")
                    + len(delta.refusal or "")
                    + sum(len(bytes(call)) for call in delta.tool_calls or ())
                )
            if choice.text:
                answer, length = True, length + len(choice.text)
        count = None
        if chunk.usage is not None:
            count = self._usage(chunk.usage, final=not chunk.choices)
        if count is not None:
            if self._counted is None and not self.arrivals and not finish:
                self._counted = 0  # it counts from the first chunk on; usage that only comes with the finish does not
            if self._counted is not None:
                # Text without a rise is kept as 0 tokens for now: `settle` sees whether the count can be trusted.
                if count > self._counted or length:
                    self._arrive(stamp, max(0, count - self._counted), length, answer)
                    self._counted = max(count, self._counted)
                return
        if length:
            self._arrive(stamp, 1, length, answer)

    def _usage(self, usage: _Usage, *, final: bool) -> int | None:
        """Take the server's figures; returns the running count when this chunk can carry tokens."""
        if usage.prompt_tokens is not None:
            self.input_tokens = usage.prompt_tokens
        if usage.prompt_tokens_details is not None:
            self.cached_tokens = usage.prompt_tokens_details.cached_tokens
        if usage.completion_tokens_details is not None:
            self.reasoning_tokens = usage.completion_tokens_details.reasoning_tokens
        if usage.completion_tokens is not None:
            self.output_tokens = usage.completion_tokens
            return None if final else usage.completion_tokens
        return None

    def _arrive(self, stamp: int, tokens: int, length: int, answer: bool) -> None:
        self.arrivals.append(stamp)
        self.tokens.append(tokens)
        self._lengths.append(length)
        if answer and not self.first_content:
            self.first_content = stamp

    def _fail(self, error: str, message: str) -> None:
        if not self.error:
            self.error, self.message = error, message

    def end(self, stamp: int) -> None:
        """The body is over: the last unfinished event, then the verdict on the stream and its token counts."""
        self._tell(stamp, self._events.end())
        if not self.finish_reason:
            self._fail("truncated", "the stream ended without finish_reason")
        self.settle()

    def settle(self) -> None:
        """Decide where each token arrived: running usage, else one a chunk, else usage shared by text length."""
        if self._counted is not None and not self._trusted():
            self._counted = None
            self._keep([i for i, length in enumerate(self._lengths) if length])
            self.tokens = array("i", [1]) * len(self.arrivals)
        chunks, usage = len(self.arrivals), self.output_tokens
        if not chunks:
            self.token_source = ""
        elif self._counted is not None:
            self.token_source = "continuous"
            if 0 in self.tokens:
                self._keep([i for i, tokens in enumerate(self.tokens) if tokens])
        elif usage is None or usage == chunks or self.error:
            self.token_source = "chunks"
            if usage is None and not self.error:
                self.output_tokens = chunks
        else:
            self.token_source = "bytes"
            self.tokens = _shared(usage, self._lengths)
        if self.error and self.output_tokens is None:
            self.output_tokens = sum(self.tokens)

    def _keep(self, chunks: list[int]) -> None:
        self.arrivals = array("q", [self.arrivals[i] for i in chunks])
        self.tokens = array("i", [self.tokens[i] for i in chunks])
        self._lengths = array("i", [self._lengths[i] for i in chunks])

    def _trusted(self) -> bool:
        """Whether the running count ran: some servers send 0, or each chunk's own, until the end."""
        silent = sum(1 for tokens, length in zip(self.tokens, self._lengths, strict=True) if length and not tokens)
        return silent <= max(1, len(self.tokens) // 10)


def _shared(total: int, lengths: array[int]) -> array[int]:
    """A total shared out by length, whole numbers that add up to it; chunks that get none keep a 0."""
    whole, out, given, seen = max(1, sum(lengths)), array("i"), 0, 0
    for length in lengths:
        seen += length
        upto = total * seen // whole
        out.append(upto - given)
        given = upto
    return out


def body(
    api: str,
    model: str,
    output_tokens: int,
    *,
    drop: frozenset[str] = frozenset(),
    extra: dict[str, Any] | None = None,
    stream: bool = True,
) -> tuple[bytes, bytes]:
    """The JSON of a request around its prompt: (before, after); the prompt's JSON string goes between.

    >>> before, after = body("completions", "toy", 8)
    >>> json.loads(before + b'"hi"' + after)["prompt"]
    'hi'
    """
    fields: dict[str, Any] = {"model": model, "max_tokens": output_tokens, "stream": stream, "temperature": 0.0}
    if "ignore_eos" not in drop:
        fields["ignore_eos"] = True  # the length that was asked for, not the length that the model likes
    if stream and "stream_options" not in drop:
        options = {"include_usage": True}
        if "stream_options.continuous_usage_stats" not in drop:
            options["continuous_usage_stats"] = True
        fields["stream_options"] = options
    fields.update(extra or {})
    mark = "\x00prompt\x00"
    fields |= {"messages": [{"role": "user", "content": mark}]} if api == "chat" else {"prompt": mark}
    before, after = json.dumps(fields).split(json.dumps(mark))
    return before.encode(), after.encode()


def refused_field(message: str, drop: frozenset[str]) -> str | None:
    """Which optional field a 400 or 422 complains about, if it names one that is still sent.

    >>> refused_field("Unknown field 'ignore_eos'", frozenset())
    'ignore_eos'
    """
    for name in OPTIONAL:
        if name not in drop and name.rpartition(".")[2] in message:
            return name
    return None


def http_error(status: int, message: str) -> str:
    """The error name of an answer that is no stream: http_429, http_4xx, http_5xx, or oom where it says so."""
    if "out of memory" in message.lower():
        return "oom"
    return "http_429" if status == 429 else f"http_{status // 100}xx"
