"""Requests that hold several texts."""

from __future__ import annotations

import msgspec
import pytest

from harness.base.errors import HarnessError
from harness.data.views import Value
from harness.report import level_map
from harness.results.levelmap import Map, MeasuredCell
from harness.run import campaign
from harness.spec import reading
from harness.spec.scenario import Scenario
from harness.spec.work import MeanLengths
from harness.workload import shape, source
from harness.workload.request import Message
from harness.workload.source import Inputs, PromptWords, Uniform, together

TEXTS = Uniform(words=("a", "b", "c"), prompt_words=20, output_tokens=0, seed=3)


def asked(api: str, **workload: object) -> Scenario:
    tree = {"target": {"api": api}, "workload": {"seed": 3, "input_tokens": 20, **workload}}
    return reading.build(tree, place="x")


def test_no_text_comes_twice_in_a_run() -> None:
    requests = [Inputs(texts=TEXTS, inputs=8).request(number) for number in range(50)]
    found = [message.content for each in requests for message in each.prompt if isinstance(message, Message)]
    assert len(set(found)) == len(found) == 400


def test_any_worker_makes_the_same_request_of_a_number() -> None:
    made = Inputs(texts=TEXTS, inputs=3, ranked=True)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=source.Source)
    assert again.request(9) == made.request(9) != made.request(10)


def test_its_words_are_those_of_all_texts() -> None:
    assert (Inputs(texts=TEXTS, inputs=8).prompt_words, Inputs(texts=TEXTS, inputs=8).seed) == (160, 3)


def test_one_text_is_a_plain_prompt_and_a_ranked_one_has_its_query() -> None:
    assert together(asked("embeddings"), TEXTS) is TEXTS
    assert [m.role for m in together(asked("rerank"), TEXTS).request(0).prompt if isinstance(m, Message)] == [
        "query",
        "document",
    ]


def test_a_scenario_s_source_holds_its_texts() -> None:
    made = source.of(asked("embeddings", inputs=4), PromptWords(words=("a",), count=18))
    assert isinstance(made, Inputs)
    assert (made.inputs, made.ranked, made.texts.prompt_words) == (4, False, 18)
    varied = source.of(asked("score", inputs=2, input_tokens="10..40"), PromptWords(words=("a",)))
    request = varied.request(0)
    words = sum(len(m.content.split()) for m in request.prompt[1:] if isinstance(m, Message))
    assert request.input_tokens == words


def test_nothing_of_it_is_an_answer() -> None:
    spec = asked("embeddings", inputs=4)
    assert not spec.decodes
    assert shape.of(spec).mean() == MeanLengths(20, 0)
    lengths = shape.representative(spec)
    assert (lengths.input_tokens, lengths.output_tokens, lengths.inputs) == (20, 0.0, 4)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("tree", "path"),
    [
        ({"workload": {"inputs": 2}}, "$.workload.inputs"),
        ({"sweep": {"inputs": [1, 2]}}, "$.sweep.inputs"),
        ({"target": {"api": "embeddings"}, "workload": {"inputs": 0}}, "$.workload.inputs"),
        ({"target": {"api": "embeddings"}, "workload": {"inputs": 10_001}}, "$.workload.inputs"),
        ({"target": {"api": "embeddings"}, "sweep": {"inputs": [10_001]}}, "$.sweep.inputs"),
        ({"target": {"api": "embeddings"}, "sweep": {"inputs": [2, 2]}}, "$.sweep.inputs"),
        ({"target": {"api": "embeddings"}, "sweep": {"output_tokens": [2]}}, "$.sweep.output_tokens"),
        ({"target": {"api": "rerank"}, "slo": {"ttft_p99": "1s"}}, "$.slo.ttft_p99"),
        ({"target": {"api": "score"}, "ramp": {"probe": "prefill"}}, "$.ramp.probe"),
        ({"target": {"api": "rerank"}, "workload": {"session": {"turns": 2, "user_tokens": 9}}}, "$.workload.session"),
        ({"target": {"api": "rerank"}, "workload": {"prefix": {"tokens": 9}}}, "$.workload.prefix"),
        ({"target": {"api": "rerank"}, "class": [{"name": "a"}]}, "$.class"),
    ],
)
def test_what_such_a_request_cannot_have_is_one_line(tree: dict[str, object], path: str) -> None:
    with pytest.raises(HarnessError) as caught:
        reading.build(tree, place="x")
    assert path in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_limit_on_the_latency_is_taken() -> None:
    assert reading.build({"target": {"api": "rerank"}, "slo": {"e2e_p99": "1s"}}, place="x").slo == {"e2e_p99": 1.0}


def test_a_map_of_inputs_has_a_cell_for_each_and_counts_in_input_tokens() -> None:
    spec = reading.build(
        {"name": "m", "target": {"api": "embeddings"}, "workload": {"input_tokens": 64}, "sweep": {"inputs": [1, 8]}},
        place="x",
    )
    planned = campaign.planned(spec)
    assert [(cell.name, cell.at) for cell in planned] == [
        ("in64-texts1", {"input_tokens": 64, "inputs": 1}),
        ("in64-texts8", {"input_tokens": 64, "inputs": 8}),
    ]
    assert [cell.scenario.workload.inputs for cell in planned] == [1, 8]
    measured = [
        MeasuredCell(
            name=cell.name, at=cell.at, status=0, knee=Value(4.0), plateau_reached=True,
            plateau_tokens_per_s=Value(900.0, (890.0, 910.0)), hinge=Value(4.0),
        )
        for cell in planned
    ]  # fmt: skip
    map_ = Map(name="m", unit="input tokens", axes=campaign.axes(spec), cells=measured, complete=True)
    heads = [column.head for section in level_map.report(map_).sections for column in section.columns]
    assert "inputs a request" in heads
    assert "output tokens G" not in heads
