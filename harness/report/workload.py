"""The tables of a workload whose requests differ: classes and sessions at each level, lengths asked and realised."""

from __future__ import annotations

from collections.abc import Callable

from harness.data.summary import (
    ClassSummary,
    Interference,
    Lengths,
    LengthSpread,
    LevelSummary,
    SessionSummary,
    Summary,
)
from harness.report import document as doc
from harness.report.format import MISSING, label, ms, number, percent, plain
from harness.report.headline import is_open, unit_of

_SLOWDOWN = "slowdown: E2E per output token over that of the class at the lowest level"
_INTERFERENCE = (
    "gaps between the tokens of all other classes, while such a prompt is read, and as long before and after"
)
_RECOVERY = "from the end of a spike until no request waits 1.5 times as long for its first token as before it"
_FIRST_USE = "first use: the run's first request to it; resident: the later ones at that level"
_KS = "asked / realised, in tokens; KS: largest distance between the two cumulative distributions"


def sections(summary: Summary) -> list[doc.Section]:
    """Its tables; empty ones, which are not shown, for a run whose requests are alike."""
    alone = [_classes(summary), _first_uses(summary), _sessions(summary), _lengths(summary)]
    return [*alone, _interference(summary), _recoveries(summary)]


def _classes(summary: Summary) -> doc.Section:
    """A row for each class of each level; times in milliseconds."""
    rows = [(level, name, each) for level in summary.levels for name, each in (level.classes or {}).items()]
    if not rows:
        return doc.Section()

    def column(head: str, text: Callable[[ClassSummary], str]) -> doc.Column:
        return doc.Column(head, [text(each) for _, _, each in rows])

    columns = [
        loads(summary, [level for level, _, _ in rows]),
        doc.Column("class", [plain(name) for _, name, _ in rows], words=True),
        column("requests", lambda x: number(x.requests)),
        column("errors", lambda x: number(x.errors)),
        column("given\nup", lambda x: number(x.abandoned or None)),
        column("input\ntokens", lambda x: number(x.input_tokens_mean)),
        column("output\ntokens", lambda x: number(x.output_tokens_mean)),
        column("output\ntok/s", lambda x: number(x.output_tokens_per_s.mean)),
        column("TTFT ms\np50", lambda x: ms(x.ttft_s.p50)),
        column("TTFT ms\np99", lambda x: ms(x.ttft_s.p99)),
        column("ITL ms\nmean", lambda x: ms(x.itl_s.mean)),
        column("E2E ms\np50", lambda x: ms(x.e2e_s.p50)),
        column("SLO\nmet", lambda x: percent(x.slo_met_fraction)),
        column("slowdown", lambda x: number(x.slowdown)),
    ]
    return doc.Section("Classes", columns=doc.shown(columns), note=_SLOWDOWN)


def _interference(summary: Summary) -> doc.Section:
    """A row for each level with a class of long prompts; gaps in milliseconds."""
    rows = [(level, level.interference) for level in summary.levels if level.interference]
    if not rows:
        return doc.Section()

    def column(head: str, text: Callable[[Interference], str]) -> doc.Column:
        return doc.Column(head, [text(each) for _, each in rows])

    columns = [
        loads(summary, [level for level, _ in rows]),
        doc.Column("long prompts\nof class", [plain(each.class_) for _, each in rows], words=True),
        column("prompts", lambda x: number(x.prompts)),
        column("before\nms p99", lambda x: ms(x.before_s.p99)),
        column("during\nms p99", lambda x: ms(x.during_s.p99)),
        column("during\nms longest", lambda x: ms(x.during_s.max)),
        column("after\nms p99", lambda x: ms(x.after_s.p99)),
    ]
    return doc.Section("Long prompts and the answers of others", columns=doc.shown(columns), note=_INTERFERENCE)


