"""What the hardware should give, in closed form: bytes over bandwidth, FLOP over peak, links, and a queue.

The steady state of a continuous-batching server, where every step also carries the prefills of the requests it
admits. Means of fixed lengths; variable lengths, bursts, tails and open-loop queueing are for predict.batching.

Letters: B requests running at once, C requests in flight, P prompt and G output tokens, W weight bytes
read per step, kv KV bytes per token, ctx context tokens per request, BW bytes/s, F FLOP/s, MBU and MFU
the shares of them that are reached, N parameters, X output tokens/s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec

from harness.errors import HarnessError, nearest
from harness.predict.catalog import doubts
from harness.predict.deployment import Deployment as Deployment  # with their namesakes part of what is offered here
from harness.predict.deployment import blocks, room, smallest_tp
from harness.predict.deployment import deployment as deployment
from harness.predict.deployment import kv_capacity as kv_capacity
from harness.predict.model import Model, expert_hits, kv_bytes, kv_bytes_per_token, parameters, weight_bytes
from harness.predict.rules import mixed_step, usd_per_million
from harness.predict.step import StepCost as StepCost
from harness.predict.step import Work, prefill_compute, weights_read, work_of
from harness.predict.step import Workload as Workload
from harness.predict.step import decode_time as decode_time
from harness.predict.step import prefill_time as prefill_time
from harness.predict.step import step_cost as step_cost
from harness.summary import Assumptions, Band, PredictedLevel, Prediction

_LOW = {"mbu": 0.6, "mfu": 0.3, "o_layer": 50e-6}
_HIGH = {"mbu": 0.9, "mfu": 0.6, "o_layer": 0.0}
_BENDS = ("kv_traffic", "compute", "prefill")  # they bend the curve, the other caps stop the batch
_ASKED = "slo"  # neither: the operator stops there
_FLAT = 0.1  # dlnX/dlnB within which a measurement has reached its plateau, docs/method.md, The knees
_FAR = 1e7  # requests; what would bind only beyond is said never to bind


# ---- limits ---------------------------------------------------------------------------------------------


def caps(
    model: Model, deployment: Deployment, workload: Workload, slo: Mapping[str, float] | None = None
) -> dict[str, float | None]:
    """Limits on the batch of one replica by name; None where that one never binds.

    kv_memory: requests whose mean context fits, in whole blocks. max_num_seqs: the scheduler's.
    max_num_batched_tokens: as many as a step's tokens allow, M / (1 + P'/G). slo: the most users within it; a queue
    may hold some of them. kv_traffic, compute and prefill bend the curve where they overtake the weights, memory
    traffic and decoding; the others stop it.
    """
    cost, G, ctx = step_cost(model, deployment), workload.output_tokens, workload.context
    out = _stops(model, deployment, workload)

    def work(B: float) -> Work:
        return work_of(cost, B, B * ctx)

    out["compute"] = _crossing(lambda B: work(B).compute - work(B).memory) if G else None
    out["kv_traffic"] = _crossing(lambda B: work(B).kv - work(B).weights) if G else None
    out["prefill"] = _crossing(lambda B: _prefilling(cost, workload, B) - decode_time(cost, B, B * ctx)) if G else None
    if slo:
        out["slo"] = slo_concurrency(cost, workload, batch_cap(out), slo)
    return out


def _stops(model: Model, deployment: Deployment, workload: Workload) -> dict[str, float | None]:
    """The caps that stop the batch."""
    out: dict[str, float | None] = {
        "kv_memory": _kv_batch(model, deployment, workload),
        "max_num_seqs": deployment.max_num_seqs,
    }
    if deployment.max_num_batched_tokens and workload.output_tokens:
        fresh = workload.input_tokens * (1 - deployment.prefix_hit)
        out["max_num_batched_tokens"] = deployment.max_num_batched_tokens / (1 + fresh / workload.output_tokens)
    return out


def _kv_batch(model: Model, deployment: Deployment, workload: Workload) -> float | None:
    longest = workload.input_tokens + workload.output_tokens
    ctx = longest if deployment.reserve else workload.context
    capacity = kv_capacity(model, deployment, ctx)
    if not capacity or not workload.output_tokens:
        return None
    if longest > capacity:
        fact = f"a request of {longest:.0f} tokens does not fit into a KV cache of {capacity}"
        more = smallest_tp(model, deployment, longest) if deployment.kv_tokens is None else None
        way_out = "ask for shorter requests" + (f", or say --tp {more}" if more else "")
        raise HarnessError(fact, place="--input-tokens", way_out=way_out)
    return float(blocks(deployment, capacity) // blocks(deployment, ctx))


def _prefilling(cost: StepCost, workload: Workload, B: float) -> float:
    """Seconds of the prefills in one step."""
    P = workload.input_tokens
    return B * _gain(cost, workload) / workload.output_tokens * prefill_time(cost, P, cost.cached * P, B)


def _crossing(f: Callable[[float], float]) -> float | None:
    """The batch from which f is no longer negative; None where that lies beyond any batch."""
    low, high = 0.0, 1.0
    while f(high) < 0:
        low, high = high, 2 * high
        if high > _FAR:
            return None
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if f(middle) < 0 else (low, middle)
    return high


def batch_cap(limits: Mapping[str, float | None]) -> float:
    """Requests that can run at once: the least of the caps that stop the batch, which the bending ones do not."""
    return min(
        (limit for name, limit in limits.items() if limit is not None and name not in (*_BENDS, _ASKED)),
        default=math.inf,
    )


def hinges(cost: StepCost, workload: Workload, limits: Mapping[str, float | None]) -> dict[str, float]:
    """The caps at which throughput stops growing: those that stop the batch, and compute where it does the same.

    From its crossover on a step grows with the batch, and X only as what does not (launching, the weights of prefills)
    is shared by more: compute is a hinge where a measurement would call that a plateau, dlnX/dlnB from there to the
    stop below 0.1, else a bend.
    """
    cap = batch_cap(limits)
    found = {name: each for name, each in limits.items() if each is not None and name not in (*_BENDS, _ASKED)}
    bend = limits.get("compute")
    if bend is not None and bend < cap < math.inf:
        here, there = (steady_state(cost, workload, B, cap).throughput for B in (bend, cap))
        if math.log(there / here) < _FLAT * math.log(cap / bend):
            found["compute"] = bend
    return found


# ---- steady state ---------------------------------------------------------------------------------------


class Point(msgspec.Struct, frozen=True):
    """The steady state at one concurrency: seconds and output tokens/s; nan where nothing is decoded."""

    batch: float
    throughput: float
    itl: float
    ttft: float
    requests_per_s: float = math.nan


def steady_state(cost: StepCost, workload: Workload, C: float, cap: float) -> Point:
    """Closed loop of C users on a batch of at most `cap`; throughput has no jump where the queue begins.

    X = B / (step + API/G) with B = min(C, cap), step = (1-w) serial + w fused, serial = t_dec(B) + B/G t_pre,
    fused = max(mem(B), comp(B) + B/G comp_pre) + comm + o. A prefill can only fuse with the decoding of others, so
    (B-1)/B of w counts. Speculation gains several tokens a step, but no more than a request has.

    A first token leaves with the step that computes its prompt, which holds B/G prefills like every other where that
    is more than one. Little's law has the rest: C G / X = TTFT + (G - 1) ITL. So TTFT is t_dec + t_pre + API below
    the cap, for B up to G, and rises by G/X per user above it.
    """
    P, G = workload.input_tokens, workload.output_tokens
    if not G:
        return _without_decoding(cost, P, C, cap)
    B, gain = min(C, cap), _gain(cost, workload)
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
    return Point(B, X, itl, C * G / X - (G - 1) * itl, X / G)


def _gain(cost: StepCost, workload: Workload) -> float:
    """Tokens that a request gains by one step."""
    return min(cost.accepted, workload.output_tokens)


def _without_decoding(cost: StepCost, P: float, C: float, cap: float) -> Point:
    """Embeddings and scores: a batch of prompts is one pass; its time is the request's."""
    B, cached = min(C, cap), cost.cached * P
    roof = max(B * prefill_compute(cost, P, cached), weights_read(cost, B * (P - cached)))
    m = max(1.0, min(cost.micro, B))
    links = cost.sync + B * (P - cached) * cost.sync_token
    seconds = (roof + links) * (m + cost.stages - 1) / (m * cost.stages) + cost.hop
    seconds += cost.step + B * cost.request + cost.api
    return Point(B, 0.0, math.nan, C * seconds / B, B / seconds)


