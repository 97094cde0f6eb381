"""llm-d's benchmark report, versions 0.1 and 0.2: one level, with the stack that served.

Fields: llm-d-benchmark, llmdbenchmark/analysis/benchmark_report. Its files are YAML, or JSON. Times carry their unit.
"""

from __future__ import annotations

from typing import Any

from harness.results.readers.level import (
    NO_ERROR,
    WHOLE_RUN,
    Latencies,
    Reader,
    at,
    count,
    number,
    positive,
    text,
    whole,
)

_OLD, _NEW = ("metrics",), ("results", "request_performance", "aggregate")


def _matches(found: Any) -> bool:
    return at(found, "scenario") is not None and any(
        at(found, *base, "throughput") is not None and at(found, *base, "requests") is not None for base in (_OLD, _NEW)
    )


def _levels(found: Any) -> list[Any]:
    """Return the level's figures, which the versions keep in two places, with the report that has its load."""
    return [{"done": at(found, *_NEW) or at(found, *_OLD), "report": found}]


def _extra(found: Any) -> dict[str, Any]:
    """Return a level's load (concurrency or rate), its rates, and how many requests were answered, by our names."""
    done, report = found["done"], found["report"]
    concurrency, rate = _load(at(report, "scenario", "load"))
    return {
        "concurrency": concurrency,
        "rate": rate,
        "output_tokens_per_s": _rate(done, "output_tokens_per_sec", "output_token_rate"),
        "requests_per_s": _rate(done, "requests_per_sec", "request_rate"),
        "requests": _answered(at(done, "requests")),
    }


def _facts(found: Any) -> dict[str, Any]:
    cards, engine, model = _stack(at(found, "scenario"))
    names, counts = {text(card, "model") for card in cards}, [count(card, "count") for card in cards]
    return {
        "model": model,
        "engine": engine,
        "gpu": names.pop() if len(names) == 1 else None,
        "gpus": sum(n or 0 for n in counts) if counts and None not in counts else None,
    }


def _load(load: Any) -> tuple[float | None, float | None]:
    """Return (concurrency, None) or (None, rate) of a load; with vLLM's tool a rate wins over a concurrency bound."""
    standard, own = at(load, "standardized"), at(load, "args")
    concurrency = positive(standard, "concurrency") or positive(own, "max_concurrency")
    rate = positive(standard, "rate_qps") or positive(own, "qps_values") or positive(own, "request_rate")
    bounded = rate and (text(standard, "tool") or text(load, "name") or "").lower().startswith("vllm")
    return (None, rate) if bounded or not concurrency else (concurrency, None)


def _answered(requests: Any) -> int | None:
    """Return how many of all requests neither failed nor were cut off."""
    total, others = whole(requests, "total"), [whole(requests, name) or 0 for name in ("failures", "incomplete")]
    return None if total is None else max(0, total - sum(others)) or None


def _stack(scenario: Any) -> tuple[list[Any], str | None, str | None]:
    """Return (accelerators, one entry a replica; engine; model) of a report in either version of the format."""
    stack = at(scenario, "stack")
    if isinstance(stack, list):
        engines = [at(each, "standardized") for each in stack]
        engines = [each for each in engines if text(each, "kind") == "inference_engine"]
        cards = [card for each in engines for card in [at(each, "accelerator")] * (count(each, "replicas") or 1)]
        first = engines[0] if engines else None
        return cards, text(first, "tool"), text(first, "model", "name")
    cards, engines = at(scenario, "host", "accelerator"), at(scenario, "platform", "engine")
    engine = text(engines[0], "name") if isinstance(engines, list) and engines else None
    return cards if isinstance(cards, list) else [], engine, text(scenario, "model", "name")


def _rate(done: Any, old: str, new: str) -> float | None:
    found = number(done, "throughput", old)
    return number(done, "throughput", new, "mean") if found is None else found


READERS = (
    Reader(
        name="llm-d benchmark report",
        matches=_matches,
        levels=_levels,
        figures={
            "failed": "done.requests.failures",
            "input_tokens_mean": "done.requests.input_length.mean",
            "output_tokens_mean": "done.requests.output_length.mean",
            "ttft_s": "time_to_first_token",
            "itl_s": "inter_token_latency",
            "tpot_s": "time_per_output_token",
            "e2e_s": "request_latency",
        },
        latencies=Latencies(
            at="done.latency.{name}.{statistic}",
            unit_at="done.latency.{name}.units",
        ),
        more=_extra,
        facts=_facts,
        lacks=(WHOLE_RUN, NO_ERROR),
    ),
)
