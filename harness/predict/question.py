"""From what people type to every table of a prediction.

Names become a model, a card and a deployment here; the figures come from predict.roofline and predict.rules.
Arrivals and tails are predict.simulate's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from harness.data.prediction import Prediction, batch_cap
from harness.predict import claims, limits, roofline, rules, steady
from harness.predict.catalog import Gpu, gpu, model_config, short
from harness.predict.claims import Claim
from harness.predict.deployment import Deployment, deployment, slow
from harness.predict.limits import ThroughputLimit
from harness.predict.model import (
    Model,
    kv_bytes,
    model,
    must_fit_context,
    parameters,
    weight_bytes,
    weight_bytes_per_step,
)
from harness.predict.roofline import Roofline
from harness.predict.step import fastest, prefill_time, step_cost
from harness.spec.work import MeanLengths, Mixture, means

LEVELS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What to predict: names as people write them, tokens, users, and figures of the Deployment by their own names."""

    model: str  # a shipped name, a config.json, or its folder
    name: str = ""  # what to call it; "": as `model` does
    gpu: str | Gpu
    input_tokens: float
    output_tokens: float
    inputs: int = 1  # texts of a request, where nothing is decoded
    mixture: Mixture = ()  # where requests differ: their lengths, of which the two are the means
    levels: Sequence[int] = LEVELS
    dtype: str = "auto"
    kv_dtype: str = "auto"
    slo: Mapping[str, float] = {}  # seconds by limit, like {"ttft_p99": 2.0}
    price: float | None = None  # USD per GPU-hour
    peak_flops: float | None = None  # what the operator takes for the card's peak
    figures: Mapping[str, Any] = {}  # tp, pp, dp, ep, gpus, max_num_seqs, mbu, prefix_hit, …


class RuleComparison(msgspec.Struct, frozen=True):
    """A rule of thumb and the whole model's figure for the same thing; None where that one has no such limit."""

    name: str
    formula: str
    unit: str
    rule: float
    whole: float | None


class PredictionResult(msgspec.Struct, frozen=True, kw_only=True):
    """The prediction with all its tables."""

    prediction: Prediction
    limits: list[ThroughputLimit]
    rules: list[RuleComparison]
    frontier: list[tuple[float, float, float]]  # (users, tok/s a user, tok/s a GPU)
    roof: Roofline
    claims: list[Claim]  # unsourced ones whose condition is true


def setup(question: Question) -> tuple[Model, Deployment, MeanLengths]:
    """Return the model, its deployment, and the mean request."""
    name = question.name or short(question.model)
    made = model(model_config(question.model, "--model"), name, dtype=question.dtype, kv_dtype=question.kv_dtype)
    card = gpu(question.gpu) if isinstance(question.gpu, str) else question.gpu
    alike = MeanLengths(question.input_tokens, question.output_tokens, inputs=question.inputs)
    mean = means(question.mixture or alike)
    if not made.generates:
        mean = MeanLengths(mean.input_tokens, 0.0, inputs=mean.inputs)
    must_fit_context(made, _longest(question, made))
    return made, deployment(card, **question.figures), mean


def _longest(question: Question, made: Model) -> float:
    """Return the tokens of the longest request, prompt and answer."""
    each: Sequence[tuple[float, float]] = question.mixture or [(question.input_tokens, question.output_tokens)]
    return max(P + made.generates * G for P, G in each)


def predict(question: Question) -> Prediction:
    """Return the prediction alone."""
    return _of_setup(question, *setup(question))


def _of_setup(question: Question, made: Model, where: Deployment, mean: MeanLengths) -> Prediction:
    """Return the prediction for what `setup` returned: of the mixture where there is one, else of the mean request."""
    return roofline.predict(
        made,
        where,
        question.mixture or mean,
        question.levels,
        slo=question.slo or None,
        price=question.price,
        notes=_notes(question, made, where, mean),
    )


def notes(question: Question) -> list[str]:
    """Return the notes that apply even where there is no prediction because the model does not fit."""
    return _notes(question, *setup(question))


