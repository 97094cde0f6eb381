"""The answer in words: facts, knees by name, verdicts, the ramp's reasons; one source for terminal, page and Markdown.

Its first lines, knee and plateau, are those of `headline`.

Everything comes from a Summary and the manifest, so it can be made again at any time. Words carry no
colour and no markup; whoever shows them adds its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from harness.predict import claims
from harness.report.format import MISSING, flat, interval, load, load_of, ms, number, percent, plain
from harness.report.headline import Fact, fastest, headline, hinge_of, is_open, of_curve, state, tokens_sent
from harness.summary import (
    PROVISIONAL,
    Calibrated,
    Curve,
    Gap,
    Knees,
    LevelSummary,
    Prediction,
    RampStep,
    Summary,
    Value,
    Verdict,
)

CLAIMS = "Claims that are often made of such a setup, unsourced"
BY_CONSTRUCTION = "agreement with the prediction is there by construction"
SEVERITIES = ("invalid", "doubt", "note")
_AGREES = "0.75–1.15 counts as agreement"  # docs/method.md, Measured against predicted
_AT_THE_PLATEAU = ("hinge", "plateau95", "half_point", "peak", "plateau")  # as sure as the plateau is
_DIFFERS = 0.02  # of the tokens requested, from where the mean that was sent is told too


class Remark(msgspec.Struct, frozen=True):
    """Verdicts of one code and severity, the levels that they touch together; `at` () is the whole run."""

    severity: str
    code: str
    at: tuple[int | float, ...]
    message: str
    advice: str
    open_loop: bool = False  # then `at` is rates, else concurrencies

    @property
    def where(self) -> str:
        return load(self.open_loop, *self.at) if self.at else ""


def simulated_words(summary: Summary, manifest: Mapping[str, Any]) -> str:
    """What stands after the word SIMULATED; "" for a real measurement."""
    if not summary.simulated:
        return ""
    about = manifest.get("simulated") or {}
    profile, speed = about.get("profile"), about.get("speed")
    what = f"the simulated endpoint{f' played {plain(profile)}' if profile else ' answered'}"
    if speed not in (None, 1):
        what += f" at {number(speed)} × real time"
    return f"{what}. No GPU was measured; {BY_CONSTRUCTION}."


def subject(summary: Summary, manifest: Mapping[str, Any]) -> tuple[str, str]:
    """What was measured, as a title and a line under it; what is unknown is left out."""
    prediction = summary.prediction
    model = manifest.get("model") or (prediction.model if prediction else None)
    gpu = manifest.get("gpu") or (prediction.gpu if prediction else None)
    gpus = manifest.get("gpus") or (prediction.gpus if prediction else None)
    work = manifest.get("workload") or {}
    tokens_in = (
        work.get("prompt_tokens") or work.get("input_tokens") or (prediction.input_tokens if prediction else None)
    )
    tokens_out = work.get("output_tokens") or (prediction.output_tokens if prediction else None)
    sent_in, sent_out = tokens_sent(summary)
    server = manifest.get("server") or {}
    parts = [
        " × ".join([flat(gpus)] * bool(gpus) + [flat(gpu)]) if gpu else "",
        f"{_tokens(tokens_in, sent_in, ' tokens in')}, {_tokens(tokens_out, sent_out, ' out')}"
        if tokens_in and tokens_out
        else "",
        " ".join(plain(server[key]) for key in ("name", "version") if server.get(key)),
        plain(manifest.get("created") or ""),
    ]
    return plain(model) if model else "unnamed model", " · ".join(part for part in parts if part)


def _tokens(wanted: Any, sent: float | None, unit: str) -> str:
    """A length as it was requested; what was sent before it, where the two differ."""
    if not isinstance(wanted, int | float) or sent is None or abs(sent / wanted - 1) <= _DIFFERS:
        return f"{flat(wanted)}{unit}"
    return f"{number(sent)}{unit} ({number(wanted)} requested)"


def facts(summary: Summary) -> list[Fact]:
    """The answer, most important first; never empty."""
    out = [*_interrupted(summary), *headline(summary)]
    found = [*_slo(summary), *_phases(summary), *_prediction(summary), *_cost(summary), *_gpu(summary)]
    return [*out, *found, *_client(summary), *_grade(summary)]


def _slo(summary: Summary) -> list[Fact]:
    """Up to where the limits are kept; that it is not resolved is an answer too."""
    judged = [level for level in summary.levels if level.slo]
    if not judged:
        return []
    limits = ", ".join(f"{plain(each.limit)} for {percent(each.needed)}" for each in judged[0].slo)
    open_loop = is_open(summary)
    knee = summary.knees.slo_rate if open_loop else summary.knees.slo
    unit = "requests per second" if open_loop else "requests in flight"
    if knee is not None and knee.value is not None:
        missed = knee.ci95[1] if knee.ci95 else None
        beyond = f"missed at {number(missed)}" if missed is not None else "not seen to be missed"
        return [Fact("SLO", f"met up to {number(knee.value)} {unit}", _joined(limits, beyond))]
    outcomes = {each.outcome for level in judged for each in level.slo}
    lowest = min(judged, key=lambda level: level.concurrency or level.rate or 0)
    if any(each.outcome == "missed" for each in lowest.slo):
        return [Fact("SLO", f"missed at {load_of(lowest)} already", limits)]
    said = "no level has requests enough to decide it" if "unresolved" in outcomes else "no valid level decides it"
    return [Fact("SLO", "unresolved", _joined(limits, said))]


def _phases(summary: Summary) -> list[Fact]:
    """What the probes say of the phases, each apart."""
    phases, out = summary.phases, []
    if phases and phases.prefill:
        prefill = phases.prefill
        slope = prefill.seconds_per_token
        detail = _joined(
            _ci(prefill.tokens_per_s),
            f"{number((slope.value or 0) * 1e6)} µs a prompt token" if slope.value is not None else "",
            _utilization("MFU", prefill.mfu),
        )
        out.append(Fact("Prefill", f"{number(prefill.tokens_per_s.value)} prompt tok/s", detail))
    if phases and phases.decode:
        decode = phases.decode
        alone = f"ITL {ms(decode.itl_s)} ms with one request" if decode.itl_s is not None else ""
        detail = _joined(_ci(decode.tokens_per_s), alone, _utilization("MBU", decode.mbu))
        out.append(Fact("Decode", f"{number(decode.tokens_per_s.value)} output tok/s", detail))
    return out


def _utilization(name: str, value: Value | None) -> str:
    if value is None or value.value is None:
        return ""
    words = interval(value.ci95)
    return f"{name} {value.value:.2f}" + (f" ({words})" if words else "")


def _grade(summary: Summary) -> list[Fact]:
    """How far the run may be relied on, and what would take it further."""
    grade = summary.grade
    if grade is None:
        return []
    spread = f"{grade.repeats} repeats" if grade.repeats > 1 else ""
    if grade.spread is not None:
        at = f" at {load(is_open(summary), grade.spread_at)}" if grade.spread_at is not None else ""
        spread = _joined(spread, f"repeats of a level differ by up to {percent(grade.spread)}{at}")
    missing = f"the next grade needs {', '.join(map(plain, grade.missing))}" if grade.missing else ""
    return [Fact("Grade", grade.name, _joined(spread, missing))]


def _client(summary: Summary) -> list[Fact]:
    """The load generator: what it can follow, how near it came to that, and how exact its stamps are."""
    client = summary.client
    if client.timestamp_source is None:
        return []
    value = f"{client.workers} worker{'' if client.workers == 1 else 's'}, {client.timestamp_source} stamps"
    if client.transport != "socket":
        value += f", {client.transport} transport"
    ceiling, error = client.events_per_s_ceiling, client.timestamp_error_p99_s
    used = [x.client.ceiling_fraction for x in summary.levels if x.client.ceiling_fraction is not None]
    detail = _joined(
        f"follows {'at least ' if client.ceiling_is_lower_bound else ''}{number(ceiling)} tok/s" if ceiling else "",
        f"{max(used):.1%} of it used" if used else "",
        f"arrival error p99 {number(error * 1e6)} µs" if error is not None else "",
    )
    return [Fact("Client", value, detail or "ceiling and error not calibrated: `knee calibrate client`")]


def knee_rows(curve: Curve, knees: Knees) -> list[tuple[str, str, str]]:
    """Every knee and figure of the curve by its own name: (name, value, interval and meaning); they are different."""
    provisional = state(curve) == PROVISIONAL
    named: list[tuple[str, Value | None, str, str]] = [
        ("hinge", knees.hinge or hinge_of(curve, knees), "in flight", "where the rising branch meets the plateau"),
        ("plateau95", knees.plateau95, "in flight", "95 % of the plateau"),
        ("half_point", knees.half_point, "in flight", "half of the plateau"),
        ("slo", knees.slo, "in flight", "most that keeps the limits; up to the least that misses them"),
        ("slo_rate", knees.slo_rate, "requests/s", "likewise, sent on schedule"),
        ("peak", knees.peak, "in flight", "least load with the highest throughput"),
        ("plateau", curve.plateau_tokens_per_s, "tok/s", "output at and past the hinge"),
        ("asymptote", curve.asymptote_tokens_per_s, "tok/s", "what the rising branch tends to, without any cap"),
        ("single stream", curve.single_stream_tokens_per_s, "tok/s", "one request in flight"),
        ("slope", curve.slope_tokens_per_s, "tok/s", "what each more in flight adds while the curve is straight"),
        ("dip", curve.dip, "", "share of the plateau that is lost at the last level"),
    ]
    return [
        (name, f"{number(value.value)} {unit}".strip(), _joined(_ci(value), "provisional" * doubtful, meaning))
        for name, value, unit, meaning in named
        if value is not None and value.value is not None
        for doubtful in [provisional and name in _AT_THE_PLATEAU]
    ]


def fit_rows(curve: Curve, knees: Knees, loads: Sequence[float] = ()) -> list[tuple[str, str, str]]:
    """What a fit says, for people: the answer, the family and how sure it is, every knee, what the fit remarks.

    `loads` are the concurrencies that it was made of.
    """
    rows = [(fact.label.lower(), fact.value, fact.detail) for fact in of_curve(curve, knees, loads)]
    if curve.family is not None:
        weights = ", ".join(f"{name.replace('_', ' ')} {weight:.2f}" for name, weight in curve.weights.items())
        missed = curve.parameters.get("leave_one_out")
        beside = f"a level left out is missed by {percent(missed)}" if missed is not None else ""
        rows += [("curve", _family(curve), _joined(f"Akaike weights: {weights}", beside))]
    rows += knee_rows(curve, knees)
    return rows + [
        (v.level, v.code.replace("_", " "), _joined(plain(v.message), plain(v.advice))) for v in curve.verdicts
    ]


def answer(summary: Summary) -> list[str]:
    """The answer as plain lines, "label: value; detail"."""
    return [f"{fact.label}: {fact.text}" for fact in facts(summary)]


def remarks(summary: Summary) -> list[Remark]:
    """All verdicts of the run, its curve and its levels, each once, gravest first, alike ones together."""
    found: dict[tuple[str, str, str], list[Verdict]] = {}
    levels = [
        msgspec.structs.replace(verdict, at=level.concurrency or level.rate) if verdict.at is None else verdict
        for level in summary.levels
        for verdict in level.verdicts
    ]
    for verdict in [*summary.verdicts, *(summary.curve.verdicts if summary.curve else []), *levels]:
        apart = verdict.message if verdict.at is None else ""  # a run's verdicts differ by what they say
        found.setdefault((verdict.level, verdict.code, apart), []).append(verdict)
    grave = {severity: rank for rank, severity in enumerate(SEVERITIES)}
    open_loop = is_open(summary)
    return [_together(group, open_loop) for _, group in sorted(found.items(), key=lambda item: grave[item[0][0]])]


def ramp_rows(summary: Summary) -> list[tuple[str, str]]:
    """Every decision of the ramp in order: what came next, and why; nothing where all levels were given."""
    if all(step.reason == "given" for step in summary.ramp if step.concurrency is not None or step.rate is not None):
        return []
    open_loop = is_open(summary)
    repeats = len({step.repeat for step in summary.ramp}) > 1

    def what(step: RampStep) -> str:
        asked = step.concurrency if step.rate is None else step.rate
        if asked is None:
            return "end"
        return load(open_loop, asked) + (f" #{step.repeat + 1}" if repeats else "")

    return [(what(step), plain(step.reason)) for step in summary.ramp]


def claim_rows(summary: Summary, manifest: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Unsourced claims whose condition holds for what was measured: (quote, low–high, what was measured).

    The last is "–" where a run has no such figure, like a ratio of two servers. Empty without a prediction, which
    knows the model and the card, and for a simulated run, which measured no card.
    """
    prediction, top = summary.prediction, fastest(summary)
    if prediction is None or summary.simulated or prediction.simulated or top is None:
        return []
    curve, phases = summary.curve, summary.phases
    plateau = curve.plateau_tokens_per_s.value if curve and curve.plateau_reached else None
    single = curve.single_stream_tokens_per_s.value if curve else None
    price = summary.cost.usd_per_million_output_tokens if summary.cost else None
    reached = prediction.gap.mbu if prediction.gap else None
    probed = phases.decode.mbu if phases and phases.decode else None
    mbu = probed.value if probed else reached.value if reached else None
    highest = f"{number(top.output_tokens_per_s.mean)} tok/s at {load_of(top)}"
    figures = {
        "throughput": highest if plateau is None else f"{number(plateau)} tok/s at the plateau",
        "single_stream": "" if single is None else f"{number(single)} tok/s",
        "utilization": "" if mbu is None else f"MBU {mbu:.2f}",
        "usd_per_million": "" if price is None else f"${number(price)}",
    }
    stack = (manifest.get("server") or {}).get("name") or ""
    dtype = ((manifest.get("scenario") or {}).get("hardware") or {}).get("dtype")
    return [
        (claim.quote, _range(claim.low, claim.high), figures.get(claim.figure) or MISSING)
        for claim in claims.holding(claims.facts_of_run(prediction, stack, dtype))
    ]


