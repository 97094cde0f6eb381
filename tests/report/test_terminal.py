"""The words of the answer and the level table."""

from __future__ import annotations

import doctest
import io
import re
from collections.abc import Collection
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from harness.analysis.rules import registered
from harness.data.judgement import Verdict
from harness.data.levels import LevelPhases
from harness.data.manifest import Manifest
from harness.data.summary import Knees, Summary
from harness.data.views import Estimate, GpuView, Spread, Value
from harness.report import answer as answers
from harness.report import format as fmt
from harness.report import level_table, levels, remarks, run_report, terminal
from harness.report.document import Column, Document, Fact, Section
from harness.report.live import LiveView
from tests.builders.summaries import (
    MANIFEST,
    SIMULATED_MANIFEST,
    SITUATIONS,
    full,
    interrupted,
    level,
    provisional,
    simulated,
)


def printed(
    summary: Summary,
    width: int,
    manifest: Manifest = MANIFEST,
    *,
    verbose: bool = False,
    noted: Collection[str] = (),
) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width)
    terminal.show(run_report.screen(summary, manifest, verbose=verbose, noted=noted), console)
    terminal.show_paths([("page", "out/report.html")], console)
    return out.getvalue()


def answered(summary: Summary) -> list[str]:
    """The lines of the answer: those between the subject and the table."""
    return [line.rstrip() for line in printed(summary, 160).split("\n\n")[1].splitlines()]


def columns(summary: Summary) -> list[Column]:
    return level_table.columns(summary, summary.levels)


def watched(gpus: int = 1, **figures: Any) -> Summary:
    """The whole run with its GPUs watched at C = 24 (1,864 tok/s, the highest) and C = 32."""
    summary = full()
    view = GpuView(gpus=gpus, power_w=652.3, **figures)
    levels = [msgspec.structs.replace(x, gpu=view) if x.concurrency in (24, 32) else x for x in summary.levels]
    return msgspec.structs.replace(summary, levels=levels)


def test_the_examples_in_the_docstrings_hold() -> None:
    for module in (fmt, terminal, answers, levels):
        found = doctest.testmod(module)
        assert found.failed == 0
        assert found.attempted or module is terminal, module


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("name", SITUATIONS)
def test_the_terminal_keeps_to_its_width_and_a_file_gets_no_colour_codes(name: str, width: int) -> None:
    text = printed(SITUATIONS[name](), width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "\x1b" not in text
    assert not re.search(r"\b(None|nan|inf)\b", text)
    assert text.rstrip().endswith("out/report.html")


def test_a_table_of_numbers_that_is_too_wide_goes_on_below_and_names_its_rows_again() -> None:
    heads = ["C", "class", *(f"figure\nnumber {i}" for i in range(12))]
    table = Section(columns=[Column(head, ["1", "22"], words=head == "class") for head in heads])
    out = io.StringIO()
    terminal.show(Document(title="", sections=[table]), Console(file=out, width=60, force_terminal=True, no_color=True))
    lines = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).splitlines()]
    assert max(map(len, lines)) <= 60
    assert [line.split() for line in lines if "class" in line] == [
        ["C", "class", *" ".join(f"number {i}" for i in some).split()] for some in (range(5), range(5, 10), (10, 11))
    ]
    assert sum(line.startswith("22  22") for line in lines) == 3


def test_every_level_has_its_line_and_bad_ones_their_mark() -> None:
    lines = printed(full(), 160).splitlines()
    rows = [line.split() for line in lines if re.match(r" *\d+ +[\d.]+ +[\d,]+ +±", line)]
    assert [row[0] for row in rows] == ["1", "2", "4", "8", "12", "16", "24", "32", "48", "64"]
    assert [row[-1] for row in rows] == ["?", "?", *"0000000", "✗"]
    figures = "64 63.5 1,857 ±15 1,972 0.94 9.28 5,135 5,905 6,162 8.77 8.60 9.89 10.3 12.0 6,846 7,873 8,216 3 ✗"
    assert rows[-1] == figures.split()


