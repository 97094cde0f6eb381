"""What two stacks must have alike, what may differ, and what is said of a side."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from harness.base.errors import HarnessError
from harness.decide.compare import fairness
from harness.decide.compare.comparison import compare
from harness.decide.compare.runs import Facts, Load, Run, of_files, of_folder
from harness.results.readers.level import ForeignLevel, ForeignResult
from tests.builders import summaries
from tests.builders.compared import FACTS, differing, repeats, run


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
        ("model", "parameters", 7e9),
    ],
)
def test_work_and_hardware_that_differ_are_fatal_and_unknown_where_they_are_missing(
    row: str, field: str, other: object
) -> None:
    assert state(row, FACTS, FACTS) == "equal"
    assert state(row, FACTS, differing(**{field: other}), vary=list(fairness.VARIED)) == "fatal"
    assert state(row, FACTS, differing(**{field: None, "model": "m"})) == "unknown"


def test_a_workload_that_differs_is_named_by_its_keys_and_not_by_digests() -> None:
    def row(*asked: dict[str, str]) -> fairness.Row:
        stacks = [[run("x", facts=differing(workload=str(i), workload_fields=each))] for i, each in enumerate(asked)]
        return next(row for row in fairness.rows(stacks) if row.name == "workload")

    short, long = {"workload.input_tokens": "64±8", "load": "closed loop"}, {"workload.input_tokens": "512"}
    found = row(short, long | {"load": "closed loop"})
    assert (found.values, found.state) == (["workload.input_tokens 64±8", "workload.input_tokens 512"], "fatal")
    found = row({"load": "closed loop"}, {"load": "open loop, poisson"})
    assert (found.values, found.state) == (["load closed loop", "load open loop, poisson"], "fatal")
    assert found.why == "levels and rates have no load in common"
    assert row(short, long).values[1] == "workload.input_tokens 512, load none"
    many = row({f"k{i}": "a" for i in range(6)}, {f"k{i}": "b" * 60 for i in range(6)})
    assert many.values[0] == "k0 a, k1 a, k2 a, k3 a, and 2 more"
    assert len(many.values[1] or "") < 200
    assert row({}, {}).values == ["0", "1"], "nothing is known of them but that they differ"


@pytest.mark.parametrize(
    ("row", "field", "other"),
    [
        ("engine", "engine", "llama"),
        ("precision", "precision", "fp8"),
        ("kv-dtype", "kv_dtype", "fp8"),
        ("tp", "tp", "2"),
        ("max-num-seqs", "max_num_seqs", "64"),
        ("start", "start", "batch"),
    ],
)
def test_what_differs_of_the_servers_is_the_question_unless_only_something_else_may(
    row: str, field: str, other: str
) -> None:
    assert state(row, FACTS, FACTS) == "equal"
    assert state(row, FACTS, differing(**{field: other})) == "allowed"
    assert state(row, FACTS, differing(**{field: other}), vary=[row]) == "allowed"
    assert (
        state(row, FACTS, differing(**{field: other}), vary=[each for each in fairness.VARIED if each != row])
        == "fatal"
    )
    assert state(row, FACTS, differing(**{field: None})) == "unknown"
    found = compare([run("a"), run("b", facts=differing(**{field: other}))])
    assert (found.differ, found.refused) == ([row], False)


@pytest.mark.parametrize(
    ("row", "field", "other"), [("measured by", "measured_by", "guidellm"), ("transport",) * 2 + ("httpx",)]
)
def test_how_a_stack_was_measured_may_differ_and_is_said(row: str, field: str, other: str) -> None:
    assert state(row, FACTS, FACTS) == "equal"
    assert state(row, FACTS, differing(**{field: other})) == "allowed"
    simulated = [[run("a")], [run("b", facts=differing(measured_by="knee, simulated"), simulated=True)]]
    assert next(each.state for each in fairness.rows(simulated) if each.name == "measured by") == "fatal"


def test_a_setting_that_is_not_known_is_replaced_by_the_seats_that_were_measured() -> None:
    def seats(one: str | None, other: str | None) -> tuple[str, list[str | None]]:
        each = [differing(max_num_seqs=None, seats=value) for value in (one, other)]
        row = next(row for row in fairness.rows([[run("x", facts=own)] for own in each]) if row.name == "max-num-seqs")
        return row.state, row.values

    assert seats("8 (measured)", "8 (measured)") == ("equal", ["8 (measured)", "8 (measured)"])
    assert seats("8 (measured)", "16 (measured)") == ("allowed", ["8 (measured)", "16 (measured)"])
    assert seats("8 (measured)", None) == ("unknown", ["8 (measured)", None])


def test_a_flag_of_one_engine_that_differs_is_named_and_those_of_two_engines_are_not() -> None:
    one, other = {"max-model-len": "1024", "enforce-eager": "on"}, {"max-model-len": "1024"}
    row = fairness._flags([[run("a", facts=differing(flags=one))], [run("b", facts=differing(flags=other))]])
    assert row is not None
    assert (row.state, row.values) == ("allowed", ["enforce-eager on", "enforce-eager off"])
    unlike = differing(flags=other, engine="llama")
    assert fairness._flags([[run("a", facts=differing(flags=one))], [run("b", facts=unlike)]]) is None


def test_prompts_that_differ_by_their_templates_alone_are_the_same_work() -> None:
    def lengths(input_tokens: float, template: float | None) -> str:
        stacks = [[run("a", template_tokens=12.0)], [run("b", input_tokens=input_tokens, template_tokens=template)]]
        return next(row.state for row in fairness.rows(stacks) if row.name == "realised lengths")

    assert lengths(530.0, 30.0) == "allowed"
    assert lengths(530.0, None) == "fatal"
    assert lengths(580.0, 30.0) == "fatal"


def test_cache_hits_chunks_and_errors_of_a_side_are_rows() -> None:
    one = run("a", cached=0.0, tokens_per_chunk=1.0, failed=(0, 1000))
    other = run("b", cached=0.4, tokens_per_chunk=3.2, failed=(50, 1000))
    table = {row.name: row for row in fairness.rows([[one], [other]])}
    for name, values in {
        "prompts from cache": ["0.0%", "40.0%"],
        "tokens a chunk": ["1", "3.2"],
        "errors": ["0 of 1,000 requests", "50 of 1,000 requests"],
    }.items():
        assert (table[name].values, table[name].state) == (values, "allowed")
        assert table[name].why
    assert "errors" not in {row.name for row in fairness.rows([[one], [one]])}
    assert not compare([one, other]).refused


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


def test_a_load_that_one_stack_held_and_another_lost_to_errors_is_a_row() -> None:
    held = [Load(load=C) for C in (1.0, 8.0, 16.0)]
    good, bad = run("a", loads=held), run("b", loads=held[:2], lost={16.0: "12% failed (http_429)"})
    row = fairness.lost_loads([[good], [bad]])
    assert row is not None
    assert (row.state, row.values) == ("allowed", ["none", "16: 12% failed (http_429)"])
    assert row.why == "a load that one stack held is lost to another"
    assert not compare([good, bad]).refused
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


def test_the_lengths_of_short_runs_are_compared_by_their_stacks_means() -> None:
    def of(*tokens: float) -> list[Run]:
        return [run("x", input_tokens=each) for each in tokens]

    def lengths(*stacks: list[Run]) -> tuple[str, str]:
        return next((row.state, row.why) for row in fairness.rows(stacks) if row.name == "realised lengths")

    assert lengths(of(65.4, 63.9), of(65.2, 63.6)) == ("equal", "")  # 14 requests each: the runs are 2.8 % apart
    assert lengths(of(64.0, 64.0), of(66.0, 65.0)) == ("fatal", "they differ by 2.3%, more than 2%")
    assert lengths(of(64.0, 80.0), of(72.0, 72.0)) == ("fatal", "repeats of one stack differ by 25.0%, more than 10%")


def test_lengths_of_one_workload_may_differ_by_chance_up_to_ten_percent() -> None:
    def lengths(tokens: float, se: float | None, *, workload: str = "w", **of: float) -> tuple[str, str]:
        facts = differing(workload=workload)
        other = run("b", input_tokens=tokens, input_tokens_se=se, facts=facts, **of)
        stacks = [[run("a", input_tokens=64.0, input_tokens_se=0.8)], [other]]
        return next((row.state, row.why) for row in fairness.rows(stacks) if row.name == "realised lengths")

    # 0.8 and 0.6 are together 1 standard error: three of them are 3 tokens
    by_chance = ("allowed", "they differ by 3.9%, as means of so few requests do by chance")
    assert lengths(66.5, 0.6) == by_chance
    assert lengths(67.5, 0.6) == ("fatal", "they differ by 5.5%, more than 2%")
    assert lengths(66.5, None) == ("fatal", "they differ by 3.9%, more than 2%")
    assert lengths(66.5, 0.6, workload="v") == ("fatal", "they differ by 3.9%, more than 2%")
    assert lengths(66.5, 0.6, output_tokens=140.0) == ("fatal", "they differ by 9.4%, more than 2%")
    assert lengths(66.5, 0.6, output_tokens=140.0, output_tokens_se=9.0)[0] == "fatal", "one side's is not known"
    assert lengths(80.0, 8.0) == ("fatal", "they differ by 25.0%, which may be chance: measure more requests")


def test_runs_of_one_folder_share_the_error_of_their_lengths() -> None:
    def state(places: Sequence[str]) -> str:
        stacks = [
            [run(label, input_tokens=tokens, input_tokens_se=1.0, place=f"{label}{place}") for place in places]
            for label, tokens in (("a", 64.0), ("b", 67.0))
        ]
        return next(row.state for row in fairness.rows(stacks) if row.name == "realised lengths")

    assert state(["1"]) == "allowed"  # 3 tokens apart, 3 standard errors are 4.2
    assert state(["1", "1", "1"]) == "allowed"
    assert state(["1", "2", "3"]) == "fatal"  # three folders have three times the requests: 2.4 tokens


def test_repeats_of_one_stack_that_differ_are_fatal_whatever_may_vary() -> None:
    stacks = [[run("a"), run("a", facts=differing(engine="llama"))], [run("b")]]
    row = next(row for row in fairness.rows(stacks, ["engine"]) if row.name == "engine")
    assert (row.state, row.values) == ("fatal", ["vllm / llama", "vllm"])


def test_tokens_are_not_ranked_against_documents() -> None:
    """Embeddings of one work: one server says how many tokens it read, the other does not."""
    tokens = repeats("a", 32.0, 32.1, 31.9, facts=differing(unit="input tokens"), output_tokens=None)
    documents = repeats("b", 1.0, 1.001, 0.999, facts=differing(unit="documents"), output_tokens=None)
    found = compare([*tokens, *documents])
    assert (found.fatal, found.pairs[0].faster, found.pairs[0].outcome) == (["unit"], None, "refused")
    assert [stack.counts.per_s for stack in found.stacks] == ["input tok/s", "documents/s"]


def test_what_a_run_counts_is_a_fact_of_it() -> None:
    made = msgspec.structs.replace(summaries.full(), unit="documents")
    assert of_folder("a", summaries.MANIFEST, made)[0].facts.unit == "documents"
    level = ForeignLevel(concurrency=8, output_tokens_per_s=800.0)
    assert of_files("a", [("f", ForeignResult(source="guidellm", levels=[level]))])[0].facts.unit == "output tokens"


def test_what_may_vary_is_named_as_it_is_spelled_anywhere() -> None:
    assert fairness.varied("engine, KV_dtype") == {"engine", "kv-dtype"}
    assert fairness.varied(None) == frozenset()
    with pytest.raises(HarnessError, match="did you mean 'precision'"):
        fairness.varied("precison")
    with pytest.raises(HarnessError, match="known: engine, precision, kv-dtype, tp"):
        fairness.varied("weather")
