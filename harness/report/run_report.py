"""A run as a document: the whole report, and the part that a terminal shows.

Everything comes from a Summary and the manifest, and `with_records` from the requests and telemetry, so it can be made
again at any time. In the charts over time a line marks where each level's window begins, and has its load as its name
where there is room.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

import msgspec
import numpy as np

from harness.analysis import metrics
from harness.analysis.level import Facts
from harness.analysis.rules.observed import refused_above, said
from harness.analysis.stats import SAMPLES
from harness.analysis.table import Floats, Table
from harness.analysis.timeline import Line, Timeline, timeline
from harness.analysis.window import began_in
from harness.data.levels import LevelSummary
from harness.data.manifest import Manifest
from harness.data.record import Level, Role
from harness.data.summary import RampStep, Summary
from harness.data.views import Spread
from harness.report import charts, level_table, run_tables
from harness.report import document as doc
from harness.report.answer import answer, figures, level_at_the_knee, unit_of
from harness.report.chart import PARTS, STROKES, Chart, Datum, Guide, Scale, Series
from harness.report.facts import details, in_short, knee_facts, manifest_facts, simulated_words, subject
from harness.report.format import MISSING, load, load_of, loads, number, percent, plain
from harness.report.remarks import first_lines, remarks, warning
from harness.results.result import Result
from harness.spec.scenario import Scenario

FIRST_REMARKS = 3  # remarks that a terminal shows without --verbose; all are in report.md
LEVELS = "Levels"
_TIMES = (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("ITL", "itl_s"), ("E2EL", "e2e_s"))
_WORDS = 120  # characters of what the server said
_SERVER = "see the server's log"
_WAYS_OUT = {
    "http_429": "--max-rps R keeps its quota",
    "http_4xx": "send what it takes: --input-tokens, --api-key-env, --model, --omit FIELD, --extra-body",
    "refused": "is the server still there? --wait TIME waits for it",
    "connect": "is the server still there? --wait TIME waits for it",
    "client_deadline": "--request-timeout TIME waits for longer",
    "empty_response": f"{_SERVER}: it answers without a token",
    "truncated": f"{_SERVER}, and that of any proxy before it",
    "oom": "lower the load or the lengths",
}


def report(summary: Summary, manifest: Manifest) -> doc.Document:
    """Return the whole report: the answer first, then charts, levels, verdicts, and how it was measured."""
    title, subtitle = subject(summary, manifest)
    facts = answer(summary)
    curve = charts.curve(summary, manifest)
    unit = unit_of(summary)
    slo = manifest.scenario.slo
    latencies = [charts.latency(summary, name, slo) for name in charts.latencies(unit)]
    tradeoff = [charts.frontier(summary)] if unit.decodes else []
    alt = f"{unit.capitalize()} per second against {summary.load_unit}"
    knees = knee_facts(summary.curve, summary.knees, unit, summary.load_unit) if summary.curve else []
    command = plain(manifest.command or "")
    scenario = ""
    if manifest.scenario != Scenario():
        scenario = msgspec.json.format(msgspec.json.encode(manifest.scenario), indent=2).decode()
    sections = [
        doc.Section(facts=facts.lines, answer=True),
        doc.Section("Throughput against load", charts=[curve], picture="curve.png", alt=alt),
        doc.Section("Latency against load", charts=latencies),
        doc.Section("Speed for a user against throughput of a GPU", charts=tradeoff),
        level_table.by_load(summary, LEVELS),
        *run_tables.of_workload(summary),
        run_tables.canaries(summary),
        run_tables.operational(summary),
        run_tables.drift(summary),
        *run_tables.of_replicas(summary),
        doc.Section("Verdicts", remarks=remarks(summary)),
        doc.Section("Details", details(summary), folded=True),
        doc.Section("All knees", knees, folded=True),
        doc.Section("Why these levels", ramp_facts(summary), folded=True),
        msgspec.structs.replace(level_table.by_measurement(summary, "Every measurement"), folded=True),
        doc.Section("What was run", manifest_facts(manifest), command=command, scenario=scenario, folded=True),
    ]
    return doc.Document(
        title=title,
        subtitle=subtitle,
        answer=facts.first.value,
        sentence=facts.sentence,
        figures=figures(summary),
        simulated=simulated_words(summary, manifest),
        warning=warning(remarks(summary)),
        sections=sections,
        version=plain(manifest.harness_version or ""),
        source="summary.json and manifest.json",
        again="knee report DIR",
    )


def with_records(document: doc.Document, summary: Summary, result: Result) -> doc.Document:
    """Return the report with the charts made from requests and telemetry, put before the table of levels."""
    table = Facts.of(result.manifest).table(result.records) if result.records else None
    found = timeline(table, result.samples, result.last_s)
    more = [
        doc.Section("Over time", charts=over_time(summary, found)),
        doc.Section("Distributions", charts=distributions(summary, table, result.levels)),
    ]
    at = next((i for i, each in enumerate(document.sections) if each.title == LEVELS), len(document.sections))
    return msgspec.structs.replace(document, sections=[*document.sections[:at], *more, *document.sections[at:]])


def screen(summary: Summary, manifest: Manifest, *, verbose: bool = False, noted: Collection[str] = ()) -> doc.Document:
    """Return what a terminal shows: the answer, the table by load, and the gravest remarks, a line each.

    `verbose` has every remark with its code and its advice, the details of the answer, and every table. Without it, the
    notes in `noted`, which were printed before the load, are not printed again.
    """
    title, subtitle = subject(summary, manifest)
    found = remarks(summary)
    unsure = [] if verbose else in_short(summary, quick=manifest.scenario.ramp.quick)  # the details have it
    first = [
        doc.Section(facts=[*answer(summary).lines, *unsure], answer=True),
        level_table.by_load(summary),
        serving(summary, manifest.scenario.ramp.max_requests),
        failures(summary),
        run_tables.canaries(summary),
    ]
    if verbose:
        tables = [
            *run_tables.of_workload(summary),
            *run_tables.of_replicas(summary),
            run_tables.operational(summary),
            run_tables.drift(summary),
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
    """Return the section of the gravest remarks, a line each, with the number of those left out."""
    first = first_lines(summary, found, FIRST_REMARKS)
    more = len(found) - len(first)
    rest = f"{more} more remark{'' if more == 1 else 's'}: --verbose, or report.md" if more > 0 else ""
    return doc.Section(remarks=first, note=rest or "details: --verbose, or report.md")


def ramp_facts(summary: Summary) -> list[doc.Fact]:
    """Return a line for each decision of the search, its level and the reason; [] if the operator chose them."""
    levels = [step for step in summary.ramp if step.concurrency is not None or step.rate is not None]
    if all(step.role in (Role.FIXED, Role.LOSS) for step in levels):
        return []
    open_loop = summary.open_loop
    repeats = len({step.repeat for step in summary.ramp}) > 1

    def level(step: RampStep) -> str:
        next_load = step.concurrency if step.rate is None else step.rate
        if next_load is None:
            return "end"
        return load(open_loop, next_load) + (f" #{step.repeat + 1}" if repeats else "")

    return [doc.Fact(level(step), plain(step.reason)) for step in summary.ramp]


# ---- the figures of `vllm bench serve` -------------------------------------------------------------------------------


def serving(summary: Summary, requested: float | None = None) -> doc.Section:
    """Return the figures of a run's only level in the words of vLLM's serving benchmark; empty with several levels.

    Fewer requests count than were asked for: the first warm the server up and the last end after the window.
    """
    if len(summary.levels) != 1 or not unit_of(summary).decodes:
        return doc.Section()
    (level,) = summary.levels
    done = level.requests - level.errors - level.cancelled
    if done <= 0:
        return doc.Section()

    more = requested is not None and requested > level.requests
    rest = f" (in the window; {number(requested)} were asked for)" if more else ""

    def total(each: float | None) -> str:
        return MISSING if each is None else number(round(each * done))

    facts = [
        doc.Fact("Successful requests", f"{number(done)}{rest}"),
        doc.Fact("Benchmark duration (s)", f"{level.window_s:.2f}"),
        doc.Fact("Total input tokens", total(level.input_tokens_mean)),
        doc.Fact("Total generated tokens", total(level.output_tokens_mean)),
        doc.Fact("Request throughput (req/s)", number(level.requests_per_s.mean)),
        doc.Fact("Output token throughput (tok/s)", number(level.output_tokens_per_s.mean)),
    ]
    for name, field in _TIMES:
        spread: Spread = getattr(level, field)
        facts += [
            doc.Fact(f"Mean {name} (ms)", _ms(spread.mean)),
            doc.Fact(f"Median {name} (ms)", _percentile_ms(spread, spread.p50, 50)),
            doc.Fact(f"P99 {name} (ms)", _percentile_ms(spread, spread.p99, 99)),
        ]
    return doc.Section("Serving result", facts)


def _ms(seconds: float | None) -> str:
    return MISSING if seconds is None else f"{seconds * 1e3:,.2f}"


def _percentile_ms(spread: Spread, value: float | None, q: int) -> str:
    """Return the percentile in ms, with the samples that it needs if there were too few."""
    few = value is None and spread.n < SAMPLES[q]
    return f"{_ms(value)}{f' (n = {spread.n}, {SAMPLES[q]} needed)' if few else ''}"


# ---- why requests failed ---------------------------------------------------------------------------------------------


def failures(summary: Summary) -> doc.Section:
    """Return a line for each kind of failure, the commonest first; a section without lines where nothing failed."""
    counts: Counter[str] = Counter()
    failed_at: dict[str, set[float]] = defaultdict(set)
    words: dict[str, str] = {}
    bounds: dict[str, str] = {}  # the advice on each kind, if the server takes so many requests at once
    for level in summary.levels:
        for kind, count in level.errors_by_type.items():
            counts[kind] += count
            if level.load is not None:
                failed_at[kind].add(level.load)
        for verdict in level.verdicts:
            if refused_above.made(verdict):
                bounds |= dict.fromkeys(level.errors_by_type, verdict.advice)
            elif said.made(verdict):
                kind = verdict.code.removeprefix(f"{said.code}_")
                words.setdefault(kind, verdict.message.removeprefix(f"{kind}: "))
    open_loop = summary.open_loop
    lines = []
    for kind, count in counts.most_common():
        where, way_out = loads(open_loop, sorted(failed_at[kind])), bounds.get(kind) or _WAYS_OUT.get(kind, _SERVER)
        quoted = plain(words.get(kind, ""))[:_WORDS].rstrip()
        lines.append(f"{count} × {kind} at {where}{f': {quoted}' if quoted else ''} ({way_out})")
    return doc.Section("Failed requests", lines=lines) if lines else doc.Section()


_POINTS = 300  # most points of a line
_APART = 1 / 24  # least distance between two levels with a name, in widths of the time axis
_SHARES = np.linspace(0, 1, 101)
_FEW = 10  # requests that a distribution has at least
_WIDE = 20.0  # largest over smallest value from where on the axis is logarithmic


# ---- over time -------------------------------------------------------------------------------------------------------


def over_time(summary: Summary, found: Timeline) -> list[Chart]:
    """Return the charts over time that have data: throughput, in flight, KV cache, errors, GPU power."""
    unit = unit_of(summary)
    flight = [("in flight, by the client", found.in_flight)]
    flight += [(_named("running", server, found.running), line) for server, line in found.running.items()]
    flight += [(_named("waiting", server, found.waiting), line) for server, line in found.waiting.items()]
    shares = {name: [(time_s, 100 * share) for time_s, share in line] for name, line in found.kv_usage.items()}
    kv = [(_named("KV cache", server, shares), line) for server, line in shares.items()]
    power = [(f"GPU {plain(card)}", line) for card, line in found.power.items()]
    every = [
        _over_time(summary, "over-time", "Throughput", unit.per_s, [("", found.throughput)]),
        _over_time(summary, "flight-over-time", "Requests in flight, running and waiting", "requests", flight),
        _over_time(summary, "kv-over-time", "KV cache in use", "%", kv),
        _over_time(summary, "errors-over-time", "Failed requests", "per second", [("", found.errors)]),
        _over_time(summary, "power-over-time", "GPU power", "W", power),
    ]
    return [each for each in every if each.series]


def _named(what: str, server: str, all_of_them: Mapping[str, Line]) -> str:
    return f"{what}, {plain(server)}" if len(all_of_them) > 1 else what


def _over_time(summary: Summary, name: str, title: str, unit: str, lines: list[tuple[str, Line]]) -> Chart:
    """Return a chart of lines over the run's seconds, with the levels marked; empty lines are left out."""
    series = [
        Series(name=label, tone=tone, points=_thinned(label or title, unit, line), line=stroke)
        for tone, stroke, (label, line) in zip(itertools.cycle(PARTS), itertools.cycle(STROKES), lines, strict=False)
        if line
    ]
    ends = [point.x for each in series for point in each.points[-1:]]
    return Chart(
        name=name,
        title=title,
        x=Scale(
            label=f"seconds; above: {'req/s' if summary.open_loop else 'C'} of the level",
            ends=(0, max(ends, default=1.0)),
        ),
        y=Scale(label=unit),
        series=series,
        guides=_levels(summary, max(ends, default=1.0)),
    )


