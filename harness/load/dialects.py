"""What the servers' events mean: which carry tokens, how many, and how the answer ended. No IO, no clock.

One decoder serves vLLM, SGLang, llama-server, transformers serve and OpenAI, because their streams differ in where
things stand, not in what they are called: a role-only chunk is no token, a reasoning or tool-call delta is; usage
comes in its own chunk, with the finish, or in every chunk; [DONE] may be missing. A stream without finish_reason
was cut: an error, not a success. Requests are built here too, since what may be asked is the dialect's.

Streams also lie. A count that cannot be is a malformed event, one that can is recorded as it was told; an error is
one wherever it stands; no bytes raise anything but ProtocolError.

Decoding is the dearest thing on the measured path and an answer may be long, so the common event takes few steps and
a token costs some 11 bytes: its stamp, its length, and its count only once some count is not 1.

Left out: several choices, and what the text says; it is kept, until the answer is over, only for a tokenizer.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterable
from itertools import accumulate, compress, pairwise
from typing import Annotated, Any

import msgspec

from harness.load.http1 import ProtocolError
from harness.load.sse import TOO_LONG, Events
from harness.load.tokens import Placer

PATHS = {"chat": "/chat/completions", "completions": "/completions"}  # below the API's root, which is most often /v1
# Asked for where the server takes them; dropped when the first request says that it does not
# (docs/definitions.md, Words of a run).
OPTIONAL = ("ignore_eos", "stream_options.continuous_usage_stats", "stream_options")
# These every server knows, and names in other complaints too ("max_tokens is too large"): dropped only if refused.
REFUSABLE = ("max_tokens", "temperature")
_REFUSED = re.compile(
    r"unsupported|not support|not allowed|not permitted|unknown|unexpected|unrecognized|extra inputs|deprecated", re.I
)
_LONGEST_REASON = 64  # characters of a finish_reason that are kept
_NO_ERROR = (b"null", b'""', b"{}", b"[]", b"false")  # what `error` may be where there is none
_FOREIGN = 0.05  # a tokenizer that finds this much more than usage counts is not the server's


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]  # a usage outside this is a lie: a malformed event


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: _Count | None = None


class _OutputDetails(msgspec.Struct, gc=False):
    reasoning_tokens: _Count | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _OutputDetails | None = None


class _Timings(msgspec.Struct, gc=False):
    cache_n: _Count | None = None  # llama-server's: prompt tokens that a slot had from the request before


_ABSENT = msgspec.Raw()


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: msgspec.Raw = _ABSENT  # not decoded: it may be anything, as deep as it likes
    timings: msgspec.Raw = _ABSENT  # likewise, but for llama-server's count


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    function: _Function


_chunk = msgspec.json.Decoder(_Chunk).decode
_call = msgspec.json.Decoder(_Call).decode
_timings = msgspec.json.Decoder(_Timings).decode


class Story:
    """One answer, told by its events in order of arrival.

    `feed` takes a body piece with the stamp of the read that brought it; `end` closes the account. Times are
    nanoseconds as given, 0 where a thing has not happened. `feed` raises ProtocolError where the stream cannot be read
    on; nothing else leaves it. A placer settles which chunk holds how many tokens
    where neither running usage nor the count of chunks does.
    """

    __slots__ = (
        "_answered",
        "_counted",
        "_done",
        "_empty",
        "_events",
        "_lengths",
        "_placer",
        "_reasoned",
        "_text",
        "_tokens",
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
    )

    def __init__(self, placer: Placer | None = None) -> None:
        self._events = Events()
        self._placer = placer
        self._text = bytearray() if placer is not None else None  # UTF-8; dropped when usage is seen to run
        self._counted: int | None = None  # the server's running count, where it gives one before the end
        self._answered = -1  # the first chunk that carries some of the answer, not of the reasoning
        self._done: int | None = None  # chunks before the first [DONE]
        self._empty = 0  # chunks after the first token that showed none of their own
        self._reasoned = False
        self._lengths = array("H")  # of each chunk's text, in bytes
        self._tokens: array[int] | None = None  # of each chunk; None while each has one
        self.arrivals = array("q")
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

    @property
    def tokens(self) -> array[int]:
        """Tokens in each chunk, int32, shape [chunks]."""
        return array("i", [1]) * len(self.arrivals) if self._tokens is None else self._tokens

    def packed_tokens(self) -> bytes:
        """Tokens as a record keeps them: int32 a chunk, empty where each chunk has one."""
        return b"" if self._tokens is None else self._tokens.tobytes()

    def feed(self, stamp: int, piece: bytes) -> int:
        """Account for one body piece; returns the token-carrying chunks in it."""
        carried = 0
        for data in self._events.feed(piece):
            try:
                chunk = _chunk(data)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # nested as deep as it likes
                self._no_chunk(data, error)
                continue
            carried += self._hear(stamp, chunk)
        if carried > 1:
            self.merged += carried
        return carried

    def _hear(self, stamp: int, chunk: _Chunk) -> int:
        """Account for one chunk; returns 1 if it carried tokens, else 0. Calls cost: it makes none."""
        if chunk.error is not _ABSENT and (said := bytes(chunk.error)) not in _NO_ERROR:
            self._fail("stream_error", said[:200].decode("utf-8", "replace"))
            return 0
        count = None
        if (usage := chunk.usage) is not None:
            if usage.prompt_tokens is not None:
                self.input_tokens = usage.prompt_tokens
            if (count := usage.completion_tokens) is not None:
                self.output_tokens = count
            if usage.prompt_tokens_details is not None:
                self.cached_tokens = usage.prompt_tokens_details.cached_tokens
            if usage.completion_tokens_details is not None:
                self.reasoning_tokens = usage.completion_tokens_details.reasoning_tokens
        if chunk.timings is not _ABSENT and self.cached_tokens is None:
            self.cached_tokens = _cached(chunk.timings)
        if not chunk.choices:
            return 0
        choice = chunk.choices[0]
        finish = choice.finish_reason
        if finish:
            self.finish_reason = finish[:_LONGEST_REASON]

        delta = choice.delta
        text = answer = (choice.text if delta is None else delta.content) or ""
        if delta is not None and not (
            delta.reasoning_content is None
            and delta.reasoning is None
            and delta.refusal is None
            and delta.tool_calls is None
        ):
            answer += (delta.refusal or "") + "".join(map(_called, delta.tool_calls or ()))
            text = (delta.reasoning_content or delta.reasoning or "") + answer
            self._reasoned = self._reasoned or text != answer

        tokens, counted = 1, self._counted
        if counted is None and count is not None and not self.arrivals and not finish:
            counted = 0  # it counts from the first chunk on; usage that only comes with the finish does not
        if counted is not None:
            # Text without a rise is kept as 0 tokens for now: `settle` sees whether the count can be trusted. Text
            # in a chunk that the running usage leaves out is a token, which the next count holds too.
            tokens = (1 if text else 0) if count is None else count - counted if count > counted else 0
            self._counted = counted + tokens
            if not text and not tokens:
                return 0
        elif not text:
            self._empty += bool(self.arrivals)
            return 0

        length = len(text) if text.isascii() else len(text.encode())
        try:
            self._lengths.append(length)
        except OverflowError:  # 64 KiB of text in one chunk
            self._lengths = array("I", self._lengths)
            self._lengths.append(length)
        if tokens != 1 and self._tokens is None:
            self._tokens = array("i", [1]) * len(self.arrivals)
        if self._tokens is not None:
            self._tokens.append(tokens)
        self.arrivals.append(stamp)
        if self._answered < 0 and answer:
            self._answered = len(self.arrivals) - 1
        if self._text is not None:
            if counted and tokens:
                self._text = None  # usage has risen more than once: it runs
            else:
                self._text += text.encode()
        return 1

    def _no_chunk(self, data: bytes, why: Exception) -> None:
        """Account for an event that is no chunk: the end mark, nothing at all, an error, or garbage."""
        if data == TOO_LONG:
            self._fail("line_too_long", "an event longer than 4 MiB, or too many of them at once")
            raise ProtocolError(self.message, self.error)
        data = data.strip()
        if data == b"[DONE]":
            if self._done is None:
                self._done = len(self.arrivals)
        elif data.startswith(b"error:"):
            self._fail("stream_error", data[6:200].decode("utf-8", "replace").strip())
        elif data:
            self._fail("malformed_event", f"{why}: {data[:120]!r}")

    def _fail(self, error: str, message: str) -> None:
        if not self.error:
            self.error, self.message = error, message

    def end(self, stamp: int) -> None:
        """The body is over: the last unfinished event, then the verdict on the stream and its token counts."""
        try:
            self.feed(stamp, b"\n\n")  # the blank line that several servers leave out
        except ProtocolError:  # it is told already
            pass
        if not self.finish_reason:
            self._fail("truncated", "the stream ended without finish_reason")
        elif self._done is not None and len(self.arrivals) > self._done:
            self._fail("malformed_event", "tokens after [DONE]")
        self.settle()

    def settle(self) -> None:
        """Decide where each token arrived: running usage, one a chunk, the tokenizer, usage by bytes.

        That is token_source in docs/definitions.md, Columns of requests.parquet.
        """
        if self._counted is not None and not self._trusted():
            self._keep(self._lengths)
            self._counted = self._tokens = None
        chunks, usage = len(self.arrivals), self.output_tokens or None  # 0 for a text that came is a placeholder
        if not chunks:
            self.token_source = ""
        elif self._counted is not None:
            self.token_source = "continuous"
        elif usage is None or usage in (chunks, chunks + self._empty) or self.error:
            # The tokens of chunks that showed nothing have no arrival: an end of text, part of a character.
            self.token_source = "chunks"
            if usage is None and not self.error:
                self.output_tokens = chunks
        elif (placed := self._placed(usage)) is not None:
            self.token_source, self._tokens = "tokenizer", placed
        else:
            # No token is shorter than a byte: what goes beyond was not in this text, and stays unplaced.
            self.token_source, self._tokens = "bytes", _shared(min(usage, sum(self._lengths)), self._lengths)
        if self._tokens is not None:
            self._keep(self._tokens)
            if self._tokens.count(1) == len(self._tokens):
                self._tokens = None
        if self.error and self.output_tokens is None:
            self.output_tokens = sum(self.tokens)
        self._settle_content()
        self._lengths, self._text = array("H"), None  # a finished answer is its arrivals and no more

    def _keep(self, marks: Iterable[int]) -> None:
        """Only the chunks whose mark is not 0."""
        marks = bytes(map(bool, marks))
        if 0 in marks:
            if self._answered > 0:
                self._answered = sum(marks[: self._answered])
            self.arrivals = array("q", compress(self.arrivals, marks))
            self._lengths = array(self._lengths.typecode, compress(self._lengths, marks))
            if self._tokens is not None:
                self._tokens = array("i", compress(self._tokens, marks))

    def _trusted(self) -> bool:
        """Whether the running count ran: some servers send 0, or each chunk's own, until the end."""
        if self._tokens is None:
            return True
        silent = sum(1 for tokens, length in zip(self._tokens, self._lengths, strict=True) if length and not tokens)
        return silent <= max(1, len(self._tokens) // 10)

    def _placed(self, usage: int) -> array[int] | None:
        """Tokens of each chunk by the tokenizer; None without one, or where it finds more than the server counts."""
        if self._placer is None or self._text is None:
            return None
        ends = accumulate(self._lengths, initial=0)
        placed = self._placer.counts([self._text[a:b].decode() for a, b in pairwise(ends)])
        # Fewer is what the text does not show (markers, hidden reasoning) and stays unplaced.
        return array("i", placed) if 0 < sum(placed) <= usage + max(1, int(_FOREIGN * usage)) else None

    def _settle_content(self) -> None:
        """Without reasoning the answer begins with the first token; else with a chunk that is still there."""
        answered = self._answered if self._reasoned else 0
        if 0 <= answered < len(self.arrivals):
            self.first_content = self.arrivals[answered]


def _cached(timings: msgspec.Raw) -> int | None:
    """Prompt tokens that were not computed, by llama-server's timings; None where they do not say."""
    try:
        return _timings(timings).cache_n
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _called(call: msgspec.Raw) -> str:
    """The text of a tool call's delta as the model writes it; where it shows none, the JSON stands for it."""
    try:
        function = _call(call).function
        if text := (function.name or "") + (function.arguments or ""):
            return text
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    return bytes(call).decode("utf-8", "replace")


def _shared(total: int, lengths: array[int]) -> array[int]:
    """A total shared out by length: whole numbers that add up to it, none of them 0 where there is enough for all.

    >>> _shared(6, array("H", [4, 2])), _shared(3, array("H", [100, 1, 1])), _shared(1, array("H", [2, 2]))
    (array('i', [4, 2]), array('i', [1, 1, 1]), array('i', [1, 0]))
    """
    whole, left, out, given, seen = sum(lengths), len(lengths), array("i"), 0, 0
    enough = total >= left
    for length in lengths:
        seen += length
        left -= 1
        upto = -(-total * seen // whole)
        if enough:
            upto = min(max(upto, given + 1), total - left)
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
    most = "max_completion_tokens" if "max_tokens" in drop else "max_tokens"
    fields: dict[str, Any] = {"model": model, most: output_tokens, "stream": stream}
    if "temperature" not in drop:
        fields["temperature"] = 0.0
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
    >>> refused_field("'max_tokens' is not supported: use 'max_completion_tokens'", frozenset())
    'max_tokens'
    """
    for name in OPTIONAL:
        if name not in drop and name.rpartition(".")[2] in message:
            return name
    if _REFUSED.search(message):
        for name in REFUSABLE:
            if name not in drop and re.search(rf"\b{name}\b", message):
                return name
    return None


def plain(text: str) -> str:
    """What shows of a server's words, on one line: so that a secret in them is not cut up by what does not.

    >>> plain("no such\\tkey: s\\x003\\x1bcret")
    'no such key: s3cret'
    """
    return " ".join("".join(c for c in text if c.isprintable() or c.isspace()).split())


def http_error(status: int, message: str) -> str:
    """The error name of an answer that is no stream: http_429, http_4xx, http_5xx, or oom where it says so."""
    if "out of memory" in message.lower():
        return "oom"
    return "http_429" if status == 429 else f"http_{min(status // 100, 5)}xx"  # RFC 9110, 15: beyond 599 is a 5xx
