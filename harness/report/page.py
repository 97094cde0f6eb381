"""The result as one offline page and as Markdown: the answer first, then the curve, the levels, the doubts.

The page carries everything that it shows, plotly.js included, and its content policy forbids it to load
anything. Whatever came from outside (model names, URLs, server messages) is escaped where it is placed.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import msgspec

from harness.report.format import plain
from harness.report.headline import Fact, headline
from harness.report.plots import LATENCIES, curve_figure, latency_figure
from harness.report.tables import legend, level_columns
from harness.report.words import (
    CLAIMS,
    Remark,
    answer,
    claim_rows,
    facts,
    knee_rows,
    manifest_facts,
    ramp_rows,
    remarks,
    simulated_words,
    subject,
    worst,
)
from harness.summary import Summary

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --card: #f6f7f9; --ink: #1b2430; --soft: #5b6673; --line: #e1e5ea;
  --blue: #0072b2; --red: #b93a00; --amber: #8a5d00; --mark: #ffd84d; }
@media (prefers-color-scheme: dark) { :root { --paper: #12161c; --card: #1b212a; --ink: #e6eaf0; --soft: #98a3b1;
  --line: #2e3743; --blue: #56b4e9; --red: #ff8a50; --amber: #e6b34d; } }
@media print { :root { color-scheme: light; --paper: #fff; --card: #fff; --ink: #000; --soft: #444; --line: #bbb;
  --blue: #0072b2; --red: #b93a00; --amber: #8a5d00; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI",
  Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 28px 24px 56px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 40px 0 12px; }
h3 { font-size: 14px; margin: 0; color: var(--soft); font-weight: 600; }
p { margin: 4px 0; }
.soft { color: var(--soft); }
.banner { background: var(--mark); color: #1b2430; padding: 10px 16px; border-radius: 8px; margin: 0 0 20px; }
.answer { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(300px, 100%), 1fr));
  gap: 12px; margin: 22px 0 0; }
.answer div { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px; }
.answer dt { color: var(--soft); font-size: 13px; }
.answer dd { margin: 0; }
.answer .value { font-size: 20px; font-weight: 650; line-height: 1.3; margin: 2px 0 4px; }
.answer div:first-child .value { color: var(--blue); }
.answer .detail { color: var(--soft); font-size: 13px; }
.plot { width: 100%; height: 500px; }
.small { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(300px, 100%), 1fr)); gap: 20px; }
.small > div { min-width: 0; }
.small .plot { height: 300px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px; white-space: nowrap; }
.levels { min-width: 100%; }
.levels th { color: var(--soft); font-weight: 600; font-size: 12.5px; text-align: right; vertical-align: bottom;
  padding: 4px 8px; border-bottom: 1px solid var(--line); line-height: 1.3; }
.levels td { text-align: right; padding: 5px 8px; border-bottom: 1px solid var(--line); }
.invalid { color: var(--red); }
.doubt { color: var(--amber); }
.note { color: var(--soft); }
.verdicts { list-style: none; margin: 0; padding: 0; }
.verdicts li { border-left: 4px solid currentColor; padding: 4px 14px; margin: 10px 0; }
.verdicts p { color: var(--ink); }
.verdicts .soft { color: var(--soft); }
.verdicts b { margin-right: 6px; }
.run { white-space: normal; }
.run th { text-align: left; font-weight: 400; color: var(--soft); padding: 3px 24px 3px 0; vertical-align: top;
  white-space: nowrap; }
.run td { overflow-wrap: anywhere; padding: 3px 0; }
.run td + td { padding-left: 24px; }
code, pre { font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px 14px; margin: 10px 0;
  white-space: pre-wrap; overflow-wrap: anywhere; }
summary { cursor: pointer; color: var(--soft); }
footer { margin-top: 44px; color: var(--soft); font-size: 13px; }
@media (max-width: 560px) { main { padding: 18px 14px 40px; } .plot { height: 380px; } h1 { font-size: 21px; } }
@media print { main { max-width: none; padding: 0; } .answer div, .plot, .verdicts li, tr { break-inside: avoid; }
  h2, h3 { break-after: avoid; } .small { grid-template-columns: 1fr; }
  .plot { height: 380px; } .small .plot { height: 240px; }
  .levels { font-size: 11px; } .levels td, .levels th { padding: 3px 5px; } }
"""

