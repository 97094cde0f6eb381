"""The JSON of `guidellm`: a level a benchmark, with the successful requests' figures.

Fields: GuideLLM, src/guidellm/benchmark/schemas. Each benchmark has the strategy that was realised; the settings of the
whole run moved between versions and are not needed. Its "inter token latency" is a mean of each request, TPOT here; its
"time per output token" is the whole response's, with the wait for the first.
"""

from __future__ import annotations

from typing import Any

from harness.results.readers.level import (
    NO_ERROR,
    NO_SERVER,
    WHOLE_RUN,
    ForeignLevel,
    ForeignResult,
    Latencies,
    Reader,
    at,
    level,
    positive,
    text,
)

_NAME = "guidellm"
_FIGURES = {
    "in_flight": "request_concurrency.successful.mean",
    "output_tokens_per_s": "output_tokens_per_second.successful.mean",
    "requests_per_s": "requests_per_second.successful.mean",
    "requests": "request_totals.successful",
    "failed": "request_totals.errored",
    "input_tokens_mean": "prompt_token_count.successful.mean",
    "output_tokens_mean": "output_token_count.successful.mean",
    "ttft_s": "time_to_first_token_ms",
    "tpot_s": "inter_token_latency_ms",
    "e2e_s": "request_latency",
}
_LATENCIES = Latencies(
    at="{name}.successful.{statistic}",
    names={each: (f"percentiles.{each}",) for each in ("p50", "p90", "p95", "p99")},
)


def _matches(found: Any) -> bool:
    benchmarks = found.get("benchmarks") if isinstance(found, dict) else None
    return isinstance(benchmarks, list) and any(at(each, "metrics", "time_to_first_token_ms") for each in benchmarks)


def _read(found: Any) -> ForeignResult:
    benchmarks = [each for each in found["benchmarks"] if isinstance(at(each, "metrics"), dict)]
    models = [text(each, "config", "backend", "model") for each in benchmarks]
    return ForeignResult(
        source=_NAME,
        levels=[_level(each) for each in benchmarks],
        model=next((model for model in models if model), None),
        lacks=(WHOLE_RUN, NO_ERROR, NO_SERVER),
    )


def _level(benchmark: Any) -> ForeignLevel:
    strategy = at(benchmark, "config", "strategy") or at(benchmark, "args", "strategy")
    alone = text(strategy, "type_") == "synchronous"
    concurrency = 1.0 if alone else positive(strategy, "streams")
    return level(benchmark["metrics"], _FIGURES, _LATENCIES, concurrency=concurrency, rate=positive(strategy, "rate"))


READERS = (Reader(name=_NAME, matches=_matches, read=_read),)
