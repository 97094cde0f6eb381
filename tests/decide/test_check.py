"""Thresholds by hand: what an expression says, which figures there are, and which side of a bound an interval lies."""

from __future__ import annotations

import doctest
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from harness.analysis import slo
from harness.analysis.stats import wilson
from harness.base.errors import HarnessError
from harness.data.judgement import Gravity, Verdict
from harness.data.levels import Attainment, ClassSummary, LevelSummary
from harness.data.summary import Knees, Summary
from harness.data.views import Estimate, Spread, Value
from harness.decide.check import decision, expression, figures, sides
from harness.decide.check.decision import Decision, decide, judged
from harness.decide.check.expression import parse
from harness.decide.check.figures import Quantity
from harness.decide.check.sides import CheckedRun, over_runs, within_run
from harness.decide.compare.runs import of_folder
from tests.builders import summaries

LEVELS = (1, 2, 4, 8, 16, 32, 64, 128)


def measured(summary: Summary | None = None, place: str = "new", **manifest: Any) -> CheckedRun:
    summary = summary or summaries.full()
    about = msgspec.structs.replace(summaries.MANIFEST, **manifest)
    return CheckedRun(run=of_folder(place, about, summary)[0], summary=summary)


def of_levels(*levels: LevelSummary, **changes: Any) -> Summary:
    return msgspec.structs.replace(summaries.full(), levels=list(levels), verdicts=[], **changes)


def outcome(text: str, runs: Sequence[CheckedRun] = (), baseline: Sequence[CheckedRun] = ()) -> Decision:
    """What comes of one threshold."""
    return decide([parse(text)], runs or [measured()], baseline).decisions[0]


def test_the_examples_hold() -> None:
    modules = (expression, figures, decision, sides)
    results = [doctest.testmod(module) for module in modules]
    assert [found.failed for found in results] == [0, 0, 0, 0]
    assert all(found.attempted for found in results)


# ---- expressions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "figure", "at", "comparison", "bound", "unit", "factor"),
    [
        ("output_tokens_per_s@knee >= 1500", "output_tokens_per_s", "knee", ">=", 1500.0, "", None),
        ("ttft_p99@32 < 2s", "ttft_p99", 32.0, "<", 2.0, "s", None),
        ("ttft_p99@32<50 ms", "ttft_p99", 32.0, "<", 0.05, "s", None),
        ("plateau >= 0.95*baseline", "plateau", None, ">=", None, "", 0.95),
        ("plateau >= 95 % * baseline", "plateau", None, ">=", None, "", 0.95),
        ("plateau > baseline", "plateau", None, ">", None, "", 1.0),
        ("error_rate <= 0.5%", "error_rate", None, "<=", 0.005, "%", None),
        ("plateau >= 1.5k tok/s", "plateau", None, ">=", 1500.0, "/s", None),
        ("gpu.memory_used_bytes@8 < 70G", "gpu.memory_used_bytes", 8.0, "<", 70e9, "", None),
    ],
)
def test_an_expression_says_figure_level_comparison_and_bound(
    text: str, figure: str, at: Any, comparison: str, bound: float | None, unit: str, factor: float | None
) -> None:
    found = parse(text)
    known = (found.figure, found.at, found.comparison, found.unit, found.factor)
    assert known == (figure, at, comparison, unit, factor)
    assert found.bound == (None if bound is None else pytest.approx(bound))


def test_a_rate_is_a_level_of_an_open_loop() -> None:
    found = parse("ttft_p99@2.5/s < 2s")
    assert (found.at, found.open_loop) == (2.5, True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("plateau", "'plateau' is no threshold; write it like 'plateau >= 1500'"),
        ("", "'' is no threshold"),
        ("plateau = 3", "'plateau = 3' is no threshold"),
        (">= 3", "'' names no figure"),
        ("ttft_p99@ < 2s", "names no level behind its '@'"),
        ("ttft_p99@0 < 2s", "a level of 0 is not above 0"),
        ("ttft_p99@many < 2s", "'many' is not a number"),
        ("plateau >=", "'' is not a number"),
        ("plateau >= fast", "'fast' is not a number"),
        ("plateau >= -3", "'-3' is not a number"),
        ("plateau >= 1e3", "'1e3' is not a number"),
        ("plateau >= 0*baseline", "has no factor above 0"),
        ("plateau >= 2s*baseline", "has no factor above 0"),
        ("plateau >= 0.9baseline", "has no factor above 0"),
        ("plateau == 3", "is no threshold; write it like"),
        ("plateau >= __import__('os')", "is not a number"),
        ("plateau >= 1 and knee >= 2", "is not a number"),
        ("p" * 201 + " >= 1", "at most 200 characters"),
    ],
)
def test_what_is_no_threshold_is_one_line_with_the_way_out(text: str, words: str) -> None:
    with pytest.raises(HarnessError) as raised:
        parse(text, "thresholds.txt:3")
    assert words in str(raised.value)
    assert str(raised.value).startswith("thresholds.txt:3: ")


def test_a_file_has_one_a_line_and_its_mistakes_their_line() -> None:
    found = expression.lines("# speed\n\nplateau >= 1500 # tok/s\nknee >= 8\n", "t.txt")
    assert [(each.text, at) for each, at in found] == [("plateau >= 1500", "t.txt:3"), ("knee >= 8", "t.txt:4")]
    with pytest.raises(HarnessError, match=r"^t.txt:2: 'x' is no threshold"):
        expression.lines("knee >= 8\nx", "t.txt")


