"""A worker's requests, built before they are due, and the record that each of them ends as.

None of the work of making a request delays its send. The worker's share of the numbers is every n-th; each number is
one request, or task, in a run. Left out: when a request is due.
"""

from __future__ import annotations

import asyncio
import collections
from typing import Any

import msgspec

from harness.base.secrecy import plain, redact
from harness.data.record import Record
from harness.load import receive
from harness.load.messages import BeginLevel, Plan
from harness.load.transport import Exchange, Transport
from harness.spec.classes import Cancel
from harness.workload.canaries import judge
from harness.workload.image import Images
from harness.workload.request import Request
from harness.workload.source import Canaries, Single
from harness.workload.tasks import Tasks

# Fields that may say how long an answer is, in the words of all APIs.
_LENGTHS = {"max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict", "options", "parameters"}
_MOST_AHEAD = 4096  # requests built ahead at most


class Built(msgspec.Struct, frozen=True, gc=False):
    """A request that is ready to be sent."""

    id: str
    number: int
    data: Any
    class_: str
    cancel: Cancel | None
    session: str
    turn: int
    canary: int | None
    asked: int | None  # tokens of its answer; None: fields of the operator's may say otherwise


class Prepared:
    """The requests of a worker's source; `source` is None where it makes tasks, which are built one by one."""

    def __init__(self, plan: Plan, transport: Transport) -> None:
        self._plan = plan
        self._transport = transport
        self._encode = plan.codec.encoder.encode
        self._images = Images(*plan.images, plan.source.seed) if plan.images else None
        self._number = plan.first_request + plan.worker
        self._ready: collections.deque[Built] = collections.deque()
        self._of_words: dict[int | None, Single] = {}  # by words of a level's own prompts
        self.source: Single | None = None  # of the requests that are built ahead
        if not isinstance(plan.source, Tasks):
            self.source = self._of_words[None] = plan.source
        self._wanted = 8  # how many requests to have built ahead
        self._low = asyncio.Event()  # fewer than half of them are left

    async def prepare(self, connections: int) -> None:
        """Build ahead the first requests of a level with `connections` in flight."""
        self._wanted = min(_MOST_AHEAD, 8 + connections)
        while self.source is not None and len(self._ready) < self._wanted:
            self._build_some()
            await asyncio.sleep(0)

    def begin(self, level: BeginLevel) -> None:
        """Take requests from this level's source and numbers from now on; discard those built ahead for another."""
        source = None if self.source is None else self._source_of(level)
        if source is self.source and level.first_request is None:
            return
        self.source = source
        self._ready.clear()
        self._low.set()
        if level.first_request is not None:
            self._number = level.first_request + self._plan.worker

    def next(self, level: BeginLevel) -> Built:
        """Return the next request of the level's source."""
        source = self._source_of(level)
        built = self._ready.popleft() if self._ready and source is self.source else self._build(source)
        if 2 * len(self._ready) < self._wanted:
            self._low.set()
        return built

    def next_number(self) -> int:
        """Return the next number of a request or of a task: each comes once in a run."""
        number, self._number = self._number, self._number + self._plan.workers
        return number

    def build(self, request: Request) -> Built:
        """Return a request encoded for the transport, with its id of run, worker and number."""
        plan = self._plan
        if self._images is not None and request.canary is None:
            request = msgspec.structs.replace(request, images=self._images.of(request.number))
        request_id = f"{plan.run_id}-{plan.worker}-{request.number}"
        data = self._transport.request(request_id, self._encode(request), request.session)
        own = plan.codec.extra_body.keys() | plan.codec.classes.get(request.class_, {}).keys()
        return Built(
            request_id, request.number, data, request.class_, request.cancel, request.session, request.turn,
            request.canary, None if own & _LENGTHS else request.output_tokens,
        )  # fmt: skip

    async def fill(self) -> None:
        """Build requests ahead whenever few are left, without end."""
        while True:
            self._build_some()
            if len(self._ready) < self._wanted:
                await asyncio.sleep(0.001)
            else:
                self._low.clear()
                await self._low.wait()

    def _source_of(self, level: BeginLevel) -> Single:
        """Return the source of a level's requests: the plan's, with prompts of the level's own length if it has one."""
        words = level.prompt_words
        source = self._of_words.get(words)
        if source is None:
            source = self._of_words[words] = msgspec.structs.replace(self._of_words[None], prompt_words=words)
        return source

    def _build(self, source: Single) -> Built:
        return self.build(source.request(self.next_number()))

    def _build_some(self) -> None:
        if (source := self.source) is None:
            return
        for _ in range(max(1, min(16, 4096 // source.prompt_words))):  # long prompts one a turn
            if len(self._ready) >= self._wanted:
                return
            self._ready.append(self._build(source))


_LONGEST_MESSAGE = 200  # characters of an error's message


class Running(msgspec.Struct, frozen=True, gc=False):
    exchange: Exchange
    level: BeginLevel  # in which it was sent
    scheduled_ns: int
    class_: str
    session: str
    turn: int
    canary: int | None
    origin_ns: int  # the run's t = 0 by this worker's clock, as it was known when it was sent


def record(running: Running, plan: Plan) -> Record:
    """Return the record of a request that is over and decoded."""
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
        arrivals=receive.shifted(arrivals, -origin),
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
    """Return a canary's record with where its answer differs from the first one, its flaw and its score."""
    assert isinstance(plan.source, Canaries)
    if made.error:
        return msgspec.structs.replace(made, canary=canary)
    found = judge(plan.source.canaries[canary], text)
    return msgspec.structs.replace(made, canary=canary, differs_at=found.differs_at, flaw=found.flaw, score=found.score)


def _first_words(message: str, plan: Plan) -> str:
    """Return the first words of an error's message, on one line and without the secrets that it repeats."""
    return redact(plain(message[: 2 * _LONGEST_MESSAGE]), plan.secrets)[:_LONGEST_MESSAGE]
