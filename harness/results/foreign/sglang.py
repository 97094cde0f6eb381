"""The lines of `python -m sglang.bench_serving --output-file`: a level a line.

Fields: SGLang, python/sglang/bench_serving.py. `concurrency` there is what was in flight, `max_concurrency` the load.
"""

from __future__ import annotations

from typing import Any

from harness.results.foreign.fields import count, flat, mean, number, positive, text
from harness.results.foreign.measured import NO_ERROR, NO_SERVER, WHOLE_RUN, ForeignLevel, ForeignResult

NAME = "sglang.bench_serving"
_HELD = 0.8  # of the load: the mean is over the whole run, and the 0.95 of Knee's own levels over a steady window


def matches(found: Any) -> bool:
    return isinstance(found, dict) and {"output_throughput", "mean_e2e_latency_ms"} <= found.keys()


def read(found: Any) -> ForeignResult:
    rate, done, in_flight = positive(found, "request_rate"), count(found, "completed"), positive(found, "concurrency")
    load = None if rate else positive(found, "max_concurrency")
    level = ForeignLevel(
        concurrency=load,
        rate=rate,
        in_flight=in_flight,
        in_flight_ok=load is None or in_flight is None or in_flight >= _HELD * load,
        output_tokens_per_s=number(found, "output_throughput"),
        requests_per_s=number(found, "request_throughput"),
        requests=done,
        input_tokens_mean=mean(number(found, "total_input_tokens"), done),
        output_tokens_mean=mean(number(found, "total_output_tokens"), done),
        ttft_s=flat(found, "ttft_ms"),
        itl_s=flat(found, "itl_ms"),
        tpot_s=flat(found, "tpot_ms"),
        e2e_s=flat(found, "e2e_latency_ms"),
    )
    model = text(found, "server_info", "model_path")
    return ForeignResult(source=NAME, levels=[level], model=model, lacks=(WHOLE_RUN, NO_ERROR, NO_SERVER))
