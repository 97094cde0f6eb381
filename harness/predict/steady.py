"""The steady state of a continuous-batching server in closed form, its latencies, and whether they keep an SLO.

Every step also carries the prefills of the requests it admits. Means of fixed lengths; variable lengths, bursts, tails
and open-loop queueing are for predict.batching.

Requests that begin together stay together: their answers end together, so their next prompts meet and wait for each
other. How much of a batch meets is not known beforehand. A first token waits for none of the other prompts where
requests come evenly spread, and for half of them on average, for all of them at the 99th percentile, where a load
begins at once and every answer has one length. Published benchmarks lie between (docs/predict.md, Waiting times). A
gap between tokens is longer by the prompts that the step computes, as many as meet by chance.

Letters as in predict.roofline.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import msgspec

from harness.base.units import LIMITS, known_limit
from harness.predict.rules import mixed_step, requests_per_s
from harness.predict.step import StepCost, decode_time, pass_time, prefill_compute, prefill_time, taking_in, work_of
from harness.spec.work import MeanLengths

FAR = 1e7  # requests; a limit above it counts as none
Meeting = Literal["evenly", "usual", "at once"]
MEETINGS: tuple[Meeting, ...] = ("evenly", "usual", "at once")
_LAST = 0.4  # of the batch, for which the last one in a hundred waits where as many meet as usual
_TAIL = 0.99


class SteadyState(msgspec.Struct, frozen=True):
    """The steady state at one concurrency: seconds and output tokens/s; nan where nothing is decoded."""

    batch: float
    throughput: float
    itl: float
    ttft: float
    requests_per_s: float = math.nan


def steady_state(cost: StepCost, workload: MeanLengths, C: float, cap: float) -> SteadyState:
    """Return the closed loop of C users on a batch of at most `cap`; throughput has no jump where the queue begins.

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
    t_dec, t_pre = work.all(max(work.memory, work.compute)), prefill_time(cost, P, cached, B, B)
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
    return SteadyState(B, X, itl, C * G / X - (G - 1) * itl, requests_per_s(X, G))


def tokens_a_step(cost: StepCost, workload: MeanLengths) -> float:
    """Return the tokens that a request gains by one step."""
    return min(cost.accepted, workload.output_tokens)


def _without_decoding(cost: StepCost, workload: MeanLengths, C: float, cap: float) -> SteadyState:
    """Return the state where nothing is decoded: the texts of a batch are one pass, whose time is the request's.

    `cap` counts requests. One with more texts than fit into a pass takes several.
    """
    B = min(C, cap)
    texts = [(B * workload.inputs, workload.input_tokens)]
    seconds = cost.step + pass_time(cost, texts, B) + cost.api
    return SteadyState(B, 0.0, math.nan, C * seconds / B, B / seconds)


def prefilling(cost: StepCost, workload: MeanLengths, B: float) -> float:
    """Return the seconds of the prefills in one step."""
    P = workload.input_tokens
    return B * tokens_a_step(cost, workload) / workload.output_tokens * prefill_time(cost, P, cost.cached * P, B, B)


# ---- latencies -----------------------------------------------------------------------------------------


class Latencies(msgspec.Struct, frozen=True):
    """Seconds at one concurrency; nan where nothing is decoded."""

    ttft: float
    ttft_p99: float
    itl: float
    itl_p99: float
    e2e: float
    e2e_p99: float


def latencies(point: SteadyState, cost: StepCost, workload: MeanLengths, meeting: Meeting) -> Latencies:
    """Return the latencies at a point, by how requests meet.

    >>> from harness.predict.step import StepCost
    >>> cost = StepCost(weights=0.01, kv=0, token=0, attend=0, prompt=1e-4, prompt_head=0, prompt_attend=0, step=0,
    ...                 request=0, api=0, together=0.2)
    >>> found = latencies(SteadyState(11, 0.0, 0.02, 0.11), cost, MeanLengths(1000, 100), "usual")
    >>> round(found.ttft, 3), round(found.ttft_p99, 3)  # of the ten others' prompts of 0.1 s each: one, and four
    (0.21, 0.51)
    """
    P, G = workload.input_tokens, workload.output_tokens
    prompt = prefill_time(cost, P, cost.cached * P, point.batch)
    others = max(0.0, point.batch - 1) * prompt if G else 0.0  # without decoding a batch is one pass
    mean, last = met(cost, meeting)
    first = point.ttft
    if G:
        step = decode_time(cost, point.batch, point.batch * workload.context)
        first += taking_in(cost, P, P if meeting == "evenly" else cost.cached * P, step)
    ttft, ttft_p99 = first + mean * others, first + last * others
    decoding = max(0.0, G - 1) * point.itl if G > 1 else 0.0
    return Latencies(
        ttft, ttft_p99, point.itl, _longest_gap(point, cost, workload, prompt), ttft + decoding, ttft_p99 + decoding
    )


def met(cost: StepCost, meeting: Meeting) -> tuple[float, float]:
    """Return the share of the others' prompts that a first token waits for, in the mean and at the 99th percentile."""
    mean, last = {"evenly": (0.0, 0.0), "usual": (cost.together / 2, _LAST), "at once": (0.5, 1.0)}[meeting]
    return mean, max(mean, last)


def _longest_gap(point: SteadyState, cost: StepCost, workload: MeanLengths, prompt: float) -> float:
    """Return the 99th percentile of the gaps: a step without prompts, and those that join it by chance."""
    G = workload.output_tokens
    if not G or math.isnan(point.itl):
        return math.nan
    mean = point.batch / G  # prompts of a step
    most = max(1.0, cost.chunk / workload.input_tokens)  # that one step computes
    return point.itl + max(0.0, min(most, _quantile(mean)) - mean) * prompt


def _quantile(mean: float) -> int:
    """Return the 99th percentile of a Poisson distribution.

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
    """Return the figure that a limit of an SLO is on.

    >>> slo_figure("ttft_p99")
    'ttft'
    """
    known_limit(name, "--slo")
    return LIMITS[name][0]


def meets(found: Latencies, slo: Mapping[str, float]) -> bool:
    """Return whether latencies lie within every limit: `_p50` and `_p75` limit the mean, all others the p99."""
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
    """Return the most users in flight whose latencies keep the SLO, by the usual share that meets; 0 for none."""

    def missed(C: float) -> bool:
        return not meets(latencies(steady_state(cost, workload, C, cap), cost, workload, "usual"), slo)

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
