"""A whole run as columns: one row a request, one flat entry a chunk.

All levels share one table, because a request of the warm-up or of the level before puts tokens into a window
that it did not begin in. Nothing is derived here but the tokens of the first chunk; missing is nan.

A run has a thousand times as many chunks as requests. What is worked out of them is worked out in pieces
(`Table.pieces`, `pieces`), so that no array as long as all chunks is made but the few that are kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from harness.data.record import ABANDONED, CANCELLED, Level, Record
from harness.spec.work import Unit

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int32]

_ONE = np.int32(1).tobytes()
PIECE = 1 << 21  # chunks that are worked on at once: 16 MiB of their times


class Table(msgspec.Struct, frozen=True):
    """Columns of shape [requests] (seconds since the origin, tokens), then of shape [chunks]."""

    sent: Floats
    scheduled: Floats
    connect: Floats  # includes the TLS handshake
    first: Floats
    first_content: Floats
    last: Floats
    done: Floats
    input_tokens: Floats
    cached_tokens: Floats
    output_tokens: Floats
    reasoning: Floats  # tokens of these, by usage; 0 if it says nothing
    ok: Bools
    cancelled: Bools  # cut at the run's end
    abandoned: Bools  # given up because the workload wants it
    canary: Bools  # whether it is a canary of [quality], and so not part of the workload
    error: tuple[str, ...]
    class_: tuple[str, ...]  # "": none
    session: tuple[str, ...]  # its id; "": none
    turn: Ints  # its turn in its session
    url: tuple[str, ...]  # URL of its server or replica
    level: Ints
    merged: Ints
    lumped: Ints  # merged ones that the server sent together
    chunks: Ints  # chunks that carried tokens
    first_tokens: Floats  # tokens in the first of them, and in those that came with it; nan if there is none

    arrival: Floats
    tokens: Counts

    @classmethod
    def of(cls, records: Sequence[Record], unit: Unit = Unit.OUTPUT_TOKENS, usual: float = math.nan) -> Table:
        """Return the records as columns, one array for each field of a request and two for all chunks.

        `unit` is what throughput counts, `usual` how much of it one request is where the server does not count it.
        """

        def column(name: str) -> Floats:
            return np.array([getattr(record, name) for record in records], dtype=np.float64)  # None becomes nan

        chunks = np.array([len(record.arrivals) // 8 for record in records], dtype=np.int64)
        arrival, tokens, first_tokens = _chunks(records, chunks)
        made = cls(
            sent=column("sent_s"),
            scheduled=column("scheduled_s"),
            connect=column("connect_s") + np.nan_to_num(column("tls_s")),
            first=column("first_token_s"),
            first_content=column("first_content_s"),
            last=column("last_token_s"),
            done=column("done_s"),
            input_tokens=column("input_tokens"),
            cached_tokens=column("cached_tokens"),
            output_tokens=column("output_tokens"),
            reasoning=np.nan_to_num(column("reasoning_tokens")),
            ok=np.array([record.error == "" for record in records], dtype=np.bool_),
            cancelled=np.array([record.error == CANCELLED for record in records], dtype=np.bool_),
            abandoned=np.array([record.error == ABANDONED for record in records], dtype=np.bool_),
            canary=np.array([record.canary is not None for record in records], dtype=np.bool_),
            error=tuple([record.error for record in records]),
            class_=tuple([record.class_ for record in records]),
            session=tuple([record.session_id for record in records]),
            turn=np.array([record.turn for record in records], dtype=np.int64),
            url=tuple([record.url for record in records]),
            level=np.array([record.level for record in records], dtype=np.int64),
            merged=np.array([record.merged for record in records], dtype=np.int64),
            lumped=np.array([record.lumped for record in records], dtype=np.int64),
            chunks=chunks,
            first_tokens=first_tokens,
            arrival=arrival,
            tokens=tokens,
        )
        return made if unit is Unit.OUTPUT_TOKENS else _whole(made, unit, usual)

    def around(self, start: float, end: float) -> Table:
        """Return the requests from the first to the last that was in flight in [start, end], without copying any.

        Requests in between are kept, whether or not they were in flight then.
        """
        over = np.where(np.isnan(self.done), np.inf, np.fmax(self.done, self.last))
        touching = np.flatnonzero((np.fmin(self.scheduled, self.sent) <= end) & (over >= start))
        low, high = (int(touching[0]), int(touching[-1]) + 1) if len(touching) else (0, 0)
        before, inside = int(self.chunks[:low].sum()), int(self.chunks[low:high].sum())
        *of_requests, _, _ = self.__struct_fields__
        return msgspec.structs.replace(
            self,
            **{name: getattr(self, name)[low:high] for name in of_requests},
            arrival=self.arrival[before : before + inside],
            tokens=self.tokens[before : before + inside],
        )

    def only(self, rows: Bools) -> Table:
        """Return the marked requests with their chunks; `rows` has shape [requests]."""
        kept, chunks = np.flatnonzero(rows), np.repeat(rows, self.chunks)
        *of_requests, _, _ = self.__struct_fields__
        columns = {name: getattr(self, name) for name in of_requests}
        picked = {
            name: tuple([each[row] for row in kept]) if isinstance(each, tuple) else each[kept]
            for name, each in columns.items()
        }
        return msgspec.structs.replace(self, **picked, arrival=self.arrival[chunks], tokens=self.tokens[chunks])

    def to(self, url: str) -> Bools:
        """Return which requests went to a server or replica, shape [requests]."""
        return np.fromiter((each == url for each in self.url), np.bool_, len(self.url))

    def pieces(self) -> Iterator[tuple[slice, slice]]:
        """Yield the table in parts, in its order: a slice of requests, and the slice of their chunks."""
        return _pieces(self.chunks)

    @property
    def cut(self) -> Bools:
        """Return which requests we ended before their answer: neither successes nor failures."""
        return np.asarray(self.cancelled | self.abandoned)

    @property
    def failed(self) -> Bools:
        """Return which requests ended in an error that was not our own cut."""
        return np.logical_not(self.ok | self.cut)

    @property
    def began(self) -> Floats:
        """Return when each request began: its send, or its schedule if no byte could be sent (refused connections)."""
        return np.asarray(np.where(np.isnan(self.sent), self.scheduled, self.sent))

    def waited_from(self, level: Level) -> Floats:
        """Return when each request's wait began: when it `began`, or in an open loop when it was due."""
        return self.began if level.rate is None else self.scheduled


