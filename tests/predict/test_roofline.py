import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.base.errors import HarnessError
from harness.data.prediction import batch_cap
from harness.predict.batching import StepMachine
from harness.predict.catalog import gpu, model_config
from harness.predict.deployment import deployment, kv_capacity, slow
from harness.predict.model import model
from harness.predict.roofline import predict, recomputed
from harness.predict.simulate import closed_loop
from harness.predict.steady import caps, limits, steady_state
from harness.predict.step import decode_time, prefill_time, step_cost
from harness.spec.work import MeanLengths

H100_BW = 3.35e12
KV = 131_072  # 8B with 8 KV heads, bf16
LLAMA = model(model_config("llama-3.1-8b"), "llama-3.1-8b")
H100 = deployment(gpu("h100-sxm"))
NO_FRONT_END = {"o_token": 0.0, "o_first": 0.0}
CHAT = MeanLengths(1000, 200)


def on_h100(**figures):
    return msgspec.structs.replace(H100, **figures)


# ---- the model of one replica ---------------------------------------------------------------------------


def test_a_faster_clock_divides_every_time_and_nothing_else():
    plain, fast = step_cost(LLAMA, H100), step_cost(LLAMA, on_h100(speed=4.0))
    assert decode_time(fast, 8, 1000) == pytest.approx(decode_time(plain, 8, 1000) / 4)
    assert prefill_time(fast, 500) == pytest.approx(prefill_time(plain, 500) / 4)
    assert caps(LLAMA, on_h100(speed=4.0), CHAT) == pytest.approx(caps(LLAMA, H100, CHAT))


def test_kv_capacity_that_the_server_publishes_beats_the_estimate():
    small = on_h100(kv_tokens=16 * 690 + 7)
    assert kv_capacity(LLAMA, small) == 16 * 690
    # a mean context of 1000 + 200/2 tokens takes 69 blocks of 16
    assert caps(LLAMA, small, CHAT)["kv_memory"] == 10


def test_the_compute_cap_is_where_the_two_roofs_meet():
    short = MeanLengths(100, 64)
    B = caps(LLAMA, H100, short)["compute"]
    cost = step_cost(LLAMA, H100)
    assert cost.weights + B * (short.context + 1) * cost.kv == pytest.approx(
        B * (cost.token + short.context * cost.attend)
    )
    assert caps(LLAMA, H100, MeanLengths(4000, 64))["compute"] is None


def test_the_binding_cap_is_the_smallest_by_name():
    def binding(workload, **figures):
        return predict(LLAMA, on_h100(**figures), workload, [1]).binding_cap

    assert binding(CHAT, max_num_seqs=16) == "max_num_seqs"
    assert binding(CHAT, kv_tokens=11_040) == "kv_memory"


@pytest.mark.parametrize(
    ("name", "card", "shape", "seqs", "flat"),
    [
        ("llama-3.1-8b", "h100-sxm", MeanLengths(100, 64), 1024, True),  # 7,611 tok/s at 205, 7,880 at 1,024
        ("llama-3.1-8b", "h100-sxm", MeanLengths(10, 1000), 800, True),
        ("qwen2.5-0.5b", "rtx4090", MeanLengths(10, 1000), 256, False),  # 35,245 tok/s at 142, 39,134 at 256
        ("qwen2.5-0.5b", "rtx4090", MeanLengths(100, 64), 256, False),
        ("qwen2.5-0.5b", "rtx4090", MeanLengths(100, 64), 1024, True),  # far enough past it
    ],
)
def test_compute_is_the_hinge_where_throughput_is_flat_from_there_on_and_else_a_bend(name, card, shape, seqs, flat):
    served, there = model(model_config(name), name), deployment(gpu(card), max_num_seqs=seqs)
    limit, cost = caps(served, there, shape), step_cost(served, there)
    bend, stop = limit["compute"], batch_cap(limit)
    here, end = (steady_state(cost, shape, B, stop).throughput for B in (bend, stop))
    assert bend < stop
    assert (math.log(end / here) < 0.1 * math.log(stop / bend)) == flat
    found = predict(served, there, shape, [1])
    assert found.binding_cap == ("compute" if flat else "max_num_seqs")
    assert found.hinge_concurrency == (bend if flat else stop)
    assert [each.name for each in limits(served, there, shape) if each.binds] == [found.binding_cap]


