"""Prefix hits worked out by hand: whole blocks only, the last token computed, the least used block out first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.workload.hit_rate import hashes
from tests.builders.prefix_hits import Cache, Hits, hits


@pytest.mark.parametrize(
    ("prompts", "cached"),
    [
        (["aaaabbbb", "aaaabbbb"], 4),  # both blocks are there, but the last token's is computed
        (["aaaabbbb", "aaaabbbbc"], 8),
        (["aaaabbb", "aaaabbbc"], 4),  # three tokens are no block
        (["aaaabbbb", "bbbbcccc"], 0),  # a block is not the same behind another beginning
        (["aaaabbbb", "xaaabbbb"], 0),
        (["aaa", "aaa"], 0),
        (["aaaa", "aaaa"], 0),
        (["aaaax", "aaaax"], 4),
        ([], 0),
    ],
)
def test_whole_blocks_are_served_and_never_the_last_token(prompts: list[str], cached: int) -> None:
    assert hits(prompts, block=4) == Hits(sum(map(len, prompts)), cached)


def test_the_block_used_longest_ago_goes_first_and_an_end_before_its_beginning() -> None:
    cache = Cache(block=2, blocks=3)

    def serve(prompt: str) -> int:
        return cache.serve(hashes(prompt, 2), len(prompt))

    assert serve("aabbx") == 0  # keeps aa, aabb
    assert serve("ccddx") == 0  # keeps cc, ccdd and aa: aabb was the end of the older
    assert serve("aabbx") == 2  # aa is known; keeps aa, aabb and cc
    assert serve("ccddx") == 2
    assert serve("ccddx") == 4


def test_a_prompt_longer_than_the_cache_keeps_its_beginning() -> None:
    assert hits(["aabbccx", "aabbccx"], block=2, blocks=2) == Hits(14, 4)


def test_an_answer_s_blocks_are_found_by_the_next_turn() -> None:
    """A prompt of 6 and an answer of 4, then both and 4 more: 5 blocks of 2 are there."""
    cache = Cache(block=2)
    whole = "ppqqrrssttuuvv"
    assert cache.serve(hashes(whole[:10], 2), prompt_tokens=6) == 0
    assert cache.serve(hashes(whole, 2), prompt_tokens=14) == 10


def test_hashes_of_a_trace_serve_as_they_are() -> None:
    """Two rows with blocks of 512: 1,100 tokens are two whole blocks, of which the second row shares the first."""
    cache = Cache(block=512)
    assert [cache.serve([46, 47], 1100), cache.serve([46, 52], 1100)] == [0, 512]


def test_the_rate_is_cached_over_prompt_tokens() -> None:
    assert hits(["aaaabbbb", "aaaacccc"], block=4).rate == 0.25
    assert Hits().rate is None


@given(st.lists(st.text("ab", max_size=12), max_size=20), st.integers(1, 4), st.integers(1, 8))
def test_a_larger_cache_serves_no_less_and_none_the_last_token(prompts: list[str], block: int, blocks: int) -> None:
    small, large, all_ = (hits(prompts, block, n).cached_tokens for n in (blocks, blocks + 1, None))
    assert small <= large <= all_ <= sum(max(0, len(prompt) - 1) for prompt in prompts)
