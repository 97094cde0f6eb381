"""What is kept of a request while it is in flight, and the record that it ends as."""

from __future__ import annotations

from array import array

import msgspec

from harness.base.secrecy import plain, redact
from harness.data.record import Record
from harness.load.messages import BeginLevel, Plan
from harness.load.transport import Exchange
from harness.workload.canaries import judge
from harness.workload.source import Canaries

_LONGEST_MESSAGE = 200  # characters of an error's message


class Running(msgspec.Struct, frozen=True, gc=False):
    """A request in flight."""

    exchange: Exchange
    level: BeginLevel  # in which it was sent
    scheduled_ns: int
    class_: str
    session: str
    turn: int
    canary: int | None
    origin_ns: int  # the run's t = 0 by this worker's clock, as it was known when it was sent


def record(running: Running, plan: Plan) -> Record:
    """The record of a request that is over and decoded."""
    exchange, decoded, origin = running.exchange, running.exchange.decoded, running.origin_ns

    def since(stamp: int) -> float | None:
        return (stamp - origin) * 1e-9 if stamp else None

    arrivals = decoded.arrivals
    made = Record(
        request_id=exchange.request_id,
        level=running.level.index,
        repeat=running.level.repeat,
        concurrency=running.level.concurrency,
        worker=plan.worker,
        url=exchange.url or plan.replicas[0].url,
        scheduled_s=(running.scheduled_ns - origin) * 1e-9,
        sent_s=since(exchange.sent_ns),
        connect_s=exchange.connect_ns * 1e-9 if exchange.connect_ns else None,
        tls_s=exchange.tls_ns * 1e-9 if exchange.tls_ns else None,
        first_token_s=since(arrivals[0]) if arrivals else None,
        first_content_s=since(decoded.first_content),
        last_token_s=since(arrivals[-1]) if arrivals else None,
        done_s=since(exchange.done_ns),
        input_tokens=decoded.input_tokens,
        cached_tokens=decoded.cached_tokens,
        output_tokens=decoded.output_tokens,
        reasoning_tokens=decoded.reasoning_tokens,
        token_source=decoded.token_source,
        status=exchange.response.status or None,
        error=exchange.error,
        finish_reason=redact(decoded.finish_reason, plan.secrets),
        bytes_received=exchange.bytes_received,
        arrivals=_minus(arrivals, origin),
        tokens=decoded.packed_tokens(),
        class_=running.class_,
        session_id=running.session,
        turn=running.turn,
        error_message=_first_words(exchange.message, plan) if exchange.error else "",
        merged=decoded.merged,
        lumped=decoded.merged - exchange.merged_late,
        noted=redact(",".join((*exchange.noted, *decoded.noted)), plan.secrets),
    )
    return made if running.canary is None else _of_canary(made, running.canary, decoded.text, plan)


def _of_canary(made: Record, canary: int, text: str, plan: Plan) -> Record:
    """The record of a canary, with what is kept of its answer."""
    assert isinstance(plan.source, Canaries)
    if made.error:
        return msgspec.structs.replace(made, canary=canary)
    found = judge(plan.source.canaries[canary], text)
    return msgspec.structs.replace(made, canary=canary, differs_at=found.differs_at, flaw=found.flaw, score=found.score)


def _first_words(message: str, plan: Plan) -> str:
    """The first words of an error's message, on one line and without the secrets that it repeats."""
    return redact(plain(message[: 2 * _LONGEST_MESSAGE]), plan.secrets)[:_LONGEST_MESSAGE]


def _minus(stamps: array[int], origin: int) -> bytes:
    """Stamps since the origin, as int64 bytes."""
    return array("q", map((-origin).__add__, stamps)).tobytes()
