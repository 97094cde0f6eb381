"""What the servers' events mean: which carry tokens, how many, and how the response ended. No IO, no clock.

One decoder serves every API that streams an answer. The streams of vLLM, SGLang, llama-server, transformers serve and
OpenAI differ in where a field is, not in its name: a role-only chunk is no token, a reasoning or tool-call delta is;
usage comes in its own chunk, with the finish, or in every chunk; [DONE] may be missing. Another API brings its own
`events`, which parts bytes into events, and `read`, which reads an event as such a chunk.

An answer is whole if two of finish_reason, final usage, [DONE] and the body's own end came, unless the API ends none
with a reason. Errors are: an answer that was cut, an answer without a token, whatever else it says, and an answer whose
finish_reason says that the server gave it up.

Counts may be wrong: an impossible one is left out, any other is recorded as it came. An error counts in any place,
and no bytes raise anything but ProtocolError. What was measured in spite of an oddity is noted
(docs/definitions.md, Columns of requests.parquet).

Decoding costs most on the measured path and a response may be long, so the common event takes few steps and a token
takes some 11 bytes: its stamp, its length, and its count only once some count is not 1.

Left out: several choices, which are an error. The text is kept only on request, and for a tokenizer until the response
is over.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

import msgspec

from harness.base.errors import ProtocolError
from harness.dialects import sse
from harness.dialects.chunk import (
    ABSENT,
    Chunk,
    cached_tokens,
    call_text,
    join_parts,
    output_tokens,
    read_chunk,
    salvage,
)
from harness.dialects.sse import JSON, TOO_LONG, DocumentParser, EventParser
from harness.dialects.tokens import Shown, TokenPlacer
from harness.dialects.unlisted import UNREADABLE, counts, look

_LONGEST_TEXT = 16 << 20  # characters of an answer whose text is kept; what goes beyond is left out of it
# Token-carrying chunks of an answer, some 11 bytes each, unless it asked for more tokens: no model's answer is so long,
# and a worker's memory is bounded by it if a server's answer never ends.
MOST_CHUNKS = 1 << 20
_LONGEST_REASON = 64  # characters of a finish_reason that are kept
NO_ERROR = (b"null", b'""', b"{}", b"[]", b"false")  # what `error` may be if there is none
# `finish_reason` of an answer that failed: vLLM and SGLang; LMDeploy and OpenRouter; TensorRT-LLM, two; DeepSeek.
_FAILED = frozenset(("abort", "error", "cancelled", "timeout", "insufficient_system_resource"))
_NO_REASON = frozenset(("null", "None", "none"))  # words for a reason that has not come: KoboldCpp, Triton
# What a reasoning begins with that is in the answer's text: Qwen and DeepSeek, Magistral, Kimi, Seed, gpt-oss.
_OPENINGS = ("<think>", "<thinking>", "<thought>", "<reasoning>", "<reason>", "[think]", "◁think▷", "<seed:think>",
             "<|channel|>analysis")  # fmt: skip
_LONGEST_USUAL = 65_536  # bytes of an event that is accounted for elsewhere
_LONGEST_WORDS = 200  # characters of what a server says in place of an answer


Parser = EventParser | DocumentParser  # parts the bytes of a body into events

# How to account for usual chunks elsewhere: `extend`; bytes of the longest event; the begun event; the running count,
# input and output tokens; whether the answer has begun, and whether there was a reasoning; the most chunks.
Usual = tuple[Callable[..., None], int, bytes, int | None, int | None, int | None, bool, bool, int]


class DecodedResponse(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One response, decoded; times are the stamps of `feed` in nanoseconds, 0 if a thing has not happened."""

    arrivals: array[int]  # int64, of each chunk that carried tokens
    token_counts: array[int] | None = None  # int32, of each chunk; None: one each
    token_source: str = ""
    first_content: int = 0
    merged: int = 0  # chunks that shared a read with another
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    finish_reason: str = ""
    error: str = ""
    message: str = ""  # message of the error
    text: str = ""  # text of the answer without its reasoning; "" unless it was to be kept
    noted: tuple[str, ...] = ()  # codes of oddities in spite of which it was measured

    @property
    def tokens(self) -> array[int]:
        """Return the tokens in each chunk, int32, shape [chunks]."""
        return array("i", [1]) * len(self.arrivals) if self.token_counts is None else self.token_counts

    def packed_tokens(self) -> bytes:
        """Return the tokens as a record keeps them: int32 a chunk, empty where each chunk has one."""
        return b"" if self.token_counts is None else self.token_counts.tobytes()


