"""Rows of requests, by the names that files have for prompts, messages, lengths and times; and those of traces.

Messages that end with the assistant's end with the answer. All messages of a row are one request; with an answer among
them they hold all that is sent, and nothing is put before them. Each of the `turns` of a row is a row of its own, one
of a session; a prompt that is a list has messages, or the texts of turns, where the row has no others. The body of an
API's request is such a row, and so is what a batch file has under `body`.

`NAMES` is the one table of names. Of the names of a meaning that a record has, the first one counts. A name that its
format requires, and those of this program and of Mooncake, are read strictly. A value of another name is left out where
it is of another kind, and a note says so: the name may mean something else there. Names are those of OpenAI's and
Anthropic's request bodies, AIPerf, GuideLLM, `vllm bench`, SGLang, BurstGPT, OpenOrca, Alpaca, and the traces of Azure,
Mooncake, Vidur, Splitwise and Baseten.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from itertools import compress, repeat
from operator import is_not
from typing import Annotated, Any

import msgspec

from harness.base import decoding
from harness.base.errors import HarnessError, misspelled, nearest
from harness.workload.dataset import BLOCK, PromptTokens, Reader, Row, Seconds, Tokens, seconds
from harness.workload.dataset.messages import Entry, messages, text, tools
from harness.workload.request import Message

_Hash = Annotated[int, msgspec.Meta(ge=0)]
_Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e15)]


class Values(msgspec.Struct, frozen=True):
    """What a row has, by meanings; None is what it does not say."""

    prompt: str | None = None
    input: str | list[Entry] | None = None  # input of Responses, or what follows an instruction
    messages: str | list[Entry] | None = None
    turns: list[str | dict[str, Any]] | None = None
    body: dict[str, Any] | None = None
    answer: str | None = None
    system: str | list[dict[str, Any]] | None = None
    tools: Any = None
    media: Any = None
    input_tokens: PromptTokens | None = None
    output_tokens: Tokens | None = None
    at_s: Seconds | datetime | None = None
    at_ms: _Milliseconds | datetime | None = None
    pause_ms: _Milliseconds | None = None
    took_ms: _Milliseconds | None = None
    canceled: bool | None = None
    session: str | int | None = None
    hashes: list[_Hash] | None = None
    block: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] | None = None
    model: str | None = None
    cancel_s: Annotated[float, msgspec.Meta(gt=0, le=1e12)] | None = None
    choices: Any = None
    response_format: Any = None
    tool_choice: Any = None


NAMES: dict[str, tuple[str, ...]] = {
    "prompt": ("prompt", "text", "text_input", "inputs", "question", "instruction"),
    "input": ("input",),
    "messages": ("messages",),
    "turns": ("turns",),
    "body": ("body",),
    "answer": ("completion", "response", "answer", "output"),
    "system": ("system", "system_prompt", "instructions"),
    "tools": ("tools", "functions"),
    "media": ("images", "image", "NumImages", "num_images", "multi_modal_data", "audios", "audio", "videos", "video"),
    "input_tokens": (
        "input_tokens", "input_length", "input_len", "prompt_tokens", "prompt_len", "prompt_length",
        "prompt_tokens_count", "ContextTokens", "Request tokens", "num_prefill_tokens", "prompt_size",
    ),
    "output_tokens": (
        "output_tokens", "output_length", "output_len", "output_tokens_count", "max_tokens", "max_completion_tokens",
        "max_output_tokens", "max_new_tokens", "completion_tokens", "GeneratedTokens", "Response tokens",
        "num_decode_tokens", "token_size",
    ),
    "at_s": ("at_s", "arrived_at", "arrival_timestamp", "arrival_time", "timestamp_s", "Timestamp", "TIMESTAMP"),
    "at_ms": ("timestamp", "timestamp_ms", "arrival_time_ms", "at_ms", "timestamp_start_unix_ms"),
    "pause_ms": ("delay", "delay_ms"),
    "took_ms": ("duration_e2e_ms",),
    "canceled": ("request_canceled",),
    "session": (
        "session", "session_id", "Session ID", "conversation_id", "provided_session_id", "poor_man_session_id",
    ),
    "hashes": ("hash_ids", "total_hashes"),
    "block": ("block_size",),
    "model": ("model", "Model", "model_name"),
    "cancel_s": ("cancel_s",),
    "choices": ("n",),
    "response_format": ("response_format",),
    "tool_choice": ("tool_choice",),
}  # fmt: skip
_EACH = [(meaning, name) for meaning, names in NAMES.items() for name in names]
_TYPES = {field.name: field.type for field in msgspec.structs.fields(Values)} | {"prompt": str | list[Any] | None}
_STRICT = (
    "prompt", "messages", "completion", "input_tokens", "output_tokens", "at_s", "session", "input_length",
    "output_length",
)  # fmt: skip

# Names of numbers of tokens, of texts, tools and images: what a request may lose if nobody reads them.
_WORK = (
    "token", "tokens", "tokens_count", "length", "_len", "message", "messages", "prompt", "prompts", "instruction",
    "instructions", "tools", "functions", "image", "images", "audio", "audios", "video", "videos", "document",
    "documents", "context", "contexts", "history",
)  # fmt: skip
_NO_WORK = {  # fields that follow from what is read, or say nothing of the prompt and the length of its answer
    "total_tokens", "Total tokens", "num_total_tokens", "min_tokens", "cached_tokens", "reasoning_tokens", "num_tokens",
    "rejected_tokens", "accepted_tokens", "model_max_length",
}  # fmt: skip

_COMPARED = 1_000  # names of a file, with each that is known: it may have any number


@lru_cache
def record_type(required: frozenset[str] = frozenset(), columns: tuple[tuple[str, str], ...] = ()) -> type[Any]:
    """Return the type of a record that has all names; these must be there.

    `columns` has (meaning, name) of those that the operator named: such a meaning has no other name, and such a name no
    other meaning.
    """
    fields: list[Any] = []
    left = dict(columns)
    for number, (meaning, name) in enumerate(_EACH):
        if meaning in left:
            name = left.pop(meaning)
        elif meaning in dict(columns) or name in dict(columns).values():
            name = f"(no column {number})"
        kind = _TYPES[meaning] if name in required or name in _STRICT else Any
        default = msgspec.NODEFAULT if name in required else None
        fields.append((f"_{number}", kind, msgspec.field(name=name, default=default)))
    return msgspec.defstruct("Record", fields, frozen=True, kw_only=True)


def values(record: msgspec.Struct) -> tuple[Values, list[str]]:
    """Return a record's values by their meaning (prompt, output_tokens …), and notes on fields that are not used.

    >>> found, _ = values(msgspec.convert({"text": "Hi", "max_tokens": 7, "session": "a"}, record_type()))
    >>> found.prompt, found.output_tokens, found.session
    ('Hi', 7, 'a')
    """
    every = msgspec.structs.astuple(record)
    there = list(compress(zip(_EACH, every, strict=True), map(is_not, every, repeat(None))))  # most are None: in C
    chosen = {meaning: value for (meaning, _), value in reversed(there)}  # the first name's, at last
    if isinstance(listed := chosen.get("prompt"), list):
        meant, read = "prompt", chosen.pop("prompt")
        if (texts := all(isinstance(each, str) for each in listed)) and len(listed) < 2:
            read = "".join(listed)
        elif chosen.keys().isdisjoint(("messages", "turns")) and not isinstance(chosen.get("input"), list):
            meant = "turns" if texts else "messages"
        there = [
            ((meant, name), read) if value is listed else ((meaning, name), value) for (meaning, name), value in there
        ]
        chosen[meant] = read
    try:
        return msgspec.convert(chosen, Values, strict=False), []
    except decoding.WRONG:
        return _tolerant(there)


def _tolerant(there: list[tuple[tuple[str, str], Any]]) -> tuple[Values, list[str]]:
    """Return the values of a record that can be converted, each tried alone, with a note on every other."""
    values, notes = Values(), []
    for (meaning, name), value in there:
        try:
            read = getattr(msgspec.convert({meaning: value}, Values, strict=False), meaning)
        except decoding.WRONG:
            notes.append(f"{name} cannot be read and is left out")
        else:
            if getattr(values, meaning) is None:
                values = msgspec.structs.replace(values, **{meaning: read})
    return values, notes


def mapped(columns: Mapping[str, str], place: str) -> Reader:
    """Return the reader of rows whose columns the operator named; raise HarnessError for an unknown meaning."""
    for meaning in columns:
        if meaning not in NAMES:
            fact = f"{meaning!r} is nothing that a row has"
            raise HarnessError(fact, place=f"--fields of {place}", way_out=nearest(meaning, list(NAMES)))
    record = record_type(frozenset(), tuple(columns.items()))
    return Reader(name="plain", what="a row with the columns of --fields", record=record, rows=rows)


def is_field(name: str) -> bool:
    """Return whether a field's name is one that Knee reads, or looks like work (tokens, prompts) that it does not.

    >>> is_field("prompt_len"), is_field("thinking_tokens"), is_field("hunter2")
    (True, True, False)
    """
    return any(name == known for _, known in _EACH) or _looks_like_work(name)


def unread(fields: Iterable[str], kind: type[Any]) -> list[str]:
    """Return those names of a file that a record of this kind leaves out and that look like work."""
    read = {field.encode_name for field in msgspec.structs.fields(kind)}
    return [name for name in fields if name not in read | _NO_WORK and _looks_like_work(name)]


def meant(fields: Collection[str]) -> tuple[str, str]:
    """Return the first of a file's names that misspells one of a meaning it has no name for, and that; else ("", "").

    Left out is one in the plural, which may be a list of others, one with a number, as in a series, and one that
    differs by capitals.
    """
    left = [name for name in fields if not any(name == known for _, known in _EACH)]
    missing = [name for names in NAMES.values() if set(names).isdisjoint(fields) for name in names]
    for name in left[:_COMPARED]:
        right = misspelled(name, missing)
        same = name.lower().removesuffix("s") == right.lower().removesuffix("s")
        if right and not same and not any(map(str.isdigit, name)):
            return name, right
    return "", ""


def _looks_like_work(name: str) -> bool:
    return len(name) <= 40 and name.replace(" ", "_").isidentifier() and name.lower().endswith(_WORK)


_NO_MEDIA = ("0", "0.0")


def rows(record: msgspec.Struct, place: str) -> Iterator[Row]:
    """Yield the record's one request, that of its body, or one for each of its turns."""
    found, notes = values(record)
    if found.body is not None:
        for row in rows(msgspec.convert(found.body, record_type(), strict=False), place):
            own = row.at_s is not None or row.at_ms is not None
            at_s, at_ms = (row.at_s, row.at_ms) if own else _came_at(found)
            yield msgspec.structs.replace(row, at_s=at_s, at_ms=at_ms, session=row.session or _session(found.session))
        return
    if found.turns is None:
        yield _row(found, notes, place)
        return
    turns = [{"prompt": turn} if isinstance(turn, str) else turn for turn in found.turns]
    turns = [{"tools": found.tools, "system": None if i else found.system, **each} for i, each in enumerate(turns)]
    yield from turns_of(turns, _session(found.session) or f"a session at {place}", place)


