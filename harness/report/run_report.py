"""A run as a document: the whole report, the part that a terminal shows, and the result of a fit alone.

Everything comes from a Summary and the manifest, and `with_records` from the requests and telemetry, so it can be made
again at any time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from harness.analysis.table import Table
from harness.analysis.timeline import timeline
from harness.judgement import Gravity, Outcome
from harness.manifest import Manifest, Scenario
from harness.predict import claims
from harness.report import charts, checks, distributions, fleet, parts, timelines, workload
from harness.report import document as doc
from harness.report.facts import facts
from harness.report.figures import figures
from harness.report.format import (
    MISSING,
    confidence,
    half_width,
    interval,
    joined,
    label,
    load,
    load_of,
    ms,
    number,
    percent,
    plain,
)
from harness.report.frontier import frontier
from harness.report.headline import REASONS, fastest, headline, hinge_of, is_open, of_curve, sentence, state, unit_of
from harness.report.remarks import SIGNS, legend, remarks, worst
from harness.report.subject import CLAIMS, manifest_facts, simulated_words, subject
from harness.results.result import Result
from harness.roles import Role, role_of
from harness.summary import PROVISIONAL, Curve, Knees, LevelSummary, PredictedLevel, RampStep, Summary, Value
from harness.work import Unit

FIRST_REMARKS = 3  # that a terminal shows without --verbose; all are in report.md
LEVELS = "Levels"
_AT_THE_PLATEAU = ("hinge", "plateau95", "half_point", "peak", "plateau")  # provisional where the plateau is


def report(summary: Summary, manifest: Manifest, baseline: Summary | None = None) -> doc.Document:
    """The whole report: the answer first, then charts, levels, verdicts, and how it was measured.

    The levels of a baseline, which is another run, are laid over the curve.
    """
    title, subtitle = subject(summary, manifest)
    curve = charts.curve(summary, manifest, baseline)
    unit = unit_of(summary)
    slo = manifest.scenario.slo
    latencies = [charts.latency(summary, name, slo) for name in charts.latencies(unit)]
    tradeoff = [frontier(summary)] if unit.decodes else []
    alt = f"{unit.capitalize()} per second against {summary.load_unit}"
    knees = knee_facts(summary.curve, summary.knees, unit, summary.load_unit) if summary.curve else []
    command = plain(manifest.command or "")
    scenario = _indented(manifest.scenario) if manifest.scenario != Scenario() else ""
    sections = [
        doc.Section(facts=facts(summary), answer=True),
        doc.Section("Throughput against load", charts=[curve], picture="curve.png", alt=alt),
        doc.Section("Latency against load", charts=latencies),
        doc.Section("Speed for a user against throughput of a GPU", charts=tradeoff),
        doc.Section("By class and by replica", charts=parts.charts(summary)),
        _levels(summary, LEVELS),
        *workload.sections(summary),
        checks.section(summary),
        *fleet.sections(summary),
        doc.Section("Verdicts", remarks=remarks(summary)),
        doc.Section("All knees", knees),
        doc.Section("Why these levels", ramp_facts(summary)),
        doc.Section(CLAIMS, columns=_claims(summary, manifest)),
        doc.Section("What was run", manifest_facts(manifest), command=command, scenario=scenario),
    ]
    return doc.Document(
        title=title,
        subtitle=subtitle,
        answer=headline(summary)[0].value,
        sentence=sentence(summary),
        figures=figures(summary),
        simulated=simulated_words(summary, manifest),
        sections=sections,
        version=plain(manifest.harness_version or ""),
    )


def with_records(document: doc.Document, summary: Summary, result: Result) -> doc.Document:
    """The report with the charts that need the requests or the telemetry; they stand before the levels."""
    table = Table.of(result.records, unit_of(summary)) if result.records else None
    found = timeline(table, result.samples, result.last_s)
    more = [
        doc.Section("Over time", charts=timelines.charts(summary, found)),
        doc.Section("Distributions", charts=distributions.charts(summary, table, result.levels, found)),
    ]
    at = next((i for i, each in enumerate(document.sections) if each.title == LEVELS), len(document.sections))
    return msgspec.structs.replace(document, sections=[*document.sections[:at], *more, *document.sections[at:]])


def screen(summary: Summary, manifest: Manifest, *, verbose: bool = False) -> doc.Document:
    """What a terminal shows: the levels, the answer, and the gravest remarks, or all of them if `verbose`.

    Remarks that repeat the answer, and the tables of classes, sessions, lengths and replicas, are left out unless
    `verbose`.
    """
    title, subtitle = subject(summary, manifest)
    found = remarks(summary)
    first = found if verbose else [each for each in found if each.code not in REASONS][:FIRST_REMARKS]
    more = len(found) - len(first)
    rest = f"{more} more remark{'' if more == 1 else 's'}: --verbose, or report.md" if more else ""
    sections = [
        _levels(summary),
        *([*workload.sections(summary), *fleet.sections(summary), checks.section(summary)] if verbose else ()),
        doc.Section(facts=facts(summary), answer=True, note="" if first else rest),
        doc.Section(remarks=first, note=rest if first else ""),
    ]
    return doc.Document(title=title, subtitle=subtitle, simulated=simulated_words(summary, manifest), sections=sections)


def fit(
    curve: Curve,
    knees: Knees,
    loads: Sequence[float] = (),
    unit: Unit = Unit.OUTPUT_TOKENS,
    about: str = "",
) -> doc.Document:
    """The result of a fit alone: the answer, the family and its weight, every knee, the fit's verdicts.

    `loads` are the concurrencies that it was made of; `about` says what they lack.
    """
    found = [doc.Fact(fact.label.lower(), fact.value, fact.detail) for fact in of_curve(curve, knees, loads)]
    if curve.family is not None:
        weights = ", ".join(f"{name.replace('_', ' ')} {weight:.2f}" for name, weight in curve.weights.items())
        error = curve.parameters.get("leave_one_out")
        missed = f"error {percent(error)} at a level left out of the fit" if error is not None else ""
        found.append(doc.Fact("curve", curve.family.replace("_", " "), joined(f"Akaike weights: {weights}", missed)))
    found += knee_facts(curve, knees, unit)
    found += [
        doc.Fact(verdict.level, verdict.code.replace("_", " "), joined(plain(verdict.message), plain(verdict.advice)))
        for verdict in curve.verdicts
    ]
    return doc.Document(sections=[doc.Section(facts=found, note=plain(about))])


def knee_facts(
    curve: Curve, knees: Knees, unit: Unit = Unit.OUTPUT_TOKENS, load_unit: str = "requests in flight"
) -> list[doc.Fact]:
    """Every knee and figure of the curve by its own name, with interval and meaning; they are different numbers."""
    provisional = state(curve) == PROVISIONAL
    load, one = load_unit.removeprefix("requests "), "session" if load_unit == "sessions" else "request in flight"
    per_s = "tok/s" if unit.decodes else unit.per_s
    named: list[tuple[str, Value | None, str, str]] = [
        ("hinge", knees.hinge or hinge_of(curve, knees), load, "where the rising branch meets the plateau"),
        ("plateau95", knees.plateau95, load, "95 % of the plateau"),
        ("half_point", knees.half_point, load, "half of the plateau"),
        ("slo", knees.slo, load, "highest load that meets the limits, up to the lowest that misses them"),
        ("slo_rate", knees.slo_rate, "requests/s", "the same for requests sent at a fixed rate"),
        ("peak", knees.peak, load, "lowest load with the highest throughput"),
        ("plateau", curve.plateau_tokens_per_s, per_s, f"{'output' if unit.decodes else unit} at and past the hinge"),
        ("asymptote", curve.asymptote_tokens_per_s, per_s, "limit of the rising branch without any cap"),
        ("single stream", curve.single_stream_tokens_per_s, per_s, f"one {one}"),
        ("slope", curve.slope_tokens_per_s, per_s, f"added by each {one} at low load"),
        ("dip", curve.dip, "", "share of the plateau lost at the last level"),
    ]
    out = []
    for name, value, counted, meaning in named:
        if value is not None and value.value is not None:
            doubt = "provisional" if provisional and name in _AT_THE_PLATEAU else ""
            figure = f"{number(value.value)} {counted}".strip()
            out.append(doc.Fact(name, figure, joined(confidence(value.ci95), doubt, meaning)))
    return out


def ramp_facts(summary: Summary) -> list[doc.Fact]:
    """The ramp's decisions in order, each level with its reason; none where the operator chose all levels."""
    levels = [step for step in summary.ramp if step.concurrency is not None or step.rate is not None]
    if all(role_of(step.reason) is Role.FIXED for step in levels):
        return []
    open_loop = is_open(summary)
    repeats = len({step.repeat for step in summary.ramp}) > 1

    def level(step: RampStep) -> str:
        next_load = step.concurrency if step.rate is None else step.rate
        if next_load is None:
            return "end"
        return load(open_loop, next_load) + (f" #{step.repeat + 1}" if repeats else "")

    return [doc.Fact(level(step), plain(step.reason)) for step in summary.ramp]


