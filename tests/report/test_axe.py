"""axe-core finds nothing on any page, wide and on a phone, in light and in dark. `scripts/axe` installs it."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from harness.data.summary import Check
from harness.report import comparison, level_map, page, run_report
from tests.builders.summaries import MANIFEST, full
from tests.report.test_comparison import found
from tests.report.test_level_map import plane
from tests.report.test_page import browser, opened

AXE = Path(__file__).parents[2] / ".axe" / "axe.min.js"
CHECKS = [
    Check(name="p99_ttft", outcome="doubt", figures={"ttft_p99_s": 3.0}, threshold=2.0, source="SLO", at=16),
    Check(name="kv_cache", outcome="pass", figures={"kv_usage": 0.7}, threshold=0.95, source="a full cache", at=16),
    Check(name="node_loss", outcome="not measured", message="no replica was lost"),
]
_RUN = """<script>AXE</script><script>axe.run({resultTypes: ["violations"]}).then(({violations, passes}) => {
  const wrong = violations.map(({id, help, nodes}) => [id, help, nodes.slice(0, 3).map(node => node.html)]);
  parent.postMessage(JSON.stringify([wrong, passes.length, innerWidth]), "*");
});</script></body>"""
# A frame of the width that is wanted: no window of Chromium is narrower than 500 pixels.
_FRAME = """<!doctype html><html lang="en"><title>frame</title><body><main>
<script>addEventListener("message", ({data: textContent}) => {
  document.querySelector("main").append(Object.assign(document.createElement("pre"), {id: "axe", textContent}));
});</script><iframe src="page.html" style="border: 0; width: WIDTHpx; height: 900px"></iframe></main></body>"""

installed = pytest.mark.skipif(
    not AXE.is_file(), reason="axe-core is not installed: the page's accessibility (scripts/axe)"
)


def of_run() -> str:
    summary, manifest = msgspec.structs.replace(full(), checks=CHECKS), msgspec.structs.replace(MANIFEST, price=2.0)
    return page.render(run_report.report(summary, manifest))


def of_comparison() -> str:
    return page.render(comparison.report(found()))


def of_map() -> str:
    return page.render(level_map.report(plane()))


def checked(source: str, folder: Path, *, dark: bool = False, width: int = 1400) -> tuple[list[object], int, int]:
    """What axe-core finds on a page, how many of its rules pass, and the width that the page had."""
    source = re.sub(r"<meta http-equiv=.Content-Security-Policy[^>]*>", "", source)
    folder.mkdir(exist_ok=True)
    (folder / "page.html").write_text(source.replace("</body>", _RUN.replace("AXE", AXE.read_text())), encoding="utf-8")
    body = opened(_FRAME.replace("WIDTH", str(width)), folder, dark=dark)
    text = re.search(r'<pre id="axe">(.*?)</pre>', body, re.DOTALL)
    assert text is not None
    wrong, passed, shown = json.loads(html.unescape(text[1]))
    return wrong, passed, shown


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize(
    "made", [pytest.param(m, marks=[*browser, installed]) for m in (of_run, of_comparison, of_map)]
)
def test_axe_finds_nothing_on_a_page(made: Callable[[], str], width: int, dark: bool, tmp_path: Path) -> None:
    wrong, passed, shown = checked(made(), tmp_path, dark=dark, width=width)
    assert wrong == []
    assert shown == width
    assert passed > 20


@pytest.mark.parametrize("name", [pytest.param("bad", marks=[*browser, installed])])
def test_axe_finds_what_is_wrong(name: str, tmp_path: Path) -> None:
    bare = '<!doctype html><html lang="en"><title>x</title><body><main><h1>x</h1><input type="range"></main></body>'
    wrong, _, _ = checked(bare, tmp_path / name)
    assert "label" in str(wrong)
