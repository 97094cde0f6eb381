"""A result folder of this program: the requests that were answered, as they were sent, with the lengths they had."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from harness.workload.dataset.row import PromptTokens, Row, Tokens

WHAT = "a request of a result folder"
FILE = "requests.parquet"
KEYS = (frozenset({"request_id", "sent_s", "input_tokens", "output_tokens", "error"}),)


class Record(msgspec.Struct, frozen=True):
    """The columns of requests.parquet that a workload is made of; the rows are in the order they were sent."""

    error: str = ""
    sent_s: Annotated[float, msgspec.Meta(ge=-1e10, le=1e10)] | None = None  # None: it never was
    input_tokens: PromptTokens | None = None
    output_tokens: Tokens | None = None
    session_id: str = ""


def rows(record: Record, place: str) -> Iterator[Row]:
    """The request; none where it failed."""
    if record.error or record.sent_s is None:
        return
    if record.input_tokens is None:
        raise ValueError("the server did not say how long its prompt was")
    yield Row(
        place=place,
        input_tokens=record.input_tokens,
        output_tokens=record.output_tokens or None,
        at_s=record.sent_s,
        session=record.session_id,
    )