def claim_rows(summary: Summary, manifest: Manifest) -> list[tuple[str, str, str]]:
    """Unsourced claims whose condition holds for what was measured: (quote, low–high, what was measured).

    The last is "–" where a run has no such figure, like a ratio of two servers. Empty without a prediction, which
    knows the model and the card, for a simulated run, which measured no card, and where nothing is decoded.
    """
    prediction, top = summary.prediction, fastest(summary)
    if prediction is None or summary.simulated or prediction.simulated or top is None:
        return []
    if not unit_of(summary).decodes:
        return []
    curve, phases = summary.curve, summary.phases
    plateau = curve.plateau_tokens_per_s.value if curve and curve.plateau_reached else None
    single = curve.single_stream_tokens_per_s.value if curve else None
    price = summary.cost.usd_per_million_output_tokens if summary.cost else None
    reached = prediction.gap.mbu if prediction.gap else None
    probed = phases.decode.mbu if phases and phases.decode else None
    mbu = probed.value if probed else reached.value if reached else None
    highest = f"{number(top.throughput.mean)} tok/s at {load_of(top)}"
    figures = {
        "throughput": highest if plateau is None else f"{number(plateau)} tok/s at the plateau",
        "single_stream": "" if single is None else f"{number(single)} tok/s",
        "utilization": "" if mbu is None else f"MBU {mbu:.2f}",
        "usd_per_million": "" if price is None else f"${number(price)}",
    }
    stack, dtype = str(manifest.server.get("name") or ""), manifest.scenario.hardware.dtype
    return [
        (claim.quote, _range(claim.low, claim.high), figures.get(claim.figure) or MISSING)
        for claim in claims.holding(claims.facts_of_run(prediction, stack, dtype))
    ]


