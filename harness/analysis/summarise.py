"""From a result folder to its summary: the same way for a run that just ended, an old one, and one that died."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from harness.analysis import (
    answer,
    change,
    checks,
    classes,
    curve,
    gap,
    patterns,
    phases,
    quality,
    seats,
    slo,
    step_account,
)
from harness.analysis.level import Facts, summarise_level
from harness.analysis.phases import Probed
from harness.analysis.rules import Purpose, findings, usable
from harness.analysis.rules.levels import Concluded
from harness.analysis.rules.requests import errors_above_1_percent
from harness.analysis.rules.run import Recorded
from harness.analysis.table import Table
from harness.base import ExitStatus
from harness.data import server_metrics
from harness.data.judgement import Gravity, Outcome
from harness.data.levels import LevelSummary
from harness.data.manifest import Manifest
from harness.data.prediction import Agents, Prediction, crossing
from harness.data.record import Level, LevelNote, Role
from harness.data.server_metrics import Figure
from harness.data.summary import (
    BEYOND,
    NONE,
    Check,
    Cost,
    Curve,
    Headline,
    Knees,
    NodeLoss,
    RampStep,
    Settle,
    Summary,
    WorkloadSummary,
    is_decided,
)
from harness.results.result import Result
from harness.spec.work import Unit, usd_per_million


def summarise(run: Result) -> Summary:
    """Return the summary of a folder's records, levels, telemetry and manifest; finished levels only."""
    facts = Facts.of(run.manifest)
    table = facts.table(run.records)
    finished = [level for level in run.levels if level.finished and level.window_end_s is not None]
    levels, answers = _levels(run, table, finished, facts)
    of_ramp = answer.of_ramp(levels)
    steady = change.steady(change.timed(of_ramp))
    fitted, knees = _fitted(run, of_ramp, steady)
    probed = _probed(run, levels, fitted)
    workload = classes.compared(run.manifest.scenario, table, finished)
    losses = patterns.losses(table, finished, facts.urls, fitted)
    prediction = _with_gap(run, of_ramp, fitted, probed)
    recorded = Recorded(
        manifest=run.manifest,
        levels=run.levels,
        complete=run.complete,
        damage=run.damage,
        lost=lost(run),
        drafts=_drafts(run),
        workload=workload,
        losses=losses,
        unit=facts.unit,
    )
    concluded = Concluded(
        levels=of_ramp,
        curve=fitted,
        quality=answers,
        probed=probed,
        shift=steady.shift,
        again=steady.again,
        gap=prediction.gap if prediction else None,
    )
    unqualified = _headline(facts, levels, fitted, knees)
    knee = unqualified.value
    if answers is not None:
        knees = msgspec.structs.replace(knees, quality=quality.knee(knee, of_ramp, answers.changed_at))
    return Summary(
        simulated=run.manifest.simulated is not None,
        complete=run.complete,
        verdicts=[*findings(recorded), *(fitted.verdicts if fitted else []), *findings(concluded)],
        unit=facts.unit.value,
        counted="agents" if run.manifest.scenario.counted == "agents" else UNSET,
        knee_concurrency=knee,
        knee=unqualified,
        levels=levels,
        curve=fitted,
        knees=knees,
        prediction=prediction,
        agents=_with_measured_holds(run.manifest.agents, of_ramp),
        cost=cost(run.manifest, fitted, of_ramp, facts.unit),
        client=facts.client,
        # The ramp of a run that died follows from its levels.
        ramp=run.manifest.ramp or [RampStep.of(level) for level in run.levels if LevelNote.VOID not in level.notes],
        phases=probed.phases if probed else None,
        workload=workload or UNSET,
        checks=_checks(run.manifest, of_ramp, knees, knee, workload, losses) or UNSET,
        node_losses=losses or UNSET,
        unloaded_quality=answers.unloaded if answers is not None else UNSET,
    )


def _levels(
    run: Result, table: Table, finished: Sequence[Level], facts: Facts
) -> tuple[list[LevelSummary], quality.Quality | None]:
    """Return the summaries of the finished levels, and how the canaries' answers changed; None without canaries."""
    levels = [summarise_level(run.records, table, run.samples, level, facts) for level in finished]
    levels = step_account.completed(levels)
    if not run.manifest.quality:
        return levels, None
    answers = quality.of_run(run.manifest.quality, run.records, finished)
    pairs = zip(levels, answers.levels, strict=True)
    return [msgspec.structs.replace(level, quality=each) for level, each in pairs], answers


