"""The words of the answer and the level table."""

from __future__ import annotations

import doctest
import io
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from summaries import MANIFEST, SIMULATED_MANIFEST, SITUATIONS, full, hollow, interrupted, simulated

from harness.report import format as fmt
from harness.report import tables
from harness.summary import GpuView, Knees, Summary, Value, Verdict


def printed(summary: Summary, width: int, manifest: dict[str, Any] = MANIFEST) -> str:
    out = io.StringIO()
    tables.print_summary(summary, manifest, [("page", "out/report.html")], Console(file=out, width=width))
    return out.getvalue()


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(fmt).failed == doctest.testmod(tables).failed == 0


CLIENT = "Client: 1 worker, kernel stamps; arrival error p99 40 µs"


def test_a_whole_run_answers_with_knee_plateau_prediction_and_price() -> None:
    assert tables.answer(full()) == [
        "Knee: 16.2 requests in flight; 95 % interval 15.4–17.1; hinge of the capped hyperbola",
        "Plateau: 1,853 output tok/s; 95 % interval 1,839–1,868; half of it at 7.19 in flight, 95 % at 14.1 in flight",
        "Single stream: 141 output tok/s; 95 % interval 140–142",
        "Prediction: plateau 1,972 output tok/s; band 1,538–2,406; single stream 149; knee at 16; "
        "bound by max_num_seqs = 16",
        "Measured / predicted: 0.94 at the plateau; single stream 0.94; 0.75–1.15 counts as agreement",
        "Cost: $0.300 per million output tokens; at 16.2 in flight; $2.00 per GPU-hour",
        CLIENT,
    ]


def test_a_simulated_run_below_its_plateau_says_so_and_claims_no_agreement() -> None:
    assert tables.answer(simulated()) == [
        "Knee: none; the curve has one only where it reaches a plateau",
        "Plateau: not reached; no level lies above a hinge; highest measured 1,026 output tok/s at C = 8",
        "Single stream: 141 output tok/s; 95 % interval 138–144",
        "Prediction: plateau 1,972 output tok/s; band 1,538–2,406; single stream 149; knee at 16; "
        "bound by max_num_seqs = 16",
        "Measured / predicted: 0.94 at C = 8; single stream 0.94; "
        "agreement with the prediction is there by construction (simulated)",
        CLIENT,
    ]


def test_an_interrupted_run_answers_with_what_stands() -> None:
    assert tables.answer(interrupted()) == [
        "Interrupted: the run ended early; the 2 finished levels stand",
        "Knee: not identifiable; 2 levels measured, no curve fitted",
        "Plateau: not reached; highest measured 276 output tok/s at C = 2",
        "Prediction: none; it needs a GPU (--gpu) and a model config (--model-config)",
        CLIENT,
    ]


def test_a_run_that_measured_nothing_answers_without_numbers_of_its_own() -> None:
    assert tables.answer(hollow()) == [
        "Knee: not identifiable; 1 level measured, no curve fitted",
        "Plateau: not reached",
        "Prediction: plateau 1,972 output tok/s; band 1,538–2,406; single stream 149; no knee; no cap binds",
    ]


def test_an_unbounded_interval_is_said_in_words() -> None:
    open_ended = Value(16.2, (15.4, None))
    summary = msgspec.structs.replace(full(), knees=Knees(hinge=open_ended))
    assert tables.answer(summary)[0].startswith("Knee: 16.2 requests in flight; 95 % interval 15.4 or more; ")


def test_a_knee_that_comes_from_the_limits_is_named_so() -> None:
    limit = Value(12.4, (11.9, 12.8))
    summary = msgspec.structs.replace(full(), knee_concurrency=12.4, knees=Knees(hinge=Value(16.2), slo=limit))
    assert tables.answer(summary)[0] == (
        "Knee: 12.4 requests in flight; 95 % interval 11.9–12.8; the highest load that keeps the limits"
    )


def test_verdicts_come_gravest_first_and_alike_ones_together() -> None:
    found = tables.remarks(full())
    assert [(r.severity, r.code, r.where) for r in found] == [
        ("invalid", "client_limited", "C = 64"),
        ("doubt", "window_short", "C = 1, 2"),
        ("note", "server_version_unknown", ""),
    ]
    assert found[0].advice == "give it more workers: --workers"