def _range(low: float | None, high: float | None) -> str:
    return number(low) if low == high else interval((low, high))


def _claims(summary: Summary, manifest: Manifest) -> list[doc.Column]:
    """A table of unsourced claims and what was measured."""
    rows, heads = claim_rows(summary, manifest), ("claim", "claimed", "measured")
    return [doc.Column(head, [row[i] for row in rows], words=True) for i, head in enumerate(heads) if rows]


def _indented(scenario: Scenario) -> str:
    return msgspec.json.format(msgspec.json.encode(scenario), indent=2).decode()


def _levels(summary: Summary, title: str = "") -> doc.Section:
    """The level table, and the meaning of its signs."""
    if not summary.levels:
        return doc.Section()
    void = frozenset(i for i, level in enumerate(summary.levels) if worst(level) == Gravity.INVALID)
    return doc.Section(title, columns=level_columns(summary), void=void, note=legend(summary))


def level_columns(summary: Summary) -> list[doc.Column]:
    """The level table, the same everywhere; times in milliseconds. Empty columns are left out."""
    prediction, levels, open_loop = summary.prediction, summary.levels, is_open(summary)
    of_sessions = summary.load_unit == "sessions"
    own = prediction.calibrated if prediction else None
    predicted = {level.concurrency: level for level in prediction.levels} if prediction and not open_loop else {}
    calibrated = {level.concurrency: level for level in own.levels} if own and not open_loop else {}

    def tokens(by: Mapping[int, PredictedLevel]) -> list[str]:
        guesses = [by.get(level.concurrency or 0) for level in levels]
        return [number(round(x.throughput.mid, 1)) if x else MISSING for x in guesses]

    def ratio(by: Mapping[int, PredictedLevel]) -> list[str]:
        guesses = [by.get(level.concurrency or 0) for level in levels]
        ratios = [guess.measured_over_predicted if guess else None for guess in guesses]
        return [MISSING if value is None else f"{value:.2f}" for value in ratios]

    unit = unit_of(summary)
    kind = unit.removesuffix("tokens").strip()
    joules = [number(x.gpu.joules_per_output_token if x.gpu else None) for x in levels]
    return [
        doc.Column("target\nreq/s" if open_loop else "sessions" if of_sessions else "C", [label(x) for x in levels]),
        doc.Column(
            "requests\nin flight" if of_sessions else "in\nflight",
            [MISSING if x.in_flight is None else f"{x.in_flight:,.1f}" for x in levels],
        ),
        doc.Column(f"{kind}\ntok/s" if kind != unit else f"{kind}\n/s", [number(x.throughput.mean) for x in levels]),
        doc.Column("95 %\n±", [_half(x) for x in levels], spare=5),
        *([doc.Column("predicted\ntok/s", tokens(predicted), spare=2)] if predicted else []),
        *([doc.Column("meas./\npred.", ratio(predicted))] if predicted else []),
        *([doc.Column("calibr.\ntok/s", tokens(calibrated), spare=1)] if calibrated else []),
        *([doc.Column("meas./\ncalibr.", ratio(calibrated))] if calibrated else []),
        doc.Column("req/s", [number(x.requests_per_s.mean) for x in levels], spare=4),
        *(_decoding_columns(levels) if unit.decodes else _whole_columns(levels, unit)),
        *([doc.Column("lag ms\np99", [ms(x.lag_s.p99) for x in levels])] if open_loop else []),
        *([doc.Column("J per\ntoken", joules, spare=3)] if set(joules) != {MISSING} else []),
        *([doc.Column("SLO", [_outcome(x) for x in levels])] if any(x.slo for x in levels) else []),
        doc.Column("errors", [number(x.errors) for x in levels]),
        doc.Column("", [SIGNS[gravity] if (gravity := worst(x)) else "" for x in levels]),
    ]


