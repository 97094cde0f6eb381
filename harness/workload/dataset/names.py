"""The names that files have for one meaning: the one table that all readers of rows share.

Of the names of a meaning that a record has, the first one counts. A name that its format requires, and those of this
program, are read strictly. A value of another name is left out where it is of another kind, and a note says so: the
name may mean something else there.

Names are those of OpenAI's and Anthropic's request bodies, AIPerf, GuideLLM, `vllm bench`, SGLang, BurstGPT,
OpenOrca, Alpaca, and the traces of Azure, Mooncake, Vidur and Splitwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Any

import msgspec

from harness.base import decoding
from harness.workload.dataset.messages import Entry
from harness.workload.dataset.row import PromptTokens, Seconds, Tokens

_Hash = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e15)]


class Values(msgspec.Struct, frozen=True):
    """What a row has, by meanings; None is what it does not say."""

    prompt: str | None = None
    input: str | list[Entry] | None = None  # of Responses, or what stands behind an instruction
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
    session: str | int | None = None
    hashes: list[_Hash] | None = None
    chat: int | str | None = None


NAMES: dict[str, tuple[str, ...]] = {
    "prompt": ("prompt", "text", "text_input", "question", "instruction"),
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
    "at_ms": ("timestamp", "timestamp_ms", "arrival_time_ms", "at_ms"),
    "pause_ms": ("delay", "delay_ms"),
    "session": ("session", "session_id", "Session ID", "conversation_id"),
    "hashes": ("hash_ids",),
    "chat": ("chat_id",),
}  # fmt: skip
_EACH = [(meaning, name) for meaning, names in NAMES.items() for name in names]
_TYPES = {field.name: field.type for field in msgspec.structs.fields(Values)}
_STRICT = ("prompt", "messages", "completion", "input_tokens", "output_tokens", "at_s", "session")

# Names of numbers of tokens, of texts, tools and images: what a request may lose where nobody reads them.
_WORK = (
    "token", "tokens", "tokens_count", "length", "_len", "message", "messages", "prompt", "prompts", "instruction",
    "instructions", "tools", "functions", "image", "images", "audio", "audios", "video", "videos", "document",
    "documents", "context", "contexts", "history",
)  # fmt: skip
_NO_WORK = {  # which follow from what is read, or say nothing of the prompt and the length of its answer
    "total_tokens", "Total tokens", "min_tokens", "cached_tokens", "reasoning_tokens", "num_tokens", "rejected_tokens",
    "accepted_tokens", "model_max_length",
}  # fmt: skip


@lru_cache
def record(required: frozenset[str] = frozenset()) -> type[msgspec.Struct]:
    """Return the type of a record that has all names, of which these must be there."""
    fields: list[Any] = []
    for number, (meaning, name) in enumerate(_EACH):
        kind = _TYPES[meaning] if name in required or name in _STRICT else Any
        default = msgspec.NODEFAULT if name in required else None
        fields.append((f"_{number}", kind, msgspec.field(name=name, default=default)))
    return msgspec.defstruct("Record", fields, frozen=True, kw_only=True)


def values(record: msgspec.Struct) -> tuple[Values, list[str]]:
    """Return what a record holds, and notes of what is of no use.

    >>> found, _ = values(msgspec.convert({"text": "Hi", "max_tokens": 7, "session": "a"}, record()))
    >>> found.prompt, found.output_tokens, found.session
    ('Hi', 7, 'a')
    """
    there = [(_EACH[i], value) for i, value in enumerate(msgspec.structs.astuple(record)) if value is not None]
    found = {meaning: value for (meaning, _), value in reversed(there)}  # the first name's, at last
    try:
        return msgspec.convert(found, Values, strict=False), []
    except decoding.WRONG:
        return _tolerant(there)


def _tolerant(there: list[tuple[tuple[str, str], Any]]) -> tuple[Values, list[str]]:
    """The values that can be read, each by itself."""
    found, notes = Values(), []
    for (meaning, name), value in there:
        try:
            read = getattr(msgspec.convert({meaning: value}, Values, strict=False), meaning)
        except decoding.WRONG:
            notes.append(f"{name} cannot be read and is left out")
        else:
            if getattr(found, meaning) is None:
                found = msgspec.structs.replace(found, **{meaning: read})
    return found, notes


def seconds(found: Values) -> float | None:
    """Return when a request came, in seconds; None where its row does not say."""
    at = found.at_ms if found.at_s is None else found.at_s
    if isinstance(at, datetime):
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    return at / 1e3 if at is not None and is_in_milliseconds(found) else at


def is_in_milliseconds(found: Values) -> bool:
    """Whether a row's time is, as AIPerf's and Mooncake's are; a log's, since 1970, may be in seconds."""
    return found.at_s is None and isinstance(found.at_ms, float) and not 1e9 <= found.at_ms < 1e10


def is_one(name: str) -> bool:
    """Whether it is in the table, or looks like work that nobody reads.

    >>> is_one("prompt_len"), is_one("thinking_tokens"), is_one("hunter2")
    (True, True, False)
    """
    return any(name == known for _, known in _EACH) or _looks_like_work(name)


def unread(found: Iterable[str], kind: type[Any]) -> list[str]:
    """Return those names of a file that a record of this kind leaves out and that look like work."""
    read = {field.encode_name for field in msgspec.structs.fields(kind)}
    return [name for name in found if name not in read | _NO_WORK and _looks_like_work(name)]


def _looks_like_work(name: str) -> bool:
    return len(name) <= 40 and name.replace(" ", "_").isidentifier() and name.lower().endswith(_WORK)
