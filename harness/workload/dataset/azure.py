"""Azure's traces of LLM inference, of 2023 and of 2024: CSV of wall-clock times and lengths.

Format: github.com/Azure/AzurePublicDataset, AzureLLMInferenceDataset2023.md and 2024.md. Those of 2023 have times
without a zone, taken for UTC, in tenths of a microsecond, of which whole ones are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from harness.workload.dataset.row import PromptTokens, Row, Tokens

WHAT = "a request of an Azure trace"
KEYS = (frozenset({"TIMESTAMP", "ContextTokens", "GeneratedTokens"}),)

_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)


class Record(msgspec.Struct, frozen=True, gc=False):
    TIMESTAMP: datetime
    ContextTokens: PromptTokens
    GeneratedTokens: Tokens


def rows(record: Record, place: str) -> Iterator[Row]:
    """The line's one request."""
    at = record.TIMESTAMP
    yield Row(
        place=place,
        input_tokens=record.ContextTokens,
        output_tokens=record.GeneratedTokens or None,
        at_s=(at - (_EPOCH_UTC if at.tzinfo else _EPOCH)).total_seconds(),
    )