def _range(low: float | None, high: float | None) -> str:
    return number(low) if low == high else interval((low, high))


def worst(level: LevelSummary) -> str:
    """The gravest severity among the level's verdicts; "" when there are none."""
    return next((s for s in SEVERITIES if any(v.level == s for v in level.verdicts)), "")


def _ci(value: Value) -> str:
    words = interval(value.ci95)
    return f"95 % interval {words}" if words else "no interval"


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _interrupted(summary: Summary) -> list[Fact]:
    if summary.complete:
        return []
    stand = {0: "no level was finished", 1: "the 1 finished level stands"}
    count = len(summary.levels)
    return [Fact("Interrupted", "the run ended early", stand.get(count, f"the {count} finished levels stand"))]


def _prediction(summary: Summary) -> list[Fact]:
    prediction = summary.prediction
    if prediction is None:
        return [Fact("Prediction", "not made", "it needs a GPU (--gpu) and a model config (--model-config)")]
    band, cap = prediction.plateau_tokens_per_s, prediction.binding_cap
    limit = prediction.caps.get(cap) if cap else None
    detail = _joined(
        f"band {number(band.low)}–{number(band.high)}",
        f"single stream {number(prediction.single_stream_tokens_per_s.mid)}",
        f"knee at {number(prediction.hinge_concurrency)}" if prediction.hinge_concurrency is not None else "no knee",
        _binding(cap, limit),
    )
    out = [Fact("Prediction", f"plateau {number(band.mid)} output tok/s", detail)]
    ratio, where, beside = _ratios(summary, prediction)
    if ratio is not None:
        because = f"{BY_CONSTRUCTION} (simulated)" if summary.simulated else _AGREES
        out.append(Fact("Measured / predicted", f"{ratio:.2f} {where}", _joined(beside, because)))
    return [*out, *_gap(prediction.gap), *_calibrated(summary, prediction.calibrated)]


