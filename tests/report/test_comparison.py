"""A comparison as a document: its answers in words, its tables, its curves."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from harness.data.views import Value
from harness.decide.compare.comparison import AtLimit, AtThroughput, Comparison, OddRun, Spot, Stack
from harness.decide.compare.fairness import Row
from harness.decide.compare.pairs import Crossover, Lead, LevelRatio, Pair, Ratio
from harness.decide.compare.runs import Load
from harness.report import comparison, markdown, page
from tests.builders import summaries

CURVE = summaries.full().curve
RATIO = Ratio(1.05, (1.02, 1.081), repeated=True)


def stack(label: str, **of: Any) -> Stack:
    assert CURVE is not None
    load = Load(load=8.0, ttft_p50_s=0.05, itl_mean_s=0.01, tokens_per_s_per_user=100.0, tokens_per_s_per_gpu=800.0)
    spots = [Spot(1.0, 100.0, 0.01), Spot(8.0, 800.0, 0.01), Spot(32.0, 1853.0, 0.01)]
    return Stack(label=label, places=[label], runs=3, curve=CURVE, spots=spots, loads=[load], **of)


def pair(outcome: Any = "faster", **of: Any) -> Pair:
    level = LevelRatio(concurrency=8.0, a_tokens_per_s=800.0, b_tokens_per_s=840.0, b_over_a=RATIO)
    made = Pair(a="one", b="other", outcome=outcome, b_over_a=RATIO, detectable=1.03, levels=[level])
    return msgspec.structs.replace(made, **of)


def found(*pairs: Pair, **of: Any) -> Comparison:
    row = Row(name="GPU", values=["h100", None], state="unknown")
    made = Comparison(
        stacks=[stack("one"), stack("other")], fairness=[row], fatal=[], unknown=["GPU"], forced=False,
        pairs=list(pairs or [pair(faster="other")]),
    )  # fmt: skip
    return msgspec.structs.replace(made, **of)


def words(each: Comparison) -> list[str]:
    return [f"{fact.label}: {fact.text}" for fact in comparison.answer(each)]


def test_a_faster_stack_is_named_with_ratio_interval_and_basis() -> None:
    assert words(found())[0] == (
        "Answer: other is faster: other has 1.050 × the throughput of one (95 % interval 1.020–1.081); "
        "geometric mean over C = 8; runs: 3 of one and 3 of other"
    )


def test_no_difference_says_what_could_have_been_shown() -> None:
    text = words(found(pair("no_difference")))[0]
    assert "no difference shown" in text
    assert "these data could have shown a difference of 3.00 %" in text


def test_an_order_that_turns_over_has_its_load() -> None:
    turned = Crossover(at=Value(12.3, (10.1, 14.2)), below="one", above="other")
    text = words(found(pair("turns_over", turnover=turned)))[0]
    assert "one is faster at low load, other at high load" in text
    assert "they cross at 12.3 (95 % interval 10.1–14.2)" in text
    assert [guide.at for guide in comparison.curves(found(pair("turns_over", turnover=turned))).guides] == [12.3]


def test_each_side_of_a_crossing_has_its_ratio() -> None:
    leads = [Lead("one", 1.6, [1.0]), Lead("other", 2.1, [8.0, 16.0])]
    turned = Crossover(at=Value(2.2, (1.0, 4.0)), below="one", above="other", leads=leads)
    assert words(found(pair("turns_over", turnover=turned)))[0].startswith(
        "Answer: one has 1.60 × the throughput of other at 1 in flight, other 2.10 × that of one at 8 to 16; "
        "they cross at 2.20 (95 % interval 1–4); over all loads "
    )


def test_an_interval_that_says_nothing_is_not_printed() -> None:
    wide = Ratio(0.8, (0.3, 2.0), repeated=True)
    text = words(found(pair("too_uncertain", b_over_a=wide, enough_runs=12)))[0]
    assert text.startswith("Answer: too uncertain to say: other has 0.800 × the throughput of one; 12 runs of each")
    assert "0.3" not in text


def test_a_plateau_whose_interval_says_nothing_has_none() -> None:
    assert CURVE is not None
    wide = msgspec.structs.replace(CURVE, plateau_tokens_per_s=Value(4600.0, (252.0, 84_727.0)))
    made = found(stacks=[msgspec.structs.replace(stack("one"), curve=wide), stack("other")])
    cells = {cell for section in comparison.report(made).sections
             for column in section.columns for cell in column.cells}  # fmt: skip
    assert "4,600 tok/s (too uncertain to say)" in cells


def test_a_run_that_is_off_is_named() -> None:
    off = [OddRun("runs/3", 8.0, 0.6, left_out=True)]
    text = words(found(stacks=[stack("one", odd=off), stack("other")]))
    assert "Left out: runs/3 of one has 0.60 × the throughput of its other runs from C = 8 on" in text


def test_of_several_pairs_one_that_differs_is_the_headline() -> None:
    alike, apart = pair("no_difference", detectable=1.2), pair(alpha=0.05 / 3, faster="other")
    first, second, _ = words(found(alike, apart))
    assert first.startswith("Answer: ")
    assert "is faster" in first
    assert "(98.3 % interval " in first
    assert "no difference shown" in second
    assert comparison.sentence(found(alike, apart)) in first


def test_too_few_repeats_are_said_with_the_figures() -> None:
    alone = Ratio(1.05, (0.92, 1.2), repeated=False, known=False)
    text = words(found(pair("too_few_repeats", b_over_a=alone, run_spread=0.034, enough_runs=5)))[0]
    assert "not ranked: other has 1.050 ×" in text
    assert "no stack has repeats: runs are taken to differ by 3.40 %, as is usual" in text
    assert "5 runs of each, in turn, would show a difference of this size" in text


def test_a_refusal_names_the_rows_and_no_figure() -> None:
    rows = [Row(name="GPU", values=["h100", "a100"], state="fatal")]
    rows += [Row(name="engine", values=["a", "b"], state="allowed")]
    refused = found(pair("refused"), fatal=["GPU"], differ=["engine"], fairness=rows, unknown=[])
    assert words(refused) == ["Refused: not alike: GPU (h100 / a100); no ranking; --force ranks all the same"]
    assert comparison.report(refused).title == "one against other"


def test_what_differs_is_named_by_the_headline() -> None:
    rows = [
        Row(name="precision", values=["bf16", "fp8"], state="allowed"),
        Row(name="lost loads", values=["none", "16: 12% failed"], state="allowed", why="a load was lost"),
    ]
    made = found(differ=["precision"], fairness=rows, unknown=[])
    assert comparison.report(made).title == "one against other, by precision"
    assert words(made)[1:] == [
        "Differ: precision (bf16 / fp8)",
        "Lost loads: lost loads (none / 16: 12% failed); a load was lost",
    ]


def test_a_screen_counts_the_equal_facts_and_shows_the_others() -> None:
    rows = [Row(name=name, values=["a", "a"], state="equal") for name in ("model", "unit")]
    other = Row(name="GPU", values=["h100", None], state="unknown")

    def fairness(rows: list[Row], *, brief: bool) -> tuple[list[str], str]:
        document = comparison.report(found(fairness=rows), brief=brief)
        section = next(each for each in document.sections if each.title == "Fairness")
        return [str(cell) for cell in section.columns[0].cells] if section.columns else [], section.note

    assert fairness([*rows, other], brief=False) == (["model", "unit", "GPU"], "")
    assert fairness([*rows, other], brief=True) == (["GPU"], "2 more facts are equal; --out DIR writes all of them")
    assert fairness(rows, brief=True) == ([], "2 facts are equal; --out DIR writes all of them")


def test_a_forced_ranking_is_branded_first() -> None:
    rows = [Row(name="GPU", values=["h100", "a100"], state="fatal")]
    text = words(found(fatal=["GPU"], fairness=rows, forced=True))
    assert text[0].startswith("Forced: not alike: GPU (h100 / a100); ")
    assert "other is faster" in text[1]


def test_what_is_unknown_is_said() -> None:
    assert words(found())[-1] == "Unknown: GPU; they may differ, which weakens every answer"


def test_the_tables_have_both_stacks_side_by_side() -> None:
    document = comparison.report(found())
    tables = {
        section.title: {column.head: list(column.cells) for column in section.columns} for section in document.sections
    }
    assert tables["Throughput at equal load"]["other\ntok/s"] == ["840"]
    assert tables["Throughput at equal load"]["\nratio"] == ["1.050"]
    assert tables["Fairness"]["other"] == ["unknown"]
    assert tables["At equal load"]["TTFT ms\np50"] == ["50", "50"]
    assert "$ per\n1M out" not in tables["At equal load"], "nobody has a price"
    assert tables["Side by side"]["one"][0] == "3"


def test_stacks_are_compared_at_the_same_throughput_and_at_the_same_latency() -> None:
    rows = [AtThroughput(tokens_per_s=400.0, ttft_p50_s=[0.05, None], itl_mean_s=[0.01, 0.02])]
    limits = [AtLimit(figure="itl_mean_s", limit_s=0.02, tokens_per_s=[800.0, 500.0], open=[True, False])]
    document = comparison.report(found(at_throughput=rows, at_limits=limits))
    tables = {
        section.title: {column.head: list(column.cells) for column in section.columns} for section in document.sections
    }
    assert tables["At equal throughput"]["one\nTTFT p50 ms"] == ["50"]
    assert tables["At equal latency"] == {
        "limit": ["ITL mean 20 ms"], "one\ntok/s": ["800 or more"], "other\ntok/s": ["500"],
    }  # fmt: skip


def test_throughput_has_the_unit_of_the_runs() -> None:
    of_tokens, of_documents = stack("one", unit="input tokens"), stack("other", unit="documents")
    alike = found(stacks=[of_tokens, stack("other", unit="input tokens")])
    (section,) = (each for each in comparison.report(alike).sections if each.charts)
    assert section.alt == "Input tokens per second of each stack against requests in flight"
    assert section.charts[0].y.label == "input tok/s"
    forced = found(stacks=[of_tokens, of_documents], fatal=["unit"], forced=True)
    document = comparison.report(forced)
    heads = [column.head for section in document.sections for column in section.columns]
    assert {"one\ninput tok/s", "other\ndocuments/s"} <= set(heads)
    assert comparison.curves(forced).y.label == "throughput"
    cells = [cell for section in document.sections for column in section.columns for cell in column.cells]
    assert not [cell for cell in cells if " tok/s" in cell and "input tok/s" not in cell]
    assert any("documents/s" in cell for cell in cells)


def test_the_curves_lie_over_each_other() -> None:
    chart = comparison.curves(found())
    assert [series.name for series in chart.series if series.marker] == ["one", "other"]
    assert [series.tone for series in chart.series if series.line] == ["stack1", "stack2"]
    corner = max(chart.series[0].points, key=lambda point: point.y)
    assert corner.x == pytest.approx(16.2, rel=0.15)
    assert math.isfinite(corner.y)


def test_the_pareto_front_leaves_out_what_another_level_exceeds() -> None:
    figures = [(1.0, 100.0, 90.0), (8.0, 50.0, 400.0), (16.0, 40.0, 300.0), (32.0, 20.0, 500.0)]
    loads = [Load(load=C, tokens_per_s_per_user=user, tokens_per_s_per_gpu=gpu) for C, user, gpu in figures]
    one = msgspec.structs.replace(stack("one"), loads=loads)
    chart = comparison.frontier(found(stacks=[one, stack("other")]))
    assert chart.title.startswith("Pareto")
    front, dots = chart.series[0], chart.series[1]
    assert [point.y for point in front.points] == [90.0, 400.0, 500.0]
    assert len(dots.points) == 4


def test_names_from_outside_are_shown_as_text() -> None:
    evil = found(stacks=[stack("<b>\x1b[2J"), stack("other")], pairs=[pair(a="<b>\x1b[2J", faster="other")])
    document = comparison.report(evil)
    text = page.render(document) + markdown.render(document)
    assert "\x1b" not in text
    assert "<b>\\u001b" not in text


def test_a_simulated_stack_brands_the_report() -> None:
    document = comparison.report(found(stacks=[stack("one", simulated=True), stack("other")]))
    assert "simulated" in document.simulated
