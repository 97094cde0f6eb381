"""What the hardware should give, before anything is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.data.prediction import Prediction
from harness.predict import question
from harness.predict.question import LEVELS, Question


def predict(
    model: str,
    gpu: str,
    *,
    input_tokens: float = 512,
    output_tokens: float = 128,
    levels: Sequence[int] = LEVELS,
    slo: Mapping[str, float] | None = None,
    price: float | None = None,
    **deployment: float | str,
) -> Prediction:
    """Return the whole curve by the data sheet, as the `prediction` of summary.json.

    `model` is a shipped name, a config.json or its folder; `gpu` a key like "h100-sxm". `slo` are seconds by limit,
    like {"ttft_p99": 2.0}; `price` is USD per GPU and hour. The deployment is what `knee predict` has options for, like
    dtype, kv_dtype, gpus, tp, pp, dp, ep, max_num_seqs, max_num_batched_tokens, kv_tokens, prefix_hit and mbu; what is
    left out is as vLLM does by default. Raise HarnessError for what is not known or does not fit.
    """
    figures: dict[str, Any] = dict(deployment)
    asked = Question(
        model=model, gpu=gpu, input_tokens=input_tokens, output_tokens=output_tokens, levels=levels, slo=slo or {},
        price=price, dtype=figures.pop("dtype", "auto"), kv_dtype=figures.pop("kv_dtype", "auto"), figures=figures,
    )  # fmt: skip
    return question.predict(asked)
