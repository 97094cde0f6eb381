"""Before any load: does the endpoint answer, with which model, which fields, how many tokens a prompt comes to.

Everything an operator can get wrong about a target is found here, by one request at a time over httpx, and said
in one line. What is learnt (dropped fields, tokens that the server adds to a prompt, how long one request takes)
goes into the manifest and into the load. Nothing here is measured.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from harness.errors import HarnessError, nearest
from harness.load import dialects
from harness.load.workload import COMMON, Prompts, single_token_words
from harness.observe import server
from harness.scenario import Scenario

if TYPE_CHECKING:
    import httpx

SIMULATED = "knee-sim"  # how the simulated endpoint names itself, wherever it is
_PROBES = 4  # tries to meet the asked prompt length


class Address(msgspec.Struct, frozen=True):
    """Where the endpoint is: `base` has neither path nor secrets."""

    base: str
    host: str
    port: int
    prefix: str


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """What the checks found out."""

    address: Address
    model: str
    path: str
    drop: frozenset[str]
    words: tuple[str, ...]
    prompt_words: int
    prompts_used: int
    input_tokens: int | None  # as the server counted the last check's prompt; None: it does not say
    e2e_s: float
    itl_s: float | None
    server: dict[str, Any]
    cache_config: dict[str, str]
    metrics: bool
    notes: tuple[str, ...]


def address(url: str) -> Address:
    """Take a URL apart; what cannot be measured is said now.

    >>> address("http://localhost:8000/v1")
    Address(base='http://localhost:8000', host='localhost', port=8000, prefix='')
    """
    try:
        parts = urlsplit(url)
        port = parts.port or 80
    except ValueError as error:
        raise HarnessError(str(error), place="--url", way_out="write it like http://host:8000") from None
    if parts.username is not None or parts.password is not None or parts.query:
        raise HarnessError(
            "an address with a key in it would be stored with the result",
            place="--url",
            way_out="give --api-key-env VARIABLE or --header",
        )
    if parts.scheme == "https":
        raise HarnessError("TLS is not measured yet", place=url, way_out="give the server's plain http address")
    if parts.scheme != "http" or not parts.hostname:
        raise HarnessError("not an http address", place=url, way_out="write it like http://host:8000")
    host = parts.hostname
    shown = f"[{host}]" if ":" in host else host
    return Address(f"http://{shown}:{port}", host, port, parts.path.rstrip("/").removesuffix("/v1"))


def headers(scenario: Scenario) -> dict[str, str]:
    """The request headers, secrets included; for the wire only."""
    out = dict(scenario.target.headers)
    variable = scenario.target.api_key_env
    if variable:
        key = os.environ.get(variable)
        if not key:
            raise HarnessError(
                f"the variable {variable} is empty", place="--api-key-env", way_out=f"export {variable}=…"
            )
        out["Authorization"] = f"Bearer {key}"
    return out


async def check(scenario: Scenario, url: str) -> Launch:
    """Run all checks against the endpoint; HarnessError with the way out where one fails."""
    import httpx

    where = address(url)
    target = scenario.target
    timeout = httpx.Timeout(min(60.0, target.request_timeout), connect=10.0, read=target.request_timeout)
    async with httpx.AsyncClient(
        base_url=where.base + where.prefix,
        headers={"Accept-Encoding": "identity", **headers(scenario)},  # as the load asks
        timeout=timeout,
        trust_env=False,
    ) as client:
        url = where.base + where.prefix
        try:
            model, longest = await _model(client, url, target.model)
            workload = scenario.workload
            asked = workload.input_tokens + workload.output_tokens
            if longest is not None and asked > longest:
                raise HarnessError(
                    f"{workload.input_tokens} tokens in and {workload.output_tokens} out do not fit into {longest}",
                    place=url,
                    way_out="lower --input-tokens or --output-tokens",
                )
            words = COMMON if workload.tokenizer is None else _words(workload.tokenizer)
            return await _first_requests(client, scenario, url, where, model, words)
        except httpx.TimeoutException:
            raise HarnessError(
                "no answer in time", place=url, way_out="is the server still loading its model?"
            ) from None
        except httpx.ConnectError as error:
            raise HarnessError(
                f"nothing answers there ({_reason(error)})", place=url, way_out=f"start the server, then curl {url}"
            ) from None
        except httpx.TransportError as error:
            raise HarnessError(f"the connection broke ({_reason(error)})", place=url, way_out="see its log") from None


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _words(tokenizer: str) -> tuple[str, ...]:
    """Words of one token each, by the named tokenizer."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # that torch is missing is on purpose
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(tokenizer)
    except (OSError, ValueError) as error:
        fact = f"no tokenizer there ({str(error).splitlines()[0][:120]})"
        raise HarnessError(
            fact, place=f"--tokenizer {tokenizer}", way_out="give a model folder or leave it out"
        ) from None
    tokens_of: Callable[[str], int] = lambda text: len(loaded.encode(text, add_special_tokens=False))  # noqa: E731
    # Words that a small vocabulary splits are left out; short ones that it holds whole come in.
    own = {token[1:] for token in loaded.get_vocab() if token[:1] in ("Ġ", "▁")}
    own = {word for word in own if word.isascii() and word.isalpha()}
    words = single_token_words(tokens_of, sorted({*COMMON, *sorted(own, key=lambda w: (len(w), w))[:4096]}))
    if len(words) < 64:
        raise HarnessError(
            f"only {len(words)} words are one token each", place=f"--tokenizer {tokenizer}", way_out="leave it out"
        )
    return words


