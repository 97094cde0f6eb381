"""The checks before any load: whether the endpoint answers, its model, the fields it takes, the tokens of a prompt.

Whatever an operator can get wrong about a target is found here, by one request at a time, and becomes a one-line error
(`reach`, `answers`). What is found goes into the manifest and into the load; nothing is measured. The server's own
pages are read first (`published`), and load begins after two requests (`first_requests`). Each of several replicas is
checked as one server is, and all have to serve the same model alike.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Mapping, Sequence
from urllib.parse import urlsplit

import msgspec

from harness.base.errors import HarnessError
from harness.base.secrecy import redact, redact_all
from harness.base.terminal import few
from harness.dialects import DIALECTS
from harness.load import control
from harness.load.client import client
from harness.load.http1 import replaced
from harness.load.messages import Codec
from harness.load.transport import Target
from harness.run.launch import answers, published, reach, words
from harness.run.launch.consent import addresses
from harness.run.launch.endpoint import Address, Endpoint, Prompts, Published, Wire, address
from harness.run.launch.first_requests import class_fields, first_requests
from harness.run.launch.published import CONNECT_S
from harness.spec import scenario as scenarios
from harness.spec.scenario import Scenario
from harness.workload import probe, shape, tasks

_KEY = "Authorization"  # the header in which a resolved scenario has the API key
_MOST_FIT = 0.99  # share of requests that fit into the context, if lengths vary
_SERVE_ALIKE = "serve the same on all replicas, or add --allow-different-replicas"


class How(msgspec.Struct, frozen=True, kw_only=True):
    first_prompt: int = 0  # the number of the first prompt: none is sent twice
    trust_remote_code: bool = False  # a named tokenizer may run code from its folder
    busy: Awaitable[object] | None = None  # other work of this process: it is awaited before a request is timed
    any_model: bool = False  # its list of models need have no name that is given
    secrets: tuple[str, ...] = ()  # secrets that the scenario does not have
    ips: Mapping[str, Sequence[str]] = {}  # IP addresses of the URLs' hosts, if they are known
    note: reach.Note = reach.nowhere  # says what is waited for long


async def check(scenario: Scenario, urls: Sequence[str], how: How = How()) -> Endpoint:
    """Check every server at `urls` and return the endpoint to load; raise HarnessError if a check fails.

    Of several servers it is the first, with all as `replicas`. Raise HarnessError if one serves another model, or
    differs in version or limits, unless the scenario allows it. A field that one of them refuses is sent to none.
    """
    first = await _of_one(scenario, urls[0], how)
    if len(urls) == 1:
        return first
    allowed = bool(scenario.target.allow_different_replicas)
    target = msgspec.structs.replace(scenario.target, model=first.wire.codec.model)
    named = msgspec.structs.replace(scenario, target=target)
    endpoints, notes = [first], list(first.notes)
    for url in urls[1:]:
        used, secrets = endpoints[-1].prompts.used, first.wire.secrets
        as_first = msgspec.structs.replace(how, first_prompt=used, busy=None, any_model=allowed, secrets=secrets)
        replica = await _of_one(named, url, as_first)
        replica = msgspec.structs.replace(replica, model=msgspec.structs.replace(replica.model, name=first.model.name))
        if differences := differ(first, replica):
            fact = f"it differs from {first.address.place}: {'; '.join(differences)}"
            if not allowed:
                raise HarnessError(fact, place=url, way_out=_SERVE_ALIKE)
            notes.append(f"{replica.address.place}: {fact}")
        notes += [note for note in replica.notes if note not in notes]
        endpoints.append(replica)
    drop = frozenset().union(*(endpoint.wire.codec.drop for endpoint in endpoints))
    wire = msgspec.structs.replace(first.wire, codec=msgspec.structs.replace(first.wire.codec, drop=drop))
    prompts = msgspec.structs.replace(first.prompts, used=endpoints[-1].prompts.used)
    return msgspec.structs.replace(first, wire=wire, prompts=prompts, notes=tuple(notes), replicas=tuple(endpoints))


def differ(first: Endpoint, other: Endpoint) -> list[str]:
    """Return in words the facts (version, limits, API) that two servers publish with different values.

    Facts of only one are not compared. Where no list has the model the lists of models are compared.
    """
    ours, theirs = first.published.facts, other.published.facts
    facts: list[tuple[str, object, object]] = [(key, ours[key], theirs[key]) for key in sorted(ours.keys() & theirs)]
    facts.append(("API", first.api, other.api))
    here, there = first.model, other.model
    if here.listed != there.listed or not here.listed:
        facts.append(("models", few(sorted(here.models)) or "none", few(sorted(there.models)) or "none"))
    return [f"{key} {there}, there {here}" for key, here, there in facts if here != there]


async def _of_one(scenario: Scenario, url: str, how: How) -> Endpoint:
    """Check one server; return it as endpoint, secrets hidden in its words: servers repeat what they are sent."""
    hide = tuple(sorted({*scenarios.secrets(scenario, os.environ), *how.secrets}))
    try:
        endpoint = await _checked(scenarios.resolved(scenario, os.environ), url, how)
    except HarnessError as error:
        fact, way_out = redact(error.fact, hide), redact(error.way_out, hide)
        raise HarnessError(fact, place=error.place, way_out=way_out) from None
    name = endpoint.model.name if scenario.target.model else redact(endpoint.model.name, hide)
    return msgspec.structs.replace(
        endpoint,
        wire=msgspec.structs.replace(endpoint.wire, secrets=hide),
        model=msgspec.structs.replace(
            endpoint.model, name=name, models=tuple(redact(n, hide) for n in endpoint.model.models)
        ),
        published=Published(
            facts=redact_all(endpoint.published.facts, hide),
            cache_config=redact_all(endpoint.published.cache_config, hide),
        ),
        notes=tuple(redact(note, hide) for note in endpoint.notes),
    )


async def _checked(scenario: Scenario, url: str, how: How) -> Endpoint:
    """Check one server: exporters, model list, metrics page, first requests; return the endpoint with the results."""
    where = address(url)
    scenario = with_api(scenario, where)
    endpoint = Endpoint(address=where, wire=_wire(scenario, where), prompts=Prompts(used=how.first_prompt))
    named, patience = scenario.target.metrics_url, scenario.target.request_timeout
    async with client(endpoint.wire.target, connect_s=CONNECT_S) as api, reach.explained(endpoint, CONNECT_S):
        for page, exporter in zip(scenario.target.exporters or (), endpoint.wire.exporters, strict=True):
            await published.must_export(page, exporter, patience)
        with reach.noted(how.note, f"the list of models of {where.place}"):
            asking = published.served_model(api, scenario, endpoint, any_model=how.any_model)
            endpoint = await reach.by_tls(endpoint, asking)
        with reach.noted(how.note, f"the pages of {where.place}"):
            endpoint = await published.read(api, endpoint, named, patience)
        endpoint = await _tried(api, probe.scenario_for(scenario, endpoint.model.max_context), endpoint, how)
    notes = [
        *_choices(endpoint),
        *await _several(endpoint, how.ips.get(url)),
        *([] if endpoint.model.listed else [f"its list of models does not have '{endpoint.model.name}'"]),
        *endpoint.notes,
    ]
    return msgspec.structs.replace(endpoint, notes=tuple(notes))


async def _tried(api: control.Client, scenario: Scenario, endpoint: Endpoint, how: How) -> Endpoint:
    """Load the tokenizer if one is named, and send the first requests; return the endpoint with what they show."""
    place, patience = endpoint.address.place, scenario.target.request_timeout
    _must_fit(scenario, endpoint.model.max_context, place)
    tokenizer, prompts = scenario.workload.tokenizer, endpoint.prompts
    if tokenizer is not None:
        with reach.noted(how.note, f"the tokenizer {tokenizer}, or the hub that has it"):
            known, tokenizer_json = await words.of_tokenizer(tokenizer, trust_remote_code=how.trust_remote_code)
        prompts = msgspec.structs.replace(prompts, words=known, exact=True, tokenizer_json=tokenizer_json)
    endpoint = msgspec.structs.replace(endpoint, prompts=prompts)
    try:
        with reach.noted(how.note, f"the answers of {place} to the first requests"):
            return await first_requests(api, scenario, endpoint, how.busy)
    except answers.NotSpokenError as error:
        raise await answers.instead(error, api, endpoint, patience) from None


def _wire(scenario: Scenario, where: Address) -> Wire:
    """Return the addresses, headers and request codec for an endpoint, its metrics pages, exporters and pools."""
    spec, wire = scenario.target, _target(scenario, where)
    figures = msgspec.structs.replace(wire, path=where.path("/metrics"))
    if spec.metrics_url is not None:
        figures = _page_at(spec.metrics_url, "--metrics-url", where, wire)
    return Wire(
        target=wire,
        codec=Codec(
            api=spec.api,
            model=spec.model or "",
            stream=spec.streams,
            drop=frozenset(spec.omit or ()),
            extra_body=spec.extra_body,
            classes=class_fields(scenario),
        ),
        figures=figures,
        exporters=tuple(_page_at(url, f"--exporter {url}", where, wire) for url in spec.exporters or ()),
        pools=tuple(
            (name, _page_at(url, f"--pool-metrics {name}", where, wire))
            for name, url in (spec.pool_metrics or {}).items()
        ),
    )


def with_api(scenario: Scenario, where: Address) -> Scenario:
    """Return the scenario with the address's API and model; raise HarnessError if an option contradicts them."""
    api, spec = where.api or scenario.target.api, scenario.target
    if DIALECTS[api].path == DIALECTS[spec.api].path:
        api = spec.api  # two APIs may have one path
    elif spec.api != type(spec)().api:
        raise HarnessError(f"the address names {where.api}", place=f"--api {spec.api}", way_out="leave one of them out")
    if where.model and spec.model not in (None, where.model):
        fact = f"the address names {where.model}"
        raise HarnessError(fact, place=f"--model {spec.model}", way_out="leave one of them out")
    if not spec.streams and DIALECTS[api].whole is None and DIALECTS[api].unit.decodes:
        raise HarnessError("its answers always stream", place=f"--api {api}", way_out="leave --no-stream out")
    if scenario.workload.images and not DIALECTS[api].images:
        raise HarnessError("images are for chat", place=f"--api {api}", way_out="leave workload.images out")
    model = spec.model or where.model or None
    return msgspec.structs.replace(scenario, target=msgspec.structs.replace(spec, api=api, model=model))


