"""A prediction for people: tables as rows, for the terminal and for Markdown alike; its figures are in `roofs`.

The data sheet's prediction and a calibrated one stand in columns of their own. Times in milliseconds. Nothing is
computed here but units; the figures are those of `predict.question`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from harness.report.format import MISSING, ms, number, percent, plain
from harness.report.words import CLAIMS
from harness.summary import Assumptions, Band, Calibrated, PredictedLevel, Prediction, Spread, SteppedLevel

if TYPE_CHECKING:
    from rich.console import Console

    from harness.decide.golden import Row
    from harness.predict.choice import Choice
    from harness.predict.question import Answer
    from harness.predict.roofline import Limit
    from harness.predict.tune import Calibration

_OVERTAKEN = {"compute": "the memory traffic", "kv_traffic": "the weights", "prefill": "decoding"}
_SHARES = ("mbu", "mfu_prefill", "mfu_decode")
PARAMETERS = {
    "mbu": "MBU",
    "mfu_prefill": "MFU of prefill",
    "mfu_decode": "MFU of decode",
    "o_layer": "overhead of a layer, µs",
    "o_step": "overhead of a step, µs",
    "o_req": "overhead of a running request, µs",
    "o_api": "overhead outside the batch, µs",
}


class Column(msgspec.Struct, frozen=True):
    """A column of a table: its heading and its cells, top to bottom; words stand left, numbers right."""

    head: str
    cells: list[str]
    words: bool = False


class Section(msgspec.Struct, frozen=True):
    """A table under a title, or lines of text."""

    title: str
    columns: list[Column] = []
    lines: list[str] = []


def name(limit: str) -> str:
    """A limit as people say it; options keep their own names.

    >>> name("kv_traffic"), name("max_num_seqs"), name("slo")
    ('KV traffic', 'max_num_seqs', 'SLO')
    """
    spoken = {"kv_traffic": "KV traffic", "kv_memory": "KV memory", "slo": "SLO"}
    return spoken.get(limit, plain(limit))


# ---- the whole answer -----------------------------------------------------------------------------------


def sections(answer: Answer) -> list[Section]:
    """Everything about one model on one kind of card, most asked first."""
    prediction = answer.prediction
    found = [
        Section("", lines=_head(prediction)),
        Section("What users in flight get", level_columns(prediction)),
    ]
    if stepped := prediction.step_machine:
        loop = "requests as they come" if stepped[0].concurrency is None else "the same users in flight"
        found.append(Section(f"By the step machine, {loop}", stepped_columns(stepped)))
    found.append(Section("Limits", limit_columns(answer.limits, prediction)))
    if prediction.calibrated is not None:
        found.append(
            Section("Calibrated, beside the data sheet", calibrated_columns(prediction, prediction.calibrated))
        )
    if answer.beside:
        found.append(
            Section(
                "Rules of thumb beside the whole model, one replica",
                [
                    Column("", [each.name for each in answer.beside], words=True),
                    Column("rule", [each.formula for each in answer.beside], words=True),
                    Column("says", [number(each.rule) for each in answer.beside]),
                    Column("whole model", [number(each.whole) for each in answer.beside]),
                    Column("", [each.unit for each in answer.beside], words=True),
                ],
            )
        )
    if prediction.notes:
        found.append(Section("Notes", lines=[plain(note) for note in prediction.notes]))
    if answer.claims:
        said = [f"{claim.id}: {plain(claim.quote)}" for claim in answer.claims]
        found.append(Section(CLAIMS, lines=said))
    return found


def _head(prediction: Prediction) -> list[str]:
    """The answer in a few lines."""
    has, decodes = prediction.assumptions, prediction.output_tokens > 0
    tokens = f"{number(prediction.input_tokens)} tokens in" + (
        f", {number(prediction.output_tokens)} out" if decodes else ""
    )
    cap = prediction.binding_cap
    limit = prediction.caps.get(cap) if cap else None
    bound = f"bound by {name(cap)} at {number(limit)} in flight" if cap and limit is not None else "no cap binds"
    lines = [f"{plain(prediction.model)} on {prediction.gpus} × {prediction.gpu}, {tokens}"]
    if decodes:
        plateau, single = prediction.plateau_tokens_per_s, prediction.single_stream_tokens_per_s
        lines.append(f"plateau {_band(plateau)} output tok/s; single stream {_band(single)}; {bound}")
    else:
        top = next((x.requests_per_s for x in reversed(prediction.levels) if x.requests_per_s), None)
        lines.append(f"{_band(top)} requests/s at the highest level; {bound}" if top else bound)
    kv = f"{number(has.kv_bytes_per_token)} B of KV a token, " if has.kv_bytes_per_token else ""
    lines.append(
        f"{_billions(has.parameters)}e9 parameters, {_billions(has.weight_bytes)} GB of weights, {kv}"
        + (f"KV cache of {number(has.kv_tokens)} tokens a replica" if has.kv_tokens else "no KV cache")
    )
    shares = f"MBU {has.mbu or 0:.2f}, MFU {has.mfu_prefill or 0:.2f}"
    assumed = f"{shares}, {number((has.layer_overhead_s or 0) * 1e6)} µs a layer and step"
    by = "by what these cores reach" if prediction.gpu == "host" else "by the data sheet"
    lines.append(f"{by}: {assumed}; low and high {_edges(has)}")
    if prediction.scaling_efficiency is not None:
        lines.append(f"scaling efficiency {percent(prediction.scaling_efficiency)} of {prediction.gpus} times one GPU")
    if prediction.calibrated is not None:
        lines.append(calibrated_line(prediction.calibrated))
    return lines


def _billions(value: float | None) -> str:
    return number(None if value is None else value / 1e9)


def _edges(has: Assumptions) -> str:
    """The figures of low and high: the usual edges, stretched by what was given outside of them.

    docs/method.md, The deployment.
    """

    def share(assumed: float | None, low: float, high: float) -> str:
        return f"{min(assumed or low, low):.3g}–{max(assumed or high, high):.3g}"

    slow = number(max(50e-6, has.layer_overhead_s or 0) * 1e6)
    return f"MBU {share(has.mbu, 0.6, 0.9)}, MFU {share(has.mfu_prefill, 0.3, 0.6)}, {slow}–0 µs"


def _band(band: Band) -> str:
    return f"{number(band.mid)} ({number(band.low)}–{number(band.high)})"


def calibrated_line(found: Calibrated) -> str:
    """The calibrated prediction in a line of its own."""
    on = ", ".join(f"{each:g}" for each in found.fitted_on)
    error = f"it misses unseen levels by {percent(found.error_unseen)}" if found.error_unseen is not None else ""
    unseen = error or "no level is left to judge it by"
    return (
        f"calibrated on C = {on} of {plain(found.source) or 'a measurement'}: plateau "
        f"{number(found.plateau_tokens_per_s)} output tok/s, single stream {number(found.single_stream_tokens_per_s)}; "
        f"{unseen}"
    )


def level_columns(prediction: Prediction) -> list[Column]:
    """The table over concurrency; columns without any cell are left out."""
    levels = prediction.levels

    def band(get: Any, end: str) -> list[str]:
        return [number(getattr(each, end)) if (each := get(level)) else MISSING for level in levels]

    def tokens(level: PredictedLevel) -> Band | None:
        return level.output_tokens_per_s if prediction.output_tokens else None

    def rates(level: PredictedLevel) -> Band | None:
        return level.requests_per_s

    def dollars(level: PredictedLevel) -> Band | None:
        return level.usd_per_million

    ratios = [level.measured_over_predicted for level in levels]
    slo = {True: "met", False: "missed", None: MISSING}
    ends = ("low", "mid", "high")
    columns = [Column("C", [f"{level.concurrency:,}" for level in levels])]
    columns += [Column(f"tok/s {end}", band(tokens, end)) for end in ends]
    columns.append(Column("ITL ms", [ms(level.itl_s) for level in levels]))
    columns.append(Column("TTFT ms", [ms(level.ttft_s) for level in levels]))
    if prediction.output_tokens:
        columns.append(Column("req/s", band(rates, "mid")))
    else:
        columns += [Column(f"req/s {end}", band(rates, end)) for end in ends]
    columns.append(Column("$/1M" if prediction.output_tokens else "$/1M in", band(dollars, "mid")))
    columns.append(Column("SLO", [slo[level.meets_slo] for level in levels], words=True))
    columns.append(Column("meas./pred.", [MISSING if each is None else f"{each:.2f}" for each in ratios]))
    columns.append(
        Column("mostly", [name(level.bound_by) if level.bound_by else MISSING for level in levels], words=True)
    )
    return [column for column in columns if any(cell != MISSING for cell in column.cells)]


def stepped_columns(levels: Sequence[SteppedLevel]) -> list[Column]:
    """The step machine's table, over concurrency or over the rate that comes; percentiles stand behind their mean."""

    def spread(head: str, get: Callable[[SteppedLevel], Spread | None]) -> list[Column]:
        found = [get(level) for level in levels]

        def of(figure: str) -> list[str]:
            return [ms(getattr(each, figure) if each else None) for each in found]

        return [Column(f"{head} ms", of("mean")), *(Column(f"{head} {p}", of(p)) for p in ("p50", "p99"))]

    ratios = [level.over_closed_form for level in levels]
    columns = [
        Column("C", [number(level.concurrency) for level in levels]),
        Column("req/s asked", [number(level.rate) for level in levels]),
        Column("tok/s", [number(level.output_tokens_per_s) for level in levels]),
        *spread("ITL", lambda level: level.itl_s),
        *spread("TTFT", lambda level: level.ttft_s),
        Column("req/s", [number(level.requests_per_s) for level in levels]),
        Column("in flight", [number(level.in_flight) for level in levels]),
        Column("preempted", [f"{level.preemptions:,}" for level in levels]),
        Column("/ closed form", [MISSING if each is None else f"{each:.3f}" for each in ratios]),
        Column("", ["overloaded" if level.unstable else "" for level in levels], words=True),
    ]
    return [column for column in columns if any(cell not in (MISSING, "") for cell in column.cells)]


