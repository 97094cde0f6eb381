"""A request to the step machine, and what the machine knows of it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class SimulatedRequest(msgspec.Struct, frozen=True):
    """One request to the step machine: how long the prompt is and how many tokens to generate."""

    id: int
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None = None  # of the prompt; None: the deployment's share
    hashes: Sequence[int] = ()  # of the whole blocks of prompt and answer, for the prefix cache
    priority: int = 0  # the lowest goes first
    texts: Sequence[int] = ()  # tokens of each, where nothing is decoded


class SequenceState:
    """A request inside the machine.

    Once it decodes it has `count - base` tokens, where count is the machine's; it ends when that is at `end`.
    """

    __slots__ = ("base", "blocks", "cached", "computed", "decoding", "done", "end", "hashed", "request")

    def __init__(self, request: SimulatedRequest) -> None:
        self.request = request
        self.done = 0  # tokens generated, until it decodes
        self.computed = 0  # tokens whose KV is there, until it decodes
        self.blocks = 0  # its KV blocks, until it decodes
        self.hashed = 0  # of them those in the prefix cache
        self.cached: int | None = None  # tokens that were there when it began
        self.decoding = False
        self.base = self.end = 0

    @property
    def known(self) -> int:
        """Tokens whose KV it needs before it can decode: the prompt and everything generated."""
        return self.request.prompt_tokens + self.done

    @property
    def offset(self) -> int:
        """Its context less the machine's count."""
        return self.request.prompt_tokens - self.base
