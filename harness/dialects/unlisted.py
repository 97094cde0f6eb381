"""What an event says in fields that no dialect lists: text of the model, or the words of an error.

It is looked at where the fields that are known showed nothing, so it costs nothing on the way of the common event.
"""

from __future__ import annotations

import functools
import re
from typing import Any, NamedTuple

import msgspec

MOST = 2**31 - 1  # tokens: a count above it is none
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # the last: nested too deep
# Strings that no model wrote: names, kinds, encrypted or repeated forms of the text.
_NO_TEXT = frozenset((
    "role", "type", "id", "index", "format", "signature", "object", "model", "status", "logprobs", "obfuscation",
    "data", "encrypted_content", "finish_reason", "stop_reason", "stop_sequence", "service_tier", "system_fingerprint",
    "annotations", "citations",
))  # fmt: skip
_LABELS = frozenset(("name", "channel", "recipient", "author", "provider", "phase"))  # labels of a delta as a whole
_WORDS = ("error", "errors", "detail", "message", "msg", "error_message", "error_msg")
_LONGEST_KEPT = 512  # bytes of choices that are remembered with what was found in them
_LONGEST_NAME = 40  # characters of a name that are kept: it is the server's
# What other APIs call the tokens of a prompt and of an answer, as do gateways in front of them.
_PROMPT = re.compile("(prompt|input)_?tokens?(_?count)?", re.I)
_ANSWER = re.compile("(completion|output|candidates|generated)_?tokens?(_?count)?", re.I)


class Look(NamedTuple):
    """What an event brings that no schema lists; empty where it brings nothing."""

    field: str = ""  # the unlisted field that has text
    text: str = ""
    role: bool = False  # whether the choice names a role
    choice: int = 0  # its number
    words: str = ""  # an error's


class _Event(msgspec.Struct):
    choices: msgspec.Raw = msgspec.Raw()


_choices = msgspec.json.Decoder(_Event).decode


def look(event: bytes) -> Look:
    """Return what an event shows without a schema: text in an unlisted field, its role, choice and error words.

    All are empty where it cannot be read.

    >>> look(b'{"choices": [{"delta": {"role": "assistant", "thinking": "hm"}}]}')
    Look(field='thinking', text='hm', role=True, choice=0, words='')
    >>> look(b'{"detail": "busy"}').words
    'busy'
    """
    try:
        choices = bytes(_choices(event).choices)
        found = (_in_choices_kept if len(choices) < _LONGEST_KEPT else _in_choices)(choices)
        if found is None:
            whole = msgspec.json.decode(event, type=dict[str, Any])
            found = _in_choice(whole) or Look(words=error_words(whole))
        return found
    except (*UNREADABLE, AttributeError, LookupError, TypeError):  # the event has another form
        return Look()


def _in_choices(listed: bytes) -> Look | None:
    """Return what the first choice of a JSON list of choices brings; None for an empty list or none."""
    choices = msgspec.json.decode(listed or b"null")
    return (_in_choice(choices[0]) or Look()) if choices else None


# Answers begin with the same choices and end with the same, whatever else their events hold.
_in_choices_kept = functools.lru_cache(maxsize=64)(_in_choices)


def _in_choice(choice: dict[str, Any]) -> Look | None:
    """Return what a choice brings; None if that is no object."""
    delta = choice.get("delta", choice.get("message"))
    if isinstance(delta, str) and "delta" in choice:
        delta = {"delta": delta}
    if not isinstance(delta, dict):
        return None
    unlisted = ((name, text) for name, value in delta.items() if name not in _LABELS and (text := texts({name: value})))
    field, text = next(unlisted, ("", ""))
    return Look(printable(field), text, "role" in delta, choice.get("index") or 0)


def counts(event: bytes) -> tuple[int | None, int, str] | None:
    """Return (tokens of the prompt, of the answer, where they stand) from an event, by any names; None: it has none.

    >>> counts(b'{"x_groq": {"usage": {"inputTokens": 7, "outputTokens": 16}}}')
    (7, 16, 'usage')
    """
    try:
        pending: list[tuple[str, Any]] = [("event", msgspec.json.decode(event))]
    except UNREADABLE:
        return None
    while pending:
        name, each = pending.pop()
        if isinstance(each, list):
            pending += [(name, inner) for inner in each]
        elif isinstance(each, dict):
            prompt, answer = (_count(each, names) for names in (_PROMPT, _ANSWER))
            if answer is not None:
                return prompt, answer, printable(name)
            pending += each.items()
    return None


def _count(fields: dict[str, Any], names: re.Pattern[str]) -> int | None:
    values = (value for name, value in fields.items() if names.fullmatch(name))
    return next((each for each in values if type(each) is int and 0 < each < MOST), None)


def printable(name: str) -> str:
    """Return a server's name for something as a note has it: short, without what notes are parted by.

    >>> printable("a,b\\n" + "c" * 99)
    'a_b_cccccccccccccccccccccccccccccccccccc'
    """
    return "".join(each if each.isprintable() and each != "," else "_" for each in name[:_LONGEST_NAME])


def texts(value: Any) -> str:
    """Return all text in a value, however deep; without the strings that no model writes.

    >>> texts([{"type": "reasoning.text", "text": " hm", "index": 0}])
    ' hm'
    """
    if isinstance(value, dict):
        return "".join(texts(each) for name, each in value.items() if name not in _NO_TEXT and name[-3:] != "_id")
    if isinstance(value, list):
        return "".join(map(texts, value))
    return value if isinstance(value, str) else ""


def error_words(value: Any) -> str:
    """Return the words of an error in place of an answer, whoever made its envelope; "": it is none.

    >>> error_words({"success": False, "code": 1004, "msg": "the key has expired"})
    'the key has expired'
    >>> error_words({"error": {"message": "busy", "code": 503}}), error_words({"code": 0, "message": "ok"})
    ('busy', '')
    """
    if not isinstance(value, dict) or value.get("choices") or value.get("success") is True:
        return ""
    code = value.get("code")
    if "code" in value and code in (0, 200, "0", "200", "ok"):
        return ""
    if not code and value.get("type") in ("ping", "status", "heartbeat"):
        return ""
    failed = code or value.get("success") is False or "error" in (value.get("object"), value.get("type"))
    return _words(value) or (msgspec.json.encode(value).decode() if failed else "")


def _words(value: Any) -> str:
    """Return the first words in a value, by the names that words have."""
    if isinstance(value, dict):
        value = [value[name] for name in _WORDS if name in value]
    if isinstance(value, list):
        return next(filter(None, map(_words, value)), "")
    return value if isinstance(value, str) else ""
