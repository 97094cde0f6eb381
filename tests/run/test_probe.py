"""A phase probe is planned from what was asked and what the server has room for."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.run.launch.endpoint import Endpoint, Prompts, probe_lengths
from harness.spec import reading, ready, scenario
from harness.workload import probe, shape
from tests.builders.endpoints import checked

PROMPTS = Prompts(count=504, tokens=512, used=2)


def asked(kind: str | None, input_tokens: int = 512, output_tokens: int = 128) -> scenario.Scenario:
    given = scenario.Scenario()
    return msgspec.structs.replace(
        given,
        workload=msgspec.structs.replace(given.workload, input_tokens=input_tokens, output_tokens=output_tokens),
        ramp=msgspec.structs.replace(given.ramp, probe=kind),
    )


def found(max_context: int | None = None, **changes: Any) -> Endpoint:
    return checked(max_context=max_context, prompts=msgspec.structs.replace(PROMPTS, **changes))


def lengths(tokens: int = 512, /, **changes: Any) -> list[int]:
    return probe_lengths(probe.scenario_for(asked(probe.PREFILL, tokens)), found(**changes))


def test_a_prefill_probe_asks_for_one_token_and_keeps_the_prompt() -> None:
    got = probe.scenario_for(asked(probe.PREFILL)).workload
    assert (got.input_tokens, got.output_tokens) == (512, 1)


def test_a_decode_probe_asks_short_prompts_for_long_answers() -> None:
    def workload(**changes: int) -> tuple[int, int]:
        got = probe.scenario_for(asked(probe.DECODE, **changes)).workload
        return got.input_tokens, got.output_tokens

    assert workload() == (32, 256)
    assert workload(output_tokens=1000) == (32, 1000)


def test_a_decode_probe_s_answers_stay_in_the_context_with_what_the_prompts_come_to() -> None:
    given = asked(probe.DECODE, output_tokens=1000)
    assert probe.scenario_for(given, 512).workload.output_tokens == 480
    assert probe.scenario_for(given, 512, 60).workload.output_tokens == 452
    assert probe.scenario_for(given, 40, 50).workload.output_tokens == 1


def test_no_probe_changes_nothing() -> None:
    assert probe.scenario_for(asked(None), 100) == asked(None)
    for kind in (None, probe.DECODE):
        assert probe_lengths(asked(kind), found()) == []


@given(
    st.sampled_from([None, probe.PREFILL, probe.DECODE]), st.integers(1, 9000), st.integers(1, 9000),
    st.none() | st.integers(40, 9000), st.none() | st.integers(1, 100),
)  # fmt: skip
def test_a_scenario_that_was_a_probe_s_already_stays_as_it_is(
    kind: str | None, input_tokens: int, output_tokens: int, context: int | None, counted: int | None
) -> None:
    once = probe.scenario_for(asked(kind, input_tokens, output_tokens), context, counted)
    assert probe.scenario_for(once, context, counted) == once, "a run is resumed by what its manifest holds"


def test_prompts_grow_by_equal_ratios_and_the_asked_length_is_among_them() -> None:
    got = lengths(512)
    # 64 · 64^(i/7), and the asked length among them
    assert got == [64, 116, 210, 380, 512, 689, 1248, 2261, 4096]


def test_long_prompts_are_exceeded_four_times() -> None:
    assert lengths(2048)[-1] == 8192
    assert lengths(2048)[0] == 64


def test_a_length_next_to_the_asked_one_is_left_out() -> None:
    assert lengths(400) == [64, 116, 210, 400, 689, 1248, 2261, 4096]


def test_prompts_stay_in_the_context_that_the_server_publishes() -> None:
    exact = lengths(512, max_context=1025, exact=True)
    assert exact[-1] == 1024, "and one token of answer"
    assert 512 in exact
    assert lengths(512, max_context=1025)[-1] == 972, "5 % clear where words may be more than a token"
    assert lengths(1000, max_context=1025)[-1] == 1000, "what was asked fits: the launch check tried it"
    assert lengths(40, max_context=60) == [40]


def test_prompts_are_never_so_few_words_that_they_repeat() -> None:
    got = lengths(512, count=412)  # a template of 100 tokens
    assert got[0] == 116
    assert min(found(count=412).prompts.words_for(tokens) for tokens in got) == 16


@given(st.integers(1, 20_000), st.integers(0, 500), st.none() | st.integers(100, 40_000), st.booleans())
def test_whatever_is_asked_it_is_among_rising_lengths_that_fit(
    asked_tokens: int, added: int, context: int | None, exact: bool
) -> None:
    if context is not None and asked_tokens + 1 > context:
        return  # refused by the launch check
    got = lengths(
        asked_tokens, tokens=asked_tokens, count=asked_tokens - added, max_context=context,
        exact=exact,
    )  # fmt: skip
    assert asked_tokens in got
    assert 1 <= len(got) <= 9
    assert all(low < high for low, high in itertools.pairwise(got))
    assert context is None or got[-1] + 1 <= context


@pytest.mark.parametrize(
    ("counted", "words", "tokens", "expected"),
    [
        (512, 504, 4096, 4088),  # eight tokens are added to every prompt
        (512, 512, 64, 64),
        (None, 512, 64, 64),  # it does not count: words are taken for tokens
        (512, 412, 64, 1),
        (520, 515, 100, 95),  # the check could not make it exact; what it knows still holds
    ],
)
def test_words_are_the_tokens_without_those_that_the_server_adds(
    counted: int | None, words: int, tokens: int, expected: int
) -> None:
    assert found(tokens=counted, count=words).prompts.words_for(tokens) == expected


def test_classes_that_fit_are_shortened_to_the_context() -> None:
    """Prompts of the ready checks: 95 % of the context is for a prefix of 1,000 tokens, the prompt and its answer."""
    spec = reading.load(str(ready.path("checks")))
    roomy, tight = (probe.scenario_for(spec, context) for context in (131_072, 4096))
    assert [each.input for each in roomy.class_ or ()] == ["lognormal(600,600) in 20..4k", 32_000]
    chat, long = tight.class_ or ()
    assert long.input == int(0.95 * 4096) - 1000 - 300
    assert chat.input == f"lognormal(600,600) in 20..{int(0.95 * 4096) - 1000 - 708}"
    assert probe.scenario_for(tight, 4096) == tight
    # Each keeps its tokens: 33,300 of a long request in each 101 come as 8.6 requests of 3,891.
    assert long.share == pytest.approx(33_300 / 3_891)
    asked, kept = (
        [each.share * (1000 + each.input.mean() + each.output.mean()) for each in shape.of(x).classes]
        for x in (roomy, tight)
    )
    assert kept == pytest.approx(asked)