def _recoveries(summary: Summary) -> doc.Section:
    """A row for each level with spikes; times in seconds."""
    rows = [(level, level.recoveries_s) for level in summary.levels if level.recoveries_s]
    if not rows:
        return doc.Section()
    known = [[each for each in times if each is not None] for _, times in rows]
    columns = [
        loads(summary, [level for level, _ in rows]),
        doc.Column("spikes", [number(len(times)) for _, times in rows]),
        doc.Column(
            "not\nrecovered", [number(len(times) - len(of)) for (_, times), of in zip(rows, known, strict=True)]
        ),
        doc.Column("recovery s\nmean", [number(sum(of) / len(of) if of else None) for of in known]),
        doc.Column("recovery s\nlongest", [number(max(of, default=None)) for of in known]),
    ]
    return doc.Section("Recovery after spikes", columns=columns, note=_RECOVERY)


def _first_uses(summary: Summary) -> doc.Section:
    """A row for each class with a model of its own; times in milliseconds."""
    known = summary.workload.classes if summary.workload else []
    rows = [(each.class_, each.first_use) for each in known if each.first_use]
    if not rows:
        return doc.Section()
    columns = [
        doc.Column("class", [plain(name) for name, _ in rows], words=True),
        doc.Column("first use\nTTFT ms", [ms(use.ttft_s) for _, use in rows]),
        doc.Column("resident\nTTFT ms p50", [ms(use.resident_ttft_s) for _, use in rows]),
    ]
    return doc.Section("Models and adapters", columns=columns, note=_FIRST_USE)


def _sessions(summary: Summary) -> doc.Section:
    """A row for each level; times in seconds."""
    rows = [(level, level.sessions) for level in summary.levels if level.sessions]
    if not rows:
        return doc.Section()

    def column(head: str, text: Callable[[SessionSummary], str]) -> doc.Column:
        return doc.Column(head, [text(each) for _, each in rows])

    columns = [
        loads(summary, [level for level, _ in rows]),
        column("sessions\nin flight", lambda x: number(x.in_flight)),
        doc.Column("requests\nin flight", [number(level.in_flight) for level, _ in rows]),
        column("sessions", lambda x: number(x.sessions)),
        column("completed", lambda x: number(x.completed)),
        column("failed", lambda x: number(x.failed)),
        column("requests\neach", lambda x: number(x.requests_mean)),
        column("sessions/s", lambda x: number(x.sessions_per_s)),
        column("latency s\np50", lambda x: number(x.latency_s.p50)),
        column("latency s\np99", lambda x: number(x.latency_s.p99)),
        column("last token\ns p50", lambda x: number(x.last_token_s.p50)),
    ]
    return doc.Section("Sessions", columns=doc.shown(columns))


def _lengths(summary: Summary) -> doc.Section:
    """A row for the prompts and one for the answers of each class."""
    if not summary.workload:
        return doc.Section()
    rows = [
        (f"{plain(each.class_)} {noun}".strip(), lengths)
        for each in summary.workload.classes
        for noun, lengths in (("prompts", each.input_tokens), ("answers", each.output_tokens))
        if noun == "prompts" or unit_of(summary).decodes
    ]

    def column(head: str, figure: Callable[[LengthSpread], float | None]) -> doc.Column:
        return doc.Column(head, [_side_by_side(each, figure) for _, each in rows])

    columns = [
        doc.Column("lengths", [name for name, _ in rows], words=True),
        doc.Column("asked", [plain(each.law) if each.law else MISSING for _, each in rows], words=True),
        column("mean", lambda x: x.mean),
        column("p10", lambda x: x.p10),
        column("p50", lambda x: x.p50),
        column("p90", lambda x: x.p90),
        column("p99", lambda x: x.p99),
        doc.Column("KS", [number(each.ks) for _, each in rows]),
    ]
    return doc.Section("Lengths asked and realised", columns=doc.shown(columns), note=_KS)


def _side_by_side(lengths: Lengths, figure: Callable[[LengthSpread], float | None]) -> str:
    asked = number(figure(lengths.asked)) if lengths.asked else MISSING
    return f"{asked} / {number(figure(lengths.realised))}"


def loads(summary: Summary, levels: list[LevelSummary]) -> doc.Column:
    """The load of each row: concurrency, or in open loop the target rate."""
    return doc.Column("target\nreq/s" if is_open(summary) else "C", [label(level) for level in levels])
