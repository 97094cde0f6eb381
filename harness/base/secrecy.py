"""What must not be shown: which names are of secrets, where secrets come from, and any text without them.

What comes from outside may hold what was sent there: servers echo keys in their errors. So every text of theirs goes
through `redact` before it is stored or printed, and what an operator wrote goes by its name. A secret that is written
`env:NAME` is only named: such a scenario can be kept, printed and repeated.

Left out: what an echo has been put through before (a hash, another alphabet), and a piece shorter than 8 characters.
"""

from __future__ import annotations

import base64
import binascii
import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote

from harness.base.errors import HarnessError

HIDDEN = "(not stored)"  # in place of a value that the operator gave
GONE = "(hidden)"  # in place of a secret in a text
_PIECE = 8  # characters: the longest piece of a secret that may be left of one that was cut off

_HARMLESS_HEADERS = {"accept", "content-type", "user-agent"}  # any other's value may be a secret
_SCHEMES = {"apikey", "basic", "bearer", "key", "token"}  # words of a header's value that stand before the secret
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_ANYWHERE = {"apikey", "authorization", "credential", "credentials", "passphrase", "passwd", "password", "secret"}
_AT_THE_END = {"auth", "key", "keys", "token", "tokens"}  # `max_tokens` is a number, and only texts are secrets
_VARIABLE = re.compile(r"(\S+ )?env:([A-Za-z_][A-Za-z0-9_]*)")


def secret_header(name: str) -> bool:
    """Return whether a header's value may be a secret."""
    return name.lower() not in _HARMLESS_HEADERS


def secret_field(name: str) -> bool:
    """Return whether a text under this name of a JSON object is to be taken for a secret.

    >>> [name for name in ("apiKey", "hf_token", "client_secret_id", "token_ids", "top_k") if secret_field(name)]
    ['apiKey', 'hf_token', 'client_secret_id']
    """
    words = [word.lower() for word in _WORD.findall(name)]
    return bool(words) and (words[-1] in _AT_THE_END or not _ANYWHERE.isdisjoint(words))


def names_a_variable(text: str) -> bool:
    """Return whether a value is only the name of a secret, `env:NAME`, with or without a scheme before it."""
    return _VARIABLE.fullmatch(text) is not None


