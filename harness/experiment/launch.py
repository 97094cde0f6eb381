"""Before any load: does the endpoint answer, with which model, which fields, how many tokens a prompt comes to.

Everything an operator can get wrong about a target is found here, by one request at a time, and said
in one line. What is learnt (dropped fields, tokens that the server adds to a prompt, how long one request takes)
goes into the manifest and into the load. Nothing here is measured. What the server says of itself is asked
meanwhile: a run begins after two requests, the one that finds the prompt's length and the one that is timed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import ssl
import time
from collections.abc import Awaitable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from harness import scenario as scenarios
from harness.errors import HarnessError, nearest
from harness.experiment import probe, published
from harness.experiment.endpoint import Address, Launch, address
from harness.load import control, dialects, length, tls, vocabulary
from harness.load.client import client
from harness.load.http1 import ProtocolError, Response
from harness.load.transport import Target
from harness.load.workload import COMMON, Prompts
from harness.scenario import Scenario
from harness.secrecy import redact, redact_all
from harness.terminal import few

_PROBES = 6  # tries to meet the asked prompt length
_NEAR = 0.005  # of the asked length: near enough where words are all there is to make it of
_FEWER = 4  # a first prompt that is too long is tried at a fourth
_CONNECT_S = 10.0  # TLS included
_MODELS_S = 60.0  # for the list of models, from connecting to its last byte
_MOST_NAMES = 10  # models of a list that are shown
_HANDSHAKE_S = 2.0  # of a server that may speak TLS though http was asked
_LONGEST_BODY = 65_536  # bytes of an error's body that are looked through
_LONGEST_SAID = 4096  # characters of its words
_LONGEST_REASON = 200  # characters of why a connection broke
_NO_TLS = "it does not speak TLS", "is it http://?"
_TOO_LONG = re.compile(r"context|too long|too large|maximum|exceed|length", re.I)
_NO_UPSTREAM = re.compile(r"connection error|cannot connect|connection refused|upstream connect|no healthy", re.I)


def _api(scenario: Scenario, where: Address) -> Scenario:
    """The scenario with the API that the address names; one that another flag contradicts is a mistake."""
    asked, spec = where.api or scenario.target.api, scenario.target
    if asked != spec.api and spec.api != type(spec)().api:
        raise HarnessError(f"the address names {where.api}", place=f"--api {spec.api}", way_out="leave one of them out")
    return msgspec.structs.replace(scenario, target=msgspec.structs.replace(spec, api=asked))


def figures(scenario: Scenario, where: Address, wire: Target) -> Target:
    """Where the server's figures are; what was given for one host is sent to no other."""
    url = scenario.target.metrics_url
    if url is None:
        return msgspec.structs.replace(wire, path=where.path("/metrics"))
    there = address(url, "--metrics-url")
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
    """What a worker needs to reach the endpoint, by a resolved scenario: secrets included, for the wire only."""
    spec = scenario.target
    return Target(
        scheme=where.scheme,
        host=where.host,
        port=where.port,
        uds=where.uds,
        path=where.path(where.root + dialects.PATHS[spec.api]),
        headers=spec.headers,
        ca_file=spec.ca_file or "",
        insecure=spec.insecure,
        transport=spec.transport,
    )


async def check(
    scenario: Scenario,
    url: str,
    first_prompt: int = 0,
    *,
    trust_remote_code: bool = False,
    busy: Awaitable[object] | None = None,
) -> Launch:
    """Run all checks against the endpoint; HarnessError with the way out where one fails.

    `first_prompt` is the number of the first prompt to ask with: none is asked twice. `trust_remote_code`: a named
    tokenizer may run code that lies in its folder. `busy` is what this process does meanwhile: its end is waited for
    before a request is timed. Servers repeat what they were sent, so nothing leaves here in their words that holds a
    secret.
    """
    hide = scenarios.secrets(scenario, os.environ)
    try:
        wanted = scenarios.resolved(scenario, os.environ)
        found = await _check(wanted, url, first_prompt, busy, trust_remote_code=trust_remote_code)
    except HarnessError as error:
        fact, way_out = redact(error.fact, hide), redact(error.way_out, hide)
        raise HarnessError(fact, place=error.place, way_out=way_out) from None
    return msgspec.structs.replace(
        found,
        secrets=hide,
        model=found.model if scenario.target.model else redact(found.model, hide),
        server=redact_all(found.server, hide),
        cache_config=redact_all(found.cache_config, hide),
        notes=tuple(redact(note, hide) for note in found.notes),
    )


