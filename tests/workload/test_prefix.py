"""Prefix pools: the share and the popularity that are asked for, and the same prefix for the same request anywhere."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from harness.workload.request import Message, Request
from harness.workload.text import COMMON, Prefixes, Vocabulary


def prefixes(**fields: Any) -> Prefixes:
    return Prefixes(vocabulary=Vocabulary(words=COMMON, seed=5), **({"tokens": 20} | fields))


def test_a_pool_of_one_is_shared_by_all() -> None:
    shared = prefixes()
    assert len({shared.text(n) for n in range(50)}) == 1
    assert len(shared.text(0).split()) == 20


def test_a_pool_holds_as_many_prefixes_as_asked_each_about_as_often() -> None:
    pool = prefixes(pool=4)
    drawn = Counter(pool.text(n) for n in range(4000))
    assert len(drawn) == 4
    assert all(abs(count - 1000) < 4 * (4000 * 0.25 * 0.75) ** 0.5 for count in drawn.values())


def test_zipf_draws_the_first_more_often() -> None:
    """1/1, 1/2, 1/3, 1/4 of their sum 25/12: 12, 6, 4, 3 of 25."""
    pool = prefixes(pool=4, zipf=1.0)
    drawn = Counter(pool.index(n) for n in range(10_000))
    for k, parts in enumerate((12, 6, 4, 3)):
        share = parts / 25
        assert abs(drawn[k] - 10_000 * share) < 4 * (10_000 * share * (1 - share)) ** 0.5


def test_only_a_share_of_the_requests_has_one() -> None:
    without = sum(prefixes(share=0.8).text(n) == "" for n in range(5000))
    assert abs(without - 1000) < 4 * (5000 * 0.2 * 0.8) ** 0.5


def test_a_prefix_is_a_function_of_seed_and_number() -> None:
    pool = prefixes(pool=100, share=0.5, zipf=0.7)
    elsewhere = msgspec.msgpack.decode(msgspec.msgpack.encode(pool), type=Prefixes)
    pool.text(3)
    assert [pool.text(n) for n in range(200)] == [elsewhere.text(n) for n in range(200)]


def test_a_prefix_stands_before_a_text_and_is_a_conversation_s_first_message() -> None:
    pool = Prefixes(vocabulary=Vocabulary(words=("a",), seed=0), tokens=2)
    plain = Request(number=1, prompt=" b", output_tokens=4, input_tokens=1)
    assert pool.before(plain) == msgspec.structs.replace(plain, prompt=" a a b", input_tokens=3)
    said = msgspec.structs.replace(plain, prompt=(Message("user", " b"),), input_tokens=None)
    assert pool.before(said).prompt == (Message("system", " a a"), Message("user", " b"))
    assert pool.before(said).input_tokens is None


def test_a_request_without_one_stays_as_it_is() -> None:
    plain = Request(number=1, prompt=" b", output_tokens=4)
    assert prefixes(share=1e-9).before(plain) is plain
