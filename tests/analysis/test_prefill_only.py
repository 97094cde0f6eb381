"""Levels of which nothing is decoded: throughput in input tokens or documents, by hand."""

from __future__ import annotations

import math

import msgspec
import pytest

from harness.analysis import curve
from harness.analysis.figures import level_summary
from harness.analysis.level import Facts
from harness.analysis.rules.requests import Conditions
from harness.analysis.slo import attainments, limits
from harness.analysis.table import Table
from harness.data.levels import LevelSummary
from harness.data.manifest import Manifest, Workload
from harness.data.record import Level, Record
from harness.data.summary import Summary
from harness.predict.catalog import gpu, model_config
from harness.predict.deployment import deployment
from harness.predict.model import model
from harness.predict.roofline import predict
from harness.report.level_table import columns
from harness.report.run_report import report
from harness.spec.scenario import Scenario, Target, WorkloadSpec
from harness.spec.work import QUERY_WORDS, MeanLengths, Unit
from tests.builders.passes import Passes
from tests.builders.records import WINDOW, request
from tests.builders.summaries import MANIFEST, full

INPUT = Conditions(unit=Unit.INPUT_TOKENS, inputs=2)


def answers(seconds: float = 10.0, tokens: int | None = 100, **changes: object) -> list[Record]:
    """One request in flight, half a second each, of 100 input tokens."""
    starts = [0.5 * k for k in range(round(2 * seconds))]
    return [request(t, done=t + 0.5, input_tokens=tokens, output_tokens=None, **changes) for t in starts]


def summary(records: list[Record], conditions: Conditions = INPUT, usual: float = math.nan) -> LevelSummary:
    return level_summary(Table.of(records, conditions.unit, usual), WINDOW, conditions)


def test_throughput_is_of_the_input_tokens_of_whole_answers() -> None:
    """19 answers end inside [0, 10): each 100 tokens, in 10 s."""
    found = summary(answers())
    assert (found.unit, found.throughput) == ("input tokens", found.input_tokens_per_s)
    assert found.throughput.mean == pytest.approx(190.0)
    assert found.requests_per_s.mean == pytest.approx(1.9)
    assert found.documents_per_s
    assert found.documents_per_s.mean == pytest.approx(3.8)
    assert found.in_flight == pytest.approx(1.0)
    assert found.e2e_s.p50 == pytest.approx(0.5)
    assert found.input_tokens_mean == 100


def test_nothing_that_is_decoded_is_there() -> None:
    found = summary(answers())
    assert found.output_tokens_per_s.mean is None
    for spread in (found.ttft_s, found.ttfat_s, found.itl_s, found.icl_s, found.tpot_s):
        assert (spread.n, spread.mean, spread.p99) == (0, None, None)
    assert (found.output_tokens_mean, found.tokens_per_chunk, found.decode_tokens_per_s) == (None, None, None)
    assert {verdict.code for verdict in found.verdicts} <= {"window_too_short", "too_few_samples"}


def test_documents_count_where_nobody_counts_tokens() -> None:
    found = summary(answers(tokens=None), Conditions(unit=Unit.DOCUMENTS, inputs=8), usual=8.0)
    assert (found.unit, found.throughput.mean) == ("documents", pytest.approx(15.2))
    assert (found.input_tokens_per_s.mean, found.input_tokens_mean) == (None, None)


def test_tokens_are_the_tokenizer_s_where_the_server_counts_none() -> None:
    found = summary(answers(tokens=None), usual=34.0)
    assert found.throughput.mean == pytest.approx(19 * 34 / 10)


def test_a_request_that_was_not_counted_has_the_mean_of_those_that_were() -> None:
    records = answers()
    records[3] = msgspec.structs.replace(records[3], input_tokens=None)
    assert summary(records).throughput.mean == pytest.approx(190.0)


def test_failed_and_cut_requests_do_no_work() -> None:
    records = answers()
    records[0] = msgspec.structs.replace(records[0], error="http_5xx")
    records[1] = msgspec.structs.replace(records[1], error="cancelled")
    assert summary(records).throughput.mean == pytest.approx(170.0)


def test_a_limit_is_on_the_latency() -> None:
    """17 of the 20 requests take half a second, three take a second."""
    records = [msgspec.structs.replace(r, done_s=(r.done_s or 0) + 0.5 * (i < 3)) for i, r in enumerate(answers())]
    [found] = attainments(limits({"e2e_p90": 0.6}), Table.of(records, Unit.INPUT_TOKENS), WINDOW)
    assert (found.met, found.n) == (17, 20)


def test_a_tokenizer_counts_the_words_of_a_request_with_its_query() -> None:
    workload = WorkloadSpec(tokenizer="here", inputs=4)
    manifest = Manifest(
        unit="input tokens",
        scenario=Scenario(target=Target(api="rerank"), workload=workload),
        workload=Workload(prompt_words=30, input_tokens=33),
    )
    facts = Facts.of(manifest)
    assert (facts.unit, facts.inputs, facts.usual) == (Unit.INPUT_TOKENS, 4, 4 * (30 + QUERY_WORDS))
    assert facts.input_tokens == 132
    assert Facts.of(msgspec.structs.replace(manifest, unit="documents")).usual == 4.0
    assert math.isnan(Facts.of(Manifest(unit="input tokens")).usual)
    assert Facts.of(Manifest()).unit is Unit.OUTPUT_TOKENS


