"""Two sides that do the same are the same, and what differs is shown where it differs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"
sys.path.append(str(BENCH))

import same  # noqa: E402
import same_cases  # noqa: E402


def test_help_is_walked_from_verb_to_sub_verb() -> None:
    pages = {
        "--help": "Usage\n\nCommands:\n  fit    Fit.\n  stacks  Servers.\n",
        "stacks --help": "\nCommands:\n  run  It.\n",
    }
    found = [case.words for case in same_cases.help_pages(lambda words: pages.get(words, "none"), Path())]
    assert found[:4] == ["--help", "fit --help", "stacks --help", "stacks run --help"]


def test_a_structure_has_keys_and_types_and_what_the_seed_decides() -> None:
    value = {"levels": [{"requests": 3, "window": [0.5, 1]}], "scenario": {"ramp": [1]}, "knee": None, "verdicts": []}
    assert sorted(set(same.structure(value, ""))) == [
        ".knee: null", ".levels[].requests: number", ".levels[].window[]: number", ".scenario.ramp[]: 1",
        ".verdicts: null",
    ]  # fmt: skip


def test_a_value_that_is_missing_on_one_side_is_no_difference_and_a_key_is() -> None:
    old = {"m.json": ".ci95: null\n.url: text"}
    assert list(same.differences(old, {"m.json": ".ci95[]: number\n.url: text"}, 9)) == []
    assert list(same.differences(old, {"m.json": ".ci95: null\n.uri: text"}, 9))


def test_a_difference_in_a_long_line_is_shown_from_where_it_begins() -> None:
    before, after = json.dumps({"a": 1, "b": [1, 2]}), json.dumps({"a": 1, "b": [1, 3]})
    assert same.difference(before, after, 15).splitlines()[-2:] == ["+  3", "  ]"]
    shown = same.difference("x" * 900 + "old", "x" * 900 + "new", 15)
    assert "xold…" in shown
    assert "xnew…" in shown
    assert len(shown) < 300


def test_an_artefact_of_one_side_alone_is_a_difference() -> None:
    assert list(same.differences({"a": "1", "b": "2"}, {"a": "1"}, 9)) == [("b", "only OLD has it")]


def test_a_schema_is_compared_without_the_names_of_classes() -> None:
    def schema(name: str) -> dict[str, object]:
        inner = {"title": name, "description": f"{name}.", "properties": {"title": {"type": "string"}}}
        return {"$ref": f"#/$defs/{name}", "$defs": {name: inner}}

    old, new = schema("Level"), schema("LevelSummary")
    assert same.resolved(old, old["$defs"]) == same.resolved(new, new["$defs"])  # type: ignore[arg-type]
    assert "title" in same.resolved(old, old["$defs"])["properties"]  # type: ignore[arg-type]
