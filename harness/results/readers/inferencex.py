"""The aggregate of InferenceX: a row a level, per GPU, with hardware, engine and precision.

Fields: InferenceX (formerly InferenceMAX), utils/process_result.py, by stored copies of several of its versions of 2025
and 2026; none of its published files was at hand. Rates are per GPU of the replica, of which there are tp. With prefill
and decode apart the output is per GPU of the decode pool, and the replica has both pools. Times are seconds.
"""

from __future__ import annotations

from typing import Any

from harness.results.readers.level import NO_ERROR, WHOLE_RUN, Latencies, Reader, count, number, positive, text


def _matches(found: Any) -> bool:
    return isinstance(found, dict) and {"conc", "tput_per_gpu", "output_tput_per_gpu"} <= found.keys()


def _gpus(found: Any) -> int | None:
    apart = [count(found, name) for name in ("num_prefill_gpu", "num_decode_gpu")]
    pools = [each for each in apart if each is not None]
    return sum(pools) if pools else count(found, "num_gpus") or count(found, "tp")


def _extra(found: Any) -> dict[str, Any]:
    per_gpu, gpus = number(found, "output_tput_per_gpu"), count(found, "num_decode_gpu") or _gpus(found)
    return {
        "concurrency": positive(found, "conc"),
        "output_tokens_per_s": per_gpu * gpus if per_gpu is not None and gpus else None,
    }


def _facts(found: Any) -> dict[str, Any]:
    return {
        "model": text(found, "model"),
        "engine": text(found, "framework"),
        "gpu": text(found, "hw"),
        "gpus": _gpus(found),
        "precision": text(found, "precision"),
    }


READERS = (
    Reader(
        name="InferenceX",
        matches=_matches,
        figures={
            "input_tokens_mean": "isl",
            "output_tokens_mean": "osl",
            "ttft_s": "ttft",
            "tpot_s": "tpot",
            "e2e_s": "e2el",
        },
        latencies=Latencies(at="{statistic}_{name}", names={"p50": ("median", "p50")}),
        more=_extra,
        facts=_facts,
        lacks=(WHOLE_RUN, NO_ERROR),
    ),
)
