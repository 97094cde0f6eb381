"""Stacks compared, as a document: the answer, the curves, fairness, ratios by load, and figures side by side."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from harness.analysis.stats import Z95, known_mean
from harness.data.summary import Knees
from harness.data.views import Value
from harness.decide.compare import spread
from harness.decide.compare.comparison import Comparison, OddRun, Spot, Stack
from harness.decide.compare.fairness import ALLOWED, EQUAL, Row
from harness.decide.compare.pairs import Crossover, Pair, Ratio
from harness.decide.compare.runs import Load
from harness.decide.compare.spread import ALPHA
from harness.report import chart
from harness.report.answer import of_curve
from harness.report.chart import PARTS, Chart, Datum, Guide, Scale, Series, ticks
from harness.report.document import SIMULATED, Column, Document, Fact, Section, shown
from harness.report.format import MISSING, confidence, interval, joined, listed, load, ms, number, percent, plain, ratio
from harness.spec.work import Unit

PICTURE, PARETO = "comparison.png", "pareto.png"
_POINTWISE = "Each interval is of its own level; the answer is over all of them."
_AT_LIMITS = "Between levels by interpolation, without an interval."
UNCERTAIN = "too uncertain to say"
_ANSWER = "Answer"
_DIFFER = ("faster", "turns_over")  # outcomes of a pair
_AGAIN = "look for what disturbs the machine"
_FAR = 1.2  # between the ratios at two loads, from which on both are named
_SIDES = ("below", "above")
_TOLD = ("realised lengths", "measured by", "prompts from cache", "errors", "lost loads")  # facts beside a ranking


def report(comparison: Comparison, *, brief: bool = False) -> Document:
    """Return the whole comparison; `brief`: without the facts that are equal."""
    charts = [curves(comparison), frontier(comparison)]
    drawn = f"{unit.capitalize()} per second" if (unit := _unit(comparison)) else "Throughput"
    lacks = [f"{plain(stack.label)}: {plain(lack)}" for stack in comparison.stacks for lack in stack.lacks]
    ratios = _ratios(comparison)
    by = f", by {listed(comparison.differ)}" if comparison.differ and not comparison.refused else ""
    sections = [
        Section("", answer(comparison), answer=True),
        Section(
            "Throughput against load",
            charts=[each for each in charts if each.series],
            picture=PICTURE,
            alt=f"{drawn} of each stack against requests in flight",
        ),
        _fairness(comparison, brief=brief),
        Section("Throughput at equal load", columns=ratios, note=_POINTWISE if ratios else ""),
        Section("Side by side", columns=_side_by_side(comparison)),
        Section("At equal throughput", columns=_at_throughput(comparison)),
        Section("At equal latency", columns=_at_limits(comparison), note=_AT_LIMITS if comparison.at_limits else ""),
        Section("At equal load", columns=_equal_load(comparison)),
        Section("What other tools' files cannot support", lines=lacks),
    ]
    return Document(
        title=" against ".join(plain(stack.label) for stack in comparison.stacks) + by,
        answer=sentence(comparison),
        simulated=SIMULATED if any(stack.simulated for stack in comparison.stacks) else "",
        sections=sections,
        source="the runs that it names",
        again="knee compare",
    )


def _fairness(comparison: Comparison, *, brief: bool) -> Section:
    """Return the table of facts that should be alike in all stacks, with their state; `brief`: of unequal ones."""
    table = [row for row in comparison.fairness if row.state != EQUAL or not brief]
    equal = len(comparison.fairness) - len(table)
    note = f"{equal} more fact{'s are' if equal > 1 else ' is'} equal; --out DIR writes all of them" if equal else ""
    if not table:
        return Section("Fairness", note=note.replace(" more", ""))
    values = [
        Column(plain(stack.label), [plain(row.values[i]) if row.values[i] else "unknown" for row in table], words=True)
        for i, stack in enumerate(comparison.stacks)
    ]
    columns = [
        Column("fact", [row.name for row in table], words=True),
        *values,
        Column("state", [row.state for row in table], words=True),
        *shown([Column("why", [row.why for row in table], words=True)], ("",)),
    ]
    return Section("Fairness", columns=columns, note=note)


def _ratios(comparison: Comparison) -> list[Column]:
    """Return the table of throughput at each load, of the first stack and of each other one with its ratio to it."""
    base = comparison.stacks[0].label
    first = [pair for pair in comparison.pairs if pair.a == base and pair.levels]
    loads = sorted({level.concurrency for pair in first for level in pair.levels})
    if not loads:
        return []
    own = {level.concurrency: level.a_tokens_per_s for pair in first for level in pair.levels}
    per_s = {stack.label: _per_s(stack) for stack in comparison.stacks}
    columns = [
        Column("C", [f"{C:g}" for C in loads]),
        Column(f"{plain(base)}\n{per_s[base]}", [number(own[C]) for C in loads]),
    ]
    for pair in first:
        by = {level.concurrency: level for level in pair.levels}
        label = plain(pair.b)
        rates = [number(by[C].b_tokens_per_s) if C in by else MISSING for C in loads]
        ratios = [f"{by[C].b_over_a.value:.3f}" if C in by else MISSING for C in loads]
        ends = [_ends_of(by[C].b_over_a) if C in by else MISSING for C in loads]
        columns += [
            Column(f"{label}\n{per_s[pair.b]}", rates),
            Column("\nratio", ratios),
            Column("95 %\ninterval", ends),
        ]
    return columns


def _side_by_side(comparison: Comparison) -> list[Column]:
    names: dict[str, Callable[[Stack], str]] = {
        "runs": lambda stack: str(stack.runs),
        "knee by seats": lambda stack: f"{plain(stack.seats)}" if stack.seats else MISSING,
        "knee by the curve": _hinge,
        "plateau": lambda stack: _value(stack.curve.plateau_tokens_per_s, _per_s(stack)),
        "single stream": lambda stack: _value(stack.curve.single_stream_tokens_per_s, _per_s(stack)),
        "plateau over the predicted one": lambda stack: ratio(stack.of_predicted),
        "first answer": lambda stack: f"{number(stack.first_answer_s)} s" if stack.first_answer_s else MISSING,
        "start to ready": lambda stack: f"{number(stack.start_to_ready_s)} s" if stack.start_to_ready_s else MISSING,
    }
    rows = [(name, [text_of(stack) for stack in comparison.stacks]) for name, text_of in names.items()]
    rows = [(name, cells) for name, cells in rows if set(cells) != {MISSING}]
    columns = [
        Column(plain(stack.label), [cells[i] for _, cells in rows], words=True)
        for i, stack in enumerate(comparison.stacks)
    ]
    return [Column("", [name for name, _ in rows], words=True), *columns]


def _hinge(stack: Stack) -> str:
    knees = Knees(hinge=stack.curve.hinge_concurrency)
    return of_curve(stack.curve, knees, [spot.in_flight for spot in stack.spots]).value


def _per_s(stack: Stack) -> str:
    """Return the unit of a stack's throughput, to follow a figure."""
    return "tok/s" if stack.counts.decodes else stack.counts.per_s


