"""The checks before any load: whether the endpoint answers, its model, the fields it takes, the tokens of a prompt.

Whatever an operator can get wrong about a target is found here, by one request at a time, and becomes a one-line error
(`unreachable`). What is found goes into the manifest and into the load; nothing is measured. The server's own pages
are read at the same time (`published`), and load begins after two requests (`first_requests`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Iterable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from harness.base.errors import HarnessError
from harness.base.secrecy import redact, redact_all
from harness.dialects import DIALECTS
from harness.load.client import client
from harness.load.http1 import replaced
from harness.load.transport import Target
from harness.run.launch import published, server_tokenizer, silence, spoken, unreachable, vocabulary
from harness.run.launch.consent import addresses
from harness.run.launch.endpoint import Address, Launch, address
from harness.run.launch.first_requests import Findings, RequestPlan, first_requests
from harness.run.launch.served_model import LIST_S, ServedModel, served_model
from harness.run.launch.spoken import NotSpokenError
from harness.spec import scenario as scenarios
from harness.spec.scenario import Scenario
from harness.workload import probe, shape, tasks
from harness.workload.text import PromptWords

_KEY = "Authorization"  # the header in which a resolved scenario has the API key
_CONNECT_S = 10.0  # TLS included
_MOST_FIT = 0.99  # of requests that fit into the context, where lengths vary
_MODEL_HIDDEN = "the model's name holds what a header or a key says, so it is not stored; --model shows it"


def with_api(scenario: Scenario, where: Address) -> Scenario:
    """The scenario with the API and the model that the address names; HarnessError if an option contradicts them."""
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


def figures(scenario: Scenario, where: Address, wire: Target) -> Target:
    """Where the server's figures are."""
    url = scenario.target.metrics_url
    if url is None:
        return msgspec.structs.replace(wire, path=where.path("/metrics"))
    return _page_at(url, "--metrics-url", where, wire)


def _page_at(url: str, place: str, where: Address, wire: Target) -> Target:
    """A page that the operator named; headers are sent to no other host than the endpoint's."""
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


def target(scenario: Scenario, where: Address) -> Target:
    """How a worker reaches the endpoint, by a resolved scenario. It holds secrets: for the wire only."""
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
        traceparent=bool(spec.traceparent),
    )


async def check(
    scenario: Scenario,
    url: str,
    first_prompt: int = 0,
    *,
    trust_remote_code: bool = False,
    busy: Awaitable[object] | None = None,
    any_model: bool = False,
    secrets: Iterable[str] = (),
    note: silence.Note = silence.nowhere,
) -> Launch:
    """Run all checks against the endpoint; HarnessError with the way out if one fails.

    `first_prompt` is the number of the first prompt: none is sent twice. `trust_remote_code`: a named tokenizer may run
    code from its folder. `busy` is other work of this process: it is awaited before a request is timed. `any_model`:
    its list of models need have no name that is given. Servers repeat what they were sent, so secrets are removed from
    their words here; `secrets` are those that the scenario does not have. `note` says what is waited for long.
    """
    hide = tuple(sorted({*scenarios.secrets(scenario, os.environ), *secrets}))
    try:
        with_secrets = scenarios.resolved(scenario, os.environ)
        trust = trust_remote_code
        found = await _check(with_secrets, url, first_prompt, busy, note, trust_remote_code=trust, any_model=any_model)
    except HarnessError as error:
        fact, way_out = redact(error.fact, hide), redact(error.way_out, hide)
        raise HarnessError(fact, place=error.place, way_out=way_out) from None
    model = found.model if scenario.target.model else redact(found.model, hide)
    notes = found.notes if model == found.model else (*found.notes, _MODEL_HIDDEN)
    return msgspec.structs.replace(
        found,
        secrets=hide,
        model=model,
        wire_model=found.model,
        server=redact_all(found.server, hide),
        cache_config=redact_all(found.cache_config, hide),
        notes=tuple(redact(note, hide) for note in notes),
    )


class _Found(NamedTuple):
    """What the endpoint showed, in its own words."""

    served: ServedModel
    words: PromptWords
    tokenizer_json: str
    findings: Findings
    published: published.Published


async def _check(
    scenario: Scenario,
    url: str,
    first_prompt: int,
    busy: Awaitable[object] | None,
    note: silence.Note,
    *,
    trust_remote_code: bool,
    any_model: bool,
) -> Launch:
    """All checks, by a resolved scenario; the texts are still the server's own."""
    where = address(url)
    scenario = with_api(scenario, where)
    wire = target(scenario, where)
    there = figures(scenario, where, wire)
    trust = trust_remote_code
    found = await _find(
        scenario, where, wire, there, first_prompt, busy, note, trust_remote_code=trust, any_model=any_model
    )
    served, findings, facts = found.served, found.findings, found.published
    return Launch(
        address=where,
        target=wire,
        figures=msgspec.structs.replace(there, path=facts.path or there.path),
        exporters=tuple(_page_at(url, f"--exporter {url}", where, wire) for url in scenario.target.exporters or ()),
        api=scenario.target.api,
        unit=findings.unit,
        stream=scenario.target.streams,
        extra_body=scenario.target.extra_body,
        model=served.name,
        listed=served.unlisted is None,
        models=served.models,
        path=wire.path,
        drop=findings.drop,
        words=found.words.words,
        tokenizer_json=found.tokenizer_json,
        prompt_words=findings.prompt_words,
        prompts_used=findings.prompts_used,
        input_tokens=findings.input_tokens,
        tokens_per_word=findings.tokens_per_word,
        max_context=served.limits.get("n_ctx"),
        exact_words=found.words.exact,
        e2e_s=findings.e2e_s,
        itl_s=findings.itl_s,
        server=_server_facts(served.limits, facts.facts),
        cache_config=facts.cache_config,
        metrics=facts.metrics,
        notes=(
            *_choices(where, wire, findings.http_version, streams=scenario.target.streams),
            *await _several(where, wire),
            *([] if served.unlisted is None else [f"its list of models does not have '{served.name}'"]),
            *facts.notes,
            *findings.notes,
        ),
    )