def _fitted(run: Result, levels: Sequence[LevelSummary], steady: change.Steady) -> tuple[Curve | None, Knees]:
    """Return the fitted curve (None for an open loop) and all knees: of the curve, the limits and the seats."""
    is_open = run.manifest.scenario.load.is_open or any(level.rate is not None for level in run.levels)
    fit = None if is_open else curve.fit(steady.points)
    knees = msgspec.structs.replace(
        fit.knees if fit else Knees(),
        slo=slo.knee(levels),
        seats=seats.as_value(seats.find(steady.crowd)),
        slo_rate=slo.rate_knee(levels),
    )
    return _with_times(_below_failures(_with_prediction(fit.curve, run), levels), run) if fit else None, knees


def _headline(facts: Facts, levels: Sequence[LevelSummary], fitted: Curve | None, knees: Knees) -> Headline:
    """Return the knee unqualified: of the limits where the run has any, for all requests or for a class of them."""
    has_slo = bool(facts.limits) or any(facts.class_limits.values())
    return answer.headline(knees, fitted, has_slo=has_slo, sessions=any(level.sessions for level in levels))


def _checks(
    manifest: Manifest,
    levels: Sequence[LevelSummary],
    knees: Knees,
    knee: float | None,
    workload: WorkloadSummary | None,
    losses: list[NodeLoss],
) -> list[Check]:
    """Return the operational checks, at the knee or at the highest rate that meets the SLO."""
    slots, context = manifest.server.get("slots"), manifest.server.get("n_ctx")
    return checks.of_run(
        levels,
        knees.slo_rate.value if knee is None and knees.slo_rate else knee,
        manifest.scenario.slo,
        expected_hits=manifest.workload.expected_hit_rate or None,
        workload=workload,
        losses=losses,
        room=slots * context if isinstance(slots, int) and isinstance(context, int) else None,
    )


def _with_prediction(fitted: Curve, run: Result) -> Curve:
    """Return the curve; where it still rises, with the predicted hinge as the concurrency of the expected knee."""
    prediction = run.manifest.prediction
    hinge = prediction.hinge_concurrency if prediction else None
    if fitted.state == BEYOND and hinge and hinge > (fitted.at_least_concurrency or 0):
        return msgspec.structs.replace(fitted, expected_concurrency=hinge, expected_by="prediction")
    return fitted


def _below_failures(fitted: Curve, levels: Sequence[LevelSummary]) -> Curve:
    """Return the curve; where levels above all others failed, only with levels below these to measure next.

    Of a curve that still rises it is one between, where there is room for a doubling, else those that failed, which is
    to be mended first. What a server refuses at so many in flight is not among them.
    """
    last = max((level.concurrency or 0 for level in levels if usable(level, Purpose.POINT)), default=0)
    above = [level for level in levels if (level.concurrency or 0) > last and errors_above_1_percent.voids(level)]
    if fitted.settle is None or not above:
        return fitted
    failed = sorted({level.concurrency or 0 for level in above})
    fails = failed[0]
    refused = 1 + min((level.taken_at_once for level in above if level.taken_at_once), default=failed[-1])
    wanted = [C for C in fitted.settle.levels if fails > C]
    if fitted.state == BEYOND:
        middle = round(math.sqrt(last * min(fails, refused)))
        wanted = [middle] if last < middle and fails > 2 * last else failed
    settle = Settle([C for C in wanted if refused > C])
    expected = fitted.expected_concurrency
    if expected is None or expected < fails:
        return msgspec.structs.replace(fitted, settle=settle)
    return msgspec.structs.replace(fitted, settle=settle, expected_concurrency=None, expected_by=None)


def _with_times(fitted: Curve, run: Result) -> Curve:
    """Return the curve with the seconds that the levels still to measure take, by how long its own levels took."""
    if fitted.settle is not None:
        spans = sorted(
            (level.concurrency, level.end_s - level.begin_s)
            for level in run.levels
            if level.concurrency is not None and level.end_s is not None and level.input_tokens is None
        )
        if spans:
            C, seconds = zip(*spans, strict=True)
            each = [float(np.interp(level, C, seconds)) * max(1.0, level / C[-1]) for level in fitted.settle.levels]
            fitted = msgspec.structs.replace(fitted, settle=msgspec.structs.replace(fitted.settle, seconds=sum(each)))
    return fitted


def _with_measured_holds(predicted: Agents | UnsetType, levels: Sequence[LevelSummary]) -> Agents | UnsetType:
    """Return the prediction of agents, and up to how many of them the measured cached share of input did not fall."""
    if not predicted or not predicted.kept_input_fraction:
        return predicted
    shares = [
        (float(level.concurrency), level.cached_input_fraction)
        for level in levels
        if level.concurrency and level.cached_input_fraction is not None and usable(level, Purpose.ANSWER)
    ]
    return msgspec.structs.replace(predicted, measured_holds=crossing(shares, predicted.needed))


def _probed(run: Result, levels: Sequence[LevelSummary], fitted: Curve | None) -> Probed | None:
    probe, input_tokens = run.manifest.scenario.ramp.probe, run.manifest.workload.input_tokens
    if probe is None or input_tokens is UNSET:
        return None
    return phases.of_probe(probe, levels, fitted, input_tokens=input_tokens, roof=run.manifest.roof)