def test_no_line_of_a_file_ends_in_blanks() -> None:
    assert not [line for line in printed(full(), 100, verbose=True).splitlines() if line != line.rstrip()]


def test_the_heads_of_the_phases_are_explained_below_the_table() -> None:
    phases = LevelPhases(prefill_share=Estimate(0.2), prefill_tokens_per_s=Estimate(9e3))
    found = level_table.by_load(msgspec.structs.replace(full(), levels=[level(1), level(4, phases=phases)]))
    heads = "; time in prompts: share of the server's busy time; prefill, decode: tok/s over the time that each takes"
    assert found.note.endswith(heads)
    assert "time in prompts" not in level_table.by_load(full()).note


def test_a_phase_that_may_take_no_time_has_a_dash_in_the_table_and_a_bound_in_the_sentence() -> None:
    none = LevelPhases(
        prefill_share=Estimate(1.47e-8, (0.0, 0.04)),
        prefill_tokens_per_s=Estimate(0.0, (0.0, 0.0)),
        decode_tokens_per_s=Estimate(50.0, (48.0, 52.0)),
        source="records",
    )
    some = msgspec.structs.replace(none, prefill_share=Estimate(0.2, (0.1, 0.3)))
    found = level_table.by_load(msgspec.structs.replace(full(), levels=[level(1, phases=none), level(4, phases=some)]))
    cells = {column.head: column.cells for column in found.columns}
    assert cells["time in\nprompts"] == ["–", "20 %"]
    assert cells["decode\ntok/s"] == ["50", "50"]
    assert "prefill\ntok/s" not in cells
    (said,) = levels.binding_phase(level(1, phases=none))
    assert said.value == "at least 96 % of the server's time goes into responses at C = 1"
    assert "at most 4 % into prompts" in said.detail
    assert "while it computes prompts" not in said.detail


def test_few_requests_have_a_mean_in_the_table_of_a_terminal_and_in_the_progress() -> None:
    few = msgspec.structs.replace(full().levels[0], ttft_s=Spread(0.05, None, None, None, None, 0.06, 9))
    summary = msgspec.structs.replace(full(), levels=[few, *full().levels[1:]])
    assert "50 (9)" in printed(summary, 100)
    out = io.StringIO()
    with LiveView(Console(file=out, width=100)) as progress:
        progress.level_started("C = 1", 0)
        progress.level_finished(few)
    assert "TTFT mean 50 ms  ITL" in out.getvalue()


def test_a_narrow_terminal_loses_the_predicted_column_but_not_the_ratio() -> None:
    wide, narrow = printed(full(), 140), printed(full(), 80)
    assert "predicted  meas./" in wide
    assert "meas./" in narrow
    assert "predicted meas./" not in narrow


def test_without_a_prediction_its_columns_are_absent() -> None:
    assert [c.head for c in columns(interrupted()) if "pred" in c.head] == []


def test_the_first_screen_has_three_remarks_in_a_line_each_and_says_where_the_others_are() -> None:
    notes = [Verdict(f"note_{i}", "note", f"remark {i}") for i in range(3)]
    summary = msgspec.structs.replace(full(), verdicts=notes)
    lines = printed(summary, 80).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("invalid  "))
    assert [line.rstrip() for line in lines[start : start + 4]] == [
        "invalid  the load generator sent late at C = 64: what else runs here?",
        "doubt    C = 1, 2: the window held 19 request times, not 20",
        "note     remark 0",
        "2 more remarks: --verbose, or report.md",
    ]
    every = printed(summary, 100, verbose=True)
    assert len(re.findall(r"^(invalid|doubt|note) ", every, re.M)) == 5
    assert "more remark" not in every + printed(full(), 100)
    assert "1 more remark: " in printed(msgspec.structs.replace(full(), verdicts=notes[:2]), 100)


