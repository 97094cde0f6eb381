"""What the code cites stands in the docs, and every field of a summary has its definition."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = {name: (ROOT / "docs" / name).read_text() for name in ("method.md", "definitions.md")}
CITED = re.compile(r"docs/(method|definitions)\.md, ([A-Z][^;:)\"\n]*)")


def headings(page: str) -> list[str]:
    return [re.sub(r"^[0-9]+\. ", "", line.lstrip("# ")) for line in page.splitlines() if line.startswith("##")]


def test_every_section_that_is_cited_stands_in_its_page() -> None:
    files = [file for room in ("harness", "tests", "scripts", "bench") for file in sorted((ROOT / room).rglob("*.py"))]
    cited = [found for file in files if file != Path(__file__) for found in CITED.findall(file.read_text())]
    assert len(cited) > 30
    missing = [(page, said) for page, said in cited if not any(map(said.startswith, headings(PAGES[f"{page}.md"])))]
    assert missing == []


def test_every_field_of_a_summary_has_its_definition() -> None:
    schema = json.loads((ROOT / "docs" / "summary.schema.json").read_text())
    fields = {name for struct in schema["$defs"].values() for name in struct.get("properties", {})}
    assert len(fields) > 150
    assert [name for name in sorted(fields) if not re.search(rf"\b{re.escape(name)}\b", PAGES["definitions.md"])] == []


def sentences(page: str) -> list[str]:
    """The sentences of a page's prose, without headings, tables, pictures and code; of a link its words."""
    page = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    lines = ["" if line.startswith(("#", "|", "    ", "![")) else line for line in page.splitlines()]
    items = re.split(r"\n\s*\n|\n(?=(?:\d+\.|-) )", "\n".join(lines))
    prose = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"^\s*(\d+\.|-) ", "", item)) for item in items]
    found = [each for item in prose for each in re.split(r"(?<=[.!?])\s+(?=[A-Z`*\d])", " ".join(item.split()))]
    return [each for each in found if each]


def test_a_page_s_sentences_are_its_prose_without_tables_and_code() -> None:
    page = (
        "# Head\n\nOne is short. Two has\na [link](x.md). 3 is `code`.\n\n    no prose\n\n| a |\n\n- Four.\n- Five.\n"
    )
    assert sentences(page) == ["One is short.", "Two has a link.", "3 is `code`.", "Four.", "Five."]


def test_the_readme_s_sentences_are_short() -> None:
    words = [len(each.split()) for each in sentences((ROOT / "README.md").read_text())]
    assert len(words) > 60
    assert sum(words) / len(words) < 20
    assert max(words) <= 35
