"""Where and how a model is served: which cards, split in which way, and whether it fits.

A replica is tp · pp GPUs: tensor parallelism cuts every matrix, pipeline parallelism cuts the stack of layers. dp
replicas serve in parallel. With expert parallelism a GPU has whole experts instead of slices of all, over one replica
(ep = tp) or over all of them (ep = tp · dp). What does not divide is refused, with what would.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import msgspec

from harness.base.errors import HarnessError
from harness.predict.catalog import Gpu, among, constants
from harness.predict.model import Model, kind, kv_bytes, weight_bytes, weights
from harness.predict.quantisation import Quantisation

# Of prefill, docs/method.md, The deployment; by how the card's key begins; all Hoppers as the H100.
_USUAL_MFU = {
    "h100": 0.45, "h200": 0.45, "h20-": 0.45, "gh200": 0.45, "h800": 0.45, "l40": 0.32, "host": 0.6,
    "b200": 0.42, "gb200": 0.42, "b300": 0.42, "gb300": 0.42,  # set on published curves, docs/predict.md
}  # fmt: skip
# A host's rate is that of measured matrix products, about three quarters of a peak: 0.6 of it are 0.45 of the peak.
_OTHER_MFU = 0.38  # an A100's
_GIB = 2**30
_LARGE = 70 * _GIB  # memory from which vLLM takes larger defaults
_WORKSPACES = 0.2 * _GIB  # memory of kernels
# What vLLM's sampler holds of a full batch while it measures its memory; bytes a logit. The first is of five models of
# one to two GPUs with 0.11 (llm-d-benchmark, config_explorer/empirical-vllm-memory-results.md: 38.4 to 39.6), the other
# of 0.25 on an H100 (results/live-h100-bf16).
SAMPLER, LEAN_SAMPLER = 38.5, 6.0
_GRAPHS = 0.7 * _GIB  # CUDA graphs, if there are experts; same source: 0.39 and 1.03, dense models none
_TILE = 256  # columns: expert weights in mxfp4 are padded to whole tiles (same source: gpt-oss takes 1.067 of its own)
# Times slower and faster within which about four in five published levels lie, by the kind of model.
_SPREAD = {"dense": (1.15, 1.22), "experts": (1.22, 1.3), "latent attention": (1.22, 1.25)}
_OF_ENGINE = {
    ("latent attention", "trtllm"): (1.35, 1.48),  # two releases lie 40 % apart at the same load
    ("dense", "sglang"): (1.15, 1.2),
}
_UNTESTED = 1.6  # times slower still if the constants are a guess: other vendors, older cards, this machine's cores
MEMORY = 1.25 * 2**30  # bytes that a GPU has less or more for KV than estimated, docs/predict.md
_LARGEST = 64  # GPUs of one replica that a way out proposes


class FrontEnd(NamedTuple):
    """How an engine takes a request in: what a first token waits for besides its own step."""

    steps: float  # where the prompt is computed without CUDA graphs
    together: float  # share of the batch whose prompts it waits for half of
    graphed: int = 0  # prompt tokens that CUDA graphs hold
    reserves: bool = False  # a request begins once its whole answer fits into the KV cache
    overlaps: bool = False  # requests are scheduled while the step before runs, so that they add nothing to a step


# Set on published curves, docs/predict.md, Waiting times.
FRONT_ENDS = {
    "vllm": FrontEnd(6.0, 0.12, graphed=512),  # its largest one (config/compilation.py, max_cudagraph_capture_size)
    "trtllm": FrontEnd(11.0, 0.12, reserves=True),  # its CapacitySchedulerPolicy, GUARANTEED_NO_EVICT by default
    "sglang": FrontEnd(8.0, 0.7, overlaps=True),  # its scheduler since 0.4 (lmsys.org/blog/2024-12-04-sglang-v0-4)
}


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how a model is served: what the prediction assumes and the simulated endpoint obeys."""

    gpu: Gpu
    gpus: int = 1
    mbu: float = 0.8
    mfu_prefill: float = 0.45
    mfu_decode: float = 0.45
    o_layer: float | None = None  # seconds per layer and step; None: by the kind of model, predict.step
    o_step: float = 126e-6  # seconds per step; with the next a published fit on H100
    o_req: float = 4.4e-6  # seconds per running request and step
    o_rank: float = 4.8e-6  # the same for each further rank of TP; set on published curves, docs/predict.md
    engine: str = "vllm"  # a key of FRONT_ENDS
    o_token: float = 1e-5  # seconds per prompt token of the process that takes requests in: tokenising and scheduling
    o_first: float | None = None  # steps that a first token waits; None: by the engine
    together: float | None = None  # the share that meets; None: by the engine
    o_api: float = 0.0  # seconds per request outside the batch: HTTP, tokenizer, the client's turnaround
    gpu_memory_utilization: float = 0.9
    activations: float | None = None  # bytes a replica; None: by the model and the largest step
    sampler_bytes: float = SAMPLER  # a logit of a full batch; a rank of TP holds its share
    nontorch: float | None = None  # bytes a GPU; None: 0.15 GiB alone, 0.6 GiB among others
    max_num_seqs: int = 256  # sequences of one replica; `deployment` has more on large cards
    block_size: int = 16  # tokens
    kv_tokens: int | None = None  # KV tokens of one replica that the server publishes; beats the estimate
    weight_bytes: float | None = None  # what a dense model really weighs, all of it read by every step
    speed: float = 1.0  # 4: the server's clock runs four times as fast; only simulations do that
    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    micro_batches: int | None = None  # micro-batches of a pipeline; None: one a stage
    link_latency: float = 15e-6  # seconds of one collective before its first byte: 10-20 µs
    experts_prefill: float = 0.42  # share of the MFU that experts reach: they are many small products
    experts_decode: float = 0.2
    link_share: float = 0.7  # share of the link's peak that collectives reach
    max_num_batched_tokens: int | None = None  # tokens of one step; None: no limit
    reserve: bool = False  # the engine keeps room for whole answers instead of preempting
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"  # who goes first; only simulations obey it
    prefix_caching: bool = False  # prompts that begin alike share blocks; only simulations obey it
    prefix_hit: float = 0.0  # share of prompt tokens whose KV is already there: h_p
    fused: float = 0.0  # w: share of steps in which prefill and decode run as one
    acceptance: float = 0.0  # speculative decoding: α, chance that a drafted token is right
    draft_tokens: int = 0  # γ, drafted a step
    draft_s: float = 0.0  # seconds to draft one