def test_compute_that_would_only_bend_past_the_stop_binds_nothing():
    assert caps(LLAMA, H100, MeanLengths(10, 1000))["compute"] > 256
    assert predict(LLAMA, on_h100(max_num_seqs=256), MeanLengths(10, 1000), [1]).hinge_concurrency == 256


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


@pytest.mark.parametrize(("P", "G", "B"), [(100, 16, 256), (1000, 16, 64), (1000, 64, 256)])
def test_where_a_step_admits_several_a_first_token_waits_for_all_of_their_prompts(P, G, B):
    there, shape = on_h100(max_num_seqs=B, kv_tokens=2 * B * (P + G), **NO_FRONT_END), MeanLengths(P, G)
    cost = step_cost(LLAMA, there)
    point = steady_state(cost, shape, B, B)
    t_dec, t_pre = decode_time(cost, B, B * (P + G / 2)), prefill_time(cost, P, decoding=B - 1)
    assert point.ttft == pytest.approx(t_dec + B / G * t_pre)
    seen = closed_loop(StepMachine(LLAMA, there), shape, B, requests=8 * B, stagger=G * B / point.throughput)
    # Prompts bunch, so that more of them come into a step than its share; one alone would be a third of it at most.
    assert 1 < seen.ttft_s.mean / point.ttft < 1.6
    assert seen.ttft_s.mean > 3 * (t_dec + t_pre)
    assert seen.itl_s.mean == pytest.approx(point.itl, rel=0.03)


@pytest.mark.parametrize("B", [1, 8, 32])
def test_a_speculating_server_gives_its_first_tokens_after_a_whole_step(B):
    there = on_h100(max_num_seqs=B, acceptance=0.8, draft_tokens=3, draft_s=1e-3, **NO_FRONT_END)
    cost, shape = step_cost(LLAMA, there), MeanLengths(1000, 200)
    point = steady_state(cost, shape, B, B)
    assert point.ttft == pytest.approx(decode_time(cost, B, B * 1100) + prefill_time(cost, 1000))
    seen = closed_loop(StepMachine(LLAMA, there), shape, B, requests=20 * B, stagger=200 * B / point.throughput)
    assert seen.ttft_s.mean == pytest.approx(point.ttft, rel=0.2 if B > 1 else 0.01)
    assert seen.itl_s.mean == pytest.approx(point.itl, rel=0.02)


def test_an_answer_shorter_than_a_burst_takes_one_step_all_the_same():
    cost = step_cost(LLAMA, on_h100(acceptance=0.8, draft_tokens=3))
    assert cost.accepted > 2
    point = steady_state(cost, MeanLengths(100, 2), 1, 16)
    assert point.itl == 0
    assert point.ttft == pytest.approx(decode_time(cost, 1, 101) + prefill_time(cost, 100, decoding=1))


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


def test_a_request_longer_than_the_kv_cache_says_so():
    with pytest.raises(HarnessError, match="a request of 1200 tokens does not fit into a KV cache of 1024"):
        predict(LLAMA, on_h100(kv_tokens=1024), CHAT, [1])


# ---- several GPUs, experts, windows, and everything else that a server does ------------------------------


def served(name, card="h100-sxm", dtype="auto", kv_dtype="auto", **figures):
    made = model(model_config(name), name, dtype=dtype, kv_dtype=kv_dtype)
    return made, deployment(gpu(card), **figures)


def test_replicas_share_the_users_and_double_every_limit():
    one = predict(LLAMA, on_h100(max_num_seqs=16), CHAT, [8, 16])
    two = predict(LLAMA, on_h100(max_num_seqs=16, dp=2, gpus=2), CHAT, [1, 16, 32])
    assert two.levels[1].output_tokens_per_s.mid == pytest.approx(2 * one.levels[0].output_tokens_per_s.mid)
    assert two.caps["max_num_seqs"] == two.hinge_concurrency == 32
    assert two.scaling_efficiency == pytest.approx(1)
    # a single user has one of them
    assert two.levels[0].output_tokens_per_s == one.single_stream_tokens_per_s


def test_tensor_parallelism_scales_below_one():
    prediction = predict(*served("llama-3.1-8b", tp=4, max_num_seqs=64), CHAT, [1])
    assert 0.2 < prediction.scaling_efficiency < 0.9
    # 141 GB do not fit on one
    assert predict(*served("llama-3.1-70b", tp=4), CHAT, [1]).scaling_efficiency is None


