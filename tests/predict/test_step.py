import msgspec
import pytest

from harness.predict import step
from harness.predict.catalog import gpu, model_config
from harness.predict.deployment import deployment
from harness.predict.model import model, weights
from harness.predict.steady import mixed_step
from harness.predict.step import decode_time, prefill_time, step_cost, weights_read
from harness.spec.work import MeanLengths, means
from tests.builders.rules_of_thumb import tpot0

H100_BW = 3.35e12
KV = 131_072  # 8B with 8 KV heads, bf16
LLAMA = model(model_config("llama-3.1-8b"), "llama-3.1-8b")
H100 = deployment(gpu("h100-sxm"))


def on_h100(**figures):
    return msgspec.structs.replace(H100, **figures)


def served(name, card="h100-sxm", dtype="auto", kv_dtype="auto", **figures):
    made = model(model_config(name), name, dtype=dtype, kv_dtype=kv_dtype)
    return made, deployment(gpu(card), **figures)


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


def test_a_decode_step_is_memory_traffic_plus_overhead():
    # (15.00932e9 + 64·1101·131072) / (3.35e12·0.8) = 9.0470 ms; 32·32 µs + 126 µs + 64·4.4 µs = 1.4316 ms
    assert weights(LLAMA).read(1) == 15_009_316_864
    assert decode_time(step_cost(LLAMA, H100), 64, 64 * 1100) == pytest.approx(10.4786e-3, rel=1e-4)


def test_a_large_batch_of_short_contexts_is_bound_by_compute():
    # 512 · (2·7,504,658,432 + 4·32·32·128·10) / (989.4e12·0.45) = 17.2656 ms; mem = 5.8762 ms;
    # overhead 1.024 + 0.126 + 512·0.0044 = 3.4028 ms
    assert decode_time(step_cost(LLAMA, H100), 512, 512 * 10) == pytest.approx(20.6684e-3, rel=1e-4)


def test_tensor_parallelism_divides_the_work_and_pays_on_the_links():
    # 70B over 4: 160 all-reduces of 15 µs, and 160 · 2 · 3/4 · 8192 · 2 bytes / (0.7 · 450 GB/s) = 12.483 µs a token
    alone, four = (step_cost(*served("llama-3.1-70b", "mi300x" if n == 1 else "h100-sxm", tp=n)) for n in (1, 4))
    assert alone.sync == alone.sync_token == 0
    assert four.sync == pytest.approx(160 * 15e-6)
    assert four.sync_token == pytest.approx(12.483e-6, rel=1e-3)
    # weights without the input embedding: 2 · (68,451,041,280 + 1,050,673,152) bytes over 4 · 3.35e12 · 0.8
    assert four.weights == pytest.approx(2 * 69_501_714_432 / (4 * 3.35e12 * 0.8))
    # B = 8, ctx 1000: 13.01 ms of weights and KV, 2.47 ms of links, 2.56 + 0.126 + 8 · 0.0188 ms of overhead
    assert decode_time(four, 8, 8000) == pytest.approx(
        four.weights + 8008 * 327_680 / (4 * 3.35e12 * 0.8) + 160 * 15e-6 + 8 * four.sync_token + 0.0028364, rel=1e-4
    )


def test_a_rank_keeps_one_kv_head_at_least_and_all_of_what_heads_share():
    grouped = {tp: step_cost(*served("llama-3.1-70b", tp=tp)).kv for tp in (4, 8, 16)}
    assert grouped[4] == pytest.approx(2 * grouped[8])
    assert grouped[16] == grouped[8]
    latent = {tp: step_cost(*served("deepseek-v3", "h200-sxm", tp=tp)).kv for tp in (8, 16)}
    assert latent[8] == latent[16] == pytest.approx(70_272 / (4.8e12 * 0.8))


def test_a_pipeline_pays_bubbles_and_hops():
    made, two = served("llama-3.1-8b", pp=2)
    plain, piped = step_cost(LLAMA, H100), step_cost(made, two)
    hop = 15e-6
    # alone a request passes one stage after the other; with two batches in it, 3 stage times of half the batch
    assert decode_time(piped, 1, 1100) == pytest.approx(decode_time(plain, 1, 1100) + hop)
    assert decode_time(piped, 64, 70400) == pytest.approx(1.5 * decode_time(plain, 32, 35200) + hop)
    # more batches, fewer bubbles: (m + pp - 1) / m
    many = step_cost(made, msgspec.structs.replace(two, micro_batches=8))
    assert decode_time(many, 64, 70400) == pytest.approx(4.5 * decode_time(plain, 8, 8800) + hop)


def test_experts_are_read_as_the_batch_hits_them():
    cost = step_cost(*served("mixtral-8x7b", tp=2))
    each = 32 * 3 * 4096 * 14336 * 2 / (2 * 3.35e12 * 0.8)
    steps = [decode_time(cost, B, 0) - cost.request * B - B * (cost.kv + cost.sync_token) for B in (1, 4)]
    assert steps[1] - steps[0] == pytest.approx((5.46875 - 2) * each)


def test_spread_experts_pay_two_all_to_alls_a_layer_in_place_of_a_reduce():
    reduced, within = (step_cost(*served("deepseek-v3", "h200-sxm", tp=8, ep=n)) for n in (1, 8))
    spread = step_cost(*served("deepseek-v3", "h200-sxm", tp=8, dp=2, ep=16))
    # 122 all-reduces; or 64 and 116 all-to-alls: two in each of 58 layers
    assert reduced.sync == within.sync == pytest.approx(122 * 15e-6)
    assert within.sync_token == reduced.sync_token  # every rank of one replica has all tokens
    assert spread.sync == pytest.approx((64 + 116) * 15e-6)
    # each token once for each of its 8 experts, an eighth of the tokens from each rank: 116 · 8 · 15/16 / 8 · 7168 · 2
    token = 7168 * 2 / (0.7 * 450e9)
    assert spread.sync_token == pytest.approx(64 * 2 * 7 / 8 * token + 116 * 8 * 15 / 16 / 8 * token)


