"""Which setting is measured next, and which is the best (harness.decide.tuning)."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import tune as bench
from harness.base.errors import HarnessError
from harness.decide import tuning
from harness.decide.tuning import Setting, Trial


def trial(setting: Setting, value: float, number: int = 0, se: float = 0.0) -> Trial:
    return Trial(setting=setting.name, round=number, value=value, se=se)


def refused(setting: Setting) -> Trial:
    return Trial(setting=setting.name, round=0, error="no such option", refused=True)


def test_all_combinations_are_tried_and_the_best_predicted_one_first() -> None:
    settings = tuning.grid(["seqs=8,16", "kv=auto,fp8"])
    assert [each.name for each in settings] == [
        "seqs=8 kv=auto", "seqs=8 kv=fp8", "seqs=16 kv=auto", "seqs=16 kv=fp8",
    ]  # fmt: skip
    predicted = [Setting(each.values, float(i)) for i, each in enumerate(settings)]
    assert next(each.name for each in tuning.ordered(predicted)) == "seqs=16 kv=fp8"


@pytest.mark.parametrize("tries", [[], ["seqs"], ["=8"], ["seqs=8,,16"], ["seqs=8,8"], ["a=1", "a=2"]])
def test_what_names_no_values_is_refused(tries: list[str]) -> None:
    with pytest.raises(HarnessError):
        tuning.grid(tries)


def test_half_goes_on_after_the_first_round_and_what_is_shown_to_be_worse_does_not() -> None:
    settings = tuning.grid(["seqs=1,2,3,4"])
    trials = [trial(each, X) for each, X in zip(settings, [50.0, 99.0, 100.0, 98.5], strict=True)]
    going_on = [each.name for each, number in tuning.due(settings, trials) if number == 1]
    assert sorted(going_on) == ["seqs=2", "seqs=3"], "98.5 is the third, 50 is far below"


def test_it_is_over_when_one_is_shown_to_be_better_than_all_others() -> None:
    settings = tuning.grid(["seqs=1,2"])
    trials = [trial(settings[0], 50.0), trial(settings[1], 100.0)]
    assert tuning.due(settings, trials) == []
    best, worse = tuning.ranks(settings, trials)
    assert (best.setting, best.state, worse.state) == ("seqs=2", "best", "worse")
    assert worse.of_best is not None
    assert worse.of_best.value == pytest.approx(0.5)


def test_an_interval_is_no_narrower_than_two_starts_of_one_server_differ() -> None:
    (setting,) = tuning.grid(["seqs=1"])
    found = tuning.estimate([trial(setting, 100.0)], setting.name)
    assert found is not None
    assert found.se == pytest.approx(tuning.BETWEEN)
    twice = tuning.estimate([trial(setting, 100.0), trial(setting, 100.0, 1)], setting.name)
    assert twice is not None
    assert twice.se == pytest.approx(tuning.BETWEEN / math.sqrt(2))


def test_a_value_that_the_server_refuses_costs_one_start() -> None:
    settings = tuning.grid(["seqs=4,8", "kv=auto,nosuch"])
    by_name = {each.name: each for each in settings}
    trials = [trial(by_name["seqs=4 kv=auto"], 100.0), refused(by_name["seqs=4 kv=nosuch"])]
    assert [each.name for each, _ in tuning.due(settings, trials)] == ["seqs=8 kv=auto"]
    ranks = {rank.setting: rank for rank in tuning.ranks(settings, trials)}
    assert (ranks["seqs=8 kv=nosuch"].state, ranks["seqs=8 kv=nosuch"].why) == (
        "failed",
        "the server refuses kv=nosuch",
    )


def test_a_setting_that_fails_otherwise_says_nothing_of_its_neighbours() -> None:
    settings = tuning.grid(["seqs=4,8", "kv=auto,fp8"])
    by_name = {each.name: each for each in settings}
    failed = Trial(setting="seqs=8 kv=fp8", round=0, error="out of memory")
    trials = [trial(by_name["seqs=8 kv=auto"], 100.0), failed]
    assert {each.name for each, _ in tuning.due(settings, trials)} == {"seqs=4 kv=auto", "seqs=4 kv=fp8"}


@given(st.lists(st.floats(10.0, 1000.0), min_size=2, max_size=12), st.integers(0, 99))
def test_the_rounds_end_and_every_setting_has_a_rank(truth: list[float], seed: int) -> None:
    settings = tuning.grid(["seqs=" + ",".join(map(str, range(len(truth))))])
    draw, trials = random.Random(seed), list[Trial]()
    while waiting := tuning.due(settings, trials):
        setting, number = waiting[0]
        X = truth[settings.index(setting)] * draw.lognormvariate(0, 0.02)
        trials.append(trial(setting, X, number, 0.02))
    assert len(trials) <= len(truth) + math.ceil(len(truth) / 2) + 3
    ranks = tuning.ranks(settings, trials)
    assert [rank.state for rank in ranks].count("best") == 1
    assert {rank.setting for rank in ranks} == {each.name for each in settings}


def test_the_best_is_found_on_servers_that_are_not_as_predicted() -> None:
    settings, truth = bench.drawn(draw := random.Random(1))
    found, spent, full = bench.tuned(settings, truth, draw)
    assert truth[found] >= 0.97 * max(truth.values())
    assert spent <= 0.4 * full
