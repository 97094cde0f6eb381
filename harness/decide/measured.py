"""What a prediction or a plan needs of a result folder: the model, its deployment, and what its valid levels reached.

For calibrating on it, for comparing with a prediction, and for replacing one. There open loop and probes are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from harness.analysis import gap, slo
from harness.analysis.at_load import throughput
from harness.analysis.rules import Purpose, usable
from harness.analysis.summarise import summarise
from harness.base.errors import HarnessError
from harness.data.judgement import Outcome
from harness.data.manifest import Machine
from harness.data.summary import LevelSummary, Prediction, Spread, Summary
from harness.predict import served, tune
from harness.predict.catalog import Gpu
from harness.predict.model import Model
from harness.predict.question import Question, short
from harness.predict.roofline import Deployment, MeanLengths
from harness.results.result import Result
from harness.sim import profile as profiles
from harness.spec.scenario import Hardware

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
    """Return the most output tokens/s of the folders within the SLO, by card and GPUs of a replica."""
    limits = slo.limits(question.slo)
    found: dict[tuple[str, int], float] = {}
    for folder in folders:
        run = Result.open(folder)
        summary = summarise(run)
        _same(run, workload(run, summary), question, model.name)
        key, gpus = run.manifest.gpu, run.manifest.gpus
        if key is None or not gpus:
            raise HarnessError("the card it was measured on is not recorded", place=folder, way_out="leave it out")
        within = [each for each in valid(summary) if all(outcome([each], limit) == Outcome.MET for limit in limits)]
        best = max((throughput(summary.curve, [level]).value or 0.0 for level in within), default=None)
        if best is None:
            way_out = "measure longer or at a lower load, or ask for a looser SLO"
            raise HarnessError("no valid level of it is known to meet the SLO", place=folder, way_out=way_out)
        found[key.lower(), gpus] = max(best, found.get((key.lower(), gpus), best))
    return found


def outcome(repeats: Sequence[LevelSummary], limit: slo.SloLimit) -> Outcome:
    """Return whether the repeats of a load meet a limit by their stored percentiles; unresolved where these do not say.

    The percentile decides where the samples are as many as a decision takes (`slo.fewest`). Fewer show that the limit
    is missed where too few are within it even by the lowest percentile above it. Of several repeats the slowest counts.
    """
    found = [each for each in (_stored(level, limit) for level in repeats) if each.samples]
    slowest = max((each.at(limit.needed) for each in found), default=math.nan)
    n = sum(each.samples for each in found)
    if math.isnan(slowest):
        return Outcome.UNRESOLVED
    if n >= slo.fewest(limit.needed):
        return Outcome.MET if slowest <= limit.seconds else Outcome.MISSED
    within = sum(int(each.most_within(limit.seconds) * each.samples) for each in found)
    missed = slo.attained(str(limit), limit.needed, within, n, 1.0).outcome == Outcome.MISSED
    return Outcome.MISSED if missed else Outcome.UNRESOLVED


def percentile(level: LevelSummary, limit: slo.SloLimit) -> float | None:
    """Return the percentile that a limit is about, in seconds; the largest value replaces a missing one."""
    value = _stored(level, limit).at(limit.needed)
    return None if math.isnan(value) else value


class _Stored(msgspec.Struct, frozen=True):
    """What is stored of a limit's samples: seconds by the share that is within them."""

    seconds: dict[float, float]
    samples: int

    def at(self, share: float) -> float:
        """Return the seconds within which the share lies, at most; nan where nothing is known."""
        return self.seconds.get(share, self.seconds.get(1.0, math.nan))

    def most_within(self, seconds: float) -> float:
        """Return the largest share that may lie within so many seconds."""
        return min((share for share, value in self.seconds.items() if value > seconds), default=1.0)


def _stored(level: LevelSummary, limit: slo.SloLimit) -> _Stored:
    """Return what is known of a limit at a level.

    `itl` and `icl` without a percentile are of requests: their mean pace, and their longest gap.
    """
    if limit.figure == "icl" and not limit.of_gaps:
        longest = level.icl_s.max
        return _Stored({} if longest is None else {1.0: longest}, level.e2e_s.n)
    of_requests = limit.figure == "itl" and not limit.of_gaps
    spread: Spread = level.tpot_s if of_requests else getattr(level, f"{limit.figure}_s")
    stored = {0.5: spread.p50, 0.9: spread.p90, 0.95: spread.p95, 0.99: spread.p99, 1.0: spread.max}
    return _Stored({share: seconds for share, seconds in stored.items() if seconds is not None}, spread.n)


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
