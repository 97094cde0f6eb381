"""Where a run's requests come from: the same request for the same number, on any worker.

A source is data that any worker can hold. Those here have `seed`, `prompt_words` (of the mean prompt) and
`request(number)`; `rows` has a dataset's. `tasks` has those whose requests wait for each other.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import msgspec

from harness.base.errors import HarnessError
from harness.spec import traffic
from harness.spec.choices import RANKED
from harness.spec.scenario import Scenario
from harness.spec.work import QUERY_WORDS
from harness.workload import rows as dataset_rows
from harness.workload import shape, tasks
from harness.workload.canaries import Canary, Pattern, matches
from harness.workload.dataset.table import Table
from harness.workload.request import Message, Request
from harness.workload.rows import Rows
from harness.workload.shape import Mix
from harness.workload.tasks import Tasks
from harness.workload.text import (
    FEWEST_ALIKE,
    Passages,
    Prefixes,
    PromptWords,
    mixed,
    prefixes,
    reordered,
    spaced,
    text,
)

QUERY, DOCUMENT = "query", "document"  # roles of a request's messages


class Uniform(msgspec.Struct, frozen=True, kw_only=True, dict=True, tag="uniform", tag_field="kind"):
    """Distinct prompts of one length, and answers of one length: a function of (seed, number, lengths) alone.

    A prompt is a run of words drawn at random: no two share a prefix worth caching, on any level, trial or worker.
    Where nobody knows what a word comes to (`alike`) all prompts of a length hold the same words, so that what one was
    counted as is true of the others. The phase probes ask by this source too, with other lengths (`probe`).

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
        """Raise HarnessError if the server's template leaves no word for the prompt."""
        if self.prompt_words < 1:
            raise HarnessError(
                f"no prompt is left: the server adds more tokens than were asked ({self.prompt_words})",
                place="--input-tokens",
                way_out="ask for longer prompts",
            )

    def request(self, number: int) -> Request:
        """Return the n-th request, with a prompt of its own; all have the same lengths."""
        return Request(number=number, prompt=self._prompt(number), output_tokens=self.output_tokens)

    def _prompt(self, number: int) -> str:
        if self.alike and self.prompt_words >= FEWEST_ALIKE:
            return reordered(self._mixed, self.prompt_words, self.seed, number)
        return text(self._spaced, self.prompt_words, self.seed, number)

    @cached_property
    def _spaced(self) -> tuple[str, ...]:
        return spaced(self.words)

    @cached_property
    def _mixed(self) -> list[str]:
        return mixed(self._spaced, self.seed)


class Mixed(msgspec.Struct, frozen=True, kw_only=True, dict=True, tag="mixed", tag_field="kind"):
    """Requests whose class and lengths the mix draws: a function of (seed, number) alone.

    How many words make so many tokens is known from what the server counted before the run. No two prompts share a
    prefix worth caching but those that are asked for.

    >>> from harness.workload.shape import Class, parse
    >>> mix = Mix((Class(name="chat", input=parse(30), output=parse("5..9")),), seed=0)
    >>> request = Mixed(mix=mix, words=("a", "b"), added_tokens=10, tokens_per_word=2.0).request(7)
    >>> request.class_, request.input_tokens, len(request.prompt.split())
    ('chat', 30, 10)
    """

    mix: Mix
    words: tuple[str, ...]
    added_tokens: int = 0  # tokens that the server's template adds to every prompt
    tokens_per_word: float = 1.0
    prefixes: Prefixes | None = None  # the request's number chooses one
    tools: tuple[dict[str, Any], ...] | None = None

    @property
    def seed(self) -> int:
        return self.mix.seed

    @cached_property
    def prompt_words(self) -> int:
        """Return the words of the mean prompt."""
        return self._words_for(self.mix.mean().input_tokens)

    def request(self, number: int) -> Request:
        """Return the n-th request, with lengths and class drawn from the mix, and a prompt made of words."""
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


class Inputs(msgspec.Struct, frozen=True, kw_only=True, dict=True, tag="inputs", tag_field="kind"):
    """Requests of `inputs` texts each: what an encoder computes together, for a reranker with a query before them.

    Each text is a prompt of another source, with a number of its own, so that no two in a run are alike.

    >>> texts = Uniform(words=("a", "b"), prompt_words=3, output_tokens=1, seed=0)
    >>> request = Inputs(texts=texts, inputs=2, ranked=True).request(7)
    >>> [(each.role, len(each.content.split())) for each in request.prompt]
    [('query', 16), ('document', 3), ('document', 3)]
    """

    texts: Uniform | Mixed
    inputs: int
    ranked: bool = False  # a query comes first

    @property
    def seed(self) -> int:
        return self.texts.seed

    @property
    def prompt_words(self) -> int:
        """Return the words of all texts together."""
        return self.inputs * self.texts.prompt_words

    def request(self, number: int) -> Request:
        """Return the n-th request, which has several texts, behind a query if they are to be ranked."""
        requests = [self.texts.request(number * self.inputs + i) for i in range(self.inputs)]
        query = [Message(QUERY, text(self._spaced, QUERY_WORDS, self.seed, f"query:{number}"))]
        known = [request.input_tokens for request in requests if request.input_tokens is not None]
        return Request(
            number=number,
            prompt=(*(query if self.ranked else ()), *(Message(DOCUMENT, str(request.prompt)) for request in requests)),
            output_tokens=0,
            input_tokens=sum(known) if known else None,
        )

    @cached_property
    def _spaced(self) -> tuple[str, ...]:
        return spaced(self.texts.words)


