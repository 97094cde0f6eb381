"""Request records in one line each, for the tests of the analysis; times in seconds."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from harness.record import Level, Record

WINDOW = Level(0, 1, 0, 0.0, 0.0, 10.0, 10.0)  # a level of one request in flight, measured from 0 to 10 s


def request(
    sent: float | None,
    arrivals: Sequence[float] = (),
    tokens: Sequence[int] = (),
    *,
    done: float | None = None,
    scheduled: float | None = None,
    content: float | None = None,
    input_tokens: int | None = 10,
    cached_tokens: int | None = None,
    output_tokens: int | None = None,
    error: str = "",
    level: int = 0,
    merged: int = 0,
) -> Record:
    """A request whose chunks arrived at `arrivals`; usage counts the chunks' tokens unless told otherwise."""
    counted = sum(tokens) if tokens else len(arrivals)
    first, last = (arrivals[0], arrivals[-1]) if arrivals else (None, None)
    return Record(
        request_id="r",
        level=level,
        repeat=0,
        concurrency=1,
        worker=0,
        url="http://127.0.0.1",
        scheduled_s=scheduled if scheduled is not None else sent or 0.0,
        sent_s=sent,
        connect_s=None,
        first_token_s=first,
        first_content_s=content if content is not None else first,
        last_token_s=last,
        done_s=done if done is not None else last,
        input_tokens=input_tokens,
        cached_tokens=cached_tokens,
        output_tokens=output_tokens if output_tokens is not None or error else counted,
        reasoning_tokens=None,
        token_source="chunks",
        status=200,
        error=error,
        finish_reason="length",
        bytes_received=0,
        arrivals=array("q", [round(t * 1e9) for t in arrivals]).tobytes(),
        tokens=array("i", tokens).tobytes(),
        merged=merged,
    )


def closed_loop(C: int, seconds: float, ttft: float = 0.1, itl: float = 0.02, tokens: int = 20) -> list[Record]:
    """C slots of equal requests back to back from staggered starts, the last ones ending after `seconds`."""
    length = ttft + (tokens - 1) * itl
    return [
        request(sent, [sent + ttft + i * itl for i in range(tokens)], scheduled=sent - 0.001)
        for slot in range(C)
        for sent in [slot * length / C + k * length for k in range(int(seconds / length) + 1)]
    ]
