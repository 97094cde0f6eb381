"""What the work of an API is counted in, what it costs, and how long its requests are in the mean."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

QUERY_WORDS = 16


class Unit(enum.StrEnum):
    """What throughput counts; a summary contains the value."""

    OUTPUT_TOKENS = "output tokens"
    INPUT_TOKENS = "input tokens"
    DOCUMENTS = "documents"  # texts of requests, if nobody counts their tokens

    @classmethod
    def known(cls, text: str) -> Unit:
        """Return the unit of that name; output tokens where a later version counts what this one does not know."""
        return cls(text) if text in list(cls) else cls.OUTPUT_TOKENS

    @property
    def decodes(self) -> bool:
        """Return whether answers are generated, token by token."""
        return self is Unit.OUTPUT_TOKENS

    @property
    def per_s(self) -> str:
        """Return the unit of throughput, as reports write it.

        >>> Unit.INPUT_TOKENS.per_s, Unit.DOCUMENTS.per_s
        ('input tok/s', 'documents/s')
        """
        return f"{self.removesuffix('tokens')}tok/s" if self.endswith("tokens") else f"{self}/s"


class MeanLengths(msgspec.Struct, frozen=True):
    """Mean tokens of a request; no output tokens: an embedding or a score, prefill only."""

    input_tokens: float
    output_tokens: float
    weighted: float | None = None  # mean context of a decoded token, where lengths vary
    inputs: int = 1  # texts of a request, each of so many input tokens, if nothing is decoded

    @property
    def context(self) -> float:
        """Return the mean context while it decodes, in tokens: P + G/2 where no lengths vary.

        An engine that reserves the whole answer at the start keeps more.
        """
        return self.input_tokens + self.output_tokens / 2 if self.weighted is None else self.weighted


Mixture = Sequence[tuple[int, int]]  # (P, G) of requests that together represent all


def means(lengths: MeanLengths | Mixture) -> MeanLengths:
    """Return the mean request; of a mixture with the token-weighted mean context E[G (P + G/2)] / E[G].

    >>> means([(0, 10), (300, 30)])  # three tokens in four belong to the long request
    MeanLengths(input_tokens=150.0, output_tokens=20.0, weighted=237.5, inputs=1)
    """
    if isinstance(lengths, MeanLengths):
        return lengths
    n, tokens = len(lengths), sum(G for _, G in lengths)
    weighted = sum(G * (P + G / 2) for P, G in lengths) / tokens if tokens else None
    return MeanLengths(sum(P for P, _ in lengths) / n, tokens / n, weighted)


def usd_per_million(price: float, tokens_per_s: float) -> float:
    """Return the price of a million tokens from what an hour of the GPUs costs: price / (tok/s · 3600) · 1e6; USD.

    >>> round(usd_per_million(2, 6000), 4)
    0.0926
    """
    return price / (tokens_per_s * 3600) * 1e6