def deployment(gpu: Gpu, **figures: Any) -> Deployment:
    """Return a deployment with the MFU and the batch usual for that card; any field can be set.

    The number of GPUs follows from tp · pp · dp; where it is set and larger than tp · pp, replicas fill it. The card
    has the link that so many of them have. Raise HarnessError for a share outside 0 to 1, and for drafted tokens
    without their acceptance or the reverse.
    """
    usual = next((mfu for begin, mfu in _USUAL_MFU.items() if gpu.key.startswith(begin)), _OTHER_MFU)
    one = figures.get("tp", 1) * figures.get("pp", 1)
    gpu_count = figures.get("gpus")
    if "dp" not in figures and gpu_count is not None and one > 1 and gpu_count % one == 0:
        figures["dp"] = gpu_count // one
    figures.setdefault("gpus", one * figures.get("dp", 1))
    figures.setdefault("max_num_seqs", usual_sequences(gpu))
    front = FRONT_ENDS[figures.get("engine", "vllm")]
    figures.setdefault("reserve", front.reserves)
    if front.overlaps:
        figures = {"o_req": 0.0, "o_rank": 0.0, **figures}
    gpu = among(gpu, max(figures.get("tp", 1), figures.get("ep", 1)))
    deployment = Deployment(gpu=gpu, **{"mfu_prefill": usual, "mfu_decode": usual, **figures})
    _check_shares(deployment)
    if deployment.prefix_caching and deployment.prefix_hit:
        fact = "a prefix cache has its own share of hits"
        raise HarnessError(fact, place="--prefix-hit", way_out="leave it out, or --prefix-caching")
    if deployment.draft_tokens < 0:
        fact = f"{deployment.draft_tokens} drafted tokens are too few"
        raise HarnessError(fact, place="--draft-tokens", way_out="give 0 or more")
    if deployment.draft_tokens and "acceptance" not in figures:
        fact = f"{deployment.draft_tokens} drafted tokens, but not the share of them that is accepted"
        raise HarnessError(fact, place="--draft-tokens", way_out="add --acceptance")
    for place, figure in (("--acceptance", deployment.acceptance), ("--draft-time", deployment.draft_s)):
        if figure and not deployment.draft_tokens:
            raise HarnessError("no tokens are drafted", place=place, way_out="add --draft-tokens, how many a step")
    return deployment


