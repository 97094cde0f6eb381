"""Distinct prompts of one length, and answers of one length.

A prompt is a run of words, each with a space before it, drawn at random: no two prompts share a prefix worth caching,
on any level, trial or worker. Where nobody knows what a word comes to (`alike`) all prompts of a length hold the same
words, so that what one was counted as is true of the others. The phase probes ask by this source too, with other
lengths (`probe`). Left out: distributions of lengths and datasets.
"""

from __future__ import annotations

import random
from functools import cached_property
from itertools import cycle, islice

import msgspec

from harness.errors import HarnessError
from harness.workload.request import Request

_FRONT = 32  # words that are drawn anew for each prompt's beginning: what follows another beginning is cached nowhere
_FEWEST_ALIKE = 16  # words below which there are too few orders for prompts never to repeat


class Uniform(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A source that any worker can hold: each request is a function of (seed, number, lengths) alone.

    >>> source = Uniform(words=("a", "b"), prompt_words=3, output_tokens=8, seed=0)
    >>> source.request(7) == source.request(7), len(source.request(7).prompt.split())
    (True, 3)
    """

    words: tuple[str, ...]
    prompt_words: int
    output_tokens: int
    seed: int
    alike: bool = False  # prompts of one length hold the same words, so that they come to the same number of tokens

    def __post_init__(self) -> None:
        if self.prompt_words < 1:
            raise HarnessError(
                f"no prompt is left: the server adds more tokens than were asked ({self.prompt_words})",
                place="--input-tokens",
                way_out="ask for longer prompts",
            )

    def request(self, number: int) -> Request:
        """The n-th request."""
        return Request(number=number, prompt=self._prompt(number), output_tokens=self.output_tokens)

    def _prompt(self, number: int) -> str:
        drawn, n = random.Random(f"{self.seed}:{number}"), self.prompt_words
        if not self.alike or n < _FEWEST_ALIKE:
            return "".join(drawn.choices(self._spaced, k=n))
        front, rest = drawn.sample(range(n), min(n, _FRONT)), list(self._shared)
        for i in front:
            rest[i] = ""
        return "".join([*map(self._shared.__getitem__, front), *rest])

    @cached_property
    def _spaced(self) -> tuple[str, ...]:
        return tuple(" " + word for word in self.words)

    @cached_property
    def _shared(self) -> tuple[str, ...]:
        """The words that all prompts hold, in an order that each begins anew."""
        order = random.Random(f"{self.seed}:words").sample(self._spaced, len(self._spaced))
        return tuple(islice(cycle(order), self.prompt_words))
