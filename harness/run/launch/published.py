"""What a server publishes about itself before any load: its models, their limits, its version, where its figures are.

The model to measure is the one that is named, or the only one on the server's list. A list need not be whole: gateways
serve names that they do not list, and some show no list to a key that may ask. So a named model is only doubted here,
and the server's answer to the first request decides.

Servers differ, and most publish little: the rest stays unknown. Only a page that the operator named (`--metrics-url`)
must be there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from harness.base.errors import HarnessError, nearest
from harness.base.secrecy import redact
from harness.base.terminal import few
from harness.load import control
from harness.load.client import client
from harness.load.control import Client, Page
from harness.load.transport import Target
from harness.observe import server
from harness.run.launch import answers
from harness.run.launch.answers import LONGEST_BODY, not_served, redirected, server_words, way_out_of
from harness.run.launch.endpoint import Address, Endpoint, Model, Published
from harness.run.launch.reach import is_https, speaks_tls
from harness.spec.scenario import Scenario

SIMULATED = "knee-sim"  # how the simulated endpoint names itself, wherever it is
CONNECT_S = 10.0  # TLS included
LIST_S = 60.0  # for the list of models, from connecting to the last byte
_ONE_MODEL = ("llamacpp", "sglang")  # owners whose servers have one model, which answers to any name
_MOST_NAMES = 10  # models of a list that are shown
_LLAMA = "llamacpp"  # how llama-server names itself as the owner of its models
_LONGEST_FACT = 200  # characters of a version
_LONGEST_NAME = 512  # characters of a model's name
_AFTER_S = 2.0  # for the list of models after the load
_FACTS_S = 10.0  # for a page that need not be there
_MOST = 2**31  # a limit of tokens or slots beyond this is none
_ELSEWHERE = ("/metrics", "/prometheus/metrics")  # trtllm-serve has statistics in JSON at the first

# ---- the model ---------------------------------------------------------------------------------------------


async def served_model(api: Client, scenario: Scenario, endpoint: Endpoint, *, any_model: bool = False) -> Endpoint:
    """Return the endpoint with the model to measure: the scenario's, else the only one in the server's list.

    Raise HarnessError if it names none or several. A class's own model must be on the list, since no request tries
    it before the load, unless `any_model`.
    """
    where, wanted, within_s = endpoint.address, scenario.target.model, min(LIST_S, scenario.target.request_timeout)
    listed = where.root + "/models"
    answer = await control.page(api, where.path(listed), within_s)
    _must_be_open(answer, scenario, where.place)
    status, place = answer.status, where.place + listed
    if status == 400 and await speaks_tls(where):
        raise is_https(where.place)
    if (no := not_served(status, answer.text[:LONGEST_BODY] if status >= 500 else "", place)) is not None:
        raise no
    found, served = entries(answer), names(answer)
    if wanted is None and status == 404 and where.root:
        await _must_not_lie_above(api, scenario, where, within_s)
    if wanted is None:
        wanted = _only(served, answer, where)
    whole = bool(served) and not any_model and not goes_on(answer)  # what the list lacks may not be served
    for name in (spec.model for spec in scenario.class_ or () if spec.model):
        if whole and name not in (*served, wanted):
            raise lacks(Model(name=name, models=served), where)
    entry = next((entry for entry in found if entry.get("id") == wanted), {})
    if not entry and len(found) == 1 and found[0].get("owned_by") in _ONE_MODEL:
        entry = found[0]
    facts = await limits(api, where, entry, within_s) if entry.get("owned_by") == _LLAMA else {}
    model = Model(
        name=wanted,
        listed=wanted in served or not whole,
        models=served,
        max_context=facts.get("n_ctx") or _count(entry.get("max_model_len")),
    )
    codec = msgspec.structs.replace(endpoint.wire.codec, model=wanted)
    wire = msgspec.structs.replace(endpoint.wire, codec=codec)
    return msgspec.structs.replace(endpoint, model=model, wire=wire, published=Published(facts=facts))


async def listed_after(endpoint: Endpoint) -> list[str]:
    """Return the models that a server lists after the load if the measured one is no longer among them; else [].

    Servers that do not answer, or have no list, are passed over.
    """
    for replica in endpoint.replicas or (endpoint,):
        async with client(replica.wire.target, connect_s=_AFTER_S) as api:
            answer = await page(api, replica.address.path(replica.address.root + "/models"), _AFTER_S)
        served = names(answer) if answer else ()
        if endpoint.model.name in replica.model.models and served and replica.wire.codec.model not in served:
            return [redact(name, replica.wire.secrets) for name in served[:_MOST_NAMES]]
    return []


def lacks(model: Model, where: Address) -> HarnessError:
    """Return the error of a model that the list lacks."""
    return HarnessError(
        f"it does not serve '{model.name}'", place=where.place, way_out=nearest(model.name, model.models)
    )


def _must_be_open(answer: Page, scenario: Scenario, place: str) -> None:
    """Raise HarnessError if the server refuses its model list for lack of a key, and requests would fail as well."""
    status, target = answer.status, scenario.target
    has_key = bool(target.api_key_env or target.headers)
    if status not in (401, 403) or (target.model is not None and (has_key or status == 403)):
        return
    way_out = way_out_of(status, target)
    if not has_key:
        raise HarnessError(f"it asks for a key ({status})", place=place, way_out=way_out)
    words = server_words(status, answer.text[:LONGEST_BODY])
    raise HarnessError(words, place=place, way_out=f"{way_out}; --model skips this list")


async def _must_not_lie_above(api: Client, scenario: Scenario, where: Address, within_s: float) -> None:
    """Raise HarnessError with the right address if the model list is at /models instead of below `/v1`."""
    served = names(await control.page(api, where.path("/models"), within_s))
    if not served:
        return
    bare = await answers.without_root(api, where, scenario.target.api, served[0], within_s)
    way_out = f"give {bare}" if bare else f"give --model, one of: {few(served, _MOST_NAMES)}"
    fact = f"it has its list of models at /models, not at {where.root}/models"
    raise HarnessError(fact, place=where.place, way_out=way_out)


def _only(served: Sequence[str], answer: Page, where: Address) -> str:
    """Return the only model that a server lists; raise HarnessError if it lists several, or none."""
    status, listed = answer.status, where.root + "/models"
    place = where.place + listed
    if len(served) == 1:
        return served[0]
    if served:
        way_out = f"give --model, one of: {few(served, _MOST_NAMES)}"
        raise HarnessError(f"it serves {len(served):,} models", place=where.place, way_out=way_out)
    if (moved := redirected(status, answer.headers, place)) is not None:
        raise moved
    if "html" in answer.headers.get("content-type", ""):
        raise HarnessError("it answers with HTML, not JSON", place=place, way_out="is it the API's address?")
    way_out = "check the address, or give --model" if status == 404 else "give --model"
    raise HarnessError(f"it does not say what it serves ({status})", place=place, way_out=way_out)


def entries(answer: Page) -> list[dict[str, Any]]:
    """Return the entries of a list of models; empty where the answer is anything else."""
    data = answer.json()
    found = data.get("data") if isinstance(data, dict) else None
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def names(answer: Page) -> tuple[str, ...]:
    return tuple(entry["id"] for entry in entries(answer) if is_name(entry.get("id")))


def goes_on(answer: Page) -> bool:
    """Return whether a list of models is one page of several, as Anthropic's is."""
    data = answer.json()
    return isinstance(data, dict) and data.get("has_more") is True


