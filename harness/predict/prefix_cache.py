"""Which KV blocks are kept for prompts that begin alike, and which of them go first. Pure.

As vLLM's prefix cache: a block is known by the hash of its tokens and of all before it, and stays after its request
until its room is needed. Blocks that a request uses never go; of the others the one used longest ago goes first, the
end of a prompt before its beginning. Left out: two copies of a block that two requests compute at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


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