def test_a_cached_prefix_needs_no_prefill_but_is_attended_to():
    cost = step_cost(LLAMA, H100)
    whole, rest = prefill_time(cost, 4000), prefill_time(cost, 4000, 3000)
    assert whole - rest == pytest.approx(3000 * cost.prompt + cost.prompt_attend * 3000**2)
    half = steady_state(step_cost(LLAMA, on_h100(prefix_hit=0.5)), CHAT, 64, 64)
    assert half.throughput > steady_state(cost, CHAT, 64, 64).throughput
    free = steady_state(step_cost(LLAMA, on_h100(prefix_hit=1.0)), CHAT, 64, 64)
    assert free.ttft < steady_state(cost, CHAT, 64, 64).ttft / 1.2


def test_the_token_budget_of_a_step_caps_the_batch():
    # each request brings 1 token a step and 1000/200 prompt tokens a step: 2048 / 6
    assert caps(LLAMA, on_h100(max_num_batched_tokens=2048), CHAT)["max_num_batched_tokens"] == pytest.approx(2048 / 6)


def test_fused_steps_hide_prefill_behind_memory_traffic_and_never_beat_the_flop_roof():
    serial, fused = (step_cost(LLAMA, on_h100(fused=w)) for w in (0.0, 1.0))
    assert steady_state(fused, CHAT, 1, 64) == steady_state(serial, CHAT, 1, 64)  # nobody to fuse with
    a, b = (steady_state(cost, CHAT, 64, 64) for cost in (serial, fused))
    assert a.throughput < b.throughput
    flop_per_token = 2 * 7_504_658_432 + (2 * 6_979_321_856 * 1000) / 200
    assert b.throughput * flop_per_token < 989.4e12 * 0.45


def test_speculation_gains_what_is_accepted_and_pays_for_what_is_verified():
    # α 0.8, γ 3: 1 + .8 + .64 + .512 tokens a step; 4 tokens verified; 3 drafts of 1 ms
    plain, drafting = (
        step_cost(LLAMA, on_h100(**figures))
        for figures in ({}, {"acceptance": 0.8, "draft_tokens": 3, "draft_s": 1e-3})
    )
    assert drafting.accepted == pytest.approx(2.952)
    wait = MeanLengths(1, 1000)
    assert decode_time(drafting, 1, 500) == pytest.approx(decode_time(plain, 1, 500) + 3e-3 + 3 * plain.kv)
    gain = steady_state(drafting, wait, 1, 64).throughput / steady_state(plain, wait, 1, 64).throughput
    assert gain == pytest.approx(2.952 * decode_time(plain, 1, 501) / decode_time(drafting, 1, 501), rel=2e-3)
    # where compute limits, verifying costs more than it gains
    short = MeanLengths(10, 200)
    loss = steady_state(drafting, short, 2000, 2000).throughput / steady_state(plain, short, 2000, 2000).throughput
    assert loss < 1
    assert step_cost(LLAMA, on_h100(acceptance=1.0, draft_tokens=4)).accepted == 5


def test_an_encoder_is_prefill_alone():
    prediction = predict(*served("bge-m3", dtype="auto"), MeanLengths(512, 128), [1, 64], slo={"e2e": 1.0}, price=2.0)
    level = prediction.levels[1]
    assert level.output_tokens_per_s.mid == prediction.output_tokens == 0
    assert level.itl_s is None
    assert prediction.caps["kv_memory"] is None
    # 64 · (2 · 301,989,888 · 512 + 4 · 24 · 1024 · 512²) FLOP / (989.4e12 · 0.45) + 24 · 32 + 126 + 64 · 4.4 µs
    assert level.ttft_s == pytest.approx(64 * 3.35009e11 / 445.23e12 + 1.1756e-3, rel=1e-4)
    assert level.requests_per_s.mid == pytest.approx(64 / level.ttft_s)
    # dollars of input tokens
    assert level.usd_per_million.mid == pytest.approx(2 / (level.requests_per_s.mid * 512 * 3600) * 1e6)


def test_a_decoder_that_only_embeds_is_prefill_alone_as_well():
    prediction = predict(LLAMA, H100, MeanLengths(1000, 0), [8])
    assert prediction.levels[0].requests_per_s.mid == pytest.approx(8 / prediction.levels[0].ttft_s)


