"""The settings of a server as a document: the best, and what is not shown to be worse.

Left out: what each trial measured; its own folder has a report.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.base.units import span
from harness.data.views import Value
from harness.decide.tuning import Rank, State
from harness.report.chart import Chart, Datum, Scale, Series, Tone
from harness.report.document import SIMULATED, Column, Document, Fact, Section
from harness.report.format import MISSING, confidence, interval, listed, number

_STATES: dict[State, str] = {
    "best": "best",
    "open": "not shown to be worse",
    "worse": "worse",
    "failed": "failed",
    "left out": "left out",
    "untried": "not tried",
}


def report(
    ranks: Sequence[Rank],
    *,
    title: str,
    per: str,
    at: str,
    command: str,
    seconds: float,
    simulated: bool = False,
) -> Document:
    """Return the report of `knee tune`: the best setting, a chart and a table; figures in `per`, at a load `at`."""
    words = SIMULATED if simulated else ""
    sections = [
        Section(facts=_answer(ranks, per, at, command, seconds), answer=True),
        Section("Settings", charts=[_chart(ranks, per, title, words)], picture="tune.png", columns=_table(ranks, per)),
    ]
    first, *_ = sections[0].facts
    return Document(title=title, answer=first.text, simulated=words, sections=sections)


def _answer(ranks: Sequence[Rank], per: str, at: str, command: str, seconds: float) -> list[Fact]:
    """Return the lines that name the best setting, its command, and how the others did; `ranks` with the best first."""
    best, others = ranks[0], ranks[1:]
    assert best.value is not None
    ends = f" ({confidence(best.value.ci95)})" if best.value.ci95 else ""
    figure = f"{number(best.value.value)} {per}{ends} {at}"
    untried = sum(rank.state == "untried" for rank in others)
    facts = [Fact("Best of those tried" if untried else "Best", best.setting, figure), Fact("Start it by", command)]
    open_ = [rank.setting for rank in others if rank.state == "open"]
    if open_:
        facts.append(Fact("Not shown to be worse", listed(open_)))
    worse = [rank for rank in others if rank.state == "worse" and rank.of_best is not None]
    if worse:
        nearest = max(worse, key=lambda rank: (rank.of_best.value or 0.0) if rank.of_best else 0.0)
        facts.append(Fact("Best of the worse", nearest.setting, f"{_share(nearest.of_best)} of the best"))
    facts += [Fact("Failed", rank.setting, rank.why) for rank in others if rank.state == "failed"]
    facts += [Fact("Left out", rank.setting, rank.why) for rank in others if rank.state == "left out"]
    if untried:
        facts.append(Fact("Not tried", f"{untried} of {len(ranks)}", "the time was over"))
    runs = sum(rank.trials for rank in ranks)
    facts.append(Fact("Measured", f"{runs} run{'s' * (runs != 1)}", f"{span(seconds)} with the starts"))
    return facts


def _share(ratio: Value | None) -> str:
    if ratio is None or ratio.value is None:
        return MISSING
    return f"{ratio.value:.2f} ×" + (f" ({interval(ratio.ci95)})" if ratio.ci95 else "")


def _table(ranks: Sequence[Rank], per: str) -> list[Column]:
    """Return the table of the settings, the best first; predictions only if there are any."""

    def of(value: Value | None) -> str:
        return MISSING if value is None else f"{number(value.value)} ({interval(value.ci95)})"

    columns = [
        Column("setting", [rank.setting for rank in ranks], words=True),
        Column(per, [of(rank.value) for rank in ranks]),
        Column("of the best", [_share(rank.of_best) for rank in ranks]),
        Column("predicted", [number(rank.predicted) for rank in ranks], spare=1),
        Column("runs", [str(rank.trials) for rank in ranks], spare=2),
        Column("", [_STATES[rank.state] for rank in ranks], words=True),
    ]
    known = any(rank.predicted for rank in ranks)
    return [column for column in columns if known or column.head != "predicted"]


def _chart(ranks: Sequence[Rank], per: str, title: str, simulated: str) -> Chart:
    """Return the chart of each setting's figure with its interval, in the order of the table, and predicted ones."""
    shown = [rank for rank in ranks if rank.value is not None]
    places = list(enumerate(shown, 1))

    def series(name: str, state: Sequence[str], tone: Tone) -> Series:
        points = [
            Datum(at, rank.value.value or 0.0, *(rank.value.ci95 or (None, None)), hover=[rank.setting])
            for at, rank in places
            if rank.value is not None and rank.state in state
        ]
        return Series(name=name, tone=tone, points=points, marker="dot")

    predicted = [Datum(at, rank.predicted) for at, rank in places if rank.predicted]
    return Chart(
        name="settings",
        title=title,
        simulated=simulated,
        x=Scale(
            label="setting, by its place in the table",
            ends=(0.5, len(shown) + 0.5),
            ticks=[(at, str(at)) for at, _ in places],
        ),
        y=Scale(label=per),
        series=[
            series("best, or not shown to be worse", ("best", "open"), "measured"),
            series("worse", ("worse",), "baseline"),
            *([Series(name="predicted", tone="predicted", points=predicted, marker="ring")] if predicted else []),
        ],
    )
