"""Requests that differ: shapes by the mix, words by what the server counted, the same on any worker."""

from __future__ import annotations

import msgspec
import pytest

from harness.spec.classes import Cancel
from harness.spec.distribution import parse
from harness.workload.request import Request
from harness.workload.shape import Class, Mix
from harness.workload.source import Mixed, Source
from harness.workload.text import COMMON, Prefixes, Vocabulary

CHAT = Class(name="chat", share=3, input=parse("60..90"), output=parse("lognormal(30,9)"))
LONG = Class(name="long", input=parse("32k"), output=parse(7), cancel=Cancel(share=0.5, after_s=1.0))
MIXED = Mixed(mix=Mix((CHAT, LONG), seed=3), words=COMMON)


def requests(source: Mixed, count: int = 200) -> list[Request]:
    return [source.request(number) for number in range(count)]


def words(request: Request) -> int:
    assert isinstance(request.prompt, str)
    return len(request.prompt.split())


def test_each_request_has_the_shape_of_its_number() -> None:
    for request in requests(MIXED):
        shape = MIXED.mix.shape(request.number)
        assert (request.input_tokens, request.output_tokens) == (shape.input_tokens, shape.output_tokens)
        assert (request.class_, request.cancel, words(request)) == (shape.class_, shape.cancel, shape.input_tokens)


@pytest.mark.parametrize(("tokens", "expected"), [(100, 40), (21, 1), (5, 1), (22, 1), (23, 2)])
def test_words_are_the_tokens_without_the_template_s_by_tokens_a_word(tokens: int, expected: int) -> None:
    """20 tokens of a template, 2 a word: (100 - 20) / 2 = 40 words, and a prompt has one at least."""
    mix = Mix((Class(input=parse(tokens), output=parse(1)),), seed=0)
    source = Mixed(mix=mix, words=COMMON, added_tokens=20, tokens_per_word=2.0)
    assert words(source.request(0)) == expected
    assert source.prompt_words == expected


def test_a_source_that_came_over_the_wire_asks_the_same() -> None:
    elsewhere = msgspec.msgpack.decode(msgspec.msgpack.encode(MIXED), type=Source)
    assert elsewhere == MIXED
    assert requests(elsewhere) == requests(MIXED)


def test_a_prefix_stands_before_a_prompt_that_stays_what_it_was() -> None:
    pool = Prefixes(vocabulary=Vocabulary(words=COMMON, seed=3, tokens_per_word=2.0), tokens=100, pool=4, share=0.5)
    prefixed = requests(msgspec.structs.replace(MIXED, prefixes=pool))
    for request, plain in zip(prefixed, requests(MIXED), strict=True):
        prefix = pool.text(request.number)
        assert request.prompt == prefix + str(plain.prompt)
        assert words(request) == words(plain) + (50 if prefix else 0)
        assert request.input_tokens == (plain.input_tokens or 0) + (100 if prefix else 0)
    assert 60 < sum(pool.index(number) is not None for number in range(200)) < 140


@pytest.mark.slow
def test_no_two_prompts_share_a_beginning_worth_caching() -> None:
    prompts = [str(request.prompt).split() for request in requests(MIXED, 3000)]
    assert len({tuple(prompt[:8]) for prompt in prompts}) == 3000
