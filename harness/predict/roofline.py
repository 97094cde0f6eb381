"""What the hardware should give, in closed form: bytes over bandwidth, FLOP over peak, and a queue.

First the rules of thumb as they are usually quoted, one function each; then the steady state of a
continuous-batching server, where every step also carries the prefills of the requests it admits. One
replica on one GPU; variable lengths, bursts and open-loop queueing are for predict.batching.

Letters: B requests running at once, C requests in flight, P prompt and G output tokens, W weight bytes
read per step, kv KV bytes per token, ctx context tokens per request, BW bytes/s, F FLOP/s, MBU and MFU
the shares of them that are reached, N parameters, X output tokens/s.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec

from harness.errors import HarnessError
from harness.predict.catalog import Gpu
from harness.predict.model import (
    Model,
    kv_bytes_per_token,
    parameters,
    weight_bytes,
    weight_bytes_per_step,
)
from harness.summary import Band, PredictedLevel, Prediction

# ---- rules of thumb -------------------------------------------------------------------------------------


def bandwidth_floor(W: float, BW: float) -> float:
    """Least time of one decode step: every weight is read once; seconds. W / BW.

    >>> round(bandwidth_floor(70e9, 3.35e12) * 1e3, 2)  # 70B in fp8 on an H100, ms
    20.9
    """
    return W / BW


def tpot0(B: float, W: float, ctx: float, kv: float, BW: float, MBU: float = 1.0) -> float:
    """Time per output token at batch B, nothing but memory traffic; seconds. (W + B ctx kv) / (BW MBU)."""
    return (W + B * ctx * kv) / (BW * MBU)


def x0(B: float, W: float, ctx: float, kv: float, BW: float, MBU: float = 1.0) -> float:
    """Decode throughput at batch B; tokens/s. B / TPOT0."""
    return B / tpot0(B, W, ctx, kv, BW, MBU)


def ceiling0(ctx: float, kv: float, BW: float, MBU: float = 1.0) -> float:
    """Decode throughput that no batch beats; tokens/s. (BW MBU) / (ctx kv).

    >>> round(ceiling0(2000, 131072, 3.35e12, 0.7))
    8945
    """
    return BW * MBU / (ctx * kv)


def b_star(W: float, ctx: float, kv: float) -> float:
    """Batch whose KV traffic equals the weight traffic, where X0 is half its ceiling. W / (ctx kv)."""
    return W / (ctx * kv)


def prefill0(peak: float, MFU: float, N: float) -> float:
    """Prompt tokens/s of the compute roof; quoted beside decode, never summed with it. peak MFU / (2 N)."""
    return peak * MFU / (2 * N)


def ridge(F: float, BW: float) -> float:
    """Arithmetic intensity above which compute limits; FLOP/byte. F / BW."""
    return F / BW


def slo_batch(tpot: float, W: float, ctx: float, kv: float, BW: float, MBU: float = 1.0) -> int:
    """Largest batch whose TPOT0 still meets the limit; 0 when not even one does."""
    return max(0, math.floor((tpot * BW * MBU - W) / (ctx * kv)))


def kv_batch(memory: float, utilization: float, weights: float, ctx: float, kv: float) -> int:
    """Requests whose KV cache fits beside the weights. floor((memory u - weights) / (ctx kv)).

    >>> kv_batch(80e9, 0.9, 16e9, 2000, 131072)
    213
    """
    return max(0, math.floor((memory * utilization - weights) / (ctx * kv)))


def closed_loop_throughput(C: float, ttft: float, G: float, tpot: float) -> float:
    """Output tokens/s of C users who ask again at once, by Little's law. C G / (TTFT + (G - 1) TPOT).

    >>> round(closed_loop_throughput(100, 0.2, 200, 0.025), 1)
    3864.7
    """
    return C * G / (ttft + (G - 1) * tpot)


def mixed_step(B: float, G: float, t_dec: float, t_pre: float) -> float:
    """Mean step in steady state: a step ends B/G requests, so it prefills B/G new ones; seconds."""
    return t_dec + B / G * t_pre


# ---- one replica ----------------------------------------------------------------------------------------

_USUAL_MFU = {"h100": 0.45, "a100": 0.38, "l40s": 0.32}  # of prefill, analytic.md §3
_LOW = {"mbu": 0.6, "mfu": 0.3, "o_layer": 50e-6}
_HIGH = {"mbu": 0.9, "mfu": 0.6, "o_layer": 0.0}


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how a model is served: what the prediction assumes and the simulated endpoint obeys."""

    gpu: Gpu
    gpus: int = 1
    mbu: float = 0.8
    mfu_prefill: float = 0.45
    mfu_decode: float = 0.45
    o_layer: float = 32e-6  # seconds per layer and step; with the next two a published fit on H100
    o_step: float = 126e-6  # seconds per step
    o_req: float = 4.4e-6  # seconds per running request and step
    o_api: float = 0.0  # seconds per request outside the batch: HTTP, tokenizer, the client's turnaround
    gpu_memory_utilization: float = 0.9
    activations: float = 5.5 * 2**30  # bytes; dense models
    nontorch: float = 0.15 * 2**30  # bytes, on one GPU
    max_num_seqs: int = 256
    block_size: int = 16  # tokens
    kv_tokens: int | None = None  # what the server itself publishes; it beats the estimate
    speed: float = 1.0  # 4: the server's clock runs four times as fast; only simulations do that


