"""A document as one offline page: everything that it shows is in it, plotly.js too, and it may load nothing.

The page is the template assets/page.html.j2, in which every text is escaped. Only what is made here as Markup is taken
as it is: the style sheet, the scripts and their figures.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from harness.report import document as doc
from harness.report import plotly_json

if TYPE_CHECKING:
    from jinja2 import Environment

_ASSETS = Path(__file__).with_name("assets")
# Nothing is loaded from anywhere, and no script runs but the page's own, by their digests.
_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'unsafe-inline'; img-src data: blob:"


def render(document: doc.Document) -> str:
    """The document as a page that needs no network; with charts about 5 MB, nearly all of it plotly.js."""
    from markupsafe import Markup

    charts = [chart for section in document.sections for chart in section.charts if chart.series]
    figures = {chart.name: plotly_json.figure(chart) for chart in charts}
    scripts = _scripts() if figures else []
    template = _templates().get_template("page.html.j2")
    return template.render(
        document=document,
        policy=_policy(scripts),
        style=Markup(_asset("page.css")),
        figures=Markup(_json(figures)) if figures else "",
        scripts=[Markup(script) for script in scripts],
    )


@cache
def _templates() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    found = Environment(
        loader=FileSystemLoader(_ASSETS), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    found.filters["rows"] = doc.rows
    return found


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text("utf-8")


def _scripts() -> list[str]:
    from plotly.offline import get_plotlyjs

    return [get_plotlyjs(), _asset("page.js")]


def _policy(scripts: Sequence[str]) -> str:
    """The page's content policy; a script is known by its digest."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    sources = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"{_POLICY}; script-src " + (sources or "'none'")


def _json(figures: dict[str, plotly_json.Figure]) -> str:
    """The charts' figures for the script; "<" cannot end its element when it is not there."""
    return msgspec.json.encode(figures).decode().replace("<", "\\u003c")
