"""A run as a document: the whole report, and the part that a terminal shows.

Everything comes from a Summary and the manifest, and `with_records` from the requests and telemetry, so it can be made
again at any time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from harness.analysis.level import Facts
from harness.analysis.timeline import timeline
from harness.data.manifest import Manifest, Scenario
from harness.data.roles import Role, role_of
from harness.data.summary import RampStep, Summary
from harness.decide.plan import what_if
from harness.report import (
    charts,
    checks,
    claims,
    distributions,
    drift,
    failures,
    fleet,
    level_table,
    parts,
    quality,
    serving,
    timelines,
    workload,
)
from harness.report import document as doc
from harness.report.facts import details
from harness.report.figures import figures
from harness.report.fitted import knee_facts
from harness.report.format import load, plain
from harness.report.frontier import frontier
from harness.report.headline import headline, is_open, sentence, unit_of
from harness.report.remarks import first_lines, remarks
from harness.report.subject import manifest_facts, simulated_words, subject
from harness.results.result import Result

FIRST_REMARKS = 3  # that a terminal shows without --verbose; all are in report.md
LEVELS = "Levels"


def report(
    summary: Summary, manifest: Manifest, baseline: Summary | None = None, *, with_claims: bool = False
) -> doc.Document:
    """The whole report: the answer first, then charts, levels, verdicts, and how it was measured.

    The levels of a baseline, which is another run, are laid over the curve. `with_claims` has unsourced claims about
    such a setup beside what was measured.
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
        doc.Section(facts=headline(summary), answer=True),
        doc.Section("Throughput against load", charts=[curve], picture="curve.png", alt=alt),
        doc.Section("What if", what_if=what_if.of_run(manifest, summary)),
        doc.Section("Latency against load", charts=latencies),
        doc.Section("Speed for a user against throughput of a GPU", charts=tradeoff),
        doc.Section("By class and by replica", charts=parts.charts(summary)),
        level_table.by_load(summary, LEVELS),
        *workload.sections(summary),
        quality.section(summary),
        checks.section(summary),
        drift.section(summary),
        *fleet.sections(summary),
        doc.Section("Verdicts", remarks=remarks(summary)),
        doc.Section("Details", details(summary)),
        doc.Section("All knees", knees),
        doc.Section("Why these levels", ramp_facts(summary)),
        level_table.every(summary, "Every measurement"),
        claims.section(summary, manifest) if with_claims else doc.Section(),
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
        source="summary.json and manifest.json",
        again="knee report DIR",
    )


def with_records(document: doc.Document, summary: Summary, result: Result) -> doc.Document:
    """The report with the charts that need the requests or the telemetry; they stand before the levels."""
    table = Facts.of(result.manifest).table(result.records) if result.records else None
    found = timeline(table, result.samples, result.last_s)
    more = [
        doc.Section("Over time", charts=timelines.charts(summary, found)),
        doc.Section("Distributions", charts=distributions.charts(summary, table, result.levels, found)),
    ]
    at = next((i for i, each in enumerate(document.sections) if each.title == LEVELS), len(document.sections))
    return msgspec.structs.replace(document, sections=[*document.sections[:at], *more, *document.sections[at:]])


def screen(summary: Summary, manifest: Manifest, *, verbose: bool = False, noted: Collection[str] = ()) -> doc.Document:
    """What a terminal shows: the answer, the table by load, and the gravest remarks, a line each.

    `verbose` has every remark with its code and its advice, the details of the answer, and every table. Without it, the
    notes in `noted`, which were printed before the load, are not printed again.
    """
    title, subtitle = subject(summary, manifest)
    found = remarks(summary)
    first = [
        doc.Section(facts=headline(summary), answer=True),
        level_table.by_load(summary),
        serving.section(summary),
        failures.section(summary),
        quality.section(summary),
    ]
    if verbose:
        tables = [
            *workload.sections(summary),
            *fleet.sections(summary),
            checks.section(summary),
            drift.section(summary),
        ]
        knees = knee_facts(summary.curve, summary.knees, unit_of(summary), summary.load_unit) if summary.curve else []
        every = [doc.Section("Details", details(summary), answer=True), doc.Section("All knees", knees, answer=True)]
        rest = [*every, doc.Section("Remarks", remarks=found), *tables]
    else:
        rest = [_first_remarks(summary, [each for each in found if each.message not in noted])]
    return doc.Document(
        title=title, subtitle=subtitle, simulated=simulated_words(summary, manifest), sections=[*first, *rest]
    )


def _first_remarks(summary: Summary, found: Sequence[doc.Remark]) -> doc.Section:
    """The gravest remarks, a line each, and how many more there are."""
    first = first_lines(summary, found, FIRST_REMARKS)
    more = len(found) - len(first)
    rest = f"{more} more remark{'' if more == 1 else 's'}: --verbose, or report.md" if more > 0 else ""
    return doc.Section(remarks=first, note=rest or "details: --verbose, or report.md")


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


def _indented(scenario: Scenario) -> str:
    return msgspec.json.format(msgspec.json.encode(scenario), indent=2).decode()
