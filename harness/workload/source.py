"""Where a run's requests come from: the same request for the same number, on any worker."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from harness.spec import traffic
from harness.spec.distribution import parse
from harness.spec.scenario import Scenario
from harness.workload import inputs, prefix, shape
from harness.workload.canaries import Canaries, Canary, among
from harness.workload.inputs import Inputs
from harness.workload.mixed import Mixed
from harness.workload.rows import Rows
from harness.workload.text import Vocabulary
from harness.workload.uniform import Uniform
from harness.workload.words import COMMON

Source = (
    Uniform | Mixed | Rows | Inputs | Canaries
)  # each with `seed`, `prompt_words` (of the mean prompt) and `request(number)`


class PromptWords(msgspec.Struct, frozen=True, kw_only=True):
    """The words that prompts are made of, and what they come to by the server's count; by default a token each."""

    words: tuple[str, ...] = COMMON
    count: int | None = None  # of words in the mean prompt; None: as many as it has tokens
    added_tokens: int = 0  # by the server's template, to every prompt
    tokens_per_word: float = 1.0
    exact: bool = False  # a tokenizer was named: every word comes to the same number of tokens


def of(scenario: Scenario, words: PromptWords, rows: str = "", canaries: Sequence[Canary] = ()) -> Source:
    """The source of a scenario's requests; `rows` is the path of the table of its dataset."""
    load = _of_load(scenario, words, rows)
    if not canaries or not scenario.quality or isinstance(load, Inputs):
        return load
    return among(load, canaries, scenario.quality.share)


def _of_load(scenario: Scenario, words: PromptWords, rows: str) -> Uniform | Mixed | Rows | Inputs:
    """The requests without the canaries among them."""
    if rows:
        return _of_rows(scenario, words, rows)
    mix, tools = shape.of(scenario), scenario.workload.tools or None
    vocabulary = Vocabulary(words=words.words, seed=mix.seed, tokens_per_word=words.tokens_per_word)
    prefixes = prefix.of(scenario, vocabulary)
    if not scenario.one_length or prefixes or tools:
        mixed = Mixed(
            mix=mix,
            words=words.words,
            added_tokens=words.added_tokens,
            tokens_per_word=words.tokens_per_word,
            prefixes=prefixes,
            tools=tuple(tools) if tools else None,
        )
        return inputs.together(scenario, mixed)
    mean = mix.mean()
    alike = Uniform(
        words=words.words,
        prompt_words=round(mean.input_tokens) if words.count is None else words.count,
        output_tokens=round(mean.output_tokens),
        seed=mix.seed,
        alike=not words.exact,
    )
    return inputs.together(scenario, alike)


def _of_rows(scenario: Scenario, words: PromptWords, rows: str) -> Rows:
    mean = shape.of(scenario).mean()
    return Rows(
        path=rows,
        words=words.words,
        seed=scenario.workload.seed or 0,
        prompt_words=round(mean.input_tokens),
        output_tokens=round(parse(scenario.workload.output_tokens).mean()),
        added_tokens=words.added_tokens,
        tokens_per_word=words.tokens_per_word,
    )


def first_row(scenario: Scenario, after: int) -> int | None:
    """Where a trace is replayed: the first number from `after` on whose request is the trace's first row; else None."""
    dataset = scenario.workload.dataset
    if not dataset or not dataset.requests or traffic.parse(scenario.ramp.arrivals).speed is None:
        return None
    return -(-after // dataset.requests) * dataset.requests


def times(source: Source) -> Sequence[float]:
    """When the requests of a trace came, seconds since the first; empty for all other sources."""
    source = source.source if isinstance(source, Canaries) else source
    return source.table.at_s if isinstance(source, Rows) else ()
