"""What is asked: distinct prompts of an exact length, made from a seed and a number. Pure.

A prompt is a run of words, each with a space before it, drawn at random: no two prompts share a prefix worth caching,
on any level, trial or worker. Which words are one token is asked of the tokenizer where there is one; else they are
short common English words, which most vocabularies hold whole, and only the server's usage says what they come to.
There all prompts of a length hold the same words, so that what one was counted as is true of the others. Real
datasets and length distributions come later.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from itertools import cycle, islice

from harness.errors import HarnessError

# Short, common, unambiguous: one token each, space included, in the vocabularies of the models people serve.
COMMON = tuple(
    """time year people way day man thing woman life child world school state family student group country problem
    hand part place case week company system program question work number night point home water room mother area
    money story fact month lot right study book eye job word business issue side kind head house service friend
    father power hour game line end member law car city community name president team minute idea body information
    back parent face level office door health person art war history party result change morning reason research
    girl guy moment air teacher force education foot boy age policy music market sense nation plan college interest
    death experience effect use class control field development role effort rate heart drug show leader light voice
    wife police mind price report decision son view town road arm difference value building action model season
    society tax director position player record paper space ground form event official matter center couple site
    project activity star table need court oil situation cost industry figure street image phone data picture
    practice piece land product doctor wall patient worker news test movie north love support technology step baby
    computer type attention film tree source hair look window culture chance brother energy period course summer
    plant opportunity term letter condition choice rule daughter south husband floor campaign material population
    call economy hospital church risk fire future bank board subject century blood lawyer island top card""".split()
)


def single_token_words(tokens_of: Callable[[str], int], candidates: Sequence[str]) -> tuple[str, ...]:
    """The candidates that are one token each when words follow each other, by the tokenizer's own count."""
    # Measured between other words, because the first word of a text often counts differently.
    base = tokens_of(" the the")
    return tuple(word for word in candidates if tokens_of(f" the {word} the") == base + 1)


_FRONT = 32  # words that are drawn anew for each prompt's beginning: what follows another beginning is cached nowhere
_FEWEST_ALIKE = 16  # words below which there are too few orders for prompts never to repeat


class Prompts:
    """An endless supply of prompts: each is a function of (seed, number, length) alone, so any worker can make it.

    `alike`: those of one length hold the same words, so that they come to the same number of tokens.
    """

    def __init__(self, words: Sequence[str], length: int, seed: int, *, alike: bool = False) -> None:
        if length < 1:
            raise HarnessError(
                f"no prompt is left: the server adds more tokens than were asked ({length})",
                place="--input-tokens",
                way_out="ask for longer prompts",
            )
        self._words = tuple(" " + word for word in words)
        self._length = length
        self._seed = seed
        self._alike = alike
        self._order = random.Random(f"{seed}:words").sample(self._words, len(self._words))
        self._of_a_length: tuple[str, ...] = ()

    def text(self, number: int, length: int | None = None) -> str:
        """The n-th prompt: `length` words, or as many as all have.

        >>> Prompts(["a", "b"], 3, seed=0).text(7) == Prompts(["a", "b"], 3, seed=0).text(7)
        True
        """
        drawn, n = random.Random(f"{self._seed}:{number}"), length or self._length
        if not self._alike or n < _FEWEST_ALIKE:
            return "".join(drawn.choices(self._words, k=n))
        if len(self._of_a_length) != n:
            self._of_a_length = tuple(islice(cycle(self._order), n))
        front, rest = drawn.sample(range(n), min(n, _FRONT)), list(self._of_a_length)
        for i in front:
            rest[i] = ""
        return "".join([*map(self._of_a_length.__getitem__, front), *rest])

    def quoted(self, number: int, length: int | None = None) -> bytes:
        """The n-th prompt as a JSON string, ready to be put into a body."""
        return json.dumps(self.text(number, length)).encode()