def _session(name: str | int | None) -> str:
    """Return a session's name; "" for a row that has none, 0 is one."""
    return "" if name is None else str(name)


def turns_of(turns: Iterable[dict[str, Any]], session: str | int, place: str) -> Iterator[Row]:
    """Yield the requests of a session, each a row."""
    for turn in turns:
        for row in rows(msgspec.convert(turn, record_type(), strict=False), place):
            yield msgspec.structs.replace(row, session=str(session))


def _row(values: Values, notes: list[str], place: str) -> Row:
    """Return a row from a record's values, noting what is unsent; raise ValueError without prompt and length."""
    prompt, answer, whole = _prompt(values, notes), values.answer, False
    if isinstance(prompt, tuple):
        if prompt and prompt[-1].role == "assistant":
            prompt, answer = prompt[:-1], prompt[-1].text or answer
        whole = any(message.role == "assistant" for message in prompt)
    if prompt is None and values.input_tokens is None:
        if any(f"{name} cannot be read and is left out" in notes for name in NAMES["prompt"]):
            raise ValueError("its prompt is no text, nor a list of texts or of messages: lists of numbers are not read")
        raise ValueError("it has neither 'prompt', nor 'messages', nor 'input_tokens'")
    if prompt is not None:
        if not (prompt.strip() if isinstance(prompt, str) else any(_holds(message) for message in prompt)):
            raise ValueError("its prompt is empty")
        if (system := text(values.system)).strip():
            prompt = (Message("system", system), *((Message("user", prompt),) if isinstance(prompt, str) else prompt))
    if values.media and values.media not in _NO_MEDIA:
        notes.append("images are left out")
    if prompt is not None:
        notes += _not_sent(values)
    at_s, at_ms = _came_at(values)
    defined, took_s = tools(values.tools, notes), None if values.took_ms is None else values.took_ms / 1e3
    return Row(
        place=place,
        prompt=prompt,
        answer=answer,
        input_tokens=values.input_tokens,
        output_tokens=values.output_tokens,
        at_s=at_s,
        at_ms=at_ms,
        session=_session(values.session),
        pause_s=None if values.pause_ms is None else values.pause_ms / 1e3,
        hashes=None if values.hashes is None else tuple(values.hashes),
        block=values.block or BLOCK,
        tools=defined,
        whole=whole,
        notes=tuple(notes),
        model=values.model or "",
        cancel_s=took_s if values.canceled and not values.cancel_s else values.cancel_s,
        took_s=took_s,
    )


