"""What a run is made of: a request as it happened, a level, a telemetry figure; measured once, read by all else.

Times are seconds since the run's origin on CLOCK_MONOTONIC; missing is None, never 0. The phase is not
stored: it follows from `sent_s` and the level's frame (see `phase_of`).
"""

from __future__ import annotations

import enum
from array import array

import msgspec

# Version of all files of a result folder; a change of name or meaning raises it. 1 and 2 precede the first version.
FORMAT = 3

SERVER = "server"  # source of a server's own figures; of one of several replicas it goes on with its address

CANCELLED = "cancelled"  # an `error`: cut by us at a run's end
ABANDONED = "abandoned"  # an `error`: given up before its end, as the workload wants it
NOT_FAILED = frozenset(("", CANCELLED, ABANDONED))


class Header(msgspec.Struct, frozen=True, tag="header", tag_field="kind"):
    """The spool's first frame: how to read the rest without this program."""

    format: int
    fields: tuple[str, ...]
    monotonic_ns_origin: int  # CLOCK_MONOTONIC at t = 0
    unix_origin: float


def check_format(found: object) -> None:
    """Refuse a file of a format that this program does not read; ValueError."""
    if found != FORMAT:
        raise ValueError(f"it has format {found}, this program reads {FORMAT}")


class Record(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A request as it happened; its columns are those of docs/definitions.md, Columns of requests.parquet.

    `arrivals` is one int64 a chunk that carried tokens, nanoseconds since the origin, in order.
    `tokens` is one int32 a chunk; empty means one token a chunk (the common case costs nothing).
    """

    request_id: str
    level: int
    repeat: int
    concurrency: int | None  # None in open loop
    worker: int
    url: str
    scheduled_s: float
    sent_s: float | None  # None: no byte of it was ever written
    connect_s: float | None  # connect time when this request had to open its connection; TLS is `tls_s`
    first_token_s: float | None
    first_content_s: float | None
    last_token_s: float | None
    done_s: float | None
    input_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    reasoning_tokens: int | None
    token_source: str  # continuous | chunks | tokenizer | bytes | "" when there were no tokens
    status: int | None
    error: str  # "" is success
    finish_reason: str
    bytes_received: int
    arrivals: bytes = b""
    tokens: bytes = b""
    class_: str = ""
    session_id: str = ""
    turn: int = 0
    error_message: str = ""  # the start of the server's or the system's error message
    merged: int = 0  # token-carrying events that shared one read, and so one stamp, with another
    tls_s: float | None = None  # TLS handshake when this request had to open its connection
    lumped: int = 0  # merged events that the server sent together: the read that brought them was in time
    canary: int | None = None  # number of the prompt of [quality] that it had; None: a request of the load
    differs_at: int | None = None  # words after which its answer leaves that of an unloaded server; None: nowhere
    flaw: str = ""  # what is wrong with its text (`workload.answers`); "": nothing
    score: float | None = None  # 0 or 1 if an answer is expected, else None
    noted: str = ""  # codes of what it was measured in spite of, a comma between (docs/definitions.md)


class Role(enum.StrEnum):
    """What a level is measured for, which decides how long it lasts (`search.pace`); files contain the values."""

    FIXED = "given"  # the operator chose it
    FIRST_PASS = "first pass"  # searches where the bend lies at all
    REFINEMENT = "refinement"  # what narrows the answer
    REPEAT = "repeat"  # a level of the refinement that was measured before
    SLO = "slo"  # searches where an SLO stops being met
    SLO_DECISION = "slo decision"  # a load next to that, for as long as it takes to decide it
    PROBE = "probe"  # a prompt length of a phase probe
    SOAK = "soak"  # for long, at a share of the knee
    LOSS = "loss"  # what a replica less does


class LevelNote(enum.StrEnum):
    """Remarks on a level in its frame; files contain the values."""

    CUT_SHORT = "cut_short"  # a bound of the run ended its window
    FAILING = "failing"  # most of its requests failed, and so its window ended
    STALLED = "stalled"  # no token came for so long that its window ended
    REFUSED = "refused"  # connections found no server, and so its window ended
    COOLDOWN_CUT = "cooldown_cut"  # a bound of the run ended it before the last request of its window had ended
    COOLDOWN_STALLED = "cooldown_stalled"  # the same: no token came for so long
    NOT_SETTLED = "not_settled"  # a trend goes through its window
    NOT_PRECISE = "not_precise"  # its throughput is less precise than requested
    INTERRUPTED = "interrupted"  # a signal ended it; a resumed run measures it again
    COUNTED = "counted"  # it has a given number of requests, and its window is from the first to the last of them
    VOID = "void"  # broken off with its session


class Level(msgspec.Struct, frozen=True):
    """Where one level of the ramp lies in time; None while that moment has not come.

    A frame of the spool, written whole at each of its moments; the last one of an index counts.
    """

    index: int
    concurrency: int | None  # None in open loop
    repeat: int
    begin_s: float
    window_start_s: float | None = None
    window_end_s: float | None = None
    end_s: float | None = None
    notes: tuple[str, ...] = ()
    rate: float | None = None  # open loop: requests per second that were to be sent
    reason: str = ""  # why the ramp chose it
    input_tokens: int | None = None  # length of a probe's prompts, if it varies them; None: the scenario's
    role: Role | None = None  # what for; None: of a level without a reason
    hung: int = 0  # requests that were still in flight at its end, for much longer than any that succeeded took

    @property
    def finished(self) -> bool:
        return self.end_s is not None

    @property
    def window(self) -> tuple[float, float]:
        """Return when its window began and ended; raise ValueError while that is not over."""
        if self.window_start_s is None or self.window_end_s is None:
            raise ValueError(f"level {self.index} has no closed window")
        return self.window_start_s, self.window_end_s


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One telemetry figure: when, of whom (server | client | host | gpu), its name, its value."""

    time_s: float
    source: str
    metric: str
    value: float


def arrivals_of(record: Record) -> array[int]:
    """Return the arrival stamps of the record's chunks, int64 nanoseconds since the origin, shape [chunks]."""
    out = array("q")
    out.frombytes(record.arrivals)
    return out


def tokens_of(record: Record) -> array[int]:
    """Return the tokens in each of the record's chunks, int32, shape [chunks]."""
    if not record.tokens:
        return array("i", [1]) * (len(record.arrivals) // 8)
    out = array("i")
    out.frombytes(record.tokens)
    return out


def phase_of(sent_s: float | None, level: Level) -> str:
    """Return "warmup", "measure" or "cooldown": whether a request was sent before, in or after its level's window.

    >>> phase_of(5.0, Level(0, 1, 0, 0.0, 4.0, 9.0))
    'measure'
    """
    if sent_s is None or level.window_start_s is None or sent_s < level.window_start_s:
        return "warmup"
    return "measure" if level.window_end_s is None or sent_s < level.window_end_s else "cooldown"