def test_a_provisional_knee_comes_with_what_would_settle_it() -> None:
    text = printed(provisional(), 100)
    said = " ".join(text.split())
    assert (
        "Provisional more levels may move the knee (1 level past the knee, 2 are needed); to settle it, repeat" in said
    )
    assert "plateau_not_reached" not in text, "the headline has it"
    assert "plateau_not_reached" in printed(provisional(), 100, verbose=True)
    single = msgspec.structs.replace(provisional(), levels=provisional().levels[:1])
    assert "to settle" not in printed(single, 100), "one level was to show no knee"


def test_a_level_that_is_void_but_was_repeated_does_not_come_first() -> None:
    void = level(4, verdicts=[Verdict("stalled", "invalid", "x")])
    doubtful = level(2, verdicts=[Verdict("drift", "doubt", "x")])
    summary = msgspec.structs.replace(full(), levels=[void, level(4), doubtful], verdicts=[])

    def gravities(run: Summary) -> list[str]:
        return [each.gravity for each in remarks.first_lines(run, remarks.remarks(run), 3)]

    assert gravities(summary) == ["doubt", "invalid"]
    assert gravities(msgspec.structs.replace(summary, levels=[void, doubtful])) == ["invalid", "doubt"]


def test_a_calm_run_has_one_note_on_the_first_screen_and_the_usual_one_only_where_there_is_no_other() -> None:
    notes = [Verdict(code, "note", code) for code in ("window_too_short", "too_few_samples", "server_lumps")]
    run = Verdict("run_note", "note", "this client was never calibrated")

    def first(*verdicts: Verdict) -> list[str]:
        levels = [level(4, verdicts=list(verdicts))]
        summary = msgspec.structs.replace(full(), levels=levels, verdicts=[run], curve=None)
        every = remarks.remarks(summary)
        assert len(every) == len(verdicts) + 1, "--verbose and report.md have them all"
        return [each.message for each in remarks.first_lines(summary, every, 3)]

    assert first(*notes) == ["several tokens come at once at C = 4: no ITL percentiles"]
    assert first(*notes[:2]) == ["window too short for an interval at C = 4: measure for longer"]
    assert first() == ["this client was never calibrated"]
    late = Verdict("client_busy", "doubt", "the load generator was busy")
    assert first(*notes[:2], late) == [
        "the load generator was short of time at C = 4",
        "window too short for an interval at C = 4: measure for longer",
        "this client was never calibrated",
    ]


def test_percentiles_that_are_missing_are_noted_only_where_no_table_shows_them() -> None:
    few = Verdict("too_few_samples", "note", "20 requests are enough for no percentile")

    def first(p90: float | None) -> list[str]:
        first_s = msgspec.structs.replace(level(4).first_s, p90=p90, p95=None, p99=None)
        levels = [msgspec.structs.replace(level(4), ttft_s=first_s, verdicts=[few])]
        summary = msgspec.structs.replace(full(), levels=levels, verdicts=[], curve=None)
        return [each.message for each in remarks.first_lines(summary, remarks.remarks(summary), 3)]

    assert first(None) == ["too few requests for p99 at C = 4: measure for longer"]
    assert first(0.1) == []


@pytest.mark.parametrize("code", dict.fromkeys(rule.code for rule in registered()))
def test_a_first_remark_fits_a_line_of_80_columns(code: str) -> None:
    summary = msgspec.structs.replace(full(), levels=[], verdicts=[])
    levels = [msgspec.structs.replace(level(c), verdicts=[Verdict(code, "invalid", "short")]) for c in range(11, 22)]
    spared = msgspec.structs.replace(summary, levels=[*levels, level(64)])
    (line,) = [each.brief for each in remarks.remarks(spared)]
    assert len(f"invalid  {line}") <= 80
    assert "{" not in line


