"""Lengths as a workload asks for them, and as the server counted them. Pure.

What is asked is a law (`distribution`), what came is counted from the requests that succeeded and began in a window, so
that neither a warm-up nor what was cut has a part in it. How far the two are apart is the distance of Kolmogorov and
Smirnov, the largest between their cumulative distributions. Left out: prompts of sessions and of an agent's tasks,
whose lengths follow from the answers before them, and of a dataset: they are counted, and no law is known.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec import UNSET

from harness.analysis import classes
from harness.analysis.stats import SAMPLES
from harness.analysis.table import Bools, Floats, Table
from harness.analysis.window import began_in
from harness.data.record import Level
from harness.data.summary import ClassWorkload, Lengths, LengthSpread, WorkloadSummary
from harness.spec import distribution
from harness.spec.classes import ClassSpec
from harness.spec.distribution import Distribution
from harness.spec.scenario import Scenario

_PERCENTILES = (10, 50, 90, 99)
_PLACE = "manifest.json: $.scenario"


class Law(msgspec.Struct, frozen=True):
    """A distribution of lengths, a share of them with some tokens more.

    >>> Law(distribution.parse("100..102"), more=50, share=1.0).mean()
    151.0
    """

    own: Distribution
    more: int = 0  # tokens of a prefix
    share: float = 0.0  # of the requests that have it

    def __str__(self) -> str:
        if not self.more:
            return str(self.own)
        often = f"{self.share * 100:.3g} % of them " if self.share < 1 else ""
        return f"{self.own}, {often}after a prefix of {self.more}"

    def cdf(self, n: int) -> float:
        """Return the share of the lengths up to n."""
        if not self.more:
            return self.own.cdf(n)
        return self.share * self.own.cdf(n - self.more) + (1 - self.share) * self.own.cdf(n)

    def quantile(self, p: float) -> int:
        """Return the smallest length that a share p does not pass."""
        low = self.own.quantile(p)
        if not self.more:
            return low
        return low + bisect_left(range(self.more), p, key=lambda tokens: self.cdf(low + tokens))

    def mean(self) -> float:
        return self.own.mean() + self.share * self.more


def compared(scenario: Scenario, table: Table, levels: Sequence[Level]) -> WorkloadSummary | None:
    """Return what a scenario asks for and what came in these levels' windows; None where all requests are alike."""
    workload = scenario.workload
    conversation = bool(workload.session or workload.node)
    dataset = bool(workload.dataset)
    if scenario.one_length and not conversation and not workload.prefix:
        return None
    one = ClassSpec(name="", input=workload.input_tokens, output=workload.output_tokens)
    specs = scenario.class_ or (one,)
    of_class = classes.rows(table, [spec.name for spec in specs])
    began = np.zeros(len(table.ok), dtype=np.bool_)
    for level in levels:
        began |= began_in(table, level)
    began &= ~table.canary
    prefix = (workload.prefix.tokens, workload.prefix.share) if workload.prefix else (0, 0.0)
    total, shares = int(began.sum()), sum(spec.share for spec in specs)

    def row(spec: ClassSpec) -> ClassWorkload:
        sent: Bools = began & of_class[spec.name]
        answered = sent & table.ok
        prompt = (
            None if conversation or dataset or workload.tools else Law(distribution.parse(spec.input, _PLACE), *prefix)
        )
        answer = None if dataset or workload.node else Law(distribution.parse(spec.output, _PLACE))
        return ClassWorkload(
            class_=spec.name,
            requests=int(answered.sum()),
            share_asked=spec.share / shares if shares else 0.0,
            share=int(sent.sum()) / total if total else None,
            input_tokens=lengths(prompt, table.input_tokens[answered]),
            output_tokens=lengths(answer, table.output_tokens[answered]),
            first_use=classes.first_use(table, of_class[spec.name]) if spec.model else UNSET,
        )

    return WorkloadSummary(classes=[row(spec) for spec in specs])


def lengths(law: Law | None, found: Floats) -> Lengths:
    """Return a law and the lengths that came, shape [requests]; nan, which was not counted, is left out."""
    found = found[~np.isnan(found)]
    n = len(found)
    return Lengths(
        law=None if law is None else str(law),
        asked=None if law is None else LengthSpread(law.mean(), *(law.quantile(q / 100) for q in _PERCENTILES)),
        realised=_spread(found),
        mean_se=float(found.std(ddof=1)) / n**0.5 if n > 1 else None,
        ks=None if law is None or not n else distance(law, found),
    )


def distance(law: Law, found: Floats) -> float:
    """Return the largest distance between the share of `found` up to a length and that of the law, 0 to 1.

    Whole numbers: both only step at them, so that it lies at one of those found or just below it.

    >>> distance(Law(distribution.parse("1..4")), np.array([1.0, 2.0, 2.0, 4.0]))  # 3/4 of them up to 2, half asked
    0.25
    """
    values, counts = np.unique(found, return_counts=True)
    upto = np.cumsum(counts) / len(found)
    at = np.array([law.cdf(int(value)) for value in values])
    below = np.array([law.cdf(int(value) - 1) for value in values])
    return float(max(np.abs(upto - at).max(), np.abs(upto - counts / len(found) - below).max()))


def _spread(found: Floats) -> LengthSpread:
    """Return mean and percentiles, each the smallest length that so many do not pass; None where too few carry one."""
    if not len(found):
        return LengthSpread(None, None, None, None, None)
    carried = [len(found) >= SAMPLES[max(q, 100 - q)] for q in _PERCENTILES]
    at = np.percentile(found, _PERCENTILES, method="inverted_cdf").tolist()
    return LengthSpread(float(found.mean()), *(x if known else None for x, known in zip(at, carried, strict=True)))
