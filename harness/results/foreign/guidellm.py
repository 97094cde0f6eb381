"""The JSON of `guidellm`: a level a benchmark, with the successful requests' figures.

Fields: GuideLLM, src/guidellm/benchmark/schemas. The strategy that was realised stands with each benchmark; its
run-wide settings moved between versions and are not needed. Its "inter token latency" is a mean of each request, TPOT
here; its "time per output token" is the whole answer's, with the wait for the first.
"""

from __future__ import annotations

from typing import Any

from harness.results.foreign.fields import MS, at, count, number, positive, text, whole
from harness.results.foreign.measured import NO_ERROR, NO_SERVER, WHOLE_RUN, ForeignLevel, ForeignResult, Latency

NAME = "guidellm"


def matches(found: Any) -> bool:
    benchmarks = found.get("benchmarks") if isinstance(found, dict) else None
    return isinstance(benchmarks, list) and any(at(each, "metrics", "time_to_first_token_ms") for each in benchmarks)


def read(found: Any) -> ForeignResult:
    benchmarks = [each for each in found["benchmarks"] if isinstance(at(each, "metrics"), dict)]
    models = [text(each, "config", "backend", "model") for each in benchmarks]
    return ForeignResult(
        source=NAME,
        levels=[_level(each) for each in benchmarks],
        model=next((model for model in models if model), None),
        lacks=(WHOLE_RUN, NO_ERROR, NO_SERVER),
    )


def _level(benchmark: Any) -> ForeignLevel:
    metrics, strategy = benchmark["metrics"], at(benchmark, "config", "strategy") or at(benchmark, "args", "strategy")
    alone = text(strategy, "type_") == "synchronous"
    return ForeignLevel(
        concurrency=1.0 if alone else positive(strategy, "streams"),
        rate=positive(strategy, "rate"),
        in_flight=positive(metrics, "request_concurrency", "successful", "mean"),
        output_tokens_per_s=number(metrics, "output_tokens_per_second", "successful", "mean"),
        requests_per_s=number(metrics, "requests_per_second", "successful", "mean"),
        requests=count(metrics, "request_totals", "successful"),
        failed=whole(metrics, "request_totals", "errored"),
        input_tokens_mean=number(metrics, "prompt_token_count", "successful", "mean"),
        output_tokens_mean=number(metrics, "output_token_count", "successful", "mean"),
        ttft_s=_latency(metrics, "time_to_first_token_ms", MS),
        tpot_s=_latency(metrics, "inter_token_latency_ms", MS),
        e2e_s=_latency(metrics, "request_latency", 1.0),
    )


def _latency(metrics: Any, name: str, unit: float) -> Latency:
    found = at(metrics, name, "successful")
    ends = at(found, "percentiles")
    return Latency(
        mean=number(found, "mean", unit=unit),
        p50=number(ends, "p50", unit=unit),
        p90=number(ends, "p90", unit=unit),
        p95=number(ends, "p95", unit=unit),
        p99=number(ends, "p99", unit=unit),
    )
