import msgspec
import pytest

from harness.base.errors import HarnessError
from harness.predict.catalog import gpu, model_config
from harness.predict.deployment import (
    LEAN_SAMPLER,
    activations,
    check,
    deployment,
    divisors,
    kv_capacity,
    kv_per_gpu,
    room,
    weights_per_gpu,
)
from harness.predict.model import model, weight_bytes
from harness.predict.roofline import predict
from harness.predict.steady import caps
from harness.spec.work import MeanLengths

LLAMA = model(model_config("llama-3.1-8b"), "llama-3.1-8b")
SEVENTY = model(model_config("llama-3.1-70b"), "llama-3.1-70b")
DEEPSEEK = model(model_config("deepseek-v3"), "deepseek-v3")
H100 = deployment(gpu("h100-sxm"))
GIB = 2**30


def on(card="h100-sxm", **figures):
    return deployment(gpu(card), **figures)


def test_mfu_follows_the_card():
    assert on("a100-80-sxm").mfu_prefill == 0.38
    assert on("l40s").mfu_decode == 0.32
    assert on("h200-sxm").mfu_prefill == on("h20-96").mfu_decode == 0.45
    assert on("h200-sxm", mfu_prefill=0.5).mfu_prefill == 0.5


def test_gpus_follow_from_the_split_and_replicas_fill_what_is_given():
    assert on(tp=4).gpus == 4
    assert on(tp=4, pp=2, dp=3).gpus == 24
    assert on(tp=4, gpus=8).dp == 2


@pytest.mark.parametrize(
    ("made", "figures", "message"),
    [
        (LLAMA, {"gpus": 8}, "8 GPUs, but tp × pp × dp is 1; give --tp 8 for one replica over all, or --dp 8"),
        (LLAMA, {"gpus": 6, "tp": 4}, "6 GPUs, but tp × pp × dp is 4; make them equal"),
        (LLAMA, {"tp": 3}, "3 GPUs cannot share the 32 heads of llama-3.1-8b; these can: 1, 2, 4, 8, 16, 32"),
        (LLAMA, {"tp": 0}, "less than 1 part"),
        (LLAMA, {"pp": 33}, "33 stages for 32 layers; at most 32"),
        (LLAMA, {"ep": 2, "tp": 2}, "has no experts to spread; leave --ep out"),
        (DEEPSEEK, {"ep": 4, "tp": 8}, "256 experts over 4 GPUs with tp 8 and dp 1; these can: 8"),
        (DEEPSEEK, {"ep": 4, "tp": 8, "dp": 2}, "these can: 8, 16"),
        (LLAMA, {"prefix_hit": 30}, "--prefix-hit: a share of 30; give one between 0 and 1"),
        (LLAMA, {"mbu": 1.5}, "--mbu: a share of 1.5; give one between 0 and 1"),
        (LLAMA, {"mfu_decode": 1.5}, "--mfu: a share of 1.5"),
        (LLAMA, {"gpu_memory_utilization": 2}, "--gpu-memory-utilization: a share of 2"),
    ],
)
def test_what_does_not_divide_says_what_would(made, figures, message):
    with pytest.raises(HarnessError) as raised:
        check(made, on(**figures))
    assert message in str(raised.value)


def test_a_peak_that_was_measured_can_be_exceeded():
    host = msgspec.structs.replace(gpu("l4"), certainty="measured")
    check(LLAMA, deployment(host, mbu=1.1, mfu_prefill=1.2, mfu_decode=1.2))
    with pytest.raises(HarnessError, match="--gpu-memory-utilization"):
        check(LLAMA, deployment(host, gpu_memory_utilization=1.1))


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        (
            {"draft_tokens": 3},
            "--draft-tokens: 3 drafted tokens, but not the share of them that is accepted; add --acceptance",
        ),
        ({"acceptance": 0.7}, "--acceptance: no tokens are drafted; add --draft-tokens, how many a step"),
        ({"draft_s": 0.001}, "--draft-time: no tokens are drafted; add --draft-tokens, how many a step"),
    ],
)
def test_what_is_drafted_and_how_much_of_it_holds_go_together(figures, message):
    with pytest.raises(HarnessError) as raised:
        on(**figures)
    assert str(raised.value) == message


def test_drafts_that_never_hold_can_be_asked_for():
    assert on(draft_tokens=3, acceptance=0.0).draft_tokens == 3
    assert on(draft_tokens=0).draft_tokens == 0