def lost(run: Result) -> int:
    """Return requests that were sent and have no record, by the last count of each worker: a lower bound."""
    sent: dict[str, int] = {}  # requests sent, by the beginning of their ids
    for sample in run.samples:
        if sample.source == "client" and sample.metric.endswith("/sent"):
            sent[sample.metric.removesuffix("/sent")] = int(sample.value)
    for session in run.manifest.sessions:
        sent |= session.sent or {}
    kept = Counter(record.request_id.rpartition("-")[0] for record in run.records)
    return sum(max(0, count - kept[begins]) for begins, count in sent.items())


def exit_status(summary: Summary, *, slo_fail: bool = False) -> ExitStatus:
    """Return DONE, or UNSETTLED when the answer rests on an invalid level, or not all that was asked for is measured.

    It is UNSETTLED, too, where no knee is left without the invalid levels.
    With `slo_fail` MISSED where the SLO is missed, UNSETTLED where it is open. It is missed where the lowest load that
    says anything of it missed it.
    """
    levels = _counting(summary.levels)
    left_out = len(levels) < sum(level.role is not Role.LOSS for level in summary.levels)
    no_knee = not levels or (summary.curve is not None and summary.knee.state == NONE)
    if not summary.complete or (left_out and no_knee):
        return ExitStatus.UNSETTLED
    sound = all(usable(level, Purpose.ANSWER) for level in levels)
    if not sound or any(verdict.level == Gravity.INVALID for verdict in summary.verdicts):
        return ExitStatus.UNSETTLED
    if not slo_fail or is_decided(summary.knees.slo) or is_decided(summary.knees.slo_rate):
        return ExitStatus.DONE
    found = slo.by_load(levels, rates=summary.open_loop)
    missed = bool(found) and next(iter(found.values())).outcome == Outcome.MISSED
    return ExitStatus.MISSED if missed else ExitStatus.UNSETTLED


def _counting(levels: Sequence[LevelSummary]) -> list[LevelSummary]:
    """Return the levels that the answer rests on: all but those that a search may leave out.

    These are invalid levels that the ramp chose itself, and the last level of a repeat if its errors ended the ramp.
    A level that lost a replica says nothing of the server as it is.
    """
    levels = [level for level in levels if level.role is not Role.LOSS]
    last = {level.repeat: level for level in levels}

    def counts(level: LevelSummary) -> bool:
        chosen = level.role not in (None, Role.FIXED)
        failed = errors_above_1_percent.voids(level)
        return usable(level, Purpose.ANSWER) or not (chosen or (failed and last[level.repeat] is level))

    return [level for level in levels if counts(level)]


def _with_gap(
    run: Result, levels: Sequence[LevelSummary], fitted: Curve | None, probed: Probed | None
) -> Prediction | None:
    """Return the prediction made before load, with measured ÷ predicted for each level and the causes of the gap."""
    if run.manifest.prediction is None:
        return None
    made = gap.with_ratios(run.manifest.prediction, levels)
    parted = gap.attribute(made, levels, fitted, roof=run.manifest.roof, phases=probed.phases if probed else None)
    return msgspec.structs.replace(made, gap=parted)


def _drafts(run: Result) -> bool:
    """Return whether the server's own metrics count drafted tokens."""
    return any(
        sample.value > 0
        for sample in run.samples
        if sample.source == "server"
        for meaning in server_metrics.meanings(sample.metric)
        if meaning.figure is Figure.DRAFT_TOKENS
    )


def cost(manifest: Manifest, fitted: Curve | None, levels: list[LevelSummary], unit: Unit) -> Cost | None:
    """Return what a million tokens (or documents) cost at the plateau, else at the best level; None without a price."""
    price, gpus = manifest.price, manifest.gpus
    means = {level.concurrency or level.in_flight: level.throughput.mean for level in levels if level.throughput.mean}
    if price is None or not gpus or not means:
        return None
    best = max(means, key=lambda c: means[c] or 0.0)
    rate, at = means[best], float(best or 0)
    if fitted and fitted.plateau_reached and fitted.plateau_tokens_per_s.value:
        rate, at = fitted.plateau_tokens_per_s.value, fitted.hinge_concurrency.value or at
    assert rate is not None
    usd = usd_per_million(price * gpus, rate)
    return Cost(
        usd_per_million_output_tokens=usd if unit is Unit.OUTPUT_TOKENS else None,
        usd_per_million_input_tokens=usd if unit is Unit.INPUT_TOKENS else UNSET,
        usd_per_million_documents=usd if unit is Unit.DOCUMENTS else UNSET,
        usd_per_gpu_hour=price,
        gpus=gpus,
        at_concurrency=at,
    )
