"""Every link of the pages leads somewhere, llms.txt has each page, and the site builds where mkdocs is installed."""

from __future__ import annotations

import doctest
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.test_packaging import ROOT, script

pages: Any = script("pages")
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "docker" / "README.md"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_and_anchor_leads_somewhere(page: Path) -> None:
    lost = []
    for link in pages.links(page.read_text()):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in pages.anchors(target.read_text())):
            lost.append(link)
    assert lost == []


def test_every_page_is_in_the_site_once() -> None:
    listed = [path for entries in pages.nav().values() for _, path in entries]
    assert sorted(listed) == sorted(["README.md", *(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))])


def test_llms_txt_is_up_to_date() -> None:
    assert pages.LLMS.read_text() == pages.llms(), "run scripts/docs"


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(pages).attempted == 3
    assert doctest.testmod(pages).failed == 0


@pytest.mark.slow
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    mkdocs = ROOT / "build" / "docs" / "bin" / "mkdocs"
    if not mkdocs.exists():
        pytest.skip("mkdocs is not installed: the site is not built (scripts/docs installs it)")
    (tmp_path / "source").mkdir()
    pages.stage(tmp_path / "source")
    config = (ROOT / "mkdocs.yml").read_text().replace("build/site", str(tmp_path / "site"))
    (tmp_path / "mkdocs.yml").write_text(config.replace(str(tmp_path / "site-source"), str(tmp_path / "source")))
    done = subprocess.run([mkdocs, "build", "--strict", "-f", tmp_path / "mkdocs.yml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "docs" / "guide.html").exists()
    assert "plateau" in (tmp_path / "site" / "search" / "search_index.json").read_text()