def _binding(cap: str | None, limit: float | None) -> str:
    """What binds; an SLO makes no knee, it is missed before there is one."""
    if cap is None:
        return "no cap binds"
    if cap == "slo":
        return f"the SLO is met up to {number(limit)} in flight" if limit else "the SLO is missed at any load"
    return f"bound by {plain(cap)}" + (f" = {number(limit)}" if limit is not None else "")


def _gap(gap: Gap | None) -> list[Fact]:
    """Where the measurement leaves the prediction: the largest cause, and every factor."""
    if gap is None:
        return []
    factors = ", ".join(f"{cause} {factor:.2f}" for cause, factor in gap.factors.items())
    reached = [f"{name} {x.value:.2f} reached" for name, x in (("MBU", gap.mbu), ("MFU", gap.mfu)) if x is not None]
    told = plain(gap.sentence).rstrip(".")
    largest = "small" if gap.largest == "none" else gap.largest
    return [Fact("Gap", largest, _joined(told, f"factors: {factors}", ", ".join(reached)))]


def _calibrated(summary: Summary, own: Calibrated | None) -> list[Fact]:
    """The prediction by what a server was measured to reach, apart from the data sheet's, and what it was fitted on."""
    if own is None:
        return []
    on = f"fitted at {load(False, *own.fitted_on)} of {plain(own.source) or 'another run'}"
    error = f"misses levels it did not see by {percent(own.error_unseen)}" if own.error_unseen is not None else ""
    knee = f"knee at {number(own.hinge_concurrency)}" if own.hinge_concurrency is not None else "no knee"
    single = f"single stream {number(own.single_stream_tokens_per_s)}"
    plateau = f"plateau {number(own.plateau_tokens_per_s)} output tok/s"
    out = [Fact("Calibrated", plateau, _joined(single, knee, on, error))]
    judged = [level for level in own.levels if level.measured_over_predicted is not None]
    top = max(judged, key=lambda level: level.concurrency, default=None)
    curve = summary.curve
    reached = curve.plateau_tokens_per_s.value if curve and curve.plateau_reached else None
    if reached is not None and own.plateau_tokens_per_s > 0:
        out.append(Fact("Measured / calibrated", f"{reached / own.plateau_tokens_per_s:.2f} at the plateau"))
    elif top is not None:
        ratio = f"{top.measured_over_predicted:.2f} at C = {top.concurrency}"
        out.append(Fact("Measured / calibrated", ratio))
    return out


