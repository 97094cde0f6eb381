"""Frames: the form of a run's spool, and how it is read back, damaged or not.

A frame is `u32 length, u32 crc32, payload`. A payload that is a msgpack array is a batch of records, verbatim as the
worker sent it; a payload that is a map is a header, a level or a handful of telemetry rows. Reading ends at the first
frame that is not whole, not ours or not possible; every frame before it counts. No frame has a length of 0: a file
that a power cut left may end in zeros.

A spool is one file or several, its segments, which read in order as one. Each later one begins with the header and all
levels so far, so that damage in one costs no other.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from harness.base import decoding, files
from harness.data.record import FORMAT, SERVER, Header, Level, Record, Sample
from harness.results import folder as folders

HEAD = struct.Struct("<II")
_LONGEST = 1 << 30  # a length beyond this is not ours: the file is damaged there
_PIECE = 1 << 20  # bytes read at once of what may not be a frame
_MOST_ZEROS = 1 << 26
LATEST_S = 1e10  # latest time in a record: three hundred years
_LONGEST_WINDOW_S = 1e7  # longest window of a level: 115 days
_MOST = 2**31 - 1  # largest count that the columns of requests.parquet keep in 32 bits
MOST_LEVELS = 4096  # most levels of one run
ZEROS, TORN = "holds only zeros", "holds no whole frame"


class Position(NamedTuple):
    """A place between two frames of a spool."""

    segment: int = 0
    at: int = 0  # bytes of the segment before it


START = Position()


class LevelFrame(msgspec.Struct, frozen=True, tag="level", tag_field="kind"):
    level: Level


class TelemetryFrame(msgspec.Struct, frozen=True, tag="telemetry", tag_field="kind"):
    samples: list[Sample]


Frame = Header | LevelFrame | TelemetryFrame
encode = msgspec.msgpack.Encoder().encode
_decode_map = msgspec.msgpack.Decoder(Frame).decode
_decode_batch = msgspec.msgpack.Decoder(list[Record]).decode


def frame(payload: bytes) -> bytes:
    """Return a payload with its length and checksum in front."""
    return HEAD.pack(len(payload), zlib.crc32(payload)) + payload


def batch(records: Sequence[Record]) -> bytes:
    """Return the payload of a batch; a worker's message and the file have the same bytes."""
    return encode(list(records))


def is_batch(payload: bytes) -> bool:
    """Return whether a payload is a batch of records: msgpack has three heads for an array."""
    return payload[0] & 0xF0 == 0x90 or payload[0] in (0xDC, 0xDD)


def payloads(data: bytes) -> Iterator[bytes]:
    """Yield the payload of each frame from the start of the data, up to the first that is cut off or damaged."""
    at = 0
    while at + HEAD.size <= len(data):
        length, crc = HEAD.unpack_from(data, at)
        end = at + HEAD.size + length
        if not 0 < length <= _LONGEST or end > len(data):
            return
        payload = data[at + HEAD.size : end]
        if zlib.crc32(payload) != crc:
            return
        yield payload
        at = end


class Damage(msgspec.Struct, frozen=True):
    """Where the reading of a segment ended before its end, and why."""

    at: int  # bytes before it, all read
    size: int  # bytes of the file; 0: it is not there
    why: str
    name: str = folders.SPOOL  # name of the file

    def __str__(self) -> str:
        if not self.size:
            return f"{self.name} {self.why}"
        lost = self.size - self.at
        return f"{self.name} {self.why} from byte {self.at:,} on: its last {lost:,} bytes are not read"


class Spooled(msgspec.Struct, kw_only=True):
    """The content of a spool up to its damage."""

    header: Header | None = None
    levels: dict[int, Level] = {}
    records: list[Record] = []
    samples: list[Sample] = []
    end: int = 0  # bytes of its whole frames, of all segments that were read
    damages: list[Damage] = []  # one of a segment at most

    @property
    def damage(self) -> Damage | None:
        """Return the first damage."""
        return self.damages[0] if self.damages else None


def read(path: Path) -> Spooled:
    """Read all segments of a spool, each up to its first frame that is damaged or of another program."""
    spooled, expected = Spooled(), 0
    for number, name in folders.segments(path.parent, path.name).items():
        if number > expected:
            spooled.damages.append(Damage(0, 0, "is missing", folders.segment(expected, path.name)))
        read_segment(path.with_name(name), spooled)
        expected = number + 1
    return spooled


def read_between(path: Path, since: Position, until: Position, levels: Mapping[int, Level]) -> Spooled:
    """Read the frames of a spool between two positions; `levels` are those from before, which its records may name."""
    spooled = Spooled(levels=dict(levels))
    for number, name in folders.segments(path.parent, path.name).items():
        if since.segment <= number <= until.segment:
            begin = since.at if number == since.segment else 0
            read_segment(path.with_name(name), spooled, begin, until.at if number == until.segment else None)
    return spooled


def read_segment(path: Path, spooled: Spooled, begin: int = 0, end: int | None = None) -> int:
    """Add the frames of one segment, from `begin` to `end`, to `spooled`; return the byte up to which it is whole."""
    with files.opened(path) as file:
        size = file.seek(0, 2)
        size = size if end is None else min(size, end)
        at, why = file.seek(begin), ""
        while at < size and not why:
            head = file.read(HEAD.size)
            length, crc = HEAD.unpack(head) if len(head) == HEAD.size else (0, 0)
            after = at + HEAD.size + length
            if not 0 < length <= _LONGEST or after > size:
                why = ZEROS if _zeros(file, at) else TORN
            elif (payload := _payload(file, length, crc)) is None:
                why = "is damaged"
            else:
                why = _take(spooled, payload)
            if not why:
                at = after
    if why:
        spooled.damages.append(Damage(at, size, why, path.name))
    spooled.end += at - begin
    return at