def _page_at(url: str, place: str, where: Address, wire: Target) -> Target:
    """Return the target of a page at a URL; it gets the endpoint's headers only if it is on the same server."""
    there = address(url, place)
    same = (there.base, there.uds) == (where.base, where.uds)
    return msgspec.structs.replace(
        wire,
        scheme=there.scheme,
        host=there.host,
        port=there.port,
        uds=there.uds,
        path="/metrics" if there.uds else (urlsplit(url).path.rstrip("/") or "/metrics") + there.query,
        headers=wire.headers if same else {},
    )


def _target(scenario: Scenario, where: Address) -> Target:
    """Return the target that workers send requests to: address, path, headers (with secrets), TLS and transport."""
    spec, dialect = scenario.target, DIALECTS[scenario.target.api]
    headers = replaced(dialect.headers, spec.headers)
    if spec.api_key_env and dialect.key != _KEY:
        headers[dialect.key] = headers.pop(_KEY).removeprefix("Bearer ")
    return Target(
        scheme=where.scheme,
        host=where.host,
        port=where.port,
        uds=where.uds,
        path=where.api_path(spec.api, spec.model),
        headers=headers,
        media=dialect.decoders(stream=spec.streams)().media,
        ca_file=spec.ca_file or "",
        insecure=spec.insecure,
        transport=spec.transport,
        session_header=spec.session_header or "",
    )


