"""The whole prediction, level by level with its band, and the roofline that it lies under.

Bytes over bandwidth, FLOP over peak and links make a step (predict.step), and steps a steady state, which ends at the
limits (both in predict.steady). That is the closed form of the mean request. Where requests differ in length
no mean is like them: attention over a prompt grows with its square, a long prompt holds up all that decode, and most
tokens belong to the long answers. Then throughput, ITL and TTFT of each level are the step machine's with requests of
these very lengths (predict.stepped); caps, limits and the distance of low and high from the middle stay the closed
form's. Lengths come from outside, and with them all randomness.

Letters: B requests running at once, C requests in flight, P prompt and G output tokens, W weight bytes
read per step, kv KV bytes per token, ctx context tokens per request, BW bytes/s, F FLOP/s, MBU and MFU
the shares of them that are reached, N parameters, X output tokens/s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from harness.base.errors import HarnessError
from harness.data.manifest import Roof
from harness.data.prediction import Assumptions, Band, PredictedLevel, Prediction, SteppedLevel, batch_cap
from harness.data.views import Spread
from harness.predict import steady, step
from harness.predict.catalog import doubts
from harness.predict.deployment import (
    LEAN_SAMPLER,
    MEMORY,
    Deployment,
    fast,
    in_a_node,
    kv_capacity,
    room,
    slow,
    smallest_tp,
)
from harness.predict.model import Model, expert_hits, kv_bytes, kv_bytes_per_token, parameters, weight_bytes
from harness.spec.work import MeanLengths, Mixture, means, usd_per_million


def predict(
    model: Model,
    deployment: Deployment,
    lengths: MeanLengths | Mixture,
    levels: Sequence[int],
    *,
    simulated: bool = False,
    slo: Mapping[str, float] | None = None,
    price: float | None = None,
    notes: Sequence[str] = (),
) -> Prediction:
    """Return the whole prediction, for summary.json and for the manifest before any load.

    low and high are a step as much slower and faster as published levels of such models are (`deployment.spread`); ITL
    and TTFT are of the middle. `slo` limits are seconds; `price` is USD per GPU-hour. dp replicas share the users
    evenly. A mixture takes some 0.2 s a level more.
    """
    if simulated:  # the simulated endpoint takes requests in at once
        deployment = msgspec.structs.replace(deployment, o_token=0.0, o_first=0.0)
    workload = means(lengths)
    if not model.generates and workload.output_tokens:
        workload = MeanLengths(workload.input_tokens, 0.0, inputs=workload.inputs)
    one, dp = steady.caps(model, deployment, workload, slo), deployment.dp
    band = _ends(model, deployment, workload)
    mid = band[1].cost
    stops = steady.hinges(mid, workload, one)

    def most(end: _BandEnd) -> float:
        """Return the users from whom on this end is flat, or the most of those asked for."""
        return end.cap * dp if end.cap < math.inf else float(max(levels, default=1))

    closed = Prediction(
        model=model.name,
        gpu=deployment.gpu.key,
        gpus=deployment.gpus,
        simulated=simulated,
        input_tokens=workload.input_tokens,
        output_tokens=workload.output_tokens,
        inputs=workload.inputs if workload.inputs > 1 else UNSET,
        binding_cap=steady.binding_cap(stops, one),
        caps={name: None if each is None or each == math.inf else each * dp for name, each in one.items()},
        plateau_tokens_per_s=_tokens([over_replicas(*end, workload, most(end), dp) for end in band], workload),
        single_stream_tokens_per_s=_tokens([over_replicas(*end, workload, 1, dp) for end in band], workload),
        hinge_concurrency=min(stops.values()) * dp if stops else None,
        levels=[_level(C, band, deployment, workload, one, slo, price) for C in levels],
        assumptions=_assumptions(model, deployment, workload),
        scaling_efficiency=scaling_efficiency(model, deployment, workload),
        notes=[
            *model.notes,
            *(f"{deployment.gpu.key}: {doubt}" for doubt in doubts(deployment.gpu)),
            *_far_links(deployment),
            *_evictions(mid, deployment, workload, one, max(levels, default=0)),
            *notes,
        ],
    )
    if isinstance(lengths, MeanLengths) or not workload.output_tokens:
        return closed
    return _by_steps(closed, model, deployment, lengths, slo)


class _BandEnd(NamedTuple):
    """One end of the band, or its middle: what a step costs, and the most requests of a batch."""

    cost: step.StepCost
    cap: float


def _ends(model: Model, middle: Deployment, workload: MeanLengths) -> tuple[_BandEnd, _BandEnd, _BandEnd]:
    """Return step costs and batch cap of one replica at the band's slow end, in the middle and at the fast end."""
    cap, sampler = batch_cap(steady.stops_of(model, middle, workload)), middle.sampler_bytes
    full = msgspec.structs.replace(middle, sampler_bytes=sampler * middle.tp)
    lean = msgspec.structs.replace(middle, sampler_bytes=min(sampler, LEAN_SAMPLER))
    return (
        _BandEnd(step.step_cost(model, slow(model, middle)), min(cap, _cap(model, full, workload, -MEMORY))),
        _BandEnd(step.step_cost(model, middle), cap),
        _BandEnd(step.step_cost(model, fast(model, middle)), max(cap, _cap(model, lean, workload, MEMORY))),
    )