def test_replicas_that_share_experts_hit_more_of_them_and_hold_fewer():
    own, shared = (step_cost(*served("deepseek-v3", "h200-sxm", tp=8, dp=2, ep=n)) for n in (8, 16))
    assert shared.expert == pytest.approx(own.expert / 2)
    assert shared.sharing == 2


def test_windowed_layers_read_no_more_than_their_window():
    cost = step_cost(*served("gpt-oss-20b"))
    bytes_per_s = 3.35e12 * 0.8
    # one more token of context costs its 12 full layers alone, 12 · 2048 bytes
    assert decode_time(cost, 1, 5001) - decode_time(cost, 1, 5000) == pytest.approx(12 * 2048 / bytes_per_s, rel=1e-3)
    assert decode_time(cost, 1, 101) - decode_time(cost, 1, 100) == pytest.approx(24 * 2048 / bytes_per_s, rel=1e-3)


def test_a_prompt_in_windowed_layers_attends_to_the_window():
    cost = step_cost(*served("gpt-oss-20b"))
    each = 4 * 64 * 64 / (989.4e12 * 0.45)  # one token attending to one other in one layer
    longer = [prefill_time(cost, P) for P in (4000, 4001)]
    # the 4001st token sees 4000.5 others in 12 layers and 128 in 12
    linear = cost.prompt
    assert longer[1] - longer[0] - linear == pytest.approx(12 * (4000.5 + 128) * each, rel=1e-3)


def test_a_prompt_in_chunks_reads_the_weights_once_for_each():
    cost, chunked = step_cost(LLAMA, H100), step_cost(LLAMA, on_h100(max_num_batched_tokens=100))
    assert prefill_time(chunked, 100) == prefill_time(cost, 100)
    assert prefill_time(chunked, 1000) == pytest.approx(10 * cost.weights)


def test_precision_of_storage_is_not_that_of_computing():
    def cost(card, dtype):
        return step_cost(*served("llama-3.1-8b", card, dtype=dtype))

    plain, fp8, mxfp4 = (cost("h100-sxm", dtype) for dtype in ("auto", "fp8", "mxfp4"))
    # body in half the time, the head as before
    assert fp8.prompt == pytest.approx(plain.prompt * 989.4 / 1978.9)
    assert fp8.token == pytest.approx(fp8.prompt + plain.token - plain.prompt)
    assert fp8.weights < 0.6 * plain.weights
    # a Hopper has no fp4 units: smaller weights, same FLOP roof
    assert mxfp4.prompt == plain.prompt
    assert mxfp4.weights < fp8.weights
    # nor has an Ampere fp8 ones; a Blackwell has both
    assert cost("a100-80-sxm", "fp8").prompt == cost("a100-80-sxm", "auto").prompt
    assert cost("b200-sxm", "mxfp4").prompt < cost("b200-sxm", "fp8").prompt


def test_at_varying_lengths_the_context_is_weighted_by_tokens():
    # three tokens in four belong to the long request: (10 · 5 + 30 · 315) / 40
    mixed = means([(0, 10), (300, 30)])
    assert (mixed.input_tokens, mixed.output_tokens, mixed.context) == (150, 20, 237.5)
    assert means([(1000, 200)] * 3).context == MeanLengths(1000, 200).context == 1100
    assert means([(512, 0)]).context == 512


def test_a_prompt_beside_requests_that_decode_reads_only_the_experts_that_they_do_not():
    cost = step_cost(LLAMA, H100)
    assert prefill_time(cost, 10) == pytest.approx(cost.weights)  # alone it waits for all weights
    assert prefill_time(cost, 10, decoding=8) == pytest.approx(
        10 * cost.prompt + cost.prompt_head + 100 * cost.prompt_attend
    )
    half = prefill_time(cost, 10, decoding=0.5)  # another one decodes half of the time
    assert half == pytest.approx(cost.weights / 2)
    mixed = step_cost(model(model_config("mixtral-8x7b"), "mixtral"), deployment(gpu("h200-sxm")))
    # of 8 experts 2 a token: one token hits 2, four tokens 8 (1 - .75^4) = 5.469
    assert weights_read(mixed, 3, 1) == pytest.approx((5.46875 - 2) * mixed.expert)
    assert weights_read(mixed, 4) == pytest.approx(mixed.weights + 5.46875 * mixed.expert)


def test_of_chosen_tokens_a_longer_past_costs_only_its_keys():
    plain, chosen = (step_cost(*served(name, "h200-sxm", tp=8)) for name in ("deepseek-v3", "deepseek-v3.2"))

    def read(cost, context):
        return step.work_of(cost, 1, context).kv

    key, vector = 61 * 132 / (4.8e12 * 0.8), 61 * 1152 / (4.8e12 * 0.8)  # seconds a token
    assert read(chosen, 1_000) - read(plain, 1_000) == pytest.approx(1_001 * key)  # as long as all are chosen
    assert read(chosen, 90_000) - read(chosen, 10_000) == pytest.approx(80_000 * key)
    assert read(plain, 90_000) - read(plain, 10_000) == pytest.approx(80_000 * vector)
    # Prompts: choosing is on every rank, so that a short one is dearer than without and a very long one cheaper.
    assert prefill_time(chosen, 8_000) > prefill_time(plain, 8_000)
    assert prefill_time(chosen, 150_000) < prefill_time(plain, 150_000)
