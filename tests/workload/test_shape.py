"""The shapes of requests: classes by their shares, lengths by their class, the same on any worker."""

from __future__ import annotations

import tomllib
from collections import Counter

import msgspec
import pytest

from harness.spec import reading
from harness.spec.classes import Cancel
from harness.spec.distribution import Fixed, Normal, parse
from harness.spec.work import MeanLengths
from harness.workload import shape
from harness.workload.shape import Class, Mix, Shape
from tests.builders.fit import kolmogorov_smirnov

CHAT = Class(name="chat", share=9, input=parse("512±64"), output=parse("lognormal(128,80)"))
LONG = Class(name="long", share=1, input=parse("32k"), output=parse("16..64"), cancel=Cancel(share=0.25, after_s=2.0))
MIX = Mix((CHAT, LONG), seed=3)


def shapes(mix: Mix, count: int = 5000) -> list[Shape]:
    return [mix.shape(number) for number in range(count)]


def asked(toml: str) -> Mix:
    return shape.of(reading.build(tomllib.loads(toml), place="x.toml"))


def test_a_scenario_without_distributions_asks_for_one_shape() -> None:
    mix = asked("[workload]\ninput_tokens = 100\noutput_tokens = '2k'\nseed = 5")
    assert {mix.shape(number) for number in range(100)} == {Shape(100, 2000)}
    assert mix.mean() == MeanLengths(100, 2000)
    assert isinstance(mix.mean().input_tokens, int)
    assert isinstance(mix.mean().output_tokens, int)
    assert mix.seed == 5


def test_the_mean_prompt_has_the_mean_prefix() -> None:
    """Half of the prompts begin with 1,000 tokens beside their own 100."""
    mix = asked("[workload]\ninput_tokens = 100\noutput_tokens = 20\nprefix = { tokens = 1000, share = 0.5 }")
    assert mix.mean() == MeanLengths(600.0, 20)
    assert mix.shape(0).input_tokens == 100


def test_a_scenario_s_lengths_may_be_distributions() -> None:
    mix = asked('[workload]\ninput_tokens = "512±64"\noutput_tokens = "1..5"')
    assert mix.classes == (Class(input=Normal(512, 64), output=parse("1..5")),)
    assert mix.mean() == MeanLengths(pytest.approx(512.0), 3.0)


def test_a_scenario_s_classes_are_the_mix_s() -> None:
    mix = asked(
        '[[class]]\nname = "chat"\nshare = 500\ninput = "512±64"\n'
        '[[class]]\nname = "long"\ninput = "32k"\noutput = 8\nmodel = "lora-1"\npriority = -1\nstructured = true\n'
        'slo = { ttft_p99 = "5s" }\ncancel = { share = 0.1, after_s = "2s" }'
    )
    assert mix.classes == (
        Class(name="chat", share=500, input=Normal(512, 64), output=Fixed(128)),
        Class(name="long", input=Fixed(32_000), output=Fixed(8), cancel=Cancel(share=0.1, after_s=2.0)),
    )


def test_one_seed_and_number_is_one_shape_in_any_order_and_on_any_worker() -> None:
    there = msgspec.msgpack.decode(msgspec.msgpack.encode(MIX), type=Mix)
    backwards = {number: there.shape(number) for number in reversed(range(200))}
    assert [backwards[number] for number in range(200)] == shapes(MIX, 200)
    assert shapes(MIX, 200) != shapes(Mix((CHAT, LONG), seed=4), 200)


def test_classes_are_asked_as_often_as_their_shares_say() -> None:
    """Nine in ten: 4,500 ± 3 · √(5000 · 0.9 · 0.1) = 64."""
    found = Counter(each.class_ for each in shapes(MIX))
    assert found["chat"] == pytest.approx(4500, abs=64)
    assert found["chat"] + found["long"] == 5000


def test_a_class_without_a_share_is_never_asked() -> None:
    for classes in ((CHAT, msgspec.structs.replace(LONG, share=0)), (msgspec.structs.replace(LONG, share=0), CHAT)):
        assert {each.class_ for each in shapes(Mix(classes, seed=0), 1000)} == {"chat"}