def _ratios(summary: Summary, prediction: Prediction) -> tuple[float | None, str, str]:
    """Measured over predicted where it says most: at the plateau, else at the highest level; and for one stream."""
    curve = summary.curve
    single = curve.single_stream_tokens_per_s.value if curve else None
    one, all_ = prediction.single_stream_tokens_per_s.mid, prediction.plateau_tokens_per_s.mid
    beside = f"single stream {single / one:.2f}" if single is not None and one > 0 else ""
    plateau = curve.plateau_tokens_per_s.value if curve and curve.plateau_reached else None
    if plateau is not None and all_ > 0:
        return plateau / all_, "at the plateau", beside
    judged = [level for level in prediction.levels if level.measured_over_predicted is not None]
    top = max(judged, key=lambda level: level.concurrency, default=None)
    return (top.measured_over_predicted, f"at C = {top.concurrency}", beside) if top else (None, "", "")


def _cost(summary: Summary) -> list[Fact]:
    cost = summary.cost
    if cost is None or cost.usd_per_million_output_tokens is None:
        return []
    per_hour, at = cost.usd_per_gpu_hour, cost.at_concurrency
    detail = _joined(
        f"at {number(at)} in flight" if at is not None else "",
        f"${per_hour:,.2f} per GPU-hour" if per_hour is not None else "",
        f"{cost.gpus} GPUs" if cost.gpus and cost.gpus > 1 else "",
    )
    price = f"${number(cost.usd_per_million_output_tokens)} per million output tokens"
    return [Fact("Cost", price, detail)]


