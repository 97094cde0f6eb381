"""Comparisons by hand: pairs judged together, an order that turns over, stacks at the same throughput."""

from __future__ import annotations

import math

import msgspec
import pytest

from harness.base.errors import HarnessError
from harness.data.views import Value
from harness.decide.compare import comparison
from harness.decide.compare.comparison import compare
from harness.decide.compare.pairs import alternate
from harness.decide.compare.runs import Load
from tests.builders.compared import differing, repeats, run


def test_equal_stacks_show_no_difference_and_say_what_they_could_have_shown() -> None:
    (pair,) = compare([*repeats("a", 1.0, 1.01, 0.99), *repeats("b", 1.002, 0.992, 1.012)]).pairs
    assert (pair.outcome, pair.faster) == ("no_difference", None)
    assert pair.b_over_a is not None
    assert pair.b_over_a.value == pytest.approx(1.002, rel=1e-4)
    assert pair.b_over_a.ci95[0] < 1 < pair.b_over_a.ci95[1]
    # se = 1 % · √(2/3), 4 degrees of freedom: t = 2.776
    assert pair.detectable == pytest.approx(math.exp(2.776 * 0.01 * math.sqrt(2 / 3)), rel=1e-3)


def test_a_difference_beyond_its_interval_is_ranked() -> None:
    found = compare([*repeats("a", 1.0, 1.01, 0.99), *repeats("b", 1.10, 1.11, 1.09)])
    assert (found.pairs[0].outcome, found.pairs[0].faster) == ("faster", "b")
    level = found.pairs[0].levels[3]
    assert (level.concurrency, level.b_over_a.value) == (8.0, pytest.approx(1.1, rel=1e-3))


def test_one_run_each_is_ranked_where_it_is_far_from_what_runs_usually_differ_by() -> None:
    far = compare([run("a"), run("b", 2.0)])
    assert (far.pairs[0].outcome, far.pairs[0].faster) == ("faster", "b")
    near = compare([run("a"), run("b", 1.05)])
    assert (near.pairs[0].outcome, near.pairs[0].faster) == ("too_few_repeats", None)
    assert near.pairs[0].b_over_a is not None
    assert (near.pairs[0].b_over_a.repeated, near.pairs[0].b_over_a.known) == (False, False)


def test_an_interval_of_more_than_a_factor_of_four_is_no_answer() -> None:
    """Runs that differ by a factor of three: too uncertain, and the runs that would settle it are many."""
    found = compare([*repeats("a", 0.6, 1.8), *repeats("b", 0.5, 1.6)]).pairs[0]
    assert (found.outcome, found.enough_runs) == ("too_uncertain", None)
    assert found.b_over_a is not None
    assert found.b_over_a.uncertain


def test_two_runs_a_side_decide_a_factor_of_1_3() -> None:
    found = compare([*repeats("a", 0.97, 1.03), *repeats("b", 1.26, 1.34)]).pairs[0]
    assert found.outcome == "faster"


def test_a_starved_run_of_three_does_not_hide_ten_percent() -> None:
    bad = run("a")
    low = [msgspec.structs.replace(p, throughput=0.6 * p.throughput) if p.concurrency >= 8 else p for p in bad.points]
    runs = [*repeats("a", 1.0, 1.01), msgspec.structs.replace(bad, points=low, place="third"),
            *repeats("b", 1.1, 1.11, 1.09)]  # fmt: skip
    found = compare(runs)
    assert [(odd.place, odd.since, odd.left_out) for odd in found.stacks[0].odd] == [("third", 8.0, True)]
    assert (found.pairs[0].faster, found.stacks[0].runs, found.stacks[0].places) == ("b", 2, ["a", "a"])
    assert not found.stacks[1].odd


def test_an_order_that_only_the_levels_show_is_between_them() -> None:
    """Two levels are too few for a curve: a is 1.67 × b at 1, b twice a at 16."""
    few = (1, 16)
    a = [run("a", factor, levels=few, cap=400.0) for factor in (1.0, 1.01, 0.99)]
    b = [run("b", factor, levels=few, cap=800.0, single=60.0) for factor in (1.0, 1.01, 0.99)]
    turned = compare([*a, *b]).pairs[0].turnover
    assert turned is not None
    assert [(lead.stack, lead.loads) for lead in turned.leads] == [("a", [1.0]), ("b", [16.0])]
    assert [round(lead.times, 2) for lead in turned.leads] == [1.67, 2.0]
    assert turned.at == Value(4.0, (1.0, 16.0))


def test_a_fatal_row_refuses_and_force_brands() -> None:
    runs = [*repeats("a", 1.0, 1.01, 0.99), *repeats("b", 1.5, 1.51, 1.49, facts=differing(gpu="a100"))]
    refused = compare(runs)
    assert (refused.refused, refused.fatal, refused.pairs[0].faster) == (True, ["GPU"], None)
    assert refused.pairs[0].outcome == "refused"
    forced = compare(runs, forced=True)
    assert (forced.refused, forced.forced, forced.fatal, forced.pairs[0].faster) == (False, True, ["GPU"], "b")


def test_a_comparison_that_needs_no_force_is_not_branded() -> None:
    assert not compare([run("a"), run("b")], forced=True).forced