def _unit(comparison: Comparison) -> Unit | None:
    """Return what all stacks count; None if they count other things."""
    units = {stack.counts for stack in comparison.stacks}
    return units.pop() if len(units) == 1 else None


def _value(value: Value, unit: str) -> str:
    if value.value is None:
        return MISSING
    low, high = value.ci95 or (None, None)
    words = UNCERTAIN if low and high and high > spread.UNCERTAIN * low else interval(value.ci95)
    return f"{number(value.value)} {unit}" + (f" ({words})" if words else "")


def _at_throughput(comparison: Comparison) -> list[Column]:
    """Return the table of each stack's TTFT and ITL at a few equal throughputs."""
    rows = comparison.at_throughput
    if not rows:
        return []
    columns = [Column(f"\n{_per_s(comparison.stacks[0])}", [number(row.tokens_per_s) for row in rows])]
    for i, stack in enumerate(comparison.stacks):
        columns += [
            Column(f"{plain(stack.label)}\nTTFT p50 ms", [ms(row.ttft_p50_s[i]) for row in rows]),
            Column("\nITL mean ms", [ms(row.itl_mean_s[i]) for row in rows]),
        ]
    return columns


def _at_limits(comparison: Comparison) -> list[Column]:
    """Return the table of each stack's throughput within a few equal latency limits."""
    rows = comparison.at_limits
    if not rows:
        return []
    limits = [f"{'TTFT p50' if row.figure == 'ttft_p50_s' else 'ITL mean'} {ms(row.limit_s)} ms" for row in rows]
    columns = [Column("limit", limits, words=True)]
    for i, stack in enumerate(comparison.stacks):
        cells = [number(row.tokens_per_s[i]) + (" or more" if row.open[i] else "") for row in rows]
        columns.append(Column(f"{plain(stack.label)}\n{_per_s(stack)}", cells))
    return columns


