"""Hostile text in every field of a result that comes from outside, and what the pages made of it do in a browser.

Each page is made twice, with hostile text and with a harmless word in its place: both must have the same elements and
attributes. Where there is a Chromium it opens the hostile one, as it is and once more without its content policy and
hovered over, and nothing of the text may run. The Markdown is tested likewise, as the page that CommonMark makes of it.
"""

from __future__ import annotations

import http.server
import json
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from typing import Any

import msgspec
from markdown_it import MarkdownIt

from harness.data.machines import Host
from harness.data.manifest import Manifest, Simulated
from harness.data.summary import Check, Summary
from harness.predict.question import Question
from harness.report import markdown, page, run_report
from harness.spec.scenario import Scenario, Target
from tests.builders.browser import CHROMIUM
from tests.builders.summaries import MANIFEST, SIMULATED_MANIFEST, full, provisional, simulated

RUNS = "(top||self).document.documentElement.setAttribute('data-ran',location.pathname);new Image().src='/beacon'"

# Each ends what may be around it, and runs where it was not escaped for that place.
PAYLOADS = {
    "elements": f'evil</title></style></pre></code><script>{RUNS}</script><svg onload="{RUNS}">',
    "handlers": f'evil\'"><img src=x onerror="{RUNS}"><details open ontoggle="{RUNS}"><p style="color:red">',
    "script": f'evil</script><script>{RUNS}</script><!--<script>\\u003cscript>{RUNS}</script>]]>"}};{RUNS};//',
    "links": f'evil<a href="javascript:{RUNS}">x</a><iframe src="javascript:{RUNS}"></iframe>'
    f'[x](javascript:{RUNS})<meta http-equiv=refresh content="0;url=/beacon"><link rel=stylesheet href=/beacon>',
    "style": "evil</style><style>*{background:url(/beacon)}</style>}*{background:url(/beacon)}/*;}",
    "templates": f'evil%{{x}} %{{customdata}} ${{{RUNS}}} {{{{constructor.constructor("{RUNS}")()}}}} '
    f'$\\href{{/beacon}}{{x}}$ &lt;img src=x onerror="{RUNS}"&gt; &#60;script>{RUNS}&#60;/script> \u2028{RUNS}',
    "markdown": f'evil|a\n\n# x\n\n<img src=x onerror="{RUNS}">\n![x](/beacon)[y]: /beacon\n    `` ` ``` ~~~\n\n'
    f"```\n\n<script>{RUNS}</script>\n\n<http://beacon/> **b** _i_",
}
_OURS = {"level", "severity", "state", "outcome", "largest", "expected_by", "timestamp_source", "transport"}
_FAMILIES = {"family", "name"}  # computed, and looked up


