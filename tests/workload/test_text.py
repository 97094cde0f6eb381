"""Texts: as long as asked, the same for the same seed and key, and no others."""

from __future__ import annotations

from collections import Counter

import pytest

from harness.workload import text
from harness.workload.text import COMMON, Passages, Vocabulary

WORDS = text.spaced(COMMON)


def test_a_text_is_a_function_of_seed_and_number() -> None:
    assert text.text(WORDS, 5, 3, 7) == text.text(WORDS, 5, 3, "7")
    assert len({text.text(WORDS, 5, seed, number) for seed in (3, 4) for number in range(100)}) == 200
    assert text.text(WORDS, 5, 3, 7).startswith(" ")


def test_reordered_texts_hold_the_first_words_and_those_again_that_are_wanting() -> None:
    few = [" a", " b", " c"]
    assert sorted(text.reordered(few, 7, 0, 1).split()) == ["a", "a", "a", "b", "b", "c", "c"]
    assert len({text.reordered(list(WORDS), 16, 0, n) for n in range(500)}) == 500


@pytest.mark.parametrize("count", [1, 31, 32, 33, 40, 300, 1000, 32_000])
def test_a_passage_has_its_words_and_a_beginning_of_its_own(count: int) -> None:
    passages = Passages(WORDS, seed=3)
    texts = [passages.text(count, number).split() for number in range(200)]
    assert {len(words) for words in texts} == {count}
    assert set(texts[0]) <= set(COMMON)
    assert count < 8 or len({tuple(words[:8]) for words in texts}) == 200


def test_a_passage_goes_round_all_words_each_as_often_as_any_other() -> None:
    counts = Counter(word for number in range(50) for word in Passages((" a", " b", " c"), 0).text(332, number).split())
    assert sum(counts.values()) == 50 * 332
    assert all(abs(count - 50 * 332 / 3) < 200 for count in counts.values()), "300 of each, and of 32 drawn ones"


@pytest.mark.parametrize(("tokens", "words"), [(1, 1), (3, 2), (150, 100), (151, 101)])
def test_a_vocabulary_counts_in_tokens(tokens: int, words: int) -> None:
    assert len(Vocabulary(words=COMMON, seed=0, tokens_per_word=1.5).text(tokens, "k").split()) == words


def test_texts_that_were_forgotten_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "_REMEMBERED", 30)
    few = Vocabulary(words=("abcd",), seed=0)  # 5 characters a word
    assert len(few.text(4, "one")) == 20
    assert few._size == [20]
    assert len(few.text(3, "two")) == 15  # 35 characters are too many: the first is forgotten
    assert (list(few._remembered), few._size) == ([(3, "two")], [15])
    assert few.text(4, "one") == " abcd" * 4