async def _check(
    scenario: Scenario, url: str, first_prompt: int, busy: Awaitable[object] | None, *, trust_remote_code: bool
) -> Launch:
    """All checks, by a resolved scenario; what is found is still in the server's own words."""
    where = address(url)
    scenario = _api(scenario, where)
    wire = target(scenario, where)
    there = figures(scenario, where, wire)
    patience = scenario.target.request_timeout
    place = where.base + where.prefix
    async with contextlib.AsyncExitStack() as stack:
        api = beside = await stack.enter_async_context(client(wire, connect_s=_CONNECT_S, again=True))
        if scenario.target.metrics_url:
            beside = await stack.enter_async_context(client(there, connect_s=_CONNECT_S))
        asking: asyncio.Task[published.Published] | None = None
        try:
            model, limits = await _model(api, place, where, scenario.target.model, min(_MODELS_S, patience))
            longest = limits.get("n_ctx")
            asking = asyncio.create_task(
                published.read(api, where.path("/version"), beside, there, scenario.target.metrics_url, patience)
            )
            scenario = probe.scenario_for(scenario, longest)
            workload = scenario.workload
            asked = workload.input_tokens + workload.output_tokens
            if longest is not None and asked > longest:
                raise HarnessError(
                    f"{workload.input_tokens} tokens in and {workload.output_tokens} out do not fit into {longest}",
                    place=place,
                    way_out="lower --input-tokens or --output-tokens",
                )
            words, tokenizer_json = COMMON, ""
            if workload.tokenizer is not None:
                trust = trust_remote_code
                words, tokenizer_json = await vocabulary.words(workload.tokenizer, trust_remote_code=trust)
            learnt = await _first_requests(api, scenario, where.base, wire.path, model, words, first_prompt, busy)
            found = await asking
        except control.ConnectDeadlineError:
            if await _speaks_http(where, wire):
                raise HarnessError(_NO_TLS[0], place=place, way_out=_NO_TLS[1]) from None
            speaks = " and does it speak TLS" if where.scheme == "https" else ""
            raise HarnessError(
                f"no connection within {_CONNECT_S:g} s", place=place, way_out=f"is it the right host and port{speaks}?"
            ) from None
        except control.DeadlineError:
            raise HarnessError(
                "no answer in time", place=place, way_out="is the server still loading its model?"
            ) from None
        except control.TransportError as error:
            raise await _unreachable(error, place, where, wire) from None
        except ProtocolError as error:
            raise HarnessError(
                f"the first request failed: {error.error} ({error})",
                place=where.base + wire.path,
                way_out="see the server's log; nothing was loaded",
            ) from None
        finally:
            if asking is not None:
                asking.cancel()
                with contextlib.suppress(asyncio.CancelledError, HarnessError):
                    await asking
    return Launch(
        address=where,
        target=wire,
        figures=there,
        api=scenario.target.api,
        extra_body=scenario.target.extra_body,
        model=model,
        path=wire.path,
        drop=learnt.drop,
        words=words,
        tokenizer_json=tokenizer_json,
        prompt_words=learnt.prompt_words,
        prompts_used=learnt.prompts_used,
        input_tokens=learnt.input_tokens,
        tokens_per_word=learnt.tokens_per_word,
        max_context=longest,
        exact_words=workload.tokenizer is not None,
        e2e_s=learnt.e2e_s,
        itl_s=learnt.itl_s,
        server=_said_of_itself(limits, found.facts),
        cache_config=found.cache_config,
        metrics=found.metrics,
        notes=(*_choices(where, wire, learnt.http_version), *found.notes, *learnt.notes),
    )