def _thinned(label: str, unit: str, line: Line) -> list[Datum]:
    """Return the highest of every few points, so that no peak is lost."""
    step = -(-len(line) // _POINTS)
    kept = [max(line[i : i + step], key=lambda point: point[1]) for i in range(0, len(line), step)]
    return [Datum(x, y, hover=(f"{number(x)} s: {label} {number(y)} {unit}",)) for x, y in kept]


def _levels(summary: Summary, end_s: float) -> list[Guide]:
    """Return a guide at the start of each level's window up to `end_s`; with its load if there is room for it."""
    guides, named = [], -end_s
    for level in sorted(summary.levels, key=lambda each: each.window[0]):
        at = level.window[0]
        apart = at - named >= _APART * end_s
        label = f"{level.load:g}" if apart and level.load is not None else ""
        named = at if label else named
        if at <= end_s:
            guides.append(Guide(at=at, tone="cap", line="dotted", label=label))
    return guides


# ---- distributions ---------------------------------------------------------------------------------------------------


def distributions(summary: Summary, table: Table | None, levels: Sequence[Level]) -> list[Chart]:
    """Return the charts of TTFT (or latency) and TPOT distributions over requests, for the levels shown."""
    shown = _of_interest(summary)
    decodes = unit_of(summary).decodes
    ttft, pace = [], []
    for level in shown if table is not None else ():
        of_level = next((each for each in levels if each.finished and each.window == level.window), None)
        of_level = of_level or next((each for each in levels if _same(each, level)), None)
        if table is None or of_level is None:
            continue
        rows = began_in(table, of_level) & table.ok
        of_requests = metrics.figures(table, of_level, stalled=False)
        ttft.append((level, of_requests["ttft" if decodes else "e2e"][rows] * 1e3))
        pace.append((level, of_requests["tpot"][rows] * 1e3))
    every = [
        _chart("ttft-distribution", "Time to first token" if decodes else "Latency", "ms", ttft),
        _chart("tpot-distribution", "Time per output token of a request", "ms", pace),
    ]
    return [each for each in every if each.series]


def _of_interest(summary: Summary) -> list[LevelSummary]:
    """Return the lowest level, that at the knee, and the highest."""
    known = sorted((level for level in summary.levels if level.load is not None), key=lambda each: each.load or 0)
    wanted = [*known[:1], level_at_the_knee(summary), *known[-1:]]
    return [each for i, each in enumerate(wanted) if each is not None and each not in wanted[:i]]


def _same(level: Level, summary: LevelSummary) -> bool:
    """Return whether the summary is of this level, whose window may have been cut to whole requests."""
    if not level.finished or level.window_start_s is None or level.window_end_s is None:
        return False
    return level.window_start_s <= summary.window[0] + 1e-6 and summary.window[1] <= level.window_end_s + 1e-6


def _chart(name: str, title: str, unit: str, values: Sequence[tuple[LevelSummary, Floats]]) -> Chart:
    """Return the chart of how a figure is distributed over the requests of each level that has enough of them."""
    series = []
    for i, (level, of_level) in enumerate(values):
        known = of_level[~np.isnan(of_level)]
        if len(known) >= _FEW:
            at = np.quantile(known, _SHARES).tolist()
            points = [
                Datum(x, 100 * y, hover=(f"{load_of(level)}: {percent(y)} up to {number(x)} {unit}",))
                for x, y in zip(at, _SHARES.tolist(), strict=True)
            ]
            series.append(Series(name=load_of(level), tone=PARTS[i], points=points, line=STROKES[i]))
    ends = [point.x for each in series for point in each.points]
    wide = bool(ends) and min(ends) > 0 and max(ends) / min(ends) > _WIDE
    return Chart(
        name=name,
        title=title,
        x=Scale(label=unit, log=10 if wide else 0),
        y=Scale(label="% of requests", ends=(0, 100)),
        series=series,
    )
