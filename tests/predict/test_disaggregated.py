"""Two pools by hand: what each takes, how they share C, and what balances them."""

import msgspec
import pytest

from harness.base.errors import HarnessError
from harness.predict import roofline
from harness.predict.catalog import gpu, model_config
from harness.predict.deployment import deployment
from harness.predict.disaggregated import predict
from harness.predict.model import model
from harness.predict.steady import met
from harness.predict.step import decode_time, prefill_time, step_cost
from harness.spec.work import MeanLengths

LLAMA = model(model_config("llama-3.1-8b"), "llama-3.1-8b")
H100 = deployment(gpu("h100-sxm"), max_num_seqs=64)
CHAT = MeanLengths(2000, 201)  # 200 steps after the first token
COST = step_cost(LLAMA, H100)
PROMPT = COST.step + COST.request + prefill_time(COST, 2000)


TRANSFER = 2000 * 131_072 / (450e9 * 0.7)  # of 2,000 tokens' KV over NVLink, at the share that collectives reach
TAKEN_IN = 2000 * 1e-5 + 6 * decode_time(COST, 1, 2100.5)  # tokenised, and launched kernel by kernel


def pools(prefill=2, decode=2, levels=(1, 256), where=H100, load=CHAT, **asked):
    return predict(LLAMA, where, where, load, levels, gpus=(prefill, decode), **asked)


def test_a_pool_takes_as_much_as_its_replicas_alone():
    found = pools()
    assert found.prefill.requests_per_s.mid == pytest.approx(2 / PROMPT)
    full = decode_time(COST, 64, 64 * 2100.5)
    assert found.decode.requests_per_s.mid == pytest.approx(2 * 64 / (200 * full))
    assert found.decode_batch == 64


def test_one_request_goes_through_both_and_meets_nobody():
    (one, _) = pools().levels
    step = decode_time(COST, 1, 2100.5)
    assert one.ttft_s == pytest.approx(PROMPT + TRANSFER + TAKEN_IN, rel=1e-4)
    assert one.itl_s == pytest.approx(step, rel=1e-4)
    assert one.requests_per_s.mid == pytest.approx(1 / (PROMPT + TRANSFER + 200 * step), rel=1e-4)
    assert one.bound_by == "users"


def test_the_slower_pool_sets_the_rate_and_the_rest_wait_for_their_first_token():
    (full,) = pools(1, 4, [256]).levels
    assert full.bound_by == "prefill"
    assert full.requests_per_s.mid == pytest.approx(1 / PROMPT)
    batch = 200 * full.itl_s / PROMPT  # Little, of both decode replicas; with the queue: C = λ (TTFT + 200 ITL)
    others = met(COST, "usual")[0] * (batch - 1) * prefill_time(COST, 2000)
    assert full.ttft_s == pytest.approx(256 * PROMPT - 200 * full.itl_s + TAKEN_IN + others, rel=1e-4)
    (full,) = pools(8, 1, [256]).levels
    assert full.bound_by == "decode"
    assert full.itl_s == pytest.approx(decode_time(COST, 64, 64 * 2100.5))


def test_the_best_split_has_the_pool_that_is_full_first_as_large_as_it_can_be():
    found = pools(2, 2)
    a, b = found.prefill.requests_per_s.low / 2, found.decode.requests_per_s.low / 2
    rates = [min(n * a, (4 - n) * b) for n in (1, 2, 3)]
    assert found.best.requests_per_s_slow == pytest.approx(max(rates), rel=1e-4)
    assert (found.best.prefill_gpus, found.best.decode_gpus) == (
        1 + rates.index(max(rates)),
        3 - rates.index(max(rates)),
    )


def test_limits_end_the_load_where_the_slow_end_just_keeps_them():
    free, within = pools(slo={}), pools(slo={"tpot": 0.009})
    most = within.asked.requests_per_s_slow
    assert most < free.asked.requests_per_s_slow
    slow = 1.15  # of a dense model
    batch = most * 200 * 0.009 / 2  # Little: a decode replica has its share of λ for 200 steps
    assert slow * decode_time(COST, batch, batch * 2100.5) == pytest.approx(0.009, rel=1e-4)
    assert [level.meets_slo for level in pools(levels=[1, 64], slo={"tpot": 0.009}).levels] == [True, False]
    assert pools(slo={"ttft_p99": 0.01}).asked.requests_per_s_slow == 0
    assert pools(slo={"ttft_p99": 0.01}).together.requests_per_s_slow == 0


def test_a_rate_is_served_by_the_split_with_the_shortest_answers_and_has_the_fewest_gpus_that_are_enough():
    found = pools(4, 4, rate=20.0)
    a, b = (pool.requests_per_s.low / pool.replicas for pool in (found.prefill, found.decode))
    assert found.enough == (-(-20 // a), -(-20 // b))
    assert found.best.requests_per_s_slow >= 20
    assert found.best.output_tokens_per_s >= 20 * 201
    both = found.together
    assert both.decode_gpus == 8
    assert both.output_tokens_per_s >= 20 * 201
    assert both.requests_per_s_slow >= 20
    assert pools(1, 1, rate=200.0).best.concurrency is None


def test_the_kv_goes_over_the_network_where_the_pools_are_more_than_a_node():
    near, far = pools(4, 4), pools(8, 4)
    assert near.transfer_s == pytest.approx(TRANSFER)
    assert far.transfer_s == pytest.approx(TRANSFER * 9)  # 450 and 50 GB/s
    assert near.transfer_bytes == 2000 * 131_072


def test_pools_and_replicas_that_do_both_agree_on_one_request_in_flight_but_for_the_way_between():
    found = pools(1, 1, levels=[1])
    (alone,) = found.levels
    both = roofline.predict(LLAMA, H100, CHAT, [1]).levels[0]
    assert alone.itl_s == pytest.approx(both.itl_s, rel=0.02)
    assert alone.ttft_s == pytest.approx(both.ttft_s, rel=0.05)


def test_low_and_high_lie_around_the_middle_by_the_band_of_the_model():
    band = pools().prefill.requests_per_s
    assert (band.mid / band.low, band.high / band.mid) == pytest.approx((1.15, 1.22))


def test_a_pool_is_of_whole_replicas():
    two = msgspec.structs.replace(H100, tp=2, gpus=2)
    assert pools(4, 2, where=two).prefill.replicas == 2
    with pytest.raises(HarnessError, match="--decode-gpus: 3 GPUs are no whole replicas of 2; give a multiple"):
        pools(4, 3, where=two)
    with pytest.raises(HarnessError, match="--prefill-gpus: 0 GPUs"):
        pools(0, 2)


def test_an_answer_of_one_token_has_nothing_to_decode():
    with pytest.raises(HarnessError, match="--output-tokens"):
        pools(load=MeanLengths(2000, 1))
