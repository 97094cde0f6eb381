"""Texts of a number of words, each a function of a seed and of what it is for. Pure.

Every word brings the blank before it, so texts may be joined. Left out: texts that somebody wrote.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from functools import cached_property

import msgspec

_FRONT = 32  # words that are drawn anew for each text's beginning: what follows another beginning is cached nowhere
FEWEST_ALIKE = 16  # words below which there are too few orders for texts never to repeat
_REMEMBERED = 32 << 20  # characters of texts that a worker keeps because they come again


def spaced(words: Sequence[str]) -> tuple[str, ...]:
    """Each word with its blank.

    >>> spaced(["time", "year"])
    (' time', ' year')
    """
    return tuple(" " + word for word in words)


def text(words: Sequence[str], count: int, seed: int, number: int | str) -> str:
    """So many words, drawn at random: no two texts share a beginning worth caching.

    >>> text((" a",), 3, 0, 7)
    ' a a a'
    """
    return "".join(random.Random(f"{seed}:{number}").choices(words, k=count))


def mixed(words: Sequence[str], seed: int) -> list[str]:
    """All the words in an order of the seed's, from which `reordered` takes them."""
    return random.Random(f"{seed}:words").sample(words, len(words))


def reordered(words: list[str], count: int, seed: int, number: int | str) -> str:
    """The first words, over again where they are too few: the same in all texts of a length, in another order each.

    >>> sorted(reordered([" a", " b"], 20, 0, 1).split()) == ["a"] * 10 + ["b"] * 10
    True
    """
    rest = (words * -(-count // len(words)))[:count]
    front = random.Random(f"{seed}:{number}").sample(range(count), min(count, _FRONT))
    first = [rest[i] for i in front]
    for i in front:
        rest[i] = ""
    return "".join([*first, *rest])


class Passages(msgspec.Struct, frozen=True, dict=True):
    """Texts of any length, each with a beginning of its own, and then a passage of one text that goes round and round.

    So a long text takes no longer to make than to copy: a worker that makes one does not send the next request late.

    >>> len(Passages((" a", " b"), seed=0).text(100, 7).split())
    100
    """

    words: tuple[str, ...]  # each with its blank
    seed: int

    def text(self, count: int, number: int | str) -> str:
        """So many words."""
        rng = random.Random(f"{self.seed}:{number}")
        front = "".join(rng.choices(self.words, k=min(count, _FRONT)))
        rest = count - _FRONT
        if rest <= 0:
            return front
        (whole, begins), start = self._round, int(rng.random() * len(self.words))
        rounds, end = divmod(start + rest, len(self.words))
        if rounds == 0:
            return front + whole[begins[start] : begins[end]]
        return "".join([front, whole[begins[start] :], whole * (rounds - 1), whole[: begins[end]]])

    @cached_property
    def _round(self) -> tuple[str, list[int]]:
        """All the words once, and where each begins."""
        words = mixed(self.words, self.seed)
        return "".join(words), list(itertools.accumulate(map(len, words), initial=0))


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What texts of a number of tokens are made of.

    Texts that come again, such as a shared prefix or a session's history, are remembered up to 32 million characters;
    past that they are all forgotten and made again.

    >>> Vocabulary(words=("a",), seed=0, tokens_per_word=2.0).text(6, "any")
    ' a a a'
    """

    words: tuple[str, ...]
    seed: int
    tokens_per_word: float = 1.0

    def text(self, tokens: int, key: str) -> str:
        """As many words as come to the tokens, at least one; another text for another key."""
        if (known := self._remembered.get((tokens, key))) is not None:
            return known
        made = text(self._spaced, max(1, round(tokens / self.tokens_per_word)), self.seed, key)
        self._size[0] += len(made)
        if self._size[0] > _REMEMBERED:
            self._remembered.clear()
            self._size[0] = len(made)
        self._remembered[tokens, key] = made
        return made

    @cached_property
    def _spaced(self) -> tuple[str, ...]:
        return spaced(self.words)

    @cached_property
    def _remembered(self) -> dict[tuple[int, str], str]:
        return {}

    @cached_property
    def _size(self) -> list[int]:
        """Characters in `_remembered`."""
        return [0]
