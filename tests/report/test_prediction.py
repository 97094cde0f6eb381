"""A prediction for people: the same rows on a terminal and in Markdown, and figures that hold what they name."""

from __future__ import annotations

import io
from collections.abc import Sequence

import msgspec
import pytest
from rich.console import Console

from harness.data.prediction import Band, Calibrated, PredictedLevel, SteppedLevel
from harness.data.summary import Summary
from harness.data.views import Spread
from harness.decide import choice
from harness.predict import catalog, question
from harness.predict.question import PredictionResult, Question, answer
from harness.report import charts, level_table, markdown, png, prediction, run_report, terminal
from harness.report.choice import sections
from harness.report.document import Column, Document
from harness.report.prediction import (
    calibrated_columns,
    level_columns,
    limit_columns,
    stepped_columns,
)
from tests.builders.screens import shown_facts
from tests.builders.summaries import MANIFEST, full

CHAT = Question(model="llama-3.1-8b", gpu="h100-sxm", input_tokens=1000, output_tokens=200, levels=[1, 64, 512])


def of(**figures: object) -> PredictionResult:
    return answer(msgspec.structs.replace(CHAT, **figures))


def cells(columns: Sequence[Column], head: str) -> list[str]:
    (found,) = (column.cells for column in columns if column.head == head)
    return [str(cell) for cell in found]


def printed(document: Document, width: int = 80) -> str:
    out = io.StringIO()
    terminal.show(document, Console(file=out, width=width))
    return out.getvalue()


def by_calibration(levels: list[PredictedLevel], error: float | None = 0.03) -> Calibrated:
    """A calibration at nine tenths of the data sheet."""

    def less(band: Band) -> Band:
        return Band(band.low, 0.9 * band.mid, band.high)

    own = [msgspec.structs.replace(each, output_tokens_per_s=less(each.output_tokens_per_s)) for each in levels]
    return Calibrated(
        source="results/x", fitted_on=[1, 16], parameters={"mbu": 0.72}, fitted=["mbu"], kept={}, error_unseen=error,
        single_stream_tokens_per_s=90, plateau_tokens_per_s=900, hinge_concurrency=16, levels=own,
    )  # fmt: skip


def run_with(calibrated: bool) -> Summary:
    summary = full()
    assert summary.prediction is not None
    own = by_calibration(summary.prediction.levels) if calibrated else None
    return msgspec.structs.replace(summary, prediction=msgspec.structs.replace(summary.prediction, calibrated=own))


def test_columns_without_any_cell_are_left_out() -> None:
    heads = [column.head for column in level_columns(of().prediction)]
    assert heads == ["C", "tok/s low", "tok/s mid", "tok/s high", "ITL ms", "TTFT ms", "req/s", "mostly"]
    heads = [column.head for column in level_columns(of(price=2.0, slo={"itl": 0.05}).prediction)]
    assert heads[-3:] == ["$/1M", "SLO", "mostly"]


def stepped(**figures: object) -> SteppedLevel:
    some = Spread(mean=0.02, p50=0.01, p90=None, p95=None, p99=0.05, max=0.06, n=700)
    usual = SteppedLevel(
        concurrency=8, window_s=10, requests=700, output_tokens_per_s=1234.6, requests_per_s=6.17, in_flight=8,
        running=7.5, preemptions=0, ttft_s=some, itl_s=some, e2e_s=some, over_closed_form=0.9876,
    )  # fmt: skip
    return msgspec.structs.replace(usual, **figures)


def test_percentiles_stand_behind_their_mean_where_they_are_known() -> None:
    columns = stepped_columns([stepped()])
    assert [(column.head, *column.cells) for column in columns] == [
        ("C", "8"), ("tok/s", "1,235"), ("ITL ms", "20"), ("ITL p50", "10"), ("ITL p99", "50"), ("TTFT ms", "20"),
        ("TTFT p50", "10"), ("TTFT p99", "50"), ("req/s", "6.17"), ("in flight", "8"), ("preempted", "0"),
        ("/ closed form", "0.988"),
    ]  # fmt: skip
    several = Spread(mean=0.02, p50=None, p90=None, p95=None, p99=None, max=None, n=0)  # speculation
    heads = [column.head for column in stepped_columns([stepped(itl_s=several)])]
    assert "ITL ms" in heads
    assert not {"ITL p50", "ITL p99"} & set(heads)


