"""Distinct prompts of one length, and answers of one length.

A prompt is a run of words, each with a space before it, drawn at random: no two prompts share a prefix worth caching,
on any level, trial or worker. Where nobody knows what a word comes to (`alike`) all prompts of a length hold the same
words, so that what one was counted as is true of the others. The phase probes ask by this source too, with other
lengths (`probe`). Left out: lengths that differ (`mixed`).
"""

from __future__ import annotations

from functools import cached_property

import msgspec

from harness.base.errors import HarnessError
from harness.workload import text
from harness.workload.request import Request


class Uniform(msgspec.Struct, frozen=True, kw_only=True, dict=True, tag="uniform", tag_field="kind"):
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
        if self.alike and self.prompt_words >= text.FEWEST_ALIKE:
            return text.reordered(self._mixed, self.prompt_words, self.seed, number)
        return text.text(self._spaced, self.prompt_words, self.seed, number)

    @cached_property
    def _spaced(self) -> tuple[str, ...]:
        return text.spaced(self.words)

    @cached_property
    def _mixed(self) -> list[str]:
        return text.mixed(self._spaced, self.seed)
