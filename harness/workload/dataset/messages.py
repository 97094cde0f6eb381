"""Messages as files have them, of any of three APIs and of ShareGPT, as this program sends them.

A message is OpenAI's: a text, and besides it what else its API has, such as the calls of tools and parts that are no
text. Anthropic's blocks become that. A message's role and its text have several names.
"""

from __future__ import annotations

from typing import Any

import msgspec

from harness.base import decoding
from harness.workload.request import Message

_USER, _ASSISTANT, _TOOL = "user", "assistant", "tool"
_ROLES = {
    "system": "system", "developer": "developer",
    "user": _USER, "human": _USER, "prompter": _USER,
    "assistant": _ASSISTANT, "gpt": _ASSISTANT, "chatgpt": _ASSISTANT, "bing": _ASSISTANT, "bard": _ASSISTANT,
    "model": _ASSISTANT, "ai": _ASSISTANT, "function_call": _ASSISTANT, "tool_call": _ASSISTANT,
    "tool": _TOOL, "function": _TOOL, "observation": _TOOL, "tool_response": _TOOL, "ipython": _TOOL,
}  # fmt: skip
# Fields of OpenAI's messages besides role and content; a field of another type is another tool's.
_KEPT = {"tool_calls": list, "function_call": dict, "tool_call_id": str, "name": str}
_TEXTS = ("text", "input_text", "output_text")


class Entry(msgspec.Struct, frozen=True):
    """One message of a file."""

    role: str | None = None
    speaker: str | None = msgspec.field(name="from", default=None)
    content: str | list[dict[str, Any]] | None = None
    value: str | list[dict[str, Any]] | None = None
    text: Any = None
    tool_calls: Any = None
    function_call: Any = None
    tool_call_id: Any = None
    name: Any = None
    type: Any = None  # type of an item of Responses
    call_id: Any = None
    arguments: Any = None
    output: Any = None


def messages(stored: list[Entry] | str) -> list[Message]:
    """Return the messages of a list, or of its JSON in a cell; raise ValueError for a role that nobody knows."""
    listed = msgspec.json.decode(stored, type=list[Entry]) if isinstance(stored, str) else stored
    return [message for number, each in enumerate(listed, 1) for message in _messages(each, number)]


def text(content: Any) -> str:
    """Return the text of a message or of a system prompt, which may be in parts."""
    if isinstance(content, list):
        return "".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
    return content if isinstance(content, str) else ""


def tools(found: Any, notes: list[str]) -> tuple[dict[str, Any], ...] | None:
    """Return definitions of tools as OpenAI's chat has them, of Anthropic's, of Responses' and of JSON in a cell."""
    if not found:
        return None
    try:
        listed = msgspec.json.decode(found) if isinstance(found, str) and found.strip() else found
        return tuple(_tool(each) for each in msgspec.convert(listed, list[dict[str, Any]])) or None
    except decoding.WRONG:
        notes.append("tools cannot be read and are left out")
        return None


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    if "function" in tool or "name" not in tool:
        return tool
    function = {name: value for name, value in tool.items() if name not in ("type", "input_schema", "cache_control")}
    schema = {"parameters": tool["input_schema"]} if "input_schema" in tool else {}
    return {"type": "function", "function": function | schema}


def _messages(entry: Entry, number: int) -> list[Message]:
    """Return an entry of a conversation as messages: the tool results among its parts, then the message itself.

    A call of a tool becomes the assistant's message; reasoning is left out. Raise ValueError for a role that is not
    known.
    """
    if entry.type == "function_call":
        call = {"name": entry.name, "arguments": entry.arguments}
        calls = [{"id": entry.call_id, "type": "function", "function": call}]
        return [Message(_ASSISTANT, "", {"tool_calls": calls})]
    if entry.type == "function_call_output":
        return [Message(_TOOL, text(entry.output), {"tool_call_id": entry.call_id})]
    if entry.type == "reasoning":
        return []
    role = _ROLES.get((entry.role or entry.speaker or "").strip().lower())
    if role is None:
        raise ValueError(f"message {number} has no role that is known: system, user, assistant or tool")
    more = {name: value for name, kind in _KEPT.items() if isinstance(value := getattr(entry, name), kind) and value}
    if not all(isinstance(call, dict) for call in more.get("tool_calls", ())):
        del more["tool_calls"]
    content = next((each for each in (entry.content, entry.value, entry.text) if each is not None), "")
    if not isinstance(content, list):
        return [Message(role, str(content), more or None)]
    results: list[Message] = []
    parts: list[dict[str, Any]] = []
    for part in content:
        kind = part.get("type")
        if kind == "tool_result":
            results.append(Message(_TOOL, text(part.get("content")), {"tool_call_id": part.get("tool_use_id")}))
        elif kind == "tool_use":
            function = {"name": part.get("name"), "arguments": msgspec.json.encode(part.get("input") or {}).decode()}
            more.setdefault("tool_calls", []).append({"id": part.get("id"), "type": "function", "function": function})
        elif kind not in ("thinking", "redacted_thinking"):
            parts.append(_part(part))
    if any(part["type"] != "text" for part in parts):
        more["content"] = parts
    if results and not parts:
        return results
    return [*results, Message(role, text(parts), more or None)]


def _part(part: dict[str, Any]) -> dict[str, Any]:
    """Return a content part in the form of OpenAI's chat API: texts and images of other APIs converted, others kept.

    Raise ValueError for a part with neither text nor type.
    """
    kind = part.get("type")
    if isinstance(part.get("text"), str) and kind in (None, *_TEXTS):
        return {"type": "text", "text": part["text"]}
    if kind == "input_image":
        return {"type": "image_url", "image_url": {"url": part.get("image_url")}}
    if kind == "image" and isinstance(source := part.get("source"), dict):
        url = source.get("url") or f"data:{source.get('media_type')};base64,{source.get('data')}"
        return {"type": "image_url", "image_url": {"url": url}}
    if not isinstance(kind, str):
        raise ValueError("a part of its messages has neither a text nor a type")
    return {name: value for name, value in part.items() if value is not None}