def test_lengths_within_a_class_fit_its_distributions() -> None:
    chats = [each for each in shapes(MIX) if each.class_ == "chat"]
    assert kolmogorov_smirnov([each.input_tokens for each in chats], CHAT.input.cdf) > 0.01
    assert kolmogorov_smirnov([each.output_tokens for each in chats], CHAT.output.cdf) > 0.01


def test_the_mean_request_is_weighted_by_the_shares() -> None:
    """One prompt of 32,000 tokens among 500 of 500: (500 · 500 + 32,000) / 501 = 562.87."""
    chat, long = (
        Class(name=n, share=s, input=parse(i), output=parse(10)) for n, s, i in (("a", 500, 500), ("b", 1, "32k"))
    )
    assert Mix((chat, long), seed=0).mean() == MeanLengths(pytest.approx(562.874, abs=1e-3), pytest.approx(10.0))
    found = shapes(MIX, 20_000)
    assert sum(each.input_tokens for each in found) / len(found) == pytest.approx(MIX.mean().input_tokens, rel=0.02)
    assert sum(each.output_tokens for each in found) / len(found) == pytest.approx(MIX.mean().output_tokens, rel=0.02)


def test_a_stratified_sample_keeps_shares_and_laws_as_closely_as_whole_requests_can() -> None:
    found = MIX.stratified(1000)
    chats, longs = [each for each in found if each[0] < 9000], [each for each in found if each[0] > 9000]
    assert (len(chats), len(longs)) == (900, 100)
    assert {prompt for prompt, _ in longs} == {32_000}
    # 49 lengths by 100 requests: two of each, and two more somewhere.
    assert sorted(Counter(answer for _, answer in longs).values()) == [2] * 47 + [3] * 2
    for place, law in enumerate((CHAT.input, CHAT.output)):
        lengths = [each[place] for each in chats]
        assert sum(lengths) / len(lengths) == pytest.approx(law.mean(), rel=0.002)
        assert max(abs(law.cdf(n) - sum(each <= n for each in lengths) / 900) for n in set(lengths)) < 2 / 900
    assert MIX.stratified(1000) == found
    assert msgspec.structs.replace(MIX, seed=4).stratified(1000) != found


def test_in_a_stratified_sample_the_classes_are_mixed_and_prompts_have_any_answer() -> None:
    found = MIX.stratified(1000)
    assert 30 < sum(prompt > 9000 for prompt, _ in found[:500]) < 70, "50 ± 4 · √(100 · 1/4)"
    chats = [each for each in found if each[0] < 9000]
    above = sum((prompt > 512) == (answer > 108) for prompt, answer in chats)  # 108: the median of the answers
    assert above == pytest.approx(450, abs=60), "half of 900, ± 4 · √(900 / 4)"


def test_a_stratified_sample_of_a_trace_takes_its_pairs_evenly() -> None:
    pairs = [(100, 900), (900, 100), (500, 500)]
    assert Counter(Mix((shape.joint(pairs),), seed=1).stratified(300)) == dict.fromkeys(pairs, 100)
    assert Mix((shape.joint(pairs), msgspec.structs.replace(CHAT, share=0)), seed=1).stratified(2) != []


def test_a_share_of_a_class_is_given_up_and_no_other() -> None:
    """A quarter of the long ones, some 500: 125 ± 3 · √(500 · 0.25 · 0.75) = 29."""
    found = shapes(MIX)
    assert {each.cancel for each in found if each.class_ == "chat"} == {None}
    long = [each.cancel for each in found if each.class_ == "long"]
    assert set(long) == {None, Cancel(share=0.25, after_s=2.0)}
    assert len([each for each in long if each]) / len(long) == pytest.approx(0.25, abs=0.06)


def test_lengths_of_a_trace_stay_together() -> None:
    pairs = [(100, 900), (900, 100), (500, 500)]
    both = shape.joint(pairs)
    assert (both.input.mean(), both.output.mean()) == (500.0, 500.0)
    found = Counter((each.input_tokens, each.output_tokens) for each in shapes(Mix((both,), seed=1), 3000))
    assert set(found) == set(pairs)
    assert min(found.values()) > 900, "a third each, ± 4 · √(3000 · 1/3 · 2/3)"