@pytest.mark.parametrize(
    ("card", "joined", "bridge", "pcie"),
    [
        ("a100-40-pcie", 2, 300e9, 32e9),
        ("a100-80-pcie", 2, 300e9, 32e9),
        ("h100-pcie", 2, 300e9, 64e9),
        ("h100-nvl", 2, 300e9, 64e9),
        ("h200-nvl", 4, 450e9, 64e9),
    ],
)
def test_more_cards_than_a_bridge_joins_speak_over_pcie(card, joined, bridge, pcie):
    def notes_of(tp):
        return [
            note
            for note in predict(LLAMA, on(card, tp=tp), MeanLengths(1000, 200), [1]).notes
            if "bridge joins" in note
        ]

    for tp in (1, 2, 4, 8):
        assert on(card, tp=tp).gpu.link == (bridge if tp <= joined else pcie)
        expected = f"{card}: a bridge joins {joined} of them, more are counted at the speed of PCIe"
        assert notes_of(tp) == ([] if tp <= joined else [expected])
    assert on(card, dp=8).gpu.link == bridge  # replicas need none
    assert on(card, tp=2, dp=4, ep=8).gpu.link == pcie


def test_a_bridge_that_ends_costs_time():
    def prefill(card):
        there = deployment(card, tp=4, o_first=0.0)
        return predict(SEVENTY, there, MeanLengths(4000, 200), [1]).levels[0].ttft_s

    full = prefill(msgspec.structs.replace(gpu("h100-pcie"), bridged=None))
    # 160 all-reduces of 2 · 3/4 · 4000 · 8192 · 2 bytes, at 0.7 of 64e9 instead of 300e9 bytes/s
    longer = 160 * 1.5 * 4000 * 16384 * (1 / 64e9 - 1 / 300e9) / 0.7
    assert prefill(gpu("h100-pcie")) - full == pytest.approx(longer, rel=1e-3)


def test_heads_of_keys_are_shared_evenly_or_held_several_times():
    # Phi-4: 40 heads, 10 of KV: 4 and 8 ranks have no even share of 10
    phi = model(model_config("phi-4"), "phi-4")
    assert divisors(phi) == [1, 2, 5, 10, 20, 40]
    assert divisors(DEEPSEEK) == [1, 2, 4, 8, 16, 32, 64, 128]  # latent: every rank holds all
    with pytest.raises(HarnessError, match="4 GPUs cannot share the 40 heads of phi-4 with 10 of KV"):
        check(phi, on(tp=4))


def test_kv_capacity_is_what_memory_leaves_beside_weights_and_activations():
    # 81559 MiB · 0.9 - 16.05999e9 - 38.5 · 1024 · 128256 - 0.35 GiB = 55.47663e9 bytes,
    # / 131072 = 423,253 tokens in whole blocks
    assert kv_capacity(LLAMA, H100) == 26_453 * 16


@pytest.mark.parametrize(
    ("card", "utilization", "published"),
    [("h100-sxm", 0.92, 463_312), ("h100-sxm", 0.34, 88_976), ("h200-sxm", 0.92, 920_192)],
)
def test_kv_capacity_is_within_two_percent_of_what_vllm_says(card, utilization, published):
    # vLLM 0.25 with its defaults but for the utilization: results/live-h100-bf16, live-h100-kv, live-h200-ramp
    there = on(card, gpu_memory_utilization=utilization, max_num_seqs=1024, sampler_bytes=LEAN_SAMPLER)
    assert kv_capacity(LLAMA, there) == pytest.approx(published, rel=0.02)


def test_small_cards_compute_smaller_steps():
    lean = {"sampler_bytes": LEAN_SAMPLER}
    # 2 · 2048 · (4 · 4096 + 3 · 14336) + 0.2 GiB
    assert activations(LLAMA, on("rtx4090", **lean)) == 4096 * 59_392 + 0.2 * GIB
    # the logits of 1024 requests, 6 bytes each, are more than 2048 tokens of a layer
    assert activations(LLAMA, on("rtx4090", max_num_seqs=1024, **lean)) == 6 * 1024 * 128_256 + 0.2 * GIB
    # and 38.5 bytes each more than 8192
    assert activations(LLAMA, on("h100-sxm")) == 38.5 * 1024 * 128_256 + 0.2 * GIB