def _cap(model: Model, deployment: Deployment, workload: MeanLengths, more: float) -> float:
    """Return how many requests run at once if each GPU has `more` bytes more for KV (fewer if negative); at least 1."""
    utilization = deployment.gpu_memory_utilization + more / deployment.gpu.memory_bytes
    try:
        other = msgspec.structs.replace(deployment, gpu_memory_utilization=utilization)
        return max(1.0, batch_cap(steady.stops_of(model, other, workload)))
    except HarnessError:  # what fits just so may not fit with less
        return 1.0


def over_replicas(cost: step.StepCost, cap: float, workload: MeanLengths, C: float, dp: int) -> steady.SteadyState:
    """Return the steady state of C users who are spread evenly over dp replicas, each with a batch of at most `cap`.

    Throughput and requests per second are those of all replicas; the batch and the latencies are those of one.
    """
    busy, point = min(dp, C), steady.steady_state(cost, workload, max(1.0, C / dp), cap)
    return msgspec.structs.replace(
        point, throughput=busy * point.throughput, requests_per_s=busy * point.requests_per_s
    )


def _tokens(points: Sequence[steady.SteadyState], workload: MeanLengths) -> Band:
    """Return the output tokens/s; input tokens/s if nothing is decoded."""
    if workload.output_tokens:
        return Band(*(point.throughput for point in points))
    return Band(*(point.requests_per_s * workload.inputs * workload.input_tokens for point in points))


def _level(
    C: int,
    band: Sequence[_BandEnd],
    deployment: Deployment,
    workload: MeanLengths,
    limits: Mapping[str, float | None],
    slo: Mapping[str, float] | None,
    price: float | None,
) -> PredictedLevel:
    """Return the level of C users, at the slow, the middle and the fast end of the band."""
    mid, dp, G = band[1].cost, deployment.dp, workload.output_tokens
    points = [over_replicas(*end, workload, C, dp) for end in band]
    ends = [steady.latencies(points[1], mid, workload, meeting) for meeting in steady.MEETINGS]
    tokens = _tokens(points, workload)
    return PredictedLevel(
        concurrency=C,
        output_tokens_per_s=Band(*(point.throughput for point in points)),
        input_tokens_per_s=UNSET if G else tokens,
        itl_s=points[1].itl if G else None,
        ttft_s=ends[1].ttft,
        ttft_mean_s=Band(*(end.ttft for end in ends)),
        ttft_p99_s=Band(*(end.ttft_p99 for end in ends)),
        itl_p99_s=ends[1].itl_p99 if G else UNSET,
        requests_per_s=Band(*(point.requests_per_s for point in points)),
        usd_per_million=_usd(price, deployment.gpus, (tokens.low, tokens.mid, tokens.high)),
        meets_slo=steady.meets(steady.latencies(points[0], band[0].cost, workload, "usual"), slo) if slo else None,
        bound_by=steady.bound_by(mid, workload, max(1.0, C / dp), limits),
        experts_hit=_experts_hit(mid, points[1].batch),
    )


def _evictions(
    cost: step.StepCost, deployment: Deployment, workload: MeanLengths, limits: Mapping[str, float | None], most: int
) -> list[str]:
    """Return a note on the throughput lost to evictions at `most` users, if the KV cache is full there; else []."""
    cap, dp = batch_cap(limits), deployment.dp
    if limits["kv_memory"] != cap or deployment.reserve or cap * dp >= most:
        return []
    left = f"about {recomputed(cost, workload, cap):.2f} of the throughput that is shown"
    return [f"past {cap * dp:.0f} in flight the KV cache is full, and what it evicts is computed again: {left}"]