# Colours follow the style sheet, so that light, dark and paper are said once.
_SCRIPT = """
const figures = JSON.parse(document.getElementById("figures").textContent);
const paper = {curve: {width: 690, height: 380}, small: {width: 690, height: 240}};  // px, within A4 and Letter
function themed(layout, size) {
  const css = getComputedStyle(document.documentElement), of = name => css.getPropertyValue(name).trim();
  const axis = {gridcolor: of("--line"), linecolor: of("--line"), tickcolor: of("--line")};
  return {...layout, ...size, autosize: !size, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: {color: of("--soft"), size: 12, family: getComputedStyle(document.body).fontFamily},
    hoverlabel: {align: "left", bgcolor: of("--card"), bordercolor: of("--line"), font: {color: of("--ink")}},
    modebar: {bgcolor: "rgba(0,0,0,0)", color: of("--soft"), activecolor: of("--ink")},
    xaxis: {...layout.xaxis, ...axis}, yaxis: {...layout.yaxis, ...axis}};
}
function draw(printed) {
  for (const [id, figure] of Object.entries(figures)) {
    const size = printed ? paper[id] || paper.small : undefined;
    const config = {responsive: true, displaylogo: false, displayModeBar: id === "curve" && !printed,
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]]};
    Plotly.react(id, figure.data, themed(figure.layout, size), config);
  }
}
draw(false);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(false));
matchMedia("print").addEventListener("change", event => draw(event.matches));
"""

# Nothing is loaded from anywhere, and no script runs but the page's own, by their digests.
_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'unsafe-inline'; img-src data: blob:"


def html(summary: Summary, manifest: Mapping[str, Any]) -> str:
    """The whole report as one page that needs no network; about 5 MB, nearly all of it plotly.js."""
    from plotly.offline import get_plotlyjs

    title, below = subject(summary, manifest)
    figures = _figures(summary, manifest)
    parts = [
        _banner(summary, manifest),
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(below)}</p>' if below else "",
        _answer(facts(summary)),
        figures,
        _levels(summary),
        _verdicts(remarks(summary)),
        _knees(summary),
        _ramp(summary),
        _claims(summary, manifest),
        _run(manifest),
        _footer(manifest),
    ]
    brand = "SIMULATED " if summary.simulated else ""
    scripts = [get_plotlyjs(), _SCRIPT] if figures else []
    head = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{brand}{escape(title)}: {escape(headline(summary)[0].value)}</title>",
        f"<style>{_STYLE}</style>",
    ]
    last = "\n".join(f"<script>{script}</script>" for script in scripts)
    body = "\n".join(part for part in parts if part)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n{chr(10).join(head)}\n</head>\n'
        f"<body>\n<main>\n{body}\n</main>\n{last}\n</body>\n</html>\n"
    )


