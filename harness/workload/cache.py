"""The prefix hits to expect: what a cache of whole blocks would serve of these prompts, in this order. Pure.

The blocks are kept as the simulated endpoint keeps them (predict.prefix_cache): only whole ones, and the last token of
a prompt is always computed. Left out: requests in flight at once, which hold their blocks, and do not yet find each
other's.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import msgspec

from harness.predict.prefix_cache import PrefixCache


class Hits(msgspec.Struct, frozen=True):
    """Prompt tokens, and those of them that a cache serves."""

    prompt_tokens: int = 0
    cached_tokens: int = 0

    @property
    def rate(self) -> float | None:
        """Share of prompt tokens that is served; None where there are none."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None


class Cache:
    """A server's cache, for requests one after the other."""

    def __init__(self, block: int, blocks: int | None = None) -> None:
        """Tokens of a block, and how many blocks there are; None: without bound."""
        self._block, self._most = block, blocks
        self._kept = PrefixCache()

    def serve(self, hashes: Sequence[int], prompt_tokens: int) -> int:
        """Tokens of a prompt that are served, by the hashes of its whole blocks; those of its answer may follow them.

        All of them are the most recently used then.
        """
        known = self._kept.found(hashes[: max(0, prompt_tokens - 1) // self._block])
        self._kept.keep(hashes)
        if self._most is not None:
            self._kept.shrink(self._most)
        return known * self._block


def hashes(tokens: Sequence[Hashable], block: int) -> list[int]:
    """A hash of each whole block and all before it, shape [len(tokens) // block].

    >>> [a == b for a, b in zip(hashes("aabb", 2), hashes("aabc", 2))]
    [True, False]
    """
    found: list[int] = []
    for at in range(0, len(tokens) - block + 1, block):
        found.append(hash((found[-1] if found else 0, *tokens[at : at + block])))
    return found


def hits(prompts: Iterable[Sequence[Hashable]], block: int, blocks: int | None = None) -> Hits:
    """What a cache serves of prompts, given as their tokens in the order in which they are sent.

    >>> hits(["aaaabbbb", "aaaacccc"], block=4)
    Hits(prompt_tokens=16, cached_tokens=4)
    """
    cache, total, served = Cache(block, blocks), 0, 0
    for tokens in prompts:
        total += len(tokens)
        served += cache.serve(hashes(tokens, block), len(tokens))
    return Hits(total, served)
