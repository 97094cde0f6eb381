"""Request records in a line each, for the tests of the analysis; times in seconds."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import msgspec

from harness.data.record import Level, Record

WINDOW = Level(0, 1, 0, 0.0, 0.0, 10.0, 10.0)  # a level of one request in flight, measured from 0 to 10 s


def request(
    sent: float,
    arrivals: Sequence[float] = (),
    *,
    tokens: Sequence[int] = (),
    done: float | None = None,
    error: str = "",
    **changes: Any,
) -> Record:
    """A request of 10 input tokens whose chunks arrived at `arrivals`; `changes` are fields of the record.

    It ends with its last chunk and usage counts what arrived, unless told otherwise.
    """
    first, last = (arrivals[0], arrivals[-1]) if arrivals else (None, None)
    plain = Record(
        request_id="r",
        level=0,
        repeat=0,
        concurrency=1,
        worker=0,
        url="http://127.0.0.1",
        scheduled_s=sent,
        sent_s=sent,
        connect_s=None,
        first_token_s=first,
        first_content_s=first,
        last_token_s=last,
        done_s=last if done is None else done,
        input_tokens=10,
        cached_tokens=None,
        output_tokens=None if error else sum(tokens) if tokens else len(arrivals),
        reasoning_tokens=None,
        token_source="chunks",
        status=200,
        error=error,
        finish_reason="length",
        bytes_received=0,
        arrivals=array("q", [round(t * 1e9) for t in arrivals]).tobytes(),
        tokens=array("i", tokens).tobytes(),
    )
    return msgspec.structs.replace(plain, **changes)


def steady(C: int, seconds: float) -> list[Record]:
    """A closed loop of C slots, staggered over one request: 0.2 s to the first of nine tokens, then 0.1 s each."""
    starts = [slot / C + k for slot in range(C) for k in range(round(seconds))]
    return [request(start, [start + 0.2 + 0.1 * i for i in range(9)]) for start in starts]
