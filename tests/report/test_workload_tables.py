"""The tables of classes, sessions and lengths, cell by cell."""

from __future__ import annotations

import msgspec
import numpy as np

from harness.analysis import classes
from harness.data.levels import Attainment, ClassSummary, SessionSummary
from harness.data.summary import ClassWorkload, Summary, WorkloadSummary
from harness.data.views import Estimate, Value
from harness.report import answer as answers
from harness.report import charts, facts, level_table, markdown, run_report, run_tables
from harness.report import document as doc
from harness.spec.distribution import parse
from tests.builders.screens import shown_facts
from tests.builders.summaries import EMPTY, MANIFEST, full, level, spread

CHAT = ClassSummary(
    requests=90, errors=1, error_rate=1 / 90, cancelled=0, abandoned=0, in_flight=6.0, input_tokens_mean=500.4,
    output_tokens_mean=64.0, requests_per_s=Estimate(3.0), input_tokens_per_s=Estimate(1500.0),
    output_tokens_per_s=Estimate(192.0), cached_input_fraction=None, ttft_s=spread(0.05, 90), ttfat_s=EMPTY,
    itl_s=spread(0.01, 90), icl_s=EMPTY, tpot_s=EMPTY, e2e_s=spread(0.7, 90), goodput_requests_per_s=2.5,
    goodput_tokens_per_s=160.0, slo_met_fraction=0.875,
)  # fmt: skip
LONG = msgspec.structs.replace(CHAT, requests=10, ttft_s=spread(1.0, 10), slo_met_fraction=None)
TASKS = SessionSummary(
    sessions=20, completed=18, failed=1, in_flight=7.9, sessions_per_s=0.6, requests_mean=4.0,
    latency_s=spread(12.0, 18), last_token_s=spread(11.5, 18),
)  # fmt: skip


def differing() -> Summary:
    """A run of two classes in sessions, at 8 in flight."""
    both = classes.lengths(classes.asked(parse("400..600"), 0, 0.0), np.array([500.0] * 11))
    unknown = classes.lengths(None, np.array([64.0] * 11))
    chat = ClassWorkload(
        class_="chat", requests=90, share_asked=0.9, share=0.9, input_tokens=both, output_tokens=unknown
    )
    here = level(8, classes={"chat": CHAT, "long": LONG}, sessions=TASKS, in_flight=5.5)
    return msgspec.structs.replace(full(), levels=[here], workload=WorkloadSummary(classes=[chat]))


def cells(section: doc.Section) -> dict[str, list[str]]:
    return {column.head.replace("\n", " "): [str(cell) for cell in column.cells] for column in section.columns}


def test_a_run_of_sessions_says_so_wherever_a_load_stands() -> None:
    run = differing()
    heads = {column.head: column.cells for column in level_table.columns(run, run.levels)}
    assert (heads["sessions"], heads["requests\nin flight"]) == (["8"], ["5.5"])
    assert charts.curve(run, MANIFEST).x.label == charts.latency(run, "ttft").x.label == "sessions"
    assert [x for x, _, _ in charts.measured(run)] == [8.0]  # what the curve is over
    assert answers.answer(run).sentence.startswith("Knee: 16.2 sessions")
    assert run.curve is not None
    hinge = facts.knee_facts(run.curve, run.knees, load_unit=run.load_unit)[0]
    assert (hinge.label, hinge.value) == ("hinge", "16.2 sessions")
    assert charts.curve(full(), MANIFEST).x.label == "requests in flight"


def test_a_class_has_a_row_at_each_level() -> None:
    classes, *_ = run_tables.of_workload(differing())
    assert cells(classes) == {
        "C": ["8", "8"], "class": ["chat", "long"], "requests": ["90", "10"], "errors": ["1", "1"],
        "input tokens": ["500", "500"], "output tokens": ["64", "64"], "output tok/s": ["192", "192"],
        "TTFT ms p50": ["50", "–"], "ITL ms mean": ["10.2", "10.2"], "E2E ms p50": ["700", "700"],
        "SLO met": ["87.5 %", "–"],
    }  # fmt: skip


def test_sessions_and_requests_in_flight_stand_side_by_side() -> None:
    _, sessions, *_ = run_tables.of_workload(differing())
    assert cells(sessions) == {
        "C": ["8"], "sessions in flight": ["7.90"], "requests in flight": ["5.50"], "sessions": ["20"],
        "completed": ["18"], "failed": ["1"], "requests each": ["4"], "sessions/s": ["0.600"],
        "an hour": ["2,160"], "$ each": ["0.000926"],
        "latency s p50": ["12"], "last token s p50": ["11.5"],
    }  # fmt: skip


def test_idle_agents_take_none_of_the_server_s_seats_and_the_answer_says_both() -> None:
    run, idle = differing(), msgspec.structs.replace(TASKS, idle=2.4, idle_tokens=51_200.0)
    at = msgspec.structs.replace(run.levels[0], sessions=idle)
    knees = msgspec.structs.replace(run.knees, seats=Value(4.0, (4.0, 4.0)))
    run = msgspec.structs.replace(run, levels=[at], knees=knees, counted="agents")
    (fact,) = [each for each in answers.answer(run).lines if each.label == "Seats"]
    assert fact.value.startswith("4 requests in flight")
    assert fact.value.endswith("the server serves so many at once")
    assert fact.detail == "2.40 of C = 8 wait for tools; their conversations are 51,200 tokens"
    assert not [each for each in answers.answer(full()).lines if each.label == "Seats"], "they are the knee there"


def test_lengths_stand_asked_beside_realised() -> None:
    _, _, table = run_tables.of_workload(differing())
    found = cells(table)
    assert found["lengths"] == ["chat prompts", "chat answers"]
    assert found["asked"] == ["400..600", "–"]
    assert found["mean"] == ["500 / 500", "– / 64"]
    assert found["p50"] == ["500 / 500", "– / 64"]
    assert found["p99"] == ["598 / –", "– / –"]


def test_a_terminal_shows_them_only_when_verbose_and_the_report_always() -> None:
    def titles(document: doc.Document) -> set[str]:
        return {section.title for section in document.sections if section.columns}

    tables = {"Classes", "Sessions", "Lengths asked and realised"}
    made = differing()
    assert tables <= titles(run_report.report(made, MANIFEST))
    assert tables <= titles(run_report.screen(made, MANIFEST, verbose=True))
    assert tables.isdisjoint(titles(run_report.screen(made, MANIFEST)))
    assert "## Classes" in markdown.render(run_report.report(made, MANIFEST))


def test_a_run_whose_requests_are_alike_has_none() -> None:
    assert run_tables.of_workload(full()) == [doc.Section()] * 3


def test_the_title_has_the_mean_lengths_that_were_asked() -> None:
    _, subtitle = facts.subject(differing(), MANIFEST)
    assert "1,000 tokens in, 200 out on average" in subtitle


def test_a_limit_of_a_class_is_named_with_it() -> None:
    missed = Attainment("ttft=300ms", 0.99, 0, 40, 0.0, (0.0, 0.1), "missed", "chat")
    made = msgspec.structs.replace(full(), levels=[level(8, slo=[missed])])
    assert any("ttft=300ms of chat" in fact.text for fact in shown_facts(made))
