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


def _matches(document: Any) -> bool:
    """Return whether data has the field names of a result of vLLM's benchmark, whichever version wrote it."""
    return (
        isinstance(document, dict)
        and "output_throughput" in document
        and not {"total_token_throughput", "mean_ttft_ms", "max_concurrency"}.isdisjoint(document)
    )


def _is_own(document: Any) -> bool:
    return text(document, "tool") == KNEE


def _extra(document: Any) -> dict[str, Any]:
    """Return a level's load, failures, lengths and requests in flight, by our names; its validity too if Knee wrote it.

    The load is a rate unless --max-concurrency held the throughput below it, else a concurrency unless that was ramped
    up.
    """
    rate, prompts = positive(document, "request_rate"), positive(document, "num_prompts")
    limit = positive(document, "max_concurrency")
    if rate and limit and (number(document, "request_throughput") or rate) < _BOUND * rate:
        rate = None  # the bound on requests in flight sets the pace
    load = None if rate or text(document, "ramp_up_strategy") else limit
    known = {"concurrency": load, "rate": rate, "failed": _failed(document), **_lengths(document)}
    if _is_own(document):
        valid, in_flight_ok = level.validity(at(document, "verdicts"))
        return known | {"valid": valid, "in_flight_ok": in_flight_ok, **level.own_point(document)}
    most = prompts if load and prompts and prompts < load else None  # more cannot have been in flight
    return known | {"in_flight": most, "in_flight_ok": most is None}


def _facts(document: Any) -> dict[str, Any]:
    model = text(document, "model_id")
    if not _is_own(document):
        return {"model": model}
    simulated = at(document, "simulated") is True
    return {"model": model, "source": KNEE, "simulated": simulated, "lacks": (NO_SERVER,)}


def _lengths(document: Any) -> dict[str, float | None]:
    """Return the mean tokens of a request, by the sums in the file."""
    done = whole(document, "completed")
    sums = {each: number(document, f"total_{each}_tokens") for each in ("input", "output")}
    return {f"{each}_tokens_mean": total / done if total is not None and done else None for each, total in sums.items()}


def _failed(document: Any) -> int | None:
    """Return the requests that failed; of a version that does not count them, those that were not completed."""
    failed, prompts, done = (whole(document, name) for name in ("failed", "num_prompts", "completed"))
    return failed if failed is not None or prompts is None or done is None else max(0, prompts - done)


def _of_sglang(document: Any) -> dict[str, Any]:
    rate, in_flight = positive(document, "request_rate"), positive(document, "concurrency")
    load = None if rate else positive(document, "max_concurrency")
    enough = load is None or in_flight is None or in_flight >= _IN_FLIGHT * load
    return {"concurrency": load, "rate": rate, "in_flight": in_flight, "in_flight_ok": enough, **_lengths(document)}


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
