"""A document as one offline page: all that it shows is in it, what draws its charts too, and it may load nothing.

The page is the template assets/page.html.j2, in which every text is escaped. Only what is made here as Markup is taken
as it is: the style sheet, the scripts, and the charts as JSON and as SVG, which shows where no script runs. The scripts
of others are listed in scripts/shipped.json.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import msgspec

from harness.report import document as doc
from harness.report import png
from harness.report.chart import Chart, described
from harness.report.png import SOFT

if TYPE_CHECKING:
    from jinja2 import Environment

_ASSETS = Path(__file__).with_name("assets")
_SCRIPTS = ("d3.min.js", "plot.umd.min.js", "page.js")  # Plot needs D3
_LIVE = "live.js"
# Nothing is loaded from anywhere, and no script runs but the page's own, by their digests.
_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'unsafe-inline'; img-src data: blob:"
# Charts as SVG: the size of one of several in a row, in inches; attributes that are kept; styles that browsers assume.
_SMALL = (5.4, 4.2)
_KEPT = ("id", "href", "clip-path", "style", "transform", "d", "x", "y", "width", "height")
_USUAL = ("font-family: [^;]*", "stroke-dashoffset: 0", "text-anchor: start", "font-size: 9px", f"fill: {SOFT}")
_ASSUMED = re.compile(f" ?({'|'.join(_USUAL)})(;|$)")
_FIGURES = 6  # digits of a coordinate on the page: a ten-thousandth of a pixel


class Running(NamedTuple):
    """A run that goes on: the page asks its own server for news, and reloads when the version has changed."""

    version: str
    head: str  # the phase and level that it is in
    facts: Sequence[doc.Fact]
    note: str = ""

    @property
    def html(self) -> str:
        """Return the part of the page that shows it, which a server replaces without rendering the rest anew."""
        return _templates().get_template("running.html.j2").render(running=self)


def render(document: doc.Document, running: Running | None = None) -> str:
    """Return the document as an HTML page that needs no network: styles, scripts and chart data are in it."""
    from markupsafe import Markup

    charts = {chart.name: chart for section in document.sections for chart in section.charts if chart.series}
    scripts = [asset(name) for name in _SCRIPTS] if charts else []
    scripts += [asset(_LIVE)] if running else []
    template = _templates().get_template("page.html.j2")
    return template.render(
        document=document,
        sections=ordered(document),
        policy=_policy(scripts) + ("; connect-src 'self'" if running else ""),
        running=Markup(running.html) if running else "",
        style=Markup(asset("page.css")),
        charts=Markup(charts_json(charts)) if charts else "",
        scripts=[Markup(script) for script in scripts],
    )


def ordered(document: doc.Document) -> list[doc.Section]:
    """Return the sections of a page: where it begins with large figures, the one with the picture comes first."""
    sections = list(document.sections)
    first = next((i for i, section in enumerate(sections) if section.picture), None)
    if document.figures and first is not None:
        sections.insert(0, sections.pop(first))
    return sections


def section_id(title: str) -> str:
    """Return the id of a section on the page.

    >>> section_id("All knees")
    'section-all-knees'
    """
    return "section-" + "".join(c if c.isascii() and c.isalnum() else "-" for c in title.lower())


@cache
def _templates() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(_ASSETS), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters["rows"] = doc.rows
    environment.filters["id"] = section_id
    environment.filters["described"] = described
    environment.filters["drawn"] = lambda chart, kind: Markup(svg(chart, small=kind == "small"))
    return environment


def asset(name: str) -> str:
    """Return a file that pages are made of."""
    return (_ASSETS / name).read_text("utf-8")


def _policy(scripts: Sequence[str]) -> str:
    """Return the page's content policy; a script is known by its digest."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    sources = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"{_POLICY}; script-src " + (sources or "'none'")


