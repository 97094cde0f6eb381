"""Rows of requests, by the names of `names`: prompts or messages or their lengths, with times where there are any.

Messages that end with the assistant's end with the answer. All messages of a row are one request; with an answer among
them they hold all that is sent, and nothing is put before them. Each of the `turns` of a row is a row of its own, one
of a session. The body of an API's request is such a row, and so is what a batch file has under `body`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from harness.workload.dataset import names
from harness.workload.dataset.messages import messages, text, tools
from harness.workload.dataset.row import Row
from harness.workload.request import Message

WHAT = "a row of prompts"
KEYS = tuple(
    frozenset({name}) for meaning in ("prompt", "input", "messages", "turns", "body") for name in names.NAMES[meaning]
) + tuple(
    frozenset({prompt, answer})
    for prompt in names.NAMES["input_tokens"]
    for answer in names.NAMES["output_tokens"]
)  # fmt: skip
_NO_MEDIA = ("0", "0.0")


def rows(record: msgspec.Struct, place: str) -> Iterator[Row]:
    """Yield the record's one request, that of its body, or one for each of its turns."""
    found, notes = names.values(record)
    if found.body is not None:
        for row in rows(msgspec.convert(found.body, names.record(), strict=False), place):
            at_s = names.seconds(found) if row.at_s is None else row.at_s
            yield msgspec.structs.replace(row, at_s=at_s, session=row.session or _session(found.session))
        return
    if found.turns is None:
        yield _row(found, notes, place)
        return
    turns = [{"prompt": each} if isinstance(each, str) else each for each in found.turns]
    turns = [{"tools": found.tools, "system": None if i else found.system, **each} for i, each in enumerate(turns)]
    yield from turns_of(turns, _session(found.session) or f"a session at {place}", place)


def _session(name: str | int | None) -> str:
    """A session's name; "" for a row that has none, 0 is one."""
    return "" if name is None else str(name)


def turns_of(turns: Iterable[dict[str, Any]], session: str | int, place: str) -> Iterator[Row]:
    """Yield the requests of a session, each a row."""
    for turn in turns:
        for row in rows(msgspec.convert(turn, names.record(), strict=False), place):
            yield msgspec.structs.replace(row, session=str(session))


def _row(found: names.Values, notes: list[str], place: str) -> Row:
    if found.chat is not None and found.hashes is not None:  # Mooncake's names, with seconds and blocks of 16 tokens
        raise ValueError("it has a chat_id, as Bailian's: rename timestamp to at_s, and leave chat_id and hash_ids out")
    prompt, answer, whole = _prompt(found, notes), found.answer, False
    if isinstance(prompt, tuple):
        if prompt and prompt[-1].role == "assistant":
            prompt, answer = prompt[:-1], prompt[-1].text or answer
        whole = any(message.role == "assistant" for message in prompt)
    if prompt is None and found.input_tokens is None:
        raise ValueError("it has neither 'prompt', nor 'messages', nor 'input_tokens'")
    if prompt is not None:
        if not (prompt.strip() if isinstance(prompt, str) else any(_holds(message) for message in prompt)):
            raise ValueError("its prompt is empty")
        if (system := text(found.system)).strip():
            prompt = (Message("system", system), *((Message("user", prompt),) if isinstance(prompt, str) else prompt))
    if names.is_in_milliseconds(found) and found.hashes is None:  # other traces than Mooncake's
        notes.append("timestamp is read as milliseconds, at_s is in seconds")
    if found.media and found.media not in _NO_MEDIA:
        notes.append("images are left out")
    defined = tools(found.tools, notes)
    return Row(
        place=place,
        prompt=prompt,
        answer=answer,
        input_tokens=found.input_tokens,
        output_tokens=found.output_tokens or None,
        at_s=names.seconds(found),
        session=_session(found.session),
        pause_s=None if found.pause_ms is None else found.pause_ms / 1e3,
        hashes=None if found.hashes is None else tuple(found.hashes),
        tools=defined,
        whole=whole,
        notes=tuple(notes),
    )


def _prompt(found: names.Values, notes: list[str]) -> str | tuple[Message, ...] | None:
    """The text or the messages of a row; None where it has a length alone."""
    listed = found.input if found.messages is None and isinstance(found.input, list) else found.messages
    if listed is not None:
        read = messages(listed)
        if found.prompt and found.prompt not in [message.content for message in read]:
            notes.append("a prompt beside messages is left out")
        return tuple(read)
    if isinstance(found.input, str):
        return "\n\n".join(each for each in (found.prompt, found.input) if each)
    return found.prompt


def _holds(message: Message) -> bool:
    return bool(message.text.strip() or message.parts)
