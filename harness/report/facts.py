"""The facts of a run's answer after the headline: why it is provisional, limits, phases, prediction, cost, client."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from harness.analysis import slo
from harness.analysis.answer import headline, of_ramp, own_knee
from harness.analysis.rules import Purpose, usable
from harness.analysis.rules.observed import quota_limited
from harness.analysis.rules.requests import errors_above_1_percent, fails_to_its_end, stalled
from harness.base.units import span
from harness.data.judgement import AGREES, Cause, Outcome
from harness.data.machines import Amount
from harness.data.manifest import Manifest
from harness.data.prediction import Calibrated, Gap, PredictedLevel
from harness.data.summary import BEYOND, PROVISIONAL, Curve, Knees, Summary
from harness.data.views import Value
from harness.decide.levels import weighted
from harness.report import answer
from harness.report import document as doc
from harness.report.document import Fact
from harness.report.format import binding, confidence, flat, joined, listed, load, load_of, number, percent, plain
from harness.report.levels import binding_phase, distinct, highest_up_to
from harness.spec.scenario import Scenario
from harness.spec.work import Unit

BY_CONSTRUCTION = "results agree with the prediction by construction"
_DIFFERS = 0.02  # share of the tokens requested: the mean that was sent is shown too if it differs by more
_AT_THE_PLATEAU = ("hinge", "plateau95", "half_point", "peak", "plateau")  # provisional where the plateau is
_AGREES = f"{AGREES[0]:.2f}–{AGREES[1]:.2f} counts as agreement"  # docs/method.md, Measured against predicted


def details(summary: Summary) -> list[Fact]:
    """Return the answer's details: an interruption, doubts about the knee, phases, prediction, cost, GPU and client."""
    own = of_ramp(summary.levels)
    loads = [each.concurrency for each in own if each.concurrency is not None and usable(each, Purpose.ANSWER)]
    curve = [] if summary.open_loop else unsettled(summary.curve, loads, summary.load_unit, _to_do_first(summary))
    if not (summary.open_loop or answer.by_curve(summary)):
        curve = [answer.of_curve(summary.curve, summary.knees, loads, label="Hinge", unit=summary.load_unit), *curve]
    found = [*_phases(summary), *_prediction(summary), *_cost(summary), *_gpu(summary), *_client(summary)]
    return [*_interrupted(summary), *curve, *found]


def unsettled(
    curve: Curve | None, loads: Sequence[float], unit: str = "requests in flight", first: str = ""
) -> list[Fact]:
    """Return why the knee is provisional, and what would settle it: levels to measure, and how long that takes.

    `first` is what has to be done to the server before that.
    """
    why = answer.reasons(curve) if answer.state(curve) == PROVISIONAL else ""
    settle = _settle(curve, loads, unit.removeprefix("requests "), first)
    return [*([Fact("Why provisional", why)] if why else []), *settle]


def _to_do_first(summary: Summary) -> str:
    """Return what has to be done to the server before more levels say anything; "" if nothing has."""
    last = summary.levels[-1] if summary.levels else None
    if last is not None and stalled.voids(last):
        return f"see the server's log and start it again: nobody answered any more at {load_of(last)}"
    if last is not None and fails_to_its_end.voids(last):
        return f"see the server's log: no request succeeded any more at {load_of(last)}"
    taken = min((level.taken_at_once for level in summary.levels if level.taken_at_once), default=None)
    if taken:
        return f"raise the server's limit: it refuses more than {taken} at once"
    limited = [level for level in summary.levels if any(map(quota_limited.made, level.verdicts))]
    refused = {level.concurrency or 0 for level in limited}
    if refused:
        return f"get a higher quota: it refuses requests at {load(False, *sorted(refused))}"
    again = summary.curve.settle.levels if summary.curve and summary.curve.settle else []
    failed = {level.concurrency or 0 for level in summary.levels if errors_above_1_percent.voids(level)} & set(again)
    return f"see why requests fail at {load(False, *sorted(failed))}" if failed else ""


