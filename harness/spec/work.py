"""What the work of an API is counted in: the tokens that it decodes, those that it reads, or documents."""

from __future__ import annotations

import enum

RANKED = ("rerank", "tei-rerank", "score")  # APIs whose texts are compared with a query
PREFILL_ONLY = ("embeddings", *RANKED)  # APIs that decode nothing
APIS = (
    "chat", "completions", "responses", "anthropic", "triton", "tgi", "llama-cpp", "ollama", *PREFILL_ONLY,
)  # fmt: skip  # the names in harness.dialects.DIALECTS
QUERY_WORDS = 16


class Unit(enum.StrEnum):
    """What throughput counts; a summary contains the value."""

    OUTPUT_TOKENS = "output tokens"
    INPUT_TOKENS = "input tokens"
    DOCUMENTS = "documents"  # texts of requests, where nobody counts their tokens

    @classmethod
    def known(cls, text: str) -> Unit:
        """Return the unit of that name; output tokens where a later version counts what this one does not know."""
        return cls(text) if text in list(cls) else cls.OUTPUT_TOKENS

    @property
    def decodes(self) -> bool:
        """Whether answers are generated, token by token."""
        return self is Unit.OUTPUT_TOKENS

    @property
    def per_s(self) -> str:
        """The unit of throughput, as reports write it.

        >>> Unit.INPUT_TOKENS.per_s, Unit.DOCUMENTS.per_s
        ('input tok/s', 'documents/s')
        """
        return f"{self.removesuffix('tokens')}tok/s" if self.endswith("tokens") else f"{self}/s"

    @property
    def singular(self) -> str:
        """One of it.

        >>> Unit.INPUT_TOKENS.singular
        'input token'
        """
        return self.removesuffix("s")