async def _model(client: httpx.AsyncClient, url: str, asked: str | None) -> tuple[str, int | None]:
    """The model to ask for, and the longest context the server admits to."""
    answer = await client.get("/v1/models")
    if answer.status_code in (401, 403):
        raise HarnessError(
            f"it asks for a key ({answer.status_code})", place=url, way_out="give --api-key-env VARIABLE"
        )
    entries = _entries(answer)
    served = [entry["id"] for entry in entries if isinstance(entry.get("id"), str)]
    if asked is None:
        if len(served) == 1:
            asked = served[0]
        elif served:
            raise HarnessError(
                f"it serves {len(served)} models", place=url, way_out="give --model, one of: " + ", ".join(served)
            )
        elif "html" in answer.headers.get("content-type", ""):
            raise HarnessError(
                "it answers with HTML, not JSON", place=f"{url}/v1/models", way_out="is it the API's address?"
            )
        else:
            raise HarnessError(
                f"it does not say what it serves ({answer.status_code})",
                place=f"{url}/v1/models",
                way_out="give --model",
            )
    elif served and asked not in served:
        raise HarnessError(f"it does not serve '{asked}'", place=url, way_out=nearest(asked, served))
    for entry in entries:
        if entry.get("id") == asked and isinstance(entry.get("max_model_len"), int):
            return asked, entry["max_model_len"]
    return asked, None


def _entries(answer: httpx.Response) -> list[dict[str, Any]]:
    """The entries of /v1/models; empty where the answer is anything else, which some servers' is."""
    if answer.status_code != 200:
        return []
    try:
        data = answer.json()
    except ValueError:
        return []
    entries = data.get("data") if isinstance(data, dict) else None
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


async def _first_requests(
    client: httpx.AsyncClient, scenario: Scenario, url: str, where: Address, model: str, words: tuple[str, ...]
) -> Launch:
    """Short requests until the prompt has the asked length, then one of full length for its time."""
    target, workload = scenario.target, scenario.workload
    path = dialects.PATHS[target.api]
    drop: frozenset[str] = frozenset()
    length, used, counted = workload.input_tokens, 0, None
    notes: list[str] = []
    for _ in range(_PROBES):
        text = Prompts(words, length, workload.seed or 0).text(used)
        story, drop, dropped = await _ask(client, scenario, url, path, model, text, 1, drop)
        notes += dropped
        used += 1
        counted = story.input_tokens
        if counted is None or counted == workload.input_tokens:
            break
        length += workload.input_tokens - counted
        if length < 1:
            raise HarnessError(
                f"the server adds tokens: a prompt of 1 word is already more than {workload.input_tokens}",
                place="--input-tokens",
                way_out=f"ask for at least {workload.input_tokens - length + 1}",
            )
    text = Prompts(words, length, workload.seed or 0).text(used)
    began = time.monotonic()
    story, drop, _ = await _ask(client, scenario, url, path, model, text, workload.output_tokens, drop)
    e2e = time.monotonic() - began
    used += 1
    if counted is None:
        notes.append("the server gives no usage: input tokens are words, output tokens are chunks")
    elif story.input_tokens != workload.input_tokens:
        notes.append(
            f"prompts come to {story.input_tokens} tokens by the server's count, {workload.input_tokens} were asked"
            + ("" if workload.tokenizer else "; --tokenizer makes them exact")
        )
    arrivals = story.arrivals
    itl = (arrivals[-1] - arrivals[0]) * 1e-9 / (len(arrivals) - 1) if len(arrivals) > 1 else None
    facts, cache, has_metrics = await _facts(client)
    return Launch(
        address=where,
        model=model,
        path=where.prefix + path,
        drop=drop,
        words=words,
        prompt_words=length,
        prompts_used=used,
        input_tokens=story.input_tokens,
        e2e_s=e2e,
        itl_s=itl,
        server=facts,
        cache_config=cache,
        metrics=has_metrics,
        notes=tuple(notes),
    )