def in_short(summary: Summary, *, quick: bool) -> list[Fact]:
    """Return a line on why the knee is provisional and what would settle it; [] if it is found or there is none."""
    label = "Provisional"
    if summary.open_loop or summary.limited:
        knee = answer.slo_knee(summary)[0]
        undecided = summary.limited and knee.met is not None and not knee.decided
        return [
            Fact(label, f"more requests may move the knee; longer levels settle it{_how_long(summary)}")
        ] * undecided
    own, loads = own_knee(summary), [level.concurrency for level in of_ramp(summary.levels) if level.concurrency]
    if own.state not in (PROVISIONAL, BEYOND) or len(set(loads)) < 2:
        return []
    first = _to_do_first(summary)
    settle = "".join(f"to settle it, {each.value}" for each in _settle(summary.curve, loads, "in flight", first))
    if quick and not first:
        settle = f"{settle}, as a run without --quick does" if settle else "a run without --quick settles it"
    if own.state == BEYOND:
        return [Fact("To settle it", settle.removeprefix("to settle it, "))] if settle else []
    why = "its interval is wide" if own.kind == "seats" else answer.reasons(summary.curve)
    return [Fact(label, joined(f"more levels may move the knee ({why})", settle))]


def _how_long(summary: Summary) -> str:
    """Return ": --level-seconds N", the window that decides the limits at the knee's level; "" if none would.

    It is for the share that met each limit there, and for how its samples clump.
    """
    at = highest_up_to([level for level in summary.levels if level.slo], answer.slo_knee(summary)[0].met)
    open_ = [attainment for attainment in at.slo if attainment.outcome == Outcome.UNRESOLVED] if at else []
    more = [(slo.enough(each) or math.inf) / each.n for each in open_ if each.n]
    if at is None or not more or not math.isfinite(max(more)):
        return ""
    return f": --level-seconds {math.ceil(at.window_s * max(more))}"


def _settle(curve: Curve | None, loads: Sequence[float], unit: str, first: str) -> list[Fact]:
    """Return a line on which levels to measure, or repeat, until the knee is found, and how long that takes."""
    settle = curve.settle if curve else None
    if settle is None or not (settle.levels or first):
        return []
    if not settle.levels:
        return [Fact("To settle it", first)]
    wanted = list(dict.fromkeys(settle.levels))
    again = [number(level) for level in wanted if level in loads]
    new = [number(level) for level in wanted if level not in loads]
    does = f"measure {listed(new)} {unit}" if new else ""
    if again:
        does = f"repeat {listed(again)}" + (f" and {does}" if does else f" {unit}")
    time = f", about {span(settle.seconds)}" if settle.seconds is not None else ""
    return [Fact("To settle it", f"{first}; then {does}{time}" if first else f"{does}{time}")]


def _interrupted(summary: Summary) -> list[Fact]:
    if summary.complete:
        return []
    finished = {0: "no level was finished", 1: "1 level was finished"}
    count = len(summary.levels)
    return [Fact("Interrupted", "the run ended early", finished.get(count, f"{count} levels were finished"))]


def _phases(summary: Summary) -> list[Fact]:
    """Return which phase binds at the knee, else at the highest level that tells it."""
    known = [level for level in of_ramp(summary.levels) if level.phases and level.phases.prefill_share.mean is not None]
    valid = distinct([x for x in known if usable(x, Purpose.ANSWER)])
    at = highest_up_to(valid, summary.knee_concurrency) or (valid[-1] if valid else None)
    return binding_phase(at) if at else []


def _prediction(summary: Summary) -> list[Fact]:
    """Return the rows on the prediction: plateau and band, measured over predicted, causes of the gap, calibration."""
    prediction = summary.prediction
    if summary.agents:
        best = max(summary.agents.levels, key=lambda each: each.output_tokens_per_s)
        most = f"at most {number(best.output_tokens_per_s)} output tok/s, at {best.concurrency:,} {summary.load_unit}"
        return [Fact("Prediction", most)]
    if prediction is None:
        return [Fact("Prediction", "not made", "it needs a GPU (--gpu) and a model config (--model-config)")]
    band = prediction.plateau_tokens_per_s
    detail = joined(
        f"band {number(band.low)}–{number(band.high)}",
        f"single stream {number(prediction.single_stream_tokens_per_s.mid)}",
        f"knee at {number(prediction.hinge_concurrency)}" if prediction.hinge_concurrency is not None else "no knee",
        binding(prediction),
    )
    out = [Fact("Prediction", f"plateau {number(band.mid)} {answer.unit_of(summary).per_s}", detail)]
    curve, one = summary.curve, prediction.single_stream_tokens_per_s.mid
    if agreement := _agreement(curve, band.mid, prediction.levels):
        single = curve.single_stream_tokens_per_s.value if curve else None
        alone = f"single stream {single / one:.2f}" if single is not None and one > 0 else ""
        because = f"{BY_CONSTRUCTION} (simulated)" if summary.simulated else _AGREES
        out.append(Fact("Measured / predicted", agreement, joined(alone, because)))
    return [*out, *_gap(prediction.gap), *_calibrated(curve, prediction.calibrated)]


