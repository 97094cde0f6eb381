"""Reports of levels: inference-perf's, llm-d's benchmark report, and the aggregate of InferenceX.

The lifecycle reports of inference-perf, stage_N_lifecycle_metrics.json and summary_…, have one level a file. Fields:
inference-perf, inference_perf/reportgen/base.py. Stages by rate are an open loop; the summary of several stages names
no load.

llm-d's report, versions 0.1 and 0.2, has one level, with the stack that served. Fields: llm-d-benchmark,
llmdbenchmark/analysis/benchmark_report. Its files are YAML, or JSON. Times carry their unit.

InferenceX (formerly InferenceMAX) has a row a level, per GPU, with hardware, engine and precision. Fields:
utils/process_result.py, by stored copies of several of its versions of 2025 and 2026; none of its published files was
at hand. Rates are per GPU of the replica, of which there are tp. With prefill and decode apart the output is per GPU of
the decode pool, and the replica has both pools. Times are seconds.
"""

from __future__ import annotations

from typing import Any

from harness.results.readers import level
from harness.results.readers.level import NO_ERROR, NO_SERVER, WHOLE_RUN, Latencies, Reader, at, count, positive, text


def _is_inference_perf(document: Any) -> bool:
    return at(document, "successes", "throughput") is not None and at(document, "successes", "latency") is not None


def _load_of_inference_perf(document: Any) -> dict[str, Any]:
    concurrency = positive(document, "load_summary", "concurrency")
    rate = None if concurrency else positive(document, "load_summary", "requested_rate")
    return {"concurrency": concurrency, "rate": rate}


INFERENCE_PERF = Reader(
    name="inference-perf",
    matches=_is_inference_perf,
    figures={
        "output_tokens_per_s": "successes.throughput.output_tokens_per_sec",
        "requests_per_s": "successes.throughput.requests_per_sec",
        "requests": "successes.count",
        "failed": "failures.count",
        "input_tokens_mean": "successes.prompt_len.mean",
        "output_tokens_mean": "successes.output_len.mean",
        "ttft_s": "time_to_first_token",
        "itl_s": "inter_token_latency",
        "tpot_s": "time_per_output_token",
        "e2e_s": "request_latency",
    },
    latencies=Latencies(at="successes.latency.{name}.{statistic}", names={"p50": ("median",)}),
    more=_load_of_inference_perf,
    lacks=(WHOLE_RUN, NO_ERROR, NO_SERVER, "it names no model"),
)

# ---- llm-d

_OLD, _NEW = ("metrics",), ("results", "request_performance", "aggregate")


def _is_llm_d(document: Any) -> bool:
    bases = [at(document, *base) for base in (_OLD, _NEW)]
    figures = any(at(base, "throughput") is not None and at(base, "requests") is not None for base in bases)
    return figures and at(document, "scenario") is not None


def _levels_of_llm_d(document: Any) -> list[Any]:
    """Return the level's figures, which the versions keep in two places, with the report that has its load."""
    return [{"done": at(document, *_NEW) or at(document, *_OLD), "report": document}]


def _extra_of_llm_d(document: Any) -> dict[str, Any]:
    """Return a level's load, and how many requests neither failed nor were cut off; with vLLM's tool a rate wins."""
    load, requests = at(document["report"], "scenario", "load"), at(document["done"], "requests")
    standard, own = at(load, "standardized"), at(load, "args")
    concurrency = positive(standard, "concurrency") or positive(own, "max_concurrency")
    rate = positive(standard, "rate_qps") or positive(own, "qps_values") or positive(own, "request_rate")
    bounded = rate and (text(standard, "tool") or text(load, "name") or "").lower().startswith("vllm")
    by_rate = bounded or not concurrency
    total, *others = (level.whole(requests, name) for name in ("total", "failures", "incomplete"))
    answered = None if total is None else max(0, total - sum(each or 0 for each in others)) or None
    return {"concurrency": None if by_rate else concurrency, "rate": rate if by_rate else None, "requests": answered}


def _facts_of_llm_d(document: Any) -> dict[str, Any]:
    cards, engine, model = _stack(at(document, "scenario"))
    names, counts = {text(card, "model") for card in cards}, [count(card, "count") for card in cards]
    return {
        "model": model,
        "engine": engine,
        "gpu": names.pop() if len(names) == 1 else None,
        "gpus": sum(n or 0 for n in counts) if counts and None not in counts else None,
    }


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


LLM_D = Reader(
    name="llm-d benchmark report",
    matches=_is_llm_d,
    levels=_levels_of_llm_d,
    figures={
        "output_tokens_per_s": "done.throughput.output_tokens_per_sec | done.throughput.output_token_rate.mean",
        "requests_per_s": "done.throughput.requests_per_sec | done.throughput.request_rate.mean",
        "failed": "done.requests.failures",
        "input_tokens_mean": "done.requests.input_length.mean",
        "output_tokens_mean": "done.requests.output_length.mean",
        "ttft_s": "time_to_first_token",
        "itl_s": "inter_token_latency",
        "tpot_s": "time_per_output_token",
        "e2e_s": "request_latency",
    },
    latencies=Latencies(at="done.latency.{name}.{statistic}", unit_at="done.latency.{name}.units"),
    more=_extra_of_llm_d,
    facts=_facts_of_llm_d,
    lacks=(WHOLE_RUN, NO_ERROR),
)

# ---- InferenceX


def _gpus(document: Any) -> int | None:
    apart = [count(document, name) for name in ("num_prefill_gpu", "num_decode_gpu")]
    pools = [each for each in apart if each is not None]
    return sum(pools) if pools else count(document, "num_gpus") or count(document, "tp")


def _throughput_of_inferencex(document: Any) -> dict[str, Any]:
    per_gpu, gpus = level.number(document, "output_tput_per_gpu"), count(document, "num_decode_gpu") or _gpus(document)
    return {"output_tokens_per_s": per_gpu * gpus if per_gpu is not None and gpus else None}


def _facts_of_inferencex(document: Any) -> dict[str, Any]:
    names = {"model": "model", "engine": "framework", "gpu": "hw", "precision": "precision"}
    return {"gpus": _gpus(document), **{ours: text(document, theirs) for ours, theirs in names.items()}}


INFERENCEX = Reader(
    name="InferenceX",
    matches=lambda found: level.has(found, "conc", "tput_per_gpu", "output_tput_per_gpu"),
    figures={
        "concurrency": "conc",
        "input_tokens_mean": "isl",
        "output_tokens_mean": "osl",
        "ttft_s": "ttft",
        "tpot_s": "tpot",
        "e2e_s": "e2el",
    },
    latencies=Latencies(at="{statistic}_{name}", names={"p50": ("median", "p50")}),
    more=_throughput_of_inferencex,
    facts=_facts_of_inferencex,
    lacks=(WHOLE_RUN, NO_ERROR),
)
READERS = {"inference-perf": (INFERENCE_PERF,), "llm-d": (LLM_D,), "inferencex": (INFERENCEX,)}
