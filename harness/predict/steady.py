"""The steady state of a continuous-batching server in closed form.

Every step also carries the prefills of the requests it admits. Means of fixed lengths; variable lengths, bursts, tails
and open-loop queueing are for predict.batching. Letters as in predict.roofline.
"""

from __future__ import annotations

import math

import msgspec

from harness.predict.rules import mixed_step, requests_per_s
from harness.predict.step import StepCost, pass_time, prefill_compute, prefill_time, work_of
from harness.spec.work import MeanLengths

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
    t_dec, t_pre = work.all(max(work.memory, work.compute)), prefill_time(cost, P, cached, B, B - 1)
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
    return B * tokens_a_step(cost, workload) / workload.output_tokens * prefill_time(cost, P, cost.cached * P, B, B - 1)