def test_a_rate_that_is_not_sustained_has_no_latencies_and_says_so() -> None:
    come = {"concurrency": None, "over_closed_form": None}
    none = {"ttft_s": None, "itl_s": None, "e2e_s": None}
    columns = stepped_columns([stepped(rate=5.0, **come), stepped(rate=50.0, unstable=True, **come, **none)])
    assert cells(columns, "target req/s") == ["5", "50"]
    assert cells(columns, "TTFT p99") == ["50", "–"]
    assert cells(columns, "") == ["", "overloaded"]
    assert {"C", "/ closed form"}.isdisjoint(column.head for column in columns)


def test_every_limit_has_a_row_and_one_binds() -> None:
    found = of(slo={"itl": 0.02})
    columns = limit_columns(found.limits, found.prediction)
    assert cells(columns, "limit") == [
        "weights",
        "KV memory",
        "max_num_seqs",
        "compute",
        "KV traffic",
        "prefill",
        "SLO",
    ]
    assert [cell.endswith("← binds") for cell in cells(columns, "")].count(True) == 1
    assert cells(columns, "from C")[3] == "never"


def test_a_limit_says_what_it_does_to_the_curve() -> None:
    found = of(gpu="a100-80-sxm", input_tokens=512, output_tokens=128, figures={"tp": 4}, slo={"itl_p50": 0.5})
    columns = limit_columns(found.limits, found.prediction)
    shown = dict(
        zip(cells(columns, "limit"), (cell.removesuffix(" ← binds") for cell in cells(columns, "")), strict=True)
    )
    assert shown["compute"] == "no batch exceeds it; from there it outweighs the memory traffic"
    assert shown["KV traffic"] == "no batch exceeds it; from there it outweighs the weights"
    assert shown["prefill"] == "no batch exceeds it; from there it outweighs decoding"
    assert shown["SLO"] == "met at any load"
    never = of(slo={"itl": 0.02})
    columns = limit_columns(never.limits, never.prediction)
    assert cells(columns, "")[3] == "no batch exceeds it", "compute never overtakes"
    assert cells(columns, "")[-1] == "the limits are met up to there ← binds"


@pytest.mark.parametrize(
    ("asked", "slower", "faster"),
    [({}, 1.15, 1.22), ({"model": "qwen3-30b-a3b"}, 1.22, 1.3), ({"gpu": "mi300x"}, 1.84, 1.22)],
)
def test_the_head_says_how_far_low_and_high_lie_from_the_middle(
    asked: dict[str, str], slower: float, faster: float
) -> None:
    found = of(**asked)
    line = next(line for line in prediction.report(found).sections[0].lines if "low and high" in line)
    assert line.endswith(f"low and high: steps {slower:.2f} times slower, {faster:.2f} times faster")
    band = found.prediction.single_stream_tokens_per_s
    assert (band.mid / band.low, band.high / band.mid) == pytest.approx((slower, faster))


def test_a_file_gets_whole_lines_whatever_the_width() -> None:
    text = printed(prediction.report(of()), width=40)
    assert "by the data sheet: MBU 0.80, MFU 0.45, 32 µs a layer and step; low and high: steps" in text
    head = next(line for line in text.splitlines() if "TTFT ms" in line)
    assert head.split() == "C tok/s low tok/s mid tok/s high ITL ms TTFT ms req/s mostly".split()


def test_unsourced_claims_are_listed_on_request_only() -> None:
    title = "Unsourced claims about such a setup"
    assert title in printed(prediction.report(of(), with_claims=True))
    assert title not in printed(prediction.report(of()))


