"""The canaries before any load: each prompt is asked some times, one request in flight.

The first answer to a prompt is what all later ones are compared with; the others show how often a server without load
leaves its own answers. An answer that fails is kept as one, and its prompt is compared with nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from harness.base.errors import HarnessError, ProtocolError
from harness.base.secrecy import redact
from harness.data.manifest import CanaryAnswer, UnloadedAnswers
from harness.dialects import refusals
from harness.load import control
from harness.load.client import client
from harness.run.launch.answers import LONGEST_BODY
from harness.run.launch.endpoint import Endpoint
from harness.run.launch.published import CONNECT_S
from harness.spec.scenario import QualitySpec, Target
from harness.workload import answers, canaries
from harness.workload.canaries import Canary, judge
from harness.workload.request import Request


class Reply(msgspec.Struct, frozen=True):
    """An answer, as far as it is judged."""

    text: str = ""
    finish_reason: str = ""
    error: str = ""


Ask = Callable[[Request], Awaitable[Reply]]


async def measured(spec: QualitySpec, target: Target, endpoint: Endpoint, note: Callable[[str], None]) -> Endpoint:
    """Return the endpoint with the canaries and what they were answered."""
    found = await asyncio.to_thread(canaries.read, spec)
    note(f"asking {len(found)} canaries {spec.repeats} times each, one request in flight")
    async with client(endpoint.wire.target, connect_s=CONNECT_S) as api:

        async def ask(request: Request) -> Reply:
            if target.max_rps:
                await asyncio.sleep(1.0 / target.max_rps)
            return await _reply(api, endpoint, request, target.request_timeout)

        return await with_answers(spec, found, endpoint, ask)


def resumed(spec: QualitySpec, endpoint: Endpoint, unloaded: UnloadedAnswers) -> Endpoint:
    """Return the endpoint with an earlier session's canaries; HarnessError where the file has other prompts now."""
    found = canaries.read(spec)
    if _digest(found) != unloaded.prompts_digest or len(found) != len(unloaded.digests):
        fact = "its prompts are not those that the run began with"
        raise HarnessError(fact, place=spec.file or "[quality]", way_out="undo the change, or start a new run")
    return _answered(endpoint, found, unloaded)


async def with_answers(spec: QualitySpec, canaries: Sequence[Canary], endpoint: Endpoint, ask: Ask) -> Endpoint:
    """Return the endpoint with what these canaries are answered; HarnessError where all of them fail.

    Every prompt is asked once before any is asked again.
    """
    digests = [""] * len(canaries)
    kept: list[CanaryAnswer] = []
    for repeat in range(spec.repeats):
        for place, canary in enumerate(canaries):
            reply = await ask(canary.request(0, place))
            if not repeat and not reply.error:
                digests[place] = answers.digests(reply.text)
            kept.append(
                _kept(place, msgspec.structs.replace(canary, first=digests[place]), reply, endpoint.wire.secrets)
            )
        if not any(digests):
            fact = f"no canary is answered: {kept[-1].error}"
            raise HarnessError(fact, place=endpoint.address.base, way_out="leave [quality] out")
    unloaded = UnloadedAnswers(digests=digests, answers=kept, prompts_digest=_digest(canaries))
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
    if reply.error:
        return CanaryAnswer(canary=place, error=reply.error)
    found = judge(canary, reply.text)
    return CanaryAnswer(
        canary=place,
        finish_reason=redact(reply.finish_reason, secrets),
        differs_at=found.differs_at,
        flaw=found.flaw,
        score=found.score,
    )


def _digest(canaries: Sequence[Canary]) -> str:
    """Return sixteen hex digits that change with any prompt and with what is expected of its answer."""
    return hashlib.sha256(msgspec.json.encode(canaries)).hexdigest()[:16]


async def _reply(api: control.Client, endpoint: Endpoint, request: Request, within_s: float) -> Reply:
    """Send one request and return its answer; what goes wrong is the reply's error."""
    codec, headers = endpoint.wire.codec, {"Content-Type": "application/json", "X-Request-Id": "knee-canary"}
    content, decoding = codec.encoder.encode(request), codec.decoders(keep_text=True)
    try:
        async with control.response(api, "POST", endpoint.wire.target.path, within_s, content, headers) as answer:
            if answer.status != 200:
                message = (await control.whole(answer))[:LONGEST_BODY].decode("utf-8", "replace")
                return Reply(error=refusals.http_error(answer.status, message))
            async for piece in control.pieces(answer):
                decoding.feed(piece, time.monotonic_ns())
    except control.DeadlineError:
        return Reply(error="client_deadline")
    except control.TransportError:
        return Reply(error="reset")
    except ProtocolError as error:
        return Reply(error=error.error)
    decoded = decoding.end(time.monotonic_ns())
    return Reply(decoded.text, decoded.finish_reason, decoded.error)