def _must_fit(scenario: Scenario, longest: int | None, place: str) -> None:
    """Raise HarnessError if prompts and answers of a class are longer than the context that the server publishes.

    Where lengths vary, one request in a hundred may be: more would void a level. Of tasks none may be: their last
    requests hold all before them.
    """
    if longest is None:
        return
    inputs, outputs = max(tasks.lengths(scenario), key=sum, default=(0, 0))
    if inputs + outputs > longest:
        fact = f"{inputs} tokens in and {outputs} out do not fit into {longest}"
        raise HarnessError(fact, place=place, way_out="fewer turns or shorter texts")
    prefix = scenario.workload.prefix.tokens if scenario.workload.prefix and not scenario.has_tasks else 0
    for class_ in shape.of(scenario).classes:
        inputs = prefix + class_.input.quantile(_MOST_FIT)
        outputs = class_.output.quantile(_MOST_FIT) if scenario.decodes else 0
        if inputs + outputs > longest:
            of = f" (class '{class_.name}')" if class_.name else ""
            lower = "lower --input-tokens or --output-tokens"
            varied = "bound its lengths, like 'lognormal(1k,300) in 1..4096'"
            raise HarnessError(
                f"{inputs} tokens in and {outputs} out do not fit into {longest}{of}",
                place=place,
                way_out=lower if scenario.one_length else varied,
            )


async def _several(endpoint: Endpoint, known: Sequence[str] | None) -> list[str]:
    """Return a note if the host's name has several IP addresses of one family, over which connections are spread."""
    found = await addresses(endpoint.address) if known is None else known
    alike = max((len([each for each in found if (":" in each) == six]) for six in (False, True)), default=0)
    if alike < 2:
        return []
    how = "connections are spread over them"
    if endpoint.wire.target.transport == "httpx":
        how = "--transport httpx takes one of them; give each as a --url"
    return [f"{endpoint.address.host} has {alike} addresses: {how}"]


def _choices(endpoint: Endpoint) -> list[str]:
    """Return notes on choices about the connection that change what the figures mean."""
    wire = endpoint.wire.target
    by_clock = f"--transport httpx ({endpoint.http_version}): arrivals are stamped by the clock when they are read"
    notes = {
        f"the address names the API: {endpoint.address.api}": endpoint.address.api,
        "--no-stream: an answer arrives all at once, so TTFT is its whole time and there is no ITL": (
            not endpoint.wire.codec.stream
        ),
        "--insecure: the server's certificate was not verified": wire.insecure and wire.scheme == "https",
        f"{by_clock}, and the client costs many times as much": wire.transport == "httpx",
    }
    return [note for note, holds in notes.items() if holds]
