"""The requests that a prediction is made of: one length for all, or a thousand that stand for a mixture."""

from __future__ import annotations

import tomllib

import pytest

from harness.spec import reading
from harness.spec.scenario import Scenario
from harness.spec.work import MeanLengths, means
from harness.workload.shape import cached_share, representative


def built(toml: str) -> Scenario:
    return reading.build(tomllib.loads(toml), place="x.toml")


def test_one_length_for_all_is_a_mean_request_and_anything_else_a_thousand_requests() -> None:
    assert representative(built("[workload]\ninput_tokens = 100\noutput_tokens = 20")) == MeanLengths(100, 20)
    found = representative(built('[workload]\ninput_tokens = "1..9"\noutput_tokens = 20'))
    assert not isinstance(found, MeanLengths)
    assert len(found) == 1000
    assert means(found).input_tokens == pytest.approx(5, abs=0.01)
    classes = built('[[class]]\nname = "a"\nshare = 3\ninput = 10\n[[class]]\nname = "b"\ninput = 50')
    assert means(representative(classes)).input_tokens == 20  # (3 · 10 + 50) / 4


def test_a_shared_prefix_lengthens_the_prompts_that_have_one_and_is_cached() -> None:
    prefix = "[workload.prefix]\ntokens = 400\nshare = 0.25\n"
    alike = built(f"[workload]\ninput_tokens = 100\n{prefix}")
    assert representative(alike) == MeanLengths(200, 128)  # 100 + 0.25 · 400
    assert cached_share(alike) == 0.5
    found = representative(built(f'[workload]\ninput_tokens = "100..101"\n{prefix}'))
    assert not isinstance(found, MeanLengths)
    assert sum(P >= 500 for P, _ in found) == 250
    assert cached_share(built("")) == 0


def test_sessions_and_graphs_are_not_known_before_the_run() -> None:
    assert not built("").has_tasks
    assert built("[workload.session]\nturns = 3\nuser_tokens = 50").has_tasks
    assert built('[[workload.node]]\nname = "plan"').has_tasks