def is_name(name: object) -> bool:
    """Return whether it can name a model: printable text on one line, of at most 512 characters."""
    return isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME and name.isprintable()


async def limits(client: Client, where: Address, entry: dict[str, Any], within_s: float) -> dict[str, Any]:
    """Return what llama-server's model-list entry and its page /props tell: slots, tokens a slot (n_ctx), version.

    What they do not tell is left out.
    """
    meta = entry.get("meta")
    trained = _count(meta.get("n_ctx_train")) if isinstance(meta, dict) else None
    facts = {"name": _LLAMA} | _some(n_ctx=_count(entry.get("max_model_len")), n_ctx_train=trained)
    found = await page(client, where.path("/props"), within_s)
    props = found.json() if found is not None else None
    if isinstance(props, dict):
        settings = props.get("default_generation_settings")
        facts |= _some(slots=_count(props.get("total_slots")), version=_text(props.get("build_info")))
        facts |= _some(n_ctx=_count(settings.get("n_ctx")) if isinstance(settings, dict) else None)
    return facts


# ---- its pages ---------------------------------------------------------------------------------------------


class Pages(NamedTuple):
    published: Published
    figures: Target | None  # page of its figures; None: it publishes none
    notes: tuple[str, ...] = ()


async def read(api: Client, endpoint: Endpoint, named: str | None, within_s: float) -> Endpoint:
    """Return the endpoint with facts and metrics pages of its server and its pools; `named` is --metrics-url's value.

    Raise HarnessError if a page that was named is not there, or a pool's has no figures that are known.
    """
    own = await _pages(api, endpoint, named, within_s)
    pools = [(name, await _of_pool(endpoint, name, page, within_s)) for name, page in endpoint.wire.pools]
    parts = [*(each.published for _, each in pools), endpoint.published, own.published]  # the latter win
    wire = msgspec.structs.replace(
        endpoint.wire,
        figures=own.figures,
        pools=tuple((name, each.figures) for name, each in pools if each.figures is not None),
    )
    pages = Published(
        facts={name: value for part in parts for name, value in part.facts.items()},
        cache_config=next((part.cache_config for part in reversed(parts) if part.cache_config), {}),
    )
    return msgspec.structs.replace(endpoint, wire=wire, published=pages, notes=(*endpoint.notes, *own.notes))


