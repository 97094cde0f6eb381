"""What a server without load gives, asked before the load with one request in flight: canaries, and its prefix cache.

Each canary is asked some times. The first answer to a prompt is what all later ones are compared with; the others show
how often a server without load leaves its own answers. An answer that fails is kept as one, and its prompt is compared
with nothing.

The audit of the cache has three prompts in turn: a new one that nobody has sent, the same once more, and the load's own
next one. What the second gains on the first is the cache's; what the third gains is there before the run, as after an
earlier run with the same seed or the same file. The server's count of cached tokens decides where it gives one, else
the time to the first token.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import secrets
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Literal

import msgspec

from harness.base.errors import HarnessError, ProtocolError
from harness.base.secrecy import redact
from harness.data.manifest import CacheAudit, CachedPrompts, CanaryAnswer, UnloadedAnswers
from harness.dialects import refusals
from harness.load import control
from harness.load.client import client
from harness.run.launch import answers as asking
from harness.run.launch.endpoint import Endpoint, source
from harness.run.launch.published import CONNECT_S
from harness.spec.scenario import QualitySpec, Scenario, Target
from harness.workload.canaries import Canary, digests, judge, read
from harness.workload.request import Request
from harness.workload.source import Uniform, together
from harness.workload.tasks import Tasks

ROUNDS, MOST_ROUNDS = 8, 24  # rounds of the audit; the most if it stays unclear, as on a machine that is busy
_CACHED, _NONE = 0.5, 0.1  # share of a repeated prompt's tokens: from here on a cache is on, up to here it is off
_SOONER, _AS_LATE = 0.8, 0.9  # a repeated prompt's TTFT over a new one's: up to here sooner, from here on as late
_WARM = 0.2  # share of the load's own prompts that is cached, from which on they are not cold


class Reply(msgspec.Struct, frozen=True):
    """What one request came to."""

    text: str = ""
    finish_reason: str = ""
    error: str = ""  # see `Record.error`; "" is success
    message: str = ""  # message of the error
    first_s: float = 0.0  # to the first token
    tokens: int | None = None  # tokens of the prompt, by the server's count
    cached: int | None = None  # prompt tokens from its cache


Ask = Callable[[Request], Awaitable[Reply]]


@contextlib.asynccontextmanager
async def _asking(target: Target, endpoint: Endpoint, request_id: str) -> AsyncIterator[Ask]:
    """Yield a function that sends one request to the endpoint, within its quota, and returns the reply or error."""
    codec, path = endpoint.wire.codec, endpoint.wire.target.path
    async with client(endpoint.wire.target, connect_s=CONNECT_S) as api:

        async def ask(request: Request) -> Reply:
            content = codec.encoder.encode(request)
            place, tokens = endpoint.address.base + path, request.output_tokens
            try:
                reply = await asking.ask(
                    api, path, content, target, tokens, place, request_id=request_id, keep_text=True
                )
            except control.TransportError as error:
                late = isinstance(error, control.DeadlineError)
                return Reply(error="client_deadline" if late else "reset", message=str(error))
            except ProtocolError as error:
                return Reply(error=error.error)
            decoded = reply.response
            if decoded is None:
                return Reply(error=refusals.http_error(reply.status, reply.message))
            first_ns = decoded.arrivals[0] if decoded.arrivals else time.monotonic_ns()
            return Reply(
                text=decoded.text,
                finish_reason=decoded.finish_reason,
                error=decoded.error,
                message=decoded.message,
                first_s=(first_ns - reply.began_ns) * 1e-9,
                tokens=decoded.input_tokens,
                cached=decoded.cached_tokens,
            )

        yield ask


# ---- canaries --------------------------------------------------------------------------------------------------------


async def with_canaries(spec: QualitySpec, target: Target, endpoint: Endpoint, note: Callable[[str], None]) -> Endpoint:
    """Ask every canary prompt without load; return the endpoint with the canaries and their answers."""
    canaries = await asyncio.to_thread(read, spec)
    note(f"asking {len(canaries)} canaries {spec.repeats} times each, one request in flight")
    async with _asking(target, endpoint, "knee-canary") as ask:
        return await with_answers(spec, canaries, endpoint, ask)


def resumed(spec: QualitySpec, endpoint: Endpoint, unloaded: UnloadedAnswers) -> Endpoint:
    """Return the endpoint with an earlier session's canaries; raise HarnessError if the file has other prompts now."""
    canaries = read(spec)
    if _digest(canaries) != unloaded.prompts_digest or len(canaries) != len(unloaded.digests):
        fact = "its prompts are not those that the run began with"
        raise HarnessError(fact, place=spec.file or "[quality]", way_out="undo the change, or start a new run")
    return _answered(endpoint, canaries, unloaded)


