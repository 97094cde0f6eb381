"""What limits the batch of a server, by name: where each limit shows, and which one binds.

Some caps stop the batch, others bend the curve, and an SLO is where the operator stops. Letters as in predict.roofline.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import msgspec

from harness.base.errors import HarnessError
from harness.data.prediction import batch_cap, stopping
from harness.predict.deployment import Deployment, blocks, kv_capacity, slow, smallest_tp
from harness.predict.model import Model
from harness.predict.steady import FAR, prefilling, slo_concurrency, steady_state, tokens_a_step
from harness.predict.step import StepCost, Work, decode_time, prefill_time, step_cost, work_of
from harness.spec.work import MeanLengths

_SLO = "slo"  # neither: the operator stops there
_FLAT = 0.1  # dlnX/dlnB within which a measurement has reached its plateau, docs/method.md, The knees


def caps(
    model: Model, deployment: Deployment, workload: MeanLengths, slo: Mapping[str, float] | None = None
) -> dict[str, float | None]:
    """Return the limits on the batch of one replica by name; None where that one never binds.

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
    """Return the caps that stop the batch."""
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


def _crossing(f: Callable[[float], float]) -> float | None:
    """Return the batch from which f is no longer negative; None where that lies beyond any batch."""
    low, high = 0.0, 1.0
    while f(high) < 0:
        low, high = high, 2 * high
        if high > FAR:
            return None
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if f(middle) < 0 else (low, middle)
    return high


def hinges(cost: StepCost, workload: MeanLengths, limits: Mapping[str, float | None]) -> dict[str, float]:
    """Return the caps at which throughput stops growing: those that stop the batch, and compute where it does the same.

    From its crossover on a step grows with the batch, and X only as what does not (launching, the weights of prefills)
    is shared by more: compute is a hinge where a measurement would call that a plateau, dlnX/dlnB from there to the
    stop below 0.1, else a bend.
    """
    cap = batch_cap(limits)
    found = stopping(limits)
    bend = limits.get("compute")
    if bend is not None and bend < cap < math.inf:
        here, there = (steady_state(cost, workload, B, cap).throughput for B in (bend, cap))
        if math.log(there / here) < _FLAT * math.log(cap / bend):
            found["compute"] = bend
    return found


def binding_cap(stops: Mapping[str, float], limits: Mapping[str, float | None]) -> str | None:
    """Return the least of the hinges, or the SLO where that comes first."""
    slo_limit = limits.get(_SLO)
    each = stops if slo_limit is None or slo_limit == math.inf else {**stops, _SLO: slo_limit}
    return min(each, key=lambda name: each[name], default=None)


def bound_by(cost: StepCost, workload: MeanLengths, C: float, limits: Mapping[str, float | None]) -> str:
    """Return what most of a step's time goes to at C users of one replica, or above the cap the name of that cap."""
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
    found = [ThroughputLimit("weights", 1.0, dp * gain / (first.weights * first.rounds), "slope", False)]
    for name, each in one.items():
        where = None if each is None or each == math.inf else each * dp
        if name in ceilings:
            found.append(ThroughputLimit(name, where, dp * ceilings[name], "ceiling", name == binding))
        elif each is not None:
            reached = steady_state(cost, workload, max(1.0, each), cap if name == _SLO else each)
            tokens = dp * reached.throughput if 1 <= each < math.inf else None
            found.append(ThroughputLimit(name, where, tokens, "slo" if name == _SLO else "stop", name == binding))
    return found