def _came_at(values: Values) -> tuple[float | None, float | None]:
    """Return (seconds, milliseconds) at which a request came: one of them by the field that is set, or none."""
    at = values.at_ms if values.at_s is None else values.at_s
    if isinstance(at, datetime):
        return seconds(at), None
    return (None, at) if values.at_s is None else (at, None)


def _not_sent(values: Values) -> Iterator[str]:
    """Yield a note for each setting of a recorded request that Knee does not send, unless it is the default anyway."""
    if values.choices not in (None, 1, "1"):
        yield "n is left out: every request is answered once"
    if values.response_format not in (None, {"type": "text"}):
        yield "response_format is left out"
    if values.tool_choice not in (None, "auto"):
        yield "tool_choice is left out"


def _prompt(values: Values, notes: list[str]) -> str | tuple[Message, ...] | None:
    """Return the text or the messages of a row; None if it has a length alone.

    A text `input` follows the `prompt`. A prompt beside messages that lack it is left out, which is added to `notes`.
    """
    listed = values.input if values.messages is None and isinstance(values.input, list) else values.messages
    if listed is not None:
        read = messages(listed)
        if values.prompt and values.prompt not in [message.content for message in read]:
            notes.append("a prompt beside messages is left out")
        return tuple(read)
    if isinstance(values.input, str):
        return "\n\n".join(each for each in (values.prompt, values.input) if each)
    return values.prompt


