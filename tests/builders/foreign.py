"""Results as other tools write them, all of one server: X = min(N/(0.01 + 0.00022 N), 1800), so its knee is 29.8.

Its single stream has 97.8 tok/s. Fields are those of the tools' own writers that a reader may meet; the figures are
worked out here.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

KNEE, PLATEAU = 18 / (1 - 0.396), 1800.0  # N/(0.01 + 0.00022 N) = 1800
LOADS = (1, 2, 4, 8, 16, 32, 64, 128)
IN, OUT = 512, 128


def throughput(N: float) -> float:
    return min(N / (0.010 + 0.00022 * N), PLATEAU)


def vllm(C: int, factor: float = 1.0, **changes: Any) -> dict[str, Any]:
    X = throughput(C) * factor
    n, tpot = 10 * C, 1e3 * C / X
    found = {
        "date": "20260201-120000", "backend": "vllm", "model_id": "org/m", "num_prompts": n, "request_rate": "inf",
        "max_concurrency": C, "duration": n * OUT / X, "completed": n, "failed": 0, "total_input_tokens": n * IN,
        "total_output_tokens": n * OUT, "request_throughput": X / OUT, "output_throughput": X,
        "total_token_throughput": X * (IN + OUT) / OUT, "mean_ttft_ms": 100.0, "median_ttft_ms": 90.0,
        "mean_tpot_ms": tpot, "median_tpot_ms": tpot, "mean_itl_ms": tpot, "median_itl_ms": tpot,
    }  # fmt: skip
    return found | changes


def old_vllm(C: int) -> dict[str, Any]:
    """Before version 0.6: no throughput of all tokens, and no count of failures."""
    found = vllm(C)
    del found["total_token_throughput"], found["failed"]
    return found | {"input_throughput": throughput(C) * IN / OUT, "best_of": 1}


def sglang(C: int) -> dict[str, Any]:
    X = throughput(C)
    return vllm(C) | {"mean_e2e_latency_ms": 1e3 * OUT * C / X, "total_throughput": X * 5, "concurrency": 0.97 * C}


def genai_perf(C: int) -> dict[str, Any]:
    X = throughput(C)
    stimulus = {"perf_analyzer": {"stimulus": {"concurrency": C}}, "model_names": ["org/m"]}
    return {
        "request_throughput": {"unit": "requests/sec", "avg": X / OUT},
        "request_latency": {"unit": "ms", "avg": 1e3 * OUT * C / X},
        "time_to_first_token": {"unit": "ms", "avg": 100.0},
        "output_token_throughput": {"unit": "tokens/sec", "avg": X},
        "request_count": {"unit": "count", "avg": 10.0 * C},
        "input_config": stimulus,
    }


def inferencex(C: int) -> dict[str, Any]:
    X = throughput(C)
    return {
        "hw": "h200", "conc": C, "model": "org/m", "framework": "vllm", "precision": "fp8", "isl": IN, "osl": OUT,
        "tp": 8, "tput_per_gpu": X * 5 / 8, "output_tput_per_gpu": X / 8, "mean_ttft": 0.1, "mean_tpot": C / X,
    }  # fmt: skip


def inferencex_apart(C: int) -> dict[str, Any]:
    """The same with 4 GPUs for prefill and 8 for decode: the output is per GPU of these."""
    X = throughput(C)
    apart = {"disagg": True, "num_prefill_gpu": 4, "num_decode_gpu": 8}
    return inferencex(C) | apart | {"tput_per_gpu": X * 5 / 12, "output_tput_per_gpu": X / 8}


def guidellm(strategy: dict[str, Any], N: float, successful: float = 1.0) -> dict[str, Any]:
    """A benchmark in which so much of the work belongs to requests that ended in it."""

    def of(value: float, done: float = 1.0) -> dict[str, Any]:
        return {"successful": {"mean": value * done}, "total": {"mean": value}}

    X = throughput(N)
    metrics = {
        "request_totals": {"successful": 50, "incomplete": round(N), "errored": 0},
        "requests_per_second": of(X / OUT, successful),
        "request_concurrency": of(N, successful),
        "output_tokens_per_second": of(X, successful),
        "prompt_token_count": of(IN),
        "output_token_count": of(OUT),
        "time_to_first_token_ms": of(100.0),
    }
    return {"config": {"strategy": strategy, "backend": {"model": "org/m"}}, "metrics": metrics}


def llm_d(C: int) -> str:
    """Version 0.1, as YAML."""
    X = throughput(C)
    return f"""version: '0.1'
scenario:
  model: {{name: org/m}}
  platform: {{engine: [{{name: vllm}}]}}
  load: {{name: vllm-benchmark, args: {{request_rate: inf, max_concurrency: {C}}}}}
metrics:
  time: {{start: 2026-02-01T12:00:00Z}}
  requests: {{total: {10 * C}, failures: 0, input_length: {{mean: {IN}}}, output_length: {{mean: {OUT}}}}}
  throughput: {{output_tokens_per_sec: {X}, requests_per_sec: {X / OUT}}}
  latency: {{time_to_first_token: {{units: ms, mean: 100.0}}}}
"""


def lines(found: Sequence[dict[str, Any]]) -> str:
    return "\n".join(map(json.dumps, found))


def table(found: Sequence[dict[str, Any]]) -> str:
    out = io.StringIO()
    rows = csv.DictWriter(out, list(found[0]))
    rows.writeheader()
    rows.writerows(found)
    return out.getvalue()