def limit_columns(limits: Sequence[Limit], prediction: Prediction) -> list[Column]:
    """Every named limit with its value, and which one binds."""
    unit = "tok/s" if prediction.output_tokens else ""
    columns = [
        Column("limit", [name(each.name) for each in limits], words=True),
        Column("from C", ["never" if each.concurrency is None else number(each.concurrency) for each in limits]),
        Column(unit, [number(each.tokens_per_s) for each in limits]),
        Column(
            "",
            [_says(each) + (" ← binds" if each.name == prediction.binding_cap else "") for each in limits],
            words=True,
        ),
    ]
    return [column for column in columns if any(cell != MISSING for cell in column.cells)]


def _says(limit: Limit) -> str:
    """What a limit does to the curve, and what happens from the load beside it on, where there is one."""
    if limit.kind == "ceiling":
        from_there = f"; overtakes {_OVERTAKEN[limit.name]} from there"
        return "no batch exceeds it" + (from_there if limit.concurrency is not None else "")
    if limit.kind == "asked":
        return "kept at any load" if limit.concurrency is None else "the limits are kept up to there"
    return {"slope": "rises by this a user at low load", "stop": "the batch stops there"}[limit.kind]


def calibrated_columns(prediction: Prediction, found: Calibrated) -> list[Column]:
    """Both predictions by level, each in its own columns, and what the measurement is of each where there is one."""
    pairs = list(zip(prediction.levels, found.levels, strict=True))

    def ratio(level: PredictedLevel) -> str:
        value = level.measured_over_predicted
        return MISSING if value is None else f"{value:.2f}"

    columns = [
        Column("C", [f"{sheet.concurrency:,}" for sheet, _ in pairs]),
        Column("sheet tok/s", [number(sheet.output_tokens_per_s.mid) for sheet, _ in pairs]),
        Column("calibrated tok/s", [number(own.output_tokens_per_s.mid) for _, own in pairs]),
        Column("sheet ITL ms", [ms(sheet.itl_s) for sheet, _ in pairs]),
        Column("calibrated ITL ms", [ms(own.itl_s) for _, own in pairs]),
        Column("sheet TTFT ms", [ms(sheet.ttft_s) for sheet, _ in pairs]),
        Column("calibrated TTFT ms", [ms(own.ttft_s) for _, own in pairs]),
        Column("meas./sheet", [ratio(sheet) for sheet, _ in pairs]),
        Column("meas./calibrated", [ratio(own) for _, own in pairs]),
    ]
    return [column for column in columns if any(cell != MISSING for cell in column.cells)]