def _holds(message: Message) -> bool:
    return bool(message.text.strip() or message.parts)


class _Result(msgspec.Struct, frozen=True):
    """The columns of requests.parquet that a workload is made of; the rows are in the order they were sent."""

    error: str = ""
    sent_s: Annotated[float, msgspec.Meta(ge=-1e10, le=1e10)] | None = None  # None: it never was
    input_tokens: PromptTokens | None = None
    output_tokens: Tokens | None = None
    session_id: str = ""


def _of_result(record: _Result, place: str) -> Iterator[Row]:
    """Yield the request of a record of a Knee result, with the lengths that it had; nothing where it failed."""
    if record.error or record.sent_s is None:
        return
    if record.input_tokens is None:
        raise ValueError("the server did not say how long its prompt was")
    yield Row(
        place=place,
        input_tokens=record.input_tokens,
        output_tokens=record.output_tokens or None,
        at_s=record.sent_s,
        session=record.session_id,
    )


# ---- the formats

_KEYS = tuple(
    frozenset({name}) for meaning in ("prompt", "input", "messages", "turns", "body") for name in NAMES[meaning]
) + tuple(frozenset({prompt, answer}) for prompt in NAMES["input_tokens"] for answer in NAMES["output_tokens"])


_Rows = Callable[[Any, str], Iterator[Row]]


def _trace(name: str, what: str, *required: str, other: tuple[str, ...] = (), read: _Rows = rows) -> Reader:
    """Declare a trace whose rows all have these fields, and the first one the others too."""
    record, keys = record_type(frozenset(required)), (frozenset({*required, *other}),)
    return Reader(name=name, what=f"a request of {what}", keys=keys, record=record, rows=read)


def _wholes(record: msgspec.Struct, place: str) -> Iterator[Row]:
    """Yield requests whose prompts hold what was said before in their sessions."""
    return (msgspec.structs.replace(row, whole=True) for row in rows(record, place))


def _of_lengths(record: msgspec.Struct, place: str) -> Iterator[Row]:
    """Yield requests of which each has both lengths, or a text."""
    for row in rows(record, place):
        if row.prompt is None and row.output_tokens is None and values(record)[0].output_tokens is None:
            raise ValueError("Object missing required field 'output_length'")
        yield row


READERS = (
    Reader(name="plain", what="a row of prompts", keys=_KEYS, record=record_type(), rows=rows),
    # github.com/kvcache-ai/Mooncake, "Open Source Trace". AIPerf's have sessions too, and pauses in place of times and
    # texts in place of lengths.
    _trace("mooncake", "a Mooncake trace", other=("input_length", "output_length", "timestamp"), read=_of_lengths),
    # github.com/Azure/AzurePublicDataset: of 2023 without a zone, of 2024, and with images.
    _trace("azure", "an Azure trace", "TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    # github.com/HPMLL/BurstGPT. A request that failed there has 0 response tokens: how many it wanted is not known.
    _trace("burstgpt", "a BurstGPT trace", "Timestamp", "Request tokens", "Response tokens"),
    # github.com/microsoft/vidur, data/processed_traces; github.com/Mutinifni/splitwise-sim, traces.
    _trace("vidur", "a Vidur trace", "arrived_at", "num_prefill_tokens", "num_decode_tokens"),
    _trace("splitwise", "a Splitwise trace", "arrival_timestamp", "prompt_size", "token_size"),
    # docs/tutorials/baseten-trace.md of github.com/ai-dynamo/aiperf.
    _trace(
        "baseten", "a Baseten trace", "timestamp_start_unix_ms", "prompt", "input_tokens", "output_tokens", read=_wholes
    ),
    Reader(
        name="result",
        what="a request of a result folder",
        keys=(frozenset({"request_id", "sent_s", "input_tokens", "output_tokens", "error"}),),
        record=_Result,
        rows=_of_result,
        complete=True,
    ),
)
