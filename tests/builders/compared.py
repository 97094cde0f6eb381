"""Runs of stacks whose throughput is straight up to a cap, for comparisons by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from harness.analysis.points import Point
from harness.decide.compare.runs import Facts, Run

LEVELS = (1, 2, 4, 8, 16, 32, 64)
FACTS = Facts(
    measured_by="knee, format 2", workload="w", unit="output tokens", model="m", parameters=8e9, gpu="h100", gpus="1",
    power_limit="700 W", precision="bf16", kv_dtype="auto", tp="1", max_num_seqs="256", engine="vllm",
    start="staggered", transport="socket",
)  # fmt: skip


def throughput(C: float, cap: float = 1600.0, single: float = 100.0) -> float:
    return min(C * single, cap)


def run(
    label: str,
    factor: float = 1.0,
    *,
    cap: float = 1600.0,
    single: float = 100.0,
    levels: Sequence[int] = LEVELS,
    **of: Any,
) -> Run:
    """A run of a stack whose throughput is straight up to a cap, known to 0.5 %."""
    X = [factor * throughput(C, cap, single) for C in levels]
    points = [Point(float(C), float(C), x, 0.005 * x) for C, x in zip(levels, X, strict=True)]
    made = Run(label=label, place=label, facts=FACTS, input_tokens=512.0, output_tokens=128.0, points=points, loads=[])
    return msgspec.structs.replace(made, **of)


def repeats(label: str, *factors: float, **of: Any) -> list[Run]:
    return [run(label, factor, **of) for factor in factors]


def differing(**of: Any) -> Facts:
    return msgspec.structs.replace(FACTS, **of)
