"""One step of a serving engine, in seconds: what is read, what is computed, what goes over links, and the rest.

A model on a deployment becomes coefficients once (`step_cost`); from these a step of any batch follows
(`decode_time`), what a prompt adds to the step that admits it (`prefill_time`), and a step of both (`mixed_time`). The
closed form and the step machine both use these functions, so they can only differ in how requests meet.

Letters as in predict.roofline.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from harness.data.manifest import RoofWindow
from harness.predict.deployment import FRONT_ENDS, Deployment, check, kv_share
from harness.predict.model import Model, expert_hits, kind, parameters, weights

_B_ACT = 2  # bytes of an activation on a link
_LINEAR = 1e-13  # share of a step time that rounding may bend
# Set on published curves, docs/predict.md; the dense one is a published fit on an H100.
_LAYER_OVERHEAD = {"dense": 32e-6, "experts": 50e-6, "latent attention": 70e-6}  # seconds per layer and step
_SHOWN = 1.1  # steps until the client has a first token; set on published open loops, docs/predict.md
_INT4_READ = 0.6  # share of the bandwidth, where 4-bit weights are expanded as they are read


class StepCost(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds per unit of work, of one model on one deployment: the coefficients of every step time."""

    weights: float  # reading once all that every step reads
    kv: float  # reading one token's KV, in layers without a window
    token: float  # multiplying one token with N_mm
    attend: float  # attending to one token of context
    prompt: float  # one prompt token through the body
    prompt_head: float  # the one token of a prompt that needs logits
    prompt_attend: float  # per squared prompt token
    step: float  # launch and scheduling
    request: float  # per running request
    api: float  # per request, outside the batch
    token_in: float = 0.0  # taking in one prompt token, outside the batch
    first: float = 0.0  # steps that a first token waits if its prompt is more than CUDA graphs hold
    graphed: int = 0  # prompt tokens that these hold
    together: float = 0.0  # share of a batch that meets
    expert: float = 0.0  # reading one expert of every layer that has any
    experts: int = 0  # E
    per_token: int = 0  # k
    sharing: float = 1.0  # replicas whose tokens meet at the same experts
    windows: tuple[RoofWindow, ...] = ()
    state: float = 0.0  # reading and writing one request's constant states
    sync: float = 0.0  # links: latency of one pass
    sync_token: float = 0.0  # links: one token of a pass
    stages: int = 1  # stages of the pipeline
    micro: int = 1  # batches that are in it at once
    hop: float = 0.0  # links: latency from the first stage to the last
    verified: int = 1  # tokens of a request in one step: one more than are drafted
    accepted: float = 1.0  # tokens that a request gains by one step
    draft: float = 0.0  # drafting, a step
    cached: float = 0.0  # share of prompt tokens that need no prefill
    fused: float = 0.0  # w
    chunk: float = math.inf  # prompt tokens of one pass


def step_cost(model: Model, deployment: Deployment) -> StepCost:
    """Return the seconds that parts of a replica's step take (reading weights, KV, a token's FLOP, links, overhead).

    From bytes over BW MBU, FLOP over F MFU and bytes over links (docs/method.md, The step). Tensor parallelism divides
    all but what each rank stores itself, latency and overhead.
    """
    check(model, deployment)
    card, tp, ep, speed = deployment.gpu, deployment.tp, deployment.ep, deployment.speed
    bytes_per_s = card.bandwidth * deployment.mbu * speed
    weights_per_s = bytes_per_s * (_INT4_READ if model.stored.method == "int4" else 1.0)
    decode, prefill = deployment.mfu_decode * speed * tp, deployment.mfu_prefill * speed * tp
    stored = weights(model)
    always = stored.always if deployment.weight_bytes is None else deployment.weight_bytes
    head = parameters(model).head * 2 / card.flops["bf16"]
    mixing = _mixing(model, deployment)
    everywhere = [group for group in mixing if not group.tokens]
    sync, sync_token = _links(model, deployment)
    front = FRONT_ENDS[deployment.engine]
    a, gamma = deployment.acceptance, deployment.draft_tokens
    return StepCost(
        weights=always / tp / weights_per_s,
        kv=sum(each.kv for each in everywhere),
        token=(_flop_seconds(model, deployment, deployment.experts_decode) + head) / decode,
        attend=sum(each.attend for each in everywhere),
        prompt=_flop_seconds(model, deployment, deployment.experts_prefill) / prefill,
        prompt_head=head / prefill,
        prompt_attend=sum(each.prompt_attend for each in everywhere),
        step=(layer_overhead(model, deployment) * model.layers + deployment.o_step) / speed,
        request=(deployment.o_req + (tp - 1) * deployment.o_rank) / speed,
        api=deployment.o_api / speed,
        token_in=deployment.o_token / speed,
        first=front.steps if deployment.o_first is None else deployment.o_first,
        graphed=front.graphed,
        together=front.together if deployment.together is None else deployment.together,
        expert=stored.expert / max(tp, ep) / weights_per_s,
        experts=stored.experts,
        per_token=stored.per_token,
        sharing=max(1.0, ep / tp),
        windows=tuple(group for group in mixing if group.tokens),
        state=sum(2 * group.layers * group.state for group in model.attention) / tp / bytes_per_s,
        sync=sync / speed,
        sync_token=sync_token / speed,
        stages=deployment.pp,
        micro=deployment.micro_batches or deployment.pp,
        hop=(deployment.pp - 1) * deployment.link_latency / speed,
        verified=gamma + 1,
        accepted=sum(a**i for i in range(gamma + 1)),  # (1 - α^(γ+1)) / (1 - α), also at α = 1
        draft=gamma * deployment.draft_s / speed,
        cached=deployment.prefix_hit,
        fused=deployment.fused,
        chunk=deployment.max_num_batched_tokens or math.inf,
    )


