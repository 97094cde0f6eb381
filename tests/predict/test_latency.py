"""Latencies at a steady state, by how many requests meet."""

from __future__ import annotations

import math

import msgspec
import pytest

from harness.predict.steady import Latencies, SteadyState, latencies, meets
from harness.predict.step import StepCost
from harness.spec.work import MeanLengths

COST = StepCost(
    weights=0.01,
    kv=0,
    token=0,
    attend=0,
    prompt=1e-4,
    prompt_head=0,
    prompt_attend=0,
    step=0,
    request=0,
    api=0,
    together=0.2,
)
AT_11 = SteadyState(11, 0.0, 0.02, 0.11)
CHAT = MeanLengths(1000, 100)


@pytest.mark.parametrize(
    ("meeting", "mean", "p99"), [("evenly", 0.11, 0.11), ("usual", 0.21, 0.51), ("at once", 0.61, 1.11)]
)
def test_a_first_token_waits_for_the_prompts_that_it_meets(meeting, mean, p99):
    # ten others, 0.1 s each: a tenth of them on average where a fifth meets, and two fifths at the 99th percentile
    found = latencies(AT_11, COST, CHAT, meeting)
    assert (found.ttft, found.ttft_p99) == (pytest.approx(mean), pytest.approx(p99))
    assert found.e2e == pytest.approx(mean + 99 * 0.02)


@pytest.mark.parametrize(("cached", "meeting", "steps"), [(0, "usual", 6.0), (600, "usual", 1.1), (0, "evenly", 1.1)])
def test_a_first_token_waits_for_the_front_end_and_for_kernels_that_no_graph_holds(cached, meeting, steps):
    cost = msgspec.structs.replace(COST, token_in=1e-5, first=6.0, graphed=512, cached=cached / 1000)
    alone = SteadyState(1, 0.0, 0.02, 0.11)
    # 1000 tokens, and steps of 10 ms
    assert latencies(alone, cost, CHAT, meeting).ttft == pytest.approx(0.11 + 0.01 + steps * 0.01)


def test_the_longest_gaps_have_prompts_that_meet_by_chance():
    # 0.11 prompts a step: at the 99th percentile one, of 0.1 s; its mean share is in the ITL already
    assert latencies(AT_11, COST, CHAT, "usual").itl_p99 == pytest.approx(0.02 + (1 - 0.11) * 0.1)
    rare = latencies(SteadyState(1, 0.0, 0.02, 0.11), COST, MeanLengths(1000, 1000), "usual")
    assert rare.itl_p99 == 0.02  # one gap in a thousand


def test_without_decoding_a_batch_is_one_pass_and_nothing_waits():
    found = latencies(SteadyState(11, 0.0, math.nan, 1.1), COST, MeanLengths(1000, 0), "at once")
    assert found.ttft == found.ttft_p99 == found.e2e == 1.1
    assert math.isnan(found.itl_p99)


@pytest.mark.parametrize(
    ("slo", "met"),
    [
        ({"ttft_p50": 0.4}, True),
        ({"ttft_p99": 0.4}, False),
        ({"ttft": 0.4}, False),  # of a request, which 99 % have to meet
        ({"ttft_p99": 0.6, "itl_p99": 0.05}, False),
        ({"tpot": 0.03, "e2e_p50": 3.0}, True),
        ({"itl": 0.03}, True),  # of a request, whose ITL is its TPOT
        ({"itl": 0.01}, False),
        ({"itl_p99": 0.03}, False),  # of gaps
        ({"icl": 0.03}, False),  # of a request, whose longest gap it limits
        ({}, True),
    ],
)
def test_limits_are_held_against_the_99th_percentile_but_for_medians(slo, met):
    assert meets(Latencies(0.3, 0.5, 0.02, 0.1, 2.3, 2.5), slo) is met
