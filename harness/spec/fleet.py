"""Several replicas as one endpoint: their addresses in a scenario's [target], and how requests are balanced over them.

`url` is always the first of `urls`, so that what needs one server has one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import UnsetType

# Kinds of errors that say that a replica does not serve; what it refuses (4xx) is none of them.
LOST = frozenset(("refused", "connect", "reset", "truncated", "tls", "protocol", "client_deadline", "http_5xx"))
MOST = 64  # replicas; every one is asked for its model before the load


class Target(Protocol):
    """What is read here of a scenario's [target]."""

    @property
    def url(self) -> str | None: ...
    @property
    def urls(self) -> list[str] | UnsetType: ...


def read(target: Mapping[str, Any]) -> dict[str, Any]:
    """The plain data of a [target] table, with the first of its `urls` as its `url` too.

    >>> read({"urls": ["http://a", "http://b"]})["url"]
    'http://a'
    """
    found = dict(target)
    urls = found.get("urls")
    if isinstance(urls, list) and urls:
        found.setdefault("url", urls[0])
    return found


def urls(target: Target) -> list[str]:
    """The address of every replica; of one server its own, none where the scenario names none."""
    return list(target.urls or ([target.url] if target.url is not None else []))
