"""The hits of a prefix cache, worked out for prompts that are known as tokens."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import msgspec

from harness.predict.sequence import PrefixCache
from harness.workload.hit_rate import hashes


class Hits(msgspec.Struct, frozen=True):
    """Prompt tokens, and those of them that a cache serves."""

    prompt_tokens: int = 0
    cached_tokens: int = 0

    @property
    def rate(self) -> float | None:
        """Share of prompt tokens that is served; None where there are none."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None


class Cache:
    """What the prefix cache of the step machine serves of requests one after the other."""

    def __init__(self, block: int, blocks: int | None = None) -> None:
        """Tokens of a block, and how many blocks there are; None: without bound."""
        self._block, self._most = block, blocks
        self._kept = PrefixCache()

    def serve(self, hashes: Sequence[int], prompt_tokens: int) -> int:
        """Return the tokens of a prompt that are served, by the hashes of its blocks; its answer's may follow them.

        The last token of a prompt is always computed.
        """
        known = self._kept.found(hashes[: max(0, prompt_tokens - 1) // self._block])
        self._kept.keep(hashes)
        if self._most is not None:
            self._kept.shrink(self._most)
        return known * self._block


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
