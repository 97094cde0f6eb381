"""Runs as they are compared, of folders and of other tools' files."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest

from harness.base.errors import HarnessError
from harness.data.machines import Card
from harness.data.manifest import Manifest, StackStart
from harness.data.summary import ClassWorkload, Lengths, LengthSpread, Summary, WorkloadSummary
from harness.data.views import Estimate
from harness.decide.compare.comparison import compare
from harness.decide.compare.runs import of_files, of_folder
from harness.results import readers
from harness.results.exporters import csv as table
from harness.results.exporters import vllm
from harness.results.readers.level import ForeignLevel, ForeignResult, Latency
from harness.spec.scenario import Hardware
from tests.builders import summaries


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
    (found,) = of_folder("here", manifest, summaries.full())
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


def test_the_error_of_a_folder_s_lengths_is_over_all_its_classes() -> None:
    def lengths(mean: float, se: float | None) -> Lengths:
        return Lengths(law=None, asked=None, realised=LengthSpread(mean, None, None, None, None), mean_se=se)

    def of(*classes: tuple[int, float, float | None]) -> tuple[float | None, float | None]:
        rows = [
            ClassWorkload(
                class_=str(i), requests=n, share_asked=1.0, share=1.0,
                input_tokens=lengths(mean, se), output_tokens=lengths(128.0, 0.0),
            )
            for i, (n, mean, se) in enumerate(classes)
        ]  # fmt: skip
        summary = msgspec.structs.replace(summaries.full(), workload=WorkloadSummary(classes=rows))
        run = of_folder("x", summaries.MANIFEST, summary)[0]
        return run.input_tokens_se, run.output_tokens_se

    assert of((100, 64.0, 0.8)) == (0.8, 0.0)
    # half of 400 requests have 60 tokens, half 100, each within 30: a variance of 30² + 20²
    assert of((200, 60.0, 30 / math.sqrt(200)), (200, 100.0, 30 / math.sqrt(200)))[0] == pytest.approx(
        math.sqrt(30**2 + 20**2) / 20
    )
    assert of((1, 64.0, None)) == (None, None)
    run = of_folder("x", summaries.MANIFEST, summaries.full())[0]
    assert (run.input_tokens_se, run.output_tokens_se) == (None, None), "its requests are alike"


def test_what_a_folder_does_not_say_is_unknown() -> None:
    (found,) = of_folder("here", Manifest(), msgspec.structs.replace(summaries.full(), prediction=None))
    facts = msgspec.structs.asdict(found.facts)
    assert {name for name, value in facts.items() if value} == {
        "measured_by",
        "workload",
        "workload_fields",
        "unit",
        "pools",
        "balance",
        "start",
    }


def test_levels_that_no_server_has_are_left_out() -> None:
    levels = [
        summaries.level(1, in_flight=1e-300),
        summaries.level(2, output_tokens_per_s=Estimate(-5.0)),
        summaries.level(4, output_tokens_per_s=Estimate(1e18)),
        summaries.level(8),
    ]
    (found,) = of_folder("here", Manifest(), msgspec.structs.replace(summaries.full(), levels=levels))
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
    assert len(of_files("x", files[:3])) == 1
    with pytest.raises(HarnessError, match=fact) as refused:
        of_files("x", files)
    assert refused.value.place == "g, i"


def test_a_level_that_comes_again_in_other_tools_files_is_pooled() -> None:
    def file(C: float, X: float) -> ForeignResult:
        level = ForeignLevel(
            concurrency=C, output_tokens_per_s=X, requests=10, output_tokens_mean=128.0, tpot_s=Latency(mean=0.02)
        )
        return ForeignResult(source="vllm bench serve", levels=[level], lacks=("no error",))

    found = of_files("x", [("a", file(1, 100)), ("b", file(2, 190)), ("c", file(1, 102)), ("d", file(2, 188))])
    assert [(each.place, [point.throughput for point in each.points]) for each in found] == [
        ("a, b, c, d", [100, 190, 102, 188])
    ]
    assert math.exp(found[0].throughput()[1.0][0]) == pytest.approx(101, rel=1e-3)
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


@pytest.mark.parametrize("to", ["csv", "vllm"])
def test_a_simulation_s_export_is_not_ranked_against_what_was_measured(to: str) -> None:
    def exported(summary: Summary) -> ForeignResult:
        about = summaries.MANIFEST
        if to == "csv":
            return readers.of_bytes(table.levels(summary).encode(), "x")
        lines = [vllm.of_level(level, about, simulated=summary.simulated) for level in summary.levels]
        return readers.of_bytes("\n".join(map(json.dumps, lines)).encode(), "x")

    real, simulation = exported(summaries.full()), exported(summaries.simulated())
    found = compare([*of_files("a", [("a", real)]), *of_files("b", [("b", simulation)])])
    assert found.fatal == ["measured by"]
    assert [stack.simulated for stack in found.stacks] == [False, True]
    with pytest.raises(HarnessError, match="files of a real one and of a simulated server"):
        of_files("a", [("a", real), ("b", simulation)])
