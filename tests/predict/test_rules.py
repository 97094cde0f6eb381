import pytest

from harness.predict.catalog import model_config
from harness.predict.claims import prefill0
from harness.predict.model import kv_bytes_per_token, model
from harness.predict.steady import mixed_step, requests_per_s
from tests.builders.rules_of_thumb import b_star, ceiling0, kv_batch, slo_batch, tpot0, x0

H100_BW = 3.35e12
KV = 131_072  # 8B with 8 KV heads, bf16
LLAMA = model(model_config("llama-3.1-8b"), "llama-3.1-8b")

# Against the golden cases of their sources.


@pytest.mark.parametrize(
    ("W", "BW", "milliseconds", "per_second", "rel"),
    [
        (140e9, H100_BW, 41.79, 23.93, 0.01),  # G1: 70B bf16
        (70e9, H100_BW, 20.90, 47.86, 0.01),  # G4: 70B fp8
        (70e9, 4.8e12, 14.58, 68.57, 0.025),  # G5: H200
        (70e9, 2.0e12, 35.0, 28.57, 0.025),  # G6: H100 PCIe
    ],
)
def test_a_decode_step_reads_every_weight_once(W, BW, milliseconds, per_second, rel):
    assert tpot0(1, W, 0, 0, BW) * 1e3 == pytest.approx(milliseconds, rel=rel)
    assert x0(1, W, 0, 0, BW) == pytest.approx(per_second, rel=rel)


def test_a_batch_shares_the_weight_traffic():
    assert x0(32, 140e9, 0, 0, H100_BW) == pytest.approx(765.7, rel=0.005)  # G2
    assert H100_BW / x0(32, 140e9, 0, 0, H100_BW) == pytest.approx(4.375e9)  # G3: bytes a token


def test_kv_traffic_sets_a_ceiling_that_no_batch_beats():
    assert 2000 * kv_bytes_per_token(LLAMA) == pytest.approx(2.62144e8, rel=1e-3)  # G8
    assert ceiling0(1, 1, H100_BW, 0.7) == pytest.approx(2.345e12, rel=3e-3)  # G9: bytes/s reached
    ceiling = ceiling0(2000, KV, H100_BW, 0.7)
    assert ceiling == pytest.approx(8945.5, rel=0.005)  # G10
    alone = x0(1, 16e9, 0, 0, H100_BW, 0.7)
    assert alone == pytest.approx(146.6, rel=0.01)  # G11
    assert x0(1, 16e9, 2000, KV, H100_BW, 0.7) == pytest.approx(144.2, rel=0.01)
    assert ceiling / alone == pytest.approx(61.0, rel=0.02)  # G12


def test_at_b_star_throughput_is_half_its_ceiling():
    batch = b_star(16e9, 2000, KV)
    assert batch == pytest.approx(61.04, rel=1e-3)  # G13
    assert x0(batch, 16e9, 2000, KV, H100_BW, 0.7) == pytest.approx(ceiling0(2000, KV, H100_BW, 0.7) / 2)


def test_prefill_is_bound_by_the_compute_roof():
    assert prefill0(989e12, 0.5, 8e9) == pytest.approx(30_906, rel=0.002)  # G14


def test_the_slo_knee_is_the_largest_batch_within_the_limit():
    B = slo_batch(0.025, 16e9, 2000, KV, H100_BW, 0.7)
    assert B == 162  # G15
    assert x0(B, 16e9, 2000, KV, H100_BW, 0.7) == pytest.approx(6497, rel=1e-3)
    assert tpot0(B, 16e9, 2000, KV, H100_BW, 0.7) <= 0.025 < tpot0(B + 1, 16e9, 2000, KV, H100_BW, 0.7)
    assert slo_batch(0.001, 16e9, 2000, KV, H100_BW, 0.7) == 0


def test_kv_memory_holds_so_many_requests():
    B = kv_batch(80e9, 0.9, 16e9, 2000, KV)
    assert B == 213  # G18
    assert x0(B, 16e9, 2000, KV, H100_BW, 0.7) == pytest.approx(6953, rel=1e-3)


def test_a_token_rate_completes_requests():
    assert requests_per_s(6000, 200) == 30  # G30


def test_prefills_share_the_steps_with_decoding():
    t_dec, t_pre = tpot0(64, 16e9, 1100, KV, H100_BW, 0.7), 1000 / prefill0(989e12, 0.5, 8e9)
    assert t_pre == pytest.approx(32.36e-3, rel=1e-3)  # G33
    assert t_dec == pytest.approx(10.758e-3, rel=1e-3)
    step = mixed_step(64, 200, t_dec, t_pre)
    assert step == pytest.approx(21.112e-3, rel=1e-3)
    assert 64 / step == pytest.approx(3031.5, rel=1e-3)
    slope = mixed_step(1e9, 200, tpot0(1e9, 16e9, 1100, KV, H100_BW, 0.7), t_pre) / 1e9
    assert 1 / slope == pytest.approx(4479, rel=1e-3)
    # a / b by hand: 6.82303 ms / (61.484 µs + 161.780 µs) = 30.560, quoted as 30.6
    assert tpot0(1, 16e9, 0, 0, H100_BW, 0.7) / slope == pytest.approx(30.560, rel=1e-3)