def _gpu(summary: Summary) -> list[Fact]:
    """What the GPUs drew at the fastest level at which they were watched."""
    watched = [level for level in summary.levels if level.gpu and level.gpu.power_w is not None]
    top = max(watched, key=lambda level: level.output_tokens_per_s.mean or 0.0, default=None)
    if top is None or top.gpu is None:
        return []
    gpu = top.gpu
    clock, least, memory = gpu.sm_clock_hz, gpu.sm_clock_min_hz, gpu.memory_used_bytes
    detail = _joined(
        f"{number(gpu.joules_per_output_token)} J per output token" if gpu.joules_per_output_token is not None else "",
        f"SM clock {clock / 1e6:,.0f} MHz, at least {least / 1e6:,.0f}" if clock and least else "",
        f"{number(memory / 1e9)} GB in use" if memory is not None else "",
    )
    many = f" on {gpu.gpus} GPUs" if gpu.gpus > 1 else ""
    return [Fact("GPU", f"{number(gpu.power_w)} W{many} at C = {top.concurrency}", detail)]


def _family(curve: Curve) -> str:
    return (curve.family or "fitted curve").replace("_", " ")


def _together(group: list[Verdict], open_loop: bool) -> Remark:
    at = tuple(sorted({verdict.at for verdict in group if verdict.at is not None}))
    last = max(group, key=lambda verdict: -1 if verdict.at is None else verdict.at)
    message = plain(last.message)
    if len({verdict.message for verdict in group}) > 1 and last.at is not None:
        message = f"{message} (this at {load(open_loop, last.at)})"
    return Remark(last.level, last.code, at, message, plain(last.advice), open_loop)


def manifest_facts(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The manifest's facts that a reader asks for first, label and text; absent ones are left out."""
    labels = {
        "name": "scenario", "created": "measured", "url": "endpoint", "model": "model", "server": "server",
        "gpu": "GPU", "gpus": "GPUs", "workload": "workload", "simulated": "simulated", "host": "client host",
        "harness_version": "harness", "notes": "notes",
    }  # fmt: skip
    return [(label, flat(manifest[key])) for key, label in labels.items() if manifest.get(key)]