# ---- figures --------------------------------------------------------------------------------------------------------


def test_every_figure_of_a_level_has_a_name_and_a_unit() -> None:
    known = figures.of_kind(LevelSummary)
    assert {name: known[name].unit for name in (
        "output_tokens_per_s", "ttft_p99", "itl_mean", "e2e_max", "error_rate", "in_flight", "slo_met_fraction",
        "server.kv_usage", "server.queue_p99", "server.batch_size_p50", "gpu.power_w", "client.cpu_fraction",
        "sessions.latency_p90", "tokens_per_s_per_user", "from_send.ttft_p50",
    )} == {
        "output_tokens_per_s": "/s", "ttft_p99": "s", "itl_mean": "s", "e2e_max": "s", "error_rate": "%",
        "in_flight": "", "slo_met_fraction": "%", "server.kv_usage": "%", "server.queue_p99": "s",
        "server.batch_size_p50": "", "gpu.power_w": "", "client.cpu_fraction": "%", "sessions.latency_p90": "s",
        "tokens_per_s_per_user": "/s", "from_send.ttft_p50": "s",
    }  # fmt: skip


def test_every_number_of_a_level_has_a_name() -> None:
    """So that a field that a summary gains is a figure at once."""
    paths = {figure.path for figure in figures.of_kind(LevelSummary).values()}
    numbers = {
        name for name, value in msgspec.structs.asdict(summaries.level(8)).items()
        if type(value) in (int, float) or isinstance(value, Estimate | Spread)
    }  # fmt: skip
    known = {path[0] for path in paths} | set(figures._NO_FIGURES)
    assert numbers <= known


def test_a_figure_of_a_class_is_read_by_the_class() -> None:
    level = summaries.level(8)
    fields = {name: getattr(level, name) for name in ClassSummary.__struct_fields__ if hasattr(level, name)}
    chat = ClassSummary(**fields | {"abandoned": 0, "ttft_s": Spread(0.2, 0.2, None, None, None, 0.3, 20)})
    level = msgspec.structs.replace(level, classes={"chat": chat})
    assert figures.of_level(level, "classes.chat.ttft_p50").value == 0.2
    assert figures.of_level(level, "classes.other.ttft_p50") == Quantity(None, None, "it was not measured")
    assert figures.unit(parse("classes.chat.ttft_p50@8 < 1s"), "") == "s"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("platau >= 3", "unknown figure 'platau'; did you mean 'plateau'?"),
        ("ttft_99@8 < 2s", "did you mean 'ttft_p99'?"),
        ("ttft_p99 < 2s", "'ttft_p99' is a figure of a level; write ttft_p99@knee or ttft_p99@32"),
        ("plateau@8 >= 3", "'plateau' is a figure of the whole run; write it without '@'"),
        ("ttft_p99@8 < 2", "is a time; write it like 2s or 50ms"),
        ("plateau >= 3s", "is a rate; write it like 1500 or 1500tok/s"),
        ("error_rate < 1", "is a share; write it like 1% or 0.01"),
        ("knee >= 8s", "is a number; leave the unit out"),
        ("classes.chat.nothing@8 < 2s", "unknown figure"),
    ],
)
def test_a_wrong_name_or_unit_is_one_line_with_the_nearest_right_one(text: str, words: str) -> None:
    with pytest.raises(HarnessError) as raised:
        figures.must_fit(parse(text))
    assert words in str(raised.value)


def test_error_rates_are_counts_with_wilson_s_interval() -> None:
    # None of n: the upper end is z²/(n + z²), below 1 % from 381 requests on
    level = summaries.level(8, requests=190, errors=0)
    assert outcome("error_rate < 1%", [measured(of_levels(level, level))]).outcome == "unresolved"
    more = msgspec.structs.replace(level, requests=191)
    assert outcome("error_rate < 1%", [measured(of_levels(level, more))]).outcome == "met"
    failing = summaries.level(8, requests=200, errors=20, verdicts=[invalid("errors_above_1_percent")])
    found = outcome("error_rate@8 < 1%", [measured(of_levels(failing))])
    assert (found.outcome, found.value, found.ci95) == ("missed", 0.1, wilson(20, 200))


def invalid(code: str) -> Verdict:
    return Verdict(code, Gravity.INVALID, "why", "the way out")


def test_counts_that_cannot_be_are_refused() -> None:
    found = outcome("error_rate < 1%", [measured(of_levels(summaries.level(8, requests=5, errors=9)))])
    assert (found.outcome, found.why) == ("unresolved", "its counts of requests and errors do not agree")


# ---- intervals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("comparison", "ends", "expected"),
    [
        (">=", (100, 110), "met"), (">", (100, 110), "unresolved"), (">", (101, None), "met"),
        (">=", (90, 100), "unresolved"), (">", (90, 100), "missed"), (">=", (90, 99), "missed"),
        ("<=", (90, 100), "met"), ("<", (90, 100), "unresolved"), ("<", (None, 99), "met"),
        ("<=", (100, 110), "unresolved"), ("<", (100, 110), "missed"), ("<=", (101, 110), "missed"),
        (">=", (None, None), "unresolved"), ("<", (90, None), "unresolved"),
    ],
)  # fmt: skip
def test_an_interval_decides_where_all_of_it_lies_on_one_side(comparison: str, ends: Any, expected: str) -> None:
    assert judged(parse(f"plateau {comparison} 100"), ends, 100) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [  # full(): plateau 1839 to 1868, knee 15.4 to 17.1, single stream 139.6 to 142.1, half-point 7.1 to 7.3
        ("plateau >= 1839", "met"), ("plateau >= 1850", "unresolved"), ("plateau >= 1869", "missed"),
        ("knee >= 15", "met"), ("hinge < 15", "missed"), ("single_stream > 139", "met"), ("half_point < 8", "met"),
        ("plateau95 >= 14", "unresolved"), ("usd_per_million_output_tokens < 1", "unresolved"),
    ],
)  # fmt: skip
def test_figures_of_the_curve_are_held_by_their_intervals(text: str, expected: str) -> None:
    assert outcome(text).outcome == expected