def _mixing(model: Model, deployment: Deployment) -> list[RoofWindow]:
    """Return the costs of attention, in seconds a token: for each kind of layer its KV reads and its FLOP.

    A window of 0 tokens is unlimited. Layers that choose tokens have a second entry: all keys are read and compared in
    8 bits.
    """
    card, speed, tp = deployment.gpu, deployment.speed, deployment.tp
    bytes_per_s = card.bandwidth * deployment.mbu * speed
    decode, prefill = deployment.mfu_decode * speed * tp, deployment.mfu_prefill * speed * tp
    small = card.flops.get("fp8", card.flops["bf16"])
    mixing = []
    for each in model.attention:
        kv = each.layers * each.kv * model.kv_bits / 8 * kv_share(each.kv_heads, tp) / bytes_per_s
        attend, pairs = (each.layers * flop / card.flops["bf16"] for flop in (each.attend, each.prefill))
        # seconds per squared prompt token: half of all pairs are causal
        causal = 1 if each.both_ways and not each.window else 2
        mixing.append(RoofWindow(each.window or 0, kv, attend / decode, pairs / causal / prefill))
        if each.index:
            kept, compared = each.layers * each.index.kept / bytes_per_s, each.layers * each.index.attend / small * tp
            mixing.append(RoofWindow(0, kept, compared / decode, compared / prefill / 2))
    return mixing


def layer_overhead(model: Model, deployment: Deployment) -> float:
    """Return seconds that launching the kernels of one layer takes in every step, as stated or by the kind of model."""
    return _LAYER_OVERHEAD[kind(model)] if deployment.o_layer is None else deployment.o_layer


def _flop_seconds(model: Model, deployment: Deployment, of_experts: float) -> float:
    """Return the seconds that one token takes in the layers' matrices at one GPU's peak, each part in its precision.

    Storage is not compute: what the card has no units for is expanded to 16 bits and runs under that roof. Experts
    reach `of_experts` of what other matrices do.
    """
    peaks, stored = deployment.gpu.flops, model.stored
    parts = {
        "attention": sum(group.layers * group.parameters for group in model.attention),
        "dense": model.dense,
    }
    plain = 0
    if mix := model.experts:
        parts |= {"experts": mix.layers * mix.per_token * mix.each, "shared": mix.layers * mix.shared}
        plain = mix.layers * mix.router
    seconds = 2 * plain / peaks["bf16"]
    for part, count in parts.items():
        reached = of_experts if part == "experts" else 1.0
        per_flop = sum(share / peaks.get(compute, peaks["bf16"]) for share, _, compute in stored.shares(part))
        seconds += 2 * count * per_flop / reached
    return seconds


def _links(model: Model, deployment: Deployment) -> tuple[float, float]:
    """Return (a, b): communication of a pass over t tokens between GPUs takes a + b t seconds.

    TP: two all-reduces a layer, 2 L (a_ar + 2 (TP-1)/TP · t h b_act / link). EP over several replicas: a layer with
    experts has two all-to-alls in place of the second, each of which carries every token once for each of its k
    experts. Within one replica every rank has all tokens, and what its experts made of them is reduced as without EP
    (vLLM, fused_moe/config.py: use_all2all_kernels needs dp_size > 1).
    """
    tp, ep, a = deployment.tp, deployment.ep, deployment.link_latency
    link = (deployment.gpu.link or math.inf) * deployment.link_share
    sparse = model.experts.layers if model.experts and ep > tp else 0
    reduces = 2 * model.layers - sparse if tp > 1 else 0
    token = model.hidden * _B_ACT / link
    latency, per_token = reduces * a, reduces * 2 * (tp - 1) / tp * token
    if sparse and model.experts:
        latency += 2 * sparse * a
        per_token += 2 * sparse * model.experts.per_token * (ep - 1) / ep * token / tp
    return latency, per_token


