"""What a server's refusal says: which field it does not take, and what such an answer is called in a record."""

from __future__ import annotations

import re

# Asked for where the server takes them; dropped when the first request says that it does not
# (docs/definitions.md, Words of a run).
OPTIONAL = ("ignore_eos", "stream_options.continuous_usage_stats", "stream_options")
# These every server knows, and names in other complaints too ("max_tokens is too large"): dropped only if refused.
REFUSABLE = ("max_tokens", "temperature")
_REFUSED = re.compile(
    r"unsupported|not support|not allowed|not permitted|unknown|unexpected|unrecognized|extra inputs|deprecated", re.I
)


def refused_field(message: str, drop: frozenset[str]) -> str | None:
    """Which optional field a 400 or 422 complains about, if it names one that is still sent.

    >>> refused_field("Unknown field 'ignore_eos'", frozenset())
    'ignore_eos'
    >>> refused_field("'max_tokens' is not supported: use 'max_completion_tokens'", frozenset())
    'max_tokens'
    """
    for name in OPTIONAL:
        if name not in drop and name.rpartition(".")[2] in message:
            return name
    if _REFUSED.search(message):
        for name in REFUSABLE:
            if name not in drop and re.search(rf"\b{name}\b", message):
                return name
    return None


def http_error(status: int, message: str) -> str:
    """The error name of an answer that is no stream: http_429, http_4xx, http_5xx, or oom where it says so."""
    if "out of memory" in message.lower():
        return "oom"
    return "http_429" if status == 429 else f"http_{min(status // 100, 5)}xx"  # RFC 9110, 15: beyond 599 is a 5xx