def test_a_figure_without_an_interval_decides_nothing_and_names_the_way_out() -> None:
    found = outcome("ttft_mean@8 < 1h")
    assert (found.outcome, found.why) == ("unresolved", "no interval")
    assert "--repeat 3" in found.way_out
    found = outcome("requests_per_s@8 >= 0.1")
    assert (found.outcome, found.why, found.way_out) == (
        "unresolved", "no interval", "hold the level longer: --level-seconds"
    )  # fmt: skip


def test_where_throughput_still_rises_the_levels_show_what_is_reached_at_least() -> None:
    run = [measured(summaries.simulated())]  # up to 8 in flight, 1,020 tok/s there
    top = summaries.simulated().levels[-1].output_tokens_per_s
    low, end = (outcome("plateau >= 1000", run).ci95 or (None, None))[0], (top.ci95 or (0.0, 0.0))[0]
    assert low == pytest.approx((top.mean or 0.0) - 1.371 * ((top.mean or 0.0) - end), rel=1e-4)  # the highest of four
    assert [outcome(f"plateau >= {bound}", run).outcome for bound in (1000, 1100)] == ["met", "unresolved"]
    assert [outcome(f"knee >= {bound}", run).outcome for bound in (8, 9)] == ["met", "unresolved"]
    assert outcome("plateau <= 5000", run).outcome == "unresolved"


def test_the_most_that_levels_show_is_above_the_truth_in_no_more_than_one_run_in_forty() -> None:
    draw, low = np.random.default_rng(7), []
    for _ in range(2000):  # runs with 12 levels of the same throughput, each by 10 batches that err by 3 %
        batches = draw.normal(1000.0, 30.0, (12, 10))
        means, halves = batches.mean(axis=1), 2.2622 * batches.std(axis=1, ddof=1) / math.sqrt(10)
        low.append((figures.highest(list(zip(means, means - halves, strict=True))), (means - halves).max()))
    honest, highest = np.mean(np.array(low) > 1000.0, axis=0)
    assert 0.01 < honest <= 0.032  # 0.025 and two standard errors of 2000 runs
    assert highest > 0.2  # as often the highest low end of the levels themselves is above it


def test_a_provisional_plateau_can_be_met_by_its_levels_and_is_never_missed() -> None:
    run = [measured(summaries.provisional())]
    assert outcome("plateau >= 1500", run).outcome == "met"
    found = outcome("plateau >= 2000", run)
    assert (found.outcome, found.why) == ("unresolved", "provisional: 1 level past the knee, 2 are needed")
    assert found.way_out == "measure 16, 23, 32 in flight"


def test_a_provisional_fit_is_a_low_end_where_no_level_has_an_interval() -> None:
    made = summaries.provisional()  # its plateau is 1,702 tok/s or more
    bare = [msgspec.structs.replace(each, output_tokens_per_s=Estimate(1000.0)) for each in made.levels]
    run = [measured(msgspec.structs.replace(made, levels=bare))]
    assert [outcome(f"plateau >= {bound}", run).outcome for bound in (1700, 1710)] == ["met", "unresolved"]
    assert [outcome(f"plateau <= {bound}", run).outcome for bound in (1700, 2000)] == ["missed", "unresolved"]


def test_a_prompt_length_of_a_probe_shows_nothing_of_the_plateau() -> None:
    made = summaries.provisional()
    faster = Estimate(9000.0, (8990.0, 9010.0))
    probed = summaries.level(1, input_tokens_asked=64, output_tokens_per_s=faster)
    run = measured(msgspec.structs.replace(made, levels=[probed, *made.levels]))
    assert outcome("plateau >= 1500", [run]).ci95 == outcome("plateau >= 1500", [measured(made)]).ci95
    assert outcome("plateau >= 2000", [run]).outcome == "unresolved"


def test_an_invalid_level_decides_nothing_but_overload_still_misses() -> None:
    found = outcome("output_tokens_per_s@64 >= 1")
    assert (found.outcome, found.why) == ("unresolved", "the level is invalid: client_limited")
    late = Attainment("ttft_p99=2s", 0.99, 5, 200, 0.025, wilson(5, 200), "missed")
    level = summaries.level(8, slo=[late], verdicts=[invalid("unstable")])
    assert outcome("ttft_p99@8 < 2s", [measured(of_levels(level))]).outcome == "missed"
    good = Attainment("ttft_p99=2s", 0.99, 500, 500, 1.0, wilson(500, 500), "met")
    level = msgspec.structs.replace(level, slo=[good])
    assert outcome("ttft_p99@8 < 2s", [measured(of_levels(level))]).outcome == "unresolved"
    assert outcome("ttft_p99@8 > 2s", [measured(of_levels(level))]).outcome == "unresolved"