def _check_shares(deployment: Deployment) -> None:
    """Raise HarnessError for a share outside 0 to 1 (MBU and MFU of a machine measured here may be above)."""
    shares = [
        ("--prefix-hit", deployment.prefix_hit),
        ("--fused", deployment.fused),
        ("--acceptance", deployment.acceptance),
        ("--gpu-memory-utilization", deployment.gpu_memory_utilization),
    ]
    if deployment.gpu.certainty != "measured":
        reached = (deployment.mfu_prefill, deployment.mfu_decode)
        shares += [("--mbu", deployment.mbu), *(("--mfu", mfu) for mfu in reached)]
    for place, share in shares:
        if not 0 <= share <= 1:
            raise HarnessError(f"a share of {share:g}", place=place, way_out="give one between 0 and 1")


def check(model: Model, deployment: Deployment) -> None:
    """Raise HarnessError if the model cannot be split by TP, PP, DP and EP like this; the way out says what can."""
    tp, pp, dp, ep = deployment.tp, deployment.pp, deployment.dp, deployment.ep
    if min(tp, pp, dp, ep) < 1:
        raise HarnessError("a split into less than 1 part", place="--tp, --pp, --dp, --ep", way_out="give at least 1")
    if deployment.gpus != tp * pp * dp:
        fact = f"{deployment.gpus} GPUs, but tp × pp × dp is {tp * pp * dp}"
        way_out = f"give --tp {deployment.gpus} for one replica over all, or --dp {deployment.gpus} for replicas"
        raise HarnessError(fact, place="--gpus", way_out=way_out if tp * pp * dp == 1 else "make them equal")
    if tp not in divisors(model):
        fact = f"{tp} GPUs cannot share the {model.heads} heads of {model.name}"
        if model.heads % tp == 0:
            fact += f" with {model.kv_heads} of KV"
        possible = ", ".join(str(n) for n in divisors(model) if n <= _LARGEST)
        raise HarnessError(fact, place="--tp", way_out=f"these can: {possible}")
    if pp > model.layers:
        raise HarnessError(f"{pp} stages for {model.layers} layers", place="--pp", way_out=f"at most {model.layers}")
    if tp * pp * max(1, ep // max(tp, 1)) > 1 and deployment.gpu.link is None:
        card = deployment.gpu
        fact = (
            f"{card.key} has no link to others" if card.bridged is None else f"a link joins {card.bridged} {card.key}"
        )
        raise HarnessError(fact, place="--tp", way_out="give --dp for replicas that need none")
    if ep > 1:
        _check_experts(model, deployment)
    if deployment.weight_bytes is not None and model.experts:
        fact = f"the experts of {model.name} are not all read by every step"
        raise HarnessError(fact, place="--weight-bytes", way_out="leave it out, or give --dtype")


def _check_experts(model: Model, deployment: Deployment) -> None:
    """Raise HarnessError unless EP is TP or TP · DP and divides the model's experts."""
    tp, dp, ep = deployment.tp, deployment.dp, deployment.ep
    if model.experts is None:
        raise HarnessError(f"{model.name} has no experts to spread", place="--ep", way_out="leave --ep out")
    possible = [n for n in dict.fromkeys((tp, tp * dp)) if n > 1 and model.experts.count % n == 0]
    if ep not in possible:
        fact = f"{model.experts.count} experts over {ep} GPUs with tp {tp} and dp {dp}"
        way_out = f"these can: {', '.join(map(str, possible))}" if possible else "leave --ep out"
        raise HarnessError(fact, place="--ep", way_out=way_out)


def divisors(model: Model) -> list[int]:
    """Return the tensor-parallel sizes that share the model's heads evenly, and its KV heads or one to several."""
    whole = [n for n in range(1, model.heads + 1) if model.heads % n == 0]
    n_kv = model.kv_heads or 1
    return [n for n in whole if n_kv % n == 0 or n % n_kv == 0]


def in_a_node(gpu: Gpu) -> int:
    """Return the GPUs that the link of the table joins."""
    return 72 if gpu.key.startswith(("gb200", "gb300")) else 8  # racks of NVL72, and boards


# ---- memory ---------------------------------------------------------------------------------------------


def weights_per_gpu(model: Model, deployment: Deployment) -> float:
    """Return bytes of weights on one GPU: experts divided by the larger of TP and EP, all else by TP, both by PP.

    `weight_bytes` of the deployment, if given, is divided by TP and PP alone. Experts in MXFP4 are padded to whole
    tiles.
    """
    stored = weights(model)
    if deployment.weight_bytes is not None:
        return deployment.weight_bytes / deployment.tp / deployment.pp
    experts, tiles = stored.experts * stored.expert, 1.0
    if model.stored.method == "mxfp4":
        tiles = math.ceil(model.hidden / _TILE) * _TILE / model.hidden
    others = (stored.total - experts) / deployment.tp
    return (others + experts * tiles / max(deployment.tp, deployment.ep)) / deployment.pp


def kv_share(kv_heads: int, tp: int) -> float:
    """Return the share of a layer's KV on each of tp ranks: at least one head; 1 with no heads (latent attention).

    >>> kv_share(8, 4), kv_share(8, 16), kv_share(0, 8)
    (0.25, 0.125, 1.0)
    """
    return max(1, kv_heads / tp) / kv_heads if kv_heads else 1.0


def kv_per_gpu(model: Model, deployment: Deployment, context: float) -> float:
    """Return KV of one request of `context` tokens on one GPU, states included; bytes."""
    kept = 0.0
    for group in model.attention:
        of_tokens = group.kept(context, model.kv_bits) * kv_share(group.kv_heads, deployment.tp)
        kept += group.layers * (of_tokens + group.state / deployment.tp)
    return kept / deployment.pp


def room(model: Model, deployment: Deployment) -> float:
    """Return the bytes left for KV on one GPU beside weights, activations and libraries; negative: it does not fit.

    mem · util - W_total/TP - act/TP - nontorch (docs/method.md, The deployment).
    """
    nontorch = deployment.nontorch
    if nontorch is None:
        nontorch = (0.15 if deployment.tp * deployment.pp * deployment.ep == 1 else 0.6) * _GIB
    memory = deployment.gpu.memory_bytes * deployment.gpu_memory_utilization
    return memory - weights_per_gpu(model, deployment) - activations(model, deployment) - nontorch


def activations(model: Model, deployment: Deployment) -> float:
    """Return the bytes that one GPU needs for activations in the largest step, besides weights and KV.

    A step of T tokens holds their hidden states and what one layer makes of them, 2 bytes each: T (4 h + 3 f / TP), and
    with experts T (4 h + k (h + 3 f_e / TP)), whichever is more; or the logits of a full batch, `sampler_bytes` each.
    Workspaces, and with experts CUDA graphs, come on top. A deployment with a given amount divides that by TP instead.
    """
    if deployment.activations is not None:
        return deployment.activations / deployment.tp
    tp, h, mix = deployment.tp, model.hidden, model.experts
    tokens = deployment.max_num_batched_tokens or usual_batched_tokens(deployment.gpu)
    dense = model.layers - (mix.layers if mix else 0)
    widths = [model.dense / dense / h / tp] if dense else []
    if mix:
        widths.append(mix.per_token * (h + mix.each / h / tp))
    logits = deployment.max_num_seqs * model.vocab * deployment.sampler_bytes / tp if model.generates else 0
    return max(2 * tokens * (4 * h + max(widths, default=0.0)), logits) + _WORKSPACES + (_GRAPHS if mix else 0.0)


def usual_batched_tokens(gpu: Gpu) -> int:
    """Return the tokens of a step by vLLM's defaults for its API server (engine/arg_utils.py, 0.25)."""
    return 8192 if gpu.memory_bytes >= _LARGE else 2048


def usual_sequences(gpu: Gpu) -> int:
    """Return max_num_seqs by vLLM's defaults, from the same source.

    >>> from harness.predict.catalog import gpu
    >>> usual_sequences(gpu("h100-sxm")), usual_sequences(gpu("a100-80-sxm"))
    (1024, 256)
    """
    return 1024 if gpu.memory_bytes >= _LARGE and gpu.vendor == "NVIDIA" and not gpu.key.startswith("a100") else 256


def kv_capacity(model: Model, deployment: Deployment, context: float | None = None) -> int:
    """Return the tokens of KV cache of one replica, in whole blocks; what the server publishes beats the estimate.

    With windows or states a token's share depends on how long its request is: `context` tokens, or so long that every
    layer holds it (docs/method.md, The deployment). 0 if the model keeps nothing, HarnessError if it does not fit
    on the card.
    """
    tokens = deployment.kv_tokens
    if tokens is None:
        left = room(model, deployment)
        if left <= 0:
            raise _does_not_fit(model, deployment)
        if kv_bytes(model, 1) == 0:
            return 0
        each = kv_per_gpu(model, deployment, context) / context if context else kv_per_gpu(model, deployment, 1)
        tokens = int(left / each)
    return tokens // deployment.block_size * deployment.block_size


def _does_not_fit(model: Model, deployment: Deployment) -> HarnessError:
    """Return the error for weights that leave no room for KV, with what would fit: more GPUs, fp8, a smaller model."""
    card, size = deployment.gpu, weight_bytes(model) / 1e9
    one = deployment.tp * deployment.pp
    on = f"one {card.key}" if one == 1 else f"{one} × {card.key}"
    fact = f"{model.name} ({size:.0f} GB of weights) does not fit on {on}"
    way_out = f"{'it has' if one == 1 else 'each has'} {card.memory_bytes / 1e9:.0f} GB: "
    smallest = smallest_tp(model, deployment)
    larger = f"give --tp {smallest}" if smallest else "take a larger GPU"
    halved = msgspec.structs.replace(model, stored=Quantisation(method="fp8", bits=8.0, compute="fp8"))
    fewer = ", or --dtype fp8" if model.stored.bits == 16 and room(halved, deployment) > 0 else ""
    return HarnessError(fact, place="--gpu", way_out=f"{way_out}{larger}{fewer}, or take a smaller model")


def smallest_tp(model: Model, deployment: Deployment, tokens: float = 1.0) -> int | None:
    """Return the fewest GPUs of that card over which the model and one request of so many tokens fit; None up to 64."""
    card = deployment.gpu
    sizes = [n for n in divisors(model) if n == 1 or (n <= _LARGEST and among(card, n).link is not None)]
    return next((n for n in sizes if _fits(model, deployment, n, tokens)), None)


def _fits(model: Model, deployment: Deployment, tp: int, tokens: float) -> bool:
    dp = deployment.dp
    tried = msgspec.structs.replace(deployment, tp=tp, pp=1, ep=1, gpus=tp * dp)
    return room(model, tried) > kv_per_gpu(model, tried, tokens)


def blocks(deployment: Deployment, tokens: float) -> int:
    """Return KV blocks of so many tokens."""
    return math.ceil(tokens / deployment.block_size)


# ---- how far off a prediction may be -------------------------------------------------------------------


def spread(model: Model, deployment: Deployment) -> tuple[float, float]:
    """Return (times slower, times faster): how far the band's slow and fast ends lie from the middle prediction.

    Each step is as many times slower or faster as published levels of such models were (docs/predict.md). Constants of
    untested cards are those of others, so their slow end lies lower. Besides, a GPU has MEMORY bytes less or more
    for KV than its memory says; the slow end has a sampler that no rank shares, the fast one a lean one.
    """
    sort = kind(model)
    slower, faster = _OF_ENGINE.get((sort, deployment.engine), _SPREAD[sort])
    return slower * (_UNTESTED if constants(deployment.gpu) == "guess" else 1.0), faster


def slow(model: Model, deployment: Deployment) -> Deployment:
    """Return the slow end, with the memory of the middle."""
    return msgspec.structs.replace(deployment, speed=deployment.speed / spread(model, deployment)[0])


def fast(model: Model, deployment: Deployment) -> Deployment:
    """Return the fast end, with the memory of the middle."""
    return msgspec.structs.replace(deployment, speed=deployment.speed * spread(model, deployment)[1])