def _agreement(curve: Curve | None, plateau: float, levels: Sequence[PredictedLevel]) -> str:
    """Return in words measured ÷ predicted throughput at the plateau, else at the highest level; "" if unknown."""
    reached = curve.plateau_tokens_per_s.value if curve and curve.plateau_reached else None
    if reached is not None and plateau > 0:
        return f"{reached / plateau:.2f} at the plateau"
    judged = [level for level in levels if level.measured_over_predicted is not None]
    top = max(judged, key=lambda level: level.concurrency, default=None)
    return f"{top.measured_over_predicted:.2f} at C = {top.concurrency}" if top else ""


def _gap(gap: Gap | None) -> list[Fact]:
    """Return a line on why measured throughput differs from predicted: the largest cause, and every factor."""
    if gap is None:
        return []
    factors = ", ".join(f"{cause} {factor:.2f}" for cause, factor in gap.factors.items())
    reached = [f"{name} {x.value:.2f} reached" for name, x in (("MBU", gap.mbu), ("MFU", gap.mfu)) if x is not None]
    largest = "agrees" if gap.largest == Cause.NONE else gap.largest
    return [Fact("Gap", largest, joined(plain(gap.sentence).rstrip("."), f"factors: {factors}", ", ".join(reached)))]


def _calibrated(curve: Curve | None, own: Calibrated | None) -> list[Fact]:
    """Return the calibrated prediction, and what it was fitted on."""
    if own is None:
        return []
    detail = joined(
        f"single stream {number(own.single_stream_tokens_per_s)}",
        f"knee at {number(own.hinge_concurrency)}" if own.hinge_concurrency is not None else "no knee",
        f"fitted at {load(False, *own.fitted_on)} of {plain(own.source) or 'another run'}",
        f"error {percent(own.error_unseen)} at the other levels" if own.error_unseen is not None else "",
    )
    out = [Fact("Calibrated", f"plateau {number(own.plateau_tokens_per_s)} output tok/s", detail)]
    agreement = _agreement(curve, own.plateau_tokens_per_s, own.levels)
    return [*out, *([Fact("Measured / calibrated", agreement)] if agreement else [])]


def _cost(summary: Summary) -> list[Fact]:
    cost, each = summary.cost, answer.price(summary)
    if cost is None or not each:
        return []
    per_hour, at = cost.usd_per_gpu_hour, cost.at_concurrency
    detail = joined(
        f"at {number(at)} in flight" if at is not None else "",
        f"${per_hour:,.2f} per GPU-hour" if per_hour is not None else "",
        f"{cost.gpus} GPUs" if cost.gpus and cost.gpus > 1 else "",
    )
    return [Fact("Cost", each, detail)]


def _gpu(summary: Summary) -> list[Fact]:
    """Return a line on the GPUs' power, energy a token, clock and memory at the fastest level that has them."""
    watched = [level for level in summary.levels if level.gpu and level.gpu.power_w is not None]
    top = max(watched, key=lambda level: level.throughput.mean or 0.0, default=None)
    if top is None or top.gpu is None:
        return []
    gpu = top.gpu
    clock, least, memory = gpu.sm_clock_hz, gpu.sm_clock_min_hz, gpu.memory_used_bytes
    detail = joined(
        f"{number(gpu.joules_per_output_token)} J per output token" if gpu.joules_per_output_token is not None else "",
        f"SM clock {clock / 1e6:,.0f} MHz, lowest {least / 1e6:,.0f}" if clock and least else "",
        f"{number(memory / 1e9)} GB in use" if memory is not None else "",
    )
    many = f" on {gpu.gpus} GPUs" if gpu.gpus > 1 else ""
    return [Fact("GPU", f"{number(gpu.power_w)} W{many} at {load_of(top)}", detail)]