def test_an_invalid_run_decides_nothing() -> None:
    run = msgspec.structs.replace(summaries.full(), verdicts=[invalid("nothing_measured")])
    found = outcome("plateau >= 1", [measured(run)])
    assert (found.outcome, found.why) == ("unresolved", "the run is invalid: nothing_measured: why")


# ---- levels ---------------------------------------------------------------------------------------------------------


def test_the_knee_s_level_is_the_nearest_valid_one() -> None:
    assert outcome("output_tokens_per_s@knee >= 1").at == 16  # of a knee at 16.2
    made = summaries.full()
    void = [
        msgspec.structs.replace(level, verdicts=[invalid("drift")]) if level.concurrency == 16 else level
        for level in made.levels
    ]
    assert outcome("output_tokens_per_s@knee >= 1", [measured(of_levels(*void))]).at == 12
    found = outcome("output_tokens_per_s@knee >= 1", [measured(summaries.interrupted())])
    assert (found.outcome, found.why) == ("unresolved", "no knee: the run has no curve")


def test_with_limits_the_knee_is_that_of_the_slo() -> None:
    made = msgspec.structs.replace(summaries.full(), knees=Knees(slo=Value(8.0, (8.0, 12.0))))
    assert outcome("output_tokens_per_s@knee >= 1", [measured(made)]).at == 8
    assert [outcome(f"knee >= {N}", [measured(made)]).outcome for N in (8, 10, 13)] == ["met", "unresolved", "missed"]


@pytest.mark.parametrize(
    ("slo", "outcomes", "why"),
    [
        (Value(8.0, (None, 12.0)), ("unresolved", "unresolved", "missed"), "provisional: too few requests to decide"),
        (Value(8.0, (8.0, None)), ("met", "unresolved", "unresolved"), "no load misses the SLO"),
    ],
)
def test_a_knee_of_limits_that_is_open_at_one_end_decides_nothing_there(
    slo: Value, outcomes: tuple[str, ...], why: str
) -> None:
    side = [measured(msgspec.structs.replace(summaries.full(), knees=Knees(slo=slo)))] * 2
    found = [outcome(f"knee >= {N}", side[:1]) for N in (8, 10, 13)]
    assert [each.outcome for each in found] == list(outcomes)
    ratio = outcome("knee >= 0.9*baseline", side, side)
    assert ratio.outcome == "unresolved"
    assert why in ratio.why


def slowed(C: float, state: str, *codes: str, rate: bool = False) -> LevelSummary:
    """A level whose requests met a limit on p99, missed it, or were too few to decide."""
    met, n = {"met": (500, 500), "missed": (100, 200), "unresolved": (100, 100)}[state]
    stored = Attainment("ttft_p99=2s", 0.99, met, n, met / n, wilson(met, n), state)
    made = summaries.level(int(C), slo=[stored], verdicts=[invalid(code) for code in codes])
    return msgspec.structs.replace(made, concurrency=None, rate=C) if rate else made


def test_a_knee_is_below_the_lowest_load_that_misses_the_limits() -> None:
    run = measured(of_levels(slowed(2, "missed"), slowed(4, "missed"), knees=Knees()))
    found = outcome("knee >= 16", [run])
    assert (found.outcome, found.value, found.ci95) == ("missed", None, (None, 2.0))
    assert [outcome(text, [run]).outcome for text in ("knee >= 2", "knee > 2", "knee <= 8")] == [
        "unresolved", "missed", "met"
    ]  # fmt: skip
    assert outcome("knee >= 2", [run]).why == "the SLO is missed at the lowest load"
    assert outcome("knee >= 16", [run, run, run]).outcome == "missed"
    assert outcome("output_tokens_per_s@knee >= 1", [run]).why == "no knee: the SLO is missed at the lowest load"


def test_a_knee_is_below_a_miss_where_what_lies_below_that_is_open() -> None:
    few = measured(of_levels(slowed(2, "unresolved"), slowed(4, "missed"), knees=Knees()))
    assert [outcome(f"knee >= {N}", [few]).outcome for N in (4, 5)] == ["unresolved", "missed"]
    found = outcome("knee >= 4", [few])
    assert (found.why, found.way_out) == ("no load is shown to meet the SLO", "hold the levels longer")
    nothing = measured(of_levels(slowed(2, "unresolved"), knees=Knees()))
    assert outcome("knee >= 16", [nothing]).outcome == "unresolved"


def test_a_rate_that_misses_the_limits_from_the_lowest_on_is_missed_and_without_limits_nothing_is() -> None:
    rates = [slowed(2, "missed", rate=True), slowed(4, "unresolved", "unstable", rate=True)]
    run = measured(of_levels(*rates, curve=None, knees=Knees()))
    assert [outcome(text, [run]).outcome for text in ("slo_rate >= 4", "knee >= 4")] == ["missed", "missed"]
    assert outcome("slo_rate >= 2", [run]).why == "the SLO is missed at the lowest rate"
    bare = [msgspec.structs.replace(level, slo=[]) for level in rates]
    assert outcome("slo_rate >= 4", [measured(of_levels(*bare, curve=None, knees=Knees()))]).outcome == "unresolved"


def test_what_was_not_measured_is_not_to_be_measured_several_times() -> None:
    unknown = outcome("gpu.power_w@8 < 900", [measured(of_levels(summaries.level(8)))])
    assert (unknown.why, unknown.way_out) == ("it was not measured", "")
    rate = outcome("slo_rate >= 2", [measured(summaries.full())])
    assert (rate.why, rate.way_out) == ("no request rate was measured", "measure some: knee run --rate auto --slo …")