class Parsed(HTMLParser):
    """A page's elements and attributes; the values of what loads or links something."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.shape: list[tuple[str, tuple[str, ...]]] = []
        self.loads: list[str] = []
        self.policies: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.shape.append((tag, tuple(name for name, _ in attrs)))
        attributes = dict(attrs)
        self.loads += [str(attributes[name]) for name in ("src", "href", "action", "data") if name in attributes]
        if attributes.get("http-equiv") == "Content-Security-Policy":
            self.policies.append(str(attributes.get("content")))


def with_text(value: Any, text: str, *, kept: bool = False) -> Any:
    """JSON data with `text` for every string of it that is not one of our own few words, names of maps included."""
    if isinstance(value, dict):
        return {
            (text if name in ("timeout", "hbm", "kv_memory", "compute") else name): with_text(
                each, text, kept=name in _OURS | _FAMILIES
            )
            for name, each in value.items()
        }
    if isinstance(value, list):
        return [with_text(each, text, kept=kept) for each in value]
    return text if isinstance(value, str) and not kept else value


def loaded(made: Callable[[], Summary], manifest: Manifest, text: str) -> tuple[Summary, Manifest]:
    """A summary and a manifest, all of whose texts from outside are `text`."""
    summary = msgspec.convert(with_text(msgspec.to_builtins(made()), text), Summary)
    levels = [msgspec.structs.replace(level, errors_by_type={text: 3}) for level in summary.levels]
    prediction = summary.prediction
    if prediction is not None:
        prediction = msgspec.structs.replace(prediction, caps={text: 16.0, f"{text}2": 900.0})
    texts = dict.fromkeys(("name", "created", "url", "model", "gpu", "harness_version", "command"), text)
    target = Target(url=text, model=text, headers={text: text}, extra_body={text: [text]}, server_meta={text: text})
    hostile = msgspec.structs.replace(
        manifest,
        **texts,
        server={"name": text, "version": text, text: text},
        notes=[text, text],
        host=Host(system=text, machine=text, python=text),
        scenario=Scenario(name=text, target=target),
        simulated=Simulated(profile=text, speed=2) if summary.simulated else None,
    )
    return msgspec.structs.replace(summary, levels=levels, prediction=prediction), hostile


def pages(text: str) -> Iterator[tuple[str, str]]:
    """Every page and Markdown of a run, by name, as HTML."""
    made: list[tuple[str, Callable[[], Summary], Manifest]]
    made = [
        ("run", full, MANIFEST),
        ("provisional", provisional, MANIFEST),
        ("simulated", simulated, SIMULATED_MANIFEST),
    ]
    for name, summary, manifest in made:
        document = run_report.report(*loaded(summary, manifest, text))
        yield f"{name}.html", page.render(document)
        yield f"{name}.md", MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown.render(document))
    yield "planned.html", page.render(run_report.report(*priced(text)))


def priced(text: str) -> tuple[Summary, Manifest]:
    """Of a run that can be planned with, and has checks: what it counts is ours, or there would be no plan."""
    found = Check(
        name="p99_ttft", outcome="pass", figures={"ttft_p99_s": 1.0}, threshold=2.0, source=text, message=text
    )
    summary, manifest = loaded(full, msgspec.structs.replace(MANIFEST, price=2.0), text)
    other = msgspec.structs.replace(found, name=text, outcome=text, figures={text: 1.0})
    return msgspec.structs.replace(summary, unit=full().unit, checks=[found, other]), manifest


def misshapen(text: str) -> list[str]:
    """The pages whose elements are others with this text than with a word, that load something or have no policy."""
    out = []
    for (name, hostile), (_, plain) in zip(pages(text), pages("plain"), strict=True):
        found, wanted = Parsed(hostile), Parsed(plain)
        if found.shape != wanted.shape:
            more = [each for each in found.shape if each not in wanted.shape]
            out.append(f"{name}: {len(found.shape)} elements, {len(wanted.shape)} without the text {more[:3]}")
        if found.loads != wanted.loads:
            out.append(f"{name} loads {found.loads}")
        if name.endswith(".html") and (len(found.policies) != 1 or "default-src 'none'" not in found.policies[0]):
            out.append(f"{name} has no content policy")
    return out


_HOVER = """<script>addEventListener("load", () => setTimeout(() => {
  for (const plot of document.querySelectorAll(".plot")) for (let point = 0; point < 40; point++) {
    plot.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight", bubbles: true}));
    if (plot.parentNode.querySelector(".tip b")) new Image().src = "/hovered";
  }
  for (const a of document.querySelectorAll("a")) a.dispatchEvent(new MouseEvent("click", {bubbles: true}));
}, 500));</script></body>"""


def opened(sources: dict[str, str], *, hovered: bool = False) -> list[str]:
    """What ran of the pages, each in a frame of one page that a Chromium opens; needs one."""
    frames = "".join(f'<iframe src="/{name}" width="900" height="600"></iframe>' for name in sources)
    whole = {"all": f"<!doctype html><html><body>{frames}</body></html>", **sources}
    with tempfile.TemporaryDirectory() as profile, _serving(whole) as (port, requested):
        assert CHROMIUM is not None
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium refuses root with one
        command = [
            CHROMIUM, "--headless", *sandbox, "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
            "--disable-background-networking", "--disable-component-update", "--enable-logging=stderr", "--v=0",
            f"--user-data-dir={profile}", "--virtual-time-budget=6000", "--dump-dom", f"http://127.0.0.1:{port}/all",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    out = [f"{name} was not opened" for name in sources if f"/{name}" not in requested]
    out += [f"ran in {where}" for where in re.findall(r'data-ran="([^"]*)"', done.stdout)]
    out += [
        f"requested {path}"
        for path in requested
        if path.removeprefix("/") not in (*whole, "favicon.ico", "curve.png", "hovered")
    ]
    out += ["no level was hovered over"] if hovered and "/hovered" not in requested else []
    out += [f"the browser refused something: {line.strip()[:200]}" for line in done.stderr.splitlines()
            if "Content Security Policy" in line or "Refused to" in line]  # fmt: skip
    return out


def ran(text: str) -> list[str]:
    """What a Chromium ran of every page with this text: as it is, and without its policy and hovered over."""
    as_they_are, bare = {}, {}
    for name, source in pages(text):
        as_they_are[name.replace(".md", "-md.html")] = source if name.endswith(".html") else f"<!doctype html>{source}"
        if name.endswith(".html"):
            without = re.sub(r"<meta http-equiv=.Content-Security-Policy[^>]*>", "", source)
            assert without != source
            bare[name] = without.replace("</body>", _HOVER)
    return [*opened(as_they_are), *(f"without the policy: {each}" for each in opened(bare, hovered=True))]


@contextmanager
def _serving(sources: dict[str, str]) -> Iterator[tuple[int, list[str]]]:
    """The pages at 127.0.0.1, and every path that was requested."""
    requested: list[str] = []

    class Pages(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requested.append(self.path)
            body = sources.get(self.path.removeprefix("/"), "").encode("utf-8", "replace")
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing: the requests are kept."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port, requested
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


CHAT = Question(model="llama-3.1-8b", gpu="h100-sxm", input_tokens=1000, output_tokens=200)
FORMULA = "evil $\\frac{$ $x^2$ %s {0} \\ \x1b[2J\u202e\ud800"  # a half formula ends any drawing that reads it


def misdrawn() -> list[str]:
    """The pictures that a formula in every text of theirs keeps from being drawn."""
    from harness.report import charts, png

    summary, manifest = loaded(full, MANIFEST, FORMULA.removesuffix("\ud800"))
    try:
        png.draw(charts.curve(summary, manifest))
    except (ValueError, UnicodeError, RuntimeError) as error:
        return [f"curve: {str(error).splitlines()[0]}"]
    return []


def naive(text: str) -> dict[str, str]:
    """Pages that escape nothing: what the payloads do there shows that they can do it."""
    return {
        "element.html": f"<p>{text}</p>",
        "attribute.html": f'<p title="{text}">x</p>',
        "script.html": f'<script>const x = {{"a": {json.dumps(text)}}};</script>',
        "style.html": f"<style>p {{ color: {text} }}</style><p>x</p>",
        "markdown.html": MarkdownIt("commonmark", {"html": True}).render(text),
        "twice.html": f'<p id="a">{text}</p><p id="b"></p><script>b.innerHTML = a.textContent</script>',
        "template.html": f"<script>const x = `{text}`;</script>",
    }
