"""The lifecycle reports of inference-perf, stage_N_lifecycle_metrics.json and summary_…: one level a file.

Fields: inference-perf, inference_perf/reportgen/base.py. Stages by rate are an open loop; the summary of several stages
names no load.
"""

from __future__ import annotations

from typing import Any

from harness.results.readers.level import NO_ERROR, NO_SERVER, WHOLE_RUN, Latencies, Reader, at, positive


def _matches(found: Any) -> bool:
    return at(found, "successes", "throughput") is not None and at(found, "successes", "latency") is not None


def _load(found: Any) -> dict[str, Any]:
    concurrency = positive(found, "load_summary", "concurrency")
    rate = None if concurrency else positive(found, "load_summary", "requested_rate")
    return {"concurrency": concurrency, "rate": rate}


READERS = (
    Reader(
        name="inference-perf",
        matches=_matches,
        figures={
            "output_tokens_per_s": "successes.throughput.output_tokens_per_sec",
            "requests_per_s": "successes.throughput.requests_per_sec",
            "requests": "successes.count",
            "failed": "failures.count",
            "input_tokens_mean": "successes.prompt_len.mean",
            "output_tokens_mean": "successes.output_len.mean",
            "ttft_s": "time_to_first_token",
            "itl_s": "inter_token_latency",
            "tpot_s": "time_per_output_token",
            "e2e_s": "request_latency",
        },
        latencies=Latencies(at="successes.latency.{name}.{statistic}", names={"p50": ("median",)}),
        more=_load,
        lacks=(WHOLE_RUN, NO_ERROR, NO_SERVER, "it names no model"),
    ),
)