def test_markdown_holds_the_same_cells_as_the_terminal() -> None:
    document = prediction.report(of())
    text = markdown.render(document)
    assert "## By users in flight" in text
    for section in document.sections:
        rows = list(zip(*(column.cells for column in section.columns), strict=True))
        assert text.count("| ---") >= bool(rows)
        for row in rows:
            assert str(row[0]).replace("_", r"\_") in text


def test_both_predictions_have_columns_of_their_own() -> None:
    sheet = of().prediction
    own = by_calibration(sheet.levels)
    columns = calibrated_columns(sheet, own)
    pairs = zip(cells(columns, "sheet tok/s"), cells(columns, "calibrated tok/s"), strict=True)
    for left, right in pairs:
        assert float(right.replace(",", "")) == pytest.approx(0.9 * float(left.replace(",", "")), rel=0.01)
    assert "error 3 % at the other levels" in prediction.calibrated_line(own)
    assert "there are no other levels to judge it by" in prediction.calibrated_line(by_calibration([], None))


def test_a_run_shows_the_calibrated_prediction_apart_from_the_data_sheets() -> None:
    plain, both = run_with(False), run_with(True)
    assert "Calibrated" not in [fact.label for fact in shown_facts(plain)]
    found = {fact.label: fact for fact in shown_facts(both)}
    assert found["Prediction"] in shown_facts(plain)
    assert found["Calibrated"].value == "plateau 900 output tok/s"
    assert "fitted at C = 1, 16 of results/x" in found["Calibrated"].detail
    assert "Measured / calibrated" in found
    heads = [column.head for column in level_table.columns(both, both.levels)]
    assert "calibr.\ntok/s" in heads
    assert "predicted\ntok/s" in heads
    assert "calibr.\ntok/s" not in [column.head for column in level_table.columns(plain, plain.levels)]
    assert max(map(len, printed(run_report.screen(both, MANIFEST)).splitlines())) <= 80


@pytest.mark.slow
def test_the_curve_draws_a_calibrated_prediction_as_a_line_of_its_own() -> None:
    plain, both = (charts.curve(run_with(calibrated), MANIFEST) for calibrated in (False, True))
    names = [{series.name for series in each.series} for each in (plain, both)]
    assert names[1] - names[0] == {"predicted, calibrated"}
    assert png.draw(plain) != png.draw(both)


def test_misfits_stand_apart_with_their_reason_and_doubts_are_told_once() -> None:
    made, _, workload = question.setup(CHAT)
    keys = ("h100-sxm", "mi300x", "gaudi3")
    cards = [catalog.gpu(key) for key in keys if key in {card.key for card in catalog.gpus()}]
    found = sections(choice.choose(made, cards, workload, slo={"itl": 1e-4}), "cost")
    assert [section.title for section in found] == ["Cards that do not"]
    assert set(cells(found[0].columns, "why not")) == {"misses the SLO even with one user"}
    good = sections(choice.choose(made, cards, workload), "cost")
    assert good[0].title == "Cards that serve it, the cheapest tokens first, by the slow end"
    notes = good[-1].lines
    assert any("fitted on NVIDIA cards" in note for note in notes)
    assert len(notes) == len(set(notes))


def test_the_table_of_cards_fits_on_80_columns_with_their_whole_names() -> None:
    made, _, workload = question.setup(CHAT)
    cards = [catalog.gpu(key) for key in ("h100-sxm", "rtx-pro-6000-srv")]
    found = sections(choice.choose(made, cards, workload, slo={"itl": 0.05}), "cost", whole=False)
    console = Console(file=io.StringIO(), width=80, force_terminal=True, no_color=True)
    terminal.show(Document(sections=found[:1]), console)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) == 2 + len(cells(found[0].columns, "GPU"))
    assert any("8 × rtx-pro-6000-srv" in line and "…" not in line for line in lines)
