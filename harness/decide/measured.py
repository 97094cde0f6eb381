"""What a prediction needs of a result folder: the model, its deployment, and what its valid levels reached.

For calibrating on it, for comparing with a prediction, and for replacing one. Open loop and probes are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from harness.analysis import gap, slo
from harness.analysis.summarise import summarise
from harness.analysis.validity import Purpose, usable
from harness.errors import HarnessError
from harness.manifest import Machine
from harness.predict import served, tune
from harness.predict.catalog import Gpu
from harness.predict.model import Model
from harness.predict.question import Question, short
from harness.predict.roofline import Deployment, MeanLengths
from harness.results.result import Result
from harness.scenario import Hardware
from harness.sim import profile as profiles
from harness.summary import LevelSummary, Prediction, Spread, Summary

_CLOSE = 0.1  # relative: token counts that still count as those requested


def valid(summary: Summary) -> list[LevelSummary]:
    """The valid levels of the ramp, in closed loop."""
    return [
        level
        for level in summary.levels
        if level.concurrency is not None
        and level.input_tokens_asked is None
        and level.output_tokens_per_s.mean
        and usable(level, Purpose.ANSWER)
    ]


def points(summary: Summary) -> list[tune.CalibrationPoint]:
    """The valid levels' means."""
    return [
        tune.CalibrationPoint(
            concurrency=level.concurrency or 0,
            output_tokens_per_s=level.output_tokens_per_s.mean or 0.0,
            itl_s=level.itl_s.mean,
            ttft_s=level.ttft_s.mean,
        )
        for level in valid(summary)
    ]


def hardware(run: Result) -> Hardware:
    """The hardware that the run was begun with."""
    found = run.manifest.scenario.hardware
    return found if found.gpu else msgspec.structs.replace(found, gpu=run.manifest.gpu)


def deployed(
    run: Result, where: Hardware, measure: Callable[[Sequence[int] | None], Machine]
) -> tuple[Model, Deployment]:
    """The model and its deployment by the data sheet, as the manifest has them; `where` is its hardware, filled up.

    `measure` measures cores of this machine, where they served and the manifest has no figures of them.
    """
    manifest = run.manifest
    if manifest.url == "sim:" and manifest.simulated is not None:
        profile = profiles.embedded(manifest.scenario.sim)
        return profile.model, profile.deployment
    known = manifest.machine
    if known is not None and where.gpu == served.HOST and where.host_cpus is None:
        card: Gpu | None = served.host(known)
    else:
        card = served.find(where, manifest.gpu_facts, measure).card
    found = served.deployed(where, card, manifest.cache_config)
    if found is None:
        missing = "--gpu" if card is None else "--model-config"
        fact = f"the {'card' if card is None else 'model'} that served is not recorded"
        raise HarnessError(fact, place=str(run.path), way_out=f"add {missing}")
    made, deployment = found
    return msgspec.structs.replace(made, name=short(made.name)), deployment


def workload(run: Result, summary: Summary) -> MeanLengths:
    """The mean tokens of its requests, as the server counted them."""
    requested = run.manifest.workload
    levels = valid(summary)

    def mean(values: Sequence[float | None], otherwise: float) -> float:
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else otherwise

    return MeanLengths(
        mean([level.input_tokens_mean for level in levels], requested.input_tokens or 0.0),
        mean([level.output_tokens_mean for level in levels], requested.output_tokens or 0.0),
    )


def with_measured(prediction: Prediction, question: Question, folders: Sequence[str]) -> Prediction:
    """The prediction with measured over predicted at every level of the folders."""
    levels = []
    for folder in folders:
        run = Result.open(folder)
        summary = summarise(run)
        _same(run, workload(run, summary), question, prediction.model)
        _same_hardware(run, prediction)
        levels += valid(summary)
    return gap.with_ratios(prediction, levels)


def rates(model: Model, question: Question, folders: Sequence[str]) -> dict[tuple[str, int], float]:
    """The best output tokens/s of the folders within the SLO, by card and GPUs of a replica."""
    limits = slo.limits(question.slo)
    found: dict[tuple[str, int], float] = {}
    for folder in folders:
        run = Result.open(folder)
        summary = summarise(run)
        _same(run, workload(run, summary), question, model.name)
        key, gpus = run.manifest.gpu, run.manifest.gpus
        if key is None or not gpus:
            raise HarnessError("the card it was measured on is not recorded", place=folder, way_out="leave it out")
        within = [level for level in valid(summary) if all(met(level, limit) for limit in limits)]
        best = max((level.output_tokens_per_s.mean or 0.0 for level in within), default=None)
        if best is None:
            way_out = "measure a lower load, or ask for a looser SLO"
            raise HarnessError("no valid level of it meets the SLO", place=folder, way_out=way_out)
        found[key.lower(), gpus] = max(best, found.get((key.lower(), gpus), best))
    return found


def met(level: LevelSummary, limit: slo.SloLimit) -> bool:
    """Whether the limit's percentile is within it."""
    value = percentile(level, limit)
    return value is not None and value <= limit.seconds


def percentile(level: LevelSummary, limit: slo.SloLimit) -> float | None:
    """The percentile that a limit is about, in seconds; the largest value replaces a missing one.

    `itl` and `icl` without a percentile are of requests: their mean pace, and their longest gap.
    """
    if limit.figure == "icl" and not limit.of_gaps:
        return level.icl_s.max
    of_requests = limit.figure == "itl" and not limit.of_gaps
    spread: Spread = level.tpot_s if of_requests else getattr(level, f"{limit.figure}_s")
    known = {0.5: spread.p50, 0.9: spread.p90, 0.95: spread.p95, 0.99: spread.p99}
    value = known.get(limit.needed)
    return spread.max if value is None else value


def _same(run: Result, served: MeanLengths, question: Question, name: str) -> None:
    """Refuse a measurement of something else."""
    pairs = ((served.input_tokens, question.input_tokens), (served.output_tokens, question.output_tokens))
    if any(abs(got - wanted) > _CLOSE * max(wanted, 1) for got, wanted in pairs):
        fact = f"it was measured with {pairs[0][0]:.0f} tokens in and {pairs[1][0]:.0f} out"
        way_out = f"give --input-tokens {pairs[0][0]:.0f} --output-tokens {pairs[1][0]:.0f}, or leave it out"
        raise HarnessError(fact, place=str(run.path), way_out=way_out)
    measured = run.manifest.prediction.model if run.manifest.prediction else None
    if measured and short(measured).lower() != name.lower():
        raise HarnessError(f"it was measured with {short(measured)}", place=str(run.path), way_out="leave it out")


def _same_hardware(run: Result, prediction: Prediction) -> None:
    """Refuse a measurement on another card, or on another number of them, as far as it has them."""
    key, gpus = run.manifest.gpu, run.manifest.gpus
    if key and key.lower() != prediction.gpu.lower():
        way_out = f"give --gpu {key}, or leave it out"
        raise HarnessError(f"it was measured on {key}, not on {prediction.gpu}", place=str(run.path), way_out=way_out)
    if gpus and gpus != prediction.gpus:
        raise HarnessError(
            f"it was measured on {gpus} GPU{'s' if gpus > 1 else ''}, and {prediction.gpus} "
            f"{'are' if prediction.gpus > 1 else 'is'} predicted",
            place=str(run.path),
            way_out="predict as many, or leave it out",
        )