def taking_in(cost: StepCost, P: float, cached: float, t_dec: float) -> float:
    """Return the seconds that a first token waits besides its own step: tokenising, and some steps of `t_dec`.

    Its prompt is tokenised, and it is shown with the next step. A prompt of more than CUDA graphs hold is launched
    kernel by kernel, which takes as long as several steps.
    """
    return cost.token_in * P + first_steps(cost, P, cached) * t_dec


def first_steps(cost: StepCost, P: float, cached: float) -> float:
    """Return the steps of decoding that a first token waits besides its own."""
    return cost.first if P - cached > cost.graphed else min(cost.first, _SHOWN)


def decode_time(cost: StepCost, B: float, context: float) -> float:
    """Return the time of a decode step of B requests that hold `context` tokens between them; seconds.

    t_dec = max(mem, comp) + comm + o;  mem = (W(B) + (Σ min(context, window) + B) kv) / (BW MBU),
    comp = (2 N_mm B + 4 L n_q d context) / (F MFU). A pipeline of pp stages takes m batches through
    m + pp - 1 stages of time; a speculating server verifies γ + 1 tokens a request after drafting γ.
    """
    found = work_of(cost, B, context)
    return found.all(max(found.memory, found.compute))


class Work(msgspec.Struct, frozen=True):
    """Seconds of one decode step by cause, for one batch of those in the pipeline."""

    weights: float
    kv: float
    compute: float
    links: float
    overhead: float
    rounds: float  # passes that a step takes, in units of one pass through all stages
    after: float  # once a step

    @property
    def memory(self) -> float:
        return self.weights + self.kv

    def all(self, roof: float, links: float = 0.0) -> float:
        """Return the step, where reading or computing takes `roof` and the links so much longer."""
        return (roof + self.links + links + self.overhead) * self.rounds + self.after


def work_of(cost: StepCost, B: float, context: float) -> Work:
    """Return the seconds by cause of a decode step of B requests that hold `context` tokens between them.

    In a pipeline the figures are those of one of its micro-batches; `rounds` says how many passes the step takes.
    """
    m = max(1.0, min(cost.micro, B))
    b, attended, tokens = B / m, context / m, B / m * cost.verified
    read = cost.weights
    if cost.experts:
        read += cost.expert * expert_hits(cost.experts, cost.per_token, tokens * cost.sharing)
    kv, attend = (attended + tokens) * cost.kv, cost.verified * attended * cost.attend
    for window in cost.windows:
        seen = min(attended, b * window.tokens)
        kv += (seen + tokens) * window.kv
        attend += cost.verified * seen * window.attend
    return Work(
        weights=read,
        kv=kv + b * cost.state,
        compute=tokens * cost.token + attend,
        links=cost.sync + tokens * cost.sync_token,
        overhead=cost.step + b * cost.request,
        rounds=(m + cost.stages - 1) / cost.stages,
        after=cost.hop + cost.draft,
    )


def prefill_time(cost: StepCost, P: float, cached: float = 0.0, batch: float = 1.0, decoding: float = 0.0) -> float:
    """Return the seconds that a prompt of P tokens (`cached` of them have KV) adds to the step that computes it.

    t_pre = max((2 body P' + 2 head + 2 L n_q d (P² - cached²)) / (F MFU), W / (BW MBU)) + comm(P'), P' = P - cached.
    In chunks, W is read once for each. Of W counts only what the `decoding` requests of the same step do not read
    anyway. In a pipeline it shares the bubbles of a `batch` of requests.
    """
    passes = max(1, math.ceil((P - cached) / cost.chunk))
    m = max(1.0, min(cost.micro, batch))
    rounds = (m + cost.stages - 1) / (m * cost.stages)
    roof = max(prefill_compute(cost, P, cached), passes * weights_read(cost, (P - cached) / passes, decoding))
    return (roof + passes * cost.sync + (P - cached) * cost.sync_token) * rounds + cost.hop


