"""BurstGPT's traces: CSV of times in seconds and lengths, later ones with sessions.

Format: github.com/HPMLL/BurstGPT. A request that failed there has 0 response tokens: it counts as one that was sent,
and how long its answer would have been is not known.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from harness.workload.dataset.row import PromptTokens, Row, Seconds, Tokens

WHAT = "a request of a BurstGPT trace"
KEYS = (frozenset({"Timestamp", "Request tokens", "Response tokens"}),)


class Record(msgspec.Struct, frozen=True, gc=False):
    timestamp: Seconds = msgspec.field(name="Timestamp")
    request_tokens: PromptTokens = msgspec.field(name="Request tokens")
    response_tokens: Tokens = msgspec.field(name="Response tokens")
    session: str = msgspec.field(name="Session ID", default="")


def rows(record: Record, place: str) -> Iterator[Row]:
    """The line's one request."""
    yield Row(
        place=place,
        input_tokens=record.request_tokens,
        output_tokens=record.response_tokens or None,
        at_s=record.timestamp,
        session=record.session,
    )