# ---- a planted cap, in virtual time -----------------------------------------------------------------------

MINILM = model(model_config("all-minilm-l6-v2"), "all-minilm-l6-v2")
WHERE = deployment(gpu("l4"), max_num_seqs=16)


def closed_loop(C: int, inputs: int, tokens: int, seconds: float) -> list[Record]:
    """C users of the passes, each with one request in flight: the machine's clock alone."""
    machine, now, number = Passes(MINILM, WHERE), 0.0, C
    sent = dict.fromkeys(range(C), 0.0)
    for user in sent:
        machine.submit(user, (tokens,) * inputs)
    records = []
    while now < seconds and (step := machine.step()) is not None:
        now += step.duration
        for token in step.tokens:
            records.append(request(sent.pop(token.request), done=now, input_tokens=inputs * tokens, output_tokens=None))
            sent[number] = now
            machine.submit(number, (tokens,) * inputs)
            number += 1
    return [msgspec.structs.replace(record, concurrency=C) for record in records]


def level(C: int, inputs: int, tokens: int = 64, seconds: float = 2.0) -> LevelSummary:
    records = closed_loop(C, inputs, tokens, seconds)
    at = Level(0, C, 0, 0.0, 0.2 * seconds, 0.9 * seconds, seconds)
    conditions = Conditions(unit=Unit.INPUT_TOKENS, inputs=inputs)
    return level_summary(Table.of(records, Unit.INPUT_TOKENS), at, conditions)


@pytest.mark.slow
@pytest.mark.parametrize(("inputs", "cap"), [(1, 16), (2, 8)])
def test_the_knee_is_where_a_pass_is_full_and_the_plateau_the_predicted_one(inputs: int, cap: int) -> None:
    predicted = predict(MINILM, WHERE, MeanLengths(64, 0, inputs=inputs), [1, 4, 16])
    assert (predicted.hinge_concurrency, predicted.binding_cap) == (cap, "max_num_seqs")
    levels = [level(C, inputs) for C in (1, 2, 4, 8, 12, 16, 24, 32)]
    assert levels[0].throughput.mean == pytest.approx(predicted.single_stream_tokens_per_s.mid, rel=0.01)
    found = curve.fit(curve.points_of(levels)).curve
    assert found.state == "found"
    low, high = found.hinge_concurrency.ci95 or (None, None)
    assert low is not None
    assert high is not None
    assert low < cap < high, "the level at the cap is on the plateau, so the corner may lie a little below it"
    assert found.hinge_concurrency.value == pytest.approx(cap, rel=0.15)
    assert found.plateau_tokens_per_s.value == pytest.approx(predicted.plateau_tokens_per_s.mid, rel=0.02)


# ---- the report -------------------------------------------------------------------------------------------


def embedded(unit: str = "input tokens") -> tuple[Summary, Manifest]:
    """A run of embeddings, from four levels of the passes."""
    levels = [level(C, 2) for C in (1, 4, 8, 16)]
    made = full()
    found = curve.fit(curve.points_of(levels))
    prediction = predict(MINILM, WHERE, MeanLengths(64, 0, inputs=2), [1, 4, 8, 16])
    cost = msgspec.structs.replace(made.cost, usd_per_million_output_tokens=None, usd_per_million_input_tokens=0.0123)  # type: ignore[type-var]
    scenario = Scenario(target=Target(api="embeddings"), workload=WorkloadSpec(input_tokens=64, inputs=2))
    manifest = msgspec.structs.replace(
        MANIFEST, api="embeddings", scenario=scenario, workload=Workload(input_tokens=64, output_tokens=0)
    )
    summary = msgspec.structs.replace(
        made, unit=unit, levels=levels, curve=found.curve, knees=found.knees, prediction=prediction, cost=cost,
        verdicts=[], phases=None,
    )  # fmt: skip
    return summary, manifest


def test_a_report_has_one_latency_and_names_its_unit() -> None:
    summary, manifest = embedded()
    heads = [column.head.replace("\n", " ") for column in columns(summary, summary.levels)]
    assert "input tok/s" in heads
    assert {"docs/s", "latency ms p50", "latency ms p99"} <= set(heads)
    assert not [head for head in heads if "ITL" in head or "TTFT" in head or "E2E" in head]
    document = report(summary, manifest)
    drawn = [chart for section in document.sections for chart in section.charts]
    assert [(chart.name, chart.y.label) for chart in drawn] == [("curve", "input tok/s"), ("e2e", "ms")]
    assert drawn[1].title == "Latency"
    facts = {fact.label: f"{fact.text} {fact.detail}" for section in document.sections for fact in section.facts}
    assert "input tok/s" in facts["Plateau"]
    assert "input tok/s" in facts["Prediction"]
    assert facts["Cost"].startswith("$0.0123 per million input tokens")
    assert "2 texts of 64 tokens in" in document.subtitle
    words = str(document)
    assert not [word for word in ("output tok/s", "ITL", "TTFT", "TPOT") if word in words]


def test_a_report_in_documents_has_no_column_of_them_twice() -> None:
    summary, _ = embedded()
    levels = [msgspec.structs.replace(each, unit="documents") for each in summary.levels]
    found = msgspec.structs.replace(summary, unit="documents", levels=levels, prediction=None)
    heads = [column.head for column in columns(found, found.levels)]
    assert ("documents\n/s" in heads, "docs/s" in heads) == (True, False)