def with_think_time(cost: StepCost, workload: Workload, users: float, think: float, cap: float) -> float:
    """Requests in flight of users who wait `think` seconds before they ask again: C of C + X/G Z = users."""
    low, high = 0.0, float(users)
    for _ in range(60):
        C = (low + high) / 2
        asking = steady_state(cost, workload, C, cap).requests_per_s * think
        low, high = (C, high) if C + asking < users else (low, C)
    return high


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


def meets(point: Point, cost: StepCost, workload: Workload, slo: Mapping[str, float]) -> bool:
    """Whether the means at a point lie within every limit; a gap (icl) is a step with one prefill in it."""
    G, P = workload.output_tokens, workload.input_tokens
    gap = point.itl if cost.fused else point.itl + prefill_time(cost, P, cost.cached * P, point.batch)
    e2e = point.ttft + max(0.0, G - 1) * point.itl if G > 1 else point.ttft
    have = {"ttft": point.ttft, "ttfat": point.ttft, "itl": point.itl, "tpot": point.itl, "icl": gap, "e2e": e2e}
    return not any(have[slo_figure(name)] > limit for name, limit in slo.items())  # nan is within any limit


def slo_concurrency(cost: StepCost, workload: Workload, cap: float, slo: Mapping[str, float]) -> float:
    """The most users in flight whose mean latencies meet the SLO; 0 where not even one does."""

    def missed(C: float) -> bool:
        return not meets(steady_state(cost, workload, C, cap), cost, workload, slo)

    if missed(1.0):
        return 0.0
    low, high = 1, 2  # latencies only grow with C
    while not missed(high):
        low, high = high, 2 * high
        if high > _FAR:
            return math.inf
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if missed(middle) else (middle, high)
    return float(low)


