"""What a server's refusal says: which field it does not take, and what such an answer is called in a record."""

from __future__ import annotations

import re

# Sent if the server takes them, the least missed first; left out when the first request is refused with them
# (docs/definitions.md, Words of a run). In place of max_tokens its newer name is sent.
OPTIONAL = (
    "ignore_eos",
    "stream_options.continuous_usage_stats",
    "stream_options.include_usage",
    "stream_options",
    "temperature",
    "max_tokens",
)
# Servers name this one in other complaints too ("max_tokens is too large").
_REFUSED = re.compile(
    r"unsupported|not support|not allowed|not permitted|unknown|unexpected|unrecognized|extra inputs|deprecated"
    r"|max_completion_tokens",
    re.I,
)
_NO_LETTER = re.compile(r"[\W_]")
_FEW = 2  # fields that one error may be about


def refused_field(message: str, sent: list[str]) -> str | None:
    """Return which of the optional fields that were sent an error names, in whatever words; None if it names none.

    An error that names all of them repeats the request.

    >>> refused_field("unknown: ignoreEos", ["ignore_eos"]), refused_field("max_tokens is too large", ["max_tokens"])
    ('ignore_eos', None)
    >>> refused_field("use 'max_completion_tokens' instead of 'max_tokens'", ["max_tokens"])
    'max_tokens'
    """
    words = _NO_LETTER.sub("", message.replace("max_completion_tokens", "")).lower()
    named = [name for name in sent if name.rpartition(".")[2].replace("_", "") in words]
    if len(named) == len(sent) > _FEW:
        return None
    return next((name for name in named if name != "max_tokens" or _REFUSED.search(message)), None)


def http_error(status: int, message: str) -> str:
    """Return the error name of an answer that is no stream: http_429, http_4xx, http_5xx, or oom where it says so."""
    if "out of memory" in message.lower():
        return "oom"
    return "http_429" if status == 429 else f"http_{min(status // 100, 5)}xx"  # RFC 9110, 15: beyond 599 is a 5xx