def test_a_level_that_was_not_measured_is_named_with_those_that_were() -> None:
    found = outcome("ttft_p99@7 < 2s")
    assert found.why == "new has no level 7"
    assert found.way_out == "its levels are 1, 2, 4, 8, 12, 16, 24, 32, 48, 64"
    rate = msgspec.structs.replace(summaries.level(8), concurrency=None, rate=5.0)
    open_loop = [measured(of_levels(rate, curve=None, knees=Knees()))]
    assert outcome("ttft_mean@5 < 2s", open_loop).way_out == "its levels are rates: write @5/s"
    assert outcome("output_tokens_per_s@5/s >= 1", open_loop).outcome == "met"


# ---- percentiles ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("met", "n", "text", "expected"),
    [  # all of n within it: 0.99ⁿ is at most 5 % from 299 on
        (298, 298, "ttft_p99@8 < 2s", "unresolved"),
        (299, 299, "ttft_p99@8 < 2s", "met"),
        (299, 299, "ttft_p99@8 > 2s", "missed"),
        (250, 299, "ttft_p99@8 <= 2s", "missed"),
        (250, 299, "ttft_p99@8 >= 2s", "met"),
    ],
)
def test_a_percentile_is_decided_by_the_share_within_it(met: int, n: int, text: str, expected: str) -> None:
    ends = wilson(met, n)
    assert ends is not None
    stored = Attainment("ttft_p99=2s", 0.99, met, n, met / n, ends, slo.decided(met, n, 0.99))
    found = outcome(text, [measured(of_levels(summaries.level(8, slo=[stored])))])
    assert (found.outcome, found.attainment) == (expected, stored)
    if expected == "unresolved":
        assert found.way_out == "299 requests would tell: hold the level longer"


def test_repeats_of_a_percentile_are_pooled() -> None:
    stored = Attainment("ttft_p99=2s", 0.99, 200, 200, 1.0, wilson(200, 200), "unresolved")
    run = measured(of_levels(summaries.level(8, slo=[stored])))
    assert outcome("ttft_p99@8 < 2s", [run]).outcome == "unresolved"
    assert outcome("ttft_p99@8 < 2s", [run, run]).outcome == "met"


def test_without_requests_and_without_the_limit_a_percentile_has_no_interval() -> None:
    found = outcome("ttft_p99@8 < 2s")
    assert (found.outcome, found.why, found.way_out) == (
        "unresolved",
        "no interval",
        "measure it with --slo ttft_p99=2s",
    )


@pytest.mark.parametrize("ends", [None, (0.0, 1.0), (0.5, 0.5), (1.0, 1.0), (0.9, 0.2)])
def test_a_stored_attainment_that_cannot_be_is_none(ends: tuple[float, float] | None) -> None:
    stored = Attainment("ttft_p99=2s", 0.99, 200, 200, 1.0, ends, "met")
    found = outcome("ttft_p99@8 < 2s", [measured(of_levels(summaries.level(8, slo=[stored])))] * 2)
    assert (found.outcome, found.why) == ("unresolved", "no interval")


# ---- repeats and baselines ------------------------------------------------------------------------------------------


def test_repeats_make_an_interval_by_student_s_t() -> None:
    runs = [measured(of_levels(summaries.level(8, ttft_s=_spread(x)))) for x in (0.099, 0.100, 0.101)]
    found = outcome("ttft_mean@8 < 103ms", runs)  # 100 ± 4.303 · 1/√3 ms
    assert found.ci95 == (pytest.approx(0.097516, abs=1e-6), pytest.approx(0.102484, abs=1e-6))
    assert found.outcome == "met"
    assert outcome("ttft_mean@8 < 102ms", runs).outcome == "unresolved"


def _spread(mean: float) -> Spread:
    return Spread(mean, None, None, None, None, None, 5)


def test_repeats_that_agree_by_luck_are_as_uncertain_as_each_of_them() -> None:
    # 10/1.96 each: ± 4.303 · 5.102/√3
    found = over_runs([Quantity(100.0, (90.0, 110.0))] * 3)
    assert found.ci95 == (pytest.approx(87.326, abs=1e-3), pytest.approx(112.674, abs=1e-3))
    # without any interval 0.5 %, which nothing is known better than
    assert over_runs([Quantity(100.0)] * 3).ci95 == (pytest.approx(98.758, abs=1e-3), pytest.approx(101.242, abs=1e-3))


def limited(met: float | None, missed: float | None, value: float | None = None) -> CheckedRun:
    """A run whose knee by limits lies between the load that met them and the one that missed them."""
    return measured(msgspec.structs.replace(summaries.full(), knees=Knees(slo=Value(value or met, (met, missed)))))


def test_runs_do_not_narrow_where_the_knee_of_limits_lies() -> None:
    same, apart = [limited(16.0, 32.0)] * 3, [limited(16.0, 32.0), limited(24.0, 32.0), limited(8.0, 16.0)]
    for runs in (same, same[:1]):
        found = outcome("knee >= 28", runs)
        assert (found.ci95, found.way_out) == ((16.0, 32.0), "measure loads between 16 and 32"), (
            "repeats narrow nothing"
        )
    bounds = ("knee >= 16", "knee >= 28", "knee <= 28", "knee <= 32", "knee >= 33")
    assert [outcome(text, same).outcome for text in bounds] == ["met", "unresolved", "unresolved", "met", "missed"]
    assert outcome("knee >= 28", apart).ci95 == (8.0, 32.0)


