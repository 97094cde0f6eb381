"""One request as it is asked, before any API has words for it."""

from __future__ import annotations

from typing import Any

import msgspec

from harness.spec.classes import Cancel


class Message(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One message of a conversation."""

    role: str  # system, user, assistant, tool
    content: str
    more: dict[str, Any] | None = None  # what it has besides its text, as OpenAI's chat has it: tool_calls, parts

    @property
    def parts(self) -> list[dict[str, Any]]:
        """Return the content in parts where some are no text, like images; else nothing."""
        return (self.more or {}).get("content") or []

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Return the calls of tools that it makes."""
        return (self.more or {}).get("tool_calls") or []

    @property
    def text(self) -> str:
        """Return all that it says as one text, calls of tools among it."""
        if self.more is None:
            return self.content
        calls = [call.get("function") or call for call in self.calls] or [self.more.get("function_call")]
        return "\n".join(
            [*filter(None, [self.content]), *(msgspec.json.encode(call).decode() for call in calls if call)]
        )


class Request(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one request asks for.

    All sources give what has no default; the rest is for those whose requests differ: mixes, datasets, traces and
    conversations.
    """

    number: int  # number in a run, each once; with the seed it decides everything else
    prompt: str | tuple[Message, ...]
    output_tokens: int
    input_tokens: int | None = None  # tokens of the prompt, if its source knows
    tools: tuple[dict[str, Any], ...] | None = None  # definitions that come before the prompt, as OpenAI's API has them
    images: tuple[str, ...] = ()  # PNG as base64, behind the text of its last message
    class_: str = ""
    canary: int | None = None  # number of a prompt of [quality]: its answer ends where the model ends it
    cancel: Cancel | None = None  # when it is given up; None: it is not
    session: str = ""
    turn: int = 0  # turn of its session
    after: tuple[int, ...] = ()  # numbers of the requests whose ends it waits for
    target: str = ""  # "": wherever the run points
    due_s: float | None = None  # since the level began; None: as soon as there is a place for it