def _notes(question: Question, made: Model, where: Deployment, workload: MeanLengths) -> list[str]:
    return [
        *must_fit_context(made, _longest(question, made)),
        *claims.notes(made, where, workload, question.levels, question.peak_flops),
    ]


def answer(question: Question) -> PredictionResult:
    """Return the prediction and every table."""
    made, where, workload = setup(question)
    prediction = _of_setup(question, made, where, workload)
    return PredictionResult(
        prediction=prediction,
        limits=limits.limits(made, where, workload, question.slo or None),
        rules=rule_comparisons(made, where, workload, question.slo) if workload.output_tokens else [],
        frontier=frontier(prediction),
        roof=roofline.roof(made, where, workload, question.levels),
        claims=claims.holding(claims.facts(made, where, workload, question.levels)),
    )


def frontier(prediction: Prediction) -> list[tuple[float, float, float]]:
    """Return the speed for a user against throughput of a GPU, level by level: (users, tok/s a user, tok/s a GPU)."""
    return [
        (level.concurrency, 1 / level.itl_s, level.output_tokens_per_s.mid / prediction.gpus)
        for level in prediction.levels
        if level.itl_s
    ]


def rule_comparisons(
    model: Model, where: Deployment, workload: MeanLengths, slo: Mapping[str, float]
) -> list[RuleComparison]:
    """Return the usual rules of thumb for one replica against the whole model (docs/method.md, Rules of thumb)."""
    ctx, W = workload.context, weight_bytes_per_step(model)
    kv = kv_bytes(model, ctx) / ctx  # windows and states in their own size
    n = where.tp * where.pp
    BW, MBU, F, count = where.gpu.bandwidth * n, where.mbu, fastest(model, where.gpu) * n, parameters(model)
    cost, caps = step_cost(model, where), limits.caps(model, where, workload, slo)
    cap = batch_cap(caps)

    def throughput(C: float, cap: float = float("inf")) -> float:
        return steady.steady_state(cost, workload, C, cap).throughput

    far = 1e6
    rows = [
        RuleComparison("single stream", "BW·MBU / W", "tok/s", rules.x0(1, W, 0, 0, BW, MBU), throughput(1)),
        RuleComparison("ceiling", "BW·MBU / (ctx·kv)", "tok/s", rules.ceiling0(ctx, kv, BW, MBU), throughput(far)),
        RuleComparison("half of it", "W / (ctx·kv)", "requests", rules.b_star(W, ctx, kv), _half(throughput, far)),
        RuleComparison(
            "prefill",
            "F·MFU / 2N",  # without the head, which only the last token of a prompt needs
            "prompt tok/s",
            rules.prefill0(F, where.mfu_prefill, count.matmul - count.head),
            workload.input_tokens / prefill_time(cost, workload.input_tokens),
        ),
        RuleComparison(
            "KV memory",
            "(mem·util - W) / (ctx·kv)",
            "requests",
            rules.kv_batch(where.gpu.memory_bytes * n, where.gpu_memory_utilization, weight_bytes(model), ctx, kv),
            caps["kv_memory"],
        ),
        RuleComparison("at the cap", "B / TPOT0", "tok/s", rules.x0(cap, W, ctx, kv, BW, MBU), throughput(cap, cap)),
    ]
    token = {name: limit for name, limit in slo.items() if steady.slo_figure(name) in ("itl", "tpot")}
    if token:
        alone = steady.slo_concurrency(step_cost(model, slow(model, where)), workload, cap, token)
        within = rules.slo_batch(min(token.values()), W, ctx, kv, BW, MBU)
        rows.append(RuleComparison("SLO knee", "(TPOT·BW·MBU - W) / (ctx·kv)", "requests", within, alone))
    return rows


def _half(throughput: Any, far: float) -> float:
    """Return the users at whom throughput is half of what it is far out."""
    low, high, half = 0.0, far, throughput(far) / 2
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if throughput(middle) < half else (low, middle)
    return high
