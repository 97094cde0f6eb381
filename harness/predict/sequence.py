"""A request to the step machine, what the machine knows of it, and the KV blocks that prompts share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import msgspec


class SimulatedRequest(msgspec.Struct, frozen=True):
    """One request to the step machine: how long the prompt is and how many tokens to generate."""

    id: int
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None = None  # cached tokens of the prompt; None: the deployment's share
    hashes: Sequence[int] = ()  # hashes of the whole blocks of prompt and answer, for the prefix cache
    priority: int = 0  # the lowest goes first


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
        self.hashed = 0  # its blocks that are in the prefix cache
        self.cached: int | None = None  # tokens that were there when it began
        self.decoding = False
        self.base = self.end = 0

    @property
    def known(self) -> int:
        """Return the tokens whose KV it needs before it can decode: the prompt and everything generated."""
        return self.request.prompt_tokens + self.done

    @property
    def offset(self) -> int:
        """Return its context less the machine's count."""
        return self.request.prompt_tokens - self.base


class PrefixCache:
    """The KV blocks that are kept for prompts that begin alike, by hash.

    As vLLM's prefix cache: a block is known by the hash of its tokens and of all before it, and stays after its request
    until its room is needed. Blocks that a request uses never go; of the others the one used longest ago goes first,
    the end of a prompt before its beginning. Left out: two copies of a block that two requests compute at once. It
    counts no room: the caller asks how many blocks are `shared`, and lets it `shrink` to what is free.
    """

    def __init__(self) -> None:
        self._users: dict[int, int] = {}  # requests that use a block
        self._idle: OrderedDict[int, None] = OrderedDict()  # used by none, from the least to the most recent

    def found(self, hashes: Sequence[int]) -> int:
        """Return how many of a prompt's blocks are in the prefix cache, counted from the first up to a missing one."""
        known = 0
        for each in hashes:
            if each not in self._users and each not in self._idle:
                break
            known += 1
        return known

    def shared(self, hashes: Sequence[int]) -> int:
        """Return how many of these blocks are in use: they take no more room when another request uses them."""
        return sum(each in self._users for each in hashes)

    def use(self, hashes: Sequence[int]) -> None:
        """Let one more request use these blocks; those that are not here are new."""
        for each in hashes:
            self._users[each] = self._users.get(each, 0) + 1
            self._idle.pop(each, None)

    def leave(self, hashes: Sequence[int]) -> int:
        """Note that a request uses these blocks no longer; keep those that no other uses as idle; return how many."""
        unused = [each for each in hashes if self._users[each] == 1]
        for each in hashes:
            self._users[each] -= 1
        for each in unused:
            del self._users[each]
        self.keep(unused)
        return len(unused)

    def keep(self, hashes: Sequence[int]) -> None:
        """Keep unused blocks in the cache as the most recently used; the first of them will be evicted last."""
        for each in reversed(hashes):
            if each not in self._users:
                self._idle[each] = None
                self._idle.move_to_end(each)

    def shrink(self, blocks: int) -> None:
        """Forget blocks that nobody uses until at most so many of them are left."""
        while len(self._idle) > blocks:
            self._idle.popitem(last=False)
