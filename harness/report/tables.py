"""The answer in words and the levels as a table: one source for the terminal, the page and the Markdown.

Everything comes from a Summary and the manifest, so it can be made again at any time. Words carry no
colour and no markup; whoever shows them adds its own. Plots are in `plots`, layout in `page`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from harness.report.format import (
    MISSING,
    flat,
    half_width,
    interval,
    ms,
    number,
    plain,
)
from harness.summary import Curve, LevelSummary, Prediction, Summary, Value, Verdict

BY_CONSTRUCTION = "agreement with the prediction is there by construction"
SEVERITIES = ("invalid", "doubt", "note")
MARKS = {"invalid": "✗", "doubt": "?", "note": "·"}
_STYLES = {"invalid": "bold red", "doubt": "yellow", "note": "dim"}
_AGREES = "0.75–1.15 counts as agreement"  # analytic.md §3


class Fact(msgspec.Struct, frozen=True):
    """One line of the answer: "label: value; detail"."""

    label: str
    value: str
    detail: str = ""

    @property
    def text(self) -> str:
        return f"{self.value}; {self.detail}" if self.detail else self.value


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


def load(open_loop: bool, *at: int | float) -> str:
    """Levels by what was asked of them.

    >>> load(False, 1, 16), load(True, 2.5)
    ('C = 1, 16', '2.5 req/s')
    """
    listed = ", ".join(f"{value:g}" if open_loop else str(value) for value in at)
    return f"{listed} req/s" if open_loop else f"C = {listed}"


def load_of(level: LevelSummary) -> str:
    """One level by what was asked of it."""
    return load(level.rate is not None, level.concurrency if level.rate is None else level.rate)  # type: ignore[arg-type]


class Column(msgspec.Struct, frozen=True):
    """A column of the level table: two lines of heading, and its cells, top to bottom."""

    head: tuple[str, str]
    cells: list[str]


# Words


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
    tokens_in = work.get("input_tokens") or (prediction.input_tokens if prediction else None)
    tokens_out = work.get("output_tokens") or (prediction.output_tokens if prediction else None)
    server = manifest.get("server") or {}
    parts = [
        " × ".join([flat(gpus)] * bool(gpus) + [flat(gpu)]) if gpu else "",
        f"{flat(tokens_in)} tokens in, {flat(tokens_out)} out" if tokens_in and tokens_out else "",
        " ".join(plain(server[key]) for key in ("name", "version") if server.get(key)),
        plain(manifest.get("created") or ""),
    ]
    return plain(model) if model else "unnamed model", " · ".join(part for part in parts if part)


def facts(summary: Summary) -> list[Fact]:
    """The answer, most important first; never empty."""
    out = [*_interrupted(summary), _knee(summary), _plateau(summary)]
    if summary.curve and summary.curve.single_stream_tokens_per_s.value is not None:
        single = summary.curve.single_stream_tokens_per_s
        out.append(Fact("Single stream", f"{number(single.value)} output tok/s", _ci(single)))
    return [*out, *_prediction(summary), *_cost(summary), *_gpu(summary), *_client(summary)]


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


def is_open(summary: Summary) -> bool:
    """Whether requests were sent on schedule rather than by slots."""
    return any(level.rate is not None for level in summary.levels)


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


def _knee(summary: Summary) -> Fact:
    knee, knees, curve = summary.knee_concurrency, summary.knees, summary.curve
    if knee is not None:
        by_slo = knees.slo is not None and knees.slo.value == knee
        named = knees.slo if by_slo else knees.hinge or (curve.hinge_concurrency if curve else None)
        if by_slo:
            kind = "the highest load that keeps the limits"
        else:
            kind = f"hinge of the {_family(curve)}" if curve else "hinge"
        return Fact("Knee", f"{number(knee)} requests in flight", _joined(_ci(named) if named else "", kind))
    if is_open(summary):
        return Fact("Knee", "none", "requests were sent at given rates: no concurrency was held")
    if curve is None or curve.family is None:
        return Fact("Knee", "not identifiable", f"{_count(summary)} measured, no curve fitted")
    return Fact("Knee", "none", "the curve has one only where it reaches a plateau")


def _plateau(summary: Summary) -> Fact:
    curve = summary.curve
    if curve and curve.plateau_reached:
        plateau = curve.plateau_tokens_per_s
        more = [
            f"{words} at {number(knee.value)} in flight"
            for words, knee in (("half of it", summary.knees.half_point), ("95 %", summary.knees.plateau95))
            if knee and knee.value is not None
        ]
        detail = _joined(_ci(plateau), ", ".join(more))
        return Fact("Plateau", f"{number(plateau.value)} output tok/s", detail)
    why = [v.message for v in [*(curve.verdicts if curve else []), *summary.verdicts] if "plateau" in v.code]
    measured = [level for level in summary.levels if level.output_tokens_per_s.mean is not None]
    top = max(measured, key=lambda level: level.output_tokens_per_s.mean or 0.0, default=None)
    best = ""
    if top:
        best = f"highest measured {number(top.output_tokens_per_s.mean)} output tok/s at {load_of(top)}"
    if is_open(summary):
        return Fact("Plateau", "not looked for", best)
    return Fact("Plateau", "not reached", _joined(plain(why[0]) if why else "", best))


def _prediction(summary: Summary) -> list[Fact]:
    prediction = summary.prediction
    if prediction is None:
        return [Fact("Prediction", "none", "it needs a GPU (--gpu) and a model config (--model-config)")]
    band, cap = prediction.plateau_tokens_per_s, prediction.binding_cap
    limit = prediction.caps.get(cap) if cap else None
    detail = _joined(
        f"band {number(band.low)}–{number(band.high)}",
        f"single stream {number(prediction.single_stream_tokens_per_s.mid)}",
        f"knee at {number(prediction.hinge_concurrency)}" if prediction.hinge_concurrency is not None else "no knee",
        f"bound by {plain(cap)}{f' = {number(limit)}' if limit is not None else ''}" if cap else "no cap binds",
    )
    out = [Fact("Prediction", f"plateau {number(band.mid)} output tok/s", detail)]
    ratio, where, beside = _ratios(summary, prediction)
    if ratio is not None:
        because = f"{BY_CONSTRUCTION} (simulated)" if summary.simulated else _AGREES
        out.append(Fact("Measured / predicted", f"{ratio:.2f} {where}", _joined(beside, because)))
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


def _count(summary: Summary) -> str:
    count = len({level.concurrency or level.rate for level in summary.levels})
    return f"{count or 'no'} level{'' if count == 1 else 's'}"


def _together(group: list[Verdict], open_loop: bool) -> Remark:
    at = tuple(sorted({verdict.at for verdict in group if verdict.at is not None}))
    last = max(group, key=lambda verdict: -1 if verdict.at is None else verdict.at)
    message = plain(last.message)
    if len({verdict.message for verdict in group}) > 1 and last.at is not None:
        message = f"{message} (this at {load(open_loop, last.at)})"
    return Remark(last.level, last.code, at, message, plain(last.advice), open_loop)


# The level table


def level_columns(summary: Summary) -> list[Column]:
    """The level table as text, the same wherever it is shown; times in milliseconds."""
    predicted = {level.concurrency: level for level in summary.prediction.levels} if summary.prediction else {}
    levels = summary.levels

    open_loop = is_open(summary)

    def asked(level: LevelSummary) -> str:
        what = level.concurrency if level.rate is None else f"{level.rate:g}"
        return f"{what}{f' #{level.repeat + 1}' if level.repeat else ''}"

    def tokens(level: LevelSummary) -> str:
        guess = predicted.get(level.concurrency or 0)
        return number(round(guess.output_tokens_per_s.mid, 1)) if guess else MISSING

    def ratio(level: LevelSummary) -> str:
        guess = predicted.get(level.concurrency or 0)
        value = guess.measured_over_predicted if guess else None
        return MISSING if value is None else f"{value:.2f}"

    def half(level: LevelSummary) -> str:
        width = half_width(level.output_tokens_per_s.ci95)
        return MISSING if width is None else f"±{number(width, 2)}"

    def joules(level: LevelSummary) -> str:
        return number(level.gpu.joules_per_output_token if level.gpu else None)

    columns = [
        Column(("asked", "req/s") if open_loop else ("", "C"), [asked(x) for x in levels]),
        Column(("in", "flight"), [MISSING if x.in_flight is None else f"{x.in_flight:,.1f}" for x in levels]),
        Column(("output", "tok/s"), [number(x.output_tokens_per_s.mean) for x in levels]),
        Column(("95 %", "±"), [half(x) for x in levels]),
        Column(("predicted", "tok/s"), [tokens(x) for x in levels]),
        Column(("meas./", "pred."), [ratio(x) for x in levels]),
        Column(("", "req/s"), [number(x.requests_per_s.mean) for x in levels]),
        Column(("TTFT ms", "p50"), [ms(x.ttft_s.p50) for x in levels]),
        Column(("TTFT ms", "p99"), [ms(x.ttft_s.p99) for x in levels]),
        Column(("ITL ms", "mean"), [ms(x.itl_s.mean) for x in levels]),
        Column(("E2E ms", "p50"), [ms(x.e2e_s.p50) for x in levels]),
        Column(("lag ms", "p99"), [ms(x.lag_s.p99) for x in levels]),
        Column(("J per", "token"), [joules(x) for x in levels]),
        Column(("", "errors"), [number(x.errors) for x in levels]),
        Column(("", ""), [MARKS.get(worst(x), "") for x in levels]),
    ]
    absent = set() if predicted and not open_loop else {"predicted", "meas./"}
    if not open_loop:
        absent.add("lag ms")
    if all(x.gpu is None or x.gpu.joules_per_output_token is None for x in levels):
        absent.add("J per")
    return [column for column in columns if column.head[0] not in absent]


def print_rows(rows: Sequence[tuple[str, str, str]], console: Console) -> None:
    """What was measured, its figure, and a remark, a line each."""
    table = Table.grid(padding=(0, 2))
    for what, figure, remark in rows:
        table.add_row(what, Text(figure, style="bold"), Text(remark, style="dim"))
    if not console.is_terminal:  # a file has no width
        console.width = Measurement.get(console, console.options.update(max_width=10_000), table).maximum
    console.print(table)


def legend(summary: Summary) -> str:
    """What the marks beside the levels mean, for those that occur; "" when there are none."""
    seen = {worst(level) for level in summary.levels}
    return ", ".join(f"{MARKS[severity]} {severity}" for severity in SEVERITIES if severity in seen)


# What was run


def manifest_facts(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The manifest's facts that a reader asks for first, label and text; absent ones are left out."""
    labels = {
        "name": "scenario", "created": "measured", "url": "endpoint", "model": "model", "server": "server",
        "gpu": "GPU", "gpus": "GPUs", "workload": "workload", "simulated": "simulated", "host": "client host",
        "harness_version": "harness", "notes": "notes",
    }  # fmt: skip
    return [(label, flat(manifest[key])) for key, label in labels.items() if manifest.get(key)]


