"""The steady state of a continuous-batching server in closed form, and whether its mean latencies keep an SLO.

Every step also carries the prefills of the requests it admits. Means of fixed lengths; variable lengths, bursts, tails
and open-loop queueing are for predict.batching. Letters as in predict.roofline.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from harness.errors import HarnessError, nearest
from harness.predict.rules import mixed_step
from harness.predict.step import (
    MeanLengths,
    StepCost,
    pass_time,
    prefill_compute,
    prefill_time,
    work_of,
)

FAR = 1e7  # requests; a limit beyond it counts as none


class SteadyState(msgspec.Struct, frozen=True):
    """The steady state at one concurrency: seconds and output tokens/s; nan where nothing is decoded."""

    batch: float
    throughput: float
    itl: float
    ttft: float
    requests_per_s: float = math.nan


def steady_state(cost: StepCost, workload: MeanLengths, C: float, cap: float) -> SteadyState:
    """Closed loop of C users on a batch of at most `cap`; throughput has no jump where the queue begins.

    X = B / (step + API/G) with B = min(C, cap), step = (1-w) serial + w fused, serial = t_dec(B) + B/G t_pre,
    fused = max(mem(B), comp(B) + B/G comp_pre) + comm + o. A prefill can only fuse with the decoding of others, so
    (B-1)/B of w counts. Speculation gains several tokens a step, but no more than a request has.

    A first token leaves with the step that computes its prompt, which contains B/G prefills like every other where that
    is more than one. Little's law has the rest: C G / X = TTFT + (G - 1) ITL. So TTFT is t_dec + t_pre + API below
    the cap, for B up to G, and rises by G/X per user above it.
    """
    P, G = workload.input_tokens, workload.output_tokens
    if not G:
        return _without_decoding(cost, workload, C, cap)
    B, gain = min(C, cap), tokens_a_step(cost, workload)
    work, cached = work_of(cost, B, B * workload.context), cost.cached * P
    t_dec, t_pre = work.all(max(work.memory, work.compute)), prefill_time(cost, P, cached, B)
    step = mixed_step(B * gain, G, t_dec, t_pre)
    w = cost.fused * max(0.0, B - 1) / B
    if w:
        admitted = B * gain / G / max(1.0, min(cost.micro, B))  # prefills in one pass
        computed = work.compute + admitted * prefill_compute(cost, P, cached)
        carried = admitted * (P - cached) * cost.sync_token
        step = (1 - w) * step + w * min(step, work.all(max(work.memory, computed), carried))
    X = B * gain / (step + gain * cost.api / G)
    first = t_dec + max(t_pre, step - t_dec)
    itl = max(0.0, step * G / gain - first) / (G - 1) if G > 1 else t_dec
    return SteadyState(B, X, itl, C * G / X - (G - 1) * itl, X / G)


def tokens_a_step(cost: StepCost, workload: MeanLengths) -> float:
    """Tokens that a request gains by one step."""
    return min(cost.accepted, workload.output_tokens)


def _without_decoding(cost: StepCost, workload: MeanLengths, C: float, cap: float) -> SteadyState:
    """Embeddings and scores: the texts of a batch of requests are one pass; its time is the request's.

    `cap` counts requests. One with more texts than fit into a pass takes several.
    """
    B = min(C, cap)
    texts = [(B * workload.inputs, workload.input_tokens)]
    seconds = cost.step + pass_time(cost, texts, B) + cost.api
    return SteadyState(B, 0.0, math.nan, C * seconds / B, B / seconds)


def prefilling(cost: StepCost, workload: MeanLengths, B: float) -> float:
    """Seconds of the prefills in one step."""
    P = workload.input_tokens
    return B * tokens_a_step(cost, workload) / workload.output_tokens * prefill_time(cost, P, cost.cached * P, B)


_FIGURES = ("ttft", "ttfat", "itl", "tpot", "icl", "e2e")


def slo_figure(name: str) -> str:
    """The figure that a limit of an SLO is on; its percentile is not known to a closed form, only the mean.

    >>> slo_figure("ttft_p99")
    'ttft'
    """
    figure = name.split("_p", 1)[0]
    if figure not in _FIGURES:
        raise HarnessError(f"unknown limit {name!r}", place="--slo", way_out=nearest(figure, _FIGURES))
    return figure


def meets(point: SteadyState, cost: StepCost, workload: MeanLengths, slo: Mapping[str, float]) -> bool:
    """Whether the means at a point lie within every limit; a gap (icl) is a step with one prefill in it."""
    G, P = workload.output_tokens, workload.input_tokens
    gap = point.itl if cost.fused else point.itl + prefill_time(cost, P, cost.cached * P, point.batch)
    e2e = point.ttft + max(0.0, G - 1) * point.itl if G > 1 else point.ttft
    have = {"ttft": point.ttft, "ttfat": point.ttft, "itl": point.itl, "tpot": point.itl, "icl": gap, "e2e": e2e}
    return not any(have[slo_figure(name)] > limit for name, limit in slo.items())  # nan is within any limit


def slo_concurrency(cost: StepCost, workload: MeanLengths, cap: float, slo: Mapping[str, float]) -> float:
    """The most users in flight whose mean latencies meet the SLO; 0 where not even one does."""

    def missed(C: float) -> bool:
        return not meets(steady_state(cost, workload, C, cap), cost, workload, slo)

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