# ---- the prediction -------------------------------------------------------------------------------------


def predict(
    model: Model,
    deployment: Deployment,
    workload: Workload,
    levels: list[int],
    *,
    simulated: bool = False,
    slo: Mapping[str, float] | None = None,
    price: float | None = None,
    notes: Sequence[str] = (),
) -> Prediction:
    """The whole prediction, for summary.json and for the manifest before any load.

    low and high change MBU, MFU and the layer overhead together (0.6-0.9, 0.3-0.6, 50-0 µs); ITL and TTFT
    are of the middle. `slo` limits are seconds; `price` is USD per GPU-hour. dp replicas share the users evenly.
    """
    if not model.generates and workload.output_tokens:
        workload = Workload(workload.input_tokens, 0.0)
    one = caps(model, deployment, workload, slo)
    cap, dp, G = batch_cap(one), deployment.dp, workload.output_tokens
    limits = {name: None if each is None or each == math.inf else each * dp for name, each in one.items()}
    costs = [step_cost(model, each) for each in _band(deployment)]
    mid = costs[1]
    stops = hinges(mid, workload, one)

    def at(cost: StepCost, C: float) -> Point:
        busy = min(dp, C)
        point = steady_state(cost, workload, max(1.0, C / dp), cap)
        return msgspec.structs.replace(
            point, throughput=busy * point.throughput, requests_per_s=busy * point.requests_per_s
        )

    def level(C: int) -> PredictedLevel:
        points = [at(cost, C) for cost in costs]
        rates = [point.throughput if G else point.requests_per_s * workload.input_tokens for point in points]
        return PredictedLevel(
            concurrency=C,
            output_tokens_per_s=Band(*(point.throughput for point in points)),
            itl_s=points[1].itl if G else None,
            ttft_s=points[1].ttft,
            requests_per_s=Band(*(point.requests_per_s for point in points)),
            usd_per_million=_usd(price, deployment.gpus, rates),
            meets_slo=meets(points[1], mid, workload, slo) if slo else None,
            bound_by=bound_by(mid, workload, max(1.0, C / dp), one),
            experts_hit=_experts_hit(mid, points[1].batch),
        )

    top = cap * dp if cap < math.inf else float(max(levels, default=1))
    again = []
    if one["kv_memory"] == cap and not deployment.reserve and cap * dp < max(levels, default=0):
        left = f"about {recomputed(mid, workload, cap):.2f} of the throughput that is shown"
        again = [f"past {cap * dp:.0f} in flight the KV cache is full, and what it evicts is computed again: {left}"]
    return Prediction(
        model=model.name,
        gpu=deployment.gpu.key,
        gpus=deployment.gpus,
        simulated=simulated,
        input_tokens=workload.input_tokens,
        output_tokens=workload.output_tokens,
        binding_cap=_binding(stops, one),
        caps=limits,
        plateau_tokens_per_s=Band(*(at(cost, top).throughput for cost in costs)),
        single_stream_tokens_per_s=Band(*(at(cost, 1).throughput for cost in costs)),
        hinge_concurrency=min(stops.values()) * dp if stops else None,
        levels=[level(C) for C in levels],
        assumptions=_assumptions(model, deployment, workload),
        scaling_efficiency=scaling_efficiency(model, deployment, workload),
        notes=[*model.notes, *doubts(deployment.gpu), *_far_links(deployment), *again, *notes],
    )