KV_LINES = [  # what vLLM printed at its start; GPU KV cache size
    ("mistral-7b", "int4", "auto", "dgx-spark", {"max_num_batched_tokens": 2048}, 32768, 840_160),  # 0.11
    ("qwen3-30b-a3b", "bf16", "auto", "l40s", {"tp": 4}, 32768, 1_037_152),  # 0.24, Qwen3-Coder-30B-A3B
    ("qwen3-235b-a22b", "fp8", "auto", "l40s", {"tp": 4, "dp": 2, "ep": 8}, 32768, 238_208),  # 0.10
    ("llama-3.1-70b", "int8", "auto", "h100-sxm", {"gpu_memory_utilization": 0.98}, 2048, 22_096),  # vllm#12569
    ("minimax-m2.5", "fp8", "auto", "h100-sxm", {"tp": 4}, 131072, 244_576),  # MiniMax-M2.7, the same shape
    ("gpt-oss-20b", "mxfp4", "fp8", "l4", {}, 131072, 364_380),
    (  # vllm#27508
        "gpt-oss-120b", "mxfp4", "auto", "h100-sxm",
        {"gpu_memory_utilization": 0.95, "max_num_batched_tokens": 1024}, 131072, 49_800,
    ),
    ("llama-3.1-8b", "bf16", "auto", "h100-sxm", {}, 131072, 422_944),
]  # fmt: skip


@pytest.mark.parametrize(("name", "dtype", "kv_dtype", "card", "figures", "length", "printed"), KV_LINES)
def test_kv_capacity_is_what_engines_print_at_their_start(name, dtype, kv_dtype, card, figures, length, printed):
    made, where = model(model_config(name), name, dtype=dtype, kv_dtype=kv_dtype), on(card, **figures)
    token = kv_per_gpu(made, where, length) / length
    apart = kv_capacity(made, where, length) - printed
    share = 0.2 if made.experts else 0.1
    assert abs(apart) * token <= max(share * printed * token, 1.5 * GIB)
    assert apart * token <= max(0.25 * printed * token, 1.5 * GIB)


PROFILES = [  # GiB that vLLM 0.11 had for KV on an H100: llm-d-benchmark, empirical-vllm-memory-results.md
    ("gpt-oss-20b", "auto", {}, 50.28),
    ("gpt-oss-120b", "auto", {"gpu_memory_utilization": 0.95}, 3.33),
    ("llama-3.3-70b", "fp8", {"tp": 2}, 32.0),
    ("qwen3-0.6b", "auto", {}, 64.45),
    ("qwen3-32b", "auto", {}, 4.45),
    ("qwen3-32b", "auto", {"tp": 2}, 34.49),
]


@pytest.mark.parametrize(("name", "dtype", "figures", "available"), PROFILES)
def test_room_for_kv_is_what_an_engine_measured(name, dtype, figures, available):
    found = room(model(model_config(name), name, dtype=dtype), on(**figures)) / GIB
    assert abs(found - available) <= max(0.1 * available, 1.5)


def test_kv_capacity_of_several_gpus_is_counted_on_each():
    # 70B over 4: 76.969e9 bytes usable on each - 141.10478e9/4 - 38.5 · 1024 · 128256 / 4 - 0.2 GiB - 0.6 GiB;
    # 81,920 a token on each
    four = on(tp=4)
    left = 81559 * 2**20 * 0.9 - weight_bytes(SEVENTY) / 4 - 38.5 * 1024 * 128_256 / 4 - 0.8 * GIB
    assert room(SEVENTY, four) == pytest.approx(left)
    assert kv_per_gpu(SEVENTY, four, 1) == 81_920
    assert kv_capacity(SEVENTY, four) == int(left / 81_920) // 16 * 16
    # a pipeline of two stages holds half the layers on each
    assert kv_per_gpu(SEVENTY, on(tp=4, pp=2), 1) == 40_960


def test_sixteen_ranks_hold_eight_heads_twice():
    assert kv_per_gpu(SEVENTY, on(tp=16), 1) == kv_per_gpu(SEVENTY, on(tp=8), 1) == 40_960


def test_latent_kv_is_whole_on_every_rank():
    assert kv_per_gpu(DEEPSEEK, on(tp=8), 100) == 100 * 70_272