def test_the_slo_cap_is_the_most_users_within_it():
    cost = step_cost(LLAMA, slow(LLAMA, H100))  # held at the slow end
    slo = {"tpot": 0.025, "ttft_p50": 1.0}
    limits = caps(LLAMA, H100, CHAT, slo)
    most, cap = limits["slo"], batch_cap(limits)
    assert most < cap
    assert steady_state(cost, CHAT, most, cap).itl <= 0.025 < steady_state(cost, CHAT, most + 1, cap).itl
    prediction = predict(LLAMA, H100, CHAT, [int(most), int(most) + 1], slo=slo)
    assert [level.meets_slo for level in prediction.levels] == [True, False]
    assert prediction.binding_cap == "slo"
    assert prediction.hinge_concurrency == cap  # the curve itself goes on


def test_an_slo_that_nothing_meets_allows_nobody_and_one_that_all_meet_binds_nowhere():
    assert caps(LLAMA, H100, CHAT, {"tpot": 1e-4})["slo"] == 0
    # above the cap the queue grows and with it TTFT, but ITL stays
    assert caps(LLAMA, H100, CHAT, {"itl": 10.0})["slo"] == math.inf
    queued = caps(LLAMA, on_h100(max_num_seqs=16), CHAT, {"ttft": 5.0})
    assert 16 < queued["slo"] < math.inf


def test_an_unknown_limit_names_the_nearest():
    with pytest.raises(HarnessError, match=r"unknown limit 'ttff_p99'; did you mean 'ttft_p99'\?"):
        caps(LLAMA, H100, CHAT, {"ttff_p99": 1.0})


def test_limits_carry_the_rate_that_each_alone_would_allow():
    by_name = {each.name: each for each in limits(LLAMA, on_h100(max_num_seqs=64), CHAT, {"tpot": 0.05})}
    assert by_name["weights"].tokens_per_s == pytest.approx(3.35e12 * 0.8 / 15_009_316_864)
    assert by_name["kv_traffic"].tokens_per_s == pytest.approx(3.35e12 * 0.8 / (1101 * KV))
    assert by_name["prefill"].tokens_per_s == pytest.approx(200 / prefill_time(step_cost(LLAMA, H100), 1000))
    assert by_name["kv_traffic"].concurrency == pytest.approx(15_009_316_864 / (1101 * KV))
    assert by_name["max_num_seqs"].concurrency == 64
    assert [each.name for each in by_name.values() if each.binds] == ["max_num_seqs"]


def test_a_level_says_what_most_of_its_time_goes_to():
    def bound(levels, workload, **figures):
        return [each.bound_by for each in predict(LLAMA, on_h100(**figures), workload, levels).levels]

    assert bound([1, 64, 65], CHAT, max_num_seqs=64) == ["weights", "prefill", "max_num_seqs"]
    assert bound([130], MeanLengths(2000, 2000)) == ["kv_traffic"]
    assert bound([800], MeanLengths(10, 1000), max_num_seqs=800) == ["compute"]
    small = predict(*served("qwen2.5-0.5b"), MeanLengths(100, 500), [1]).levels[0]
    assert small.bound_by == "overhead"


def test_a_price_makes_dollars_and_the_fast_end_is_the_cheap_one():
    level = predict(LLAMA, H100, CHAT, [64], price=2.0).levels[0]
    assert level.usd_per_million.mid == pytest.approx(2 / (level.output_tokens_per_s.mid * 3600) * 1e6)
    assert level.usd_per_million.low == pytest.approx(2 / (level.output_tokens_per_s.high * 3600) * 1e6)
    assert level.requests_per_s.mid == pytest.approx(level.output_tokens_per_s.mid / 200)


def test_reserving_whole_answers_holds_fewer_requests():
    long = MeanLengths(1000, 4000)
    assert caps(LLAMA, on_h100(reserve=True), long)["kv_memory"] < caps(LLAMA, H100, long)["kv_memory"]


