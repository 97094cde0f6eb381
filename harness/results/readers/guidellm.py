"""The JSON of `guidellm`: a level a benchmark.

Throughput and requests in flight are those of all requests: what the end of a level cuts off was served until then.
Latencies are of the successful ones. A `sweep` measures one request alone, then as many as it can, then fixed rates
between: their mean in flight places all of them on one curve.

Fields: GuideLLM, src/guidellm/benchmark/schemas. Each benchmark has the strategy that was realised; the settings of the
whole run moved between versions and are not needed. Its "inter token latency" is a mean of each request, TPOT here; its
"time per output token" is the whole response's, with the wait for the first.
"""

from __future__ import annotations

from typing import Any

from harness.results.readers.level import Latencies, Reader, at, positive, text


def _matches(document: Any) -> bool:
    benchmarks = document.get("benchmarks") if isinstance(document, dict) else None
    return isinstance(benchmarks, list) and any(at(each, "metrics", "time_to_first_token_ms") for each in benchmarks)


def _benchmarks(document: Any) -> list[Any]:
    every = [benchmark for benchmark in document["benchmarks"] if isinstance(at(benchmark, "metrics"), dict)]
    kinds = {text(_strategy(benchmark), "type_") for benchmark in every}
    swept = not kinds.isdisjoint(("throughput", "synchronous")) and not kinds.isdisjoint(("constant", "poisson"))
    return [{**benchmark, "swept": swept} for benchmark in every]


def _strategy(benchmark: Any) -> Any:
    return at(benchmark, "config", "strategy") or at(benchmark, "args", "strategy")


def _load(benchmark: Any) -> dict[str, Any]:
    strategy = _strategy(benchmark)
    alone = text(strategy, "type_") == "synchronous"
    return {
        "concurrency": 1.0 if alone else positive(strategy, "streams"),
        "rate": None if at(benchmark, "swept") else positive(strategy, "rate"),
    }


def _facts(document: Any) -> dict[str, Any]:
    models = (text(benchmark, "config", "backend", "model") for benchmark in _benchmarks(document))
    return {"model": next(filter(None, models), None)}


def _of_all(name: str) -> str:
    """Return where the mean of a figure over all requests is; over the successful ones where the file has no other."""
    return f"metrics.{name}.total.mean | metrics.{name}.successful.mean"


GUIDELLM = Reader(
    name="guidellm",
    matches=_matches,
    levels=_benchmarks,
    figures={
        "in_flight": _of_all("request_concurrency"),
        "output_tokens_per_s": _of_all("output_tokens_per_second"),
        "requests_per_s": _of_all("requests_per_second"),
        "requests": "metrics.request_totals.successful",
        "failed": "metrics.request_totals.errored",
        "input_tokens_mean": "metrics.prompt_token_count.successful.mean",
        "output_tokens_mean": "metrics.output_token_count.successful.mean",
        "ttft_s": "time_to_first_token_ms",
        "tpot_s": "inter_token_latency_ms",
        "e2e_s": "request_latency",
    },
    latencies=Latencies(
        at="metrics.{name}.successful.{statistic}",
        names={each: (f"percentiles.{each}",) for each in ("p50", "p90", "p95", "p99")},
    ),
    more=_load,
    facts=_facts,
)
READERS = {"guidellm": (GUIDELLM,)}
