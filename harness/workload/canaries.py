"""Canaries: requests with fixed prompts among a load's own, whose answers are held against an unloaded server's.

One request of each so many is a canary, at a random place among them; it takes the place of the load's request of that
number. The prompts take turns. What is kept of an answer is judged where it is read, so that its text goes no further.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from harness.workload import answers, scorers
from harness.workload.mixed import Mixed
from harness.workload.request import Message, Request
from harness.workload.rows import Rows
from harness.workload.scorers import Expected, Pattern
from harness.workload.uniform import Uniform

PROMPTS = (
    "List the first twelve prime numbers.",
    "Explain in two sentences why the sky is blue.",
    "Write the alphabet backwards, with a comma between letters.",
    "What is 17 times 23? Show the steps.",
    "Translate into French: The library opens at nine on Sundays.",
    "Name the planets of the solar system, from the Sun outwards.",
    "Write a Python function that reverses a string.",
    "Who wrote 'Pride and Prejudice', and when was it published?",
    "Give three reasons to use version control.",
    "Summarise in one sentence what photosynthesis does.",
    "Count from 40 to 60 in steps of two.",
    "Write a JSON object with the keys name, age and city for a person you invent.",
    "Which is larger, 9.9 or 9.11? Answer with the number first.",
    "Describe how to boil an egg, in numbered steps.",
    "Write one line of SQL that counts the rows of a table called orders.",
    "Finish the sentence: The quick brown fox",
)


class Canary(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt, what is expected of its answer, and the digests of its first answer (`answers.digests`)."""

    prompt: str
    output_tokens: int
    expected: Expected | None = None  # None: nothing, but that the answer stays the same
    first: str = ""  # "": there is none

    def request(self, number: int, canary: int) -> Request:
        """Its request as the number-th of a run; `canary` is its place among the canaries."""
        prompt = (Message("user", self.prompt),)
        return Request(number=number, prompt=prompt, output_tokens=self.output_tokens, canary=canary)


class Judged(msgspec.Struct, frozen=True):
    """What is kept of an answer."""

    differs_at: int | None
    flaw: str
    score: float | None


def judge(canary: Canary, text: str) -> Judged:
    """An answer against the first one, against what is no text, and against what is expected of it."""
    return Judged(
        answers.differs_at(canary.first, answers.digests(text)) if canary.first else None,
        answers.flaw(text),
        None if canary.expected is None else scorers.score(canary.expected, text),
    )


class Canaries(msgspec.Struct, frozen=True, kw_only=True, tag="canaries", tag_field="kind"):
    """A source of requests, with canaries among those of another."""

    source: Uniform | Mixed | Rows
    canaries: tuple[Canary, ...]
    every: int  # requests, of which one is a canary

    def __post_init__(self) -> None:
        if any(isinstance(each.expected, Pattern) for each in self.canaries):
            scorers.matches("", "")  # imports a library, which must not wait for the load

    @property
    def seed(self) -> int:
        return self.source.seed

    @property
    def prompt_words(self) -> int:
        """Of the load's mean prompt."""
        return self.source.prompt_words

    def request(self, number: int) -> Request:
        """The n-th request."""
        block, place = divmod(number, self.every)
        if place != _place(self.seed, block, self.every):
            return self.source.request(number)
        canary = block % len(self.canaries)
        return self.canaries[canary].request(number, canary)


@lru_cache(maxsize=256)
def _place(seed: int, block: int, every: int) -> int:
    return random.Random(f"{seed}:canary:{block}").randrange(every)


def among(source: Uniform | Mixed | Rows, canaries: Sequence[Canary], share: float) -> Canaries:
    """The requests of a source, of which at most such a share are these canaries.

    >>> load = Uniform(words=("a", "b"), prompt_words=3, output_tokens=8, seed=0)
    >>> both = among(load, (Canary(prompt="1 + 1 = ", output_tokens=4),), 0.02)
    >>> [number for number in range(100) if both.request(number).canary is not None]
    [18, 67]
    """
    return Canaries(source=source, canaries=tuple(canaries), every=math.ceil(1 / share))
