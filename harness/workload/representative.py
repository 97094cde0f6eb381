"""Requests that stand for all that a scenario asks for: what a prediction is made of. Pure.

What prompts share is taken to be in the server's cache. Left out: sessions and graphs, whose prompts grow with every
answer, and datasets.
"""

from __future__ import annotations

from harness.predict.step import MeanLengths, Mixture, means
from harness.spec.scenario import Scenario
from harness.workload import shape

_COUNT = 1_000  # of a mixture: enough for a class of one in a thousand, and for a p99


def predictable(scenario: Scenario) -> bool:
    """Whether requests are single ones, whose prompts do not depend on answers."""
    return not scenario.has_tasks


def lengths(scenario: Scenario) -> MeanLengths | Mixture:
    """Tokens of prompts, with what they share, and of answers: one pair for all, or those of a mixture.

    >>> lengths(Scenario())
    MeanLengths(input_tokens=512, output_tokens=128, weighted=None, inputs=1)
    """
    mix, prefix = shape.of(scenario), scenario.workload.prefix or None
    if not scenario.decodes:  # means are enough where no long text holds up short ones
        return MeanLengths(mix.mean().input_tokens, 0.0, inputs=scenario.workload.inputs or 1)
    if scenario.one_length:
        mean = mix.mean()  # with what prompts share
        return MeanLengths(mean.input_tokens, mean.output_tokens)
    share, tokens = (prefix.share, prefix.tokens) if prefix else (0.0, 0)
    found = mix.stratified(_COUNT)
    return [(P + tokens * (i < share * len(found)), G) for i, (P, G) in enumerate(found)]


def cached_share(scenario: Scenario) -> float:
    """Share of all prompt tokens that is of a shared prefix."""
    prefix = scenario.workload.prefix or None
    return prefix.share * prefix.tokens / means(lengths(scenario)).input_tokens if prefix else 0.0
