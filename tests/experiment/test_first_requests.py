"""What the first requests find that the load would meet: long documents."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from harness import scenario
from tests.builders.servers import Request
from tests.experiment.test_launch import MODELS, check, says


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
