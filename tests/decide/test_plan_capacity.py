"""What a plan reads of a result folder: loads pooled, invalid levels left out, replicas apart, and the SLO."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from harness.base.errors import HarnessError
from harness.data.judgement import Outcome
from harness.data.levels import Attainment, LevelSummary
from harness.data.manifest import Manifest, StackStart
from harness.data.summary import Knees, Summary
from harness.data.views import Estimate, Value
from harness.decide.plan.capacity import Capacity, choose, of_summary, read
from harness.spec.classes import ClassSpec
from tests.builders import summaries

ROOT = Path(__file__).parents[2]


def summary(*levels: LevelSummary, **changes: Any) -> Summary:
    return msgspec.structs.replace(summaries.full(), levels=list(levels), **changes)


def capacity(made: Summary, limits: dict[str, float] | None = None, **manifest: Any) -> Capacity:
    about: Manifest = msgspec.structs.replace(summaries.MANIFEST, **manifest)
    return of_summary("a", about, made, limits)


def test_invalid_levels_are_left_out_and_repeats_are_one_load() -> None:
    made = summaries.full()
    again = msgspec.structs.replace(made.levels[3], repeat=1, output_tokens_per_s=Estimate(1100.0))
    found = capacity(msgspec.structs.replace(made, levels=[*made.levels, again]))
    assert [each.load for each in found.loads] == [1, 2, 4, 8, 12, 16, 24, 32, 48]  # 64 is void


def test_throughput_is_the_curve_s_and_a_level_that_had_luck_is_not_chosen_for_it() -> None:
    made = summaries.full()
    lucky = msgspec.structs.replace(made.levels[8], output_tokens_per_s=Estimate(2100.0))
    found = capacity(msgspec.structs.replace(made, levels=[*made.levels[:8], lucky]))
    at_48 = found.loads[-1].work_per_s
    assert at_48.value == pytest.approx(summaries.P, rel=1e-3)  # the curve is flat from 16 on
    assert at_48.ci95 == pytest.approx((0.99 * summaries.P, 1.01 * summaries.P), rel=1e-3)
    chosen = [choose(found, by).at for by in ("knee", "cost")]
    assert [each and each.load for each in chosen] == [16, 24]  # 95 and 99 % of the most


def test_without_a_curve_the_interval_is_that_of_the_level_s_own_error_or_there_is_none() -> None:
    """One standard error is 0.4 % in the builder, taken as the 0.5 % that no throughput is known better than."""
    levels = [summaries.level(C) for C in (1, 2, 4, 8)]
    unsure = [*levels, summaries.level(16, output_tokens_per_s=Estimate(1830.0))]
    found = capacity(summary(*unsure, curve=None))
    assert found.loads[-1].work_per_s == Value(1830.0)
    X, ends = found.loads[2].work_per_s.value, found.loads[2].work_per_s.ci95
    assert pytest.approx(summaries.throughput(4 * 0.992)) == X
    assert ends is not None
    assert ends[0] is not None
    assert X / ends[0] - 1 == pytest.approx(1.96 * 0.005, rel=0.02)


def test_a_run_on_several_replicas_is_divided_by_their_number() -> None:
    levels = [summaries.level(C) for C in (2, 4, 8)]
    one, two = capacity(summary(*levels), gpus=4), capacity(summary(*levels), gpus=4, urls=["http://a", "http://b"])
    assert [each.load for each in two.loads] == [1, 2, 4]
    assert two.loads[0].work_per_s.value == pytest.approx((one.loads[0].work_per_s.value or 0.0) / 2)
    assert (two.measured_replicas, two.gpus) == (2, 2)


def test_rates_of_an_open_loop_are_loads_too() -> None:
    outcomes = {2: Outcome.MET, 4: Outcome.MET, 8: Outcome.MISSED}
    levels = [
        msgspec.structs.replace(attained(C, ("", "ttft_p99=2s", how)), concurrency=None, rate=float(C))
        for C, how in outcomes.items()
    ]
    found = capacity(summary(*levels, knees=Knees(slo_rate=Value(4.0, (4.0, 8.0)))), {"ttft_p99": 2.0})
    assert found.open_loop
    assert [each.load for each in found.loads] == [2, 4, 8]
    assert (found.slo_load, found.slo_missed) == (4, 8)


def test_the_slo_is_what_the_requests_decided() -> None:
    def judged(C: int, outcome: Outcome) -> LevelSummary:
        return summaries.level(C, slo=[Attainment("ttft_p99=2s", 0.99, 1, 1, 1.0, None, outcome)])

    levels = [judged(2, Outcome.MET), judged(4, Outcome.UNRESOLVED), judged(8, Outcome.MISSED)]
    found = capacity(summary(*levels, knees=Knees(slo=Value(2.0, (2.0, 8.0)))), {"ttft_p99": 2.0})
    assert [each.slo for each in found.loads] == ["met", "unresolved", "missed"]
    assert (found.slo, found.slo_load, found.slo_missed) == (["ttft_p99=2s"], 2, 8)
    none = capacity(summary(*levels[1:]), {"ttft_p99": 2.0})
    assert (none.slo_load, none.slo_missed) == (None, 8)


def of_classes(*classes: ClassSpec, **limits: float) -> dict[str, Any]:
    """The manifest of a run with these classes, and limits of its own."""
    return {"scenario": msgspec.structs.replace(summaries.MANIFEST.scenario, class_=list(classes), slo=limits)}


def attained(C: int, *found: tuple[str, str, Outcome]) -> LevelSummary:
    """A level whose classes, "" for all others, met a limit or not."""
    return summaries.level(
        C, slo=[Attainment(limit, 0.99, 1, 1, 1.0, None, how, of or UNSET) for of, limit, how in found]
    )


CHAT, LONG = ClassSpec(name="chat", slo={"ttft_p95": 1.0}), ClassSpec(name="long")
BY_CLASS = [
    attained(C, ("chat", "ttft_p95=1s", how))
    for C, how in ((2, Outcome.MET), (4, Outcome.MET), (8, Outcome.MISSED), (16, Outcome.MISSED))
]


def test_limits_that_only_a_class_has_are_an_slo() -> None:
    about = msgspec.structs.replace(summaries.MANIFEST, **of_classes(CHAT, LONG))
    found = of_summary("a", about, summary(*BY_CLASS, knees=Knees(slo=Value(4.0, (4.0, 8.0)))), None)
    assert found.slo == ["ttft_p95=1s of chat"]
    assert [each.slo for each in found.loads] == ["met", "met", "missed", "missed"]
    point = choose(found)
    assert (point.by, point.outcome, point.missed_at) == ("slo", "met", 8.0)
    assert point.at is not None
    assert point.at.load == 4


def test_limits_of_the_run_are_those_of_classes_without_any() -> None:
    levels = [
        attained(2, ("chat", "ttft_p95=1s", Outcome.MET), ("", "e2e_p95=9s", Outcome.MET)),
        attained(4, ("chat", "ttft_p95=1s", Outcome.MET), ("", "e2e_p95=9s", Outcome.MISSED)),
    ]
    found = capacity(summary(*levels, knees=Knees(slo=Value(2.0, (2.0, 4.0)))), **of_classes(CHAT, LONG, e2e_p95=9.0))
    assert found.slo == ["e2e_p95=9s", "ttft_p95=1s of chat"]
    assert [each.slo for each in found.loads] == ["met", "missed"]
    nobody = capacity(summary(*BY_CLASS), **of_classes(CHAT, e2e_p95=9.0))
    assert nobody.slo == ["ttft_p95=1s of chat"]


def test_other_limits_stand_in_place_of_those_of_classes() -> None:
    about = msgspec.structs.replace(summaries.MANIFEST, **of_classes(CHAT, LONG))
    levels = [attained(C, ("", "e2e_p95=100s", Outcome.MET)) for C in (2, 16)]
    found = of_summary("a", about, summary(*levels, knees=Knees(slo=Value(16.0, (16.0, None)))), {"e2e_p95": 100.0})
    assert (found.slo, found.slo_load) == (["e2e_p95=100s"], 16.0)
    assert of_summary("a", about, summary(*BY_CLASS), {}).slo == []


@pytest.mark.parametrize("stored", [("long", "ttft_p95=1s", Outcome.MET), ("chat", "ttft_p95=1s", "perhaps")])
def test_stored_levels_that_say_nothing_of_a_class_are_refused(stored: Any) -> None:
    about = msgspec.structs.replace(summaries.MANIFEST, **of_classes(CHAT, LONG))
    words = "the level at 4 does not say whether it meets ttft_p95=1s of chat; bring its requests back"
    with pytest.raises(HarnessError, match=words):
        of_summary("a", about, summary(BY_CLASS[0], attained(4, stored)), None)


def test_the_cold_start_is_up_to_the_first_answer() -> None:
    start = StackStart(name="vllm", command=[], start_to_ready_s=80.0, first_answer_s=5.0)
    assert capacity(summary(summaries.level(2)), stack=start).cold_start_s == 85
    assert capacity(summary(summaries.level(2))).cold_start_s is None


def test_what_the_run_counts_is_the_work_of_a_request() -> None:
    level = summaries.level(4, requests_per_s=Estimate(10.0), documents_per_s=Estimate(320.0), output_tokens_mean=None)
    tokens = capacity(summary(msgspec.structs.replace(level, unit="input tokens"), unit="input tokens"))
    assert (tokens.work_per_request, tokens.documents_per_request) == (1000, 32)
    documents = capacity(summary(msgspec.structs.replace(level, unit="documents"), unit="documents"))
    assert documents.work_per_request == 32


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (summary(), "no level of it is valid"),
        (summary(summaries.level(2), unit="pictures"), "it counts what this version does not know"),
        (summary(summaries.level(2, output_tokens_mean=None)), "the work of a request is not known"),
        (summary(summaries.level(2, output_tokens_mean=-5.0)), "the work of a request is not known"),
        (summary(summaries.level(2, output_tokens_per_s=Estimate(1e15))), "no level of it is valid"),
    ],
)
def test_what_cannot_be_planned_with_is_said(made: Summary, words: str) -> None:
    with pytest.raises(HarnessError, match=words):
        capacity(made)


@pytest.mark.slow
def test_a_committed_run_is_judged_by_its_requests() -> None:
    found = read(str(ROOT / "results" / "live-vllm-ramp-1"), {"e2e_p90": 3600.0})
    assert {each.slo for each in found.loads} <= {"met", "unresolved"}
