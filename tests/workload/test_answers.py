"""Digests of answers, held against answers whose words are known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.workload import canaries
from harness.workload.canaries import differs_at, digests, flaw

WORDS = st.lists(st.text("abc", min_size=1, max_size=3), max_size=40)


@given(WORDS, WORDS)
def test_answers_part_where_their_words_do(one: list[str], other: list[str]) -> None:
    alike = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    expected = None if one == other else alike
    assert differs_at(digests(" ".join(one)), digests("\n".join(other))) == expected


def test_answers_that_part_late_differ_though_their_first_words_are_alike() -> None:
    one = ["word"] * 300
    assert differs_at(digests(" ".join(one)), digests(" ".join([*one[:-1], "other"]))) == 256


def test_a_digest_holds_no_text() -> None:
    assert set(digests("the secret answer")) <= set("0123456789abcdef")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "empty"),
        ("\n\t ", "empty"),
        ("a \ufffd b", "invalid_utf8"),
        ("cut inside a character \ufffd", ""),
        ("no " * 12, "repetition"),
        ("no " * 11, ""),
        ("it begins well and then " + "goes round and round " * 3, "repetition"),  # 12 words of a phrase of 4
        ("goes round and round " * 2 + "and stops", ""),
        (" ".join(f"{number}" for number in range(200)), ""),
    ],
)
def test_what_is_no_answer_has_a_flaw(text: str, found: str) -> None:
    assert flaw(text) == found


def test_a_long_answer_is_looked_at_in_part() -> None:
    assert digests("a" * 10_000_000) == digests("a" * canaries._LONGEST_ANSWER)