def test_a_mean_without_a_median_has_the_number_of_its_samples() -> None:
    few = msgspec.structs.replace(full().levels[0], ttft_s=Spread(0.05, None, None, None, None, 0.06, 9))
    summary = msgspec.structs.replace(full(), levels=[few, *full().levels[1:]], curve=None)
    (means,) = (each for each in level_table.by_load(summary).columns if each.head == "TTFT ms\nmean (n)")
    assert means.cells[0] == "50 (9)"
    assert "(" not in str(means.cells[1])
    alone = answers.answer(msgspec.structs.replace(summary, levels=[few])).lines
    assert alone[1] == Fact("First token", "TTFT 50 ms on average (n = 9)")


def test_repeats_of_a_level_are_one_row_of_their_means() -> None:
    """98, 100 and 102 tok/s: s = 2, and t(2) = 4.303 makes ±4.97; of two repeats there is no interval."""
    rates = [level(4, output_tokens_per_s=Estimate(x)) for x in (98.0, 100.0, 102.0)]
    void = level(4, output_tokens_per_s=Estimate(5.0), verdicts=[Verdict("stalled", "invalid", "x")])
    last = level(2, output_tokens_per_s=Estimate(60.0)), level(2, output_tokens_per_s=Estimate(80.0))
    summary = msgspec.structs.replace(full(), levels=[*rates, void, *last], verdicts=[])
    table = level_table.by_load(summary)
    cells = {column.head.replace("\n", " "): list(column.cells) for column in table.columns[:5]}
    assert cells == {
        "C": ["2", "4"],
        "": ["× 2", "× 3 of 4"],
        "in flight": ["2.0", "4.0"],
        "output tok/s": ["70", "100"],
        "95 % ±": ["–", "±5.0"],
    }
    assert table.void == frozenset()
    assert table.note.endswith("× n of m: mean of the n valid ones of m repeats")
    every = level_table.by_measurement(summary, "Every measurement")
    assert list(every.columns[2].cells) == ["98", "100", "102", "5", "60", "80"]
    assert every.void == {3}
    assert level_table.by_measurement(full(), "") == Section()


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_terminal_says_the_answer_as_the_report_does(name: str) -> None:
    text = " ".join(printed(SITUATIONS[name](), 100).split())
    for fact in answers.answer(SITUATIONS[name]()).lines:
        assert f"{fact.label} {fact.text}" in text


def test_joules_a_token_are_a_column_where_some_level_has_them() -> None:
    found = {column.head: column.cells for column in columns(watched(joules_per_output_token=0.35))}
    assert found["J per\ntoken"] == ["–"] * 6 + ["0.350", "0.350", "–", "–"]
    for without in (full(), watched()):
        assert "J per\ntoken" not in {column.head for column in columns(without)}


