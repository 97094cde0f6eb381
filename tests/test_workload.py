"""Prompts: distinct, of exact length, the same for the same seed and number."""

import json

import pytest

from harness.errors import HarnessError
from harness.load.workload import COMMON, Prompts, single_token_words


def test_prompts_have_the_asked_number_of_words_and_never_repeat() -> None:
    prompts = Prompts(COMMON, 20, seed=1)
    texts = [prompts.text(i) for i in range(2000)]
    assert {len(t.split()) for t in texts} == {20}
    assert len(set(texts)) == 2000


def test_no_two_prompts_share_a_prefix_worth_caching() -> None:
    prompts = Prompts(COMMON, 128, seed=0)
    starts = {tuple(prompts.text(i).split()[:8]) for i in range(5000)}
    assert len(starts) == 5000


def test_a_prompt_is_a_function_of_seed_and_number() -> None:
    assert Prompts(COMMON, 9, seed=3).text(41) == Prompts(COMMON, 9, seed=3).text(41)
    assert Prompts(COMMON, 9, seed=3).text(41) != Prompts(COMMON, 9, seed=4).text(41)


def test_a_prompt_may_be_of_another_length_than_the_rest() -> None:
    prompts = Prompts(COMMON, 9, seed=3)
    assert len(prompts.text(41, 70).split()) == 70
    assert prompts.text(41, 70) == Prompts(COMMON, 70, seed=3).text(41)


@pytest.mark.parametrize("length", [16, 20, 128, 237, 600])
def test_prompts_that_are_alike_hold_the_same_words_in_another_order_each(length: int) -> None:
    prompts = Prompts(COMMON, length, seed=2, alike=True)
    texts = [prompts.text(i) for i in range(2000)]
    assert len({tuple(sorted(text.split())) for text in texts}) == 1
    assert len(texts[0].split()) == length
    assert len({tuple(text.split()[:8]) for text in texts}) == 2000
    assert texts[7] == Prompts(COMMON, 3, seed=2, alike=True).text(7, length)


def test_too_few_words_to_be_alike_are_drawn_anew() -> None:
    prompts = Prompts(COMMON, 5, seed=2, alike=True)
    assert len({prompts.text(i) for i in range(2000)}) == 2000


def test_a_quoted_prompt_is_json() -> None:
    prompts = Prompts(COMMON, 5, seed=0)
    assert json.loads(prompts.quoted(2)) == prompts.text(2)
    assert json.loads(prompts.quoted(2, 8)) == prompts.text(2, 8)


def test_words_that_the_tokenizer_splits_are_left_out() -> None:
    def tokens_of(text: str) -> int:  # splits every word longer than four letters
        return sum(1 if len(word) <= 4 else 2 for word in text.split())

    assert single_token_words(tokens_of, ["time", "people", "way"]) == ("time", "way")


def test_a_prompt_of_no_words_is_the_operator_s_mistake() -> None:
    with pytest.raises(HarnessError, match="--input-tokens"):
        Prompts(COMMON, 0, seed=0)
