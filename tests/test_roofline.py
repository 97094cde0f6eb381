import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import HarnessError
from harness.predict.catalog import gpu, model_config
from harness.predict.model import kv_bytes_per_token, model, weight_bytes_per_step
from harness.predict.roofline import (
    Workload,
    b_star,
    bandwidth_floor,
    batch_cap,
    caps,
    ceiling0,
    closed_loop_throughput,
    decode_time,
    deployment,
    kv_batch,
    kv_capacity,
    mixed_step,
    predict,
    prefill0,
    prefill_time,
    ridge,
    slo_batch,
    steady_state,
    step_cost,
    tpot0,
    x0,
)

H100_BW = 3.35e12
KV = 131_072  # 8B with 8 KV heads, bf16
LLAMA = model(model_config("llama-3.1-8b"), "llama-3.1-8b")
H100 = deployment(gpu("h100-sxm"))
CHAT = Workload(1000, 200)


def on_h100(**figures):
    return msgspec.structs.replace(H100, **figures)


# ---- the rules of thumb, against the golden cases of their sources --------------------------------------


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
    assert bandwidth_floor(W, BW) * 1e3 == pytest.approx(milliseconds, rel=rel)
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
    assert ridge(989e12, H100_BW) == pytest.approx(295, rel=0.002)  # G20


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


def test_littles_law_gives_a_closed_loop_its_throughput():
    assert closed_loop_throughput(100, 0.2, 200, 0.025) == pytest.approx(3864.7, rel=1e-3)  # G32


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
    assert bandwidth_floor(16e9, H100_BW * 0.7) / slope == pytest.approx(30.560, rel=1e-3)


def test_prefill_leaves_the_embeddings_out_and_attends_to_its_own_prompt():
    # G33b by hand. body = 32 · (2·4096² + 2·4096·1024 + 3·4096·14336) = 6,979,321,856
    #   matrices   2 · body · 1000            = 1.39586e13 FLOP
    #   logits     2 · 128256 · 4096          = 1.0507e9    (of the last prompt token only)
    #   attention  2 · 32 · 32 · 128 · 1000²  = 2.62144e11
    #   sum        1.422182e13; over 989e12 · 0.5 = 28.760 ms, far above reading the weights (6.8 ms)
    #   step = 10.758 + 64/200 · 28.760 = 19.961 ms; X = 64 / 19.961 ms = 3206.2 tok/s
    card = msgspec.structs.replace(gpu("h100-sxm"), flops={"bf16": 989e12})
    cost = step_cost(LLAMA, deployment(card, mbu=0.7, mfu_prefill=0.5))
    t_pre = prefill_time(cost, 1000)
    assert t_pre == pytest.approx(28.760e-3, rel=1e-4)
    step = mixed_step(64, 200, tpot0(64, 16e9, 1100, KV, H100_BW, 0.7), t_pre)
    assert 64 / step == pytest.approx(3206.2, rel=1e-3)


# ---- the model of one replica ---------------------------------------------------------------------------


def test_a_decode_step_is_memory_traffic_plus_overhead():
    # (15.00932e9 + 64·1101·131072) / (3.35e12·0.8) = 9.0470 ms; 32·32 µs + 126 µs + 64·4.4 µs = 1.4316 ms
    assert weight_bytes_per_step(LLAMA) == 15_009_316_864
    assert decode_time(step_cost(LLAMA, H100), 64, 64 * 1100) == pytest.approx(10.4786e-3, rel=1e-4)


def test_a_large_batch_of_short_contexts_is_bound_by_compute():
    # 512 · (2·7,504,658,432 + 4·32·32·128·10) / (989.4e12·0.45) = 17.2656 ms; mem = 5.8762 ms;
    # overhead 1.024 + 0.126 + 512·0.0044 = 3.4028 ms
    assert decode_time(step_cost(LLAMA, H100), 512, 512 * 10) == pytest.approx(20.6684e-3, rel=1e-4)


def test_a_faster_clock_divides_every_time_and_nothing_else():
    plain, fast = step_cost(LLAMA, H100), step_cost(LLAMA, on_h100(speed=4.0))
    assert decode_time(fast, 8, 1000) == pytest.approx(decode_time(plain, 8, 1000) / 4)
    assert prefill_time(fast, 500) == pytest.approx(prefill_time(plain, 500) / 4)
    assert caps(LLAMA, on_h100(speed=4.0), CHAT) == pytest.approx(caps(LLAMA, H100, CHAT))


def test_kv_capacity_is_what_memory_leaves_beside_weights_and_activations():
    # 81559 MiB · 0.9 - 16.05999e9 - 5.65 GiB = 54.84206e9 bytes / 131072 = 418,412 tokens = 26,150 blocks
    assert kv_capacity(LLAMA, H100) == 26_150 * 16


def test_kv_capacity_that_the_server_publishes_beats_the_estimate():
    small = on_h100(kv_tokens=16 * 690 + 7)
    assert kv_capacity(LLAMA, small) == 16 * 690
    # a mean context of 1000 + 200/2 tokens takes 69 blocks of 16
    assert caps(LLAMA, small, CHAT)["kv_memory"] == 10