def _policy(scripts: Sequence[str]) -> str:
    """The page's content policy; a script is known by what it says."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    sources = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"{_POLICY}; script-src " + (sources or "'none'")


def _banner(summary: Summary, manifest: Mapping[str, Any]) -> str:
    words = simulated_words(summary, manifest)
    return f'<p class="banner"><b>SIMULATED</b>: {escape(words)}</p>' if words else ""


def _answer(found: list[Fact]) -> str:
    cards = (
        f'<div><dt>{escape(fact.label)}</dt><dd class="value">{escape(fact.value)}</dd>'
        f'<dd class="detail">{escape(fact.detail)}</dd></div>'
        for fact in found
    )
    return f'<dl class="answer">\n{chr(10).join(cards)}\n</dl>'


def _figures(summary: Summary, manifest: Mapping[str, Any]) -> str:
    """The plots that have something to show, their figures as JSON for the script."""
    figures = {"curve": curve_figure(summary, manifest)} | {name: latency_figure(summary, name) for name in LATENCIES}
    figures = {name: figure for name, figure in figures.items() if figure["data"]}
    if not figures:
        return ""
    small = "\n".join(
        f'<div><h3>{escape(words)}</h3><div class="plot" id="{name}"></div></div>'
        for name, words in LATENCIES.items()
        if name in figures
    )
    parts = [
        '<h2>Throughput against load</h2>\n<div class="plot" id="curve"></div>' if "curve" in figures else "",
        "<noscript><p>The plots need JavaScript; curve.png beside this file shows the curve.</p></noscript>",
        f'<h2>Latency against load</h2>\n<div class="small">\n{small}\n</div>' if small else "",
        # "<" cannot end the script element when it is not there.
        '<script type="application/json" id="figures">'
        + msgspec.json.encode(figures).decode().replace("<", "\\u003c")
        + "</script>",
    ]
    return "\n".join(part for part in parts if part)


def _levels(summary: Summary) -> str:
    if not summary.levels:
        return ""
    columns = level_columns(summary)
    heads = "".join(f"<th>{'<br>'.join(escape(line) for line in column.head)}</th>" for column in columns)
    rows = "\n".join(
        ('<tr class="invalid">' if worst(level) == "invalid" else "<tr>")
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for level, cells in zip(summary.levels, zip(*(c.cells for c in columns), strict=True), strict=True)
    )
    marks = legend(summary)
    return (
        f'<h2>Levels</h2>\n<div class="wide"><table class="levels">\n<thead><tr>{heads}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody></table></div>" + (f'\n<p class="soft">{escape(marks)}</p>' if marks else "")
    )


def _verdicts(found: list[Remark]) -> str:
    if not found:
        return ""
    items = (
        f'<li class="{escape(remark.severity)}"><b>{escape(remark.severity)}</b> <code>{escape(remark.code)}</code> '
        f"{escape(remark.where)}<p>{escape(remark.message)}</p>"
        + (f'<p class="soft">→ {escape(remark.advice)}</p>' if remark.advice else "")
        + "</li>"
        for remark in found
    )
    return f'<h2>Verdicts</h2>\n<ul class="verdicts">\n{chr(10).join(items)}\n</ul>'


def _knees(summary: Summary) -> str:
    """Every knee by its name: they are different numbers."""
    rows = knee_rows(summary.curve, summary.knees) if summary.curve else []
    cells = (f"<tr><th>{escape(a)}</th><td>{escape(b)}</td><td>{escape(c)}</td></tr>" for a, b, c in rows)
    return f'<h2>Every knee by its name</h2>\n<table class="run">\n{chr(10).join(cells)}\n</table>' if rows else ""


def _ramp(summary: Summary) -> str:
    rows = [f"<tr><th>{escape(what)}</th><td>{escape(why)}</td></tr>" for what, why in ramp_rows(summary)]
    return f'<h2>Why these levels</h2>\n<table class="run">\n{chr(10).join(rows)}\n</table>' if rows else ""


def _claims(summary: Summary, manifest: Mapping[str, Any]) -> str:
    """What is often said of such a setup, beside what was measured of it."""
    rows = [
        f"<tr><td>{escape(quote)}</td><td>{escape(says)}</td><td>{escape(found)}</td></tr>"
        for quote, says, found in claim_rows(summary, manifest)
    ]
    heads = "<tr><th>claim</th><th>says</th><th>measured here</th></tr>"
    return f'<h2>{CLAIMS}</h2>\n<table class="run">\n{heads}\n{chr(10).join(rows)}\n</table>' if rows else ""


def _run(manifest: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><th>{escape(label)}</th><td>{escape(text)}</td></tr>\n" for label, text in manifest_facts(manifest)
    )
    table = f'<table class="run">\n{rows}</table>' if rows else ""
    command = _command(manifest)
    again = f"<p>To run it again:</p>\n<pre>{escape(command)}</pre>" if command else ""
    whole = ""
    if manifest.get("scenario"):
        text = escape(_pretty(manifest["scenario"]))
        whole = f"<details><summary>The whole scenario</summary><pre>{text}</pre></details>"
    inside = "\n".join(part for part in (table, again, whole) if part)
    return f"<h2>What was run</h2>\n{inside}" if inside else ""


def _footer(manifest: Mapping[str, Any]) -> str:
    version = plain(manifest.get("harness_version") or "")
    return (
        f"<footer>Made by knee{f' {escape(version)}' if version else ''} from summary.json and manifest.json; "
        "<code>knee report DIR</code> makes it again.</footer>"
    )


def _command(manifest: Mapping[str, Any]) -> str:
    command = manifest.get("command") or ""
    return shlex.join(map(str, command)) if isinstance(command, list | tuple) else plain(command)


def _pretty(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


# Markdown


def markdown(summary: Summary, manifest: Mapping[str, Any]) -> str:
    """The report as Markdown, for report.md beside curve.png."""
    title, below = subject(summary, manifest)
    words = simulated_words(summary, manifest)
    parts = [
        f"# {literal(title)}",
        literal(below),
        f"> **SIMULATED**: {literal(words)}" if words else "",
        "\n".join(f"- {literal(line)}" for line in answer(summary)),
        "![Output tokens per second against requests in flight](curve.png)",
        _markdown_levels(summary),
        _markdown_verdicts(remarks(summary)),
        _markdown_knees(summary),
        _markdown_ramp(summary),
        _markdown_claims(summary, manifest),
        _markdown_run(manifest),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown_levels(summary: Summary) -> str:
    if not summary.levels:
        return ""
    columns = level_columns(summary)
    heads = [" ".join(column.head).strip() for column in columns]
    lines = [heads, ["---:"] * len(columns), *map(list, zip(*(column.cells for column in columns), strict=True))]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    marks = legend(summary)
    return f"## Levels\n\n{table}" + (f"\n\n{marks}" if marks else "")


def _markdown_verdicts(found: list[Remark]) -> str:
    lines = []
    for remark in found:
        where = f" at {remark.where}" if remark.where else ""
        advice = f" → {literal(remark.advice)}" if remark.advice else ""
        lines.append(f"- **{remark.severity}** {literal(remark.code)}{where}: {literal(remark.message)}{advice}")
    return "## Verdicts\n\n" + "\n".join(lines) if lines else ""


def _markdown_knees(summary: Summary) -> str:
    rows = knee_rows(summary.curve, summary.knees) if summary.curve else []
    lines = "\n".join(f"- {name}: {literal(value)}; {literal(more)}" for name, value, more in rows)
    return f"## Every knee by its name\n\n{lines}" if rows else ""


def _markdown_ramp(summary: Summary) -> str:
    lines = "\n".join(f"- {what}: {literal(why)}" for what, why in ramp_rows(summary))
    return f"## Why these levels\n\n{lines}" if lines else ""


def _markdown_claims(summary: Summary, manifest: Mapping[str, Any]) -> str:
    rows = [("claim", "says", "measured here"), ("---",) * 3]
    rows += [(literal(quote), says, found) for quote, says, found in claim_rows(summary, manifest)]
    return f"## {CLAIMS}\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows) if rows[2:] else ""


def _markdown_run(manifest: Mapping[str, Any]) -> str:
    lines = [f"- {label}: {literal(text)}" for label, text in manifest_facts(manifest)]
    command = _command(manifest)
    if command:
        lines.append("- again:\n\n" + "\n".join(f"      {line}" for line in command.splitlines()))
    return "## What was run\n\n" + "\n".join(lines) if lines else ""


def literal(text: str) -> str:
    r"""Text that Markdown shows as it is, on one line.

    >>> print(literal("a|b <i> `x` &lt; max_num_seqs"), literal("1. # x\n\n# y"))
    a\|b \<i> \`x\` \&lt; max\_num\_seqs 1\. # x # y
    """
    line = re.sub(r"([\\`*_\[\]<|~])|&(?=#?\w+;)", lambda found: f"\\{found[0]}", " ".join(text.split()))
    return re.sub(r"^(\d+(?=[.)](?:\s|$))|(?=[-#+=>]))", r"\1\\", line)