@pytest.mark.parametrize(
    "shape", [MeanLengths(1000, 200), MeanLengths(256, 256), MeanLengths(256, 1024), MeanLengths(4000, 1000)]
)
@pytest.mark.parametrize("batch", [32, 128])
def test_past_a_kv_cache_that_is_full_what_is_evicted_is_computed_again(shape, batch):
    there = on_h100(max_num_seqs=1024, kv_tokens=int(batch * shape.context))
    cost, cap = step_cost(LLAMA, there), caps(LLAMA, there, shape)["kv_memory"]
    point = steady_state(cost, shape, 2 * cap, cap)
    left = recomputed(cost, shape, cap)
    machine, over = StepMachine(LLAMA, there), shape.output_tokens * point.itl
    seen = closed_loop(machine, shape, int(2 * cap), requests=int(12 * cap), stagger=over)
    assert seen.preemptions > 0
    assert left < 0.96
    assert seen.output_tokens_per_s / point.throughput == pytest.approx(left, abs=0.05)


def test_what_is_computed_again_is_said_only_where_kv_on_demand_stops_the_batch_and_users_wait():
    def notes_of(levels, **figures):
        notes = predict(LLAMA, on_h100(**figures), CHAT, levels).notes
        return [note for note in notes if "evicts" in note]

    (note,) = notes_of([1, 16], kv_tokens=11_040)  # 10 requests
    assert note == (
        "past 10 in flight the KV cache is full, and what it evicts is computed again: "
        "about 0.97 of the throughput that is shown"
    )
    assert notes_of([1, 8], kv_tokens=11_040) == []
    assert notes_of([1, 16], kv_tokens=11_040, reserve=True) == []
    assert notes_of([1, 16], kv_tokens=11_040, max_num_seqs=8) == []


# ---- properties, over servers of every kind -------------------------------------------------------------

SERVERS = [
    (LLAMA, H100),
    served("llama-3.1-70b", tp=4, pp=2),
    served("mixtral-8x7b", tp=4, ep=4, fused=0.5),
    served("gpt-oss-20b", kv_dtype="fp8", prefix_hit=0.5, max_num_batched_tokens=512),
    served("nemotron-3-nano-30b-a3b", acceptance=0.7, draft_tokens=2),
    served("deepseek-v3", "h200-sxm", tp=8, fused=1.0, o_api=0.01),
]
lengths = st.builds(MeanLengths, st.integers(1, 8000), st.integers(1, 2000))
servers = st.sampled_from(SERVERS)


@given(servers, lengths, st.integers(1, 400), st.integers(1, 400))
def test_throughput_rises_up_to_the_cap_and_keeps_its_height(server, workload, C, cap):
    cost = step_cost(*server)
    here, more = (steady_state(cost, workload, each, cap).throughput for each in (C, C + 1))
    assert more > here if cap > C else more == here


@given(servers, lengths, st.integers(1, 4000))
def test_no_throughput_beats_a_ceiling(server, workload, C):
    reached = steady_state(step_cost(*server), workload, C, math.inf).throughput
    for limit in limits(*server, workload):
        if limit.kind == "ceiling" and (limit.name != "prefill" or not server[1].fused):
            assert reached < limit.tokens_per_s * (1 + 1e-9)


@given(servers, lengths, st.integers(1, 400), st.integers(1, 400))
def test_littles_law_holds_at_every_point(server, workload, C, cap):
    point = steady_state(step_cost(*server), workload, C, cap)
    G = workload.output_tokens
    assert point.throughput / G * (point.ttft + (G - 1) * point.itl) == pytest.approx(C)
    assert point.itl > 0 or server[1].draft_tokens >= G - 1  # all of the answer may be in its first burst
    assert point.ttft > 0


@given(servers, lengths, st.integers(1, 400))
def test_as_the_kv_limit_grows_the_capped_curve_becomes_the_hyperbola(server, workload, C):
    cost = step_cost(*server)
    free = steady_state(cost, workload, C, math.inf).throughput
    reached = [steady_state(cost, workload, C, cap).throughput for cap in (C / 4, C / 2, C, 2 * C)]
    assert reached == sorted(reached)
    assert reached[2] == reached[3] == free


def test_between_the_bends_n_over_x_is_a_straight_line():
    # y = a + bC exactly, while memory traffic limits: the family that the fit assumes
    cost = step_cost(LLAMA, H100)
    y = [C / steady_state(cost, CHAT, C, math.inf).throughput for C in (10, 20, 30)]
    assert y[1] - y[0] == pytest.approx(y[2] - y[1])
