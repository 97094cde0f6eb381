"""The body of a request: JSON that a client writes and a server reads, the same in all but where the prompt is."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from harness.workload.request import Message, Request

_json = msgspec.json.Encoder().encode

_MOST_SHARED = 10_000  # classes and lengths of answers whose bodies are remembered
_UNNATURAL = ("ignore_eos", "min_tokens")  # they make an answer longer than the model ends it
_SETTINGS = ("options", "parameters")  # some APIs have all settings here: the operator's are added to them

Tools = Sequence[dict[str, Any]]  # definitions of functions, as OpenAI's API has them


class Settings(msgspec.Struct, frozen=True):
    """What a body says besides its prompt."""

    model: str
    output_tokens: int
    stream: bool


class PromptEncoder:
    """The bodies of one run's requests; what those with a plain prompt share is written once for each length of answer.

    `prompt` makes the fields that hold messages and tools, `fields` all others. `drop` are the fields to leave out,
    `extra` those that the operator adds, `classes` those that the requests of a class have of their own; `stream` has
    the answers come piece by piece, where the API can do both.
    """

    def __init__(
        self,
        prompt: Callable[[Sequence[Message], Tools], dict[str, Any]],
        fields: Callable[[Settings], dict[str, Any]],
        model: str,
        *,
        drop: frozenset[str] = frozenset(),
        extra: dict[str, Any] | None = None,
        classes: Mapping[str, dict[str, Any]] | None = None,
        stream: bool = True,
    ) -> None:
        self._prompt, self._settings = prompt, fields
        self._model = model
        self._drop = drop
        self._extra = extra or {}
        self._classes = classes or {}
        self._stream = stream
        self._around: dict[tuple[str, int], tuple[bytes, bytes]] = {}  # by class and output tokens

    def encode(self, request: Request) -> bytes:
        """Return the request's body."""
        prompt = request.prompt
        if type(prompt) is not str or request.tools is not None or request.images:
            messages = _messages(prompt) if isinstance(prompt, str) else prompt
            fields = self._fields(request.class_, request.output_tokens)
            fields |= self._prompt(messages, request.tools or ())
            if request.canary is not None:
                fields = _natural(fields)
            if request.images:
                fields["messages"] = [*fields["messages"][:-1], _with_images(messages[-1], request.images)]
            return _json(fields)
        key = request.class_, request.output_tokens
        around = self._around.get(key)
        if around is None:
            if len(self._around) == _MOST_SHARED:
                self._around.clear()
            around = self._around[key] = self._shared(*key)
        return b"".join((around[0], _json(prompt), around[1]))

    def _shared(self, class_: str, output_tokens: int) -> tuple[bytes, bytes]:
        """Return what comes before the prompt's JSON string, and after it."""
        mark = "\x00prompt\x00"
        fields = self._fields(class_, output_tokens) | self._prompt(_messages(mark), ())
        before, after = json.dumps(msgspec.to_builtins(fields)).split(json.dumps(mark))
        return before.encode(), after.encode()

    def _fields(self, class_: str, output_tokens: int) -> dict[str, Any]:
        """Return all that a body holds but its prompt."""
        fields = without(self._settings(Settings(self._model, output_tokens, self._stream)), self._drop)
        fields.update(self._classes.get(class_, {}))
        for name, value in self._extra.items():
            both = name in _SETTINGS and isinstance(value, dict)
            fields[name] = fields.get(name, {}) | value if both else value
        return fields


def without(fields: dict[str, Any], drop: frozenset[str]) -> dict[str, Any]:
    """Return the fields but for those to leave out, each by its path; max_tokens goes by its newer name.

    >>> without({"max_tokens": 8, "options": {"seed": 1, "top_k": 1}}, frozenset({"max_tokens", "options.seed"}))
    {'max_completion_tokens': 8, 'options': {'top_k': 1}}
    """
    if "max_tokens" in drop:
        fields = {"max_completion_tokens" if name == "max_tokens" else name: each for name, each in fields.items()}
    for path in drop - {"max_tokens"}:
        table, _, name = path.rpartition(".")
        for each in (fields, *(fields[key] for key in _SETTINGS if key in fields)):
            inner = each.get(table, {}) if table else each
            if inner.pop(name, None) is not None and not inner:
                each.pop(table, None)
    return fields


