"""Canaries among a load's requests, and the file that they come from."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from harness.base.errors import HarnessError
from harness.dialects import DIALECTS
from harness.spec.scenario import QualitySpec
from harness.workload import canaries
from harness.workload.canaries import PROMPTS, Canary, Choice, Exact, JsonSchema, Pattern, Schema, judge
from harness.workload.source import Canaries, Uniform, among

LOAD = Uniform(words=("a", "b"), prompt_words=3, output_tokens=8, seed=3)
TWO = (Canary(prompt="first", output_tokens=5), Canary(prompt="second", output_tokens=6))


def of_file(path: Path, text: str) -> tuple[Canary, ...]:
    path.write_text(text)
    return canaries.read(QualitySpec(file=str(path), output_tokens=9))


@pytest.mark.parametrize(("share", "every"), [(0.02, 50), (0.01, 100), (0.0199, 51), (0.003, 334)])
def test_no_more_than_the_share_are_canaries(share: float, every: int) -> None:
    both = among(LOAD, TWO, share)
    found = [number for number in range(20 * every) if both.request(number).canary is not None]
    assert [number // every for number in found] == list(range(20))  # one in each block
    assert len(found) / (20 * every) <= share


def test_the_prompts_take_turns_and_the_load_is_what_it_was() -> None:
    both = among(LOAD, TWO, 0.02)
    requests = [both.request(number) for number in range(200)]
    assert [each.canary for each in requests if each.canary is not None] == [0, 1, 0, 1]
    for number, each in enumerate(requests):
        assert each.number == number
        assert each == LOAD.request(number) or each == TWO[each.canary or 0].request(number, each.canary or 0)


def test_any_worker_has_the_same_requests() -> None:
    both = among(LOAD, TWO, 0.02)
    there = msgspec.msgpack.decode(msgspec.msgpack.encode(both), type=Canaries)
    assert [there.request(number) for number in range(100)] == [both.request(number) for number in range(100)]
    shares = [sum(both.request(number).canary is not None for number in range(k, 4000, 2)) for k in (0, 1)]
    assert sum(shares) == 80
    assert min(shares) > 25  # both of two workers send some


@pytest.mark.parametrize("api", ["chat", "completions", "ollama", "llama-cpp", "tgi", "anthropic", "responses"])
def test_the_answer_to_a_canary_ends_where_the_model_ends_it_at_temperature_0(api: str) -> None:
    encoder = DIALECTS[api].encoder("m", extra={"temperature": 0.9} if api in ("chat", "completions") else {})
    body = msgspec.json.decode(encoder.encode(TWO[0].request(7, 0)))
    settings = body | body.get("options", {}) | body.get("parameters", {})
    assert "ignore_eos" not in settings
    assert settings.get("temperature", 0.0) == 0.0
    assert b"first" in encoder.encode(TWO[0].request(7, 0))


def test_of_an_answer_only_the_judgement_is_kept() -> None:
    question = Canary(prompt="?", output_tokens=5, expected=Exact("to be"), first=canaries.digests("to be"))
    assert msgspec.structs.astuple(judge(question, "to be")) == (None, "", 1.0)
    assert msgspec.structs.astuple(judge(question, "to go")) == (1, "", 0.0)
    assert msgspec.structs.astuple(judge(msgspec.structs.replace(question, first=""), " ")) == (None, "empty", 0.0)


def test_without_a_file_the_prompts_come_with_knee() -> None:
    found = canaries.read(QualitySpec(output_tokens=9))
    assert [each.prompt for each in found] == list(PROMPTS)
    assert {(each.output_tokens, each.expected) for each in found} == {(9, None)}


def test_a_line_is_a_prompt_and_what_is_expected(tmp_path: Path) -> None:
    found = of_file(
        tmp_path / "questions.jsonl",
        '{"prompt": "a"}\n{"prompt": "b", "exact": "x", "output_tokens": 3}\n\n{"prompt": "c", "regex": "[0-9]+"}\n'
        '{"prompt": "d", "choice": "B", "choices": ["A", "B"]}\n{"prompt": "e", "json_schema": {"type": "object"}}\n',
    )
    assert [(each.prompt, each.output_tokens, each.expected) for each in found] == [
        ("a", 9, None),
        ("b", 3, Exact("x")),
        ("c", 9, Pattern("[0-9]+")),
        ("d", 9, Choice("B", ("A", "B"))),
        ("e", 9, Schema(JsonSchema(type="object"))),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it has no prompt"),
        ('{"prompt": " "}', "its prompt is empty"),
        ('{"exact": "a"}', "Object missing required field 'prompt'"),
        ('{"prompt": "a", "answer": "b"}', "Object contains unknown field 'answer'"),
        ('{"prompt": "a", "exact": "b", "regex": "b"}', "exact and regex exclude each other"),
        ('{"prompt": "a", "choice": "C", "choices": ["A"]}', "choice is none of its choices"),
        ('{"prompt": "a", "choices": ["A"]}', "choices without the right one, choice"),
        ('{"prompt": "a", "choice": "A b", "choices": ["A b"]}', "a choice is one word"),
        ('{"prompt": "a", "regex": "(?=b)"}', "invalid perl operator"),
        ('{"prompt": "a", "json_schema": {"$ref": "x"}}', "unknown field '$ref'"),
        ('{"prompt": "a", "output_tokens": 0}', "Expected 'int' >= 1"),
        ("not JSON", "JSON is malformed"),
        ('{"prompt": "a"}\n' * 1001, "more than 1,000 prompts"),
    ],
)
def test_what_is_no_prompt_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(HarnessError) as error:
        of_file(tmp_path / "questions.jsonl", text)
    assert message in error.value.fact
    assert error.value.place.startswith(str(tmp_path / "questions.jsonl"))


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="No such file"):
        canaries.read(QualitySpec(file=str(tmp_path / "none.jsonl")))
