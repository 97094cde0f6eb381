"""What the server's prefix cache gives, before any load; and what is done before each level, as to empty it.

Three prompts in turn, one request in flight: a new one that nobody has sent, the same once more, and the load's own
next one. What the second gains on the first is the cache's; what the third gains is there before the run, as after an
earlier run with the same seed or the same file. The server's count of cached tokens decides where it gives one, else
the time to the first token.
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

import msgspec

from harness.base.errors import HarnessError, ProtocolError
from harness.base.secrecy import redact
from harness.data.manifest import CacheAudit, CachedPrompts
from harness.dialects import refusals
from harness.load import control
from harness.load.client import client
from harness.run.launch.answers import LONGEST_BODY
from harness.run.launch.endpoint import Endpoint, source
from harness.run.launch.published import CONNECT_S
from harness.spec.scenario import Hooks, Scenario
from harness.workload.request import Request
from harness.workload.source import Uniform, together
from harness.workload.tasks import Tasks

ROUNDS = 8
_CACHED, _NONE = 0.5, 0.1  # share of a repeated prompt's tokens: from here on a cache is on, up to here it is off
_SOONER, _AS_LATE = 0.8, 0.9  # of the time to the first token
_WARM = 0.2  # share of the load's own prompts that is cached, from which on they are not cold
_RESET = ("/reset_prefix_cache", "/flush_cache")  # vLLM in its development mode, SGLang
_RESET_S = 10.0


class Seen(msgspec.Struct, frozen=True):
    """What one request showed."""

    first_s: float
    tokens: int | None
    cached: int | None


Ask = Callable[[Request], Awaitable[Seen]]


async def audited(scenario: Scenario, endpoint: Endpoint, note: Callable[[str], None]) -> Endpoint:
    """Return the endpoint with what its cache gives; HarnessError where a request fails."""
    note(f"auditing the prefix cache: {3 * ROUNDS} requests, one in flight")
    async with client(endpoint.wire.target, connect_s=CONNECT_S) as api:

        async def ask(request: Request) -> Seen:
            if scenario.target.max_rps:
                await asyncio.sleep(1.0 / scenario.target.max_rps)
            return await _sent(api, endpoint, request, scenario.target.request_timeout)

        found = await audit(scenario, endpoint, secrets.randbits(32), ask)
    note(found.sentence)
    used = endpoint.prompts.used + ROUNDS
    return msgspec.structs.replace(
        endpoint,
        prompts=msgspec.structs.replace(endpoint.prompts, used=used),
        alone=msgspec.structs.replace(endpoint.alone, cache=found),
    )


async def audit(scenario: Scenario, endpoint: Endpoint, seed: int, ask: Ask) -> CacheAudit:
    """Return what new, repeated and own prompts show; `seed` makes prompts that nobody has sent."""
    prompts = endpoint.prompts
    made = Uniform(words=prompts.words, prompt_words=prompts.count or 1, output_tokens=1, seed=seed)
    own = None if scenario.has_tasks else source(scenario, prompts)
    fresh = together(scenario, made)
    new, again, loads = list[Seen](), list[Seen](), list[Seen]()
    for number in range(ROUNDS):
        request = await asyncio.to_thread(fresh.request, number)
        new.append(await ask(request))
        again.append(await ask(request))
        if own is not None and not isinstance(own, Tasks):
            its = await asyncio.to_thread(own.request, prompts.used + number)
            loads.append(await ask(msgspec.structs.replace(its, output_tokens=min(1, its.output_tokens))))
    return judged(new, again, loads)


def judged(new: Sequence[Seen], again: Sequence[Seen], own: Sequence[Seen]) -> CacheAudit:
    """Return whether a cache served repeated prompts, and whether it served the load's own.

    >>> slow, soon = [Seen(0.05, 500, None)] * 8, [Seen(0.01, 500, None)] * 8
    >>> judged(slow, soon, slow).outcome, judged(slow, slow, slow).outcome, judged(slow, soon, soon).warm
    ('on', 'off', True)
    """
    first, repeated, load = _prompts(new), _prompts(again), _prompts(own) if own else None
    outcome: Literal["on", "off", "unclear"]
    if repeated.cached is not None:
        outcome = "on" if repeated.cached >= _CACHED else "off" if repeated.cached <= _NONE else "unclear"
    elif _sooner(new, again):
        outcome = "on"
    else:
        outcome = "off" if repeated.first_s >= _AS_LATE * first.first_s else "unclear"
    if load is None:
        warm = None
    elif load.cached is not None:
        warm = load.cached >= _WARM
    else:
        warm = None if outcome == "unclear" else outcome == "on" and _sooner(new, own)
    return CacheAudit(new=first, again=repeated, own=load, outcome=outcome, warm=warm)


def _sooner(new: Sequence[Seen], other: Sequence[Seen]) -> bool:
    """Return whether all but one of the others have their first token sooner, for each token of the prompt."""
    pairs = zip(new, other, strict=True)
    sooner = [b.first_s / (b.tokens or 1) <= _SOONER * a.first_s / (a.tokens or 1) for a, b in pairs]
    return sum(sooner) >= len(sooner) - 1


def _prompts(seen: Sequence[Seen]) -> CachedPrompts:
    tokens = [each.tokens for each in seen if each.tokens]
    counted = [(each.cached, each.tokens) for each in seen if each.cached is not None and each.tokens]
    return CachedPrompts(
        first_s=statistics.median(each.first_s for each in seen),
        tokens=statistics.mean(tokens) if tokens else None,
        cached=sum(a for a, _ in counted) / sum(b for _, b in counted) if counted else None,
    )


async def _sent(api: control.Client, endpoint: Endpoint, request: Request, within_s: float) -> Seen:
    """Send one request, and return when its first token came; HarnessError where it fails."""
    codec, headers = endpoint.wire.codec, {"Content-Type": "application/json", "X-Request-Id": "knee-audit"}
    content, decoding = codec.encoder.encode(request), codec.decoders()
    began_ns = time.monotonic_ns()
    try:
        async with control.response(api, "POST", endpoint.wire.target.path, within_s, content, headers) as answer:
            if answer.status != 200:
                message = (await control.whole(answer))[:LONGEST_BODY].decode("utf-8", "replace")
                raise _failed(endpoint, refusals.http_error(answer.status, message))
            async for piece in control.pieces(answer):
                decoding.feed(piece, time.monotonic_ns())
    except control.TransportError as error:
        raise _failed(endpoint, str(error)) from None
    except ProtocolError as error:
        raise _failed(endpoint, error.error) from None
    ended_ns = time.monotonic_ns()
    decoded = decoding.end(ended_ns)
    if decoded.error:
        raise _failed(endpoint, decoded.message or decoded.error)
    first_ns = decoded.arrivals[0] if decoded.arrivals else ended_ns
    return Seen((first_ns - began_ns) * 1e-9, decoded.input_tokens, decoded.cached_tokens)


def _failed(endpoint: Endpoint, fact: str) -> HarnessError:
    text = redact(fact, endpoint.wire.secrets)
    return HarnessError(text, place=f"--audit-cache, {endpoint.address.place}", way_out="see the server's log")


# ---- before a level --------------------------------------------------------------------------------------------------


async def before_level(hooks: Hooks, endpoint: Endpoint) -> None:
    """Do what a scenario has before each level; HarnessError where that fails."""
    if hooks.reset_cache:
        await reset(endpoint)
    if hooks.before_level:
        await command(hooks.before_level)


async def reset(endpoint: Endpoint) -> None:
    """Empty the prefix cache of every server; HarnessError where one has no way to do that, or does not."""
    for each in endpoint.replicas or (endpoint,):
        async with client(each.wire.target, connect_s=CONNECT_S) as api:
            await _emptied(api, each)


async def _emptied(api: control.Client, endpoint: Endpoint) -> None:
    fact = ""
    for path in _RESET:
        try:
            page = await control.page(api, endpoint.address.path(path), _RESET_S, b"{}")
        except control.TransportError as error:
            raise HarnessError(str(error), place=f"--reset-cache, {endpoint.address.place}") from None
        if page.status == 200:
            return
        fact = fact or (f"{path}: status {page.status}" if page.status not in (404, 405) else "")
    raise HarnessError(
        fact or f"it has neither {' nor '.join(_RESET)}",
        place=f"--reset-cache, {endpoint.address.place}",
        way_out="vLLM has it with VLLM_SERVER_DEV_MODE=1; else --before-level COMMAND",
    )


async def command(text: str, option: str = "--before-level") -> None:
    """Run a command, without a shell, until it ends; HarnessError where it fails."""
    try:
        words = shlex.split(text)
        process = await asyncio.create_subprocess_exec(
            *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
    except (ValueError, OSError) as error:
        raise HarnessError(str(error), place=option, way_out="write it as in a terminal") from None
    _, said = await process.communicate()
    if process.returncode:
        last = said.decode("utf-8", "replace").strip().rpartition("\n")[2][:200]
        fact = f"status {process.returncode}{': ' + last if last else ''}"
        raise HarnessError(fact, place=f"{option} {shlex.quote(text)}", way_out="run it in a terminal")
