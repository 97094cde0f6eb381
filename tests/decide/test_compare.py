"""Comparisons by hand: what is alike, ratios and their intervals, pairs judged together, an order that turns over."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from harness.analysis.points import Point
from harness.analysis.stats import wilson
from harness.base.errors import HarnessError
from harness.data.machines import Card
from harness.data.manifest import Manifest, Roof, RoofWindow, StackStart
from harness.data.summary import Summary
from harness.data.views import Estimate
from harness.decide.compare import fairness, ratio
from harness.decide.compare.comparison import alternate, by_workload, compare
from harness.decide.compare.ratio import Difference, Sample
from harness.decide.compare.runs import Answers, Facts, Load, Run, ceiling, of_files, of_folder
from harness.results import readers
from harness.results.exporters import csv as table
from harness.results.exporters import llm_d, vllm
from harness.results.readers.level import ForeignLevel, ForeignResult, Latency
from harness.spec.scenario import Hardware
from tests.builders import summaries

LEVELS = (1, 2, 4, 8, 16, 32, 64)
FACTS = Facts(
    measured_by="knee, format 2", workload="w", unit="output tokens", model="m", parameters=8e9, gpu="h100", gpus="1",
    power_limit="700 W", precision="bf16", kv_dtype="auto", tp="1", max_num_seqs="256", engine="vllm",
    start="staggered", transport="socket",
)  # fmt: skip


def throughput(C: float, cap: float = 1600.0, single: float = 100.0) -> float:
    return min(C * single, cap)


def run(
    label: str,
    factor: float = 1.0,
    *,
    cap: float = 1600.0,
    single: float = 100.0,
    levels: Sequence[int] = LEVELS,
    **of: Any,
) -> Run:
    """A run of a stack whose throughput is straight up to a cap, known to 0.5 %."""
    X = [factor * throughput(C, cap, single) for C in levels]
    points = [Point(float(C), float(C), x, 0.005 * x) for C, x in zip(levels, X, strict=True)]
    made = Run(label=label, place=label, facts=FACTS, input_tokens=512.0, output_tokens=128.0, points=points, loads=[])
    return msgspec.structs.replace(made, **of)


def repeats(label: str, *factors: float, **of: Any) -> list[Run]:
    return [run(label, factor, **of) for factor in factors]


def differing(**of: Any) -> Facts:
    return msgspec.structs.replace(FACTS, **of)


# ---- fairness -------------------------------------------------------------------------------------------------------


def state(name: str, *facts: Facts, vary: Sequence[str] = ()) -> str:
    stacks = [[run("x", facts=each)] for each in facts]
    return next(row.state for row in fairness.rows(stacks, vary) if row.name == name)


@pytest.mark.parametrize(
    ("row", "field", "other"),
    [
        ("workload", "workload", "v"),
        ("unit", "unit", "input tokens"),
        ("GPU", "gpu", "a100"),
        ("GPU count", "gpus", "2"),
        ("power limit", "power_limit", "350 W"),
        ("measured by", "measured_by", "guidellm"),
        ("transport", "transport", "httpx"),
        ("model", "parameters", 7e9),
        ("engine", "engine", "llama"),
        ("precision", "precision", "fp8"),
        ("kv-dtype", "kv_dtype", "fp8"),
        ("tp", "tp", "2"),
        ("max-num-seqs", "max_num_seqs", "64"),
        ("start", "start", "batch"),
    ],
)
def test_a_fact_that_differs_is_fatal_one_that_is_missing_unknown(row: str, field: str, other: object) -> None:
    assert state(row, FACTS, FACTS) == "equal"
    assert state(row, FACTS, differing(**{field: other})) == "fatal"
    assert state(row, FACTS, differing(**{field: None, "model": "m"})) == "unknown"
    allowed = state(row, FACTS, differing(**{field: other}), vary=list(fairness.VARIED))
    assert allowed == ("allowed" if row in fairness.VARIED else "fatal")


def test_models_are_told_by_parameters_and_without_them_by_name() -> None:
    nameless = differing(parameters=None)
    assert state("model", nameless, nameless) == "unknown"
    assert state("model", nameless, differing(parameters=None, model="other")) == "fatal"
    assert state("model", FACTS, differing(model="the same under another name")) == "equal"
    repeats_differ = [run("a"), run("a")]
    named = [msgspec.structs.replace(each, facts=msgspec.structs.replace(nameless, model=name))
             for each, name in zip(repeats_differ, ("llama", "qwen"), strict=True)]  # fmt: skip
    row = fairness._model([named, named])
    assert (row.state, row.why) == ("fatal", "the repeats of one stack differ")


def test_a_load_that_one_stack_held_and_another_lost_to_errors_refuses_the_ranking() -> None:
    held = [Load(load=C) for C in (1.0, 8.0, 16.0)]
    good, bad = run("a", loads=held), run("b", loads=held[:2], lost={16.0: "12% failed (http_429)"})
    row = fairness.lost_loads([[good], [bad]])
    assert row is not None
    assert (row.state, row.values) == ("fatal", ["none", "16: 12% failed (http_429)"])
    assert "lost loads" in compare([good, bad]).fatal
    both = fairness.lost_loads([[msgspec.structs.replace(bad, label="a")], [bad]])
    assert both is not None
    assert both.state == "equal"
    assert fairness.lost_loads([[good], [good]]) is None


@pytest.mark.parametrize(
    ("tokens", "expected"), [(128.0, "equal"), (130.5, "equal"), (130.6, "fatal"), (None, "unknown")]
)
def test_realised_lengths_may_be_two_percent_apart(tokens: float | None, expected: str) -> None:
    rows = fairness.rows([[run("a")], [run("b", output_tokens=tokens)]])
    assert next(row.state for row in rows if row.name == "realised lengths") == expected


def test_repeats_of_one_stack_that_differ_are_fatal_whatever_may_vary() -> None:
    stacks = [[run("a"), run("a", facts=differing(engine="llama"))], [run("b")]]
    row = next(row for row in fairness.rows(stacks, ["engine"]) if row.name == "engine")
    assert (row.state, row.values) == ("fatal", ["vllm / llama", "vllm"])


def answered(changed_at: float | None = None, right: int = 80, questions: str = "q") -> Answers:
    """What canaries say of a run: so many of 100 questions are answered right."""
    accuracy = Estimate(right / 100, wilson(right, 100))
    return Answers(changed_at=changed_at, agreement=1.0, accuracy=accuracy, questions=questions)


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        (answered(), answered(), "equal"),
        (answered(), answered(right=70), "equal"),  # 0.80 - 0.70 < √(0.089² + 0.081²)
        (answered(), answered(right=60), "fatal"),
        (answered(), answered(changed_at=32.0), "fatal"),
        (answered(), answered(questions="other"), "fatal"),
        (answered(), None, "unknown"),
    ],
)
def test_answers_are_a_row_on_request(one: Answers, other: Answers | None, found: str) -> None:
    stacks = [[run("a", answers=one)], [run("b", answers=other)]]
    assert "answers" not in [row.name for row in fairness.rows(stacks)]
    assert [row.state for row in fairness.rows(stacks, answers=True) if row.name == "answers"] == [found]


def test_a_stack_that_answers_worse_is_not_ranked() -> None:
    runs = [*repeats("a", 1.0, 1.001, 0.999, answers=answered()), *repeats("b", 2.0, 2.002, 1.998)]
    runs[3:] = [msgspec.structs.replace(each, answers=answered(changed_at=32.0)) for each in runs[3:]]
    assert compare(runs).winner == "b"
    refused = compare(runs, answers=True)
    assert (refused.fatal, refused.winner) == (["answers"], None)
    row = next(row for row in refused.fairness if row.name == "answers")
    assert row.values == ["80.0% right, unchanged", "80.0% right, changed at 32"]


def test_tokens_are_not_ranked_against_documents() -> None:
    """Embeddings of one work: one server says how many tokens it read, the other does not."""
    tokens = repeats("a", 32.0, 32.1, 31.9, facts=differing(unit="input tokens"), output_tokens=None)
    documents = repeats("b", 1.0, 1.001, 0.999, facts=differing(unit="documents"), output_tokens=None)
    found = compare([*tokens, *documents])
    assert (found.fatal, found.winner, found.pairs[0].outcome) == (["unit"], None, "refused")
    assert [stack.counts.per_s for stack in found.stacks] == ["input tok/s", "documents/s"]


def test_what_a_run_counts_is_a_fact_of_it() -> None:
    made = msgspec.structs.replace(summaries.full(), unit="documents")
    assert of_folder("a", "a", summaries.MANIFEST, made)[0].facts.unit == "documents"
    level = ForeignLevel(concurrency=8, output_tokens_per_s=800.0)
    assert of_files("a", [("f", ForeignResult(source="guidellm", levels=[level]))])[0].facts.unit == "output tokens"


def test_what_may_vary_is_named_as_it_is_spelled_anywhere() -> None:
    assert fairness.varied("engine, KV_dtype") == {"engine", "kv-dtype"}
    assert fairness.varied(None) == frozenset()
    with pytest.raises(HarnessError, match="did you mean 'precision'"):
        fairness.varied("precison")


# ---- ratios ---------------------------------------------------------------------------------------------------------


def test_two_samples_are_compared_by_welch() -> None:
    """Means 0 and 0.1; variances 1e-4 and 4e-4 of 3 runs: se² = 5e-4/3, freedom = 25/(1 + 16)·2."""
    found = ratio.difference(Sample([0.0, 0.01, -0.01], [0.0] * 3), Sample([0.1, 0.12, 0.08], [0.0] * 3))
    assert found.value == pytest.approx(0.1)
    assert found.se == pytest.approx(math.sqrt(5e-4 / 3))
    assert found.freedom == pytest.approx(50 / 17)
    assert found.repeated


def test_rounds_take_a_common_drift_out_from_four_on() -> None:
    drift = [0.0, 0.1, 0.2, 0.3]
    a, b = (
        Sample(drift, [0.001] * 4),
        Sample([x + 0.05 + e for x, e in zip(drift, (0.01, -0.01, 0.01, -0.01), strict=True)], [0.001] * 4),
    )
    paired = ratio.difference(a, b, rounds=True)
    assert (paired.value, paired.freedom) == (pytest.approx(0.05), 3.0)
    assert paired.se == pytest.approx(math.sqrt(4e-4 / 3 / 4))
    assert ratio.difference(a, b).se > 10 * paired.se
    three = [Sample(each.values[:3], each.errors[:3]) for each in (a, b)]
    assert ratio.difference(*three, rounds=True).freedom > 3.0, "below four rounds they are two samples"


def test_repeats_that_agree_by_luck_are_no_better_than_their_windows() -> None:
    lucky = Sample([0.0, 0.0, 0.0], [0.02] * 3)
    assert ratio.difference(lucky, Sample([0.01] * 3, [0.02] * 3)).se == pytest.approx(0.02 * math.sqrt(2 / 3))


def test_one_run_has_its_windows_errors_alone() -> None:
    found = ratio.difference(Sample([0.0], [0.03]), Sample([0.1], [0.04]))
    assert (found.se, found.freedom, found.repeated) == (pytest.approx(0.05), math.inf, False)
    assert found.ratio() == pytest.approx((math.exp(0.1), math.exp(0.1 - 0.097998), math.exp(0.1 + 0.097998)), rel=1e-4)


def test_a_run_s_mean_over_loads_keeps_what_its_levels_share() -> None:
    """Window errors of 1 % over 4 loads average to 0.5 %; FLOOR, 0.5 %, does not."""
    rates = {float(C): (math.log(C), 0.01) for C in (1, 2, 4, 8)}
    found = ratio.over_loads([rates], [1.0, 2.0, 4.0, 8.0])
    assert found.values == pytest.approx([1.5 * math.log(2)])
    assert found.errors == pytest.approx([0.005 * math.sqrt(2)])


def test_holm_stops_at_the_first_that_is_not_rejected() -> None:
    assert [shown for _, shown in ratio.holm([0.04, 0.03, 0.001])] == [False, False, True]
    assert [shown for _, shown in ratio.holm([0.04, 0.01])] == [True, True]
    assert ratio.holm([]) == []


def test_p_is_student_s() -> None:
    assert Difference(3.182446, 1.0, 3.0, repeated=True).p == pytest.approx(0.05, abs=1e-6)
    assert Difference(0.0, 1.0, 3.0, repeated=True).p == pytest.approx(1.0)


# ---- comparisons ----------------------------------------------------------------------------------------------------


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
    assert (found.pairs[0].outcome, found.pairs[0].faster, found.winner) == ("faster", "b", "b")
    level = found.pairs[0].levels[3]
    assert (level.concurrency, level.b_over_a.value) == (8.0, pytest.approx(1.1, rel=1e-3))


def test_one_run_each_is_not_ranked_however_far_apart() -> None:
    found = compare([run("a"), run("b", 2.0)])
    assert (found.pairs[0].outcome, found.winner) == ("too_few_repeats", None)
    assert found.pairs[0].b_over_a is not None
    assert not found.pairs[0].b_over_a.repeated


def test_a_fatal_row_refuses_and_force_brands() -> None:
    runs = [*repeats("a", 1.0, 1.01, 0.99), *repeats("b", 1.5, 1.51, 1.49, facts=differing(gpu="a100"))]
    refused = compare(runs)
    assert (refused.refused, refused.fatal, refused.winner) == (True, ["GPU"], None)
    assert refused.pairs[0].outcome == "refused"
    forced = compare(runs, forced=True)
    assert (forced.refused, forced.forced, forced.fatal, forced.winner) == (False, True, ["GPU"], "b")


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


def test_stacks_without_a_common_load_are_not_ranked() -> None:
    found = compare([run("a", levels=(1, 2, 4)), run("b", levels=(3, 6, 12))])
    assert (found.pairs[0].outcome, found.pairs[0].b_over_a) == ("no_common_load", None)


@pytest.mark.slow
def test_three_pairs_are_judged_together() -> None:
    """p of a against b is about 0.03: shown alone, not among three."""
    runs = [*repeats("a", 1.0, 1.01, 0.99), *repeats("b", 1.027, 1.037, 1.017)]
    alone = compare(runs).pairs[0]
    assert alone.p == pytest.approx(0.031, abs=0.005)
    assert alone.outcome == "faster"
    third = repeats("c", 1.0135, 1.0235, 1.0035)
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


@pytest.mark.slow
def test_several_workloads_of_a_stack_make_a_matrix() -> None:
    rag = differing(workload="rag")
    runs = [run(name, factor, scenario=f"chat-{name}-{i}") for name, factor in (("a", 1.0), ("b", 1.2)) for i in (1, 2)]
    runs += [
        run(name, factor, scenario=f"rag-{name}", facts=rag)
        for name, factor in (("a", 1.2), ("b", 1.0))
        for _ in (1, 2)
    ]
    assert [(each.workload, each.winner) for each in by_workload(runs).workloads] == [("chat", "b"), ("rag", "a")]
    assert [each.workload for each in by_workload(runs, ["rag"]).workloads] == ["rag"]
    with pytest.raises(HarnessError, match="no run of scenario 'voice'"):
        by_workload(runs, ["voice"])
    with pytest.raises(HarnessError, match="no run of scenario 'cha'"):
        by_workload(runs, ["cha"])


def test_one_workload_each_is_one_comparison_whatever_its_scenario_is_called() -> None:
    (alike,) = by_workload([run("a", scenario="chat-a-1"), run("b", scenario="chat-b-1")]).workloads
    assert (alike.workload, alike.fatal) == ("chat", [])
    (other,) = by_workload([run("a"), run("b", facts=differing(workload="other"))]).workloads
    assert other.fatal == ["workload"]


def test_a_plateau_over_the_ceiling_and_the_prediction() -> None:
    found = compare([run("a", ceiling=3200.0, predicted_plateau=2000.0), run("b")])
    assert found.stacks[0].of_ceiling == pytest.approx(0.5, rel=0.01)
    assert found.stacks[0].of_predicted == pytest.approx(0.8, rel=0.01)
    assert found.stacks[1].of_ceiling is None


def test_the_ceiling_is_kv_traffic_and_prompts() -> None:
    """1,001 tokens of KV at 1e-8 s, 900 prompt tokens at 1e-5 s over 200: 1.001e-5 + 4.5e-5."""
    roof = Roof(prompt=1e-5, attend=0.0, weights=1.0, kv=1e-8)
    assert ceiling(roof, 900, 200) == pytest.approx(1 / (1.001e-5 + 4.5e-5))
    assert ceiling(None, 900, 200) is None
    assert ceiling(roof, None, 200) is None
    windowed = Roof(prompt=1e-5, attend=0.0, weights=1.0, kv=0.0, windows=(RoofWindow(99, 1e-8, 0.0, 0.0),))
    assert ceiling(windowed, 900, 200) == pytest.approx(1 / (100 * 1e-8 + 4.5e-5))


# ---- runs -----------------------------------------------------------------------------------------------------------


def test_a_folder_s_facts_are_its_manifest_s() -> None:
    card = Card(name="NVIDIA H100 80GB HBM3", power_limit_w=700.0)
    manifest = msgspec.structs.replace(
        summaries.MANIFEST,
        gpu_facts=[card],
        price=2.0,
        server={"name": "vllm", "version": "0.25.1"},
        stack=StackStart(name="mine", command=["vllm"], start_to_ready_s=41.5, first_answer_s=0.5),
        cache_config={"cache_dtype": "fp8"},
        scenario=msgspec.structs.replace(summaries.MANIFEST.scenario, hardware=Hardware(dtype="bf16", max_num_seqs=64)),
    )
    (found,) = of_folder("x", "here", manifest, summaries.full())
    facts = found.facts
    assert (facts.gpu, facts.gpus, facts.power_limit) == ("NVIDIA H100 80GB HBM3", "1", "700 W")
    assert (facts.engine, facts.precision, facts.kv_dtype) == ("vllm 0.25.1", "bf16", "fp8")
    assert (facts.tp, facts.max_num_seqs, facts.model) == ("1", "64", "llama-3.1-8b")
    assert (found.stack, found.first_answer_s, facts.start) == ("mine", 0.5, "staggered")
    assert (found.start_to_ready_s, found.input_tokens, found.output_tokens) == (41.5, 1000.0, 200.0)
    assert len(found.points) == len(summaries.LEVELS) - 1, "the invalid level is left out"
    top = next(each for each in found.loads if each.load == 32)
    rate = found.points[7].throughput
    assert top.usd_per_million == pytest.approx(2.0 / (rate * 3600) * 1e6)


def test_what_a_folder_does_not_say_is_unknown() -> None:
    (found,) = of_folder("x", "here", Manifest(), msgspec.structs.replace(summaries.full(), prediction=None))
    facts = msgspec.structs.asdict(found.facts)
    assert {name for name, value in facts.items() if value is not None} == {"measured_by", "workload", "unit", "start"}


def test_levels_that_no_server_has_are_left_out() -> None:
    levels = [
        summaries.level(1, in_flight=1e-300),
        summaries.level(2, output_tokens_per_s=Estimate(-5.0)),
        summaries.level(4, output_tokens_per_s=Estimate(1e18)),
        summaries.level(8),
    ]
    (found,) = of_folder("x", "here", Manifest(), msgspec.structs.replace(summaries.full(), levels=levels))
    assert [point.concurrency for point in found.points] == [8]


@pytest.mark.parametrize(
    ("one", "other", "fact"),
    [
        ({"model": "org/llama"}, {"model": "qwen"}, "files of llama and of qwen"),
        ({"gpu": "H100"}, {"gpu": "L4"}, "files of H100 and of L4"),
        ({"gpus": 1}, {"gpus": 8}, "files of 1 GPU and of 8 GPUs"),
        ({"engine": "vllm"}, {"engine": "sglang"}, "files of vllm and of sglang"),
    ],
)
def test_files_of_one_stack_are_of_one_model_and_one_card(
    one: dict[str, Any], other: dict[str, Any], fact: str
) -> None:
    level = ForeignLevel(concurrency=4, output_tokens_per_s=100.0)
    results = [("f", {}), ("g", one), ("h", one), ("i", other)]  # of the first nothing is known
    files = [(place, ForeignResult(source="guidellm", levels=[level], **facts)) for place, facts in results]
    assert len(of_files("x", files[:3])) == 3
    with pytest.raises(HarnessError, match=fact) as refused:
        of_files("x", files)
    assert refused.value.place == "g, i"


def test_a_level_that_comes_again_in_other_tools_files_is_a_repeat() -> None:
    def file(C: float, X: float) -> ForeignResult:
        level = ForeignLevel(
            concurrency=C, output_tokens_per_s=X, requests=10, output_tokens_mean=128.0, tpot_s=Latency(mean=0.02)
        )
        return ForeignResult(source="vllm bench serve", levels=[level], lacks=("no error",))

    found = of_files("x", [("a", file(1, 100)), ("b", file(2, 190)), ("c", file(1, 102)), ("d", file(2, 188))])
    assert [(each.place, [point.throughput for point in each.points]) for each in found] == [
        ("a, b", [100, 190]),
        ("c, d", [102, 188]),
    ]
    assert (found[0].output_tokens, found[0].input_tokens, found[0].lacks) == (128.0, None, ("no error",))
    assert found[0].loads[0].tokens_per_s_per_user == pytest.approx(50.0)


def test_a_level_that_is_no_point_is_not_compared_and_what_every_file_says_is_kept() -> None:
    sound = ForeignLevel(concurrency=1, output_tokens_per_s=100.0)
    low = msgspec.structs.replace(sound, concurrency=2.0, in_flight_ok=False)
    failed = msgspec.structs.replace(sound, concurrency=4.0, valid=False)
    files = [
        (place, ForeignResult(source="x", levels=[level], lacks=("no error", word)))
        for place, level, word in (("a", sound, "one"), ("b", low, "two"), ("c", failed, "three"))
    ]
    (found,) = of_files("x", files)
    assert [point.concurrency for point in found.points] == [1.0]
    assert [load.load for load in found.loads] == [1.0]
    assert found.lacks == ("no error", "one", "two", "three")


def test_the_pace_of_an_answer_is_of_tokens_and_not_of_chunks() -> None:
    """Several tokens a chunk: 25 ms between chunks and 10 ms a token are 100 tok/s for a user."""
    level = ForeignLevel(
        concurrency=4, output_tokens_per_s=400.0, itl_s=Latency(mean=0.025), tpot_s=Latency(mean=0.010)
    )
    own = msgspec.structs.replace(level, itl_mean_s=0.008)
    gaps = msgspec.structs.replace(level, tpot_s=Latency())
    found = [
        of_files("a", [("f", ForeignResult(source="x", levels=[each]))])[0].loads[0] for each in (level, own, gaps)
    ]
    assert [each.itl_mean_s for each in found] == [0.010, 0.008, 0.025]
    assert found[0].tokens_per_s_per_user == pytest.approx(100.0)


@pytest.mark.parametrize("to", ["csv", "vllm", "llm-d"])
def test_a_simulation_s_export_is_not_ranked_against_what_was_measured(to: str) -> None:
    def exported(summary: Summary) -> ForeignResult:
        about = summaries.MANIFEST
        if to == "csv":
            return readers.of_bytes(table.levels(summary).encode(), "x")
        lines = [
            vllm.of_level(level, about, simulated=summary.simulated)
            if to == "vllm"
            else llm_d.of_level(level, about, index=i, simulated=summary.simulated)
            for i, level in enumerate(summary.levels)
        ]
        return readers.of_bytes("\n".join(map(json.dumps, lines)).encode(), "x")

    real, simulation = exported(summaries.full()), exported(summaries.simulated())
    found = compare([*of_files("a", [("a", real)]), *of_files("b", [("b", simulation)])])
    assert found.fatal == ["measured by"]
    assert [stack.simulated for stack in found.stacks] == [False, True]
    with pytest.raises(HarnessError, match="files of a real one and of a simulated server"):
        of_files("a", [("a", real), ("b", simulation)])
