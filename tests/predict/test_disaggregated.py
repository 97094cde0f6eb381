"""Two pools by hand: what each takes, how they share C, and what balances them."""

import msgspec
import pytest

from harness.base.errors import HarnessError
from harness.predict.catalog import gpu, model_config
from harness.predict.deployment import deployment
from harness.predict.disaggregated import predict
from harness.predict.model import model
from harness.predict.step import decode_time, prefill_time, step_cost
from harness.spec.work import MeanLengths

LLAMA = model(model_config("llama-3.1-8b"), "llama-3.1-8b")
H100 = deployment(gpu("h100-sxm"), max_num_seqs=64)
CHAT = MeanLengths(2000, 201)  # 200 steps after the first token
COST = step_cost(LLAMA, H100)
PROMPT = COST.step + COST.request + prefill_time(COST, 2000)


def pools(prefill=2, decode=2, levels=(1, 256), where=H100, load=CHAT):
    return predict(LLAMA, where, load, levels, prefill_gpus=prefill, decode_gpus=decode)


def test_a_pool_takes_as_much_as_its_replicas_alone():
    found = pools()
    assert found.prefill.requests_per_s.mid == pytest.approx(2 / PROMPT)
    full = decode_time(COST, 64, 64 * 2100.5)
    assert found.decode.requests_per_s.mid == pytest.approx(2 * 64 / (200 * full))
    assert found.decode_batch == 64


def test_one_request_goes_through_both_and_meets_nobody():
    (one, _) = pools().levels
    step = decode_time(COST, 1, 2100.5)
    assert one.ttft_s == pytest.approx(PROMPT, rel=1e-6)
    assert one.itl_s == pytest.approx(step, rel=1e-6)
    assert one.requests_per_s.mid == pytest.approx(1 / (PROMPT + 200 * step), rel=1e-6)
    assert one.bound_by == "users"


def test_the_slower_pool_sets_the_rate_and_the_rest_wait_for_their_first_token():
    (full,) = pools(1, 4, [256]).levels
    assert full.bound_by == "prefill"
    assert full.requests_per_s.mid == pytest.approx(1 / PROMPT)
    assert full.ttft_s == pytest.approx(256 * PROMPT - 200 * full.itl_s)  # Little: C = λ (TTFT + 200 ITL)
    (full,) = pools(8, 1, [256]).levels
    assert full.bound_by == "decode"
    assert full.itl_s == pytest.approx(decode_time(COST, 64, 64 * 2100.5))


def test_the_balance_is_the_ratio_of_what_one_gpu_of_each_takes():
    found = pools(2, 2)
    a, b = found.prefill.requests_per_s.mid / 2, found.decode.requests_per_s.mid / 2
    assert found.balance == pytest.approx(b / a)
    prefill, decode = found.best_split
    assert prefill + decode == 4
    rates = [min(n * a, (4 - n) * b) for n in (1, 2, 3)]
    assert found.best_requests_per_s == pytest.approx(max(rates))
    assert prefill == 1 + rates.index(max(rates))


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
