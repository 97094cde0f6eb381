"""From what people type, and from what a run knows of its server, to a model, a card, a deployment, and every table.

The figures come from predict.roofline and predict.claims; arrivals and tails are predict.simulate's. A card is a row of
the table, or this machine's own cores, which the caller measures. A prediction says what it assumed: from that its
hinge follows for other prompts and answers than it was made for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from harness.base.errors import HarnessError
from harness.data.prediction import Prediction
from harness.predict import catalog, claims, roofline, steady
from harness.predict.catalog import Gpu, gpu, model_config, short
from harness.predict.claims import Claim
from harness.predict.deployment import Deployment, deployment
from harness.predict.model import Model, model, must_fit_context
from harness.predict.steady import ThroughputLimit
from harness.spec.scenario import Hardware
from harness.spec.work import MeanLengths, Mixture, means

if TYPE_CHECKING:
    from harness.data.machines import Card, Machine


LEVELS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What to predict: names as people write them, tokens, users, and figures of the Deployment by their own names."""

    model: str  # a shipped name, a config.json, or its folder
    name: str = ""  # what to call it; "": as `model` does
    gpu: str | Gpu
    input_tokens: float
    output_tokens: float
    inputs: int = 1  # texts of a request, if nothing is decoded
    mixture: Mixture = ()  # lengths if requests differ; the two lengths are then means
    levels: Sequence[int] = LEVELS
    dtype: str = "auto"
    kv_dtype: str = "auto"
    slo: Mapping[str, float] = {}  # seconds by limit, like {"ttft_p99": 2.0}
    price: float | None = None  # USD per GPU-hour
    peak_flops: float | None = None  # what the operator takes for the card's peak
    figures: Mapping[str, Any] = {}  # tp, pp, dp, ep, gpus, max_num_seqs, mbu, prefix_hit, …


class PredictionResult(msgspec.Struct, frozen=True, kw_only=True):
    """The prediction with all its tables."""

    prediction: Prediction
    limits: list[ThroughputLimit]
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
    """Return the roofline prediction for a model and deployment: of the question's mixture, else its mean request."""
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
    """Return the notes that apply even if there is no prediction because the model does not fit."""
    return _notes(question, *setup(question))


def _notes(question: Question, made: Model, where: Deployment, workload: MeanLengths) -> list[str]:
    return [
        *must_fit_context(made, _longest(question, made)),
        *claims.notes(made, where, workload, question.levels, question.peak_flops),
    ]


def answer(question: Question) -> PredictionResult:
    """Return the prediction with every named limit of throughput, and the claims without a source on such a setup."""
    made, where, workload = setup(question)
    prediction = _of_setup(question, made, where, workload)
    return PredictionResult(
        prediction=prediction,
        limits=steady.limits(made, where, workload, question.slo or None),
        claims=claims.holding(claims.facts(made, where, workload, question.levels)),
    )


HOST = "host"  # the key of this machine's own cores
_MOST_TOKENS = 10**12  # more tokens in one replica's cache are no figure of a server


class ServingCard(msgspec.Struct, frozen=True, kw_only=True):
    """The card that serves, if it is known, and how it is known."""

    card: Gpu | None = None
    machine: Machine | None = None  # figures of this machine, if it is the card
    notes: list[str] = []


def find(
    hardware: Hardware, cards: Sequence[Card] | None, measure: Callable[[Sequence[int] | None], Machine]
) -> ServingCard:
    """Return the card to predict for: the one named, else that of this machine's GPUs; with notes on doubts.

    It has no card where neither is known, or the GPUs differ. `cards` are this machine's GPUs by their driver,
    `measure` measures cores of this machine ("host").
    """
    key, notes, known = hardware.gpu, [], cards or ()
    if key is None:
        keys = {catalog.key_of(each.name or "") for each in known}
        key = keys.pop() if len(keys) == 1 else None
        if key is None:
            return ServingCard()
        notes.append(f"the GPU is {key} by its driver")
        if len(known) != hardware.gpus:
            notes.append(f"{len(known)} GPUs are here, the prediction is for {hardware.gpus}: give --gpus and --tp")
    if key.lower() == HOST:
        measured = measure(hardware.host_cpus)
        return ServingCard(card=host(measured), machine=measured)
    card = catalog.gpu(key)
    by_driver = {catalog.key_of(each.name or "") for each in known} - {None, card.key.partition(":")[0]}
    notes += [f"--gpu names {card.key}, and its driver {other}: is it that card?" for other in by_driver]
    return ServingCard(card=card, notes=notes)


def host(measured: Machine) -> Gpu:
    """Return this machine's measured processor cores as a card, with memory, bandwidth and FLOP/s."""
    return Gpu(
        key=HOST,
        memory_bytes=measured.memory_bytes,
        bandwidth=measured.bandwidth,
        flops=measured.flops,
        certainty="measured",
        source=measured.source,
        vendor=measured.cpu,
    )


def deployed(
    hardware: Hardware, card: Gpu | None, cache_config: Mapping[str, Any] | None
) -> tuple[Model, Deployment] | None:
    """Return the model and where it runs, by the data sheet; None if either is not known.

    `cache_config` is what the engine publishes of its KV blocks, which replaces the estimate where all layers keep all
    tokens. Else vLLM shares its blocks among groups of layers, and a block holds a token of one group alone
    (vllm/v1/core/kv_cache_utils.py).
    """
    if card is None or hardware.model_config is None:
        return None
    settings = figures(hardware)
    config = catalog.model_config(hardware.model_config)
    made = model(config, hardware.model_config, dtype=hardware.dtype or "auto", kv_dtype=hardware.kv_dtype or "auto")
    with contextlib.suppress(KeyError, TypeError, ValueError):
        cache = cache_config or {}
        tokens = int(cache["num_gpu_blocks"]) * int(cache["block_size"])
        if 0 < tokens < _MOST_TOKENS and all(group.all_kept and not group.state for group in made.attention):
            settings["kv_tokens"] = tokens
    return made, deployment(card, **settings)


def figures(hardware: Hardware) -> dict[str, Any]:
    """Return {field of Deployment: value} for GPUs, TP, DP and max_num_seqs that a scenario gives.

    Raise HarnessError for several GPUs without TP, and for GPUs that are no multiple of it.
    """
    settings: dict[str, Any] = {"gpus": hardware.gpus}
    if hardware.tp is not None:
        settings["tp"] = hardware.tp
        if hardware.gpus % hardware.tp == 0:
            settings["dp"] = hardware.gpus // hardware.tp
        else:
            fact = f"{hardware.gpus} GPUs are no whole replicas of {hardware.tp}"
            raise HarnessError(fact, place="--tp", way_out="give as many by --gpus as serve, or a multiple")
    elif hardware.gpus > 1:
        way_out = f"give --tp {hardware.gpus} for one replica over all, or --tp 1 for replicas side by side"
        raise HarnessError(f"{hardware.gpus} GPUs, but not how they share the model", place="--gpus", way_out=way_out)
    if hardware.max_num_seqs is not None:
        settings["max_num_seqs"] = hardware.max_num_seqs
    return settings
