"""Tokens placed by a tokenizer: each in the chunk that completes it, whatever the chunks cut in two."""

from __future__ import annotations

import functools

from hypothesis import given
from hypothesis import strategies as st

from harness.dialects.tokens import TokenPlacer


@functools.cache
def byte_level(trim: bool = False) -> tuple[str, TokenPlacer]:
    """A tokenizer of bytes and a few merges, as most models have: an é is two tokens, " the" is one."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the")]
    words = [*alphabet, *(a + b for a, b in merges)]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim)
    return tokenizer.to_str(), TokenPlacer(tokenizer.to_str())


def test_a_token_belongs_to_the_chunk_that_completes_it() -> None:
    _, placer = byte_level()
    assert placer.counts([" the", " the the", " th", "e", "é"]) == [1, 2, 0, 1, 2]
    assert placer.counts([]) == []
    assert placer.counts(["", "a"]) == [0, 1]


@given(st.lists(st.text(alphabet="the é\n😀", max_size=6), max_size=8), st.booleans())
def test_every_token_of_the_whole_text_is_placed_once(texts: list[str], trim: bool) -> None:
    from tokenizers import Tokenizer

    saved, placer = byte_level(trim)
    whole = Tokenizer.from_str(saved).encode("".join(texts), add_special_tokens=False)
    counts = placer.counts(texts)
    assert (len(counts), sum(counts)) == (len(texts), len(whole.ids) if texts else 0)
    assert all(count == 0 for count, text in zip(counts, texts, strict=True) if not text)
