"""docs/reference.md is what the code says."""

from __future__ import annotations

import pytest

from harness.analysis.rules import registered
from tests.test_packaging import script

reference = script("reference")


def test_the_pages_are_up_to_date() -> None:
    assert reference.PAGE.read_text() == reference.page(), "run scripts/reference"
    assert reference.DEFINITIONS.read_text() == reference.definitions(), "run scripts/reference"
    assert reference.COMPARABILITY.read_text() == reference.comparability(), "run scripts/reference"


def test_every_verdict_has_a_cause_and_a_remedy() -> None:
    table = reference.page().partition("## Verdicts")[2].partition("\n## ")[0]
    rows = [[cell.strip(" `") for cell in row.split("|")] for row in table.splitlines() if row.startswith("| `")]
    assert {row[1] for row in rows} == {rule.code + "_…" * rule.kinds for rule in registered()}
    assert all(cause for _, _, _, cause, *_ in rows)
    assert {row[2] for row in rows if row[4] == "–"} <= {"note"}, "a doubt or an invalid can be mended"


def test_every_key_has_a_meaning() -> None:
    scenario = reference.page().partition("## Scenario")[2].partition("\n## ")[0]
    keys = [row.partition(": ") for row in scenario.splitlines() if row.startswith("- `")]
    assert len(keys) > 80
    assert [key for key, _, meaning in keys if meaning.strip() in ("", "–")] == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('return Finding("m", "see it" if x else f"hold it {n} s", severity)', ["see it", "hold it … s"]),
        ('advice = "one"\n  f(advice)\n  advice = "two"\n  return Finding("m", advice)', ["two"]),
        ('if x: why, advice = "", "one"\n  else: advice = "two"\n  return Finding("m", advice)', ["one", "two"]),
        ('return Finding("m", g()[1])', ["more", "less"]),
        ('return h("m", 1, "by a helper")', ["by a helper"]),
        ('return Finding("m")', []),
    ],
)  # fmt: skip
def test_advice_is_read_from_the_code(source: str, found: list[str]) -> None:
    module = (
        f"def rule():\n  {source}\ndef g():\n  if x: return 'a', 'more'\n  return '', 'less'\n"
        "def h(m, n, advice) -> Finding | None: ...\n"
    )
    functions = {each.name: each for each in reference.ast.parse(module).body}
    assert list(reference._advised("rule", functions)) == found
