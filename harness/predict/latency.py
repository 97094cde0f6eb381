"""Mean and 99th percentile of the latencies at a steady state, and whether they keep an SLO.

Requests that begin together stay together: their answers end together, so their next prompts meet and wait for each
other. How much of a batch meets is not known beforehand. With a share s of it a first token waits for s (B - 1) / 2
other prompts on average and for s (B - 1) at the 99th percentile: none of them where requests come evenly spread, all
of them where a load begins at once and every answer has one length. Published benchmarks lie at about s = 0.4
(docs/predict.md). A gap between tokens is longer by the prompts that the step computes, as many as meet by chance.

Letters as in predict.roofline.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from harness.base.errors import HarnessError, nearest
from harness.predict.steady import FAR, SteadyState, steady_state
from harness.predict.step import StepCost, prefill_time
from harness.spec.work import MeanLengths

TOGETHER = (0.0, 0.4, 1.0)  # share of a batch that meets: evenly spread, as published benchmarks, all at once
_FIGURES = ("ttft", "ttfat", "itl", "tpot", "icl", "e2e")
_TAIL = 0.99


class Latencies(msgspec.Struct, frozen=True):
    """Seconds at one concurrency; nan where nothing is decoded."""

    ttft: float
    ttft_p99: float
    itl: float
    itl_p99: float
    e2e: float
    e2e_p99: float


def latencies(point: SteadyState, cost: StepCost, workload: MeanLengths, together: float) -> Latencies:
    """The latencies at a point where a share `together` of the batch meets.

    >>> from harness.predict.step import StepCost
    >>> cost = StepCost(weights=0.01, kv=0, token=0, attend=0, prompt=1e-4, prompt_head=0, prompt_attend=0, step=0,
    ...                 request=0, api=0)
    >>> found = latencies(SteadyState(11, 0.0, 0.02, 0.11), cost, MeanLengths(1000, 100), 0.4)
    >>> round(found.ttft, 3), round(found.ttft_p99, 3)  # of the ten others' prompts of 0.1 s each: two, and four
    (0.31, 0.51)
    """
    P, G = workload.input_tokens, workload.output_tokens
    prompt = prefill_time(cost, P, cost.cached * P, point.batch)
    wait = together * max(0.0, point.batch - 1) * prompt if G else 0.0  # without decoding a batch is one pass
    ttft, ttft_p99 = point.ttft + wait / 2, point.ttft + wait
    decoding = max(0.0, G - 1) * point.itl if G > 1 else 0.0
    return Latencies(
        ttft, ttft_p99, point.itl, _longest_gap(point, cost, workload, prompt), ttft + decoding, ttft_p99 + decoding
    )


def _longest_gap(point: SteadyState, cost: StepCost, workload: MeanLengths, prompt: float) -> float:
    """The 99th percentile of the gaps: a step without prompts, and those that join it by chance."""
    G = workload.output_tokens
    if not G or math.isnan(point.itl):
        return math.nan
    mean = point.batch / G  # prompts of a step
    most = max(1.0, cost.chunk / workload.input_tokens)  # that one step computes
    return point.itl + max(0.0, min(most, _quantile(mean)) - mean) * prompt


def _quantile(mean: float) -> int:
    """The 99th percentile of a Poisson distribution.

    >>> _quantile(0.001), _quantile(0.1), _quantile(1.0)
    (0, 1, 4)
    """
    if mean > 100:
        return math.ceil(mean + 2.326 * math.sqrt(mean))  # the normal's quantile
    n, term = 0, math.exp(-mean)
    total = term
    while total < _TAIL:
        n += 1
        term *= mean / n
        total += term
    return n


def slo_figure(name: str) -> str:
    """The figure that a limit of an SLO is on.

    >>> slo_figure("ttft_p99")
    'ttft'
    """
    figure = name.split("_p", 1)[0]
    if figure not in _FIGURES:
        raise HarnessError(f"unknown limit {name!r}", place="--slo", way_out=nearest(figure, _FIGURES))
    return figure


def meets(found: Latencies, slo: Mapping[str, float]) -> bool:
    """Whether latencies lie within every limit: `_p50` and `_p75` are held against the mean, all else against p99."""
    mean = {"ttft": found.ttft, "itl": found.itl, "e2e": found.e2e}
    tail = {"ttft": found.ttft_p99, "itl": found.itl_p99, "e2e": found.e2e_p99}
    same = {"ttfat": "ttft", "icl": "itl"}
    for name, limit in slo.items():
        figure = slo_figure(name)
        if figure == "tpot":  # a mean over the request already
            value = found.itl
        else:
            value = (mean if name.endswith(("_p50", "_p75")) else tail)[same.get(figure, figure)]
        if value > limit:  # nan is within any limit
            return False
    return True


def slo_concurrency(cost: StepCost, workload: MeanLengths, cap: float, slo: Mapping[str, float]) -> float:
    """The most users in flight whose latencies meet the SLO, where as many meet as usual; 0 where not even one's do."""

    def missed(C: float) -> bool:
        return not meets(latencies(steady_state(cost, workload, C, cap), cost, workload, TOGETHER[1]), slo)

    if missed(1.0):
        return 0.0
    low, high = 1, 2  # latencies only grow with C
    while not missed(high):
        low, high = high, 2 * high
        if high > FAR:
            return math.inf
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if missed(middle) else (middle, high)
    return float(low)
