"""axe-core finds nothing on the page, in light and in dark. `scripts/axe` installs it."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import msgspec
import pytest

from harness.report import page, run_report
from harness.summary import Check
from tests.builders.summaries import MANIFEST, full
from tests.report.test_page import browser, opened

AXE = Path(__file__).parents[2] / ".axe" / "axe.min.js"
CHECKS = [
    Check(name="p99_ttft", outcome="doubt", figures={"ttft_p99_s": 3.0}, threshold=2.0, source="SLO", at=16),
    Check(name="kv_cache", outcome="pass", figures={"kv_usage": 0.7}, threshold=0.95, source="a full cache", at=16),
    Check(name="node_loss", outcome="not measured", message="no replica was lost"),
]
_RUN = """<script>AXE</script><script>axe.run({resultTypes: ["violations"]}).then(({violations, passes}) => {
  const found = violations.map(({id, help, nodes}) => [id, help, nodes.slice(0, 3).map(node => node.html)]);
  const textContent = JSON.stringify([found, passes.length]);
  const kept = Object.assign(document.createElement("pre"), {id: "axe", textContent});
  document.querySelector("main").append(kept);
});</script></body>"""

installed = pytest.mark.skipif(
    not AXE.is_file(), reason="axe-core is not installed: the page's accessibility (scripts/axe)"
)


def checked(source: str, folder: Path, *, dark: bool = False) -> tuple[list[object], int]:
    """What axe-core finds on a page, and how many of its rules pass."""
    source = re.sub(r"<meta http-equiv=.Content-Security-Policy[^>]*>", "", source)
    body = opened(source.replace("</body>", _RUN.replace("AXE", AXE.read_text())), folder, dark=dark)
    text = re.search(r'<pre id="axe">(.*?)</pre>', body, re.DOTALL)
    assert text is not None
    found, passed = json.loads(html.unescape(text[1]))
    return found, passed


@pytest.mark.parametrize("dark", [pytest.param(dark, marks=[*browser, installed]) for dark in (False, True)])
def test_axe_finds_nothing_on_the_page_of_a_run(dark: bool, tmp_path: Path) -> None:
    summary, manifest = msgspec.structs.replace(full(), checks=CHECKS), msgspec.structs.replace(MANIFEST, price=2.0)
    found, passed = checked(page.render(run_report.report(summary, manifest)), tmp_path, dark=dark)
    assert found == []
    assert passed > 20


@pytest.mark.parametrize("name", [pytest.param("bad", marks=[*browser, installed])])
def test_axe_finds_what_is_wrong(name: str, tmp_path: Path) -> None:
    bare = '<!doctype html><html lang="en"><title>x</title><body><main><h1>x</h1><input type="range"></main></body>'
    found, _ = checked(bare, tmp_path / name)
    assert "label" in str(found)