def test_the_compute_cap_is_where_the_two_roofs_meet():
    short = Workload(100, 64)
    B = caps(LLAMA, H100, short)["compute"]
    cost = step_cost(LLAMA, H100)
    assert cost.weights + B * (short.context + 1) * cost.kv == pytest.approx(
        B * (cost.token + short.context * cost.attend)
    )
    assert caps(LLAMA, H100, Workload(4000, 64))["compute"] is None


def test_the_binding_cap_is_the_smallest_by_name():
    def binding(workload, **figures):
        return predict(LLAMA, on_h100(**figures), workload, [1]).binding_cap

    assert binding(CHAT, max_num_seqs=16) == "max_num_seqs"
    assert binding(CHAT, kv_tokens=11_040) == "kv_memory"
    assert binding(Workload(100, 64), max_num_seqs=1024) == "compute"


def test_alone_a_request_takes_its_prefill_and_its_steps():
    cost = step_cost(LLAMA, H100)
    t_dec, t_pre = decode_time(cost, 1, 1100), prefill_time(cost, 1000)
    point = steady_state(cost, CHAT, 1, 16)
    assert point.itl == pytest.approx(t_dec)
    assert point.ttft == pytest.approx(t_dec + t_pre)
    assert point.throughput == pytest.approx(200 / (200 * t_dec + t_pre))


def test_below_the_cap_ttft_is_one_step_and_one_prefill_whatever_the_load():
    cost = step_cost(LLAMA, on_h100(o_api=0.003))
    t_pre = prefill_time(cost, 1000)
    for C in (1, 4, 16):
        point = steady_state(cost, CHAT, C, 16)
        assert point.ttft == pytest.approx(decode_time(cost, C, C * 1100) + t_pre + 0.003)


def test_above_the_cap_ttft_rises_by_one_service_time_per_user():
    cost = step_cost(LLAMA, H100)
    full, over = steady_state(cost, CHAT, 16, 16), steady_state(cost, CHAT, 17, 16)
    assert over.throughput == full.throughput
    assert over.itl == full.itl
    assert over.ttft - full.ttft == pytest.approx(200 / full.throughput)


def test_the_band_spans_the_middle_and_the_plateau_is_the_level_past_the_cap():
    prediction = predict(LLAMA, on_h100(max_num_seqs=16), CHAT, [1, 16, 64])
    for band in [level.output_tokens_per_s for level in prediction.levels]:
        assert band.low < band.mid < band.high
    assert prediction.levels[0].output_tokens_per_s == prediction.single_stream_tokens_per_s
    assert prediction.levels[1].output_tokens_per_s == prediction.plateau_tokens_per_s
    assert prediction.levels[2].output_tokens_per_s == prediction.plateau_tokens_per_s
    assert prediction.hinge_concurrency == 16


def test_a_figure_outside_the_usual_range_stays_inside_its_band():
    band = predict(LLAMA, on_h100(mbu=0.95), CHAT, [4]).levels[0].output_tokens_per_s
    assert band.low < band.mid < band.high


def test_a_model_that_does_not_fit_says_so():
    seventy = model(model_config("llama-3.1-70b"), "llama-3.1-70b")
    with pytest.raises(HarnessError, match=r"llama-3.1-70b \(141 GB of weights\) does not fit on one h100-sxm"):
        predict(seventy, H100, CHAT, [1])


def test_a_request_longer_than_the_kv_cache_says_so():
    with pytest.raises(HarnessError, match="a request of 1200 tokens does not fit into a KV cache of 1024"):
        predict(LLAMA, on_h100(kv_tokens=1024), CHAT, [1])


def test_several_gpus_are_refused_not_guessed():
    with pytest.raises(HarnessError, match="8 GPUs are not predicted yet"):
        predict(LLAMA, on_h100(gpus=8), CHAT, [1])


def test_mfu_follows_the_card():
    assert deployment(gpu("a100-80-sxm")).mfu_prefill == 0.38
    assert deployment(gpu("l40s")).mfu_decode == 0.32
    assert deployment(gpu("h200-sxm"), mfu_prefill=0.5).mfu_prefill == 0.5


lengths = st.builds(Workload, st.integers(1, 8000), st.integers(1, 2000))


@given(lengths, st.integers(1, 400), st.integers(1, 400))
def test_throughput_rises_up_to_the_cap_and_keeps_its_height(workload, C, cap):
    cost = step_cost(LLAMA, H100)
    here, more = (steady_state(cost, workload, each, cap).throughput for each in (C, C + 1))
    assert more > here if cap > C else more == here


@given(lengths, st.integers(1, 4000))
def test_no_throughput_beats_the_kv_ceiling_or_the_flop_roof(workload, C):
    reached = steady_state(step_cost(LLAMA, H100), workload, C, math.inf).throughput
    assert reached < ceiling0(workload.context, kv_bytes_per_token(LLAMA), H100.gpu.bandwidth, H100.mbu)
    assert reached < H100.gpu.flops["bf16"] * H100.mfu_decode / (2 * 7_504_658_432)


@given(lengths, st.integers(1, 400))
def test_littles_law_holds_at_every_point(workload, C):
    point = steady_state(step_cost(LLAMA, H100), workload, C, batch_cap(caps(LLAMA, H100, workload)))
    G = workload.output_tokens
    assert point.throughput / G * (point.ttft + (G - 1) * point.itl) == pytest.approx(C)
