"""What one screen says must agree, whatever the model, the card, the precision and the lengths are."""

import itertools

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from harness.base.errors import HarnessError
from harness.data.prediction import batch_cap
from harness.predict import disaggregated, question
from harness.predict.catalog import gpus, models

CLOSE = 1 + 1e-9
QUESTIONS = {
    "model": st.sampled_from(models()),
    "gpu": st.sampled_from([card.key for card in gpus()]),
    "dtype": st.sampled_from(["auto", "fp8", "int8", "int4", "nvfp4"]),
    "kv_dtype": st.sampled_from(["auto", "fp8"]),
    "input_tokens": st.sampled_from([1, 64, 512, 3000, 30_000]),
    "output_tokens": st.sampled_from([1, 7, 128, 2000]),
    "figures": st.fixed_dictionaries(
        {"tp": st.sampled_from([1, 2, 8])},
        optional={
            "max_num_batched_tokens": st.sampled_from([256, 2048, 8192]),
            "max_num_seqs": st.sampled_from([1, 32]),
            "prefix_hit": st.sampled_from([0.5, 0.99]),
        },
    ),
}


def answered(**asked):
    """Return the answer, or skip the example where there is none, like a model that does not fit."""
    try:
        return question.answer(question.Question(**asked))
    except HarnessError:
        assume(False)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.fixed_dictionaries(QUESTIONS))
def test_throughput_rises_with_the_load_to_a_plateau_that_no_level_exceeds(asked):
    found = answered(**asked).prediction
    single, plateau = found.single_stream_tokens_per_s, found.plateau_tokens_per_s
    for end in ("low", "mid", "high"):
        rates = [getattr(level.throughput, end) for level in found.levels]
        assert getattr(single, end) <= getattr(plateau, end) * CLOSE
        assert all(before <= after * CLOSE for before, after in itertools.pairwise(rates))
        assert max(rates) <= getattr(plateau, end) * CLOSE
    for band in (single, plateau, *(level.throughput for level in found.levels)):
        assert 0 < band.low <= band.mid <= band.high


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.fixed_dictionaries(QUESTIONS))
def test_the_band_of_the_plateau_holds_every_level_at_which_the_batch_is_full(asked):
    found = answered(**asked).prediction
    plateau = found.plateau_tokens_per_s
    for level in found.levels:
        if level.concurrency >= batch_cap(found.caps):
            assert plateau.low <= level.throughput.mid * CLOSE
            assert level.throughput.mid <= plateau.high * CLOSE


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.fixed_dictionaries(QUESTIONS))
def test_no_figure_beats_its_own_roof(asked):
    found = answered(**asked)
    for limit in found.limits:
        if limit.kind == "ceiling":
            assert max(level.output_tokens_per_s.mid for level in found.prediction.levels) <= limit.tokens_per_s * CLOSE


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.fixed_dictionaries(QUESTIONS),
    st.sampled_from(["ttft_p99", "itl", "tpot", "tpot_p99", "e2e_p50"]),
    st.sampled_from([0.01, 0.025, 0.1, 2.0]),
)
def test_a_level_meets_the_slo_up_to_the_load_that_the_head_names(asked, limit, seconds):
    found = answered(**asked, slo={limit: seconds})
    last = found.prediction.caps.get("slo")
    for level in found.prediction.levels:
        assert level.meets_slo is (last is None or level.concurrency <= last)


def test_a_prompt_longer_than_a_step_takes_leaves_one_request_at_a_time():
    found = answered(
        model="llama-3.1-8b",
        gpu="h100-sxm",
        input_tokens=60_000,
        output_tokens=2,
        figures={"max_num_batched_tokens": 512},
    ).prediction
    assert found.caps["max_num_batched_tokens"] == 1.0
    assert found.plateau_tokens_per_s.mid == pytest.approx(found.single_stream_tokens_per_s.mid)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.fixed_dictionaries(QUESTIONS), st.sampled_from([{"tpot": 0.03}, {"ttft_p99": 1.0}, {"ttft": 2.0, "itl": 0.02}])
)
def test_pools_of_prefill_and_decode_agree_with_their_limits_and_with_other_splits(asked, slo):
    assume(asked["output_tokens"] > 1)
    tp = asked["figures"]["tp"]

    def pools(**more):
        made, where, mean = question.setup(question.Question(**asked))
        sizes = 2 * tp, 2 * tp
        return disaggregated.predict(made, where, where, mean, [1, 4, 16, 64, 256], gpus=sizes, **more)

    try:
        free, within = pools(), pools(slo=slo)
    except HarnessError:
        assume(False)
    for found in (free, within):
        assert found.best.requests_per_s_slow >= found.asked.requests_per_s_slow
        rates = [level.requests_per_s.mid for level in found.levels]
        assert all(before <= after * (1 + 1e-5) for before, after in itertools.pairwise(rates))
        least = min(found.prefill.requests_per_s.mid, found.decode.requests_per_s.mid)
        assert max(rates) <= least * (1 + 1e-5)
    assert within.asked.requests_per_s_slow <= free.asked.requests_per_s_slow * (1 + 1e-5)
    met = [level.meets_slo for level in within.levels]
    assert met == sorted(met, reverse=True)
    assert met[0] == (within.asked.requests_per_s_slow > 0)
    served = [level.requests_per_s.low for level, kept in zip(within.levels, met, strict=True) if kept]
    assert max(served, default=0.0) <= within.asked.requests_per_s_slow * (1 + 1e-5)
