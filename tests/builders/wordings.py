"""How a server words a good answer, and an error in the middle of it, in three dialects: for servers that misbehave."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from harness.dialects import DIALECTS
from tests.builders.streams import DONE, delta, event, usage

ERROR = {"error": {"message": "the engine died", "code": 500}}


class Wording(NamedTuple):
    """The bytes of one dialect's stream; `end` takes usage as OpenAI counts it, {} for none, and a reason or None."""

    media: bytes
    opening: bytes  # before the first token
    token: bytes
    end: Callable[[dict[str, Any], str | None], bytes]
    error: bytes


def _chat_end(counts: dict[str, Any], finish: str | None) -> bytes:
    last = delta(finish) if finish else b""
    return last + (event({"choices": [], "usage": counts}) if counts else b"") + DONE


def _line(**fields: Any) -> bytes:
    return json.dumps({"model": "toy", "created_at": "2026-11-23T12:00:00Z"} | fields).encode() + b"\n"


def _ollama_end(counts: dict[str, Any], finish: str | None) -> bytes:
    names = {"prompt_tokens": "prompt_eval_count", "completion_tokens": "eval_count"}
    counted = {names[name]: count for name, count in counts.items() if name in names}
    message = {"role": "assistant", "content": ""}
    return _line(message=message, done=True, done_reason=finish, **counted) if finish else b""


def _named(data: dict[str, Any]) -> bytes:
    return b"event: %s\n" % data["type"].encode() + event(data)


def _anthropic_end(counts: dict[str, Any], finish: str | None) -> bytes:
    counted = {"output_tokens": counts["completion_tokens"]} if counts else {}
    ended = {"type": "message_delta", "delta": {"stop_reason": finish}, "usage": counted}
    return (_named(ended) if finish else b"") + _named({"type": "message_stop"})


WORDINGS = {
    "chat": Wording(
        b"text/event-stream", delta(role="assistant", content=""), delta(content=" a"), _chat_end, event(ERROR)
    ),
    "ollama": Wording(
        b"application/x-ndjson", b"\n", _line(message={"role": "assistant", "content": " a"}, done=False), _ollama_end,
        _line(error="the engine died"),
    ),
    "anthropic": Wording(
        b"text/event-stream",
        _named({"type": "message_start", "message": {"usage": {"input_tokens": 8, "output_tokens": 1}}}),
        _named({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": " a"}}),
        _anthropic_end,
        _named({"type": "error"} | ERROR),
    ),
}  # fmt: skip


def wording_of(path: str) -> Wording:
    """That of the dialect whose path this one ends with; chat's for any other."""
    return next((words for name, words in WORDINGS.items() if path.endswith(DIALECTS[name].path)), WORDINGS["chat"])


def counted(prompt: int, completion: object) -> dict[str, Any]:
    """Usage that may count anything."""
    return usage(prompt, 0) | {"completion_tokens": completion}
