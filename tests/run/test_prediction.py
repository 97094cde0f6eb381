"""The prediction of a run, from what was asked and from what the checks found."""

from __future__ import annotations

import tomllib

import msgspec
import pytest

from harness.data.prediction import Prediction
from harness.predict import roofline
from harness.run.launch.endpoint import Prompts
from harness.run.prediction import predict
from harness.sim.profile import profile
from harness.spec import reading, work
from harness.workload import shape
from tests.builders.endpoints import checked

PROMPTS = Prompts(words=("a",), count=500, tokens=508)  # 8 tokens of the template, and a token a word
SERVED = profile(speed=1.0)


def predicted(toml: str, prompts: Prompts = PROMPTS) -> Prediction:
    asked = reading.read(tomllib.loads(f"ramp.levels = [4]\n{toml}"), place="x.toml")
    return predict(asked, checked(prompts=prompts), SERVED.model, SERVED.deployment, simulated=True)


def test_prompts_of_one_length_are_predicted_as_the_server_counts_them() -> None:
    found = predicted("[workload]\ninput_tokens = 512")
    assert (found.input_tokens, found.step_machine) == (508, [])
    longer = msgspec.structs.replace(PROMPTS, count=600, tokens=608)  # the checks ask with the prefix
    assert predicted("[workload]\ninput_tokens = 512\nprefix = { tokens = 100 }", longer).input_tokens == 608


def test_lengths_that_vary_are_predicted_step_by_step_from_what_was_asked() -> None:
    toml = '[workload]\ninput_tokens = "100..900"\noutput_tokens = "lognormal(60,30)"'
    found = predicted(toml)
    mix = shape.of(reading.build(tomllib.loads(toml), place="x.toml"))
    assert (
        found.levels
        == roofline.predict(SERVED.model, SERVED.deployment, mix.stratified(1000), [4], simulated=True).levels
    )
    closed = roofline.predict(SERVED.model, SERVED.deployment, work.MeanLengths(500, 60), [4])
    assert found.levels[0].output_tokens_per_s.mid == pytest.approx(closed.levels[0].output_tokens_per_s.mid, rel=0.05)
    assert [level.concurrency for level in found.step_machine] == [4]


def test_no_prompt_is_shorter_than_its_template_and_a_word() -> None:
    assert predicted('[workload]\ninput_tokens = "1..2"').input_tokens == 9
