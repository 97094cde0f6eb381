"""Traces of Mooncake: JSON lines of times, lengths and the hashes of a prompt's blocks of 512 tokens.

Format: github.com/kvcache-ai/Mooncake, "Open Source Trace". Equal hashes at the beginnings of two prompts say that
these share so many blocks. `session_id` is what other tools add to the format.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from harness.workload.dataset.row import PromptTokens, Row, Tokens

WHAT = "a request of a Mooncake trace"
KEYS = (frozenset({"timestamp", "input_length", "output_length"}),)

_Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
_Hash = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Record(msgspec.Struct, frozen=True):
    timestamp: _Milliseconds
    input_length: PromptTokens
    output_length: Tokens
    hash_ids: list[_Hash] | None = None
    session_id: str = ""
    chat_id: int | str | None = None

    def __post_init__(self) -> None:
        # Bailian's traces have the same names, with seconds and blocks of 16 tokens.
        if self.chat_id is not None:
            raise ValueError("it has a chat_id: traces of Bailian are not read, since their times are in seconds")


def rows(record: Record, place: str) -> Iterator[Row]:
    """The line's one request."""
    yield Row(
        place=place,
        input_tokens=record.input_length,
        output_tokens=record.output_length or None,
        at_s=record.timestamp / 1e3,
        session=record.session_id,
        hashes=None if record.hash_ids is None else tuple(record.hash_ids),
    )