async def _ask(
    client: httpx.AsyncClient,
    scenario: Scenario,
    url: str,
    path: str,
    model: str,
    text: str,
    output_tokens: int,
    drop: frozenset[str],
) -> tuple[dialects.Story, frozenset[str], list[str]]:
    """One streamed request; an optional field that the server refuses by name is dropped and it is asked again."""
    notes: list[str] = []
    api, quota = scenario.target.api, scenario.target.max_rps
    while True:
        if quota:
            await asyncio.sleep(1.0 / quota)
        before, after = dialects.body(api, model, output_tokens, drop=drop, extra=scenario.target.extra_body)
        content = before + msgspec.json.encode(text) + after
        story = dialects.Story()
        async with client.stream(
            "POST", path, content=content, headers={"Content-Type": "application/json", "X-Request-Id": "knee-check"}
        ) as answer:
            if answer.status_code in (400, 422):
                message = (await answer.aread()).decode("utf-8", "replace")
                field = dialects.refused_field(message, drop)
                if field is not None:
                    drop |= {field}
                    notes.append(f"the server refuses {field}: left out")
                    continue
                raise HarnessError(_said(answer.status_code, message), place=url + path, way_out="change what is asked")
            if answer.status_code != 200:
                message = (await answer.aread()).decode("utf-8", "replace")
                raise HarnessError(
                    _said(answer.status_code, message), place=url + path, way_out=_way_out(answer.status_code)
                )
            kind = answer.headers.get("content-type", "")
            if "event-stream" not in kind:
                await answer.aread()
                what = (
                    "HTML" if "html" in kind else "one JSON body" if "json" in kind else repr(kind or "no content type")
                )
                raise HarnessError(
                    f"it answers with {what}, not a stream", place=url + path, way_out="give an endpoint that streams"
                )
            async for piece in answer.aiter_raw():
                story.feed(time.monotonic_ns(), piece)
        story.end(time.monotonic_ns())
        if story.error:
            raise HarnessError(
                f"the first request failed: {story.error} ({story.message[:160]})",
                place=url + path,
                way_out="see the server's log; nothing was loaded",
            )
        return story, drop, notes


def _said(status: int, body: str) -> str:
    """The server's own words of an error, on one line."""
    try:
        data = msgspec.json.decode(body)
    except msgspec.DecodeError:
        data = None
    message: Any = data
    for key in ("error", "message", "detail"):
        if isinstance(message, dict) and key in message:
            message = message[key]
    text = message if isinstance(message, str) else body
    return f"{status}: " + " ".join(text.split())[:240]


def _way_out(status: int) -> str:
    if status in (401, 403):
        return "give --api-key-env VARIABLE"
    if status == 404:
        return "check --url, --model and --api (chat or completions)"
    if status == 429:
        return "give --max-rps, the endpoint's quota"
    return "see the server's log; nothing was loaded"


async def _facts(client: httpx.AsyncClient) -> tuple[dict[str, Any], dict[str, str], bool]:
    """Name and version as published, the cache configuration, and whether there are metrics; unknown stays unknown."""
    import httpx

    facts: dict[str, Any] = {}
    cache: dict[str, str] = {}
    has_metrics = False
    try:
        version = await client.get("/version")
        name, _, number = version.headers.get("server", "").partition("/")
        if name == SIMULATED:
            return {"name": name, "version": number}, {}, True
        if version.status_code == 200 and "json" in version.headers.get("content-type", ""):
            facts["version"] = version.json().get("version")
        metrics = await client.get("/metrics")
        if metrics.status_code == 200:
            has_metrics = bool(server.parse(metrics.text))
            cache = server.cache_config(metrics.text)
            prefix = next((p for p in ("vllm:", "sglang:", "llamacpp:") if p in metrics.text), None)
            if prefix:
                facts["name"] = prefix.rstrip(":")
    except (httpx.TransportError, ValueError):
        pass  # what is not published stays unknown
    return facts, cache, has_metrics