# The terminal


def print_summary(
    summary: Summary, manifest: Mapping[str, Any], paths: list[tuple[str, str | Path]], console: Console
) -> None:
    """The whole summary on a terminal of 80 columns or more, and as plain text where it is none."""
    title, below = subject(summary, manifest)
    if summary.simulated:
        console.print(Text.assemble(("SIMULATED", "bold black on yellow"), ": ", simulated_words(summary, manifest)))
        console.print()
    console.print(Text(title, "bold"))
    if below:
        console.print(Text(below, "dim"))
    console.print()
    if summary.levels:
        console.print(_level_table(summary, console))
        marks = legend(summary)
        if marks:
            console.print(Text(marks, "dim"))
        console.print()
    console.print(_grid([(Text(fact.label, "bold"), Text(fact.text)) for fact in facts(summary)]))
    said = remarks(summary)
    if said:
        console.print()
        console.print(_grid([(Text(r.severity, _STYLES[r.severity]), _remark(r)) for r in said]))
    if paths:
        console.print()
    width = max((len(label) for label, _ in paths), default=0)
    for label, path in paths:  # never folded, so that a path can be copied
        console.print(Text.assemble((label.ljust(width), "dim"), "  ", str(path)), soft_wrap=True)


def _level_table(summary: Summary, console: Console) -> Table:
    """The level table, without the columns that a narrow terminal can best spare."""
    spare = [
        ("predicted", "tok/s"),
        ("J per", "token"),
        ("", "req/s"),
        ("95 %", "±"),
        ("TTFT ms", "p99"),
        ("E2E ms", "p50"),
    ]
    columns = level_columns(summary)
    while True:
        table = Table(box=None, pad_edge=False, padding=(0, 2 if console.width >= 100 else 1, 0, 0))
        for column in columns:
            head = Text("\n".join(column.head), "dim", justify="right")
            table.add_column(head, justify="right", no_wrap=True, vertical="bottom")
        for level, cells in zip(summary.levels, zip(*(c.cells for c in columns), strict=True), strict=True):
            bad = worst(level) == "invalid"
            table.add_row(*(Text(cell) for cell in cells), style="red" if bad else "")
        if not spare or Measurement.get(console, console.options.update(width=1000), table).maximum <= console.width:
            return table
        dropped = spare.pop(0)
        columns = [column for column in columns if column.head != dropped]


def _grid(rows: list[tuple[Text, Text]]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for row in rows:
        grid.add_row(*row)
    return grid


def _remark(remark: Remark) -> Text:
    where = f" at {remark.where}" if remark.where else ""
    text = Text.assemble((remark.code, "bold"), f"{where}: {remark.message}")
    if remark.advice:
        text.append(f"\n→ {remark.advice}", "dim")
    return text
