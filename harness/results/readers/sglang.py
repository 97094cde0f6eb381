"""The lines of `python -m sglang.bench_serving --output-file`: a level a line, with most names of vLLM's file.

Fields: SGLang, python/sglang/bench_serving.py. `concurrency` there is what was in flight, `max_concurrency` the load.
"""

from __future__ import annotations

from typing import Any

from harness.results.readers.level import Reader, positive, text
from harness.results.readers.vllm import FIGURES, LATENCIES, lengths

_IN_FLIGHT = 0.8  # of the load: the mean is over the whole run, and the 0.95 of Knee's own levels over a steady window


def _matches(found: Any) -> bool:
    return isinstance(found, dict) and {"output_throughput", "mean_e2e_latency_ms"} <= found.keys()


def _extra(found: Any) -> dict[str, Any]:
    rate, in_flight = positive(found, "request_rate"), positive(found, "concurrency")
    load = None if rate else positive(found, "max_concurrency")
    enough = load is None or in_flight is None or in_flight >= _IN_FLIGHT * load
    return {"concurrency": load, "rate": rate, "in_flight": in_flight, "in_flight_ok": enough, **lengths(found)}


READERS = (
    Reader(
        name="sglang.bench_serving",
        matches=_matches,
        figures={**FIGURES, "e2e_s": "e2e_latency_ms"},
        latencies=LATENCIES,
        more=_extra,
        facts=lambda found: {"model": text(found, "server_info", "model_path")},
    ),
)