def _equal_load(comparison: Comparison) -> list[Column]:
    """Return the table of latencies, cost and energy at every load that all stacks have; runs of a stack averaged."""
    keys = [{(each.load, each.open_loop) for each in stack.loads} for stack in comparison.stacks]
    common = sorted(set.intersection(*keys)) if keys else []
    rows = [(key, stack) for key in common for stack in comparison.stacks]

    def cells(name: str, make: Callable[[float | None], str] = number) -> list[str]:
        return [make(_mean(stack.loads, key, name)) for key, stack in rows]

    if not rows:
        return []
    heads = [load(key[1], key[0]) for key, _ in rows]
    hits = any(each.cached for stack in comparison.stacks for each in stack.loads)
    return shown(
        [
            Column("load", heads, words=True),
            Column("stack", [plain(stack.label) for _, stack in rows], words=True),
            Column(
                "from\ncache", cells("cached", lambda share: f"{share:.1%}" if hits and share is not None else MISSING)
            ),
            Column("TTFT ms\np50", cells("ttft_p50_s", ms)),
            Column("ITL ms\nmean", cells("itl_mean_s", ms)),
            Column("E2E ms\np50", cells("e2e_p50_s", ms)),
            Column("tok/s\nper user", cells("tokens_per_s_per_user")),
            Column("tok/s\nper GPU", cells("tokens_per_s_per_gpu")),
            Column("$ per\n1M out", cells("usd_per_million")),
            Column("J per\ntoken", cells("joules_per_token")),
        ]
    )


def _mean(loads: Sequence[Load], key: tuple[float, bool], name: str) -> float | None:
    return known_mean(getattr(each, name) for each in loads if (each.load, each.open_loop) == key)


# ---- charts ----------------------------------------------------------------------------------------------------------


def curves(comparison: Comparison) -> Chart:
    """Return throughput against requests in flight: stacks with fitted lines, the load where the order turns over."""
    series, tops, loads, unit = [], [0.0], [], _unit(comparison)
    for tone, stack in zip(itertools.cycle(PARTS), comparison.stacks, strict=False):
        points = [_spot(spot, _per_s(stack)) for spot in stack.spots]
        tops += [point.high or point.y for point in points]
        loads += [point.x for point in points]
        if line := [Datum(point.in_flight, point.per_s) for point in stack.curve.line]:
            series.append(Series(tone=tone, points=line, line="solid"))
        if points:
            series.append(Series(name=plain(stack.label), tone=tone, points=points, marker="dot"))
    low, high = min(loads, default=1.0), max(loads, default=1.0)
    levels = sorted({max(1, round(x)) for x in loads}) or [1]
    crossovers = [pair.turnover for pair in comparison.pairs if pair.turnover is not None]
    guides = [
        Guide(
            at=crossover.at.value or 0.0,
            tone="knee",
            line="dashed",
            ci95=crossover.at.ci95,
            label=f"turns over at {number(crossover.at.value)}",
        )
        for crossover in crossovers
    ]
    return Chart(
        name="curves",
        title=" against ".join(plain(stack.label) for stack in comparison.stacks),
        answer=sentence(comparison),
        simulated="the simulated endpoint answered" if any(stack.simulated for stack in comparison.stacks) else "",
        x=Scale(
            label="requests in flight",
            log=2,
            ends=(low / 1.18, high * 1.18),
            ticks=[(float(tick), f"{tick:,}") for tick in ticks(levels)],
        ),
        y=Scale(label=unit.per_s if unit else "throughput", ends=(0, 1.08 * max(tops) or 1.0)),
        series=series,
        guides=guides,
        switch=True,
        missing="" if series else "nothing measured at requests in flight",
    )