def charts_json(charts: dict[str, Chart]) -> str:
    """Return the charts for the script: digits for a screen, and no "<", which could end it."""
    return msgspec.json.encode(_rounded(msgspec.to_builtins(charts))).decode().replace("<", "\\u003c")


def _rounded(value: Any) -> Any:
    """Return a value, also nested ones, with every float rounded to _FIGURES digits, whole floats as integers."""
    match value:
        case float():
            short = float(f"{value:.{_FIGURES}g}")
            return int(short) if short.is_integer() else short
        case dict():
            return {name: _rounded(each) for name, each in value.items()}
        case list() | tuple():
            return [_rounded(each) for each in value]
        case _:
            return value


# ---- a chart as an SVG element: the picture of `png` without the title, the answer and the foot, which the page has --


def svg(chart: Chart, *, small: bool = False) -> str:
    """Return the chart as an `svg` element in which every text is escaped; `small` is for half a page's width."""
    bare = msgspec.structs.replace(chart, title="", subtitle="", answer="", foot="")
    drawn = ElementTree.fromstring(png.vector(bare, _SMALL if small else png.PAPER))
    assumed = {"stroke-linejoin": "round", "font-size": "9", "fill": SOFT}
    root = Element("svg", {"class": "drawn", "viewBox": drawn.attrib["viewBox"]} | assumed)
    root.extend(each for child in drawn for each in _pruned(child, chart.name))
    styles = {path.get("id"): path.get("style") for path in root.iter("path")}
    for use in root.iter("use"):
        if use.get("style") == styles[use.attrib["href"].removeprefix("#")]:
            del use.attrib["style"]
    return ElementTree.tostring(root, encoding="unicode").replace(" />", "/>")  # no text has an unescaped ">"


def _pruned(element: Element, chart: str) -> Iterator[Element]:
    """Yield an SVG element without superfluous parts; of a group without attributes, the elements in it.

    A style sheet goes, for it would be the page's; so do ids, but for those that are referred to.
    """
    tag = element.tag.rpartition("}")[2]
    if tag in ("metadata", "style") or element.get("style") == "fill: #ffffff":  # the page has the paper
        return
    inside = [each for child in element for each in _pruned(child, chart)]
    named = ((key.rpartition("}")[2], value) for key, value in element.attrib.items())
    attributes = {name: short for name, value in named if name in _KEPT and (short := _short(name, value, chart))}
    if tag in ("g", "defs") and not (inside and (attributes or tag == "defs")):
        yield from inside
        return
    small = Element(tag, attributes)
    small.text = (element.text or "").strip() or None
    small.extend(inside)
    yield small


def _short(name: str, value: str, chart: str) -> str:
    """Return an attribute's value without what a browser assumes; "" if nothing is left.

    >>> _short("id", "figure_1", "curve"), _short("clip-path", "url(#p8dcefc4f35)", "curve")
    ('', 'url(#curve-p8dcefc4f35)')
    >>> _short("d", "M 55.084321 305.208  L 0.333333 3 ", "curve")
    'M55.1 305.2L0.33 3'
    """
    if name in ("id", "href", "clip-path"):  # other charts are on the page: the chart's name makes an id unique
        found = re.fullmatch(r"(.*?)([mp][0-9a-f]{10}.*)", value)
        return f"{found[1]}{chart}-{found[2]}" if found else ""
    if name == "style":
        return _ASSUMED.sub("", value).replace(": ", ":").replace("; ", ";").strip(" ;")
    if name == "transform" and value.startswith("rotate(-0 "):
        return ""
    short = re.sub(r"-?\d{1,9}\.\d+", _coordinate, value)
    return re.sub(r" (?=[A-Za-z])|(?<=[A-Za-z]) ", "", " ".join(short.split())) if name == "d" else short


def _coordinate(match: re.Match[str]) -> str:
    """Return a coordinate to a tenth, a small one to a hundredth."""
    at = float(match[0])
    return f"{round(at, 1 if abs(at) > 10 else 2):g}"
