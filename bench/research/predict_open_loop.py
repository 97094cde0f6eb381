"""Published open loops beside the step machine: eleven stages of vLLM on H100, loaded by inference-perf.

Its prompts repeat, so that all but the last block of each is cached. How many steps a first token waits until it is
seen is set on the stages of the other models. Errors are the median of |predicted / measured - 1|.
"""

from __future__ import annotations

import csv
import itertools
import math
import random
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from harness.data.prediction import SteppedLevel
from harness.data.views import Spread
from harness.predict.batching import StepMachine
from harness.predict.catalog import gpu, model_config
from harness.predict.deployment import deployment
from harness.predict.model import model
from harness.predict.simulate import open_loop
from harness.spec.work import MeanLengths

STAGES = Path(__file__).parents[2] / "tests" / "data" / "open_loop_h100.csv"
_BLOCK = 16  # tokens that are computed again at the end of a cached prompt
_REQUESTS, _WARM_UP = 1500, 60.0  # in the window; seconds before it
_STEPS = [each / 10 for each in range(31)]


class Stage(NamedTuple):
    """One stage: what was published and what is predicted; seconds."""

    row: dict[str, str]
    itl: float
    e2e: float
    ttft: float  # where a first token is seen at once
    by_step: float  # what each step that it waits adds

    def measured(self, figure: str) -> float:
        """Return a published figure, in seconds."""
        return float(self.row[figure]) / 1e3


def stages(path: Path = STAGES) -> list[Stage]:
    """Return every stage of the file with its prediction."""
    with path.open(newline="", encoding="utf-8") as file:
        return [_stage(row) for row in csv.DictReader(file)]


def _stage(row: dict[str, str]) -> Stage:
    at_once, later = (_simulated(row, steps) for steps in (0.0, 1.0))
    first = _mean(at_once.ttft_s)
    return Stage(row, _mean(at_once.itl_s), _mean(at_once.e2e_s), first, _mean(later.ttft_s) - first)


def _mean(spread: Spread | None) -> float:
    return math.nan if spread is None or spread.mean is None else spread.mean


def _simulated(row: dict[str, str], steps: float) -> SteppedLevel:
    P = float(row["system_tokens"]) + float(row["question_tokens"])
    lengths, rate = MeanLengths(P, float(row["output_tokens"])), float(row["rate"])
    limits = {name: int(row[name]) for name in ("tp", "max_num_seqs", "max_num_batched_tokens", "kv_tokens")}
    where = deployment(gpu(row["gpu"]), prefix_hit=(P - _BLOCK) / P, o_first=steps, **limits)
    machine = StepMachine(model(model_config(row["model"]), dtype=row["dtype"] or "auto"), where, lengths.context)
    seconds = max(2 * _WARM_UP, _REQUESTS / rate)
    return open_loop(machine, lengths, _poisson(rate), warm_up=_WARM_UP, seconds=seconds)


def _poisson(rate: float) -> Iterator[float]:
    draws = random.Random(0)
    return itertools.accumulate(draws.expovariate(rate) for _ in itertools.count())


def waits(training: list[Stage]) -> float:
    """Return the steps that a first token waits, of least error on these stages."""
    return min(
        _STEPS,
        key=lambda steps: sum(
            math.log((s.ttft + steps * s.by_step) / s.measured("ttft_mean_ms")) ** 2 for s in training
        ),
    )


def table(found: list[Stage]) -> str:
    """Return every stage as Markdown, predicted over measured, and the median errors."""
    lines = ["| model | rate | steps | ITL | E2E | TTFT |", "|---|--:|--:|--:|--:|--:|"]
    errors: list[tuple[float, float, float]] = []
    for stage in found:
        steps = waits([each for each in found if each.row["model"] != stage.row["model"]])
        later = steps * stage.by_step
        ratios = (
            stage.itl / stage.measured("itl_mean_ms"),
            (stage.e2e + later) / stage.measured("e2e_mean_ms"),
            (stage.ttft + later) / stage.measured("ttft_mean_ms"),
        )
        errors.append(tuple(abs(each - 1) for each in ratios))  # type: ignore[arg-type]  # three of them
        name = f"{stage.row['model']}, tp {stage.row['tp']}"
        lines.append(f"| {name} | {stage.row['rate']} | {steps:.1f} | " + " | ".join(f"{x:.2f}" for x in ratios) + " |")
    medians = [statistics.median(column) for column in zip(*errors, strict=True)]
    lines.append("| median error | | | " + " | ".join(f"{each:.0%}" for each in medians) + " |")
    return "\n".join(lines)
