"""Conversations as ShareGPT has them: a list of messages, each from a human or from a model.

Each message of the user is a request of the conversation's session, and what the model then says is its answer. So is
what a tool says, which is sent as the user's: the call before it is a text, which no API takes for one. What comes
before the first message of the user is left out, and so are messages without text; both occur in the data that
everybody uses. SGLang's conversations hold rows in place of messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from harness.workload.dataset import Reader, Row
from harness.workload.dataset.messages import Entry, messages, text, tools
from harness.workload.dataset.plain import turns_of
from harness.workload.request import Message

_USER, _ASSISTANT, _TOOL = "user", "assistant", "tool"


class Record(msgspec.Struct, frozen=True):
    """One conversation; files have its messages by one of three names."""

    conversations: list[Entry | list[dict[str, Any]]] | str | None = None
    items: list[Entry] | None = None
    conversation: list[Entry] | str | None = None
    id: str | int = ""
    system: Any = None
    tools: Any = None


def rows(record: Record, place: str) -> Iterator[Row]:
    """Yield a request for each turn of the user; none where there is none."""
    entries = next(
        (each for each in (record.conversations, record.items, record.conversation) if each is not None), None
    )
    if entries is None:
        raise ValueError("it has neither 'conversations' nor 'items'")
    # Identifiers repeat in such files: with the place they do not.
    session = f"{record.id} at {place}"
    if isinstance(entries, list):
        for number, each in enumerate(entries):
            if isinstance(each, list):
                yield from turns_of(each, f"{session}, {number}", place)
        entries = [each for each in entries if isinstance(each, Entry)]
    system = [Message("system", whole)] if (whole := text(record.system)).strip() else []
    notes: list[str] = []
    defined = tools(record.tools, notes)
    sent = [_sent(each) for each in messages(entries)]
    for prompt, answer in _turns([*system, *(each for each in sent if each.content.strip() or each.parts)]):
        yield Row(place=place, prompt=prompt, answer=answer, session=session, tools=defined, notes=tuple(notes))


def _sent(message: Message) -> Message:
    """Return a message as the conversation has it: of the assistant and of tools the text."""
    if message.role not in (_ASSISTANT, _TOOL):
        return message
    return Message(_USER if message.role == _TOOL else _ASSISTANT, message.text)


def _turns(messages: Iterable[Message]) -> Iterator[tuple[tuple[Message, ...], str | None]]:
    """Yield what is sent in each turn, and what it was answered; None where nothing follows."""
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


READERS = (
    Reader(
        name="sharegpt",
        what="a conversation of ShareGPT",
        keys=(frozenset({"conversations"}), frozenset({"items"}), frozenset({"conversation"})),
        record=Record,
        rows=rows,
    ),
)