def test_an_end_that_is_open_in_one_run_is_open_in_all() -> None:
    assert over_runs([Quantity(15.0, (15.0, None)), Quantity(14.0, (13.0, 16.0))]).ci95 == (13.0, None)
    assert over_runs([Quantity(15.0, (None, 18.0)), Quantity(14.0, (13.0, 16.0))]).ci95 == (None, 18.0)
    assert over_runs([Quantity(15.0, (15.0, None)), Quantity(15.0, (None, 18.0))]).ci95 is None
    assert over_runs([Quantity(15.0, (15.0, None)), Quantity(15.0)]).ci95 is None
    leaning = [limited(None, 12.0, 8.0)] * 3
    assert [outcome(f"knee >= {N}", leaning).outcome for N in (8, 13)] == ["unresolved", "missed"]


def test_a_share_of_0_or_1_scatters_and_is_no_bracket() -> None:
    for share, ends in ((1.0, (0.96, 1.0)), (0.0, (0.0, 0.04))):
        low, high = over_runs([Quantity(share, ends)] * 3).ci95 or (None, None)
        assert low is not None
        assert high is not None
        assert high - low == pytest.approx(2 * 4.3027 * 0.04 / 2 / 1.96 / math.sqrt(3), rel=1e-3)


def test_the_knees_of_limits_make_a_ratio_as_wide_as_they_leave_it() -> None:
    side = [limited(16.0, 32.0)] * 6
    found = outcome("knee >= 0.7*baseline", side, side)  # six runs with ± 8 of 16 as a random error: 0.72 to 1.39
    assert found.ratio is not None
    assert (found.outcome, found.ratio.ci95) == ("unresolved", (0.5, 2.0))
    assert found.way_out == "measure loads between 16 and 32", "repeats narrow nothing"
    assert outcome("knee >= 0.5*baseline", side, side).outcome == "met"
    hinge = Value(16.2, (15.4, None))
    still_open = [measured(msgspec.structs.replace(summaries.full(), knees=Knees(hinge=hinge)))] * 3
    found = outcome("hinge >= 0.5*baseline", still_open, [measured()] * 3)
    assert (found.outcome, found.why) == ("unresolved", "its interval is open")
    assert found.way_out == "measure higher levels"


def measured_again(*levels: tuple[float, tuple[float, float] | None]) -> CheckedRun:
    """A run that measured the throughput at C = 8 so many times."""
    rates = [Estimate(x, ends) for x, ends in levels]
    return measured(of_levels(*(summaries.level(8, output_tokens_per_s=each) for each in rates)))


def test_a_level_that_was_measured_twice_is_known_better_than_once() -> None:
    run = measured_again((1000.0, (990.0, 1010.0)), (1004.0, (994.0, 1014.0)))
    found = outcome("output_tokens_per_s@8 >= 990", [run])  # 1002 ± 10/√2
    assert found.ci95 == (pytest.approx(994.93, abs=0.01), pytest.approx(1009.07, abs=0.01))
    assert (found.outcome, found.value) == ("met", pytest.approx(1002.0))


def test_a_level_whose_repeats_contradict_each_other_is_known_worse_than_by_either() -> None:
    run = measured_again((1000.0, (990.0, 1010.0)), (1100.0, (1090.0, 1110.0)))
    found = outcome("output_tokens_per_s@8 >= 1000", [run])
    assert found.outcome == "unresolved"
    assert found.ci95 is not None
    assert (found.ci95[0] or 0.0) < 900
    assert (found.ci95[1] or 0.0) > 1200


def test_a_repeat_without_an_interval_does_not_take_that_of_the_other() -> None:
    run = measured_again((1000.0, (990.0, 1010.0)), (1050.0, None))
    assert outcome("output_tokens_per_s@8 >= 980", [run]).ci95 == (pytest.approx(990.0), pytest.approx(1010.0))
    bare = measured_again((1000.0, None), (1050.0, None))
    found = outcome("output_tokens_per_s@8 >= 980", [bare])
    assert (found.outcome, found.value, found.why) == ("unresolved", 1025.0, "no interval")
    assert within_run([Quantity(0.0, (0.0, 0.0))] * 2).value == 0
    assert within_run([Quantity(1e200, (0.0, 1e308))] * 2).ci95 is None


def test_repeats_in_a_run_are_one_run_of_several() -> None:
    runs = [measured_again((1000 * x, (999 * x, 1001 * x)), (1000 * x, (999 * x, 1001 * x))) for x in (0.99, 1.0, 1.01)]
    found = outcome("output_tokens_per_s@8 >= 900", runs)  # 1000 ± 4.303 · 10/√3
    assert found.ci95 == (pytest.approx(975.16, abs=0.01), pytest.approx(1024.84, abs=0.01))


def repeats(factor: float, spread: float = 0.01, place: str = "new", **manifest: Any) -> list[CheckedRun]:
    """Three runs about a throughput of 1,000 tok/s at C = 8, `spread` apart in ln X."""
    out = []
    for apart in (0.0, spread, -spread):
        X = 1000 * factor * math.exp(apart)
        level = summaries.level(8, output_tokens_per_s=Estimate(X, (0.999 * X, 1.001 * X)))
        out.append(measured(of_levels(level), place, **manifest))
    return out


