"""The lifecycle reports of inference-perf, stage_N_lifecycle_metrics.json and summary_…: one level a file.

Fields: inference-perf, inference_perf/reportgen/base.py. Stages by rate are an open loop; the summary of several stages
names no load.
"""

from __future__ import annotations

from typing import Any

from harness.results.foreign.fields import at, count, nested, number, positive, whole
from harness.results.foreign.measured import NO_ERROR, NO_SERVER, WHOLE_RUN, ForeignLevel, ForeignResult, Latency

NAME = "inference-perf"


def matches(found: Any) -> bool:
    return at(found, "successes", "throughput") is not None and at(found, "successes", "latency") is not None


def read(found: Any) -> ForeignResult:
    done = found["successes"]
    concurrency = positive(found, "load_summary", "concurrency")
    level = ForeignLevel(
        concurrency=concurrency,
        rate=None if concurrency else positive(found, "load_summary", "requested_rate"),
        output_tokens_per_s=number(done, "throughput", "output_tokens_per_sec"),
        requests_per_s=number(done, "throughput", "requests_per_sec"),
        requests=count(done, "count"),
        failed=whole(found, "failures", "count"),
        input_tokens_mean=number(done, "prompt_len", "mean"),
        output_tokens_mean=number(done, "output_len", "mean"),
        ttft_s=_latency(done, "time_to_first_token"),
        itl_s=_latency(done, "inter_token_latency"),
        tpot_s=_latency(done, "time_per_output_token"),
        e2e_s=_latency(done, "request_latency"),
    )
    return ForeignResult(source=NAME, levels=[level], lacks=(WHOLE_RUN, NO_ERROR, NO_SERVER, "it names no model"))


def _latency(done: Any, name: str) -> Latency:
    return nested(done, "latency", name, unit=1.0, middle="median")
