"""What aiconfigurator predicts for levels that are given as JSON on stdin; runs in an environment of its own.

One list of levels in, one list of [tok/s, TTFT, ITL] in seconds out, null where it has no answer. It estimates one
configuration at a time, by its kernel tables of the nearest version of the engine that it still has.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from aiconfigurator.cli.api import cli_estimate  # type: ignore[import-not-found, unused-ignore]

# The checkpoint of each model and precision, by the names that it knows.
_MODELS = {
    ("qwen3-32b", ""): "Qwen/Qwen3-32B",
    ("qwen3-32b", "fp8"): "Qwen/Qwen3-32B-FP8",
    ("qwen3-235b-a22b", "fp8"): "Qwen/Qwen3-235B-A22B-FP8",
    ("llama-3.1-70b", "fp8"): "nvidia/Llama-3.1-70B-Instruct-FP8",
    ("llama-3.1-70b", "nvfp4"): "meta-llama/Meta-Llama-3.1-70B",
    ("deepseek-r1", ""): "deepseek-ai/DeepSeek-R1",
    ("kimi-k2", "int4"): "moonshotai/Kimi-K2.5",
    ("kimi-k2", "nvfp4"): "nvidia/Kimi-K2.5-NVFP4",
    ("minimax-m2.5", "fp8"): "MiniMaxAI/MiniMax-M2.5",
    ("minimax-m2.5", "nvfp4"): "nvidia/MiniMax-M2.5-NVFP4",
    ("gpt-oss-120b", ""): "openai/gpt-oss-120b",
}
_CONVERTED = {("llama-3.1-70b", "nvfp4"): {"gemm_quant_mode": "nvfp4", "kvcache_quant_mode": "fp8"}}
_DENSE = ("qwen3-32b", "llama-3.1-70b")


def estimate(row: dict[str, Any]) -> list[float] | None:
    """tok/s, TTFT and ITL of one level; None where it has no model, no card or no tables for it."""
    key = (row["model"], row["dtype"])
    if key not in _MODELS or row["dp"] > 1:
        return None
    experts = {} if row["model"] in _DENSE else {"moe_ep_size": row["ep"], "moe_tp_size": row["tp"] // row["ep"]}
    try:
        found = cli_estimate(
            model_path=_MODELS[key],
            system_name=row["gpu"].replace("-", "_"),
            backend_name=row["engine"],
            isl=round(row["isl"]),
            osl=round(row["osl"]),
            batch_size=row["c"],
            tp_size=row["tp"],
            **experts,
            **_CONVERTED.get(key, {}),
        )
    except Exception as error:  # noqa: BLE001 - whatever it raises, it has no answer
        print(f"{key} on {row['gpu']}, {row['engine']}: {str(error)[:200]}", file=sys.stderr)
        return None
    ttft, itl = float(found.ttft) / 1e3, float(found.tpot) / 1e3
    return [row["c"] * row["osl"] / (ttft + (row["osl"] - 1) * itl), ttft, itl]


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    print(json.dumps([estimate(row) for row in json.load(sys.stdin)]))
