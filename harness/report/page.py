"""A document as one offline page: everything that it shows is in it, plotly.js too, and it may load nothing.

Text is escaped by `element`, which takes it for HTML only where it made it; there is no other way into the page.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from pathlib import Path

import msgspec

from harness.report import document as doc
from harness.report import plotly_json

_ASSETS = Path(__file__).with_name("assets")
# Nothing is loaded from anywhere, and no script runs but the page's own, by their digests.
_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'unsafe-inline'; img-src data: blob:"


class Html(str):
    """Text that is HTML already."""


def element(tag: str, *inside: str, css: str = "", **attributes: str) -> Html:
    """An element with its content, both escaped where they are not HTML already.

    >>> print(element("p", "a < b", element("b", "&"), css="soft", id='"'))
    <p class="soft" id="&quot;">a &lt; b<b>&amp;</b></p>
    """
    named = ({"class": css} if css else {}) | attributes
    opened = "".join(f' {name}="{escape(value)}"' for name, value in named.items())
    content = "".join(part if isinstance(part, Html) else escape(part) for part in inside)
    return Html(f"<{tag}{opened}>{content}</{tag}>")


def lines(parts: Sequence[str]) -> Html:
    """What stands below each other in the source too; empty parts are left out."""
    return Html("\n".join(part if isinstance(part, Html) else escape(part) for part in parts if part))


def render(document: doc.Document) -> str:
    """The document as a page that needs no network; with charts about 5 MB, nearly all of it plotly.js."""
    charts = [chart for section in document.sections for chart in section.charts if chart.series]
    figures = {chart.name: plotly_json.figure(chart) for chart in charts}
    scripts = _scripts() if figures else []
    brand = "SIMULATED " if document.simulated else ""
    banner = element("p", element("b", "SIMULATED"), f": {document.simulated}", css="banner")
    head = [
        Html('<meta charset="utf-8">'),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        element("title", f"{brand}{document.title}: {document.answer}"),
        element("style", Html((_ASSETS / "page.css").read_text("utf-8"))),
    ]
    main = [
        banner if document.simulated else "",
        element("h1", document.title),
        element("p", document.below, css="soft") if document.below else "",
        *map(_section, document.sections),
        _data(figures) if figures else "",
        _footer(document.version),
    ]
    body = [element("main", lines(main)), *(element("script", each) for each in scripts)]
    whole = element("html", element("head", lines(head)), element("body", lines(body)), lang="en")
    return f"<!doctype html>\n{whole}\n"


def _scripts() -> list[Html]:
    from plotly.offline import get_plotlyjs

    return [Html(get_plotlyjs()), Html((_ASSETS / "page.js").read_text("utf-8"))]


def _policy(scripts: Sequence[str]) -> str:
    """The page's content policy; a script is known by what it says."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    sources = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"{_POLICY}; script-src " + (sources or "'none'")


def _data(figures: dict[str, plotly_json.Figure]) -> Html:
    """The charts' figures for the script; "<" cannot end the element when it is not there."""
    text = msgspec.json.encode(figures).decode().replace("<", "\\u003c")
    return element("script", Html(text), type="application/json", id="figures")


def _section(section: doc.Section) -> Html:
    rows = [_card(fact) if section.answer else _row(fact) for fact in section.facts]
    again = [element("p", "To run it again:"), element("pre", section.command)] if section.command else []
    whole = element("summary", "The whole scenario"), element("pre", section.scenario)
    parts = [
        _all("dl", rows, css="answer") if section.answer else _all("table", rows, css="run"),
        *again,
        _plots(section),
        element("div", _table(section), css="wide") if section.columns else "",
        _all("ul", [element("li", line) for line in section.lines]),
        _all("ul", [_remark(remark) for remark in section.remarks], css="verdicts"),
        element("p", section.note, css="soft") if section.note else "",
        element("details", *whole) if section.scenario else "",
    ]
    found = lines(parts)
    return lines([element("h2", section.title), found]) if found and section.title else found


def _all(tag: str, parts: Sequence[Html], css: str = "") -> Html:
    """The parts within an element, where there are any."""
    return element(tag, lines(parts), css=css) if parts else Html()


def _card(fact: doc.Fact) -> Html:
    found = element("dd", fact.value, css="value"), element("dd", fact.detail, css="detail")
    return element("div", element("dt", fact.label), *found)


def _row(fact: doc.Fact) -> Html:
    detail = [element("td", fact.detail)] if fact.detail else []
    return element("tr", element("th", fact.label), element("td", fact.value), *detail)


def _table(section: doc.Section) -> Html:
    heads = [_cell("th", lines(column.head.split("\n")), column) for column in section.columns]
    rows = []
    for i, cells in enumerate(zip(*(column.cells for column in section.columns), strict=True)):
        row = [_cell("td", cell, column) for cell, column in zip(cells, section.columns, strict=True)]
        rows.append(element("tr", *row, css="invalid" if i in section.void else ""))
    parts = [element("thead", element("tr", *heads)), element("tbody", lines(rows))]
    return element("table", lines(parts), css="levels")


def _cell(tag: str, cell: str | doc.FileLink, column: doc.Column) -> Html:
    text = cell.text if isinstance(cell, doc.FileLink) else cell
    return element(tag, text, css="words" if column.words else "")


def _remark(remark: doc.Remark) -> Html:
    head = element("b", remark.gravity), " ", element("code", remark.code), f" {remark.where}"
    advice = [element("p", f"→ {remark.advice}", css="soft")] if remark.advice else []
    return element("li", *head, element("p", remark.message), *advice, css=remark.gravity)


def _plots(section: doc.Section) -> Html:
    """A place for each chart that has something to show, which the script fills."""
    shown = [chart for chart in section.charts if chart.series]
    plots = [element("div", css="plot", id=chart.name) for chart in shown]
    if not section.picture:
        titled = [element("div", element("h3", chart.title), plot) for chart, plot in zip(shown, plots, strict=True)]
        return _all("div", titled, css="small")
    feet = [element("p", chart.foot, css="soft") for chart in shown if chart.foot]
    missing = f"The plots need JavaScript; {section.picture} beside this file shows the curve."
    return lines([*plots, *feet, *([element("noscript", element("p", missing))] if shown else [])])


def _footer(version: str) -> Html:
    made = f"Made by knee{f' {version}' if version else ''} from summary.json and manifest.json; "
    return element("footer", made, element("code", "knee report DIR"), " makes it again.")