def _experts_hit(cost: step.StepCost, B: float) -> float | None:
    """Return the experts of a layer that one pass reads; None if there are none."""
    tokens = B / max(1.0, min(cost.micro, B)) * cost.verified * cost.sharing
    return expert_hits(cost.experts, cost.per_token, tokens) if cost.experts else None


def recomputed(cost: step.StepCost, workload: MeanLengths, cap: float) -> float:
    """Return the share of throughput left past the `cap` of a KV cache, as evicted requests are computed again.

    Blocks are assigned on demand: each new token takes the room of one that is computed again, G a request. Those
    who are evicted have any length from P to P + G, so that it is r = ∫ da / (P + a) = ln(1 + G/P) times a request,
    of G/r tokens. The step machine of predict.batching evicts the youngest: more often where G is above P, and shorter
    ones, which comes to much the same (docs/predict.md).
    """
    P, G = workload.input_tokens, workload.output_tokens
    times = math.log1p(G / P)
    again = times * step.prefill_time(cost, G / times, cost.cached * P, cap, cap - 1)
    return 1 / (1 + steady.steady_state(cost, workload, cap, cap).requests_per_s * again)


_STEPPED = "lengths differ: throughput, ITL and TTFT are the step machine's, caps and limits those of the mean request"


def _far_links(deployment: Deployment) -> list[str]:
    together = max(deployment.tp * deployment.pp, deployment.ep)
    if together <= in_a_node(deployment.gpu):
        return []
    return [f"{together} GPUs of one replica reach beyond a node: its links count as if they were inside"]


def _usd(price: float | None, gpus: int, rates: Sequence[float]) -> Band | None:
    """Return USD per million tokens: output, or input if there is none; low is the price of the fast end."""
    if price is None or min(rates) <= 0:
        return None
    return Band(*(usd_per_million(price * gpus, rate) for rate in reversed(rates)))


def scaling_efficiency(model: Model, deployment: Deployment, workload: MeanLengths) -> float | None:
    """Return the throughput of n GPUs over n times that of one, each at its own cap: E_n = X_n / (n X_1).

    None if the model does not fit on one, if the caps were published for n, or if nothing stops the batch.
    """
    if deployment.gpus == 1 or deployment.kv_tokens is not None:
        return None
    alone = msgspec.structs.replace(deployment, gpus=1, tp=1, pp=1, dp=1, ep=1)
    longest = workload.input_tokens + workload.output_tokens
    if smallest_tp(model, alone, longest) != 1:
        return None

    def most(each: Deployment) -> float:
        cap = batch_cap(steady.stops_of(model, each, workload))
        point = steady.steady_state(step.step_cost(model, each), workload, cap, cap)
        return each.dp * point.requests_per_s

    return most(deployment) / (deployment.gpus * most(alone))


def data_sheet_roof(model: Model, deployment: Deployment) -> Roof:
    """Return the roof of the data sheet, by the formulas of the prediction (docs/method.md, The step).

    MBU and MFU of a measurement are its share of that.
    """
    cost = step.step_cost(model, msgspec.structs.replace(deployment, mbu=1.0, mfu_prefill=1.0, mfu_decode=1.0))
    return Roof(
        prompt=cost.prompt,
        attend=2 * cost.prompt_attend,
        weights=step.work_of(cost, 1, 0).weights + cost.state,
        kv=cost.kv,
        windows=cost.windows,
    )


ASSUMED = {  # fields of a deployment, by their names in a prediction's assumptions
    "mbu": "mbu",
    "mfu_prefill": "mfu_prefill",
    "mfu_decode": "mfu_decode",
    "layer_overhead_s": "o_layer",
    "step_overhead_s": "o_step",
    "request_overhead_s": "o_req",
    "api_overhead_s": "o_api",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "speed": "speed",
}