def _whole(table: Table, unit: Unit, usual: float) -> Table:
    """Return the table of requests that decode nothing: each answer is one chunk, at its last byte, with all its work.

    The work is input tokens or documents. A request whose tokens the server did not count has the others' mean.
    """
    amounts = table.input_tokens if unit is Unit.INPUT_TOKENS else np.full(len(table.ok), usual)
    known = ~np.isnan(amounts)
    amounts = np.where(known, amounts, amounts[known].mean() if known.any() else usual)
    answered = table.ok & ~np.isnan(table.done) & (amounts > 0)
    at = np.where(answered, table.done, np.nan)
    return msgspec.structs.replace(
        table,
        first=at,
        first_content=np.full(len(at), np.nan),
        last=at,
        output_tokens=np.full(len(at), np.nan),
        chunks=answered.astype(np.int64),
        first_tokens=np.where(answered, amounts, np.nan),
        arrival=table.done[answered],
        tokens=np.round(amounts[answered]).astype(np.int32),
    )


def pieces(n: int) -> Iterator[slice]:
    """Return n rows in their order, some at a time."""
    return (slice(low, min(low + PIECE, n)) for low in range(0, n, PIECE))


def _pieces(chunks: Ints) -> Iterator[tuple[slice, slice]]:
    """Yield pieces of a table as (slice of requests, slice of their chunks), of at most PIECE chunks or one request."""
    ends, low, at = np.cumsum(chunks), 0, 0
    while low < len(chunks):
        high = max(low + 1, int(np.searchsorted(ends, at + PIECE, side="right")))
        yield slice(low, high), slice(at, int(ends[high - 1]))
        low, at = high, int(ends[high - 1])


def _chunks(records: Sequence[Record], chunks: Ints) -> tuple[Floats, Counts, Floats]:
    """Return arrivals [s] and tokens of all chunks, and the tokens of each request's first one; nan without a chunk.

    Chunks that were read together with the first one count as part of it.
    """
    n = int(chunks.sum())
    arrival, first_tokens = np.empty(n), np.full(len(records), np.nan)
    # A token a chunk is the common case, and takes no memory.
    tokens = np.empty(n, np.int32) if any(record.tokens for record in records) else np.broadcast_to(np.int32(1), n)
    merged = any(record.merged for record in records)
    for rows, part in _pieces(chunks):
        some, counts = records[rows], chunks[rows]
        stamps = np.frombuffer(b"".join([r.arrivals for r in some]), dtype=np.int64)
        np.multiply(stamps, 1e-9, out=arrival[part])
        if tokens.flags.writeable:
            each = b"".join([r.tokens or _ONE * (len(r.arrivals) // 8) for r in some])
            tokens[part] = np.frombuffer(each, dtype=np.int32)
        having = counts > 0
        starts = (np.cumsum(counts) - counts)[having]
        firsts = tokens[part][starts]
        if merged and len(stamps):
            together = stamps == np.repeat(stamps[starts], counts[having])
            firsts = np.add.reduceat(tokens[part] * together, starts)
        first_tokens[rows][having] = firsts
    return arrival, tokens, first_tokens


def follows(table: Table, rows: Bools) -> Bools:
    """Return which chunks come behind another of the same request, over the marked rows, shape [chunks]."""
    out = np.repeat(rows, table.chunks)
    out[(np.cumsum(table.chunks) - table.chunks)[table.chunks > 0]] = False  # a first chunk follows none
    return out


def gaps(table: Table, rows: Bools) -> Floats:
    """Return the seconds between neighbouring chunks with tokens of the same request (ICL), of the marked requests."""
    counted = follows(table, rows)
    out, at = np.empty(np.count_nonzero(counted)), 0
    for _, part in table.pieces():
        some = np.diff(table.arrival[part])[counted[part][1:]]
        out[at : at + len(some)] = some
        at += len(some)
    return out


def placed_tokens(table: Table) -> Floats:
    """Return for each request the tokens in its chunks, which have a time of arrival, shape [requests]."""
    out = np.zeros(len(table.chunks))
    for rows, part in table.pieces():
        upto = np.concatenate([[0], np.cumsum(table.tokens[part], dtype=np.int64)])
        ends = np.cumsum(table.chunks[rows])
        out[rows] = upto[ends] - upto[ends - table.chunks[rows]]
    return out