def _binding(stops: Mapping[str, float], limits: Mapping[str, float | None]) -> str | None:
    """The least of the hinges, or what was asked where that comes first."""
    asked = limits.get(_ASKED)
    each = stops if asked is None or asked == math.inf else {**stops, _ASKED: asked}
    return min(each, key=lambda name: each[name], default=None)


def _experts_hit(cost: StepCost, B: float) -> float | None:
    """Experts of a layer that one pass reads; None where there are none."""
    tokens = B / max(1.0, min(cost.micro, B)) * cost.verified * cost.sharing
    return expert_hits(cost.experts, cost.per_token, tokens) if cost.experts else None


def recomputed(cost: StepCost, workload: Workload, cap: float) -> float:
    """The share of throughput that is left past the `cap` of a KV cache that is given out on demand.

    There the cache is full, and each new token takes the room of one that has to be computed again: G a request. Those
    who are evicted have any length from P to P + G, so that it is r = ∫ da / (P + a) = ln(1 + G/P) times a request,
    of G/r tokens. The step machine of predict.batching evicts the youngest: more often where G is above P, and shorter
    ones, which comes to much the same (docs/predict.md).
    """
    P, G = workload.input_tokens, workload.output_tokens
    times = math.log1p(G / P)
    again = times * prefill_time(cost, G / times, cost.cached * P, cap)
    return 1 / (1 + steady_state(cost, workload, cap, cap).requests_per_s * again)


_NODE = 8  # GPUs that the link of the table joins
_RACKS = ("gb200", "gb300")  # where it joins 72


def _far_links(deployment: Deployment) -> list[str]:
    together = max(deployment.tp * deployment.pp, deployment.ep)
    if together <= _NODE or deployment.gpu.key.startswith(_RACKS):
        return []
    return [f"{together} GPUs of one replica reach beyond a node: its links count as if they were inside"]


def _usd(price: float | None, gpus: int, rates: Sequence[float]) -> Band | None:
    """USD per million tokens: output, or input where there is none; low is the price of the fast end."""
    if price is None or min(rates) <= 0:
        return None
    return Band(*(usd_per_million(price * gpus, rate) for rate in reversed(rates)))


