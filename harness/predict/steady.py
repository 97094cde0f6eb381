"""The steady state of a continuous-batching server in closed form, its latencies, whether they keep an SLO, its limits.

Every step also carries the prefills of the requests it admits. Means of fixed lengths; variable lengths, bursts, tails
and open-loop queueing are for predict.batching.

Requests that begin together stay together: their answers end together, so their next prompts meet and wait for each
other. How much of a batch meets is not known beforehand. A first token waits for none of the other prompts where
requests come evenly spread, and for half of them on average, for all of them at the 99th percentile, where a load
begins at once and every answer has one length. Published benchmarks lie between (docs/predict.md, Waiting times). A
gap between tokens is longer by the prompts that the step computes, as many as meet by chance.

Some caps stop the batch, others bend the curve, and an SLO is where the operator stops.

Letters as in predict.roofline.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from harness.base.errors import HarnessError
from harness.base.units import LIMITS, known_limit
from harness.data.prediction import batch_cap, stopping
from harness.predict.deployment import Deployment, blocks, kv_capacity, slow, smallest_tp
from harness.predict.model import Model
from harness.predict.step import (
    StepCost,
    Work,
    decode_time,
    pass_time,
    prefill_compute,
    prefill_time,
    step_cost,
    taking_in,
    work_of,
)
from harness.spec.work import MeanLengths

FAR = 1e7  # requests; a limit above it counts as none
Meeting = Literal["evenly", "usual", "at once"]
MEETINGS: tuple[Meeting, ...] = ("evenly", "usual", "at once")
_LAST = 0.4  # share of the batch for which the last one in a hundred waits where as many meet as usual
_TAIL = 0.99


class SteadyState(msgspec.Struct, frozen=True):
    """The steady state at one concurrency: seconds and output tokens/s; nan if nothing is decoded."""

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


def mixed_step(B: float, G: float, t_dec: float, t_pre: float) -> float:
    """Return the mean step in steady state: a step ends B/G requests, so it prefills B/G new ones; seconds."""
    return t_dec + B / G * t_pre


def requests_per_s(output_tokens_per_s: float, output_tokens: float) -> float:
    """Return the requests/s that a token rate completes. X / G.

    >>> requests_per_s(6000, 200)
    30.0
    """
    return output_tokens_per_s / output_tokens


def tokens_a_step(cost: StepCost, workload: MeanLengths) -> float:
    """Return the tokens that a request gains by one step."""
    return min(cost.accepted, workload.output_tokens)


def _without_decoding(cost: StepCost, workload: MeanLengths, C: float, cap: float) -> SteadyState:
    """Return the steady state of C users whose requests decode nothing: a batch is one pass, as long as its requests.

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
    """Seconds at one concurrency; nan if nothing is decoded."""

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
    >>> round(found.ttft, 3), round(found.ttft_p99, 3)  # it waits for one, or four, of ten prompts of 0.1 s
    (0.21, 0.51)
    """
    P, G = workload.input_tokens, workload.output_tokens
    prompt = prefill_time(cost, P, cost.cached * P, point.batch)
    others = max(0.0, point.batch - 1) * prompt if G else 0.0  # a batch is one pass if nothing is decoded
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
    """Return the 99th percentile of the gaps between tokens, in seconds; nan if none are decoded.

    It is the mean gap, and the prompts of the steps that by chance have more of them.
    """
    G = workload.output_tokens
    if not G or math.isnan(point.itl):
        return math.nan
    mean = point.batch / G  # prompts of a step
    most = max(1.0, cost.chunk / workload.input_tokens)  # prompts that one step computes at most
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


def meets(at: Latencies, slo: Mapping[str, float]) -> bool:
    """Return whether predicted latencies meet every limit; `_p50` and `_p75` limit the mean, all others the p99.

    TPOT, and `itl` without a percentile, which is a request's TPOT, are means already. A latency that is nan meets
    every limit.
    """
    mean = {"ttft": at.ttft, "itl": at.itl, "e2e": at.e2e}
    tail = {"ttft": at.ttft_p99, "itl": at.itl_p99, "e2e": at.e2e_p99}
    same = {"ttfat": "ttft", "icl": "itl"}
    for name, limit in slo.items():
        figure = slo_figure(name)
        if figure == "tpot" or name == "itl":  # a mean over the request already
            value = at.itl
        else:
            value = (mean if name.endswith(("_p50", "_p75")) else tail)[same.get(figure, figure)]
        if value > limit:  # nan is within any limit
            return False
    return True


def slo_concurrency(cost: StepCost, workload: MeanLengths, cap: float, slo: Mapping[str, float]) -> float:
    """Return the most users in flight whose predicted latencies meet the SLO, by bisection.

    0 if one user misses it, inf if as many as any server has meet it.
    """

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


_SLO = "slo"  # neither: the operator stops there
_FLAT = 0.1  # dlnX/dlnB within which a measurement has reached its plateau, docs/method.md, The knees


def caps(
    model: Model, deployment: Deployment, workload: MeanLengths, slo: Mapping[str, float] | None = None
) -> dict[str, float | None]:
    """Return the limits on the batch of one replica by name; None if that one never binds.

    kv_memory: requests whose mean context fits, in whole blocks. max_num_seqs: the scheduler's. max_num_batched_tokens:
    as many as a step's tokens allow, M / (1 + P'/G), and one whose prompt takes several steps. slo: the most users
    within it at the slow end, queued ones too.
    kv_traffic, compute and prefill bend the curve where they overtake the weights, memory traffic and decoding; the
    others stop it.
    """
    cost, G, ctx = step_cost(model, deployment), workload.output_tokens, workload.context
    out = stops_of(model, deployment, workload)

    def work(B: float) -> Work:
        return work_of(cost, B, B * ctx)

    out["compute"] = _crossing(lambda B: work(B).compute - work(B).memory) if G else None
    out["kv_traffic"] = _crossing(lambda B: work(B).kv - work(B).weights) if G else None
    out["prefill"] = _crossing(lambda B: prefilling(cost, workload, B) - decode_time(cost, B, B * ctx)) if G else None
    if slo:
        out["slo"] = slo_concurrency(step_cost(model, slow(model, deployment)), workload, batch_cap(out), slo)
    return out


def stops_of(model: Model, deployment: Deployment, workload: MeanLengths) -> dict[str, float | None]:
    """Return the caps that stop a replica's batch, in requests: KV memory, max_num_seqs, max_num_batched_tokens."""
    out: dict[str, float | None] = {
        "kv_memory": _kv_batch(model, deployment, workload),
        "max_num_seqs": deployment.max_num_seqs if workload.inputs == 1 else deployment.max_num_seqs / workload.inputs,
    }
    if deployment.max_num_batched_tokens and workload.output_tokens:
        fresh = workload.input_tokens * (1 - deployment.prefix_hit)
        out["max_num_batched_tokens"] = max(
            1.0, deployment.max_num_batched_tokens / (1 + fresh / workload.output_tokens)
        )
    return out


