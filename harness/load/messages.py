"""Messages between a worker and its parent: the plan and the commands that it gets, the progress that it sends.

A batch of records is a message too, written into the spool as it arrived. Times in commands are of the worker's clock,
times in its progress are seconds since the plan's origin, so a worker with a clock of its own needs `on_clock` alone.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from harness.dialects import DIALECTS
from harness.dialects.dialect import Decoders, Encoder
from harness.load.transport import Target
from harness.spec.choices import ROUND_ROBIN, Balance
from harness.spec.distribution import Distribution
from harness.workload.source import Source
from harness.workload.tasks import Tasks

BATCH_EVERY_S = 0.25
PROGRESS_EVERY_S = 0.05
SILENT_S = 30  # progress comes twenty times a second: a worker that sends none for so long is lost
UNREAD_S = 30.0  # a worker whose messages are not read for so long stops its load


class Replica(msgspec.Struct, frozen=True):
    """A server that the load goes to, or one of several that share it."""

    url: str  # URL that its records name
    target: Target
    probe_path: str = ""  # a page that tells whether it answers, if several share the load


class Codec(msgspec.Struct, frozen=True, kw_only=True):
    """How requests are written and their answers read: an API, and what the server takes of it. It may hold secrets."""

    api: str = "chat"
    model: str  # model that requests name
    stream: bool = True
    drop: frozenset[str] = frozenset()  # optional fields that the server refuses, or that are to be left out
    extra_body: dict[str, Any] = {}  # fields that the operator adds
    classes: dict[str, dict[str, Any]] = {}  # fields that the bodies of a class have of their own

    @property
    def encoder(self) -> Encoder:
        """Return what makes the bodies of requests."""
        make = DIALECTS[self.api].encoder
        return make(self.model, drop=self.drop, extra=self.extra_body, classes=self.classes, stream=self.stream)

    @property
    def decoders(self) -> Decoders:
        """Return what makes the decoder of one answer."""
        return DIALECTS[self.api].decoders(stream=self.stream)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker gets once, at its start."""

    worker: int
    workers: int
    run_id: str
    replicas: tuple[Replica, ...]  # one, or several that share the load
    balance: Balance = ROUND_ROBIN  # over several
    codec: Codec
    source: Source | Tasks
    first_request: int  # numbers below were used by the launch checks
    images: tuple[int, int, int] | None = None  # in each request: how many, their width and height in pixels
    request_timeout_s: float
    max_rps: float | None  # this worker's share
    start: str  # staggered | burst | batch
    think_ms: Distribution | None = None  # between two requests of a slot; None: none
    max_in_flight: int  # bound of an open loop; requests beyond it wait, which is lag
    tick_ns: int
    origin_ns: int
    tokenizer_json: str = ""  # places tokens where neither running usage nor the chunk count does
    secrets: tuple[str, ...] = ()  # secrets that no record may contain, whatever a server repeats
    cpus: tuple[int, ...] = ()


class Prepare(msgspec.Struct, frozen=True, tag="prepare", tag_field="kind"):
    """Make ready for a level: this worker's connections open, its first requests built."""

    number: int  # comes back as Progress.prepared
    connections: int


class BeginLevel(msgspec.Struct, frozen=True, tag="begin_level", tag_field="kind"):
    """Begin this level at `at_ns`; new slots begin spread over `spread_s`.

    `slots` is this worker's part of `concurrency`; with a `rate` (of all workers, requests per second) there are
    no slots, and requests are sent on schedule.
    """

    index: int
    repeat: int
    concurrency: int | None
    slots: int
    spread_s: float
    tick_ns: int
    at_ns: int
    rate: float | None = None
    arrivals: str = "poisson"
    prompt_words: int | None = None  # length of this level's prompts, if it is not the plan's
    requests: int | None = None  # requests that this worker's slots send in all; None: as long as the level lasts
    first_request: int | None = None  # number of its first request, if its times and its requests belong together


class Origin(msgspec.Struct, frozen=True, tag="origin", tag_field="kind"):
    """The run's t = 0 by the worker's clock as it is known now: of progress and of the requests sent from now on."""

    ns: int


class Rest(msgspec.Struct, frozen=True, tag="rest", tag_field="kind"):
    """Begin no more requests until the next level; those that are in flight, or due, go on.

    With `drop`, those that are due and wait for a place or the quota are not sent.
    """

    drop: bool = False


class Stop(msgspec.Struct, frozen=True, tag="stop", tag_field="kind"):
    """Cut what is in flight, send the last batch, end."""


Command = Prepare | BeginLevel | Origin | Rest | Stop


class Progress(msgspec.Struct, frozen=True, tag="progress", tag_field="kind"):
    """A worker's state, twenty times a second; counts since the level's BeginLevel unless noted otherwise."""

    time_s: float
    level: int
    in_flight: int
    ended: int  # requests of this level that ended
    failed: int  # requests of this level that failed, as far as their answers are decoded
    waiting: int  # new slots whose staggered start is still to come
    tokens: int  # token-carrying chunks decoded since the run began
    oldest_sent_s: float | None  # when the oldest request in flight was sent; in an open loop, when the oldest was due
    begun_in_run: int
    cpu_s: float  # processor time of this process since it began
    reads: int
    unstamped: int
    late: tuple[int, ...] = ()  # read-delay histogram since the last one sent, five times a second; trimmed
    worker: int = 0
    prepared: int = 0  # number of the last Prepare that was carried out
    took_s: float = 0.0  # from BeginLevel.at_ns to the beginning of the level
    paused_s: float = 0.0  # the sleep before this message was longer than planned by so much: the process stood still
    surplus: int = 0  # slots of a higher level that are not over
    waited_s: float | None = None  # for a processor, since the process began; sent with `late`
    oldest: tuple[float, ...] = ()  # when the oldest requests in flight were sent, in order
    refused: int = 0  # connections that failed in a row since the last answer; of several servers, at the best one


class Done(msgspec.Struct, frozen=True, tag="done", tag_field="kind"):
    """The worker's last message: every record is sent."""

    timestamp_source: str
    receive: str = "pure"  # compiled | pure: its receive path
    resent: int = 0  # requests sent again because the server had closed a kept connection


Message = Progress | Done


encode = msgspec.msgpack.Encoder().encode
decode_plan = msgspec.msgpack.Decoder(Plan).decode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_message = msgspec.msgpack.Decoder(Message).decode

_Order = TypeVar("_Order", Plan, Prepare, BeginLevel, Origin, Stop)


def on_clock(order: _Order, offset_ns: int) -> _Order:
    """Return the plan or command in times of a clock that is so far ahead of ours."""
    if not offset_ns:
        return order
    if isinstance(order, Plan):
        return msgspec.structs.replace(order, origin_ns=order.origin_ns + offset_ns)
    if isinstance(order, Origin):
        return msgspec.structs.replace(order, ns=order.ns + offset_ns)
    if isinstance(order, BeginLevel):
        return msgspec.structs.replace(order, at_ns=order.at_ns + offset_ns)
    return order