def test_the_load_where_the_order_turns_over() -> None:
    """100 C up to 800 against 80 C up to 1,600: they meet at C = 10."""
    few = {"cap": 800.0}
    found = compare([*repeats("a", 1.0, 1.003, 0.997, **few), *repeats("b", 1.0, 0.997, 1.003, single=80.0)])
    turned = found.pairs[0].turnover
    assert found.pairs[0].outcome == "turns_over"
    assert turned is not None
    assert (turned.below, turned.above) == ("a", "b")
    assert turned.at.value == pytest.approx(10.0, rel=0.05)
    assert turned.at.ci95 is not None
    low, high = turned.at.ci95
    assert low is not None
    assert high is not None
    assert 8.5 < low < 10 < high < 11.5


def test_stacks_without_a_common_load_are_compared_between_their_levels() -> None:
    """Both are straight lines in logarithms up to 16 in flight, so what lies between levels is exact."""
    found = compare([*repeats("a", 1.0, 1.01, levels=(1, 4, 16)), *repeats("b", 1.3, 1.31, levels=(2, 8, 12))])
    (pair,) = found.pairs
    assert (pair.interpolated, pair.outcome, pair.faster) == (True, "faster", "b")
    assert [level.concurrency for level in pair.levels] == [2.0, 4.0, 8.0, 12.0]
    assert all(level.b_over_a.value == pytest.approx(1.3, rel=0.01) for level in pair.levels)


def test_stacks_whose_levels_do_not_reach_over_a_common_load_are_not_ranked() -> None:
    found = compare([run("a", levels=(1, 2, 4)), run("b", levels=(8, 16, 32))])
    assert (found.pairs[0].outcome, found.pairs[0].b_over_a) == ("no_common_load", None)


@pytest.mark.slow
def test_three_pairs_are_judged_together() -> None:
    """p of a against b is about 0.04: shown alone, and 0.03 among three, whose runs are pooled, not shown."""
    runs = [*repeats("a", 1.0, 1.01, 0.99), *repeats("b", 1.024, 1.034, 1.014)]
    alone = compare(runs).pairs[0]
    assert alone.p == pytest.approx(0.044, abs=0.005)
    assert alone.outcome == "faster"
    third = repeats("c", 1.012, 1.022, 1.002)
    together = compare([*runs, *third]).pairs
    assert [(pair.outcome, round(pair.alpha, 4)) for pair in together if (pair.a, pair.b) == ("a", "b")] == [
        ("no_difference", 0.0167)
    ]


def test_runs_that_alternate_are_rounds() -> None:
    a, b = (
        [run(name, began=f"2026-01-01T0{hour}") for hour in hours]
        for name, hours in (("a", (1, 3, 5)), ("b", (2, 4, 6)))
    )
    assert alternate(a, b)
    assert alternate(b, a)
    assert not alternate(a[:2], b)
    assert not alternate(a, [run("b") for _ in range(3)])
    assert not alternate(a, [run("b", began=f"2026-01-02T0{hour}") for hour in (1, 2, 3)])


def test_pairs_are_those_in_time_whatever_the_order_of_the_arguments() -> None:
    drift = (1.0, 1.02, 1.04, 1.06)
    a = [run("a", each, began=f"2026-01-01T0{2 * i}") for i, each in enumerate(drift)]
    b = [run("b", 1.1 * each, began=f"2026-01-01T0{2 * i + 1}") for i, each in enumerate(drift)]
    (one,), (other,) = compare([*a, *b]).pairs, compare([*a, *reversed(b)]).pairs
    assert one.rounds
    assert other.b_over_a == one.b_over_a
    assert one.outcome == "faster"


def test_one_stack_is_no_comparison() -> None:
    with pytest.raises(HarnessError, match="one stack alone"):
        compare(repeats("a", 1.0, 1.0))


def test_other_work_is_not_ranked() -> None:
    assert compare([run("a"), run("b", facts=differing(workload="other"))]).fatal == ["workload"]


def test_a_plateau_over_the_prediction() -> None:
    found = compare([run("a", predicted_plateau=2000.0), run("b")])
    assert found.stacks[0].of_predicted == pytest.approx(0.8, rel=0.01)


def loads(*figures: tuple[float, float, float]) -> list[Load]:
    """Levels by load, throughput and ITL."""
    return [Load(load=C, tokens_per_s=X, itl_mean_s=itl, ttft_p50_s=None) for C, X, itl in figures]


def test_latency_at_equal_throughput_is_between_levels() -> None:
    """At half of 400: a is at its level of 200; b, from 100 to 400, is half way in ln X: √(10 · 40) ms."""
    a, b = loads((2, 200, 0.01), (8, 800, 0.04)), loads((1, 100, 0.01), (4, 400, 0.04))
    row = next(row for row in comparison.at_throughput([a, b]) if row.tokens_per_s == pytest.approx(200.0))
    assert row.itl_mean_s == [pytest.approx(0.01), pytest.approx(0.02)]
    assert row.ttft_p50_s == [None, None]


def test_throughput_at_an_equal_limit_is_between_levels_and_open_where_none_misses_it() -> None:
    a, b = loads((2, 200, 0.01), (8, 800, 0.04)), loads((1, 100, 0.015), (4, 400, 0.019))
    row = next(row for row in comparison.at_limits([a, b]) if row.limit_s == 0.02)
    assert (row.figure, row.tokens_per_s, row.open) == (
        "itl_mean_s", pytest.approx([400.0, 400.0]), [False, True],
    )  # fmt: skip