def _decoding_columns(levels: Sequence[LevelSummary]) -> list[doc.Column]:
    return [
        doc.Column("TTFT ms\np50", [ms(x.ttft_s.p50) for x in levels]),
        doc.Column("TTFT ms\np99", [ms(x.ttft_s.p99) for x in levels], spare=6),
        doc.Column("ITL ms\nmean", [ms(x.itl_s.mean) for x in levels]),
        doc.Column("E2E ms\np50", [ms(x.e2e_s.p50) for x in levels], spare=7),
    ]


def _whole_columns(levels: Sequence[LevelSummary], unit: Unit) -> list[doc.Column]:
    """Where nothing is decoded: an answer has one time."""
    documents = [number(x.documents_per_s.mean if x.documents_per_s else None) for x in levels]
    return [
        *([doc.Column("docs/s", documents, spare=3)] if unit is not Unit.DOCUMENTS else []),
        doc.Column("latency\nms p50", [ms(x.e2e_s.p50) for x in levels]),
        doc.Column("latency\nms p99", [ms(x.e2e_s.p99) for x in levels], spare=6),
    ]


def _half(level: LevelSummary) -> str:
    width = half_width(level.throughput.ci95)
    return MISSING if width is None else f"±{number(width, 2)}"


def _outcome(level: LevelSummary) -> str:
    """Of all limits of the SLO together."""
    outcomes = [each.outcome for each in level.slo]
    return next((outcome for outcome in Outcome if outcome in outcomes), MISSING)
