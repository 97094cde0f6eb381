"""Several replicas as one endpoint: their addresses in a scenario's [target], and how requests are balanced over them.

`url` is always the first of `urls`, so that what needs one server has one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

from msgspec import UnsetType

from harness.spec.bounds import Must

Balance = Literal["round-robin", "least-in-flight", "session"]
ROUND_ROBIN: Balance = "round-robin"
LEAST_IN_FLIGHT: Balance = "least-in-flight"
SESSION: Balance = "session"
# Kinds of errors that say that a replica does not serve; what it refuses (4xx) is none of them.
LOST = frozenset(("refused", "connect", "reset", "truncated", "tls", "protocol", "client_deadline", "http_5xx"))
MOST = 64  # replicas; every one is asked for its model before the load

_OF_A_FLEET = ("balance", "allow_different_replicas")  # fields that one server has no use for


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


def check(target: Any, must: Must, *, sessions: bool, swept: bool) -> None:
    """Refuse replicas that cannot be told apart, and what needs several. `sessions`: requests may have one."""
    replicas = target.urls or []
    if target.urls == []:
        must(False, "target.urls", "no url in it", "write ['http://a:8000', 'http://b:8000']")
    must(not replicas or target.url == replicas[0], "target.url", "url and urls exclude each other", "leave url out")
    must(len(replicas) <= MOST, "target.urls", f"{len(replicas):,} replicas are too many", f"give {MOST} or less")
    must(len(set(replicas)) == len(replicas), "target.urls", "a url stands twice", "write each url once")
    must("sim:" not in replicas, "target.urls", "sim: is one endpoint", "start several by `knee sim`, give their urls")
    must(not (replicas and swept), "target.urls", "a level map has one server a cell", "leave urls out")
    must(
        not (len(replicas) > 1 and target.metrics_url), "target.metrics_url",
        "it is one page, and there are several replicas", "leave it out: each replica's /metrics is read",
    )  # fmt: skip
    for name in _OF_A_FLEET:
        given = bool(getattr(target, name))
        must(not given or bool(replicas), f"target.{name}", "there is one server", "give --url several times")
    for name, given in (("balance", target.balance == SESSION), ("session_header", bool(target.session_header))):
        must(
            not given or sessions, f"target.{name}", "no request has a session", "give [workload.session] or --dataset"
        )
