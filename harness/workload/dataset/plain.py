"""Prompts or messages, with lengths and times where there are any: rows by this program's own names.

A row has a `prompt`, or `messages` as the chat API takes them, or else the length of a prompt. Messages that end with
the assistant's end with the answer. All messages are one request; conversations to be held are `sharegpt`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from harness.workload.dataset.row import PromptTokens, Row, Seconds, Tokens
from harness.workload.request import Message

WHAT = "a row of prompts"
KEYS = (frozenset({"prompt"}), frozenset({"messages"}), frozenset({"input_tokens", "output_tokens"}))


class _Part(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None


class _Message(msgspec.Struct, frozen=True):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[_Part]


class Record(msgspec.Struct, frozen=True):
    """One row; messages may be written as JSON in a cell."""

    prompt: str | None = None
    messages: list[_Message] | str | None = None
    completion: str | None = None
    input_tokens: PromptTokens | None = None
    output_tokens: Tokens | None = None
    at_s: Seconds | None = None
    session: str = ""


def rows(record: Record, place: str) -> Iterator[Row]:
    """The row's one request."""
    prompt, answer = record.prompt, record.completion
    if record.messages is not None:
        if prompt is not None:
            raise ValueError("it has a prompt and messages")
        messages = _messages(record.messages)
        last = messages[-1].content if messages and messages[-1].role == "assistant" else None
        yield _row(record, place, tuple(messages[:-1] if last is not None else messages), last or answer)
    elif prompt is None and record.input_tokens is None:
        raise ValueError("it has neither 'prompt', nor 'messages', nor 'input_tokens'")
    else:
        yield _row(record, place, prompt, answer)


def _row(record: Record, place: str, prompt: str | tuple[Message, ...] | None, answer: str | None) -> Row:
    texts = [prompt] if isinstance(prompt, str) else [message.content for message in prompt or ()]
    if prompt is not None and not any(text.strip() for text in texts):
        raise ValueError("its prompt is empty")
    return Row(
        place=place,
        prompt=prompt,
        answer=answer,
        input_tokens=record.input_tokens,
        output_tokens=record.output_tokens or None,
        at_s=record.at_s,
        session=record.session,
    )


def _messages(found: list[_Message] | str) -> list[Message]:
    listed = msgspec.json.decode(found, type=list[_Message]) if isinstance(found, str) else found
    return [Message(each.role, _text(each.content)) for each in listed]


def _text(content: str | list[_Part]) -> str:
    """The text of a message, which may be in parts."""
    if isinstance(content, str):
        return content
    for part in content:
        if part.type != "text" or part.text is None:
            raise ValueError(f"a part of its messages is of type {part.type[:40]!r}, and only text is sent")
    return "".join(part.text or "" for part in content)