def pass_time(cost: StepCost, texts: Sequence[tuple[float, float]], requests: float) -> float:
    """Return the seconds of an encoder's pass over `texts`, (number, tokens of each), of `requests`; no launch time.

    max(Σ n · computing P tokens, W) + comm: the weights are read once for all. In a pipeline it is cut in m parts.
    """
    tokens, texts_together = sum(n * P for n, P in texts), sum(n for n, _ in texts)
    roof = max(sum(n * prefill_compute(cost, P, cost.cached * P) for n, P in texts), weights_read(cost, tokens))
    m = max(1.0, min(cost.micro, texts_together))
    links = cost.sync + tokens * (1 - cost.cached) * cost.sync_token
    return (roof + links) * (m + cost.stages - 1) / (m * cost.stages) + cost.hop + requests * cost.request


def prefill_compute(cost: StepCost, P: float, cached: float) -> float:
    seconds = cost.prompt * (P - cached) + cost.prompt_head + cost.prompt_attend * (P * P - cached * cached)
    for window in cost.windows:
        seconds += window.prompt_attend * (_twice_pairs(P, window.tokens) - _twice_pairs(cached, window.tokens))
    return seconds


def _twice_pairs(P: float, window: float) -> float:
    """Return twice the causal pairs of P tokens that each attend to `window` tokens before; P² where it never cuts."""
    return P * P if window >= P else 2 * P * window - window * window


def weights_read(cost: StepCost, tokens: float, decoding: float = 0.0) -> float:
    """Return the seconds to read the weights that a pass of `tokens` needs beyond those read for `decoding` others.

    A number below 1 of these is one, for that share of the time.
    """

    def hit(n: float) -> float:
        return cost.expert * expert_hits(cost.experts, cost.per_token, n) if cost.experts else 0.0

    alone, others = cost.weights + hit(tokens), max(1.0, decoding)
    shared = min(1.0, max(0.0, decoding))
    return (1 - shared) * alone + shared * (hit(tokens + others) - hit(others))


def mixed_time(
    cost: StepCost, B: int, context: int, chunks: Sequence[tuple[int, int]], joined: int, running: int
) -> float:
    """Return the seconds of a step in which B requests decode (`joined` for the first time) beside prompt chunks.

    t_dec + Σ t_pre, of which the share w that can hide behind the decoding of the B - joined others becomes
    max(mem, comp + Σ comp_pre), where that is less.
    """
    if not chunks:
        return decode_time(cost, B, context)
    serial = (decode_time(cost, B, context) if B else cost.step) + _prompts_time(cost, chunks, running, B)
    w = cost.fused * (B - joined) / B if B else 0.0
    if not w:
        return serial
    work, m = work_of(cost, B, context), max(1.0, min(cost.micro, B))
    computed = work.compute + sum(prefill_compute(cost, end, start) for start, end in chunks) / m
    carried = sum(end - start for start, end in chunks) * cost.sync_token / m
    return (1 - w) * serial + w * min(serial, work.all(max(work.memory, computed), carried))


def _prompts_time(cost: StepCost, chunks: Sequence[tuple[int, int]], running: int, decoding: int) -> float:
    """Return the seconds of a step's prompt chunks: one after the other, or in one pass with a token budget."""
    if len(chunks) == 1 or cost.chunk == math.inf:
        return sum(prefill_time(cost, end, start, running, decoding) for start, end in chunks)
    tokens = sum(end - start for start, end in chunks)
    m = max(1.0, min(cost.micro, running))
    roof = max(sum(prefill_compute(cost, end, start) for start, end in chunks), weights_read(cost, tokens, decoding))
    return (roof + cost.sync + tokens * cost.sync_token) * (m + cost.stages - 1) / (m * cost.stages) + cost.hop


def times_alike(cost: StepCost, B: int, context: int, n: int) -> tuple[int, float, float]:
    """Return (m, first, growth): m ≤ n decode steps whose times are an arithmetic series, in seconds.

    A step time is convex in the context but where a window is full, so three points on a line mean that all are.
    """
    for window in cost.windows:
        full = B * window.tokens
        if context < full:
            n = min(n, (full - context) // B + 1)
    first = decode_time(cost, B, context)
    while n > 1:
        last = decode_time(cost, B, context + (n - 1) * B)
        middle = decode_time(cost, B, context + (n - 1) * B / 2)
        if n == 2 or abs(first + last - 2 * middle) <= _LINEAR * last:
            return n, first, (last - first) / (n - 1)
        n = (n + 1) // 2
    return 1, first, 0.0


def series(first: float, growth: float, n: int) -> float:
    """Return the sum of n terms.

    >>> series(1.0, 0.5, 3)
    4.5
    """
    return n * first + growth * n * (n - 1) / 2