def _assumptions(model: Model, deployment: Deployment, workload: MeanLengths) -> Assumptions:
    """Return the figures that a prediction rests on (bytes, seconds, tokens), with what the deployment states."""
    cost, P = step.step_cost(model, deployment), workload.input_tokens
    usual: dict[str, float] = {
        **{name: getattr(deployment, field) for name, field in ASSUMED.items()},
        "layer_overhead_s": step.layer_overhead(model, deployment),
        "token_overhead_s": deployment.o_token,
        "first_token_steps": step.first_steps(cost, P, cost.cached * P),
        "kv_tokens": kv_capacity(model, deployment, workload.context),
        "weight_bytes": weight_bytes(model) if deployment.weight_bytes is None else deployment.weight_bytes,
        "kv_bytes_per_token": kv_bytes_per_token(model),
        "kv_bytes_per_request": kv_bytes(model, workload.context),  # at the mean context
        "parameters": parameters(model).total,
        "prefill_s": step.prefill_time(cost, P, cost.cached * P),
        "prefill_beside_s": step.prefill_time(cost, P, cost.cached * P, decoding=1.0),
    }
    if deployment.kv_tokens is not None:  # published: what the card has room for is given too, if there is any
        estimated = msgspec.structs.replace(deployment, kv_tokens=None)
        if room(model, estimated) > 0:
            usual["kv_tokens_by_memory"] = kv_capacity(model, estimated, workload.context)
    fields = ("tp", "pp", "dp", "ep", "prefix_hit", "fused", "acceptance", "draft_tokens", "draft_s")
    default = Deployment(gpu=deployment.gpu)
    stated = {name: getattr(deployment, name) for name in fields}
    return Assumptions(**usual, **{name: value for name, value in stated.items() if value != getattr(default, name)})


# ---- requests that differ in length ----


def _by_steps(
    closed: Prediction, model: Model, deployment: Deployment, mixture: Mixture, slo: Mapping[str, float] | None
) -> Prediction:
    """Return the closed form's prediction for a mixture, with throughput, ITL, TTFT simulated by the step machine."""
    from harness.predict.stepped import at_levels  # predictions in closed form start without it

    cost, cap, mean = step.step_cost(model, deployment), batch_cap(closed.caps), means(mixture)
    top = max(1, math.floor(cap)) if cap < math.inf else max((level.concurrency for level in closed.levels), default=1)
    predicted = [*predict(model, deployment, mean, [1, top]).levels, *closed.levels]
    stepped = at_levels(model, deployment, mixture, predicted)
    single, plateau, *levels = map(_replaced, predicted, stepped)
    alone, mixed = (
        sum(step.prefill_time(cost, P, cost.cached * P, decoding=others) for P, _ in mixture) / len(mixture)
        for others in (0.0, 1.0)
    )
    return msgspec.structs.replace(
        closed,
        single_stream_tokens_per_s=single.output_tokens_per_s,
        plateau_tokens_per_s=plateau.output_tokens_per_s,
        levels=[_judged(*each, slo) for each in zip(levels, stepped[2:], strict=True)] if slo else levels,
        step_machine=stepped[2:],
        assumptions=msgspec.structs.replace(closed.assumptions, prefill_s=alone, prefill_beside_s=mixed),
        notes=[*closed.notes, _STEPPED],
    )


def _replaced(level: PredictedLevel, seen: SteppedLevel) -> PredictedLevel:
    """Return a predicted level whose middle is the step machine's; its band keeps its relative width."""

    def around(band: Band | None, middle: float) -> Band | None:
        return band and Band(band.low / band.mid * middle, middle, band.high / band.mid * middle)

    tokens = around(level.output_tokens_per_s, seen.output_tokens_per_s)
    assert tokens is not None
    usd = level.usd_per_million and level.usd_per_million.mid / (tokens.mid / level.output_tokens_per_s.mid)
    return msgspec.structs.replace(
        level,
        output_tokens_per_s=tokens,
        itl_s=seen.itl_s and seen.itl_s.mean,
        ttft_s=seen.ttft_s.mean if seen.ttft_s else level.ttft_s,
        requests_per_s=around(level.requests_per_s, seen.requests_per_s),
        usd_per_million=usd and around(level.usd_per_million, usd),
    )


def _judged(level: PredictedLevel, seen: SteppedLevel, slo: Mapping[str, float]) -> PredictedLevel:
    """Return the level with meets_slo: whether the step machine's latencies, slowed to the slow end, meet the SLO."""
    tokens = level.output_tokens_per_s
    longer = tokens.mid / tokens.low

    def both(spread: Spread | None) -> tuple[float, float]:
        """Return the mean and the 99th percentile, or the longest if there are too few for one."""
        if spread is None:
            return math.nan, math.nan
        last = spread.p99 or spread.max or spread.mean
        return (spread.mean or math.nan) * longer, (last or math.nan) * longer

    found = steady.Latencies(*both(seen.ttft_s), *both(seen.itl_s), *both(seen.e2e_s))
    return msgspec.structs.replace(level, meets_slo=steady.meets(found, slo))