async def with_answers(spec: QualitySpec, canaries: Sequence[Canary], endpoint: Endpoint, ask: Ask) -> Endpoint:
    """Ask the canaries `spec.repeats` times; return the endpoint with their answers; raise HarnessError if all fail.

    Every prompt is asked once before any is asked again.
    """
    first = [""] * len(canaries)
    kept: list[CanaryAnswer] = []
    for repeat in range(spec.repeats):
        for place, canary in enumerate(canaries):
            reply = await ask(canary.request(0, place))
            if not repeat and not reply.error:
                first[place] = digests(reply.text)
            kept.append(_kept(place, msgspec.structs.replace(canary, first=first[place]), reply, endpoint.wire.secrets))
        if not any(first):
            fact = f"no canary is answered: {kept[-1].error}"
            raise HarnessError(fact, place=endpoint.address.base, way_out="leave [quality] out")
    unloaded = UnloadedAnswers(digests=first, answers=kept, prompts_digest=_digest(canaries))
    return _answered(endpoint, canaries, unloaded)


def _answered(endpoint: Endpoint, canaries: Sequence[Canary], unloaded: UnloadedAnswers) -> Endpoint:
    """Return the endpoint with all answers of the canaries, and each canary with the digests of its first one."""
    pairs = zip(canaries, unloaded.digests, strict=True)
    found = tuple(msgspec.structs.replace(canary, first=first) for canary, first in pairs)
    prompts = msgspec.structs.replace(endpoint.prompts, canaries=found)
    return msgspec.structs.replace(
        endpoint, prompts=prompts, alone=msgspec.structs.replace(endpoint.alone, canaries=unloaded)
    )


def _kept(place: int, canary: Canary, reply: Reply, secrets: Sequence[str]) -> CanaryAnswer:
    """Return a reply as it is kept: judged, without its text, secrets hidden; of a failed one its error alone."""
    if reply.error:
        return CanaryAnswer(canary=place, error=reply.error)
    score = judge(canary, reply.text)
    return CanaryAnswer(
        canary=place,
        finish_reason=redact(reply.finish_reason, secrets),
        differs_at=score.differs_at,
        flaw=score.flaw,
        score=score.score,
    )


def _digest(canaries: Sequence[Canary]) -> str:
    """Return sixteen hex digits that change with any prompt and with what is expected of its answer."""
    return hashlib.sha256(msgspec.json.encode(canaries)).hexdigest()[:16]


# ---- the prefix cache ------------------------------------------------------------------------------------------------


async def audited(scenario: Scenario, endpoint: Endpoint, note: Callable[[str], None]) -> Endpoint:
    """Audit the prefix cache by requests without load; return the endpoint with the result."""
    note(f"auditing the prefix cache: {3 * ROUNDS} requests, one in flight")
    async with _asking(scenario.target, endpoint, "knee-audit") as ask:
        cache, rounds = await audit(scenario, endpoint, secrets.randbits(32), ask)
    note(cache.sentence)
    used = endpoint.prompts.used + rounds
    return msgspec.structs.replace(
        endpoint,
        prompts=msgspec.structs.replace(endpoint.prompts, used=used),
        alone=msgspec.structs.replace(endpoint.alone, cache=cache),
    )