class Workload(msgspec.Struct, frozen=True):
    """Mean tokens of a request."""

    input_tokens: float
    output_tokens: float

    @property
    def context(self) -> float:
        """Mean context while it decodes, where the engine preempts and does not reserve; P + G/2."""
        return self.input_tokens + self.output_tokens / 2


def deployment(gpu: Gpu, **figures: Any) -> Deployment:
    """A deployment on one GPU with the MFU usual for that card; any field can be given."""
    family = gpu.key.split("-")[0]
    usual = _USUAL_MFU.get(family, Deployment.mfu_prefill if family.startswith("h") else 0.38)
    return Deployment(gpu=gpu, **{"mfu_prefill": usual, "mfu_decode": usual, **figures})


class StepCost(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds per unit of work, of one model on one deployment: the coefficients of every step time."""

    weights: float  # reading W once
    kv: float  # reading one token's KV
    token: float  # multiplying one token with N_mm
    attend: float  # attending to one token of context
    prompt: float  # one prompt token through the body
    prompt_head: float  # the one token of a prompt that needs logits
    prompt_attend: float  # per squared prompt token
    step: float  # launch and scheduling
    request: float  # per running request
    api: float  # per request, outside the batch


def step_cost(model: Model, deployment: Deployment) -> StepCost:
    """The coefficients, from bytes over BW MBU and FLOP over F MFU (analytic.md §3)."""
    count = parameters(model)
    gpu, speed = deployment.gpu, deployment.speed
    bytes_per_s = gpu.bandwidth * deployment.mbu * speed
    decode = gpu.flops["bf16"] * deployment.mfu_decode * speed
    prefill = gpu.flops["bf16"] * deployment.mfu_prefill * speed
    attention = model.layers * model.heads * model.head_dim  # L n_q d
    return StepCost(
        weights=weight_bytes_per_step(model) / bytes_per_s,
        kv=kv_bytes_per_token(model) / bytes_per_s,
        token=2 * count.matmul / decode,
        attend=4 * attention / decode,
        prompt=2 * count.body / prefill,
        prompt_head=2 * count.head / prefill,
        prompt_attend=2 * attention / prefill,
        step=(deployment.o_layer * model.layers + deployment.o_step) / speed,
        request=deployment.o_req / speed,
        api=deployment.o_api / speed,
    )


def decode_time(cost: StepCost, B: float, context: float) -> float:
    """One decode step of B requests that hold `context` tokens between them; seconds.

    t_dec = max(mem, comp) + o;  mem = (W + (context + B) kv) / (BW MBU),
    comp = (2 N_mm B + 4 L n_q d context) / (F MFU).
    """
    memory = cost.weights + (context + B) * cost.kv
    compute = cost.token * B + cost.attend * context
    return max(memory, compute) + cost.step + cost.request * B


def prefill_time(cost: StepCost, P: float) -> float:
    """What one prompt of P tokens adds to the step that admits it; seconds.

    t_pre = max((2 body P + 2 head + 2 L n_q d P²) / (F MFU), W / (BW MBU)).
    """
    return max(cost.prompt * P + cost.prompt_head + cost.prompt_attend * P * P, cost.weights)


def kv_capacity(model: Model, deployment: Deployment) -> int:
    """Tokens of KV cache, in whole blocks; what the server publishes beats the estimate."""
    tokens = deployment.kv_tokens
    if tokens is None:
        gpu, weights = deployment.gpu, weight_bytes(model)
        room = gpu.memory_bytes * deployment.gpu_memory_utilization
        room -= weights + deployment.activations + deployment.nontorch
        if room <= 0:
            fact = f"{model.name} ({weights / 1e9:.0f} GB of weights) does not fit on one {gpu.key}"
            way_out = f"it has {gpu.memory_bytes / 1e9:.0f} GB: take a larger GPU or a smaller model"
            raise HarnessError(fact, place="--gpu", way_out=way_out)
        tokens = int(room / kv_bytes_per_token(model))
    return tokens // deployment.block_size * deployment.block_size


def caps(model: Model, deployment: Deployment, workload: Workload) -> dict[str, float | None]:
    """Limits on the batch by name; None where that one never binds.

    kv_memory: requests whose mean context fits, in whole blocks. max_num_seqs: the scheduler's. compute: the
    batch at which the FLOP roof takes over from memory traffic; it bends the curve, the others stop it.
    """
    capacity = kv_capacity(model, deployment)
    longest = workload.input_tokens + workload.output_tokens
    if longest > capacity:
        fact = f"a request of {longest:.0f} tokens does not fit into a KV cache of {capacity}"
        raise HarnessError(fact, place="--input-tokens", way_out="ask for shorter requests")
    blocks = math.ceil(workload.context / deployment.block_size)
    cost, ctx = step_cost(model, deployment), workload.context
    slope = cost.token + cost.attend * ctx - (ctx + 1) * cost.kv
    return {
        "kv_memory": capacity // deployment.block_size // blocks,
        "max_num_seqs": deployment.max_num_seqs,
        "compute": cost.weights / slope if slope > 0 else None,
    }


def batch_cap(limits: dict[str, float | None]) -> float:
    """Requests that can run at once: the least of the caps that stop the batch, which compute does not."""
    return min(limit for name, limit in limits.items() if limit is not None and name != "compute")


class Point(msgspec.Struct, frozen=True):
    """The steady state at one concurrency: seconds and output tokens/s."""

    batch: float
    throughput: float
    itl: float
    ttft: float


def steady_state(cost: StepCost, workload: Workload, C: float, cap: float) -> Point:
    """Closed loop of C users on a batch of at most `cap`; throughput has no jump where the queue begins.

    X = B / (t_dec(B) + B/G t_pre + API/G) with B = min(C, cap); TTFT follows by Little's law,
    C G / X - (G - 1) ITL, which is t_dec + t_pre + API below the cap and rises by G/X per user above it.
    """
    P, G = workload.input_tokens, workload.output_tokens
    B = min(C, cap)
    t_dec, t_pre = decode_time(cost, B, B * workload.context), prefill_time(cost, P)
    X = B / (mixed_step(B, G, t_dec, t_pre) + cost.api / G)
    # While one request decodes its other G - 1 tokens, the B - 1 others each put one prefill in its way.
    itl = t_dec + (B - 1) / (G - 1) * t_pre if G > 1 else t_dec
    return Point(B, X, itl, C * G / X - (G - 1) * itl)


def predict(
    model: Model,
    deployment: Deployment,
    workload: Workload,
    levels: list[int],
    *,
    simulated: bool = False,
) -> Prediction:
    """The whole prediction, for summary.json and for the manifest before any load.

    low and high change MBU, MFU and the layer overhead together (0.6-0.9, 0.3-0.6, 50-0 µs); ITL and TTFT
    are of the middle.
    """
    if deployment.gpus != 1:
        fact = f"{deployment.gpus} GPUs are not predicted yet"
        raise HarnessError(fact, place="--gpus", way_out="leave --gpu out, or say --gpus 1 for one replica")
    limits = caps(model, deployment, workload)
    binding, hinge = min(
        ((name, limit) for name, limit in limits.items() if limit is not None), key=lambda pair: pair[1]
    )
    cap = batch_cap(limits)
    low, mid, high = (step_cost(model, each) for each in _band(deployment))

    def band(C: float) -> Band:
        return Band(*(steady_state(cost, workload, C, cap).throughput for cost in (low, mid, high)))

    points = {C: steady_state(mid, workload, C, cap) for C in levels}
    return Prediction(
        model=model.name,
        gpu=deployment.gpu.key,
        gpus=deployment.gpus,
        simulated=simulated,
        input_tokens=workload.input_tokens,
        output_tokens=workload.output_tokens,
        binding_cap=binding,
        caps=limits,
        plateau_tokens_per_s=band(cap),
        single_stream_tokens_per_s=band(1),
        hinge_concurrency=hinge,
        levels=[
            PredictedLevel(concurrency=C, output_tokens_per_s=band(C), itl_s=point.itl, ttft_s=point.ttft)
            for C, point in points.items()
        ],
        assumptions=_assumptions(model, deployment),
    )


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


def _assumptions(model: Model, deployment: Deployment) -> dict[str, float]:
    return {
        "mbu": deployment.mbu,
        "mfu_prefill": deployment.mfu_prefill,
        "mfu_decode": deployment.mfu_decode,
        "layer_overhead_s": deployment.o_layer,
        "step_overhead_s": deployment.o_step,
        "request_overhead_s": deployment.o_req,
        "api_overhead_s": deployment.o_api,
        "gpu_memory_utilization": deployment.gpu_memory_utilization,
        "kv_tokens": kv_capacity(model, deployment),
        "weight_bytes": weight_bytes(model),
        "kv_bytes_per_token": kv_bytes_per_token(model),
        "speed": deployment.speed,
    }
