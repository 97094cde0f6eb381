"""Requests that differ in length: predicted step by step, where the mean request would mislead."""

from __future__ import annotations

import http.client
import itertools
import json
import math
import threading
import time
from urllib.parse import urlsplit

import msgspec
import pytest

from harness.base.errors import HarnessError
from harness.data.prediction import Prediction
from harness.predict import roofline
from harness.predict.batching import StepMachine
from harness.predict.catalog import gpu, model_config
from harness.predict.deployment import deployment
from harness.predict.model import model
from harness.predict.simulate import closed_loop
from harness.predict.step import prefill_time, step_cost
from harness.predict.stepped import at_levels, at_rates
from harness.sim.process import running
from harness.sim.profile import profile
from harness.spec.distribution import parse
from harness.spec.work import MeanLengths, means
from harness.workload.shape import Class, Mix

LLAMA = model(model_config("llama-3.1-8b"), "llama-3.1-8b")
H100 = deployment(gpu("h100-sxm"), max_num_seqs=24)
COST = step_cost(LLAMA, H100)
PAIR = [(200, 40), (1000, 80)]

CHATS = Class(name="chat", share=50, input=parse("300±50"), output=parse("lognormal(120,80)"))
MIXES = {
    "lengths that vary": Mix((Class(input=parse("lognormal(400,300)"), output=parse("lognormal(150,100)")),), 1),
    "two classes": Mix(
        (
            Class(name="chat", share=9, input=parse("100..500"), output=parse("150±40")),
            Class(name="summary", share=1, input=parse("8k"), output=parse("32..64")),
        ),
        2,
    ),
    "a long tail": Mix((CHATS, Class(name="document", share=1, input=parse("32k"), output=parse("64"))), 8),
}


def by_means(mix: Mix, levels: list[int]) -> Prediction:
    mean = mix.mean()
    return roofline.predict(LLAMA, H100, MeanLengths(mean.input_tokens, mean.output_tokens), levels)


def test_requests_that_are_all_alike_have_the_closed_form() -> None:
    assert not roofline.predict(LLAMA, H100, MeanLengths(512, 128), [1, 8]).step_machine


def test_lengths_that_do_not_differ_come_to_the_closed_form() -> None:
    # One step is lost where a request ends in the midst of others' prompts: 2 % at most.
    found = roofline.predict(LLAMA, H100, [(512, 128)] * 3, [1, 8, 24])
    closed = roofline.predict(LLAMA, H100, MeanLengths(512, 128), [1, 8, 24])
    for mine, level in zip(found.levels, closed.levels, strict=True):
        assert mine.output_tokens_per_s.mid == pytest.approx(level.output_tokens_per_s.mid, rel=0.02)
        assert mine.itl_s == pytest.approx(level.itl_s, rel=0.02)
    assert found.plateau_tokens_per_s.mid == pytest.approx(closed.plateau_tokens_per_s.mid, rel=0.02)


def test_one_user_takes_the_time_of_each_request_in_turn() -> None:
    found = roofline.predict(LLAMA, H100, PAIR, [1], price=2.0)
    # Alone each request takes its prompt, and a step a token with a context that grows by one.
    seconds = 0.0
    for P, G in PAIR:
        machine = StepMachine(LLAMA, H100)
        seconds += G / closed_loop(machine, MeanLengths(P, G), 1, requests=1).output_tokens_per_s
    (level,) = found.levels
    assert level.output_tokens_per_s.mid == pytest.approx(120 / seconds)
    assert level.requests_per_s is not None
    assert level.requests_per_s.mid == pytest.approx(2 / seconds)
    assert found.single_stream_tokens_per_s == level.output_tokens_per_s
    assert level.usd_per_million is not None
    assert level.usd_per_million.mid == pytest.approx(2.0 / 3600 / (120 / seconds) * 1e6)


def test_the_band_lies_about_the_middle_as_the_closed_form_has_it() -> None:
    found = roofline.predict(LLAMA, H100, PAIR, [8])
    closed = roofline.predict(LLAMA, H100, means(PAIR), [8])
    mine, band = found.levels[0].output_tokens_per_s, closed.levels[0].output_tokens_per_s
    assert mine.mid != band.mid
    assert (mine.low / mine.mid, mine.high / mine.mid) == pytest.approx((band.low / band.mid, band.high / band.mid))
    assert found.caps == closed.caps
    assert found.assumptions.prefill_s == pytest.approx((prefill_time(COST, 200) + prefill_time(COST, 1000)) / 2)
    assert found.notes[-1].startswith("lengths differ")


