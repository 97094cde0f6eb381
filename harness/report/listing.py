"""Result folders as a table, and as a page that plots a figure of each over time."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Sequence

from harness.base.terminal import cut
from harness.decide.check import expression
from harness.decide.check.figures import Quantity
from harness.decide.listing import Entry, Listing
from harness.report.chart import PARTS, Chart, Datum, Scale, Series
from harness.report.check import unit_words
from harness.report.document import Column, Document, Section
from harness.report.format import MISSING, interval, number, plain

_SIMULATED = "some of these were answered by the simulated endpoint"
_DAY = 86_400.0
_LABELS = 6  # most labels on the axis of time


def table(listing: Listing, name: str = "", unit: str = "", *, whole: bool = True) -> Document:
    """Return the table of result folders with each one's figure `name`; without `whole` it fits on a terminal."""
    rows = listing.results
    simulated = _SIMULATED if any(row.simulated for row in rows) else ""
    scale, words = _shown(name, unit, rows)
    figures = [_quantity(row.figure, "at least", scale, words) if row.figure else MISSING for row in rows]
    columns = [
        Column("date", [_date(row) for row in rows], words=True),
        Column("target", [plain(row.target or MISSING) for row in rows], words=True, spare=0 if whole else 1),
        Column("model", [cut(plain(row.model or MISSING), 32) for row in rows], words=True, spare=0 if whole else 2),
        Column("knee", [_quantity(row.knee, "above") for row in rows], words=True),
        Column("plateau", [_quantity(row.plateau, "at least", words=row.per_s) for row in rows], words=True),
        *([Column(plain(name), figures, words=True)] if name not in ("", "plateau", "knee") else []),
        Column("status", [row.status + ", simulated" * row.simulated for row in rows], words=True),
        Column("folder", [plain(row.place) for row in rows], words=True),
    ]
    return Document(simulated=simulated, sections=[Section(columns=columns if rows else ())])


def index(listing: Listing, name: str, unit: str) -> Document:
    """Return the page of a listing: a chart of the figure over time, the table of runs, unreadable folders."""
    made, many = table(listing, name, unit), len(listing.results)
    lines = [f"{plain(each.place)}: {plain(each.error)}" for each in listing.broken]
    return Document(
        title=f"{plain(name)} of {many} run{'s' * (many != 1)}",
        answer="over time",
        simulated=made.simulated,
        sections=[
            Section("Over time", charts=[over_time(listing.results, name, unit)]),
            Section("Runs", columns=made.sections[0].columns),
            Section("Cannot be read", lines=lines),
        ],
        source="result folders",
        again="knee list --html FILE",
    )


def over_time(rows: Sequence[Entry], name: str, unit: str) -> Chart:
    """Return the chart of a figure of every run over time; each model has a colour, and rings mark doubtful figures."""
    scale, words = _shown(name, unit, rows)
    tones = dict(zip(dict.fromkeys(row.model for row in rows), itertools.cycle(PARTS), strict=False))
    points: dict[tuple[str | None, bool], list[Datum]] = {}
    for row in rows:
        if row.time is not None and row.figure is not None and row.figure.value is not None:
            points.setdefault((row.model, bool(row.figure.why)), []).append(_datum(row, row.figure, scale, words))
    series = [
        Series(
            name=cut(plain(model or "unnamed model"), 40) + (", provisional" if unsure else ""),
            tone=tones[model],
            points=own,
            marker="ring" if unsure else "dot",
        )
        for (model, unsure), own in points.items()
    ]
    every = [point for each in series for point in each.points]
    begin, end = min((each.x for each in every), default=0.0), max((each.x for each in every), default=_DAY)
    room = max(0.04 * (end - begin), 60.0)
    top = max((point.high or point.y for point in every), default=0.0)
    return Chart(
        name="over-time",
        title=plain(name),
        simulated=_SIMULATED if any(row.simulated for row in rows) else "",
        x=Scale(label="begun (UTC)", ends=(begin - room, end + room), ticks=_ticks(begin, end)),
        y=Scale(label=f"{plain(name)}, {words}" if words else plain(name), ends=(0.0, 1.1 * top or 1.0)),
        series=series,
        missing="" if series else "no run has this figure and a date",
    )


def _datum(each: Entry, figure: Quantity, scale: float, words: str) -> Datum:
    """Return a run as a point of the chart; without an interval its error bar has length 0."""
    value, (low, high) = (figure.value or 0.0) * scale, figure.ci95 or (None, None)
    ends = (max(0.0, low * scale), high * scale) if low is not None and high is not None else (value, value)
    hover = (f"{number(value)} {words}".strip(), _date(each), plain(each.place), plain(figure.why))
    return Datum(each.time.timestamp() if each.time else 0.0, value, *ends, hover=[line for line in hover if line])


def _shown(name: str, unit: str, rows: Sequence[Entry]) -> tuple[float, str]:
    """Return (scale, unit) to show a figure in: seconds as ms, shares as percent, rates in the runs' own unit."""
    if unit == expression.SECONDS:
        return 1e3, "ms"
    if unit == expression.PER_SECOND:
        units = {row.per_s for row in rows}
        own = units.pop() if name in ("plateau", "single_stream") and len(units) == 1 else ""
        return 1.0, own or unit_words(name)
    return (100.0, "%") if unit == expression.SHARE else (1.0, "")


def _ticks(begin: float, end: float) -> list[tuple[float, str]]:
    """Return evenly spaced times with their names: days, or hours if all lie within two days.

    >>> [name for _, name in _ticks(0.0, 5 * 86400.0)]
    ['1970-01-01', '1970-01-02', '1970-01-03', '1970-01-04', '1970-01-05', '1970-01-06']
    """
    hours = end - begin < 2 * _DAY
    step = (end - begin) / (_LABELS - 1)
    places = [begin + i * step for i in range(_LABELS)] if step > 0 else [begin]
    form = "%m-%d %H:%M" if hours else "%Y-%m-%d"
    return [(at, datetime.datetime.fromtimestamp(at, datetime.UTC).strftime(form)) for at in places]


def _date(each: Entry) -> str:
    return each.time.strftime("%Y-%m-%d %H:%M") if each.time else MISSING


def _quantity(quantity: Quantity, beyond: str, scale: float = 1.0, words: str = "") -> str:
    """Return a figure with its interval as text; "about" precedes a doubtful one, `beyond` a lower bound alone.

    >>> _quantity(Quantity(16.2, (15.4, 17.1)), ""), _quantity(Quantity(0.05, None, "provisional"), "", 1e3, "ms")
    ('16.2 (15.4–17.1)', 'about 50 ms')
    >>> _quantity(Quantity(64.0, (64.0, None), "no level misses the SLO"), "")
    'at least 64'
    >>> _quantity(Quantity(None, (64.0, None), "rises"), "above"), _quantity(Quantity(None), "")
    ('above 64', '–')
    """
    low, high = quantity.ci95 or (None, None)
    if quantity.value is None:
        return MISSING if low is None else f"{beyond} {number(low * scale)} {words}".rstrip()
    at_least = quantity.value == low and high is None
    about = "at least " if at_least else "about " if quantity.why else ""
    ends = "" if about else interval((low and low * scale, high and high * scale))
    return f"{about}{number(quantity.value * scale)} {words}".rstrip() + (f" ({ends})" if ends else "")
