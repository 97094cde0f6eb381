"""The table by load: a row for each level with its repeats averaged, and one for each measurement where there are any.

Times are in milliseconds. A percentile has a column where some level has it. A narrow terminal leaves out columns from
the least needed on (`Column.spare`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from harness.data.figures import Group, Of
from harness.data.judgement import Gravity, Outcome
from harness.data.levels import LevelPhases, LevelSummary
from harness.data.summary import Summary
from harness.data.views import Estimate, Spread
from harness.report.answer import unit_of
from harness.report.document import Column, Section, shown
from harness.report.format import MISSING, half_width, label, ms, number, percent, ratio
from harness.report.levels import above_zero, declared_columns, mean_of, of_loads
from harness.report.remarks import SIGNS, legend, worst
from harness.spec.work import Unit

_C = "C: requests kept in flight"
_DASH = f"{MISSING}: too few samples"
_PHASES = "time in prompts: share of the server's busy time; prefill, decode: tok/s over the time that each takes"
_MEANS = "× n: mean of n repeats"
_VALID = "× n of m: mean of the n valid ones of m repeats"


def by_load(summary: Summary, title: str = "") -> Section:
    """Return the table of levels, a row for each load, the lowest first; its valid repeats averaged."""
    same = of_loads(summary.levels)
    rows = [mean_of(each) for each in same]
    every = Counter((level.load, level.input_tokens_asked) for level in summary.levels)
    measured = [every[each[0].load, each[0].input_tokens_asked] for each in same]
    times = [
        f"× {len(valid)}{f' of {n}' if n > len(valid) else ''}" if n > 1 else ""
        for valid, n in zip(same, measured, strict=True)
    ]
    repeats = [Column("", times, spare=12)] if any(times) else []
    about = [_VALID if any(" of " in time for time in times) else _MEANS] if repeats else []
    load, *figures = columns(summary, rows)
    return _section(title, rows, [load, *repeats, *figures], about)


def by_measurement(summary: Summary, title: str) -> Section:
    """Return a row for each measurement in its order; empty where no level has repeats."""
    if len(of_loads(summary.levels)) == len(summary.levels):
        return Section()
    return _section(title, summary.levels, columns(summary, summary.levels), [])


def _section(title: str, rows: Sequence[LevelSummary], cells: Sequence[Column], about: Sequence[str]) -> Section:
    """Return the section of a table of levels, with a note on its signs and short headings, invalid rows marked."""
    if not rows:
        return Section()
    void = frozenset(i for i, level in enumerate(rows) if worst(level) == Gravity.INVALID)
    heads = [_C] if cells[0].head == "C" else []
    dash = [_DASH] if any(MISSING in column.cells for column in cells) else []
    signs = ", ".join(filter(None, [*heads, *dash, legend(rows), *about]))
    phases = any(column.head.startswith("time in") for column in cells)
    return Section(title, columns=cells, void=void, note="; ".join(filter(None, [signs, _PHASES * phases])))


def columns(summary: Summary, levels: Sequence[LevelSummary]) -> list[Column]:
    """Return the columns of these levels, the load first; those of times that no level has are left out."""
    unit, open_loop, of_sessions = unit_of(summary), summary.open_loop, summary.of_sessions
    kind = unit.removesuffix("tokens").strip()
    joules = [number(level.gpu.joules_per_output_token if level.gpu else None) for level in levels]
    return [
        Column("target\nreq/s" if open_loop else summary.load_unit if of_sessions else "C", [label(x) for x in levels]),
        *shown([Column("prompt\ntokens", [number(level.input_tokens_asked) for level in levels])]),
        Column(
            "requests\nin flight" if of_sessions else "in\nflight",
            [MISSING if level.in_flight is None else f"{level.in_flight:,.1f}" for level in levels],
            spare=0 if of_sessions or open_loop else 6,
        ),
        Column(f"{kind}\ntok/s" if kind != unit else f"{kind}\n/s", [number(x.throughput.mean) for x in levels]),
        Column("95 %\n±", [_half(level) for level in levels], spare=13),
        *_predicted(summary, levels),
        *_declared(levels, Group.LOAD, Group.LENGTH, Group.RATE),
        *(_decoding(levels) if unit.decodes else _whole(levels, unit)),
        *_declared(levels, Group.LATENCY, Group.DELAY, Group.GOAL),
        *([Column("lag ms\np99", [ms(level.lag_s.p99) for level in levels])] if open_loop else []),
        *shown([Column("J per\ntoken", joules, spare=5), Column("SLO", [_outcome(level) for level in levels])]),
        *_declared(levels, Group.COUNT),
        Column("", [SIGNS[gravity] if (gravity := worst(level)) else "" for level in levels]),
    ]


def _declared(levels: Sequence[LevelSummary], *groups: Group) -> list[Column]:
    """Return the columns of these groups of figures, as each figure's declaration has them."""
    return [
        Column(each.head, [show(level) for level in levels], spare=each.spare)
        for each, show in declared_columns(Of.LEVEL, LevelSummary, *groups)
    ]


