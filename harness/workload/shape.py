"""The shape of each request: which class it is of and how long prompt and answer are, before words are chosen. Pure.

A mix is drawn from by number: the class by its share, then the lengths by the class, then whether it is given up. Same
seed and number, same shape, on any worker. What is kept is the law, not exact shares of every thousand requests.
"""

from __future__ import annotations

import itertools
import math
import random
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property

import msgspec

from harness.spec.classes import Cancel, ClassSpec
from harness.spec.distribution import Distribution, Fixed, observed, parse
from harness.spec.scenario import Scenario
from harness.spec.work import MeanLengths, Mixture, means

_STANDING = 1_000  # requests that represent a mixture: enough for a class of one in a thousand, and for a p99


class Shape(msgspec.Struct, frozen=True, gc=False):
    """One request, as far as numbers say it."""

    input_tokens: int
    output_tokens: int
    class_: str = ""
    cancel: Cancel | None = None  # when this one is given up; None: it is not


class Class(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of request: how many of them there are, how long they are, and when they are given up."""

    name: str = ""
    share: float = 1.0  # weight among the classes
    input: Distribution
    output: Distribution
    pairs: tuple[tuple[int, int], ...] = ()  # prompt and answer lengths drawn together; empty: apart
    cancel: Cancel | None = None

    def lengths(self, rng: random.Random) -> tuple[int, int]:
        """Return the tokens of one prompt and of its answer."""
        if self.pairs:
            return self.pairs[int(rng.random() * len(self.pairs))]
        return self.input.draw(rng), self.output.draw(rng)

    def stratified(self, count: int, rng: random.Random) -> list[tuple[int, int]]:
        """Return `count` pairs of prompt and answer lengths at equally spaced quantiles, answers shuffled."""
        middles = [(i + 0.5) / count for i in range(count)]
        if self.pairs:
            return [self.pairs[int(p * len(self.pairs))] for p in middles]
        answers = [self.output.quantile(p) for p in middles]
        rng.shuffle(answers)
        return list(zip(map(self.input.quantile, middles), answers, strict=True))


class Mix(msgspec.Struct, frozen=True, dict=True):
    """Classes of requests, each asked as often as its share says.

    >>> chat = Class(name="chat", share=3, input=parse(500), output=parse(64))
    >>> long = Class(name="long", share=1, input=parse("32k"), output=parse(64))
    >>> Mix((chat, long), seed=1).mean()
    MeanLengths(input_tokens=8375.0, output_tokens=64.0, weighted=None, inputs=1)
    """

    classes: tuple[Class, ...]  # at least one, and a share above 0 among them
    seed: int
    decodes: bool = True  # False: nothing is, and no answer has tokens
    prefix_tokens: float = 0  # mean leading tokens of a prompt that come before its own

    def shape(self, number: int) -> Shape:
        """Return the n-th request's class, lengths and whether it is cancelled, drawn at random by seed and number."""
        rng = random.Random(f"{self.seed}:shape:{number}")  # not the numbers that its words are drawn by
        last = len(self.classes) - 1
        of = self.classes[bisect_right(self._upto, rng.random() * self._upto[-1], hi=last)]
        input_tokens, output_tokens = of.lengths(rng)
        given_up = of.cancel is not None and rng.random() < of.cancel.share
        return Shape(input_tokens, output_tokens, of.name, of.cancel if given_up else None)

    def mean(self) -> MeanLengths:
        """Return the mean lengths of all requests, in tokens."""
        if len(self.classes) == 1:
            answer = self.classes[0].output.mean() if self.decodes else 0
            return MeanLengths(self.prefix_tokens + self.classes[0].input.mean(), answer)
        parts = [(class_.share / self._upto[-1], class_.input.mean(), class_.output.mean()) for class_ in self.classes]
        own, answer = (math.fsum(part[0] * part[i] for part in parts) for i in (1, 2))
        return MeanLengths(self.prefix_tokens + own, answer)

    def spread(self) -> float:
        """Return the 99.9 % quantile of prompt or answer lengths over their mean, whichever is more; at least 1."""
        mean, longest = self.mean(), 1.0
        for class_ in self.classes:
            prompt, answer = (law.quantile(0.999) for law in (class_.input, class_.output))
            longest = max(longest, prompt / (mean.input_tokens or 1), answer / (mean.output_tokens or 1) * self.decodes)
        return longest

    def stratified(self, count: int) -> list[tuple[int, int]]:
        """Return lengths of prompt and answer that represent all requests, in an order of the seed's, shape [count].

        A stratified sample: each class has its share of it, and each law is kept by its quantiles, so that the means
        are those of the mix and not of what happened to be drawn. A class of less than one request may be missing.

        >>> short = Class(name="short", share=3, input=parse(500), output=parse(64))
        >>> long = Class(name="long", share=1, input=parse("32k"), output=parse("1..4"))
        >>> sorted(Mix((short, long), seed=1).stratified(8))[-3:]
        [(500, 64), (32000, 1), (32000, 3)]
        """
        rng = random.Random(f"{self.seed}:stratified")
        until = [round(count * upto / self._upto[-1]) for upto in (0.0, *self._upto)]
        parts = zip(self.classes, itertools.pairwise(until), strict=True)
        drawn = [lengths for each, (begin, end) in parts for lengths in each.stratified(end - begin, rng)]
        rng.shuffle(drawn)
        return drawn

    @cached_property
    def _upto(self) -> tuple[float, ...]:
        """Return the share of each class and all before it."""
        return tuple(itertools.accumulate(class_.share for class_ in self.classes))


def of(scenario: Scenario) -> Mix:
    """Return the mix of request lengths that a scenario asks for: by its classes, else one class for all requests.

    Of tasks: the lengths of all their requests, one drawn apart from the next.

    >>> of(Scenario()).mean()
    MeanLengths(input_tokens=512, output_tokens=128, weighted=None, inputs=1)
    """
    workload, dataset = scenario.workload, scenario.workload.dataset
    if dataset and dataset.input_tokens and dataset.output_tokens:  # its mean request, as far as a mix can say it
        lengths = Fixed(round(dataset.input_tokens)), Fixed(round(dataset.output_tokens))
        return Mix((Class(input=lengths[0], output=lengths[1]),), workload.seed or 0)
    if workload.session or workload.node:
        from harness.workload import tasks  # knows words, graphs and datasets: a prediction starts without them

        return Mix((joint(tasks.lengths(scenario)),), workload.seed or 0)
    one = ClassSpec(name="", input=workload.input_tokens, output=workload.output_tokens)
    specs, prefix = scenario.class_ or (one,), workload.prefix
    in_front = prefix.share * prefix.tokens if prefix else 0
    classes = tuple(
        Class(name=spec.name, share=spec.share, input=parse(spec.input), output=parse(spec.output), cancel=spec.cancel)
        for spec in specs
    )
    return Mix(classes, workload.seed or 0, decodes=scenario.decodes, prefix_tokens=in_front)


def joint(pairs: Sequence[tuple[int, int]]) -> Class:
    """Return a class whose (prompt, answer) lengths are drawn together from these pairs, as those of tasks are.

    >>> both = joint([(100, 10), (900, 90)])
    >>> str(both.input), both.lengths(random.Random(0)) in both.pairs
    ('100:1,900:1', True)
    """
    prompts, answers = (observed(pair[i] for pair in pairs) for i in (0, 1))
    return Class(input=prompts, output=answers, pairs=tuple(pairs))


def representative(scenario: Scenario) -> MeanLengths | Mixture:
    """Return the lengths that a prediction is made of, in tokens: one pair for all requests, or those of a mixture.

    What prompts share is taken to be in the server's cache. Left out: sessions and graphs, whose prompts grow with
    every answer, and datasets.

    >>> representative(Scenario())
    MeanLengths(input_tokens=512, output_tokens=128, weighted=None, inputs=1)
    """
    mix, prefix = of(scenario), scenario.workload.prefix or None
    if not scenario.decodes:  # means are enough if no long text holds up short ones
        return MeanLengths(mix.mean().input_tokens, 0.0, inputs=scenario.workload.inputs or 1)
    if scenario.one_length:
        return mix.mean()  # includes what prompts share
    share, tokens = (prefix.share, prefix.tokens) if prefix else (0.0, 0)
    found = mix.stratified(_STANDING)
    return [(P + tokens * (i < share * len(found)), G) for i, (P, G) in enumerate(found)]


def cached_share(scenario: Scenario) -> float:
    """Return the share of all prompt tokens that is of a shared prefix."""
    prefix = scenario.workload.prefix or None
    return prefix.share * prefix.tokens / means(representative(scenario)).input_tokens if prefix else 0.0