@pytest.mark.parametrize("width", [80, 100])
def test_the_joules_column_gives_way_on_a_terminal_too_narrow_for_it(width: int) -> None:
    text = printed(watched(joules_per_output_token=0.35), width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "meas./" in text


def test_a_simulated_run_is_branded_before_anything_else() -> None:
    text = printed(simulated(), 100, SIMULATED_MANIFEST)
    assert text.startswith("SIMULATED: the simulated endpoint played llama-3.1-8b/h100-sxm at 20 × real time.")
    assert "by construction" in " ".join(text.splitlines()[:2])
    assert "SIMULATED" not in printed(full(), 100)


def test_text_from_outside_cannot_steer_the_terminal() -> None:
    evil = Verdict("odd", "note", "the server says \x1b[2J[bold]hello[/bold]\r")
    text = printed(
        msgspec.structs.replace(full(), verdicts=[evil]), 100, msgspec.structs.replace(MANIFEST, model="m\x1b]0;x\x07")
    )
    assert "\x1b" not in text
    assert "[bold]hello[/bold]" in text


def test_a_note_that_was_printed_before_the_load_is_not_printed_again() -> None:
    note = Verdict("run_note", "note", "this client was never calibrated")
    summary = msgspec.structs.replace(full(), verdicts=[note])
    assert printed(summary, 100).count("never calibrated") == 1
    assert printed(summary, 100, verbose=True).count("calibrated") == 1
    out = io.StringIO()
    progress = LiveView(Console(file=out, width=100))
    progress.note(note.message)
    assert out.getvalue().count("never calibrated") == 1
    assert "never calibrated" not in printed(summary, 100, noted=progress.noted)


@given(st.floats(min_value=1e-4, max_value=1e12))
def test_a_number_is_never_off_by_more_than_its_third_figure(value: float) -> None:
    assert float(fmt.number(value).replace(",", "")) == pytest.approx(value, rel=5.1e-3)


def test_an_open_loop_is_told_by_its_rates_and_claims_no_knee() -> None:
    summary = full()
    levels = [msgspec.structs.replace(x, concurrency=None, rate=float(i + 1)) for i, x in enumerate(summary.levels[:2])]
    nothing = msgspec.structs.replace(summary, levels=levels, curve=None, knees=Knees(), knee_concurrency=None)
    answer = answered(nothing)
    assert answer[0] == "Sustained rate  at least 2 requests/s, the highest rate measured"
    assert re.match(
        r"Throughput +274 output tok/s \(95 % interval 272–276\) at 2 req/s; 1.37 requests/s; \$", answer[1]
    )
    assert re.match(r"At 2 req/s +TTFT p50 30 ms; ITL 7.34 ms; E2E p50 1.46 s$", answer[2])
    pile = Verdict("unstable", "invalid", "requests in flight rose")
    over = [levels[0], msgspec.structs.replace(levels[1], verdicts=[pile])]
    piled = answered(msgspec.structs.replace(nothing, levels=over))
    assert re.match(r"Sustained rate +1 requests/s; at 2 they pile up$", piled[0])
    lower = [msgspec.structs.replace(levels[0], verdicts=[pile]), levels[1]]
    words = "at least 2 requests/s, the highest rate measured; they piled up at 1, which a longer window would settle"
    assert answered(msgspec.structs.replace(nothing, levels=lower))[0] == f"Sustained rate  {words}"
    none = msgspec.structs.replace(nothing, levels=over[1:])
    assert re.match(r"Sustained rate +below 2 requests/s: they pile up$", answered(none)[0])
    assert re.match(r"Throughput +not measurable: no valid level$", answered(none)[1])
    fewer = [levels[0], msgspec.structs.replace(levels[1], offered_requests_per_s=1.68)]
    said = answered(msgspec.structs.replace(nothing, levels=fewer))[0]
    assert said.endswith("at least 2 requests/s, the highest rate measured; in its window 1.68 a second came")
    heads = [column.head for column in columns(nothing)]
    assert heads[0] == "target\nreq/s"
    assert "lag ms\np99" in heads
    assert fmt.load(True, 1, 2.5) == "1, 2.5 req/s"
    limits = msgspec.structs.replace(nothing, knees=Knees(slo_rate=Value(2.0, (2.0, 3.0))))
    assert answered(limits)[0].endswith("2 requests per second meet the limits, 3 miss them")


def test_figures_in_a_file_are_whole_lines_without_blanks_at_their_ends() -> None:
    """A long value without a detail does not push the details of the others apart."""
    facts = [
        Fact("knee", "about 34 in flight " + "x" * 300),
        Fact("hinge", "34", "95 %"),
        Fact("curve", "capped", "0.75"),
    ]
    out = io.StringIO()
    terminal.show(Document(sections=[Section(facts=facts)]), Console(file=out, width=80))
    assert out.getvalue().splitlines() == [
        "knee   about 34 in flight " + "x" * 300,
        "hinge  34      95 %",
        "curve  capped  0.75",
    ]