def bound_by(cost: StepCost, workload: Workload, C: float, limits: Mapping[str, float | None]) -> str:
    """What most of a step's time goes to at C users of one replica, or above the cap the name of that cap."""
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
        "prefill": _prefilling(cost, workload, C) / work.rounds,
    }
    return max(shares, key=lambda name: shares[name])


def scaling_efficiency(model: Model, deployment: Deployment, workload: Workload) -> float | None:
    """Throughput of n GPUs over n times that of one, each at its own cap: E_n = X_n / (n X_1).

    None where the model does not fit on one, where the caps were published for n, and where nothing stops the batch.
    """
    if deployment.gpus == 1 or deployment.kv_tokens is not None:
        return None
    alone = msgspec.structs.replace(deployment, gpus=1, tp=1, pp=1, dp=1, ep=1)
    longest = workload.input_tokens + workload.output_tokens
    if smallest_tp(model, alone, longest) != 1:
        return None

    def most(each: Deployment) -> float:
        cap = batch_cap(_stops(model, each, workload))
        point = steady_state(step_cost(model, each), workload, cap, cap)
        return each.dp * point.requests_per_s

    return most(deployment) / (deployment.gpus * most(alone))


class Limit(msgspec.Struct, frozen=True):
    """One named limit: the load at which it shows and the output tokens/s that it alone would allow."""

    name: str
    concurrency: float | None
    tokens_per_s: float | None
    kind: str  # slope | ceiling | stop | asked
    binds: bool


def limits(
    model: Model, deployment: Deployment, workload: Workload, slo: Mapping[str, float] | None = None
) -> list[Limit]:
    """Every named limit with its value, of all replicas together; one of them binds, if any does.

    weights: the slope per user at low load, BW MBU / W. kv_traffic, compute, prefill: rates that no batch exceeds,
    and where they take over. kv_memory, max_num_seqs, max_num_batched_tokens, slo: where the batch stops.
    """
    cost, one, dp = step_cost(model, deployment), caps(model, deployment, workload, slo), deployment.dp
    P, ctx, cap, gain = workload.input_tokens, workload.context, batch_cap(one), _gain(cost, workload)
    binding = _binding(hinges(cost, workload, one), one)
    if not workload.output_tokens:
        return [Limit(name, each, None, "stop", name == binding) for name, each in one.items() if each is not None]
    far = work_of(cost, _FAR, _FAR * ctx)
    t_pre = prefill_time(cost, P, cost.cached * P, _FAR)
    ceilings = {
        "kv_traffic": _FAR * gain / (far.kv * far.rounds),
        "compute": _FAR * gain / (far.compute * far.rounds),
        "prefill": workload.output_tokens / t_pre,
    }
    first = work_of(cost, 1, ctx)
    found = [Limit("weights", 1.0, dp * gain / (first.weights * first.rounds), "slope", False)]
    for name, each in one.items():
        where = None if each is None or each == math.inf else each * dp
        if name in ceilings:
            found.append(Limit(name, where, dp * ceilings[name], "ceiling", name == binding))
        elif each is not None:
            reached = steady_state(cost, workload, max(1.0, each), cap if name == _ASKED else each)
            tokens = dp * reached.throughput if 1 <= each < math.inf else None
            found.append(Limit(name, where, tokens, "asked" if name == _ASKED else "stop", name == binding))
    return found


class Roof(msgspec.Struct, frozen=True):
    """The roofline: where decode and prefill sit under bandwidth and FLOP; FLOP/byte and FLOP/s of one replica."""

    ridge: float  # intensity at which the two roofs meet
    bandwidth: float
    flops: float
    decode: list[tuple[float, float, float]]  # (batch, intensity, FLOP/s reached)
    prefill: tuple[float, float]  # intensity, FLOP/s reached


