"""The results of `vllm bench serve --save-result` and `vllm bench sweep`: one level a table of fields, or a row.

Fields: vLLM, vllm/benchmarks/serve.py. A rate that is finite, or that is ramped up, is an open loop, with
`max_concurrency` as its bound only, unless not half of it was achieved. What was in flight is not in the file; no more
were than it has prompts. A file that `knee export` wrote is of a steady window, in which fewer requests may begin, and
has verdicts instead.
"""

from __future__ import annotations

from typing import Any

from harness.results.readers.level import (
    KNEE,
    NO_SERVER,
    Latencies,
    Reader,
    at,
    count,
    mean,
    number,
    own_point,
    positive,
    text,
    validity,
    whole,
)  # fmt: skip

FIGURES = {
    "output_tokens_per_s": "output_throughput",
    "requests_per_s": "request_throughput",
    "requests": "completed",
    "ttft_s": "ttft_ms",
    "itl_s": "itl_ms",
    "tpot_s": "tpot_ms",
    "e2e_s": "e2el_ms",
}
_BOUND = 0.5  # of a rate: a run that achieves less is held back by its bound on requests in flight
LATENCIES = Latencies(at="{statistic}_{name}", names={"p50": ("p50", "median")})


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
    known = {"concurrency": load, "rate": rate, "failed": _failed(found), **lengths(found)}
    if _is_own(found):
        valid, in_flight_ok = validity(at(found, "verdicts"))
        return known | {"valid": valid, "in_flight_ok": in_flight_ok, **own_point(found)}
    most = prompts if load and prompts and prompts < load else None  # more cannot have been in flight
    return known | {"in_flight": most, "in_flight_ok": most is None}


def _facts(found: Any) -> dict[str, Any]:
    model = text(found, "model_id")
    if not _is_own(found):
        return {"model": model}
    simulated = at(found, "simulated") is True
    return {"model": model, "source": KNEE, "simulated": simulated, "lacks": (NO_SERVER,)}


def lengths(found: Any) -> dict[str, float | None]:
    """Return the mean tokens of a request, by the sums in the file."""
    done = count(found, "completed")
    return {f"{each}_tokens_mean": mean(number(found, f"total_{each}_tokens"), done) for each in ("input", "output")}


def _failed(found: Any) -> int | None:
    """Return the requests that failed; of a version that does not count them, those that were not completed."""
    failed, prompts, done = (whole(found, name) for name in ("failed", "num_prompts", "completed"))
    return failed if failed is not None or prompts is None or done is None else max(0, prompts - done)


READERS = (
    Reader(name="vllm bench serve", matches=_matches, figures=FIGURES, latencies=LATENCIES, more=_extra, facts=_facts),
)
