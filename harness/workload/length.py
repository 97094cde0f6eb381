"""How many words make a prompt of so many tokens, learnt from what a server counted. Pure.

tokens = added + tokens_per_word · words, where the template adds some tokens to every prompt. The first count tells
nothing of the two apart, so a word is taken for one token, which is right for the words of `words` in most
vocabularies; from the second on the slope is the one to the length that is farthest from the last. A word is never
less than a token, and a template never takes any away: what noise says beyond that is not believed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Counted(NamedTuple):
    """A prompt of so many words, and the tokens that it came to."""

    words: int
    tokens: int


def tokens_per_word(counts: Sequence[Counted]) -> float:
    """Tokens that a word more comes to.

    >>> tokens_per_word([Counted(64, 136), Counted(30, 68)]), tokens_per_word([Counted(64, 72)])
    (2.0, 1.0)
    """
    last = counts[-1]
    far = max(counts, key=lambda c: abs(c.words - last.words))
    if far.words == last.words:
        return 1.0
    slope = (last.tokens - far.tokens) / (last.words - far.words)
    return max(1.0, min(slope, last.tokens / last.words))


def next_words(counts: Sequence[Counted], tokens: int, *, one_token: bool = True) -> int:
    """Words of the next prompt to try for so many tokens; less than 1 where the template alone is more.

    By one count alone the length goes by a token a word, or in proportion where that leaves no word, or where it is
    known (not `one_token`) that a word must be more.

    >>> next_words([Counted(64, 136)], 64), next_words([Counted(64, 136), Counted(30, 68)], 64)
    (30, 28)
    """
    last = counts[-1]
    words = last.words + round((tokens - last.tokens) / tokens_per_word(counts))
    alone = all(c.words == last.words for c in counts)
    return max(1, last.words * tokens // last.tokens) if alone and (words < 1 or not one_token) else words
