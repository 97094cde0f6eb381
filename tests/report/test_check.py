"""A check as people and other programs read it: the table, JUnit XML, annotations."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import msgspec
import pytest

from harness.decide.check.decision import Decision, Report, decide
from harness.decide.check.expression import parse
from harness.report import check as report
from harness.report import markdown
from tests.builders import summaries
from tests.decide.test_check import measured, repeats

# What Jenkins' junit-10.xsd allows: the attributes an element must have, those it may, and its children.
JUNIT = {
    "testsuites": (set(), {"name", "tests", "failures", "errors", "time", "disabled"}, {"testsuite"}),
    "testsuite": (
        {"name", "tests", "failures", "errors"},
        {"skipped", "time", "timestamp", "hostname", "id", "package", "group", "file", "log", "url", "version"},
        {"properties", "testcase", "system-out", "system-err"},
    ),
    "testcase": (
        {"name", "classname"},
        {"time", "status", "class", "file", "line", "assertions", "group", "url"},
        {"skipped", "error", "failure", "system-out", "system-err", "properties"},
    ),
    "failure": (set(), {"type", "message"}, set()),
    "error": (set(), {"type", "message"}, set()),
    "system-out": (set(), set(), set()),
}


def found(*texts: str, place: str = "new") -> Report:
    return decide([parse(text) for text in texts], [measured(place=place)])


def wrong(element: ElementTree.Element) -> list[str]:
    """Where an element and those inside leave the schema."""
    must, may, children = JUNIT[element.tag]
    attributes = set(element.attrib)
    problems = [f"{element.tag}: {name}" for name in (must - attributes) | (attributes - must - may)]
    problems += [f"{child.tag} in {element.tag}" for child in element if child.tag not in children]
    return problems + [each for child in element if child.tag in children for each in wrong(child)]


def test_junit_has_a_case_for_each_threshold_and_keeps_to_the_schema() -> None:
    text = report.junit(found("plateau >= 1", "plateau >= 9999", "plateau >= 1850"))
    root = ElementTree.fromstring(text)
    assert wrong(root) == []
    (suite,) = root
    assert [suite.get(name) for name in ("tests", "failures", "errors")] == ["3", "1", "1"]
    assert [(case.get("name"), case[0].tag) for case in suite] == [
        ("plateau >= 1", "system-out"), ("plateau >= 9999", "failure"), ("plateau >= 1850", "error"),
    ]  # fmt: skip
    assert suite[1][0].get("message") == "1,853 tok/s (95 % interval 1,839–1,868)"
    assert text.startswith('<?xml version="1.0" encoding="utf-8"?>')


def test_what_is_wrong_with_junit_is_seen() -> None:
    root = ElementTree.fromstring("<testsuites colour='red'><testcase name='x'/></testsuites>")
    assert wrong(root) == ["testsuites: colour", "testcase in testsuites"]


def test_annotations_are_one_line_each_and_only_of_what_is_not_met() -> None:
    lines = report.github(found("plateau >= 1", "plateau >= 9999", "output_tokens_per_s@64 >= 1")).splitlines()
    assert lines == [
        "::error title=missed%3A plateau >= 9999::1,853 tok/s (95 %25 interval 1,839–1,868)",
        "::warning title=unresolved%3A output_tokens_per_s@64 >= 1::– at C = 64; the level is invalid: client_limited; "
        "give it more workers: --workers",
    ]
    assert report.github(found("plateau >= 1")) == "::notice title=knee check::1 threshold: 1 met\n"


def test_text_from_outside_can_neither_end_a_line_nor_a_tag() -> None:
    evil = "x\n::error::y\x1b[2J</testcase>\x00%0A"
    made = found("plateau >= 9999", place=evil)
    assert len(report.github(made).splitlines()) == 1
    root = ElementTree.fromstring(report.junit(made))
    assert wrong(root) == []
    assert "\x1b" not in report.junit(made) + markdown.render(report.report(made))


def test_the_table_says_outcome_figure_and_way_out() -> None:
    made = report.report(found("plateau >= 9999", "ttft_mean@8 < 2s", "error_rate < 5%"))
    assert (made.title, made.subtitle) == ("3 thresholds: 1 met, 1 missed, 1 unresolved", "new")
    text = markdown.render(made)
    assert "| MISSED | plateau >= 9999 | 1,853 tok/s (95 % interval 1,839–1,868) |" in text
    assert re.search(r"unresolved \| ttft.*30\.6 ms at C = 8 \| no interval; measure it several times", text)
    assert re.search(r"met \| error.*0\.158 % \(95 % interval 0\.0538–0\.464 %\)", text)  # 3 of 1,898: all levels


def test_a_baseline_is_shown_as_a_ratio() -> None:
    made = decide([parse("output_tokens_per_s@8 >= 0.9*baseline")], repeats(1.0, place="a"), repeats(1.0, place="b"))
    document = report.report(made)
    assert document.subtitle == "a (3 repeats) against b (3 repeats)"
    (decision,) = made.decisions
    assert report.measured(decision) == (
        "1.000 × the baseline (95 % interval 0.978–1.023): 1,000 tok/s against 1,000 tok/s at C = 8"
    )


def test_a_ratio_of_single_runs_says_that_its_spread_is_the_usual_one() -> None:
    made = decide([parse("output_tokens_per_s@8 >= 0.5*baseline")], repeats(1.0)[:1], repeats(1.0)[:1])
    assert report.measured(made.decisions[0]).endswith("at C = 8, by how much runs usually differ")


def test_where_documents_count_a_plateau_is_of_documents() -> None:
    run = measured(msgspec.structs.replace(summaries.full(), unit="documents"))
    (decision,) = decide([parse("plateau >= 1")], [run]).decisions
    assert report.measured(decision) == "1,853 documents/s (95 % interval 1,839–1,868)"


@pytest.mark.parametrize(
    ("unit", "value", "expected"),
    [("s", 2.41, "2.41 s"), ("s", 0.05, "50 ms"), ("%", 0.0123, "1.23 %"), ("/s", 3.0, "3 req/s"), ("", 7.0, "7")],
)
def test_amounts_have_their_unit(unit: str, value: float, expected: str) -> None:
    made = Decision(threshold="", outcome="met", figure="requests_per_s", unit=unit)
    assert report.amount(made, value) == expected
    assert report.amount(made, None) == "–"
