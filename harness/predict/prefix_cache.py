"""Which KV blocks are kept for prompts that begin alike, which of them go first, and what is served of them. Pure.

As vLLM's prefix cache: a block is known by the hash of its tokens and of all before it, and stays after its request
until its room is needed. Blocks that a request uses never go; of the others the one used longest ago goes first, the
end of a prompt before its beginning. Left out: two copies of a block that two requests compute at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence


class PrefixCache:
    """The blocks that are kept, by hash.

    It counts no room: the caller asks how many blocks are `shared`, and lets it `shrink` to what is free.
    """

    def __init__(self) -> None:
        self._users: dict[int, int] = {}  # requests that use a block
        self._idle: OrderedDict[int, None] = OrderedDict()  # used by none, from the least to the most recent

    def found(self, hashes: Sequence[int]) -> int:
        """How many of a prompt's blocks are here, from its first on."""
        known = 0
        for each in hashes:
            if each not in self._users and each not in self._idle:
                break
            known += 1
        return known

    def shared(self, hashes: Sequence[int]) -> int:
        """How many of these blocks are in use: they take no more room when another request uses them."""
        return sum(each in self._users for each in hashes)

    def use(self, hashes: Sequence[int]) -> None:
        """Let one more request use these blocks; those that are not here are new."""
        for each in hashes:
            self._users[each] = self._users.get(each, 0) + 1
            self._idle.pop(each, None)

    def leave(self, hashes: Sequence[int]) -> int:
        """Let one request less use these blocks; how many of them nobody uses now."""
        unused = [each for each in hashes if self._users[each] == 1]
        for each in hashes:
            self._users[each] -= 1
        for each in unused:
            del self._users[each]
        self.keep(unused)
        return len(unused)

    def keep(self, hashes: Sequence[int]) -> None:
        """Have these blocks here as the most recently used, the first of them the last to go."""
        for each in reversed(hashes):
            if each not in self._users:
                self._idle[each] = None
                self._idle.move_to_end(each)

    def shrink(self, blocks: int) -> None:
        """Forget blocks that nobody uses until at most so many of them are left."""
        while len(self._idle) > blocks:
            self._idle.popitem(last=False)


class Cache:
    """What a server's cache serves of requests one after the other.

    Only whole blocks are kept, and the last token of a prompt is always computed. Left out: requests in flight at once,
    which hold their blocks, and do not yet find each other's.
    """

    def __init__(self, block: int, blocks: int | None = None) -> None:
        """Tokens of a block, and how many blocks there are; None: without bound."""
        self._block, self._most = block, blocks
        self._kept = PrefixCache()

    def serve(self, hashes: Sequence[int], prompt_tokens: int) -> int:
        """Return the tokens of a prompt that are served, by the hashes of its blocks; its answer's may follow them.

        All of them are the most recently used then.
        """
        known = self._kept.found(hashes[: max(0, prompt_tokens - 1) // self._block])
        self._kept.keep(hashes)
        if self._most is not None:
            self._kept.shrink(self._most)
        return known * self._block


def hashes(tokens: Sequence[Hashable], block: int) -> list[int]:
    """Return a hash of each whole block and all before it, shape [len(tokens) // block].

    >>> [a == b for a, b in zip(hashes("aabb", 2), hashes("aabc", 2))]
    [True, False]
    """
    found: list[int] = []
    for at in range(0, len(tokens) - block + 1, block):
        found.append(hash((found[-1] if found else 0, *tokens[at : at + block])))
    return found