def _client(summary: Summary) -> list[Fact]:
    """Return the load generator: its ceiling, how much of it was used, and the error of its time stamps."""
    client = summary.client
    if client.timestamp_source is None:
        return []
    value = f"{client.workers} worker{'' if client.workers == 1 else 's'}, {client.timestamp_source} stamps"
    if client.transport != "socket":
        value += f", {client.transport} transport"
    ceiling, error = client.events_per_s_ceiling, client.timestamp_error_p99_s
    used = [level.client.ceiling_fraction for level in summary.levels if level.client.ceiling_fraction is not None]
    detail = joined(
        f"ceiling {'at least ' if client.ceiling_is_lower_bound else ''}{number(ceiling)} tok/s" if ceiling else "",
        f"{percent(max(used))} of it used" if used else "",
        f"arrival error p99 {number(error * 1e6)} µs" if error is not None else "",
    )
    return [Fact("Client", value, detail or "ceiling and error unknown")]


# ---- a fit -----------------------------------------------------------------------------------------------------------


def fit(
    curve: Curve,
    knees: Knees,
    loads: Sequence[float] = (),
    unit: Unit = Unit.OUTPUT_TOKENS,
    about: str = "",
) -> doc.Document:
    """Return the result of a fit alone: the answer, every knee, the fit's verdicts.

    `loads` are the concurrencies that it was made of; `about` says what they lack.
    """
    own = headline(knees, curve)
    corner = [answer.of_curve(curve, knees, loads, label="Hinge")] if own.kind == "seats" else []
    facts = [answer.of_knee(own, curve, knees, loads), *corner, *unsettled(curve, loads)]
    facts = [Fact(fact.label.lower(), fact.value, fact.detail) for fact in facts]
    facts += knee_facts(curve, knees, unit)
    facts += [
        Fact(verdict.level, verdict.code.replace("_", " "), joined(plain(verdict.message), plain(verdict.advice)))
        for verdict in curve.verdicts
    ]
    return doc.Document(sections=[doc.Section(facts=facts, note=plain(about))])


def knee_facts(
    curve: Curve, knees: Knees, unit: Unit = Unit.OUTPUT_TOKENS, load_unit: str = "requests in flight"
) -> list[Fact]:
    """Return every knee and figure of the curve by its own name, with interval and meaning; the numbers differ."""
    provisional = answer.state(curve) == PROVISIONAL
    load = load_unit.removeprefix("requests ")
    one = "request in flight" if load != load_unit else load_unit.removesuffix("s")
    per_s = "tok/s" if unit.decodes else unit.per_s
    named: list[tuple[str, Value | None, str, str]] = [
        ("seats", knees.seats, "requests in flight", "served at once; more wait"),
        ("hinge", knees.hinge or answer.hinge_of(curve, knees), load, "where the rising branch meets the plateau"),
        ("plateau95", knees.plateau95, load, "lowest load with 95 % of the plateau"),
        ("half_point", knees.half_point, load, "half of the plateau"),
        ("slo", knees.slo, load, "highest load that meets the limits, up to the lowest that misses them"),
        ("slo_rate", knees.slo_rate, "requests/s", "the same for requests sent at a fixed rate"),
        ("quality", knees.quality or None, load, "the knee, below every load at which answers changed"),
        ("peak", knees.peak, load, "lowest load with the highest throughput"),
        ("plateau", curve.plateau_tokens_per_s, per_s, f"{'output' if unit.decodes else unit} at and past the hinge"),
        ("single stream", curve.single_stream_tokens_per_s, per_s, f"one {one}"),
        ("dip", curve.dip, "", "share of the plateau lost at the last level"),
    ]
    out = []
    for name, value, counted, meaning in named:
        if value is not None and value.value is not None:
            doubt = "provisional" if provisional and name in _AT_THE_PLATEAU else ""
            figure = f"{number(value.value)} {counted}".strip()
            out.append(Fact(name, figure, joined(confidence(value.ci95), doubt, meaning)))
    return out