async def _pages(api: Client, endpoint: Endpoint, named: str | None, within_s: float) -> Pages:
    """Return what a server's version and metrics pages tell, and where its metrics are: None if it publishes none.

    Without `named` the page is looked for in another usual place too. Raise HarnessError if a named page is not there.
    """
    target, version_path = endpoint.wire.figures, endpoint.address.path("/version")
    assert target is not None
    elsewhere = client(target, connect_s=CONNECT_S) if named else contextlib.nullcontext(api)
    async with elsewhere as pages:
        version, metrics = await asyncio.gather(page(api, version_path, within_s), page(pages, target.path, within_s))
        facts: dict[str, Any] = {}
        if version is not None:
            name, _, number = version.headers.get("server", "").partition("/")
            data = version.json()
            if name == SIMULATED:
                facts = {"name": name, "version": number[:_LONGEST_FACT]}
            elif isinstance(data, dict):
                facts |= _some(version=_text(data.get("version")))
        if metrics is None or metrics.status != 200:
            if named is None:
                return Pages(Published(facts=facts), None)
            fact = "nothing answers there" if metrics is None else f"it answers {metrics.status}"
            raise HarnessError(fact, place=f"--metrics-url {named}", way_out="give the server's page, or leave it out")
        text, names = metrics.text, server.published(metrics.text)
        if not names and named is None:
            path = target.path.replace(*_ELSEWHERE, 1)
            other = await page(pages, path, within_s)
            if other is not None and other.status == 200 and (names := server.published(other.text)):
                text, target = other.text, msgspec.structs.replace(target, path=path)
    notes = () if names or named is None else ("--metrics-url: none of its figures is known",)
    cache: dict[str, str] = {}
    if "name" not in facts:  # the simulated endpoint has vLLM's names for its figures
        facts |= _some(name=server.engine(text) or None)
        cache = server.cache_config(text)
    return Pages(Published(facts=facts, cache_config=cache), target if names else None, notes)


async def _of_pool(endpoint: Endpoint, name: str, target: Target, within_s: float) -> Pages:
    """Return the pages of a pool's server; raise HarnessError if it publishes no figure that Knee knows."""
    there = msgspec.structs.replace(endpoint, wire=msgspec.structs.replace(endpoint.wire, figures=target))
    async with client(target, connect_s=CONNECT_S) as http:
        pages = await _pages(http, there, None, within_s)
    if pages.figures is None:
        way_out = "give the Prometheus page of that server, or leave it out"
        raise HarnessError("none of its figures is known", place=f"--pool-metrics {name}", way_out=way_out)
    return pages


async def must_export(url: str, target: Target, within_s: float) -> None:
    """Raise HarnessError unless a GPU exporter's page answers 200 and has figures that Knee knows."""
    async with client(target, connect_s=CONNECT_S) as http:
        answer = await page(http, target.path, within_s)
    fact = "nothing answers there" if answer is None else "" if answer.status == 200 else f"it answers {answer.status}"
    if not fact and answer is not None and not server.exporter_samples(0, 0.0, answer.text):
        fact = "none of its figures is known"
    if fact:
        way_out = "give the page of a DCGM exporter"
        raise HarnessError(fact, place=f"--exporter {url}", way_out=way_out)


async def page(client: Client, path: str, within_s: float) -> Page | None:
    """Return a page of the server, None if it cannot be reached within ten seconds."""
    try:
        return await control.page(client, path, min(within_s, _FACTS_S))
    except control.TransportError:  # what is not published stays unknown
        return None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MOST else None


def _text(value: Any) -> str | None:
    return value[:_LONGEST_FACT] if isinstance(value, str) and value else None


def _some(**facts: Any) -> dict[str, Any]:
    """Return the facts that are known."""
    return {name: value for name, value in facts.items() if value is not None}
