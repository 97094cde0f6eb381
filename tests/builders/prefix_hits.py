"""The hits of a prefix cache, worked out for prompts that are known as tokens."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import msgspec

from harness.predict.prefix_cache import Cache, hashes


class Hits(msgspec.Struct, frozen=True):
    """Prompt tokens, and those of them that a cache serves."""

    prompt_tokens: int = 0
    cached_tokens: int = 0

    @property
    def rate(self) -> float | None:
        """Share of prompt tokens that is served; None where there are none."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None


def hits(prompts: Iterable[Sequence[Hashable]], block: int, blocks: int | None = None) -> Hits:
    """Return what a cache serves of prompts, given as their tokens in the order in which they are sent.

    >>> hits(["aaaabbbb", "aaaacccc"], block=4)
    Hits(prompt_tokens=16, cached_tokens=4)
    """
    cache, total, served = Cache(block, blocks), 0, 0
    for tokens in prompts:
        total += len(tokens)
        served += cache.serve(hashes(tokens, block), len(tokens))
    return Hits(total, served)