def _said_of_itself(limits: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """What the manifest has of the server; a context length that only vLLM's entry tells stands elsewhere."""
    if "slots" not in limits and limits.get("name") is None:
        limits = {name: value for name, value in limits.items() if name != "n_ctx"}
    return limits | facts


def _choices(where: Address, wire: Target, http_version: str) -> list[str]:
    """What was chosen about the wire and changes what the figures mean."""
    from harness.load.httpclient import CPU_S_PER_MILLION, SOCKET_CPU_S_PER_MILLION

    notes = []
    if where.api:
        notes.append(f"the address names the API: {where.api}")
    if wire.insecure and wire.scheme == "https":
        notes.append("--insecure: the server's certificate was not verified")
    if wire.transport == "httpx":
        notes.append(
            f"--transport httpx ({http_version}): arrivals are stamped by the clock when they reach us, and a million "
            f"tokens cost about {CPU_S_PER_MILLION} s of processor time (by sockets {SOCKET_CPU_S_PER_MILLION})"
        )
    return notes


async def _unreachable(error: control.TransportError, place: str, where: Address, wire: Target) -> HarnessError:
    """No connection, no TLS, or none that lasted: the fact and the way out."""
    for cause in control.causes(error):
        if isinstance(cause, ssl.SSLError):
            fact, way_out = tls.explained(cause)
            if cause.reason == "UNEXPECTED_EOF_WHILE_READING" and await _speaks_http(where, wire):
                fact, way_out = _NO_TLS
            return HarnessError(fact, place=place, way_out=way_out)
    if isinstance(error, control.ProxyError):
        return HarnessError(
            f"the proxy refuses ({_reason(error)})", place=place, way_out="see HTTP_PROXY, HTTPS_PROXY and NO_PROXY"
        )
    if isinstance(error, control.ConnectError):
        look = f"curl --unix-socket {where.uds} http://localhost/v1/models" if where.uds else f"curl {place}"
        return HarnessError(
            f"nothing answers there ({_reason(error)})", place=place, way_out=f"start the server, then {look}"
        )
    if await _speaks_tls(where, wire):
        return _is_https(place)
    return HarnessError(f"the connection broke ({_reason(error)})", place=place, way_out="see its log")


async def _speaks_tls(where: Address, wire: Target) -> bool:
    """Whether what was taken for http is https: a handshake tells, whatever the certificate."""
    if where.scheme != "http" or where.uds or wire.transport != "socket":
        return False
    anybody = ssl.create_default_context()
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(_HANDSHAKE_S):
            _, writer = await asyncio.open_connection(where.host, where.port, ssl=anybody)
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    return True


async def _speaks_http(where: Address, wire: Target) -> bool:
    """Whether what was taken for https is http: it answers a request in the clear, not with 400 as TLS servers do."""
    if where.scheme != "https" or wire.transport != "socket":
        return False
    writer = None
    try:
        async with asyncio.timeout(_HANDSHAKE_S):
            reader, writer = await asyncio.open_connection(where.host, where.port)
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = await reader.readline()
            return answer.startswith(b"HTTP/") and b" 400 " not in answer
    except (OSError, TimeoutError, ValueError):  # the last: a line without end
        return False
    finally:
        if writer is not None:
            writer.transport.abort()


def _is_https(place: str) -> HarnessError:
    return HarnessError("it speaks TLS", place=place, way_out="give the address as https://")


def _reason(error: Exception) -> str:
    return dialects.plain(str(error)[:_LONGEST_REASON]) or type(error).__name__


async def _model(
    api: control.Client, url: str, where: Address, asked: str | None, within_s: float
) -> tuple[str, dict[str, Any]]:
    """The model to ask for, and the limits that the server admits to."""
    listed = where.root + "/models"
    answer = await control.page(api, where.path(listed), within_s)
    status, place = answer.status, url + listed
    if status in (401, 403):
        raise HarnessError(f"it asks for a key ({status})", place=url, way_out="give --api-key-env VARIABLE")
    if status == 400 and await _speaks_tls(where, Target(
        scheme=where.scheme, host=where.host, port=where.port, path="", headers={}, uds=where.uds)
    ):  # fmt: skip
        raise _is_https(url)
    if (no := _not_served(status, answer.text[:_LONGEST_BODY] if status >= 500 else "", place)) is not None:
        raise no
    entries = published.entries(answer)
    served = [entry["id"] for entry in entries if published.is_name(entry.get("id"))]
    if asked is None:
        if len(served) == 1:
            asked = served[0]
        elif served:
            raise HarnessError(
                f"it serves {len(served):,} models",
                place=url,
                way_out=f"give --model, one of: {few(served, _MOST_NAMES)}",
            )
        elif any("id" in entry for entry in entries):
            raise HarnessError(
                "it serves a model whose name is no text on one line", place=place, way_out="give --model"
            )
        elif "html" in answer.headers.get("content-type", ""):
            raise HarnessError("it answers with HTML, not JSON", place=place, way_out="is it the API's address?")
        else:
            raise HarnessError(f"it does not say what it serves ({status})", place=place, way_out="give --model")
    elif served and asked not in served:
        raise HarnessError(f"it does not serve '{asked}'", place=url, way_out=nearest(asked, served[:_MOST_NAMES]))
    entry = next((entry for entry in entries if entry.get("id") == asked), {})
    return asked, await published.limits(api, where, entry, within_s)


_SEVERAL = 1.2  # tokens a word above which that is said
_INSTEAD = {
    "max_tokens": "max_completion_tokens is sent",
    "temperature": "left out, and the server samples as it likes",
}
_TIMED = 8  # tokens: enough for a pace, and a run need not wait for a long answer before it begins


class _Learnt(msgspec.Struct, frozen=True, kw_only=True):
    """What the first requests told."""

    drop: frozenset[str]
    prompt_words: int
    prompts_used: int
    input_tokens: int | None
    tokens_per_word: float
    e2e_s: float
    itl_s: float | None
    http_version: str
    notes: tuple[str, ...]


async def _first_requests(
    api: control.Client,
    scenario: Scenario,
    url: str,
    path: str,
    model: str,
    words: tuple[str, ...],
    first_prompt: int,
    busy: Awaitable[object] | None,
) -> _Learnt:
    """A request of one token that finds the prompt's length, one of a few for its time; more if that was not exact."""
    workload = scenario.workload
    asked, seed = workload.input_tokens, workload.seed or 0
    shortest = probe.FEWEST_WORDS if scenario.ramp.probe == probe.DECODE else None  # its prompts are as short as can be
    fewest = shortest or 1
    used, drop = first_prompt, frozenset[str]()
    notes: list[str] = []
    counts: list[length.Counted] = []

    async def ask(words_now: int, output_tokens: int) -> _Reply:
        nonlocal drop, used, notes
        made = Prompts(words, words_now, seed, alike=workload.tokenizer is None)
        text = await asyncio.to_thread(made.text, used)  # a long one takes seconds, and Ctrl-C is heard meanwhile
        reply = await _ask(api, scenario, url, path, model, text, output_tokens, drop)
        drop, used = reply.drop, used + 1
        notes += reply.notes
        if reply.story.input_tokens is not None:
            counts.append(length.Counted(words_now, reply.story.input_tokens))
        return reply

    first, one_token = max(asked, fewest), True
    try:
        await ask(first, 1)
    except _RefusedError as error:  # a word may be several tokens, and the context full
        if not _TOO_LONG.search(error.fact) or first < _FEWER * fewest:
            raise
        first, one_token = max(fewest, first // _FEWER), False
        await ask(first, 1)
    if busy is not None:
        await busy
    words_now, timed, e2e = first, None, 0.0
    near = 0.0 if workload.tokenizer else _NEAR * asked
    while timed is None or (counts and abs(counts[-1].tokens - asked) > near and used - first_prompt < _PROBES):
        better = max(fewest, length.next_words(counts, asked, one_token=one_token) if counts else words_now)
        if timed is not None and better == words_now:  # no nearer prompt is made of words
            break
        words_now, began = better, time.monotonic()
        timed = await ask(words_now, min(workload.output_tokens, _TIMED))
        e2e = time.monotonic() - began
    counted = counts[-1].tokens if counts else None
    per_word = length.tokens_per_word(counts) if counts else 1.0
    if counted is not None and shortest is None and words_now == 1 and counted - per_word >= asked:
        raise HarnessError(
            f"the server adds tokens: a prompt of 1 word is already more than {asked}",
            place="--input-tokens",
            way_out=f"ask for at least {counted}",
        )
    if counted is None:
        notes.append("the server gives no usage: input tokens are words, output tokens are chunks")
    elif counted != asked:
        notes.append(
            f"prompts come to {counted} tokens by the server's count, {asked} were asked"
            + ("" if workload.tokenizer or words_now == shortest else "; --tokenizer makes them exact")
        )
    if per_word > _SEVERAL:
        notes.append(
            f"a word of the prompts is {per_word:.2g} tokens by the server's count: {words_now} words a prompt"
        )
    arrivals, came = timed.story.arrivals, timed.story.output_tokens or 0
    if len(arrivals) > 1 and came > 1:  # what is left of a whole answer, at the pace of these
        e2e += (arrivals[-1] - arrivals[0]) * 1e-9 / (came - 1) * max(0, workload.output_tokens - came)
    return _Learnt(
        drop=drop,
        prompt_words=words_now,
        prompts_used=used,
        input_tokens=counted,
        tokens_per_word=per_word,
        e2e_s=e2e,
        itl_s=(arrivals[-1] - arrivals[0]) * 1e-9 / (len(arrivals) - 1) if len(arrivals) > 1 else None,
        http_version=timed.http_version,
        notes=tuple(notes),
    )


class _RefusedError(HarnessError):
    """A 400, 413 or 422 that names no field which could be left out."""


class _Reply(msgspec.Struct, frozen=True):
    story: dialects.Story
    drop: frozenset[str]
    notes: list[str]
    http_version: str


async def _ask(
    api: control.Client,
    scenario: Scenario,
    url: str,
    path: str,
    model: str,
    text: str,
    output_tokens: int,
    drop: frozenset[str],
) -> _Reply:
    """One streamed request; an optional field that the server refuses by name is dropped and it is asked again."""
    notes: list[str] = []
    quota = scenario.target.max_rps
    while True:
        if quota:
            await asyncio.sleep(1.0 / quota)
        before, after = dialects.body(
            scenario.target.api, model, output_tokens, drop=drop, extra=scenario.target.extra_body
        )
        content = before + msgspec.json.encode(text) + after
        story = dialects.Story()
        headers = {"Content-Type": "application/json", "X-Request-Id": "knee-check"}
        within_s = scenario.target.request_timeout
        async with control.response(api, "POST", path, within_s, content, headers) as answer:
            if answer.status in (400, 413, 422):
                message = (await control.whole(answer))[:_LONGEST_BODY].decode("utf-8", "replace")
                field = dialects.refused_field(message, drop | frozenset(scenario.target.extra_body))
                if field is not None:
                    drop |= {field}
                    notes.append(f"the server refuses {field}: {_INSTEAD.get(field, 'left out')}")
                    continue
                raise _RefusedError(_said(answer.status, message), place=url + path, way_out="change what is asked")
            if answer.status != 200:
                message = (await control.whole(answer))[:_LONGEST_BODY].decode("utf-8", "replace")
                no = _not_served(answer.status, message, url + path)
                raise no or HarnessError(
                    _said(answer.status, message), place=url + path, way_out=_way_out(answer.status)
                )
            kind = answer.headers.get("content-type", "")
            if "event-stream" not in kind:
                what = (
                    "HTML"
                    if "html" in kind
                    else "one JSON body"
                    if "json" in kind
                    else repr(dialects.plain(kind[:60]) or "no content type")
                )
                raise HarnessError(
                    f"it answers with {what}, not a stream", place=url + path, way_out="give an endpoint that streams"
                )
            if (coding := answer.headers.get("content-encoding", "identity")) != "identity":
                raise HarnessError(
                    f"it compresses its streams ({coding[:40]}), though no compression was asked for",
                    place=url + path,
                    way_out="switch compression off for text/event-stream there",
                )
            Response().take_head(answer.status, answer.headers)  # as the load will read it
            async for piece in control.pieces(answer):
                story.feed(time.monotonic_ns(), piece)
        story.end(time.monotonic_ns())
        if story.error:
            raise HarnessError(
                f"the first request failed: {story.error} ({story.message[:160]})",
                place=url + path,
                way_out="see the server's log; nothing was loaded",
            )
        return _Reply(story, drop, notes, answer.http_version)


def _said(status: int, body: str) -> str:
    """The server's own words of an error, on one line."""
    try:
        data = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        data = None
    message: Any = data
    for key in ("error", "message", "detail"):
        if isinstance(message, dict) and key in message:
            message = message[key]
    text = message if isinstance(message, str) else body
    return f"{status}: " + dialects.plain(text[:_LONGEST_SAID])[:240]


def _not_served(status: int, body: str, place: str) -> HarnessError | None:
    """What a proxy says when nobody stands behind it, and a server that has not loaded its model; else None."""
    if status in (502, 504) or (status >= 500 and _NO_UPSTREAM.search(body)):
        return HarnessError(
            f"{status} from a proxy: its upstream does not answer",
            place=place,
            way_out="start the model server behind it",
        )
    if status == 503:
        return HarnessError(_said(status, body), place=place, way_out="wait until the model is loaded")
    return None


def _way_out(status: int) -> str:
    if status in (401, 403):
        return "give --api-key-env VARIABLE"
    if status == 404:
        return "check --url, --model and --api (chat or completions)"
    if status == 429:
        return "give --max-rps, the endpoint's quota"
    return "see the server's log; nothing was loaded"