def roof(model: Model, deployment: Deployment, workload: Workload, batches: Sequence[float]) -> Roof:
    """Where the phases sit under the roofs, by the data sheet, with what the deployment says is reached of it."""
    card, n = deployment.gpu, deployment.tp * deployment.pp
    cost, ideal = step_cost(model, deployment), msgspec.structs.replace(deployment, mbu=1.0, mfu_decode=1.0)
    peaks = step_cost(model, msgspec.structs.replace(ideal, mfu_prefill=1.0))
    bandwidth, flops, P = card.bandwidth * n, card.flops["bf16"] * n, workload.input_tokens

    def decoding(B: float) -> tuple[float, float, float]:
        work = work_of(peaks, B, B * workload.context)
        flop = work.compute * flops
        return B, flop / (work.memory * bandwidth), flop / decode_time(cost, B, B * workload.context)

    flop = prefill_compute(peaks, P, 0.0) * flops
    read = weights_read(peaks, P) * bandwidth
    reached = flop / prefill_time(cost, P)
    return Roof(flops / bandwidth, bandwidth, flops, [decoding(B) for B in batches], (flop / read, reached))


def disaggregated(prefill_requests_per_s: float, decode_requests_per_s: float, gpus: int) -> tuple[int, int, float]:
    """The best split of so many GPUs into a prefill and a decode pool: (a, b, requests/s), the smaller pool's rate.

    >>> disaggregated(3.0, 1.0, 8)
    (2, 6, 6.0)
    """
    split = max(range(1, gpus), key=lambda a: min(a * prefill_requests_per_s, (gpus - a) * decode_requests_per_s))
    return split, gpus - split, min(split * prefill_requests_per_s, (gpus - split) * decode_requests_per_s)


def _band(middle: Deployment) -> tuple[Deployment, Deployment, Deployment]:
    """Slow, given and fast; a figure given outside the usual range stretches it."""

    def bent(edge: dict[str, float], less: Callable[..., float], more: Callable[..., float]) -> Deployment:
        return msgspec.structs.replace(
            middle,
            mbu=less(middle.mbu, edge["mbu"]),
            mfu_prefill=less(middle.mfu_prefill, edge["mfu"]),
            mfu_decode=less(middle.mfu_decode, edge["mfu"]),
            o_layer=more(middle.o_layer, edge["o_layer"]),
        )

    return bent(_LOW, min, max), middle, bent(_HIGH, max, min)


def _assumptions(model: Model, deployment: Deployment, workload: Workload) -> Assumptions:
    cost, P = step_cost(model, deployment), workload.input_tokens
    usual: dict[str, float] = {
        "mbu": deployment.mbu,
        "mfu_prefill": deployment.mfu_prefill,
        "mfu_decode": deployment.mfu_decode,
        "layer_overhead_s": deployment.o_layer,
        "step_overhead_s": deployment.o_step,
        "request_overhead_s": deployment.o_req,
        "api_overhead_s": deployment.o_api,
        "gpu_memory_utilization": deployment.gpu_memory_utilization,
        "kv_tokens": kv_capacity(model, deployment, workload.context),
        "weight_bytes": weight_bytes(model) if deployment.weight_bytes is None else deployment.weight_bytes,
        "kv_bytes_per_token": kv_bytes_per_token(model),
        "kv_bytes_per_request": kv_bytes(model, workload.context),  # at the mean context
        "parameters": parameters(model).total,
        "prefill_s": prefill_time(cost, P, cost.cached * P),
        "speed": deployment.speed,
    }
    if deployment.kv_tokens is not None:  # published: what the card has room for stands beside it, where there is any
        estimated = msgspec.structs.replace(deployment, kv_tokens=None)
        if room(model, estimated) > 0:
            usual["kv_tokens_by_memory"] = kv_capacity(model, estimated, workload.context)
    fields = ("tp", "pp", "dp", "ep", "prefix_hit", "fused", "acceptance", "draft_tokens", "draft_s")
    default = Deployment(gpu=deployment.gpu)
    given = {name: getattr(deployment, name) for name in fields}
    return Assumptions(**usual, **{name: value for name, value in given.items() if value != getattr(default, name)})