def variables(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield every variable that JSON data names by `env:NAME`, with the path of the text that does.

    >>> list(variables({"user": "me", "auth": ["Bearer env:A_KEY"]}, "$.extra_body"))
    [('A_KEY', '$.extra_body.auth[0]')]
    """
    if isinstance(value, dict):
        for name, each in value.items():
            yield from variables(each, f"{path}.{name}")
    elif isinstance(value, list):
        for i, each in enumerate(value):
            yield from variables(each, f"{path}[{i}]")
    elif isinstance(value, str) and (match := _VARIABLE.fullmatch(value)):
        yield match[2], path


def resolved(text: str, environ: Mapping[str, str], place: str) -> str:
    """Return the value that `env:NAME` names; any other text is itself.

    Raise HarnessError if the variable is unset or empty, and for a value that was hidden when it was stored.

    >>> resolved("Bearer env:MY_KEY", {"MY_KEY": "s3cret"}, "--header")
    'Bearer s3cret'
    """
    if text == HIDDEN:
        raise HarnessError("its value is not stored", place=place, way_out="give it again, or name it: env:VARIABLE")
    match = _VARIABLE.fullmatch(text)
    if match is None:
        return text
    value = environ.get(match[2])
    if not value:
        what = "is not set" if value is None else "is empty"
        raise HarnessError(f"the variable {match[2]} {what}", place=place, way_out=f"export {match[2]}=…")
    return (match[1] or "") + value


def mapped(value: Any, change: Callable[[str, bool], str], *, secret: bool = False) -> Any:
    """Return JSON data with `change(text, whether it is under a secret's name)` in place of every text."""
    if isinstance(value, dict):
        return {name: mapped(each, change, secret=secret or secret_field(name)) for name, each in value.items()}
    if isinstance(value, list):
        return [mapped(each, change, secret=secret) for each in value]
    return change(value, secret) if isinstance(value, str) else value


def shown(value: Any) -> Any:
    """Return JSON data with HIDDEN in place of the texts under a secret's name.

    >>> shown({"api_key": "s3cret", "user": "me", "auth": ["env:A_KEY"]})
    {'api_key': '(not stored)', 'user': 'me', 'auth': ['env:A_KEY']}
    """
    return mapped(value, lambda text, secret: HIDDEN if secret and not names_a_variable(text) else text)


def credentials(value: str) -> Iterator[str]:
    """Yield what is secret of a header's value: without its scheme, and the password that Basic wraps."""
    scheme, found, rest = value.partition(" ")
    if not found or scheme.lower() not in _SCHEMES:
        yield value
        return
    yield rest.strip()
    if scheme.lower() == "basic":
        try:
            yield base64.b64decode(rest, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):  # then it is not wrapped
            return


def of_proxies(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the passwords in the addresses of the environment's proxies, as they are and as Basic wraps them."""
    for name, value in environ.items():
        match = re.search(r"//([^@/]*)@", value) if name.lower().endswith("_proxy") else None
        if match:
            user, colon, password = match[1].partition(":")
            yield from {password if colon else user, unquote(password if colon else user)}
            yield base64.b64encode(unquote(match[1] if colon else f"{user}:").encode()).decode()


def plain(text: str) -> str:
    """Return what shows of a server's words, on one line: so that a secret in them is not cut up by what does not.

    >>> plain("no such\\tkey: s\\x003\\x1bcret")
    'no such key: s3cret'
    """
    return " ".join("".join(c for c in text if c.isprintable() or c.isspace()).split())


def redact(text: str, secrets: Iterable[str]) -> str:
    """Return the text without the secrets, as they are or as JSON, URLs and HTML write them.

    Every piece of 8 characters is hidden, so that one which was cut off is hidden too; a secret shorter than that only
    where it is alone.

    >>> redact('{"error": "no such key: sk-0123456789abcdef"}', ["sk-0123456789abcdef"])
    '{"error": "no such key: (hidden)"}'
    >>> redact("no such key: sk-0123456…", ["sk-0123456789abcdef"])
    'no such key: (hidden)…'
    """
    pieces, short = _patterns(tuple(secrets))
    if short is not None:
        text = short.sub(GONE, text)
    out, end = [], -1
    for i in range(len(text) - _PIECE + 1 if pieces else 0):
        if text[i : i + _PIECE] in pieces:
            if i > end:
                out += [text[max(0, end) : i], GONE]
            end = i + _PIECE
    return "".join([*out, text[max(0, end) :]])


def redact_all(value: Any, secrets: Iterable[str]) -> Any:
    """Return JSON data whose texts, names included, hold no secret."""
    if isinstance(value, dict):
        return {redact(name, secrets): redact_all(each, secrets) for name, each in value.items()}
    if isinstance(value, list):
        return [redact_all(each, secrets) for each in value]
    return redact(value, secrets) if isinstance(value, str) else value


@functools.lru_cache(maxsize=8)
def _patterns(secrets: tuple[str, ...]) -> tuple[frozenset[str], re.Pattern[str] | None]:
    """Return every piece of the secrets that has _PIECE characters, and a pattern of the secrets that are shorter."""
    forms = {form for secret in secrets for form in _forms(secret) if form}
    pieces = {form[i : i + _PIECE] for form in forms for i in range(len(form) - _PIECE + 1)}
    short = sorted((re.escape(form) for form in forms if len(form) < _PIECE), key=len, reverse=True)
    return frozenset(pieces), re.compile(rf"(?<!\w)(?:{'|'.join(short)})(?!\w)") if short else None


def _forms(secret: str) -> Iterator[str]:
    """Yield the spellings in which a server may send a secret back: plain, in JSON, in a URL, in HTML."""
    yield secret
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret)[1:-1].replace("/", r"\/")
    yield quote(secret, safe="")
    import html  # its table of entities is large, and most commands hide nothing

    yield html.escape(secret)