class StreamDecoder(Shown):
    """Decodes the events of one response in order of arrival; `end` returns the result.

    `feed` takes a body piece with the stamp of its read; it raises ProtocolError if the rest cannot be read, and
    nothing else. A placer decides which chunk has how many tokens where usage neither runs nor equals the count of
    chunks. `keep_text` keeps the response's text. `asked` is the count of tokens that the request asked for. `read`
    reads an event, `events` parts the bytes into events, `finishes` says whether the API ends a response with a reason.
    """

    __slots__ = (
        "_answer", "_aside", "_cached_tokens", "_done", "_events", "_final", "_finishes", "_input_tokens", "_is_usual",
        "_keeps_text", "_kept", "_merged", "_most", "_opening", "_other_usage", "_read", "_silent", "_watches",
        "_words", "came_whole", "media",
    )  # fmt: skip

    def __init__(
        self,
        placer: TokenPlacer | None = None,
        *,
        keep_text: bool = False,
        asked: int | None = None,
        read: Callable[[bytes], Chunk] = read_chunk,
        events: Callable[[], Parser] = EventParser,
        finishes: bool = True,
    ) -> None:
        super().__init__(placer, asked)
        self._events = events()
        self._is_usual = read is read_chunk and events is EventParser
        self._read, self._finishes = read, finishes
        self.media = self._events.media
        self._most = max(MOST_CHUNKS, asked or 0)
        self.came_whole = False  # only the body's own end is still to come
        self._answer: list[str] | None = [] if keep_text else None
        self._kept = 0  # characters of `_answer`
        self._opening: str | None = ""  # start of the answer, while it may still be a tag that begins reasoning
        self._keeps_text = keep_text or placer is not None  # or for the opening
        self._watches = True  # the answer has not begun, or its text is kept
        self._done: int | None = None  # chunks before the first [DONE]
        self._final = 0  # chunks before the last usage that brought no token and does not run
        self._silent = True  # no event but the end mark has come
        self._other_usage = b""  # the last event that ends or shows nothing, and may count in names of its own
        self._words = self._aside = ""  # text of an error in place of an answer; text of what is no JSON object
        self._merged = 0
        self._input_tokens: int | None = None
        self._cached_tokens: int | None = None

    def feed(self, data: bytes | None, stamp_ns: int) -> int:
        """Account for one body piece, None at the end; return the token-carrying chunks in it.

        Raise ProtocolError once there are more chunks than any response has.
        """
        if len(self._arrivals) > self._most:  # it has been given up
            return 0
        carried, events, read = 0, self._events, self._read
        for event in events.end() if data is None else events.feed(data):
            try:
                chunk = read(event)
            except UNREADABLE as error:
                carried += self._no_chunk(event, error, stamp_ns)
                continue
            carried += self._account(chunk, stamp_ns, event)
        if carried > 1:
            self._merged += carried
        if len(self._arrivals) > self._most:
            self._fail("endless", f"more than {self._most:,} chunks, and no end")
            raise ProtocolError(self._message, self._error)
        return carried

    def usual(self) -> Usual | None:
        """Return the state with which other code accounts for chunks that bring text and nothing else of note.

        None if the next chunks are not of that kind, or the API has none. The kept part of a begun event leaves with
        the state.
        """
        if not self._is_usual or self._keeps_text or not self._arrivals or self.came_whole:
            return None
        assert isinstance(self._events, EventParser)
        longest = min(sse.LONGEST // 4, _LONGEST_USUAL)
        if (tail := self._events.release(longest)) is None:
            return None
        return (
            self.extend, longest, tail, self._counted, self._input_tokens, self._output_tokens, self._answered >= 0,
            self._reasoned, self._most - len(self._arrivals),
        )  # fmt: skip

    def extend(
        self,
        stamps: bytes,
        lengths: bytes,
        counts: bytes | None,
        counted: int | None,
        input_tokens: int | None,
        output_tokens: int | None,
        reasoned: bool,
        merged: int,
    ) -> None:
        """Take chunks that were accounted for elsewhere: int64, uint16 and int32 each, and what is known after them."""
        if self._lengths.typecode == "H":
            self._lengths.frombytes(lengths)
        else:
            self._lengths.extend(array("H", lengths).tolist())  # an array takes only those of its own kind
        if counts is not None or self._tokens is not None:
            if self._tokens is None:
                self._tokens = array("i", [1]) * len(self._arrivals)
            self._tokens.extend(array("i", [1]) * (len(stamps) // 8) if counts is None else array("i", counts))
        self._arrivals.frombytes(stamps)
        self._counted, self._input_tokens, self._output_tokens = counted, input_tokens, output_tokens
        self._reasoned = reasoned
        self._merged += merged

    def _account(self, chunk: Chunk, stamp_ns: int, event: bytes) -> int:
        """Account for one chunk; return 1 if it carried tokens, else 0. It makes few calls, since these cost time."""
        if chunk.error is not ABSENT and (error := bytes(chunk.error)) not in NO_ERROR:
            self._fail("stream_error", error[:200].decode("utf-8", "replace"))
            return 0
        count = None
        if (usage := chunk.usage) is not None:
            if usage.prompt_tokens or self._input_tokens is None:  # a later 0 is a placeholder, of both
                self._input_tokens = usage.prompt_tokens
            count = usage.completion_tokens
            if usage.prompt_tokens_details is not None:
                self._cached_tokens = usage.prompt_tokens_details.cached_tokens
            if usage.completion_tokens_details is not None:
                self._reasoning_tokens = reasoning = usage.completion_tokens_details.reasoning_tokens
                if reasoning:
                    count = output_tokens(usage, reasoning)
            if count or self._output_tokens is None:
                self._output_tokens = count
        if chunk.timings is not ABSENT and self._cached_tokens is None:
            self._cached_tokens = cached_tokens(chunk.timings)
        if choices := chunk.choices:
            choice = choices[0]
            if (delta := choice.delta) is None:
                text = answer = choice.text or ""
            elif type(content := delta.content) is str:
                text = answer = content
            else:
                text = answer = join_parts(choice)
            if delta is not None and not (
                delta.reasoning_content is None
                and delta.reasoning is None
                and delta.refusal is None
                and delta.tool_calls is None
            ):
                answer += (delta.refusal or "") + "".join(map(call_text, delta.tool_calls or ()))
                text = (delta.reasoning_content or delta.reasoning or "") + answer
                self._reasoned = self._reasoned or text != answer
            if finish := choice.finish_reason:
                finish = self._finish(finish, text, chunk, event)
        else:
            text = answer = finish = ""

        if count is None and (finish or not text) and b"oken" in event:
            self._other_usage = event
        if not text:
            if count is not None and (self._counted is None or not choices):
                self._final, self._usage = len(self._arrivals), usage
            text, is_role = self._look_again(event)
            if not text and not choices:
                return 0
            if is_role and count is not None and not self._arrivals:
                count = 0  # what it counts is the token that is still to come

        tokens, counted = 1, self._counted
        if count is not None or counted is not None or not text:  # else it is one token, as nearly every chunk is
            if counted is None and count is not None and not self._arrivals and not finish:
                counted = 0  # it counts from the first chunk on; usage that only comes with the finish does not
            if counted is not None:
                # Text without a rise is kept as 0 tokens for now: `_settle` sees whether the count can be trusted. Text
                # in a chunk that the running usage leaves out is a token, which the next count holds too.
                tokens = (1 if text else 0) if count is None else count - counted if count > counted else 0
                self._counted = counted + tokens
                if not text and not tokens:
                    return 0
            elif not text:
                self._empty += bool(self._arrivals)
                return 0

        length = len(text) if text.isascii() else len(text.encode())
        try:
            self._lengths.append(length)
        except OverflowError:  # 64 KiB of text in one chunk
            self._lengths = array("I", self._lengths)
            self._lengths.append(length)
        if self._tokens is not None:
            self._tokens.append(tokens)
        elif tokens != 1:
            self._tokens = array("i", [1]) * len(self._arrivals)
            self._tokens.append(tokens)
        self._arrivals.append(stamp_ns)
        if self._watches:
            if self._answered < 0 and answer:
                self._answered = len(self._arrivals) - 1
                self._keeps_text = True
            if self._keeps_text:
                # Usage that has risen more than once runs.
                self._keep_text(text, answer, runs=bool(counted and tokens and count is not None))
            self._watches = self._answered < 0 or self._keeps_text
        return 1

    def _finish(self, reason: str, text: str, chunk: Chunk, event: bytes) -> str:
        """Record the reason for which the response ended and return it; "" if this chunk gives none.

        Several choices, or a reason that means a failure, are recorded as the response's error, the latter with the
        chunk's `text` where no token came before.
        """
        if reason in _NO_REASON:
            return ""
        self._usage = chunk.usage
        if len(chunk.choices or ()) > 1 or (self._finish_reason and look(event).choice):
            self._fail("several_choices", "several choices are not measured: leave n out")
        self._finish_reason = reason[:_LONGEST_REASON]
        if reason in _FAILED:
            detail = f": {text[:200]}" if text and not self._arrivals else ""  # LMDeploy's reason, in words
            self._fail("stream_error", f"the server ended it: {reason}{detail}")
        return reason

    def _look_again(self, event: bytes) -> tuple[str, bool]:
        """Return (text in unlisted fields of an event without any in known ones, whether it only names a role)."""
        found, self._silent = look(event), False
        if found.text:
            self._unlisted.append(len(self._arrivals))
            self._field = self._field or found.field
        self._words = self._words or found.words[:_LONGEST_WORDS]
        if not (found.text or self._arrivals or self._finish_reason or b'"role"' in event):
            self._aside = event[:_LONGEST_WORDS].decode("utf-8", "replace")
        return found.text, found.role and not found.text

    def _keep_text(self, text: str, answer: str, *, runs: bool) -> None:
        """Keep a chunk's text for what needs it: the check for a reasoning's opening tag, the answer, the tokenizer.

        Text for the tokenizer goes once the server's running usage counts tokens (`runs`), or when it gets too long.
        """
        if self._opening is not None:  # it may be that of a reasoning, whose end nobody tells
            self._opening = opening = (self._opening + answer[: len(_OPENINGS[-1])]).lstrip().lower()
            if opening.startswith(_OPENINGS):
                self._note("think")
            if "think" in self._noted or not any(each.startswith(opening) for each in _OPENINGS):
                self._opening = None
        if self._answer is not None and self._kept < _LONGEST_TEXT:
            self._answer.append(answer)
            self._kept += len(answer)
        if runs:
            self._text = None
        elif self._text is not None:
            self._text += text.encode()
            if len(self._text) > _LONGEST_TEXT:
                self._text = None
        self._keeps_text = not (self._opening is None and self._answer is None and self._text is None)

    def _no_chunk(self, event: bytes, why: Exception, stamp_ns: int) -> int:
        """Account for an event that cannot be read as a chunk: an end mark, an error, a comment, or a damaged chunk.

        Return 1 if a chunk in it could be saved and carried tokens, else 0. Raise ProtocolError for too long an
        event.
        """
        if event == TOO_LONG:
            self._fail("line_too_long", "an event longer than 4 MiB, or too many of them at once")
            raise ProtocolError(self._message, self._error)
        data = event.strip()
        while data.startswith(b"data:"):
            data = data[5:].strip()
            self._note("data_twice")
        if data.strip(b"\"'").upper() in (b"[DONE]", b"DONE"):
            if self._done is None:
                self._done = len(self._arrivals)
                self.came_whole = self._marks() > 1
        elif data.startswith(b"error:"):
            self._fail("stream_error", data[6:200].decode("utf-8", "replace").strip())
        elif b"{" not in data and self.media != JSON:  # no chunk of any API: a comment, a date, null
            if data and not data.startswith(b":"):
                self._note("left_out:event")
                self._aside = self._aside or data[:_LONGEST_WORDS].decode("utf-8", "replace")
        elif (found := salvage(data, self._read)) is None:
            self._fail("malformed_event", f"{why}: {data[:120]!r}")
        else:
            chunk, event, left_out = found
            for each in left_out:
                self._note(f"left_out:{each}")
            return self._account(chunk, stamp_ns, event)
        return 0

    def _marks(self) -> int:
        """Return how many marks of an end have come in the body."""
        usage = 0 < self._final == len(self._arrivals)
        return bool(self._finish_reason) + usage + (self._done is not None)

    def end(self, stamp_ns: int, *, ended: bool = True) -> DecodedResponse:
        """End the body: account for the last unfinished event, then judge the stream and settle its counts.

        `ended`: it came to its own end, not to that of its connection.
        """
        try:
            self.feed(None, stamp_ns)
        except ProtocolError:  # `_error` has it already
            pass
        if self._finishes or not self._arrivals or not ended:
            self._judge_end(ended)
        if self._done is not None and len(self._arrivals) > self._done:
            self._fail("malformed_event", "tokens after [DONE]")
        if self._input_tokens is self._output_tokens is None and (found := counts(self._other_usage)) is not None:
            self._input_tokens, self._output_tokens, name = found
            self._note(f"other_usage:{name}")
        if isinstance(self._events, EventParser) and self._events.unparted:
            self._note("unparted")
        token_source = self._settle(stamp_ns, streamed=self.media != JSON)
        if not self._arrivals:
            self._fail("empty_response", self._instead(f"no token came, finish_reason {self._finish_reason or 'none'}"))
        elif not self._error:
            self._note_uncounted()
        return DecodedResponse(
            arrivals=self._arrivals,
            token_counts=self._tokens,
            token_source=token_source,
            first_content=self._first_content(),
            merged=self._merged,
            input_tokens=self._input_tokens,
            cached_tokens=self._cached_tokens,
            output_tokens=self._output_tokens,
            reasoning_tokens=self._reasoning_tokens,
            finish_reason=self._finish_reason,
            error=self._error,
            message=self._message,
            text="".join(self._answer or ()),
            noted=tuple(self._noted),
        )

    def _judge_end(self, ended: bool) -> None:
        """Record as error or note how the answer ended, unless it came whole."""
        if self._words and not self._finish_reason:
            self._fail("stream_error", self._words)
        elif self._marks() + ended < 2:
            self._fail("truncated", self._instead("the stream ended without finish_reason"))
        elif not self._finish_reason:
            self._note("no_finish")

    def _instead(self, fact: str) -> str:
        """Return the error message of a response without a usable answer, with the server's own words behind it."""
        if self._silent and not self._arrivals:
            fact = "the stream held no event" + (" but [DONE]" if self._done is not None else "")
        return ": ".join(filter(None, (fact, self._words or self._aside)))