def test_its_levels_stand_with_their_percentiles_and_meet_an_slo() -> None:
    found = roofline.predict(LLAMA, H100, MIXES["a long tail"].stratified(700), [4, 48], slo={"tpot": 0.012})
    assert [level.concurrency for level in found.step_machine] == [4, 48]
    for level, stepped in zip(found.levels, found.step_machine, strict=True):
        assert stepped.ttft_s is not None
        assert level.ttft_s == stepped.ttft_s.mean
        assert level.meets_slo == (level.itl_s <= 0.012)
    assert {level.meets_slo for level in found.levels} == {True, False}


def test_the_window_has_each_request_of_a_mixture_equally_often() -> None:
    lengths = [(100, n) for n in range(1, 401)]
    closed = roofline.predict(LLAMA, H100, means(lengths), [4]).levels
    assert at_levels(LLAMA, H100, lengths, closed)[0].requests == 800  # 662 for a p99, in rounds of 400


def test_a_mixture_comes_at_a_rate_too() -> None:
    evenly = at_rates(LLAMA, H100, PAIR, [4.0], lambda level, rate: (i / rate for i in itertools.count()))[0]
    assert evenly.output_tokens_per_s == pytest.approx(4.0 * 60, rel=0.01)


def test_its_longest_request_must_fit_into_the_cache() -> None:
    small = msgspec.structs.replace(H100, kv_tokens=4096)
    with pytest.raises(HarnessError, match=r"a request of 5100 tokens does not fit"):
        roofline.predict(LLAMA, small, [(100, 100)] * 50 + [(5000, 100)], [1])


@pytest.mark.slow
@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES.keys())
def test_a_thousand_requests_stand_for_all_that_are_drawn(mix: Mix) -> None:
    # 20,000, so that even one in 51 comes as often as its share says, to 5 %.
    drawn = [(each.input_tokens, each.output_tokens) for each in map(mix.shape, range(21_000))]
    (level,) = roofline.predict(LLAMA, H100, mix.stratified(1000), [16]).levels
    seen = closed_loop(StepMachine(LLAMA, H100, means(drawn).context), drawn, 16, requests=20_000, stagger=1.0)
    assert level.output_tokens_per_s.mid == pytest.approx(seen.output_tokens_per_s, rel=0.03)
    assert level.itl_s == pytest.approx(seen.itl_s.mean, rel=0.05)
    assert level.ttft_s == pytest.approx(seen.ttft_s.mean, rel=0.1)  # who meets a long prompt is left to the order


def test_the_mean_request_promises_too_much_where_there_is_a_long_tail() -> None:
    mix = MIXES["a long tail"]
    found, promised = roofline.predict(LLAMA, H100, mix.stratified(1000), [48]), by_means(mix, [48])
    assert promised.levels[0].output_tokens_per_s.mid > 1.1 * found.levels[0].output_tokens_per_s.mid


# ---- against the simulated endpoint ---------------------------------------------------------------------


def measured(url: str, mix: Mix, users: int, requests: int) -> float:
    """Output tokens/s of a closed loop of users on real sockets, once each has had two answers."""
    lengths, answers = itertools.cycle(mix.stratified(requests)), []
    lock, over = threading.Lock(), threading.Event()

    def user() -> None:
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        while not over.is_set():
            with lock:
                P, G = next(lengths)
            body = {"prompt": "word " * P, "max_tokens": G, "ignore_eos": True}
            connection.request("POST", "/v1/completions", json.dumps(body))
            tokens = json.loads(connection.getresponse().read())["usage"]["completion_tokens"]
            answers.append((time.monotonic(), tokens))
            if len(answers) > 2 * users + requests:
                over.set()
        connection.close()

    threads = [threading.Thread(target=user) for _ in range(users)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    window = answers[2 * users : 2 * users + requests + 1]
    return sum(tokens for _, tokens in window[1:]) / (window[-1][0] - window[0][0])


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("name", ["two classes", "a long tail"])  # whose lengths vary too
def test_a_mixture_is_predicted_within_five_percent_of_the_simulated_endpoint(name: str) -> None:
    mix = MIXES[name]
    served = profile(max_num_seqs=24, speed=2.0)
    found = roofline.predict(served.model, served.deployment, mix.stratified(1000), [16])
    with running(served) as url:
        throughput = measured(url, mix, 16, 408)
    assert math.isfinite(throughput)
    assert throughput == pytest.approx(found.levels[0].output_tokens_per_s.mid, rel=0.05)