def _kv_batch(model: Model, deployment: Deployment, workload: MeanLengths) -> float | None:
    """Return how many requests fit into the KV cache at once; None if it is unlimited or nothing is decoded.

    Raise HarnessError if not even one fits.
    """
    longest = workload.input_tokens + workload.output_tokens
    ctx = longest if deployment.reserve else workload.context
    capacity = kv_capacity(model, deployment, ctx)
    if not capacity or not workload.output_tokens:
        return None
    if longest > capacity:
        fact = f"a request of {longest:.0f} tokens does not fit into a KV cache of {capacity}"
        more = smallest_tp(model, deployment, longest) if deployment.kv_tokens is None else None
        way_out = "send shorter requests" + (f", or give --tp {more}" if more else "")
        raise HarnessError(fact, place="--input-tokens", way_out=way_out)
    return float(blocks(deployment, capacity) // blocks(deployment, ctx))


def least(holds: Callable[[float], bool], low: float, high: float, close: float = 1e-9) -> float:
    """Return, by bisection, the least value for which holds(value) is true, between `low` (false) and `high` (true).

    >>> least(lambda x: x >= 2.5, 0, 10, close=1e-3)
    2.5
    """
    while high - low > close * high:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _crossing(f: Callable[[float], float]) -> float | None:
    """Return the least batch at which f(batch) ≥ 0; None if that lies beyond any batch."""
    high = 1.0
    while f(high) < 0:
        high *= 2
        if high > FAR:
            return None
    return least(lambda B: f(B) >= 0, high / 2 if high > 1 else 0.0, high)


def hinges(cost: StepCost, workload: MeanLengths, limits: Mapping[str, float | None]) -> dict[str, float]:
    """Return the limits at which throughput stops growing: caps of the batch, and compute if the curve is flat past it.

    From its crossover on a step grows with the batch, and X only as what does not (launching, the weights of prefills)
    is shared by more: compute is a hinge where a measurement would call that a plateau, dlnX/dlnB from there to the
    stop below 0.1, else a bend.
    """
    cap = batch_cap(limits)
    stops = stopping(limits)
    bend = limits.get("compute")
    if bend is not None and bend < cap < math.inf:
        here, there = (steady_state(cost, workload, B, cap).throughput for B in (bend, cap))
        if math.log(there / here) < _FLAT * math.log(cap / bend):
            stops["compute"] = bend
    return stops


def binding_cap(stops: Mapping[str, float], limits: Mapping[str, float | None]) -> str | None:
    """Return the least of the hinges, or the SLO where that comes first."""
    slo_limit = limits.get(_SLO)
    each = stops if slo_limit is None or slo_limit == math.inf else {**stops, _SLO: slo_limit}
    return min(each, key=lambda name: each[name], default=None)


def bound_by(cost: StepCost, workload: MeanLengths, C: float, limits: Mapping[str, float | None]) -> str:
    """Return what takes most of a step's time at C users of one replica (weights, compute …), above a cap its name."""
    cap = batch_cap(limits)
    if cap < C:
        return next(name for name, limit in limits.items() if limit == cap)
    if not workload.output_tokens:
        return "prefill"
    work = work_of(cost, C, C * workload.context)
    shares = {
        "weights": work.weights if work.memory >= work.compute else 0.0,
        "kv_traffic": work.kv if work.memory >= work.compute else 0.0,
        "compute": work.compute if work.compute > work.memory else 0.0,
        "communication": work.links,
        "overhead": work.overhead,
        "prefill": prefilling(cost, workload, C) / work.rounds,
    }
    return max(shares, key=lambda name: shares[name])


class ThroughputLimit(msgspec.Struct, frozen=True):
    """One named limit: the load at which it shows and the output tokens/s that it alone would allow."""

    name: str
    concurrency: float | None
    tokens_per_s: float | None
    kind: str  # slope | ceiling | stop | asked
    binds: bool


def limits(
    model: Model, deployment: Deployment, workload: MeanLengths, slo: Mapping[str, float] | None = None
) -> list[ThroughputLimit]:
    """Return every named limit with its value, of all replicas together; one of them binds, if any does.

    weights: the slope per user at low load, BW MBU / W. kv_traffic, compute, prefill: rates that no batch exceeds,
    and where they take over. kv_memory, max_num_seqs, max_num_batched_tokens, slo: where the batch stops.
    """
    cost, one, dp = step_cost(model, deployment), caps(model, deployment, workload, slo), deployment.dp
    P, ctx, cap, gain = workload.input_tokens, workload.context, batch_cap(one), tokens_a_step(cost, workload)
    binding = binding_cap(hinges(cost, workload, one), one)
    if not workload.output_tokens:
        return [
            ThroughputLimit(name, each, None, "stop", name == binding) for name, each in one.items() if each is not None
        ]
    far = work_of(cost, FAR, FAR * ctx)
    t_pre = prefill_time(cost, P, cost.cached * P, FAR, FAR)
    ceilings = {
        "kv_traffic": FAR * gain / (far.kv * far.rounds),
        "compute": FAR * gain / (far.compute * far.rounds),
        "prefill": workload.output_tokens / t_pre,
    }
    first = work_of(cost, 1, ctx)
    limits = [ThroughputLimit("weights", 1.0, dp * gain / (first.weights * first.rounds), "slope", False)]
    for name, each in one.items():
        where = None if each is None or each == math.inf else each * dp
        if name in ceilings:
            limits.append(ThroughputLimit(name, where, dp * ceilings[name], "ceiling", name == binding))
        elif each is not None:
            reached = steady_state(cost, workload, max(1.0, each), cap if name == _SLO else each)
            tokens = dp * reached.throughput if 1 <= each < math.inf else None
            limits.append(ThroughputLimit(name, where, tokens, "slo" if name == _SLO else "stop", name == binding))
    return limits
