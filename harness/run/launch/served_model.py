"""The model to measure: the one that is named, or the only one on the server's list.

A list need not be whole: gateways serve names that they do not list, and some show no list to a key that may ask. So a
named model is only doubted here, and the server's answer to the first request decides.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from harness.base.errors import HarnessError, nearest
from harness.base.terminal import few
from harness.load import control
from harness.load.control import Client, Page
from harness.load.transport import Target
from harness.run.launch import published, spoken
from harness.run.launch.endpoint import Address
from harness.run.launch.first_answers import LONGEST_BODY
from harness.run.launch.unreachable import is_https, not_served, redirected, server_words, speaks_tls, way_out_of
from harness.spec.scenario import Scenario

LIST_S = 60.0  # for the list of models, and for what tells the tokenizer, from connecting to the last byte
_ONE_MODEL = ("llamacpp", "sglang")  # owners whose servers have one model, which answers to any name
_MOST_NAMES = 10  # models of a list that are shown


class ServedModel(NamedTuple):
    """The model's name, and what the server publishes of it."""

    name: str
    limits: dict[str, Any]
    owner: object
    unlisted: HarnessError | None  # why it may not be served: the list lacks it; None: nothing says so
    models: tuple[str, ...]  # on the list


async def served_model(api: Client, scenario: Scenario, where: Address, *, any_model: bool = False) -> ServedModel:
    """The model to measure, by a resolved scenario; HarnessError where it cannot be told.

    A class's own model must be on the list, since no request tries it before the load. `any_model`: nothing need be.
    """
    wanted, within_s = scenario.target.model, min(LIST_S, scenario.target.request_timeout)
    listed = where.root + "/models"
    answer = await control.page(api, where.path(listed), within_s)
    _must_be_open(answer, scenario, where.place)
    status, place = answer.status, where.place + listed
    if status == 400 and await speaks_tls(where, Target(
        scheme=where.scheme, host=where.host, port=where.port, path="", headers={}, uds=where.uds)
    ):  # fmt: skip
        raise is_https(where.place)
    if (no := not_served(status, answer.text[:LONGEST_BODY] if status >= 500 else "", place)) is not None:
        raise no
    entries = published.entries(answer)
    served = [entry["id"] for entry in entries if published.is_name(entry.get("id"))]
    if wanted is None and status == 404 and where.root:
        await _must_not_lie_above(api, scenario, where, within_s)
    if wanted is None:
        wanted = _only(served, answer, where, has_entries=any("id" in entry for entry in entries))
    unlisted = None
    if served and not any_model and not published.goes_on(answer):
        for name in (each.model for each in scenario.class_ or () if each.model):
            if name not in (*served, wanted):
                raise _not_served(name, served, where.place)
        unlisted = None if wanted in served else _not_served(wanted, served, where.place)
    entry = next((entry for entry in entries if entry.get("id") == wanted), {})
    if not entry and len(entries) == 1 and entries[0].get("owned_by") in _ONE_MODEL:
        entry = entries[0]
    limits = await published.limits(api, where, entry, within_s)
    return ServedModel(wanted, limits, entry.get("owned_by"), unlisted, tuple(served))


def _must_be_open(answer: Page, scenario: Scenario, place: str) -> None:
    """HarnessError where the server wants a key for its list, unless a request may be allowed all the same."""
    status, target = answer.status, scenario.target
    has_key = bool(target.api_key_env or target.headers)
    if status not in (401, 403) or (target.model is not None and (has_key or status == 403)):
        return
    way_out = way_out_of(status, target)
    if not has_key:
        raise HarnessError(f"it asks for a key ({status})", place=place, way_out=way_out)
    words = server_words(status, answer.text[:LONGEST_BODY])
    raise HarnessError(words, place=place, way_out=f"{way_out}, or give --model")


async def _must_not_lie_above(api: Client, scenario: Scenario, where: Address, within_s: float) -> None:
    """HarnessError with the address that works where the list of models, and so the API, is there without `/v1`."""
    found = published.entries(await control.page(api, where.path("/models"), within_s))
    names = [entry["id"] for entry in found if published.is_name(entry.get("id"))]
    if not names:
        return
    bare = await spoken.without_root(api, where, scenario.target.api, names[0], within_s)
    way_out = f"give {bare}" if bare else f"give --model, one of: {few(names, _MOST_NAMES)}"
    fact = f"it has its list of models at /models, not at {where.root}/models"
    raise HarnessError(fact, place=where.place, way_out=way_out)


def _only(served: list[str], answer: Page, where: Address, *, has_entries: bool) -> str:
    """The one model of a list; HarnessError where it has several, or none whose name can be sent."""
    status, listed = answer.status, where.root + "/models"
    place = where.place + listed
    if len(served) == 1:
        return served[0]
    if served:
        way_out = f"give --model, one of: {few(served, _MOST_NAMES)}"
        raise HarnessError(f"it serves {len(served):,} models", place=where.place, way_out=way_out)
    if has_entries:
        raise HarnessError("it serves a model whose name is no text on one line", place=place, way_out="give --model")
    named = where.api_path(where.api, where.model or None) if where.api else where.path("")  # of the URL that is given
    path, end = where.path(listed), named.removeprefix(where.prefix)
    if (moved := redirected(status, answer.headers, where.base, path, cut=listed, instead=end)) is not None:
        raise moved
    if "html" in answer.headers.get("content-type", ""):
        raise HarnessError("it answers with HTML, not JSON", place=place, way_out="is it the API's address?")
    way_out = "check the address, or give --model" if status == 404 else "give --model"
    raise HarnessError(f"it does not say what it serves ({status})", place=place, way_out=way_out)


def _not_served(name: str, served: list[str], place: str) -> HarnessError:
    return HarnessError(f"it does not serve '{name}'", place=place, way_out=nearest(name, served))