@pytest.mark.parametrize(("factor", "expected"), [(0.98, "missed"), (0.95, "unresolved"), (0.92, "met")])
def test_a_ratio_to_the_baseline_has_welch_s_interval(factor: float, expected: str) -> None:
    # ln ratio -0.05, se √(2 · 0.01²/3) = 0.008165, t(4) = 2.7764: 0.9299 to 0.9731
    found = outcome(f"output_tokens_per_s@8 >= {factor}*baseline", repeats(math.exp(-0.05)), repeats(1.0))
    assert found.ratio is not None
    assert found.ratio.value == pytest.approx(math.exp(-0.05))
    assert found.ratio.ci95 == (pytest.approx(0.92991, abs=1e-5), pytest.approx(0.97304, abs=1e-5))
    assert (found.baseline, found.outcome) == (pytest.approx(1000.0), expected)


def test_all_levels_make_one_ratio_in_which_their_errors_average() -> None:
    def side(factor: float, *noise: tuple[float, float]) -> list[CheckedRun]:
        """Runs of two levels, each with its own deviation in ln X, at C = 4 and 8; a third one at 16 is the last's."""
        out = []
        for i, deviations in enumerate(noise):
            levels = [
                summaries.level(C, output_tokens_per_s=Estimate(100 * C * factor * math.exp(each), None))
                for C, each in zip((4, 8), deviations, strict=True)
            ]
            out.append(measured(of_levels(*levels, *([summaries.level(16)] if i else []))))
        return out

    # means over the levels 0, 0.01 and -0.01 as above: the levels' own ± 0.02 is gone
    noise = ((0.02, -0.02), (0.03, -0.01), (0.01, -0.03))
    found = outcome("output_tokens_per_s@all >= 0.98*baseline", side(math.exp(-0.05), *noise), side(1.0, *noise))
    assert found.ratio is not None
    assert found.ratio.ci95 == (pytest.approx(0.92991, abs=1e-5), pytest.approx(0.97304, abs=1e-5))
    assert (found.outcome, found.at) == ("missed", None)
    with pytest.raises(HarnessError, match="only against a baseline all levels make one figure; name a level"):
        parse("output_tokens_per_s@all >= 3")


def test_one_run_of_a_side_decides_as_much_as_runs_usually_differ() -> None:
    """A level of one run differs by 6 %, of 3 degrees of freedom: t = 3.1824 · 0.06 · √2 = 0.27, ×1.31."""
    one = [outcome(f"output_tokens_per_s@8 >= {factor}*baseline", repeats(0.965)[:1], repeats(1.0)[:1])
           for factor in (0.7, 0.95, 1.3)]  # fmt: skip
    assert [each.outcome for each in one] == ["met", "unresolved", "missed"]
    assert one[0].ratio is not None
    assert one[0].ratio.ci95[0] == pytest.approx(one[0].ratio.value / math.exp(3.1824 * 0.06 * math.sqrt(2)), rel=1e-3)
    assert not one[0].ratio.known


def test_one_run_of_a_side_does_not_decide_a_latency() -> None:
    found = outcome("ttft_mean@8 <= 2*baseline", repeats(1.0)[:1], repeats(1.0))
    assert (found.outcome, found.why) == ("unresolved", "one run of a side cannot show how runs differ")
    assert "--repeat 3" in found.way_out


def test_a_plateau_of_one_run_is_met_and_one_that_is_open_above_by_its_levels() -> None:
    good, slow = measured(), measured(summaries.full())
    assert outcome("plateau >= 0.7*baseline", [slow], [good]).outcome == "met"
    made = summaries.full()
    assert made.curve is not None
    short = [
        msgspec.structs.replace(each, output_tokens_per_s=Estimate(361.0), output_tokens_per_s_se=20.0)
        for each in made.levels
        if not each.verdicts
    ]
    above = msgspec.structs.replace(made.curve, plateau_tokens_per_s=Value(365.0, (250.0, None)), dip=None)
    found = outcome("plateau >= 272", [measured(msgspec.structs.replace(made, levels=short, curve=above))])
    assert found.outcome == "met"
    assert found.ci95 is not None
    # 361 less 1.96 · 20, widened for the highest of 11 levels
    assert found.ci95[0] is not None
    assert 272 < found.ci95[0] < 361 - 1.96 * 20


def test_sides_that_are_not_alike_decide_nothing_but_another_engine_is_what_a_check_is_for() -> None:
    other = repeats(1.0, gpu="a100-sxm")
    found = decide([parse("output_tokens_per_s@8 >= 0.5*baseline"), parse("knee >= 1")], repeats(1.0), other)
    assert [each.outcome for each in found.decisions] == ["unresolved", "met"]
    assert (found.differ, found.decisions[0].why) == (["GPU"], "not alike: GPU")
    newer = repeats(1.0, server={"name": "vllm", "version": "0.26"})
    assert outcome("output_tokens_per_s@8 >= 0.5*baseline", newer, repeats(1.0)).outcome == "met"
    ramp = msgspec.structs.replace(summaries.MANIFEST.scenario.ramp, start="batch")
    batches = repeats(1.0, scenario=msgspec.structs.replace(summaries.MANIFEST.scenario, ramp=ramp))
    decided = outcome("output_tokens_per_s@8 >= 0.5*baseline", repeats(1.0), batches)
    assert (decided.outcome, decided.why) == ("unresolved", "not alike: start")


def test_runs_that_are_no_repeats_of_each_other_decide_nothing() -> None:
    mixed = [*repeats(1.0), *repeats(1.0, gpu="a100-sxm")]
    found = outcome("output_tokens_per_s@8 >= 1", mixed)
    assert (found.outcome, found.why) == ("unresolved", "the runs are not repeats of each other: GPU")


