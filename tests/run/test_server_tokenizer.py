"""Words by the server's own tokenizer: vLLM and llama-server say how they cut a text, nobody else is asked."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from harness.run.launch import checks
from harness.run.launch.endpoint import Endpoint
from harness.run.launch.words import single_tokens
from harness.spec import reading
from harness.workload.text import COMMON
from tests.builders.servers import Request, serving
from tests.builders.streams import delta, event, usage

SPLIT = "people"  # a word of two tokens, of which this server's prompts may have none


def cut(text: str, blank: str) -> list[str]:
    """The text's tokens: a word each, but one that is two."""
    words = [[f"{blank}{word}"] if word != SPLIT else [f"{blank}{word[:3]}", word[3:]] for word in text.split()]
    return [piece for pieces in words for piece in pieces]


def check(owner: object, answer: Any) -> tuple[Endpoint, list[dict[str, Any]]]:
    """The launch against a server of that owner whose /tokenize gives this answer, and what it was sent."""
    asked: list[dict[str, Any]] = []

    def script(r: Request) -> None:
        if r.path == "/v1/models":
            r.answer(200, json.dumps({"data": [{"id": "toy", "owned_by": owner, "max_model_len": 512}]}).encode())
        elif r.path == "/tokenize":
            asked.append(json.loads(r.body))
            status, body = answer(asked[-1]) if callable(answer) else answer
            r.answer(status, json.dumps(body).encode())
        elif r.path == "/v1/chat/completions":
            sent = json.loads(r.body)
            prompt = len(cut(sent["messages"][0]["content"], " ")) + 8
            n = sent["max_tokens"]
            chunks = [delta("length" if i == n - 1 else None, content=" x") for i in range(n)]
            r.stream(*chunks, event({"choices": [], "usage": usage(prompt, n)}), b"data: [DONE]\n\n")
        else:
            r.answer(404, b"{}")

    wanted = reading.build({"workload": {"input_tokens": 100, "output_tokens": 4, "seed": 1}}, place="test")
    with serving(script) as port:
        return asyncio.run(checks.check(wanted, [f"http://127.0.0.1:{port}"])), asked


@pytest.mark.parametrize(
    ("owner", "answer"),
    [
        ("vllm", lambda sent: (200, {"count": 1, "token_strs": cut(sent["prompt"], "Ġ")})),
        ("llamacpp", lambda sent: (200, {"tokens": [{"id": 1, "piece": each} for each in cut(sent["content"], " ")]})),
    ],
)
def test_prompts_are_of_words_that_the_server_says_are_one_token(owner: str, answer: Any) -> None:
    found, asked = check(owner, answer)
    assert found.prompts.exact
    assert set(COMMON) - set(found.prompts.words) == {SPLIT}
    assert (found.prompts.tokens, found.prompts.count, found.prompts.tokens_per_word) == (100, 92, 1.0)
    assert len(asked) == 1


@pytest.mark.parametrize(
    "answer",
    [
        (404, {}),
        (200, {}),
        (200, []),
        (200, {"token_strs": "time"}),
        (200, {"token_strs": [1, None, {}]}),
        (200, {"token_strs": ["Ġtime", "Ġday"]}),  # too few to make prompts of
        (200, {"token_strs": ["Ġbuy", "Ġnow"] * 100}),  # words that were not sent
    ],
)
def test_any_other_answer_leaves_the_words_as_they_were(answer: Any) -> None:
    found, _ = check("vllm", answer)
    assert (found.prompts.exact, found.prompts.words) == (False, COMMON)


def test_a_server_of_another_kind_is_not_asked() -> None:
    for owner in ("openai", None, ["vllm"], {}):
        assert check(owner, (200, {"token_strs": [f"Ġ{word}" for word in COMMON]}))[1] == []


def test_a_word_that_goes_on_in_the_next_piece_is_more_than_one_token() -> None:
    assert single_tokens(["Ġcar", "bon", "Ġcar", "Ġday", "s"]) == ("car",)
    assert single_tokens([]) == ()
