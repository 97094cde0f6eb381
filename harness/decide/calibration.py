"""What a prediction needs from a result folder: the model, its deployment, and what its valid levels reached.

A prediction is calibrated on these, compared with them, or replaced by them. Open loops and probes are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from harness.analysis import gap
from harness.analysis.stats import known_mean
from harness.analysis.summarise import summarise
from harness.base.errors import HarnessError
from harness.data.levels import LevelSummary
from harness.data.machines import Machine
from harness.data.prediction import Prediction
from harness.data.summary import Summary
from harness.decide import levels
from harness.predict import fitting, question
from harness.predict.catalog import Gpu, short
from harness.predict.deployment import Deployment
from harness.predict.model import Model
from harness.predict.question import Question
from harness.results.result import Result
from harness.sim import profile as profiles
from harness.spec.scenario import Hardware
from harness.spec.work import MeanLengths

_CLOSE = 0.1  # relative: token counts that still count as those requested


def closed_loop(summary: Summary) -> list[LevelSummary]:
    """Return the valid levels of the ramp, in closed loop."""
    found = levels.valid(summary.levels)
    return [level for level in found if level.concurrency is not None and level.output_tokens_per_s.mean]


def points(summary: Summary) -> list[fitting.CalibrationPoint]:
    """Return throughput, ITL and TTFT of each valid closed-loop level, as points for the calibration's fit."""
    return [
        fitting.CalibrationPoint(
            concurrency=level.concurrency or 0,
            output_tokens_per_s=level.output_tokens_per_s.mean or 0.0,
            itl_s=level.itl_s.mean,
            ttft_s=level.ttft_s.mean,
        )
        for level in closed_loop(summary)
    ]


def hardware(run: Result) -> Hardware:
    """Return the hardware that the run was begun with."""
    found = run.manifest.scenario.hardware
    return found if found.gpu else msgspec.structs.replace(found, gpu=run.manifest.gpu)


def deployed(
    run: Result, where: Hardware, measure: Callable[[Sequence[int] | None], Machine]
) -> tuple[Model, Deployment]:
    """Return the model and deployment that a run measured, with data-sheet figures; raise HarnessError if not recorded.

    `where` is the manifest's hardware, completed by options. `measure` measures cores of this machine, if such cores
    served and the manifest has no figures of them.
    """
    manifest = run.manifest
    if manifest.url == "sim:" and manifest.simulated is not None:
        profile = profiles.embedded(manifest.scenario.sim)
        return profile.model, profile.deployment
    known = manifest.machine
    if known is not None and where.gpu == question.HOST and where.host_cpus is None:
        card: Gpu | None = question.host(known)
    else:
        card = question.find(where, manifest.gpu_facts, measure).card
    found = question.deployed(where, card, manifest.cache_config)
    if found is None:
        missing = "--gpu" if card is None else "--model-config"
        fact = f"the {'card' if card is None else 'model'} that served is not recorded"
        raise HarnessError(fact, place=str(run.path), way_out=f"add {missing}")
    made, deployment = found
    return msgspec.structs.replace(made, name=short(made.name)), deployment


def workload(run: Result, summary: Summary) -> MeanLengths:
    """Return the mean tokens in and out of a run's requests: as the server counted them, else as asked."""
    requested, measured = run.manifest.workload, closed_loop(summary)
    inputs = known_mean(level.input_tokens_mean for level in measured)
    outputs = known_mean(level.output_tokens_mean for level in measured)
    return MeanLengths(
        requested.input_tokens or 0.0 if inputs is None else inputs,
        requested.output_tokens or 0.0 if outputs is None else outputs,
    )


def with_measured(prediction: Prediction, question: Question, folders: Sequence[str]) -> Prediction:
    """Return the prediction with measured ÷ predicted for each level; refuse folders of other models or hardware."""
    measured = []
    for folder in folders:
        run = Result.open(folder)
        summary = summarise(run)
        _must_match_question(run, workload(run, summary), question, prediction.model)
        _must_match_hardware(run, prediction)
        measured += closed_loop(summary)
    return gap.with_ratios(prediction, measured)


def _must_match_question(run: Result, lengths: MeanLengths, question: Question, name: str) -> None:
    """Raise HarnessError if a run was measured with other lengths or with another model than the question's."""
    pairs = ((lengths.input_tokens, question.input_tokens), (lengths.output_tokens, question.output_tokens))
    if any(abs(got - wanted) > _CLOSE * max(wanted, 1) for got, wanted in pairs):
        fact = f"it was measured with {pairs[0][0]:.0f} tokens in and {pairs[1][0]:.0f} out"
        way_out = f"give --input-tokens {pairs[0][0]:.0f} --output-tokens {pairs[1][0]:.0f}, or leave it out"
        raise HarnessError(fact, place=str(run.path), way_out=way_out)
    measured = run.manifest.prediction.model if run.manifest.prediction else None
    if measured and short(measured).lower() != name.lower():
        raise HarnessError(f"it was measured with {short(measured)}", place=str(run.path), way_out="leave it out")


def _must_match_hardware(run: Result, prediction: Prediction) -> None:
    """Raise HarnessError if a run records another card or number of GPUs than was predicted."""
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
