"""A chart as an SVG element inside a page: what shows where no script runs. It is the picture of `png`, made small.

Left out are the title, the answer and the foot, which the page has as text, and all that a browser does not need: a
third of the bytes is left.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import msgspec

from harness.report import png
from harness.report.chart import Chart
from harness.report.png import SOFT

_SMALL = (5.4, 4.2)  # inches, of a chart that is one of several in a row
_KEPT = ("id", "href", "clip-path", "style", "transform", "d", "x", "y", "width", "height")
_USUAL = ("font-family: [^;]*", "stroke-dashoffset: 0", "text-anchor: start", "font-size: 9px", f"fill: {SOFT}")
_ASSUMED = re.compile(f" ?({'|'.join(_USUAL)})(;|$)")


def svg(chart: Chart, *, small: bool = False) -> str:
    """Return the chart as an `svg` element in which every text is escaped; `small` is for half a page's width."""
    bare = msgspec.structs.replace(chart, title="", subtitle="", answer="", foot="")
    drawn = ElementTree.fromstring(png.vector(bare, _SMALL if small else png.PAPER))
    assumed = {"stroke-linejoin": "round", "font-size": "9", "fill": SOFT}
    root = Element("svg", {"class": "drawn", "viewBox": drawn.attrib["viewBox"]} | assumed)
    root.extend(each for child in drawn for each in _small(child, chart.name))
    styles = {path.get("id"): path.get("style") for path in root.iter("path")}
    for use in root.iter("use"):
        if use.get("style") == styles[use.attrib["href"].removeprefix("#")]:
            del use.attrib["style"]
    return ElementTree.tostring(root, encoding="unicode").replace(" />", "/>")  # no text has an unescaped ">"


def _small(element: Element, owner: str) -> Iterator[Element]:
    """Yield the element without its superfluous parts, or the elements of a group that says nothing.

    A style sheet goes, for it would be the page's; so do ids, but for those that are referred to.
    """
    tag = element.tag.rpartition("}")[2]
    if tag in ("metadata", "style") or element.get("style") == "fill: #ffffff":  # the page has the paper
        return
    inside = [each for child in element for each in _small(child, owner)]
    named = ((key.rpartition("}")[2], value) for key, value in element.attrib.items())
    attributes = {name: short for name, value in named if name in _KEPT and (short := _short(name, value, owner))}
    if tag in ("g", "defs") and not (inside and (attributes or tag == "defs")):
        yield from inside
        return
    small = Element(tag, attributes)
    small.text = (element.text or "").strip() or None
    small.extend(inside)
    yield small


def _short(name: str, value: str, owner: str) -> str:
    """Return an attribute's value without what a browser assumes; "" where nothing is left.

    >>> _short("id", "figure_1", "curve"), _short("clip-path", "url(#p8dcefc4f35)", "curve")
    ('', 'url(#curve-p8dcefc4f35)')
    >>> _short("d", "M 55.084321 305.208  L 0.333333 3 ", "curve")
    'M55.1 305.2L0.33 3'
    """
    if name in ("id", "href", "clip-path"):  # other charts are on the page: the chart's name makes an id unique
        found = re.fullmatch(r"(.*?)([mp][0-9a-f]{10}.*)", value)
        return f"{found[1]}{owner}-{found[2]}" if found else ""
    if name == "style":
        return _ASSUMED.sub("", value).replace(": ", ":").replace("; ", ";").strip(" ;")
    if name == "transform" and value.startswith("rotate(-0 "):
        return ""
    short = re.sub(r"-?\d{1,9}\.\d+", _rounded, value)
    return re.sub(r" (?=[A-Za-z])|(?<=[A-Za-z]) ", "", " ".join(short.split())) if name == "d" else short


def _rounded(found: re.Match[str]) -> str:
    """Return a coordinate to a tenth, a small one to a hundredth."""
    at = float(found[0])
    return f"{round(at, 1 if abs(at) > 10 else 2):g}"
