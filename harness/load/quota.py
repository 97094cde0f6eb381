"""What a hosted API publishes of its quota in the headers of its answers. Pure: headers in, figures out.

OpenAI's names (x-ratelimit-remaining-requests and the like), which many hosts share, Anthropic's, and Retry-After. Left
out: reset times that are moments, not durations.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

NAMES = {  # header: our name
    "x-ratelimit-limit-requests": "limit_requests",
    "x-ratelimit-limit-tokens": "limit_tokens",
    "x-ratelimit-remaining-requests": "remaining_requests",
    "x-ratelimit-remaining-tokens": "remaining_tokens",
    "x-ratelimit-reset-requests": "reset_requests_s",
    "x-ratelimit-reset-tokens": "reset_tokens_s",
    "anthropic-ratelimit-requests-limit": "limit_requests",
    "anthropic-ratelimit-tokens-limit": "limit_tokens",
    "anthropic-ratelimit-requests-remaining": "remaining_requests",
    "anthropic-ratelimit-tokens-remaining": "remaining_tokens",
    "retry-after": "retry_after_s",
}
_LONGEST = 40  # characters of a value
_MOST = 1e15  # of anything that a quota counts
_PART = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)(ms|s|m|h|d|$)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "": 1.0}


def figures(headers: Mapping[str, str]) -> dict[str, float]:
    """The figures of one answer's headers (names in lower case); what cannot be read is left out.

    >>> figures({"x-ratelimit-remaining-requests": "59", "x-ratelimit-reset-tokens": "6m0.5s", "date": "x"})
    {'remaining_requests': 59.0, 'reset_tokens_s': 360.5}
    """
    found = {}
    for header, name in NAMES.items():
        if header in headers and (value := _value(headers[header])) is not None:
            found[name] = value
    return found


def _value(text: str) -> float | None:
    """A count, or a duration in seconds: '59', '1s', '6m0s', '12ms'."""
    total, at = 0.0, 0
    text = text.strip()
    if not text or len(text) > _LONGEST or not text.isascii():
        return None
    while at < len(text):
        part = _PART.match(text, at)
        if part is None:
            return None
        total, at = total + float(part[1]) * _SECONDS[part[2]], part.end()
    return total if math.isfinite(total) and total < _MOST else None