# ---- which GPU, golden cases, calibration ---------------------------------------------------------------


def choice_sections(choices: Sequence[Choice], rank: str) -> list[Section]:
    """Every card that serves, the best first, and those that do not with the reason."""
    fit = [each for each in choices if not each.why_not]
    out = [each for each in choices if each.why_not]
    most = "tokens" if _decodes(fit) else "requests"
    by = {"cost": "the cheapest tokens first", "speed": f"the most {most} first"}[rank]
    found = [Section(f"Cards that serve it, {by}", _choice_columns(fit))] if fit else []
    if out:
        reasons = [
            Column("GPU", [_cards(each) for each in out], words=True),
            Column("why not", [plain(each.why_not) for each in out], words=True),
        ]
        found.append(Section("Cards that do not", reasons))
    said = list(dict.fromkeys(plain(doubt) for each in fit for doubt in each.doubts))
    return [*found, *([Section("Less sure of, marked ?", lines=said)] if said else [])]


def _cards(choice: Choice) -> str:
    return f"{choice.tp} × {choice.gpu}"


def _decodes(choices: Sequence[Choice]) -> bool:
    return any(each.output_tokens_per_s and each.output_tokens_per_s.mid for each in choices)


def _choice_columns(choices: Sequence[Choice]) -> list[Column]:
    def money(value: float | None) -> str:
        return MISSING if value is None else f"{value:,.2f}"

    bands = [each.output_tokens_per_s for each in choices]
    columns = [
        Column("GPU", [_cards(each) for each in choices], words=True),
        Column("$/1M" if _decodes(choices) else "$/1M in", [number(each.usd_per_million) for each in choices]),
        Column("tok/s", [number(band.mid) if band and band.mid else MISSING for band in bands]),
        Column("req/s", [number(each.requests_per_s) for each in choices]),
        Column("at C", [number(each.concurrency) for each in choices]),
        Column("ITL ms", [ms(each.itl_s) for each in choices]),
        Column("TTFT ms", [ms(each.ttft_s) for each in choices]),
        Column("$/h", [money(each.usd_per_hour) for each in choices]),
        Column("bound by", [name(each.binding_cap) if each.binding_cap else MISSING for each in choices], words=True),
        Column("", ["measured" if each.measured else "?" if each.doubts else "" for each in choices], words=True),
    ]
    return [column for column in columns if any(cell not in (MISSING, "") for cell in column.cells)]