def _spot(spot: Spot, per_s: str) -> Datum:
    x, y = spot.in_flight, spot.tokens_per_s
    half = Z95 * spot.error * y
    hover = (f"{number(x)} in flight: {number(y)} {per_s}",)
    return Datum(x, y, max(0.0, y - half), y + half, hover=hover)


def frontier(comparison: Comparison) -> Chart:
    """Return the Pareto picture: output tok/s per GPU against output tok/s per user, a point a level, and its front."""
    series = []
    for tone, stack in zip(itertools.cycle(PARTS), comparison.stacks, strict=False):
        loads = sorted({each.load for each in stack.loads if not each.open_loop})
        pairs = [
            (
                _mean(stack.loads, (C, False), "tokens_per_s_per_user"),
                _mean(stack.loads, (C, False), "tokens_per_s_per_gpu"),
                C,
            )
            for C in loads
        ]
        points = [
            Datum(x, y, hover=(f"C = {C:g}: {number(x)} tok/s per user, {number(y)} per GPU",))
            for x, y, C in pairs
            if x is not None and y is not None
        ]
        if points:
            series.append(Series(tone=tone, points=_front(points), line="solid"))
            series.append(Series(name=plain(stack.label), tone=tone, points=points, marker="dot"))
    missing = "" if series else "not known"
    return chart.frontier(series, missing)


def _front(points: Sequence[Datum]) -> list[Datum]:
    """Return the Pareto front: the points that no other point exceeds in both x and y, from the largest x on."""
    front: list[Datum] = []
    for point in sorted(points, key=lambda point: (-point.x, -point.y)):
        if not front or point.y > front[-1].y:
            front.append(point)
    return front


def sentence(comparison: Comparison) -> str:
    """Return the first answer in a line."""
    fact = answer(comparison)[0]
    return fact.value if fact.label == _ANSWER else f"{fact.label}: {fact.value}"


def answer(comparison: Comparison) -> list[Fact]:
    """Return the lines of the answer: who is faster in each pair, odd runs, and which facts differ or are unknown."""
    out = []
    if comparison.fatal:
        unlike = [_unlike(row) for row in comparison.fairness if row.name in comparison.fatal]
        label = "Forced" if comparison.forced else "Refused"
        out.append(Fact(label, f"not alike: {listed(unlike)}", _way_out(comparison)))
    if not comparison.refused:
        pairs = sorted(comparison.pairs, key=lambda pair: pair.outcome not in _DIFFER)
        out += [_pair(comparison, pair) for pair in pairs]
    out += [odd_run(odd, stack.label) for stack in comparison.stacks for odd in stack.odd]
    if comparison.refused:
        return out
    out += [Fact("Differ", _unlike(row), "") for row in comparison.fairness if row.name in comparison.differ]
    out += [
        Fact(row.name.capitalize(), _unlike(row), row.why)
        for row in comparison.fairness
        if row.name in _TOLD and row.state == ALLOWED
    ]
    if comparison.unknown:
        out.append(Fact("Unknown", listed(comparison.unknown), "they may differ, which weakens every answer"))
    return out


def _unlike(row: Row) -> str:
    """Return a row's name with the stacks' values."""
    return f"{row.name} ({' / '.join(plain(value) if value else 'unknown' for value in row.values)})"


def _way_out(comparison: Comparison) -> str:
    if comparison.forced:
        return "ranked all the same, as --force asks"
    hints = [row.why for row in comparison.fairness if row.name in comparison.fatal and row.why]
    return joined(*hints, "no ranking; --force ranks all the same")


