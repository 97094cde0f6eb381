"""What the hardware should give, before anything is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

from harness.data.prediction import Prediction
from harness.predict import question
from harness.predict.question import LEVELS, Question


class Deployment(TypedDict, total=False):
    """How the model is served; what is left out is as vLLM does by default."""

    dtype: str  # of the weights as they are loaded: fp8, int8, int4, mxfp4, nvfp4
    kv_dtype: str
    gpus: int
    tp: int
    pp: int
    dp: int
    ep: int
    max_num_seqs: int  # running requests of one replica, at most
    max_num_batched_tokens: int  # of one step
    gpu_memory_utilization: float  # share
    kv_tokens: int  # KV cache of one replica
    prefix_hit: float  # share of the prompt tokens whose KV is cached
    mbu: float  # share of the bandwidth that is reached
    mfu_prefill: float  # share of the FLOP/s that is reached, by prefill and by decode
    mfu_decode: float


def predict(
    model: str,
    gpu: str,
    *,
    input_tokens: float = 512,
    output_tokens: float = 128,
    levels: Sequence[int] = LEVELS,
    slo: Mapping[str, float] | None = None,
    price: float | None = None,
    **deployment: Unpack[Deployment],
) -> Prediction:
    """Return the whole curve by the data sheet, as the `prediction` of summary.json.

    `model` is a shipped name, a config.json or its folder; `gpu` a key like "h100-sxm". `slo` are seconds by limit,
    like {"ttft_p99": 2.0}; `price` is USD per GPU and hour. HarnessError for what is not known or does not fit.
    """
    figures: dict[str, Any] = dict(deployment)
    asked = Question(
        model=model, gpu=gpu, input_tokens=input_tokens, output_tokens=output_tokens, levels=levels, slo=slo or {},
        price=price, dtype=figures.pop("dtype", "auto"), kv_dtype=figures.pop("kv_dtype", "auto"), figures=figures,
    )  # fmt: skip
    return question.predict(asked)