async def _find(
    scenario: Scenario,
    where: Address,
    wire: Target,
    there: Target,
    first_prompt: int,
    busy: Awaitable[object] | None,
    note: silence.Note,
    *,
    trust_remote_code: bool,
    any_model: bool,
) -> _Found:
    """Send the endpoint one request after the other, and read the server's own pages at the same time."""
    patience = scenario.target.request_timeout
    place = where.base + where.prefix
    async with contextlib.AsyncExitStack() as stack:
        api = other = await stack.enter_async_context(client(wire, connect_s=_CONNECT_S))
        if scenario.target.metrics_url:
            other = await stack.enter_async_context(client(there, connect_s=_CONNECT_S))
        await stack.enter_async_context(unreachable.explained(where, wire, _CONNECT_S))
        reading: asyncio.Task[published.Published] | None = None
        try:
            for url in scenario.target.exporters or ():
                page = _page_at(url, f"--exporter {url}", where, wire)
                exporting = await stack.enter_async_context(client(page, connect_s=_CONNECT_S))
                await published.exporter(exporting, page, url, patience)
            with silence.broken(note, f"the list of models of {place}"):
                asking = served_model(api, scenario, where, any_model=any_model)
                served = await unreachable.by_tls(where, wire, asking)
            model, longest = served.name, served.limits.get("n_ctx")
            reading = asyncio.create_task(
                published.read(api, where.path("/version"), other, there, scenario.target.metrics_url, patience)
            )
            scenario = probe.scenario_for(scenario, longest)
            _must_fit(scenario, longest, place)
            words, tokenizer_json = PromptWords(), ""
            if scenario.workload.tokenizer is not None:
                trust = trust_remote_code
                with silence.broken(note, f"the tokenizer {scenario.workload.tokenizer}, or the hub that has it"):
                    known, tokenizer_json = await vocabulary.words(scenario.workload.tokenizer, trust_remote_code=trust)
                words = PromptWords(words=known, exact=True)
            elif known := await server_tokenizer.words(api, where, served.owner, model, min(LIST_S, patience)):
                words = PromptWords(words=known, exact=True)
            try:
                plan = RequestPlan(
                    api, scenario, where.base, wire.path, model, words, first_prompt, bool(tokenizer_json),
                    served.unlisted,
                )  # fmt: skip
                with silence.broken(note, f"the answers of {place} to the first requests"):
                    findings = await first_requests(plan, busy)
            except NotSpokenError as error:
                raise await spoken.instead(error, api, where, scenario.target.api, model, patience) from None
            with silence.broken(note, f"the pages of {place}"):
                return _Found(served, words, tokenizer_json, findings, await reading)
        finally:
            if reading is not None:
                reading.cancel()
                with contextlib.suppress(asyncio.CancelledError, HarnessError):
                    await reading


def _must_fit(scenario: Scenario, longest: int | None, place: str) -> None:
    """HarnessError where prompts and answers of a class are longer than the context that the server publishes.

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
    for each in shape.of(scenario).classes:
        inputs = prefix + each.input.quantile(_MOST_FIT)
        outputs = each.output.quantile(_MOST_FIT) if scenario.decodes else 0
        if inputs + outputs > longest:
            of = f" (class '{each.name}')" if each.name else ""
            lower = "lower --input-tokens or --output-tokens"
            varied = "bound its lengths, like 'lognormal(1k,300) in 1..4096'"
            raise HarnessError(
                f"{inputs} tokens in and {outputs} out do not fit into {longest}{of}",
                place=place,
                way_out=lower if scenario.one_length else varied,
            )


def _server_facts(limits: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """The server's facts for the manifest; vLLM's context length is not among them."""
    if "slots" not in limits and limits.get("name") is None:
        limits = {name: value for name, value in limits.items() if name != "n_ctx"}
    return limits | facts


async def _several(where: Address, wire: Target) -> list[str]:
    """A note where the host's name has several addresses of one family."""
    found = await addresses(where)
    alike = max((len([each for each in found if (":" in each) == six]) for six in (False, True)), default=0)
    if alike < 2:
        return []
    how = "connections are spread over them"
    if wire.transport == "httpx":
        how = "--transport httpx takes one of them; give each as a --url"
    return [f"{where.host} has {alike} addresses: {how}"]


def _choices(where: Address, wire: Target, http_version: str, *, streams: bool) -> list[str]:
    """Notes on choices about the connection that change what the figures mean."""
    from harness.load.httpclient import CPU_S_PER_MILLION, SOCKET_CPU_S_PER_MILLION

    notes = []
    if where.api:
        notes.append(f"the address names the API: {where.api}")
    if not streams:
        notes.append("--no-stream: an answer arrives all at once, so TTFT is its whole time and there is no ITL")
    if wire.insecure and wire.scheme == "https":
        notes.append("--insecure: the server's certificate was not verified")
    if wire.transport == "httpx":
        notes.append(
            f"--transport httpx ({http_version}): arrivals are stamped by the clock when they are read, and a million "
            f"tokens cost about {CPU_S_PER_MILLION} s of processor time (by sockets {SOCKET_CPU_S_PER_MILLION})"
        )
    return notes