def golden_columns(rows: Sequence[Row]) -> list[Column]:
    """Every golden case: id, inputs, value, expected, met."""

    def exact(value: float) -> str:
        return f"{value:,.0f}" if value == int(value) else f"{value:,.6g}" if value < 1e6 else f"{value:,.6e}"

    return [
        Column("id", [row.id for row in rows], words=True),
        Column("inputs", [row.inputs for row in rows], words=True),
        Column("value", [exact(row.value) for row in rows]),
        Column("expected", [exact(row.expected) for row in rows]),
        Column("unit", [row.unit for row in rows], words=True),
        Column("met", ["yes" if row.met else "NO" for row in rows], words=True),
        Column("note", [row.note for row in rows], words=True),
    ]


def calibration_sections(found: Calibration, assumed: Mapping[str, float]) -> list[Section]:
    """What was fitted, beside what was `assumed`, and how far off it is at the levels that it did not see."""
    on = ", ".join(f"{each:g}" for each in found.fitted_on)

    def figure(parameter: str, value: float) -> str:
        return f"{value:.3f}" if parameter in _SHARES else number(value * 1e6)

    parameters = [
        Column("", list(PARAMETERS.values()), words=True),
        Column("data sheet", [figure(each, assumed[each]) for each in PARAMETERS]),
        Column("calibrated", [figure(each, getattr(found, each)) for each in PARAMETERS]),
        Column("", [_how(found, each) for each in PARAMETERS], words=True),
    ]
    out = [Section(f"{found.model} on {found.gpu}, calibrated on C = {on}", parameters)]
    unseen = [row for row in found.errors_unseen if row.figure == "output_tokens_per_s"]
    if unseen:
        labels = {"output_tokens_per_s": "output tok/s", "itl_s": "ITL", "ttft_s": "TTFT"}
        rms = {label: found.rms(figure) for figure, label in labels.items()}

        def share(value: float | None) -> str:
            return percent(value)

        out.append(
            Section(
                "Error at the levels that it did not see, root mean square",
                [
                    Column("", list(rms), words=True),
                    Column("calibrated", [share(each.calibrated) for each in rms.values()]),
                    Column("data sheet", [share(each.data_sheet) for each in rms.values()]),
                    Column("line, then flat", [share(each.line_then_flat) for each in rms.values()]),
                ],
            )
        )
        out.append(
            Section(
                "Output tok/s, predicted over measured less 1",
                [
                    Column("C", [f"{row.concurrency:g}" for row in unseen]),
                    Column("measured", [number(row.measured) for row in unseen]),
                    Column("calibrated", [_signed(row.calibrated) for row in unseen]),
                    Column("data sheet", [_signed(row.data_sheet) for row in unseen]),
                    Column("line, then flat", [_signed(row.line_then_flat) for row in unseen]),
                ],
            )
        )
    else:
        out.append(Section("Error at unseen levels", lines=["none: every valid level was fitted on"]))
    return out + ([Section("Notes", lines=[plain(note) for note in found.notes])] if found.notes else [])