def test_experts_lie_on_all_gpus_of_their_group():
    one, two = weights_per_gpu(DEEPSEEK, on(tp=8)), weights_per_gpu(DEEPSEEK, on(tp=8, dp=2, ep=16))
    experts = 58 * 256 * 3 * 7168 * 2048
    assert one == pytest.approx(weight_bytes(DEEPSEEK) / 8)
    assert one - two == pytest.approx(experts / 16)


def test_windows_and_states_make_room_for_more_requests():
    oss = model(model_config("gpt-oss-20b"), "gpt-oss-20b")
    # at 4000 tokens 12 layers hold 128 only: 2048 · 12 · (4000 + 128) bytes a request
    assert kv_per_gpu(oss, H100, 4000) == 2048 * 12 * 4128
    assert kv_capacity(oss, H100, 4000) == pytest.approx(kv_capacity(oss, H100) * 2 * 4000 / 4128, rel=1e-3)
    nano = model(model_config("nemotron-3-nano-30b-a3b"), "nano")
    batch = caps(nano, H100, MeanLengths(1000, 200))["kv_memory"]
    assert batch == pytest.approx(room(nano, H100) / kv_per_gpu(nano, H100, 1100), rel=0.02)


def test_a_model_with_experts_needs_more_room_to_work_in():
    olmoe = model(model_config("olmoe-1b-7b"), "olmoe")
    # each of 8 experts gives every token 2048 values and makes 3 · 1024 of them
    step = 2 * 8192 * (4 * 2048 + 8 * (2048 + 3 * 1024))
    usable = 81559 * 2**20 * 0.9 - weight_bytes(olmoe)
    # 0.15 GiB of libraries, 0.2 of workspaces, 0.7 of CUDA graphs
    assert room(olmoe, on(sampler_bytes=LEAN_SAMPLER)) == pytest.approx(usable - step - 1.05 * GIB)
    assert room(olmoe, on(activations=0.0, nontorch=0.0)) == 81559 * 2**20 * 0.9 - weight_bytes(olmoe)


def test_a_model_that_does_not_fit_says_what_would():
    with pytest.raises(HarnessError) as raised:
        predict(SEVENTY, H100, MeanLengths(1000, 200), [1])
    message = str(raised.value)
    assert "llama-3.1-70b (141 GB of weights) does not fit on one h100-sxm" in message
    # 71 GB on each of two fit; in fp8 73 GB on one leave too little to work in, as vLLM 0.11 found too
    assert message.endswith("it has 86 GB: give --tp 2, or take a smaller model")
    with pytest.raises(HarnessError, match="give --tp 2, or --dtype fp8"):
        predict(SEVENTY, on("h200-sxm"), MeanLengths(1000, 200), [1])
    predict(SEVENTY, on(tp=2), MeanLengths(1000, 200), [1])
    big = model(model_config("llama-3.1-405b"), "405b")
    with pytest.raises(HarnessError, match="does not fit on 8 × h100-sxm; each has 86 GB: give --tp 16"):
        predict(big, on(tp=8), MeanLengths(1000, 200), [1])


def test_a_request_that_does_not_fit_says_what_would():
    with pytest.raises(HarnessError, match=r"does not fit into a KV cache of \d+; send shorter requests, or give --tp"):
        predict(SEVENTY, on("mi300x"), MeanLengths(100_000, 30_000), [1])


def test_a_card_without_a_link_serves_replicas_only():
    alone = msgspec.structs.replace(gpu("h100-sxm"), link=None)
    with pytest.raises(HarnessError, match="has no link to others; give --dp"):
        check(LLAMA, deployment(alone, tp=2))
    check(LLAMA, deployment(alone, dp=2))


def test_an_engine_that_never_evicts_begins_a_request_when_its_whole_answer_fits():
    model_, chat = model(model_config("llama-3.1-70b"), dtype="fp8", kv_dtype="fp8"), MeanLengths(922, 7373)
    evicts, keeps = (deployment(gpu("b200-sxm"), engine=engine) for engine in ("vllm", "trtllm"))
    assert (evicts.reserve, keeps.reserve) == (False, True)
    begun, whole = (caps(model_, where, chat)["kv_memory"] for where in (evicts, keeps))
    assert whole / begun == pytest.approx((922 + 7373 / 2) / (922 + 7373), rel=0.02)
    assert whole < 128  # where its published curve has a queue of two minutes
    assert deployment(gpu("b200-sxm"), engine="trtllm", reserve=False).reserve is False
