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
from harness.dialects import DIALECTS, refusals
from harness.load import control
from harness.load.client import client
from harness.run.launch.endpoint import Launch
from harness.spec.quality import QualitySpec
from harness.spec.scenario import Target
from harness.workload import answers, canaries
from harness.workload.canaries import Canary, judge
from harness.workload.request import Request

_CONNECT_S = 10.0  # TLS included
_LONGEST_BODY = 65_536  # bytes of an error's body that are searched


class Reply(msgspec.Struct, frozen=True):
    """An answer, as far as it is judged."""

    text: str = ""
    finish_reason: str = ""
    error: str = ""


Ask = Callable[[Request], Awaitable[Reply]]


async def measured(spec: QualitySpec, target: Target, launch: Launch, note: Callable[[str], None]) -> Launch:
    """The launch with the canaries and what they were answered."""
    found = await asyncio.to_thread(canaries.read, spec)
    note(f"asking {len(found)} canaries {spec.repeats} times each, one request in flight")
    async with client(launch.target, connect_s=_CONNECT_S) as api:

        async def ask(request: Request) -> Reply:
            if target.max_rps:
                await asyncio.sleep(1.0 / target.max_rps)
            return await _reply(api, launch, request, target.request_timeout)

        return await with_answers(spec, found, launch, ask)


def resumed(spec: QualitySpec, launch: Launch, unloaded: UnloadedAnswers) -> Launch:
    """The launch with the canaries of an earlier session; HarnessError where the file has other prompts now."""
    found = canaries.read(spec)
    if _digest(found) != unloaded.prompts_digest or len(found) != len(unloaded.digests):
        fact = "its prompts are not those that the run began with"
        raise HarnessError(fact, place=spec.file or "[quality]", way_out="undo the change, or start a new run")
    return msgspec.structs.replace(launch, canaries=_with_first(found, unloaded.digests), unloaded=unloaded)


async def with_answers(spec: QualitySpec, canaries: Sequence[Canary], launch: Launch, ask: Ask) -> Launch:
    """The launch with what these canaries are answered; HarnessError where all of them fail.

    Every prompt is asked once before any is asked again.
    """
    digests = [""] * len(canaries)
    kept: list[CanaryAnswer] = []
    for repeat in range(spec.repeats):
        for place, canary in enumerate(canaries):
            reply = await ask(canary.request(0, place))
            if not repeat and not reply.error:
                digests[place] = answers.digests(reply.text)
            kept.append(_kept(place, msgspec.structs.replace(canary, first=digests[place]), reply, launch.secrets))
        if not any(digests):
            fact = f"no canary is answered: {kept[-1].error}"
            raise HarnessError(fact, place=launch.address.base, way_out="leave [quality] out")
    unloaded = UnloadedAnswers(digests=digests, answers=kept, prompts_digest=_digest(canaries))
    return msgspec.structs.replace(launch, canaries=_with_first(canaries, digests), unloaded=unloaded)


def _with_first(canaries: Sequence[Canary], digests: Sequence[str]) -> tuple[Canary, ...]:
    pairs = zip(canaries, digests, strict=True)
    return tuple(msgspec.structs.replace(canary, first=first) for canary, first in pairs)


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
    """Sixteen hex digits that change with any prompt and with what is expected of its answer."""
    return hashlib.sha256(msgspec.json.encode(canaries)).hexdigest()[:16]


async def _reply(api: control.Client, launch: Launch, request: Request, within_s: float) -> Reply:
    """One request and its answer; what goes wrong is the reply's error."""
    dialect, headers = DIALECTS[launch.api], {"Content-Type": "application/json", "X-Request-Id": "knee-canary"}
    encoder = dialect.encoder(launch.requested_model, drop=launch.drop, extra=launch.extra_body, stream=launch.stream)
    decoding = dialect.decoders(stream=launch.stream)(keep_text=True)
    try:
        async with control.response(api, "POST", launch.path, within_s, encoder.encode(request), headers) as answer:
            if answer.status != 200:
                message = (await control.whole(answer))[:_LONGEST_BODY].decode("utf-8", "replace")
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