class Canaries(msgspec.Struct, frozen=True, kw_only=True, tag="canaries", tag_field="kind"):
    """Canaries among the requests of another source: one of each so many, at a random place among them.

    It takes the place of the load's request of that number. The prompts take turns.
    """

    source: Uniform | Mixed | Rows
    canaries: tuple[Canary, ...]
    every: int  # requests with one canary among them

    def __post_init__(self) -> None:
        if any(isinstance(canary.expected, Pattern) for canary in self.canaries):
            matches("", "")  # imports a library, which must not wait for the load

    @property
    def seed(self) -> int:
        return self.source.seed

    @property
    def prompt_words(self) -> int:
        """Return the words of the load's mean prompt."""
        return self.source.prompt_words

    def request(self, number: int) -> Request:
        """Return the n-th request: of the load, or one canary in each block of `every` requests."""
        block, place = divmod(number, self.every)
        if place != _place(self.seed, block, self.every):
            return self.source.request(number)
        canary = block % len(self.canaries)
        return self.canaries[canary].request(number, canary)


@lru_cache(maxsize=256)
def _place(seed: int, block: int, every: int) -> int:
    return random.Random(f"{seed}:canary:{block}").randrange(every)


def among(source: Uniform | Mixed | Rows, canaries: Sequence[Canary], share: float) -> Canaries:
    """Return a source that mixes canaries into another's requests, at most `share` of all.

    >>> load = Uniform(words=("a", "b"), prompt_words=3, output_tokens=8, seed=0)
    >>> both = among(load, (Canary(prompt="1 + 1 = ", output_tokens=4),), 0.02)
    >>> [number for number in range(100) if both.request(number).canary is not None]
    [18, 67]
    """
    return Canaries(source=source, canaries=tuple(canaries), every=math.ceil(1 / share))


Single = Uniform | Mixed | Rows | Inputs | Canaries  # requests that do not wait for each other
Source = Single | Tasks


def of(scenario: Scenario, words: PromptWords, rows: str = "", canaries: Sequence[Canary] = ()) -> Source:
    """Return the source of a scenario's requests; `rows` is the path of the table of its dataset."""
    return tasks.of(scenario, words, rows) or singles(scenario, words, rows, canaries)


def singles(scenario: Scenario, words: PromptWords, rows: str = "", canaries: Sequence[Canary] = ()) -> Single:
    """Return the source of requests that do not wait for each other, with the canaries among them."""
    load: Uniform | Mixed | Rows | Inputs
    if rows:
        load = dataset_rows.of(scenario, words, rows, round(shape.of(scenario).mean().input_tokens))
    else:
        load = _made(scenario, words)
    if not canaries or not scenario.quality or isinstance(load, Inputs):
        return load
    return among(load, canaries, scenario.quality.share)


def _made(scenario: Scenario, words: PromptWords) -> Uniform | Mixed | Inputs:
    """Return the source of requests with prompts made of words, by the scenario's lengths, prefixes and tools."""
    mix, tools = shape.of(scenario), scenario.workload.tools or None
    before = prefixes(scenario, words.vocabulary(mix.seed))
    texts: Uniform | Mixed
    if not scenario.one_length or before or tools:
        texts = Mixed(
            mix=mix,
            words=words.words,
            added_tokens=words.added_tokens,
            tokens_per_word=words.tokens_per_word,
            prefixes=before,
            tools=tuple(tools) if tools else None,
        )
    else:
        mean = mix.mean()
        texts = Uniform(
            words=words.words,
            prompt_words=round(mean.input_tokens) if words.count is None else words.count,
            output_tokens=round(mean.output_tokens),
            seed=mix.seed,
            alike=not words.exact,
        )
    return together(scenario, texts)


def together(scenario: Scenario, texts: Uniform | Mixed) -> Uniform | Mixed | Inputs:
    """Return the requests that a scenario makes of these texts: each alone, or several in one."""
    inputs, ranked = scenario.workload.inputs or 1, scenario.target.api in RANKED
    return Inputs(texts=texts, inputs=inputs, ranked=ranked) if ranked or inputs > 1 else texts


def first_row(scenario: Scenario, after: int, rows: str) -> int | None:
    """Return the first request (or session) number ≥ `after` at which a replayed trace begins anew; None: no trace.

    `rows` is the path of the trace's table.
    """
    if not rows or traffic.parse(scenario.ramp.arrivals).speed is None:
        return None
    table = Table(Path(rows))
    count = table.sessions if scenario.has_tasks else len(table)
    return -(-after // count) * count


def times(source: Source) -> Sequence[float]:
    """Return when the requests of a trace came, seconds since the first; empty for all other sources."""
    source = source.source if isinstance(source, Canaries) else source
    rows = source.recorded if isinstance(source, Tasks) else source
    return rows.table.at_s if isinstance(rows, Rows) else ()


def starts(source: Source) -> Sequence[float] | None:
    """Return when the sessions of a trace began, by the same clock; None if rows are sent by themselves."""
    rows = source.recorded if isinstance(source, Tasks) else None
    return None if rows is None else [rows.table.at_s[rows.of_session(n)[0]] for n in range(rows.table.sessions)]
