"""The results of `vllm bench serve --save-result` and `vllm bench sweep`, and of SGLang's `bench_serving`.

vLLM's have a level a table of fields, or a row. Fields: vLLM, vllm/benchmarks/serve.py. A rate that is finite, or that
is ramped up, is an open loop, with `max_concurrency` as its bound only, unless not half of it was achieved. What was in
flight is not in the file; no more were than it has prompts. A file that `knee export` wrote is of a steady window, in
which fewer requests may begin, and has verdicts instead.

The lines of `python -m sglang.bench_serving --output-file` are a level each, with most names of vLLM's file. Fields:
SGLang, python/sglang/bench_serving.py. `concurrency` there is what was in flight, `max_concurrency` the load.
"""

from __future__ import annotations

from typing import Any

from harness.results.readers import level
from harness.results.readers.level import KNEE, NO_SERVER, Latencies, Reader, at, number, positive, text, whole

_FIGURES = {
    "output_tokens_per_s": "output_throughput",
    "requests_per_s": "request_throughput",
    "requests": "completed",
    "ttft_s": "ttft_ms",
    "itl_s": "itl_ms",
    "tpot_s": "tpot_ms",
    "e2e_s": "e2el_ms",
}
_LATENCIES = Latencies(at="{statistic}_{name}", names={"p50": ("p50", "median")})
_BOUND = 0.5  # share of a rate: a run that achieves less is held back by its bound on requests in flight
_IN_FLIGHT = 0.8  # share of the load: the mean is over the whole run; Knee's own 0.95 is over a steady window


def _matches(found: Any) -> bool:
    """Return whether data has the field names of a result of vLLM's benchmark, whichever version wrote it."""
    return (
        isinstance(found, dict)
        and "output_throughput" in found
        and not {"total_token_throughput", "mean_ttft_ms", "max_concurrency"}.isdisjoint(found)
    )


def _is_own(found: Any) -> bool:
    return text(found, "tool") == KNEE


def _extra(found: Any) -> dict[str, Any]:
    """Return a level's load, failures, lengths and requests in flight, by our names; its validity too if Knee wrote it.

    The load is a rate unless --max-concurrency held the throughput below it, else a concurrency unless that was ramped
    up.
    """
    rate, prompts = positive(found, "request_rate"), positive(found, "num_prompts")
    if rate and positive(found, "max_concurrency") and (number(found, "request_throughput") or rate) < _BOUND * rate:
        rate = None  # the bound on requests in flight sets the pace
    load = None if rate or text(found, "ramp_up_strategy") else positive(found, "max_concurrency")
    known = {"concurrency": load, "rate": rate, "failed": _failed(found), **_lengths(found)}
    if _is_own(found):
        valid, in_flight_ok = level.validity(at(found, "verdicts"))
        return known | {"valid": valid, "in_flight_ok": in_flight_ok, **level.own_point(found)}
    most = prompts if load and prompts and prompts < load else None  # more cannot have been in flight
    return known | {"in_flight": most, "in_flight_ok": most is None}


def _facts(found: Any) -> dict[str, Any]:
    model = text(found, "model_id")
    if not _is_own(found):
        return {"model": model}
    simulated = at(found, "simulated") is True
    return {"model": model, "source": KNEE, "simulated": simulated, "lacks": (NO_SERVER,)}


def _lengths(found: Any) -> dict[str, float | None]:
    """Return the mean tokens of a request, by the sums in the file."""
    done = whole(found, "completed")
    sums = {each: number(found, f"total_{each}_tokens") for each in ("input", "output")}
    return {f"{each}_tokens_mean": total / done if total is not None and done else None for each, total in sums.items()}


def _failed(found: Any) -> int | None:
    """Return the requests that failed; of a version that does not count them, those that were not completed."""
    failed, prompts, done = (whole(found, name) for name in ("failed", "num_prompts", "completed"))
    return failed if failed is not None or prompts is None or done is None else max(0, prompts - done)


def _of_sglang(found: Any) -> dict[str, Any]:
    rate, in_flight = positive(found, "request_rate"), positive(found, "concurrency")
    load = None if rate else positive(found, "max_concurrency")
    enough = load is None or in_flight is None or in_flight >= _IN_FLIGHT * load
    return {"concurrency": load, "rate": rate, "in_flight": in_flight, "in_flight_ok": enough, **_lengths(found)}


READERS = {
    "sglang": (
        Reader(
            name="sglang.bench_serving",
            matches=lambda found: level.has(found, "output_throughput", "mean_e2e_latency_ms"),
            figures={**_FIGURES, "e2e_s": "e2e_latency_ms"},
            latencies=_LATENCIES,
            more=_of_sglang,
            facts=lambda found: {"model": text(found, "server_info", "model_path")},
        ),
    ),
    "vllm": (
        Reader(
            name="vllm bench serve",
            matches=_matches,
            figures=_FIGURES,
            latencies=_LATENCIES,
            more=_extra,
            facts=_facts,
        ),
    ),
}
