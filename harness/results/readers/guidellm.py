"""The JSON of `guidellm`: a level a benchmark, with the successful requests' figures.

Fields: GuideLLM, src/guidellm/benchmark/schemas. Each benchmark has the strategy that was realised; the settings of the
whole run moved between versions and are not needed. Its "inter token latency" is a mean of each request, TPOT here; its
"time per output token" is the whole response's, with the wait for the first.
"""

from __future__ import annotations

from typing import Any

from harness.results.readers.level import Latencies, Reader, at, positive, text


def _matches(found: Any) -> bool:
    benchmarks = found.get("benchmarks") if isinstance(found, dict) else None
    return isinstance(benchmarks, list) and any(at(each, "metrics", "time_to_first_token_ms") for each in benchmarks)


def _benchmarks(found: Any) -> list[Any]:
    return [each for each in found["benchmarks"] if isinstance(at(each, "metrics"), dict)]


def _load(benchmark: Any) -> dict[str, Any]:
    strategy = at(benchmark, "config", "strategy") or at(benchmark, "args", "strategy")
    alone = text(strategy, "type_") == "synchronous"
    return {"concurrency": 1.0 if alone else positive(strategy, "streams"), "rate": positive(strategy, "rate")}


def _facts(found: Any) -> dict[str, Any]:
    models = (text(each, "config", "backend", "model") for each in _benchmarks(found))
    return {"model": next(filter(None, models), None)}


READERS = (
    Reader(
        name="guidellm",
        matches=_matches,
        levels=_benchmarks,
        figures={
            "in_flight": "metrics.request_concurrency.successful.mean",
            "output_tokens_per_s": "metrics.output_tokens_per_second.successful.mean",
            "requests_per_s": "metrics.requests_per_second.successful.mean",
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
    ),
)
