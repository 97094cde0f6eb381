"""Streams in the shapes that real servers send: two tokens and an end, as bytes. Used by several tests."""

from __future__ import annotations

import json
from typing import Any


def event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def delta(finish: str | None = None, usage: dict[str, Any] | None = None, **fields: Any) -> bytes:
    data: dict[str, Any] = {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}
    return event(data | ({"usage": usage} if usage else {}))


def usage(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


DONE = b"data: [DONE]\n\n"
END = event({"choices": [], "usage": usage(7, 2)})

VLLM = delta(role="assistant", content="") + delta(content=" a") + delta("length", content=" b") + END + DONE
VLLM_CONTINUOUS = (
    delta(usage=usage(7, 0), role="assistant", content="")
    + delta(usage=usage(7, 1), content=" a")
    + delta("length", usage=usage(7, 2), content=" b")
    + END
    + DONE
)
TRANSFORMERS = delta(role="assistant") + delta(content=" a") + delta(content=" b") + delta("length", usage=usage(7, 2))
LLAMA_SERVER = (
    delta(role="assistant", content=None) + delta(content=" a") + delta(content=" b") + delta("length")
    + event({"choices": [], "usage": usage(7, 2), "timings": {"predicted_n": 2}}) + DONE
)  # fmt: skip
SGLANG = (
    delta(role="assistant", content="", reasoning_content=None, tool_calls=None)
    + delta(content=" a", reasoning_content=None, tool_calls=None)
    + delta(content=" b", reasoning_content=None, tool_calls=None)
    + delta({"type": "length"}["type"], content=None)
    + END
    + DONE
)
OPENAI = (
    b": keep-alive\n\n" + delta(role="assistant", content="", refusal=None) + delta(content=" a") + delta(content=" b")
    + delta("stop") + END + DONE
)  # fmt: skip
COMPLETIONS = (
    event({"choices": [{"index": 0, "text": " a", "finish_reason": None}]})
    + event({"choices": [{"index": 0, "text": " b", "finish_reason": "length"}], "usage": usage(7, 2)})
    + DONE
)
ALL = {
    "vllm": VLLM, "vllm continuous": VLLM_CONTINUOUS, "transformers serve": TRANSFORMERS, "llama-server": LLAMA_SERVER,
    "sglang": SGLANG, "openai": OPENAI, "completions": COMPLETIONS,
}  # fmt: skip
