"""What the code cites stands in the docs, and every field of a summary has its definition."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from harness.data.server_metrics import ENGINES, Kind
from harness.spec import reading, ready, scenario

ROOT = Path(__file__).parent.parent
PAGES = {name: (ROOT / "docs" / name).read_text() for name in ("method.md", "definitions.md")}
WORKLOADS = (ROOT / "docs" / "workloads.md").read_text()
CITED = re.compile(r"docs/(method|definitions)\.md, ([A-Z][^;:)\"\n]*)")


def headings(page: str) -> list[str]:
    return [re.sub(r"^[0-9]+\. ", "", line.lstrip("# ")) for line in page.splitlines() if line.startswith("##")]


def test_every_section_that_is_cited_stands_in_its_page() -> None:
    files = [file for room in ("harness", "tests", "scripts", "bench") for file in sorted((ROOT / room).rglob("*.py"))]
    cited = [found for file in files if file != Path(__file__) for found in CITED.findall(file.read_text())]
    assert len(cited) > 30
    missing = [
        (page, section) for page, section in cited if not any(map(section.startswith, headings(PAGES[f"{page}.md"])))
    ]
    assert missing == []


def test_every_field_of_a_summary_has_its_definition() -> None:
    schema = json.loads((ROOT / "docs" / "summary.schema.json").read_text())
    fields = {name for struct in schema["$defs"].values() for name in struct.get("properties", {})}
    assert len(fields) > 150
    assert [name for name in sorted(fields) if not re.search(rf"\b{re.escape(name)}\b", PAGES["definitions.md"])] == []


@pytest.mark.parametrize("example", re.findall(r"```toml\n(.*?)```", WORKLOADS, re.DOTALL))
def test_every_scenario_that_is_shown_can_be_read(example: str) -> None:
    assert reading.build(tomllib.loads(example), place="docs/workloads.md") != scenario.Scenario()


def test_every_ready_scenario_stands_in_the_docs_and_every_campaign_with_its_question() -> None:
    named = re.findall(r"\[([a-z-]+)\]\(\.\./scenarios/([a-z-]+)\.toml\)", WORKLOADS)
    assert sorted(named) == [(each.name, each.name) for each in ready.scenarios()]
    page = (ROOT / "docs" / "stacks.md").read_text()
    rows = re.findall(r"^\| \[(.+)\]\(\.\./scenarios/campaigns/(.+)\.toml\) \| (.+) \|$", page, re.MULTILINE)
    assert sorted(rows) == [(each.name, each.name, each.question) for each in ready.campaigns()]


def test_every_metric_that_is_read_stands_in_the_docs_with_its_kind() -> None:
    page = (ROOT / "docs" / "server-metrics.md").read_text()
    rows = re.findall(r"^\| [^|]+ \| ([a-z, ]+) \| (`.*) \|$", page, re.MULTILINE)
    kinds = {"counter": Kind.COUNTER, "gauge, added": Kind.ADDED, "gauge, averaged": Kind.AVERAGED}
    found = {
        (name, kinds.get(kind, Kind.HISTOGRAM))
        for kind, names in rows
        for name in re.findall(r"(?:^|, )`([^`{]+)", names)
    }
    assert found == {(name, each.kind) for engine in ENGINES for name, of in engine.metrics.items() for each in of}
