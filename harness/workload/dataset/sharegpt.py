"""Conversations as ShareGPT has them: a list of messages, each from a human or from a model.

Each message of the user is a request of the conversation's session, and what the model then says is its answer. What
stands before the first message of the user is left out, and so are messages without text; both occur in the data that
everybody uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from harness.workload.dataset.row import Row
from harness.workload.request import Message

WHAT = "a conversation of ShareGPT"
KEYS = (frozenset({"conversations"}), frozenset({"items"}))

_Speaker = Literal["human", "user", "gpt", "chatgpt", "bing", "bard", "assistant", "model", "system"]
_USER, _SYSTEM, _ASSISTANT = "user", "system", "assistant"
_ROLES = {"human": _USER, "user": _USER, "system": _SYSTEM}  # all others are models


class _Entry(msgspec.Struct, frozen=True):
    speaker: _Speaker = msgspec.field(name="from")
    value: str


class Record(msgspec.Struct, frozen=True):
    """One conversation; files have its messages by one of two names."""

    conversations: list[_Entry] | None = None
    items: list[_Entry] | None = None
    id: str | int = ""


def rows(record: Record, place: str) -> Iterator[Row]:
    """A request for each turn of the user; none where there is none."""
    entries = record.conversations if record.conversations is not None else record.items
    if entries is None:
        raise ValueError("it has neither 'conversations' nor 'items'")
    # Identifiers repeat in such files: with the place they do not.
    session = f"{record.id} at {place}"
    messages = [Message(_ROLES.get(each.speaker, _ASSISTANT), each.value) for each in entries if each.value.strip()]
    for prompt, answer in _turns(messages):
        yield Row(place=place, prompt=prompt, answer=answer, session=session)


def _turns(messages: Iterable[Message]) -> Iterator[tuple[tuple[Message, ...], str | None]]:
    """What is sent in each turn, and what it was answered; None where nothing follows."""
    prompt: list[Message] = []
    answers: list[str] = []
    for message in messages:
        if message.role != _ASSISTANT:
            if answers:
                yield tuple(prompt), "\n".join(answers)
                prompt, answers = [], []
            prompt.append(message)
        elif _asks(prompt):
            answers.append(message.content)
    if _asks(prompt):
        yield tuple(prompt), "\n".join(answers) or None


def _asks(prompt: Iterable[Message]) -> bool:
    return any(message.role == _USER for message in prompt)