def _pair(comparison: Comparison, pair: Pair) -> Fact:
    """Return the line on one pair of stacks: which is faster and by what ratio, or why neither is shown to be."""
    a, b, apart = plain(pair.a), plain(pair.b), pair.b_over_a
    if apart is None:
        return Fact(_ANSWER, f"{b} against {a}: not ranked", "their levels do not reach over a common concurrency")
    figures = f"{b} has {apart.value:.3f} × the throughput of {a}"
    ends = interval_of(apart, pair.alpha)
    over = f"geometric mean over {load(False, *(level.concurrency for level in pair.levels))}"
    usual = f"no stack has repeats: runs are taken to differ by {percent(pair.run_spread)}, as is usual"
    counts = [f"{stack.runs} of {plain(stack.label)}" for stack in comparison.stacks if stack.label in (pair.a, pair.b)]
    basis = joined(over, f"runs: {listed(counts)}{', in pairs' if pair.rounds else ''}", "" if apart.known else usual)
    if pair.interpolated:
        basis = joined("no load in common: between their levels by straight lines", basis)
    least = f"these data could have shown a difference of {percent((pair.detectable or 1) - 1)}"
    match pair.outcome:
        case "faster":
            return Fact(_ANSWER, f"{plain(pair.faster)} is faster: {figures} ({ends})", joined(_range(pair), basis))
        case "turns_over" if pair.turnover is not None:
            at = pair.turnover.at
            crossing = f"they cross at {number(at.value)} ({confidence(at.ci95)})"
            value = joined(_leads(pair.turnover), crossing)
            return Fact(_ANSWER, value, joined(f"over all loads {figures} ({ends})", basis))
        case "no_difference":
            return Fact(_ANSWER, f"no difference shown: {figures} ({ends})", joined(least, basis))
        case "too_uncertain":
            return Fact(_ANSWER, f"too uncertain to say: {figures}", joined(_settles(pair), basis))
        case _:
            return Fact(_ANSWER, f"not ranked: {figures} ({ends})", joined(least, _settles(pair), basis))


def interval_of(ratio: Ratio, alpha: float = ALPHA) -> str:
    """Return the interval of a ratio, or that it says nothing."""
    return UNCERTAIN if ratio.uncertain else f"{(1 - alpha) * 100:.3g} % interval {_ends_of(ratio)}"


def _settles(pair: Pair) -> str:
    """Return how many runs would show a difference of the size that was found."""
    if pair.enough_runs is None:
        return f"for less: more runs of each, in turn, or {_AGAIN}"
    return f"{pair.enough_runs} runs of each, in turn, would show a difference of this size"


def _range(pair: Pair) -> str:
    """Return in words the smallest and the largest ratio over the loads; "" if they are near each other."""
    levels = sorted(pair.levels, key=lambda level: level.b_over_a.value)
    if len(levels) < 2 or levels[-1].b_over_a.value < _FAR * levels[0].b_over_a.value:
        return ""
    low, high = (f"{level.b_over_a.value:.2f} at {load(False, level.concurrency)}" for level in (levels[0], levels[-1]))
    return f"from {low} to {high}"


def _leads(crossover: Crossover) -> str:
    """Return in words by what ratio which stack is faster below and above the load at which the order changes."""
    if len(crossover.leads) < len(_SIDES):
        return f"{plain(crossover.below)} is faster at low load, {plain(crossover.above)} at high load"
    low, high = crossover.leads
    last, first = f"{low.loads[-1]:g}", f"{high.loads[0]:g}"
    below = last if len(low.loads) == 1 else f"{low.loads[0]:g} to {last}"
    above = first if len(high.loads) == 1 else f"{first} to {high.loads[-1]:g}"
    return (
        f"{plain(low.stack)} has {low.times:.2f} × the throughput of {plain(high.stack)} at {below} in flight, "
        f"{plain(high.stack)} {high.times:.2f} × that of {plain(low.stack)} at {above}"
    )


def _ends_of(ratio: Ratio) -> str:
    return "too uncertain" if ratio.uncertain else f"{ratio.ci95[0]:.3f}–{ratio.ci95[1]:.3f}"


def odd_run(odd: OddRun, stack: str = "") -> Fact:
    """Return the line on a run whose throughput is far from that of its stack's other runs: left out, or only named."""
    of = f" of {plain(stack)}" if stack else ""
    return Fact(
        "Left out" if odd.left_out else "Off",
        f"{plain(odd.place)}{of} has {odd.times:.2f} × the throughput of its other runs from "
        f"{load(False, odd.since)} on",
        "" if odd.left_out else "of two runs it may be either: measure a third",
    )