# ---- what was measured -----------------------------------------------------------------------------------------------


def subject(summary: Summary, manifest: Manifest) -> tuple[str, str]:
    """Return (model, subtitle: GPUs, request lengths, server, date) of what was measured, without what is unknown."""
    prediction, workload, server = summary.prediction, manifest.workload, manifest.server
    model = manifest.model or (prediction.model if prediction else None)
    gpu = manifest.gpu or (prediction.gpu if prediction else None)
    gpus = manifest.gpus or (prediction.gpus if prediction else None)
    asked_in = workload.input_tokens if summary.workload else workload.prompt_tokens
    tokens_in = asked_in or workload.input_tokens or (prediction.input_tokens if prediction else None)
    tokens_out = workload.output_tokens or (prediction.output_tokens if prediction else None)
    parts = [
        " × ".join([number(gpus)] * bool(gpus) + [plain(gpu)]) if gpu else "",
        _lengths(summary, tokens_in, tokens_out, manifest.scenario.workload.inputs or None),
        tool_times(manifest.scenario),
        " ".join(plain(server[key]) for key in ("name", "version") if server.get(key)),
        plain(manifest.created or ""),
    ]
    return plain(model) if model else "unnamed model", " · ".join(part for part in parts if part)


def tool_times(scenario: Scenario) -> str:
    """Return by how much the times of tools and users are scaled; "" if they are not."""
    scale = scenario.workload.tool_time_scale
    return "" if scale in (UNSET, 1) else f"tools' times × {scale:g}"


def _tokens(wanted: Amount, sent: float | None, unit: str) -> str:
    """Return a length as it was requested; what was sent before it, where the two differ."""
    if sent is None or abs(sent / wanted - 1) <= _DIFFERS:
        return f"{number(wanted)}{unit}"
    return f"{number(sent)}{unit} ({number(wanted)} requested)"


def _lengths(summary: Summary, tokens_in: Amount | None, tokens_out: Amount | None, inputs: int | None = None) -> str:
    """Return in words the tokens in and out of a request; where requests differ, the mean that was asked for."""
    if not tokens_in:
        return ""
    if not tokens_out:
        texts = f"{number(inputs)} texts of " if inputs and inputs > 1 else ""
        return f"{texts}{number(tokens_in)} tokens in{' on average' if summary.workload else ''}"
    if summary.workload:
        return f"{number(tokens_in)} tokens in, {number(tokens_out)} out on average"
    own = of_ramp(summary.levels)
    sent_in = weighted((level.input_tokens_mean, level.requests) for level in own)
    sent_out = weighted((level.output_tokens_mean, level.requests) for level in own)
    return f"{_tokens(tokens_in, sent_in, ' tokens in')}, {_tokens(tokens_out, sent_out, ' out')}"


def simulated_words(summary: Summary, manifest: Manifest) -> str:
    """Return what was simulated, in words; "" for a measurement."""
    if not summary.simulated:
        return ""
    played = manifest.simulated
    profile = played.profile if played else None
    what = f"the simulated endpoint {f'played {plain(profile)}' if profile else 'answered'}"
    if played and played.speed is not UNSET and played.speed != 1:
        what += f" at {number(played.speed)} × real time"
    return f"{what}. No GPU was measured; {BY_CONSTRUCTION}."


def manifest_facts(manifest: Manifest) -> list[Fact]:
    """Return the manifest's main facts (model, server, GPUs, workload, host …) as lines; absent ones are left out."""
    known = {
        "scenario": manifest.name, "measured": manifest.created, "endpoint": manifest.urls or manifest.url,
        "model": manifest.model, "prefix cache": manifest.cache.sentence if manifest.cache else None,
        "server": manifest.server, "GPU": manifest.gpu, "GPUs": manifest.gpus, "workload": manifest.workload,
        "simulated": manifest.simulated, "client host": manifest.host, "harness": manifest.harness_version,
    }  # fmt: skip
    return [Fact(label, flat(value)) for label, value in msgspec.to_builtins(known).items() if value]