def _how(found: Calibration, parameter: str) -> str:
    return "fitted" if parameter in found.fitted else f"kept: {found.kept.get(parameter, 'part of a layer’s')}"


def _signed(error: float | None) -> str:
    return MISSING if error is None else f"{100 * error:+.1f} %"


# ---- terminal and Markdown ------------------------------------------------------------------------------


def print_sections(found: Sequence[Section], console: Console) -> None:
    """Tables and lines on a terminal; where it is none, nothing is folded."""
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    for i, section in enumerate(found):
        if i:
            console.print()
        if section.title:
            console.print(Text(section.title, "bold"))
        for j, line in enumerate(section.lines):
            console.print(Text(line, "bold" if not section.title and not j else ""), soft_wrap=not console.is_terminal)
        if not section.columns:
            continue
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for column in section.columns:
            table.add_column(
                Text(column.head, "dim"), justify="left" if column.words else "right", no_wrap=not column.words
            )
        for cells in zip(*(column.cells for column in section.columns), strict=True):
            table.add_row(*(Text(cell) for cell in cells))
        if not console.is_terminal:  # a file has no width
            most = Measurement.get(console, console.options.update(max_width=10_000), table).maximum
            console.width = max(console.width, most)
        console.print(table)


def markdown(found: Sequence[Section]) -> str:
    """The same as Markdown."""
    from harness.report.page import literal

    parts = []
    for section in found:
        parts += [f"## {literal(section.title)}"] if section.title else []
        parts += ["\n".join(f"- {literal(line)}" for line in section.lines)] if section.lines else []
        if section.columns:
            heads = [literal(column.head) for column in section.columns]
            rules = ["---" if column.words else "---:" for column in section.columns]
            rows = zip(*(column.cells for column in section.columns), strict=True)
            lines = [heads, rules, *([literal(cell) for cell in row] for row in rows)]
            parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join(parts) + "\n"
