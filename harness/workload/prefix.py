"""Prompts that begin alike because it is asked for: a shared system prompt, or documents of a pool.

A pool of one is a system prompt that all share. From a larger pool each request draws its prefix, all of them alike
often or the first ones more often by Zipf's law. What a server can keep of them is the working set against its cache
(`working_set`); what it should serve from there is worked out by `cache`.
"""

from __future__ import annotations

import random
from bisect import bisect
from functools import cached_property
from itertools import accumulate

import msgspec

from harness.spec.scenario import Scenario
from harness.workload.request import Message, Request
from harness.workload.text import Vocabulary


class Prefixes(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A pool of prefixes of one length, and how often each is used.

    >>> pool = Prefixes(vocabulary=Vocabulary(words=("a",), seed=0), tokens=2)
    >>> pool.index(7), pool.text(7), pool.working_set
    (0, ' a a', 2)
    """

    vocabulary: Vocabulary
    tokens: int  # of each, before whatever else a prompt holds
    pool: int = 1  # different prefixes
    share: float = 1.0  # of the requests that have one
    zipf: float = 0.0  # s: the k-th of the pool is drawn in proportion to 1/k^s; 0 draws all alike often

    @property
    def working_set(self) -> int:
        """Tokens of the whole pool."""
        return self.pool * self.tokens

    def index(self, number: int) -> int | None:
        """Which prefix of the pool a request begins with, from 0; None where it has none."""
        drawn = random.Random(f"{self.vocabulary.seed}:prefix of:{number}")
        if drawn.random() >= self.share:
            return None
        return bisect(self._upto, drawn.random() * self._upto[-1], hi=self.pool - 1)

    def text(self, number: int) -> str:
        """The prefix of a request; "" where it has none."""
        found = self.index(number)
        return "" if found is None else self.vocabulary.text(self.tokens, f"prefix:{found}")

    def before(self, request: Request) -> Request:
        """The request with its prefix: before a prompt's first word, or as the first message of a conversation."""
        if not (prefix := self.text(request.number)):
            return request
        prompt = request.prompt
        longer = prefix + prompt if isinstance(prompt, str) else (Message("system", prefix), *prompt)
        tokens = None if request.input_tokens is None else request.input_tokens + self.tokens
        return msgspec.structs.replace(request, prompt=longer, input_tokens=tokens)

    @cached_property
    def _upto(self) -> list[float]:
        """Weights of the prefixes up to each, shape [pool]."""
        return list(accumulate((k + 1) ** -self.zipf for k in range(self.pool)))


def of(scenario: Scenario, vocabulary: Vocabulary) -> Prefixes | None:
    """The prefixes that a scenario asks for; None where it asks for none."""
    spec = scenario.workload.prefix
    if not spec:
        return None
    return Prefixes(vocabulary=vocabulary, tokens=spec.tokens, pool=spec.pool, share=spec.share, zipf=spec.zipf)