def test_a_level_verdict_that_the_run_repeats_is_told_once() -> None:
    summary = full()
    again = summary.levels[-1].verdicts[0]
    assert tables.remarks(msgspec.structs.replace(summary, verdicts=[again])) == tables.remarks(
        msgspec.structs.replace(summary, verdicts=[])
    )


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("name", SITUATIONS)
def test_the_terminal_keeps_to_its_width_and_a_file_gets_no_colour_codes(name: str, width: int) -> None:
    text = printed(SITUATIONS[name](), width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "\x1b" not in text
    assert not re.search(r"\b(None|nan|inf)\b", text)
    assert text.rstrip().endswith("out/report.html")


def test_every_level_has_its_line_and_bad_ones_their_mark() -> None:
    lines = printed(full(), 100).splitlines()
    rows = [line.split() for line in lines if re.match(r" *\d+ +[\d.]+ +[\d,]+ +±", line)]
    assert [row[0] for row in rows] == ["1", "2", "4", "8", "12", "16", "24", "32", "48", "64"]
    assert [row[-1] for row in rows] == ["?", "?", *"0000000", "✗"]
    assert rows[-1] == "64 63.5 1,857 ±15 1,972 0.94 9.28 5,135 – 8.77 6,846 3 ✗".split()


def test_a_narrow_terminal_loses_the_predicted_column_but_not_the_ratio() -> None:
    wide, narrow = printed(full(), 100), printed(full(), 80)
    assert "predicted  meas./" in wide
    assert "meas./" in narrow
    assert "predicted meas./" not in narrow


def test_without_a_prediction_its_columns_are_absent() -> None:
    assert [c.head for c in tables.level_columns(interrupted()) if "pred" in "".join(c.head)] == []


def watched(gpus: int = 1, **figures: Any) -> Summary:
    """The whole run with its GPUs watched at C = 24 (1,864 tok/s, the highest) and C = 32."""
    summary = full()
    view = GpuView(gpus=gpus, power_w=652.3, **figures)
    levels = [msgspec.structs.replace(x, gpu=view) if x.concurrency in (24, 32) else x for x in summary.levels]
    return msgspec.structs.replace(summary, levels=levels)


def test_gpus_are_told_where_they_were_watched_and_nowhere_else() -> None:
    seen = watched(joules_per_output_token=0.35, sm_clock_hz=1.755e9, sm_clock_min_hz=1.41e9, memory_used_bytes=75.5e9)
    assert tables.answer(seen)[-2] == (
        "GPU: 652 W at C = 24; 0.350 J per output token; SM clock 1,755 MHz, at least 1,410; 75.5 GB in use"
    )
    assert tables.answer(watched(gpus=8))[-2] == "GPU: 652 W on 8 GPUs at C = 24"
    assert not any(line.startswith("GPU") for line in tables.answer(full()))


def test_joules_a_token_are_a_column_where_some_level_has_them() -> None:
    columns = {column.head: column.cells for column in tables.level_columns(watched(joules_per_output_token=0.35))}
    assert columns["J per", "token"] == ["–"] * 6 + ["0.350", "0.350", "–", "–"]
    for without in (full(), watched()):
        assert ("J per", "token") not in {column.head for column in tables.level_columns(without)}


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
    text = printed(msgspec.structs.replace(full(), verdicts=[evil]), 100, MANIFEST | {"model": "m\x1b]0;x\x07"})
    assert "\x1b" not in text
    assert "[bold]hello[/bold]" in text


def test_a_bare_manifest_is_enough() -> None:
    assert tables.subject(interrupted(), {}) == ("unnamed model", "")
    assert tables.subject(full(), {}) == ("llama-3.1-8b", "1 × h100-sxm · 1,000 tokens in, 200 out")


@given(st.floats(min_value=1e-4, max_value=1e12))
def test_a_number_is_never_off_by_more_than_its_third_figure(value: float) -> None:
    assert float(fmt.number(value).replace(",", "")) == pytest.approx(value, rel=5.1e-3)


def test_the_client_s_ceiling_and_how_near_it_came_are_told() -> None:
    summary = full()
    known = msgspec.structs.replace(
        summary.client, events_per_s_ceiling=120_000.0, ceiling_is_lower_bound=True, workers=2, transport="socket"
    )
    used = [
        msgspec.structs.replace(x, client=msgspec.structs.replace(x.client, ceiling_fraction=0.25))
        for x in summary.levels
    ]
    summary = msgspec.structs.replace(summary, client=known, levels=used)
    assert tables.answer(summary)[-1] == (
        "Client: 2 workers, kernel stamps; follows at least 120,000 tok/s; 25.0% of it used; arrival error p99 40 µs"
    )


def test_an_open_loop_is_told_by_its_rates_and_claims_no_knee() -> None:
    summary = full()
    levels = [msgspec.structs.replace(x, concurrency=None, rate=float(i + 1)) for i, x in enumerate(summary.levels[:2])]
    nothing = msgspec.structs.replace(summary, levels=levels, curve=None, knees=Knees(), knee_concurrency=None)
    answer = tables.answer(nothing)
    assert answer[0] == "Knee: none; requests were sent at given rates: no concurrency was held"
    assert "2 req/s" in answer[1]
    heads = [column.head for column in tables.level_columns(nothing)]
    assert heads[0] == ("asked", "req/s")
    assert ("lag ms", "p99") in heads
    assert tables.load(True, 1, 2.5) == "1, 2.5 req/s"
