"""Requests whose lengths and classes are drawn, each a function of (seed, number) alone. Pure.

Class and lengths are drawn by the mix (`shape`), and how many words make so many tokens is known from what the server
counted before the run. No two prompts share a prefix worth caching but those that are asked for (`prefix`).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import msgspec

from harness.workload.prefix import Prefixes
from harness.workload.request import Request
from harness.workload.shape import Mix
from harness.workload.text import Passages, spaced


class Mixed(msgspec.Struct, frozen=True, kw_only=True, dict=True, tag="mixed", tag_field="kind"):
    """A source that any worker can hold, of requests that differ.

    >>> from harness.workload.shape import Class, parse
    >>> mix = Mix((Class(name="chat", input=parse(30), output=parse("5..9")),), seed=0)
    >>> request = Mixed(mix=mix, words=("a", "b"), added_tokens=10, tokens_per_word=2.0).request(7)
    >>> request.class_, request.input_tokens, len(request.prompt.split())
    ('chat', 30, 10)
    """

    mix: Mix
    words: tuple[str, ...]
    added_tokens: int = 0  # by the server's template, to every prompt
    tokens_per_word: float = 1.0
    prefixes: Prefixes | None = None  # which one by the request's number
    tools: tuple[dict[str, Any], ...] | None = None

    @property
    def seed(self) -> int:
        return self.mix.seed

    @cached_property
    def prompt_words(self) -> int:
        """Of the mean prompt."""
        return self._words_for(self.mix.mean().input_tokens)

    def request(self, number: int) -> Request:
        """The n-th request."""
        shape = self.mix.shape(number)
        request = Request(
            number=number,
            prompt=self._passages.text(self._words_for(shape.input_tokens), f"mixed:{number}"),
            output_tokens=shape.output_tokens,
            input_tokens=shape.input_tokens,
            tools=self.tools,
            class_=shape.class_,
            cancel=shape.cancel,
        )
        return request if self.prefixes is None else self.prefixes.before(request)

    def _words_for(self, tokens: float) -> int:
        return max(1, round((tokens - self.added_tokens) / self.tokens_per_word))

    @cached_property
    def _passages(self) -> Passages:
        return Passages(spaced(self.words), self.mix.seed)
