"""The result file of `vllm bench serve --save-result`: one level, its fields in one table.

Fields: vLLM, vllm/benchmarks/serve.py. A rate that is finite, or that is ramped up, is an open loop, with
`max_concurrency` as its bound only. What was in flight is not in the file; no more were than it has prompts. A file
that `knee export` wrote is of a steady window, in which fewer requests may begin, and has verdicts instead.
"""

from __future__ import annotations

from typing import Any

from harness.results.foreign import knee
from harness.results.foreign.fields import at, count, flat, mean, number, positive, text, whole
from harness.results.foreign.measured import NO_ERROR, NO_SERVER, WHOLE_RUN, ForeignLevel, ForeignResult

NAME = "vllm bench serve"


def matches(found: Any) -> bool:
    return isinstance(found, dict) and {"output_throughput", "total_token_throughput"} <= found.keys()


def read(found: Any) -> ForeignResult:
    rate, done, own = positive(found, "request_rate"), count(found, "completed"), text(found, "tool") == knee.NAME
    load = None if rate or text(found, "ramp_up_strategy") else positive(found, "max_concurrency")
    most = None if own else _most(load, positive(found, "num_prompts"))
    valid, in_flight_ok = knee.validity(at(found, "verdicts")) if own else (True, most is None)
    level = ForeignLevel(
        concurrency=load,
        rate=rate,
        in_flight=most,
        output_tokens_per_s=number(found, "output_throughput"),
        valid=valid,
        in_flight_ok=in_flight_ok,
        requests_per_s=number(found, "request_throughput"),
        requests=done,
        failed=_failed(found),
        input_tokens_mean=mean(number(found, "total_input_tokens"), done),
        output_tokens_mean=mean(number(found, "total_output_tokens"), done),
        ttft_s=flat(found, "ttft_ms"),
        itl_s=flat(found, "itl_ms"),
        tpot_s=flat(found, "tpot_ms"),
        e2e_s=flat(found, "e2el_ms"),
    )
    return ForeignResult(
        source=knee.NAME if own else NAME,
        levels=[level],
        simulated=own and at(found, "simulated") is True,
        model=text(found, "model_id"),
        lacks=(NO_ERROR, NO_SERVER) if own else (WHOLE_RUN, NO_ERROR, NO_SERVER),
    )


def _most(load: float | None, prompts: float | None) -> float | None:
    """Requests that can have been in flight, where these are fewer than the load."""
    return prompts if load and prompts and prompts < load else None


def _failed(found: Any) -> int | None:
    """Requests that failed; of a version that does not count them, those that were not completed."""
    failed, prompts, done = (whole(found, name) for name in ("failed", "num_prompts", "completed"))
    return failed if failed is not None or prompts is None or done is None else max(0, prompts - done)