def _predicted(summary: Summary, levels: Sequence[LevelSummary]) -> list[Column]:
    """Return columns of predicted throughput and measured ÷ predicted, and both for the calibrated prediction."""
    prediction = None if summary.open_loop else summary.prediction
    own = prediction.calibrated if prediction else None
    out = []
    for head, over, of in (("predicted", "pred.", prediction), ("calibr.", "calibr.", own)):
        if of and of.levels:
            predicted = {level.concurrency: level for level in of.levels}
            guesses = [predicted.get(level.concurrency or 0) for level in levels]
            tokens = [number(round(guess.throughput.mid, 1)) if guess else MISSING for guess in guesses]
            ratios = [ratio(guess.measured_over_predicted if guess else None) for guess in guesses]
            out += [Column(f"{head}\ntok/s", tokens, spare=2), Column(f"meas./\n{over}", ratios)]
    return out


def _decoding(levels: Sequence[LevelSummary]) -> list[Column]:
    """Return the columns of TTFT, ITL, E2E and phases; means of TTFT and E2E only where a level has no median."""
    ttfts, e2es = [level.ttft_s for level in levels], [level.e2e_s for level in levels]
    first, *ttft = _columns("TTFT ms", ttfts, {"p50": 0, "p90": 8, "p95": 11, "p99": 14})
    mean, *itl = _columns("ITL ms", [x.itl_s for x in levels], {"mean": 0, "p50": 1, "p90": 1, "p95": 1, "p99": 4})
    e2e = _columns("E2E ms", e2es, {"p50": 10, "p90": 1, "p95": 3, "p99": 7})
    before_first, before_e2e = _means("TTFT ms", ttfts, 9), _means("E2E ms", e2es, 1)
    return [*before_first, first, *shown(ttft), mean, *shown(itl), *before_e2e, *shown(e2e), *_phases(levels)]


def _phases(levels: Sequence[LevelSummary]) -> list[Column]:
    """Return the columns of the server's share of time in prompts and the tokens/s of each phase while it runs."""
    views = [level.phases or LevelPhases() for level in levels]
    share = Column("time in\nprompts", [percent(above_zero(view.prefill_share)) for view in views], spare=15)
    prefill = Column("prefill\ntok/s", [number(_known(view.prefill_tokens_per_s)) for view in views], spare=16)
    decode = Column("decode\ntok/s", [number(_known(view.decode_tokens_per_s)) for view in views], spare=17)
    return shown([share, prefill, decode])


def _known(rate: Estimate) -> float | None:
    """Return a rate; None if its interval is wider than itself, as that of a phase that takes hardly any time."""
    low, high = rate.ci95 or (0.0, 0.0)
    return above_zero(rate) if high - low <= (rate.mean or 0.0) else None


def _whole(levels: Sequence[LevelSummary], unit: Unit) -> list[Column]:
    """Return the columns of levels that decode nothing (embeddings): documents/s and the response's latency."""
    documents = [number(level.documents_per_s.mean if level.documents_per_s else None) for level in levels]
    first, *later = _columns("latency ms", [level.e2e_s for level in levels], {"p50": 0, "p90": 1, "p95": 2, "p99": 10})
    of_documents = [Column("docs/s", documents, spare=8)] if unit is not Unit.DOCUMENTS else []
    return [*of_documents, first, *shown(later)]


def _columns(name: str, times: Sequence[Spread], spare: Mapping[str, int]) -> list[Column]:
    """Return a column for each statistic of a time, with how readily a narrow terminal leaves it out."""
    return [Column(f"{name}\n{q}", [ms(getattr(time, q)) for time in times], spare=n) for q, n in spare.items()]


def _means(name: str, times: Sequence[Spread], spare: int) -> list[Column]:
    """Return the column of means, the number of samples beside each that has no median; [] if all have one."""
    if all(time.p50 is not None for time in times):
        return []
    cells = [f"{ms(x.mean)} ({x.n:,})" if x.p50 is None and x.mean is not None else ms(x.mean) for x in times]
    return [Column(f"{name}\nmean (n)", cells, spare=spare)]


def _half(level: LevelSummary) -> str:
    width = half_width(level.throughput.ci95)
    return MISSING if width is None else f"±{number(width, 2)}"


def _outcome(level: LevelSummary) -> str:
    """Return the outcome of all limits of the SLO together."""
    outcomes = [attainment.outcome for attainment in level.slo]
    return next((outcome for outcome in Outcome if outcome in outcomes), MISSING)
