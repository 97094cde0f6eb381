"""The lines of `python -m sglang.bench_serving --output-file`: a level a line.

Fields: SGLang, python/sglang/bench_serving.py. `concurrency` there is what was in flight, `max_concurrency` the load.
"""

from __future__ import annotations

from typing import Any

from harness.results.readers.level import NO_ERROR, NO_SERVER, WHOLE_RUN, ForeignResult, Reader, level, positive, text
from harness.results.readers.vllm import FIGURES, LATENCIES, lengths

_NAME = "sglang.bench_serving"
_IN_FLIGHT = 0.8  # of the load: the mean is over the whole run, and the 0.95 of Knee's own levels over a steady window


def _matches(found: Any) -> bool:
    return isinstance(found, dict) and {"output_throughput", "mean_e2e_latency_ms"} <= found.keys()


def _read(found: Any) -> ForeignResult:
    rate, in_flight = positive(found, "request_rate"), positive(found, "concurrency")
    load = None if rate else positive(found, "max_concurrency")
    measured = level(
        found,
        FIGURES | {"e2e_s": "e2e_latency_ms"},
        LATENCIES,
        concurrency=load,
        rate=rate,
        in_flight=in_flight,
        in_flight_ok=load is None or in_flight is None or in_flight >= _IN_FLIGHT * load,
        **lengths(found),
    )
    model = text(found, "server_info", "model_path")
    return ForeignResult(source=_NAME, levels=[measured], model=model, lacks=(WHOLE_RUN, NO_ERROR, NO_SERVER))


READERS = (Reader(name=_NAME, matches=_matches, read=_read),)