def _natural(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an answer that ends where the model ends it, at temperature 0."""
    natural = {name: value for name, value in fields.items() if name not in _UNNATURAL}
    if "temperature" in natural:
        natural["temperature"] = 0.0
    if isinstance(settings := natural.get("options"), dict):
        natural["options"] = _natural(settings)
    if isinstance(settings := natural.get("parameters"), dict):  # TGI's, which refuse 0 and take the likeliest without
        left_out = (*_UNNATURAL, "temperature")
        natural["parameters"] = {name: value for name, value in settings.items() if name not in left_out}
    return natural


def _with_images(message: Message, images: Sequence[str]) -> dict[str, Any]:
    """Return a message with image parts behind its text, as OpenAI's chat has them."""
    parts: list[dict[str, Any]] = [*message.parts] or [{"type": "text", "text": message.content}]
    parts += [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}} for image in images]
    return {"role": message.role, "content": parts}


def openai_fields(settings: Settings) -> dict[str, Any]:
    """Return the fields of OpenAI's chat and completions, with vLLM's `ignore_eos` and running usage."""
    fields: dict[str, Any] = {"model": settings.model, "max_tokens": settings.output_tokens, "stream": settings.stream}
    fields["temperature"] = 0.0
    fields["ignore_eos"] = True  # the length that was asked for, not the length that the model likes
    if settings.stream:
        fields["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    return fields


def one_text(messages: Sequence[Message], tools: Tools) -> str:
    """Return a prompt for an API without messages: definitions of tools and each message, a blank line between."""
    definitions = [_json(tools).decode()] if tools else []
    return "\n\n".join([*definitions, *(message.text for message in messages)])


def openai_messages(messages: Sequence[Message]) -> list[Message | dict[str, Any]]:
    """Return messages as OpenAI's chat has them: calls of tools, the results of these and parts besides the text.

    >>> openai_messages([Message("tool", "12 C", {"tool_call_id": "c1"})])
    [{'role': 'tool', 'content': '12 C', 'tool_call_id': 'c1'}]
    """
    return [
        each
        if each.more is None
        else {"role": each.role, "content": each.content or (None if each.role == "assistant" else ""), **each.more}
        for each in messages
    ]


def calls(message: Message) -> list[tuple[str, str, str]]:
    """Return (id, name, arguments as JSON) of each call of a tool in a message that can be answered."""
    found = [(call.get("id"), call.get("function") or {}) for call in message.calls]
    texts = [(id_, of.get("name"), of.get("arguments") or "{}") for id_, of in found]
    return [(i, n, a if isinstance(a, str) else _json(a).decode()) for i, n, a in texts if i and n]


def _messages(text: str) -> tuple[Message, ...]:
    return (Message("user", text),)


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Part(msgspec.Struct):
    text: str = ""


class SentMessage(msgspec.Struct):
    role: str
    content: str | list[Part] | None = None


class Body(msgspec.Struct, kw_only=True):
    """What a server reads of a body: the fields that change the answer. All others are let through, as vLLM does."""

    messages: list[SentMessage] | None = None
    prompt: str | list[str | int] | None = None
    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    priority: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


read_body = msgspec.json.Decoder(Body).decode


def message_texts(body: Body) -> list[str]:
    """Return the texts of a body's messages; raise ValueError if it has none."""
    if not body.messages:
        raise ValueError("messages must be a list with at least one message")
    texts = []
    for message in body.messages:
        content = message.content or ""
        texts += [content] if isinstance(content, str) else [part.text for part in content]
    return texts


def prompt_texts(body: Body) -> list[str]:
    """Return a body's prompt, or as many words as it has token ids; raise ValueError if it has none."""
    prompt, texts = body.prompt, list[str]()
    if isinstance(prompt, list) and all(isinstance(each, int) for each in prompt):
        texts = [str(token) for token in prompt]
    elif isinstance(prompt, list) and len(prompt) == 1:
        texts = [str(prompt[0])]
    elif isinstance(prompt, str):
        texts = [prompt]
    if not any(text.strip() for text in texts):
        raise ValueError("prompt must be one text or one list of token ids, and not empty")
    return texts