async def audit(scenario: Scenario, endpoint: Endpoint, seed: int, ask: Ask) -> tuple[CacheAudit, int]:
    """Send new, repeated and the load's prompts in rounds; return what they show of the cache, and the rounds.

    Rounds go on while the outcome is unclear, up to a limit. Raise HarnessError if a request fails.
    """
    prompts = endpoint.prompts
    made = Uniform(words=prompts.words, prompt_words=prompts.count or 1, output_tokens=1, seed=seed)
    own = None if scenario.has_tasks else source(scenario, prompts)
    fresh = together(scenario, made)
    new, again, loads = list[Reply](), list[Reply](), list[Reply]()
    cache, number = None, 0
    while cache is None or (cache.outcome == "unclear" and number < MOST_ROUNDS):
        request = await asyncio.to_thread(fresh.request, number)
        new.append(await ask(request))
        again.append(await ask(request))
        if own is not None and not isinstance(own, Tasks):
            its = await asyncio.to_thread(own.request, prompts.used + number)
            loads.append(await ask(msgspec.structs.replace(its, output_tokens=min(1, its.output_tokens))))
        if failed := next((each for each in (new[-1], again[-1], *loads[-1:]) if each.error), None):
            fact = redact(failed.message or failed.error, endpoint.wire.secrets)
            place = f"--audit-cache, {endpoint.address.place}"
            raise HarnessError(fact, place=place, way_out="see the server's log")
        number += 1
        cache = judged(new, again, loads) if number % ROUNDS == 0 else cache
    return cache, number


def judged(new: Sequence[Reply], again: Sequence[Reply], own: Sequence[Reply]) -> CacheAudit:
    """Return whether a cache is on, by replies to new and repeated prompts, and whether it knows the load's `own`.

    By the cached tokens that the server counts, else by whether the first token of repeated prompts comes sooner.
    Unclear between the two; `warm` is None without `own` and where times are unclear.

    >>> slow, soon = [Reply(first_s=0.05, tokens=500)] * 8, [Reply(first_s=0.01, tokens=500)] * 8
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
        ratios = [b / a for a, b in zip(_per_token(new), _per_token(again), strict=True)]
        outcome = "off" if statistics.median(ratios) >= _AS_LATE else "unclear"
    if load is None:
        warm = None
    elif load.cached is not None:
        warm = load.cached >= _WARM
    else:
        warm = None if outcome == "unclear" else outcome == "on" and _like_repeated(new, again, own)
    return CacheAudit(new=first, again=repeated, own=load, outcome=outcome, warm=warm)


def _sooner(new: Sequence[Reply], other: Sequence[Reply]) -> bool:
    """Return whether all but one in eight of the others have their first token sooner, by `_SOONER` a prompt token."""
    pairs = zip(_per_token(new), _per_token(other), strict=True)
    sooner = [others <= _SOONER * news for news, others in pairs]
    return sum(sooner) >= len(sooner) - len(sooner) // ROUNDS


def _like_repeated(new: Sequence[Reply], again: Sequence[Reply], own: Sequence[Reply]) -> bool:
    """Return whether the load's prompts have their first token more like repeated prompts than like new ones."""
    fresh, repeated, its = (statistics.median(_per_token(each)) for each in (new, again, own))
    return its < math.sqrt(fresh * repeated)


def _per_token(replies: Sequence[Reply]) -> list[float]:
    return [reply.first_s / (reply.tokens or 1) for reply in replies]


def _prompts(replies: Sequence[Reply]) -> CachedPrompts:
    """Return the replies' median time to the first token, mean prompt tokens, and cached share, if they are counted."""
    tokens = [reply.tokens for reply in replies if reply.tokens]
    counted = [(reply.cached, reply.tokens) for reply in replies if reply.cached is not None and reply.tokens]
    return CachedPrompts(
        first_s=statistics.median(reply.first_s for reply in replies),
        tokens=statistics.mean(tokens) if tokens else None,
        cached=sum(a for a, _ in counted) / sum(b for _, b in counted) if counted else None,
    )