def read_since(path: Path, since: Position, levels: dict[int, Level]) -> Position:
    """Read the levels of a spool from position `since` into `levels`; return where its last whole frame ends.

    A segment after the first repeats the levels before it.
    """
    spooled, position = Spooled(levels=levels), since
    for number, name in folders.segments(path.parent, path.name).items():
        if number >= since.segment:
            at = read_segment(path.with_name(name), spooled, since.at if number == since.segment else 0)
            position = Position(number, at)
    return position


def _zeros(file: BinaryIO, at: int) -> bool:
    """Return whether the file has only zeros from `at` on, as a power cut leaves them; False if these are very many."""
    file.seek(at)
    for _ in range(_MOST_ZEROS // _PIECE):
        piece = file.read(_PIECE)
        if piece.count(0) < len(piece):
            return False
        if len(piece) < _PIECE:
            return True
    return False


def _payload(file: BinaryIO, length: int, crc: int) -> bytes | None:
    """Return the payload of a frame, None if its checksum is wrong; a long one is checked before it fills memory."""
    if length > _PIECE:
        at, checked = file.tell(), 0
        for i in range(0, length, _PIECE):
            checked = zlib.crc32(file.read(min(_PIECE, length - i)), checked)
        if checked != crc:
            return None
        file.seek(at)
    payload = file.read(length)
    return payload if zlib.crc32(payload) == crc else None


def _take(spooled: Spooled, payload: bytes) -> str:
    """Decode a frame's payload and add it to `spooled`; return what is wrong with it, "" if nothing is."""
    try:
        if is_batch(payload):
            records = _decode_batch(payload)
            if not all_sound(records, spooled.levels):
                return "holds requests beyond reason"
            spooled.records += records
            return ""
        item = _decode_map(payload)
    except decoding.WRONG:
        return "holds a frame that is not of this program"
    if isinstance(item, Header):
        spooled.header = spooled.header or item
        return "" if item.format == FORMAT else f"is of format {item.format}, this program reads {FORMAT},"
    if isinstance(item, LevelFrame):
        if why := unsound_level(item.level, spooled.levels):
            return f"holds a level with {why}"
        spooled.levels[item.level.index] = item.level
    elif not all(map(sound_sample, item.samples)):
        return "holds telemetry beyond reason"
    else:
        spooled.samples += item.samples
    return ""


# ---- what is within reason --------------------------------------------------------------------------------


def unsound_level(level: Level, others: Mapping[int, Level]) -> str:
    """Return what is impossible about a level that was read (times, window, load, number); "" if nothing is."""
    moments = [level.begin_s, level.window_start_s, level.window_end_s, level.end_s]
    times = [moment for moment in moments if moment is not None]
    if not all(abs(time) < LATEST_S for time in times) or times != sorted(times):
        return "times that do not follow each other"
    start, end = level.window_start_s, level.window_end_s
    if end is not None and (start is None or not 0 < end - start < _LONGEST_WINDOW_S):
        return "a window that is none"
    loads = [each for each in (level.concurrency, level.rate) if each is not None]
    if not loads or not all(0 < load < _MOST for load in loads):
        return "no load"
    if level.index not in others and not (0 <= level.index < _MOST and len(others) < MOST_LEVELS):
        return "a number that is none"
    if not 0 <= level.repeat < _MOST or not 0 < (level.input_tokens or 1) < _MOST:
        return "a count that is none"
    return ""


def all_sound(records: Sequence[Record], levels: Collection[int]) -> bool:
    """Return whether the times, counts and chunks of every record are possible in a run with these levels."""
    import numpy as np

    if not all(_sound(record, levels) for record in records):
        return False
    # All chunks at once: a run has millions.
    stamps = np.frombuffer(b"".join(record.arrivals for record in records), dtype=np.int64)
    tokens = np.frombuffer(b"".join(record.tokens for record in records), dtype=np.int32)
    latest = LATEST_S * 1e9
    return bool((-latest < stamps).all() and (stamps < latest).all() and (tokens >= 0).all())


def _sound(record: Record, levels: Collection[int]) -> bool:
    """Return whether a record's times, counts and level are possible; its chunks' values are not looked at."""
    r = record
    times = (
        r.scheduled_s, r.sent_s, r.connect_s, r.tls_s, r.first_token_s, r.first_content_s, r.last_token_s, r.done_s,
    )  # fmt: skip
    counts = (
        r.repeat, r.concurrency, r.worker, r.turn, r.status, r.merged, r.lumped, r.input_tokens, r.cached_tokens,
        r.output_tokens, r.reasoning_tokens, r.canary, r.differs_at,
    )  # fmt: skip
    if r.level not in levels or not 0 <= r.bytes_received < 1 << 62:
        return False
    if not all(time is None or -LATEST_S < time < LATEST_S for time in times):
        return False
    if not all(count is None or 0 <= count <= _MOST for count in counts):
        return False
    if r.score is not None and not 0 <= r.score <= 1:
        return False
    chunks, odd = divmod(len(r.arrivals), 8)
    return not odd and len(r.tokens) in (0, 4 * chunks)


def sound_sample(sample: Sample) -> bool:
    """Return whether telemetry can be of a run; a server may publish a figure that is no number."""
    of_ours = sample.source.partition(" ")[0] != SERVER
    return -LATEST_S < sample.time_s < LATEST_S and (math.isfinite(sample.value) or not of_ours)
