"""A prediction's hinge for other prompts and answers than it was made for: between the cells of a level map.

It is made again from what the prediction says that it assumed, and only where that gives the prediction itself at the
place it was made for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from harness.base.errors import HarnessError
from harness.data.summary import Prediction
from harness.predict import catalog, deployment, model, roofline
from harness.spec.work import MeanLengths

Hinge: TypeAlias = Callable[[float, float], float | None]
_FIGURES = {  # of a deployment, by the names that they have among a prediction's assumptions
    "mbu": "mbu",
    "mfu_prefill": "mfu_prefill",
    "mfu_decode": "mfu_decode",
    "speed": "speed",
    "layer_overhead_s": "o_layer",
    "step_overhead_s": "o_step",
    "request_overhead_s": "o_req",
    "api_overhead_s": "o_api",
    "gpu_memory_utilization": "gpu_memory_utilization",
}


def predicted_hinge(prediction: Prediction) -> Hinge | None:
    """The predicted hinge at any (P, G), from what a prediction assumed; None where it cannot be made again.

    None for a (P, G) that does not fit into the KV cache.
    """
    assumed = prediction.assumptions
    stated = {field: getattr(assumed, name) for name, field in _FIGURES.items()}
    figures: dict[str, Any] = {field: value for field, value in stated.items() if value is not None}
    if assumed.kv_tokens is not None:
        figures["kv_tokens"] = int(assumed.kv_tokens)
    seqs = prediction.caps.get("max_num_seqs")
    if seqs is not None:
        figures["max_num_seqs"] = int(seqs)
    try:
        served = model.model(catalog.model_config(prediction.model), prediction.model)
        where = deployment.deployment(catalog.gpu(prediction.gpu), gpus=prediction.gpus, **figures)
    except HarnessError:  # a config.json that is gone, or a model that needs more than its name
        return None

    def hinge(P: float, G: float) -> float | None:
        try:
            return roofline.predict(served, where, MeanLengths(P, G), [1]).hinge_concurrency
        except HarnessError:
            return None

    again, known = hinge(prediction.input_tokens, prediction.output_tokens), prediction.hinge_concurrency
    agrees = again is not None and known is not None and math.isclose(again, known, rel_tol=1e-6)
    return hinge if agrees else None
