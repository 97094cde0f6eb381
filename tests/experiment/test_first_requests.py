"""What the first requests find that the load would meet: answers that are too short, and long documents."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from harness import scenario
from tests.builders.servers import Request
from tests.experiment.test_launch import MODELS, check, endpoint, says

CHAT = {"name": "chat", "input": 20}
OPENAI = b"Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but got less instead."
UNFINISHED = (
    b"Could not finish the message because max_tokens or model output limit was reached. Please try again with higher "
    b"max_tokens."
)


def refusing(fewer_than: int, words: bytes = OPENAI, sent: list[int] | None = None) -> Callable[[Request], None]:
    """A server that refuses answers of fewer tokens."""

    def script(r: Request) -> None:
        if r.path == "/v1/chat/completions":
            tokens = json.loads(r.body)["max_tokens"]
            if sent is not None:
                sent.append(tokens)
            if tokens < fewer_than:
                r.answer(400, b'{"error":{"message":"%b"}}' % words)
                return
        endpoint(r)

    return script


def asking(output: int | str = 24, **tables: Any) -> scenario.Scenario:
    return scenario.build({"workload": {"input_tokens": 20, "output_tokens": output}} | tables, place="test")


@pytest.mark.parametrize("words", [OPENAI, UNFINISHED])
def test_a_server_that_refuses_short_answers_is_asked_for_longer_ones(words: bytes) -> None:
    """A check's answer is shorter than the load's."""
    sent: list[int] = []
    got = check(refusing(16, words, sent), wanted=asking(24))
    assert (got.prompt_words, got.input_tokens, got.notes) == (12, 20, ())
    assert sent == [1, 16, 16]


def test_a_load_whose_answers_the_server_refuses_is_not_begun() -> None:
    line = "--output-tokens: the server refuses answers of 8 tokens (400: Invalid 'max_output_tokens': integer below"
    says(line, refusing(16), asking(8))
    says("less instead.); give at least 16", refusing(16), asking(8))
    says("--output-tokens: the server refuses answers of 3 tokens", refusing(16), asking("2..200"))


def test_a_class_or_a_probe_with_too_short_answers_is_named() -> None:
    classes = [CHAT | {"output": 200}, CHAT | {"name": "yes or no", "output": 1}]
    wanted = scenario.build({"class": classes}, place="test")
    says("class 'yes or no': the server refuses answers of 1 token (400:", refusing(16), wanted)
    says(
        "--probe prefill: the server refuses answers of 1 token (400:",
        refusing(16),
        asking(100, ramp={"probe": "prefill"}),
    )


def test_a_server_whose_bound_is_lower_gets_the_load_s_own_answers() -> None:
    sent: list[int] = []
    got = check(refusing(2, sent=sent), wanted=asking(4))
    assert (got.input_tokens, got.prompts_used) == (20, 3)
    assert sent == [1, 16, 16, 4]


def embedding(bytes_: int) -> Callable[[Request], None]:
    """A server whose answers are so many bytes long."""

    def script(r: Request) -> None:
        if r.path == "/v1/models":
            r.answer(200, MODELS)
        elif r.path == "/v1/embeddings":
            counted = {"prompt_tokens": len(json.loads(r.body)["input"].split())}
            answer = json.dumps({"data": [{"embedding": [0.5]}], "usage": counted}).encode()
            r.answer(200, answer + b" " * (bytes_ - len(answer)))
        else:
            r.answer(404, b"{}")

    return script


EMBEDDINGS = {"workload": {"input_tokens": 20}, "target": {"api": "embeddings"}}


def test_a_document_may_be_as_long_as_in_the_load() -> None:
    """64 vectors of 4,096 numbers are more than the pages of a server may be."""
    wanted = scenario.build(EMBEDDINGS, place="test")
    assert check(embedding(5 << 20), wanted=wanted).input_tokens == 20


@pytest.mark.slow
def test_a_document_that_the_load_would_not_take_ends_the_checks() -> None:
    line = "the first request failed: line_too_long (an answer longer than 32 MiB"
    says(line, embedding((32 << 20) + 1), scenario.build(EMBEDDINGS, place="test"))