def test_a_provisional_plateau_meets_a_ratio_by_what_it_is_at_least() -> None:
    why = "provisional: 1 level past the knee, 2 are needed"
    good, unsure = [measured()] * 3, [measured(summaries.provisional())] * 3
    assert outcome("plateau >= 0.5*baseline", good, good).outcome == "met"
    assert outcome("plateau >= 0.5*baseline", unsure, good).outcome == "met"
    found = outcome("plateau >= 0.98*baseline", unsure, good)
    assert (found.outcome, found.ratio, found.why) == ("unresolved", None, why)
    assert found.way_out == "measure 16, 23, 32 in flight"
    assert outcome("plateau <= 0.5*baseline", unsure, good).outcome == "missed"
    assert outcome("plateau <= 1.5*baseline", unsure, good).outcome == "unresolved", "it may be higher"
    found = outcome("plateau >= 0.5*baseline", good, unsure)
    assert (found.outcome, found.value, found.why) == ("unresolved", None, f"the baseline: {why}")


def starved(place: str, since: int, **changes: Any) -> CheckedRun:
    """A run that loses 40 % of its throughput from a load on."""
    levels = [
        summaries.level(
            C, output_tokens_per_s=Estimate(summaries.throughput(C) * (0.6 if since <= C else 1.0)), **changes
        )
        for C in LEVELS
    ]
    return measured(of_levels(*levels), place)


def test_a_starved_run_of_three_is_named_and_left_out_of_means_and_ratios_but_not_of_counts() -> None:
    good = [starved(place, 999) for place in ("a", "b")]
    slow, baseline = starved("slow", 32, errors=50, requests=100), [starved(place, 999) for place in "xyz"]
    texts = ("output_tokens_per_s@all >= 0.95*baseline", "output_tokens_per_s@64 >= 1000", "error_rate@64 <= 1%")
    found = decide([*map(parse, texts)], [*good, slow], baseline)
    assert [(each.place, each.since, each.left_out) for each in found.odd] == [("slow", 32.0, True)]
    assert found.odd[0].times == pytest.approx(0.6)
    assert [each.outcome for each in found.decisions] == ["met", "met", "missed"]
    assert found.decisions[1].value == pytest.approx(summaries.throughput(64))


def test_a_wide_knee_leaves_the_plateau_decided() -> None:
    curve = summaries.provisional().curve
    assert curve is not None
    wide = msgspec.structs.replace(curve, only_wide=True, plateau_tokens_per_s=Value(1841.0, (1702.0, 1990.0)))
    run = measured(msgspec.structs.replace(summaries.provisional(), curve=wide))
    assert [outcome(f"plateau >= {bound}", [run]).outcome for bound in (1700, 1800, 2000)] == [
        "met",
        "unresolved",
        "missed",
    ]


def test_a_baseline_of_0_makes_no_ratio() -> None:
    level = summaries.level(8, requests=100, errors=0)
    side = [measured(of_levels(level))] * 2
    found = outcome("error_rate <= 2*baseline", side, side)
    assert (found.outcome, found.why) == ("unresolved", "the baseline: there is no ratio to 0")


def test_five_percent_is_found_and_the_same_again_is_never_missed() -> None:
    """Four runs of each side, 0.7 % apart, of eight levels that err by 1 % each, about as bench/check has them."""

    def side(factor: float, rng: np.random.Generator) -> list[CheckedRun]:
        out = []
        for _ in range(4):
            shared = math.exp(0.007 * rng.normal())
            X = [summaries.throughput(C) * factor * shared * (1 + 0.01 * rng.normal()) for C in LEVELS]
            rates = [Estimate(x, (0.98 * x, 1.02 * x)) for x in X]
            levels = [summaries.level(C, output_tokens_per_s=x) for C, x in zip(LEVELS, rates, strict=True)]
            out.append(measured(of_levels(*levels)))
        return out

    def missed(factor: float, seed: int) -> bool:
        rng = np.random.default_rng(seed)
        text = "output_tokens_per_s@all >= 0.98*baseline"
        return outcome(text, side(factor, rng), side(1.0, rng)).outcome == "missed"

    assert sum(missed(0.95, seed) for seed in range(20)) >= 18
    assert not any(missed(1.0, seed) for seed in range(20))


# ---- all together ---------------------------------------------------------------------------------------------------


def test_missed_goes_before_unresolved_and_that_before_met() -> None:
    def together(*texts: str) -> str:
        return decide([parse(text) for text in texts], [measured()]).outcome

    assert together("plateau >= 1") == "met"
    assert together("plateau >= 1", "plateau >= 1850") == "unresolved"
    assert together("plateau >= 1850", "plateau >= 9999", "plateau >= 1") == "missed"


def test_each_repeat_of_a_folder_is_a_run_with_a_curve_of_its_own() -> None:
    made = summaries.full()
    levels = [msgspec.structs.replace(level, repeat=i) for i in range(2) for level in made.levels]
    parts = [sides._repeat(summaries.MANIFEST, msgspec.structs.replace(made, levels=levels), i) for i in range(2)]
    assert [len(part.levels) for part in parts] == [10, 10]
    plateaus = [part.curve.plateau_tokens_per_s.value for part in parts if part.curve]
    assert plateaus == [pytest.approx(summaries.P, rel=0.02)] * 2
