"""llm-d's benchmark report, versions 0.1 and 0.2, as JSON: one level, with the stack that served.

Fields: llm-d-benchmark, llmdbenchmark/analysis/benchmark_report. Its files are YAML; JSON is YAML too, and is what is
read. Times carry their unit. In a report that `knee export` wrote, the run's keywords have the level's verdicts.
"""

from __future__ import annotations

from typing import Any

from harness.results.readers.level import (
    KNEE,
    MS,
    NO_ERROR,
    WHOLE_RUN,
    ForeignResult,
    Latencies,
    Reader,
    at,
    count,
    level,
    number,
    positive,
    text,
    validity,
    whole,
)

_NAME = "llm-d benchmark report"
_OLD, _NEW = ("metrics",), ("results", "request_performance", "aggregate")
_SIMULATED = "simulated"  # a keyword of Knee's own export
_FIGURES = {
    "failed": "requests.failures",
    "input_tokens_mean": "requests.input_length.mean",
    "output_tokens_mean": "requests.output_length.mean",
    "ttft_s": "time_to_first_token",
    "itl_s": "inter_token_latency",
    "tpot_s": "time_per_output_token",
    "e2e_s": "request_latency",
}
_LATENCIES = Latencies(
    at="latency.{name}.{statistic}",
    unit_at="latency.{name}.units",
    units={"s": 1.0, "s/token": 1.0, "ms": MS, "ms/token": MS},
)


def _matches(found: Any) -> bool:
    return at(found, "scenario") is not None and any(
        at(found, *base, "throughput") is not None and at(found, *base, "requests") is not None for base in (_OLD, _NEW)
    )


def _read(found: Any) -> ForeignResult:
    done = at(found, *_NEW) or at(found, *_OLD)
    concurrency, rate = _load(at(found, "scenario", "load"))
    own = text(found, "scenario", "load", "standardized", "tool") == KNEE
    words = at(found, "run", "keywords") if own else None
    valid, in_flight_ok = validity(words)
    measured = level(
        done,
        _FIGURES,
        _LATENCIES,
        concurrency=concurrency,
        rate=rate,
        output_tokens_per_s=_rate(done, "output_tokens_per_sec", "output_token_rate"),
        requests_per_s=_rate(done, "requests_per_sec", "request_rate"),
        requests=_answered(at(done, "requests")),
        valid=valid,
        in_flight_ok=in_flight_ok,
    )
    cards, engine, model = _stack(at(found, "scenario"))
    names = {text(card, "model") for card in cards}
    counts = [count(card, "count") for card in cards]
    return ForeignResult(
        source=KNEE if own else _NAME,
        levels=[measured],
        simulated=isinstance(words, list) and _SIMULATED in words,
        model=model,
        engine=engine,
        gpu=names.pop() if len(names) == 1 else None,
        gpus=sum(n or 0 for n in counts) if counts and None not in counts else None,
        lacks=(NO_ERROR,) if own else (WHOLE_RUN, NO_ERROR),
    )


def _load(load: Any) -> tuple[float | None, float | None]:
    """Return requests in flight, or a second. Of vLLM's tool a finite rate is an open loop, and the other its bound."""
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
    """Return the accelerators of each replica, the engine and the model, of both versions."""
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


READERS = (Reader(name=_NAME, matches=_matches, read=_read),)
