"""Uniform requests: distinct prompts of exact length, the same for the same seed and number."""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from harness.base.errors import HarnessError
from harness.workload.source import Uniform
from harness.workload.text import COMMON, single_token_words


def uniform(prompt_words: int, *, seed: int, alike: bool = False) -> Uniform:
    return Uniform(words=COMMON, prompt_words=prompt_words, output_tokens=8, seed=seed, alike=alike)


def prompts(source: Uniform, n: int) -> list[str]:
    return [source.request(i).prompt for i in range(n)]


def test_prompts_have_the_asked_number_of_words_and_never_repeat() -> None:
    texts = prompts(uniform(20, seed=1), 2000)
    assert {len(t.split()) for t in texts} == {20}
    assert len(set(texts)) == 2000


def test_no_two_prompts_share_a_prefix_worth_caching() -> None:
    starts = {tuple(text.split()[:8]) for text in prompts(uniform(128, seed=0), 5000)}
    assert len(starts) == 5000


def test_a_request_is_a_function_of_seed_and_number() -> None:
    source, elsewhere = (
        uniform(9, seed=3),
        msgspec.msgpack.decode(msgspec.msgpack.encode(uniform(9, seed=3)), type=Uniform),
    )
    source.request(40)
    assert source.request(41) == elsewhere.request(41)
    assert source.request(41) != uniform(9, seed=4).request(41)
    assert (source.request(41).number, source.request(41).output_tokens) == (41, 8)


def test_prompts_may_be_of_another_length_than_the_rest() -> None:
    source = uniform(9, seed=3)
    source.request(41)
    longer = msgspec.structs.replace(source, prompt_words=70)
    assert len(longer.request(41).prompt.split()) == 70
    assert longer.request(41) == uniform(70, seed=3).request(41)


@pytest.mark.parametrize(
    ("alike", "length", "digest"),
    [
        (False, 5, "f59545852c25ce19"),
        (True, 5, "f59545852c25ce19"),
        (False, 40, "856913b88ea7827c"),
        (True, 40, "c77a3eaa8588ed05"),
    ],
)
def test_the_prompts_of_a_seed_are_these(alike: bool, length: int, digest: str) -> None:
    """A run that is resumed, and one that is repeated by its seed, asks what the first one asked."""
    texts = prompts(uniform(length, seed=3, alike=alike), 100)
    assert hashlib.sha256("|".join(texts).encode()).hexdigest()[:16] == digest


@pytest.mark.parametrize("length", [16, 20, 128, 237, 600])
def test_prompts_that_are_alike_hold_the_same_words_in_another_order_each(length: int) -> None:
    texts = prompts(uniform(length, seed=2, alike=True), 2000)
    assert len({tuple(sorted(text.split())) for text in texts}) == 1
    assert len(texts[0].split()) == length
    assert len({tuple(text.split()[:8]) for text in texts}) == 2000
    other = uniform(3, seed=2, alike=True)
    other.request(0)
    assert texts[7] == msgspec.structs.replace(other, prompt_words=length).request(7).prompt


def test_too_few_words_to_be_alike_are_drawn_anew() -> None:
    assert len(set(prompts(uniform(5, seed=2, alike=True), 2000))) == 2000


def test_words_that_the_tokenizer_splits_are_left_out() -> None:
    def tokens_of(text: str) -> int:  # splits every word longer than four letters
        return sum(1 if len(word) <= 4 else 2 for word in text.split())

    assert single_token_words(tokens_of, ["time", "people", "way"]) == ("time", "way")


def test_a_prompt_of_no_words_is_the_operator_s_mistake() -> None:
    with pytest.raises(HarnessError, match="--input-tokens"):
        uniform(0, seed=0)
