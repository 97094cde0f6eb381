import pytest

from harness.base.errors import HarnessError
from harness.predict.catalog import model_config, models
from harness.predict.model import (
    expert_hits,
    kv_bytes,
    kv_bytes_per_token,
    model,
    must_fit_context,
    parameters,
    state_bytes,
    weight_bytes,
    weights,
)

LLAMA = model_config("llama-3.1-8b")


def shaped(**figures):
    return model({**LLAMA, **figures})


def shipped(name, **figures):
    return model({**model_config(name), **figures}, name)


# G34: by hand from the published configs, and the parameter counts of the published checkpoints.
COUNTS = {
    "llama-3.1-8b": (8_029_995_008, 8_030_261_248),
    "llama-3.1-70b": (70_552_387_584, 70_553_706_496),
    "llama-3.1-405b": (405_849_243_648, 405_853_388_800),
    "mistral-7b": (7_247_757_312, 7_248_023_552),
    "qwen2.5-0.5b": (493_961_216, 494_032_768),
}
# Totals of the published checkpoints, from the headers of their weight files.
PUBLISHED = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "yi-34b": 34_388_917_248,
    "smollm2-1.7b": 1_711_376_384,
    "mistral-nemo": 12_247_782_400,
    "mistral-small-24b": 23_572_403_200,
    "mistral-large-2": 122_610_069_504,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_630_071_296,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-1b": 999_885_952,
    "gemma-3-4b": 3_880_099_328,  # the language model alone, as the next two
    "gemma-3-12b": 11_766_034_176,
    "gemma-3-27b": 27_009_346_304,
    "phi-3-mini-4k": 3_821_079_552,
    "phi-4": 14_659_507_200,
    "olmoe-1b-7b": 6_919_161_856,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200,
    "modernbert-large": 394_781_696,
}
# Small ones have relatively more norms and biases, and gpt-oss has biases in its experts.
LOOSELY = {
    "smollm2-135m": (134_515_008, 4e-4),
    "gpt-oss-20b": (20_914_757_184, 4e-4),
    "gpt-oss-120b": (116_829_156_672, 4e-4),
    "bge-m3": (567_754_752, 3e-3),
    "bge-large-en-v1.5": (335_141_888, 5e-3),
    "all-minilm-l6-v2": (22_713_216, 9e-3),
}
# Only known in rounded figures, without their layers that predict a second token.
ROUNDED = {
    "minimax-m2.5": 228.7e9,
    "granite-3.3-8b": 8.17e9,
    "llama-4-scout": 107.77e9,
    "llama-4-maverick": 400.7e9,
    "kimi-k2": 1.026e12,
    "glm-4.5-air": 106.85e9,
    "glm-4.5": 352.8e9,
    "glm-5": 744e9,
    "qwen3-next-80b-a3b": 79.7e9,
    "nemotron-3-nano-30b-a3b": 31.6e9,
    "nemotron-3-super-120b-a12b": 120.7e9,
    "gemma-4-31b": 30.7e9,
    "gemma-4-26b-a4b": 25.23e9,
    "qwen3.5-27b": 26.9e9,
    "qwen3.5-35b-a3b": 34.66e9,
    "deepseek-r1-distill-qwen-1.5b": 1.777e9,
}
CARDS = {  # of 2026, as their model cards have them; MiniMax-M3's has its vision tower in it
    "deepseek-v4-flash": 284e9,
    "glm-4.7-flash": 30e9,
    "glm-5.2": 744e9,
    "granite-4.0-micro": 3.4e9,
    "kimi-k3": 2.8e12,
    "kimi-linear-48b-a3b": 49.1e9,
    "minimax-m3": 428e9,
    "qwen3.6-27b": 27e9,
    "qwen3.6-35b-a3b": 35e9,
}
ACTIVE = {  # billions, as their makers say; embeddings counted as they count them
    "deepseek-v4-flash": 13.0,
    "deepseek-v4-pro": 49.0,
    "kimi-k3": 104.0,
    "minimax-m3": 23.0,
    "mixtral-8x7b": 12.9,
    "qwen3-30b-a3b": 3.3,
    "qwen3-235b-a22b": 22.0,
    "llama-4-scout": 17.0,
    "llama-4-maverick": 17.0,
    "deepseek-v3": 37.0,
    "kimi-k2": 32.0,
    "glm-5": 40.0,
    "gpt-oss-120b": 5.1,
    "olmoe-1b-7b": 1.3,
    "nemotron-3-nano-30b-a3b": 3.5,
    "nemotron-3-super-120b-a12b": 12.7,
    "gemma-4-26b-a4b": 3.8,
    "qwen3.5-35b-a3b": 3.0,
}


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_counts_follow_from_the_config(name):
    by_hand, published = COUNTS[name]
    assert parameters(shipped(name)).total == by_hand
    assert by_hand == pytest.approx(published, rel=2e-4)


@pytest.mark.parametrize("name", PUBLISHED)
def test_shipped_models_have_the_parameters_of_their_checkpoints(name):
    assert parameters(shipped(name)).total == pytest.approx(PUBLISHED[name], rel=2e-4)


@pytest.mark.parametrize("name", LOOSELY)
def test_biases_are_all_that_a_count_lacks(name):
    published, share = LOOSELY[name]
    assert 0 < 1 - parameters(shipped(name)).total / published < share


@pytest.mark.parametrize("name", CARDS)
def test_the_count_of_a_model_card_is_met_to_a_hundredth(name):
    assert parameters(shipped(name)).total == pytest.approx(CARDS[name], rel=0.01)


@pytest.mark.parametrize("name", ROUNDED)
def test_a_rounded_count_is_met(name):
    assert parameters(shipped(name)).total == pytest.approx(ROUNDED[name], rel=1e-3)


def test_every_shipped_model_is_checked_against_a_count():
    same = {
        "llama-3.3-70b": "llama-3.1-70b",
        "deepseek-r1": "deepseek-v3",
        "deepseek-v3.1": "deepseek-v3",
        "bge-reranker-v2-m3": "bge-m3",
        "glm-4.6": "glm-4.5",
        "glm-5.1": "glm-5",
        "kimi-k2.5": "kimi-k2",
        "deepseek-r1-distill-llama-8b": "llama-3.1-8b",
        "deepseek-r1-distill-llama-70b": "llama-3.1-70b",
        **{f"qwen3-{size}-2507": f"qwen3-{size}" for size in ("4b", "30b-a3b", "235b-a22b")},
        **{f"deepseek-r1-distill-qwen-{size}": f"qwen2.5-{size}" for size in ("7b", "14b", "32b")},
    }
    apart = {"deepseek-v3.2", "deepseek-v4-pro"}  # each has a test of its own below
    checked = {*COUNTS, *PUBLISHED, *LOOSELY, *ROUNDED, *CARDS, *apart}
    for name in models():
        assert name in checked or parameters(shipped(name)) == parameters(shipped(same[name]))


def test_choosing_tokens_adds_small_matrices_and_a_key_of_every_token():
    plain, chosen = shipped("deepseek-v3"), shipped("deepseek-v3.2")
    added = 1536 * 64 * 128 + 7168 * 128 + 7168 * 64  # 64 heads of 128: queries, the key, a weight a head
    assert parameters(chosen).total - parameters(plain).total == 61 * added
    assert parameters(chosen).matmul - parameters(plain).matmul == 61 * added
    key = 128 + 4  # bytes: 8 bits each, and their scale
    assert kv_bytes_per_token(chosen) == 61 * (2 * 576 + key)
    assert kv_bytes(chosen, 100_000) == 100_000 * kv_bytes_per_token(chosen)  # what is not chosen now may be later
    assert kv_bytes_per_token(model(model_config("deepseek-v3.2"), kv_dtype="fp8")) == 61 * (576 + key)
    assert any("chosen tokens" in note for note in chosen.notes)


def test_compressed_attention_keeps_a_window_and_one_vector_of_several_tokens():
    pro = shipped("deepseek-v4-pro")
    assert parameters(pro).total == pytest.approx(1.6e12, rel=0.02)  # the model card has two digits
    # 61 layers keep 512 elements of 16 bits: all of a window of 128 tokens; a quarter and a key of 128 bytes and a
    # scale in 30 of them, a 128th in 31
    past = 30 * (512 * 2 + 132) / 4 + 31 * 512 * 2 / 128
    assert kv_bytes(pro, 10_000) == pytest.approx(10_000 * past + 61 * 128 * 1024)
    assert (pro.stored.method, pro.stored.experts, pro.stored.bytes_of("attention")) == ("mxfp4", 1.0, 1.0)


@pytest.mark.parametrize("name", ACTIVE)
def test_of_the_experts_only_a_tokens_own_are_active(name):
    count = parameters(shipped(name))
    # within 12 %: some makers count the embeddings, some do not
    assert count.matmul / 1e9 == pytest.approx(ACTIVE[name], rel=0.12)


def test_the_8b_splits_into_body_and_head():
    # attention 2·4096·4096 + 2·4096·1024, MLP 3·4096·14336, 32 layers; head 128256·4096
    count = parameters(model(LLAMA))
    assert count.body == count.matmul - count.head == 32 * (41_943_040 + 176_160_768)
    assert count.head == 525_336_576
    assert count.matmul == count.body + count.head
    assert count.total == count.matmul + count.head


def test_tied_embeddings_are_kept_once_but_read_all_the_same():
    tied, untied = shaped(tie_word_embeddings=True), shaped(tie_word_embeddings=False)
    assert weight_bytes(untied) - weight_bytes(tied) == 2 * 525_336_576
    assert weights(untied).read(1) == weights(tied).read(1) == weight_bytes(tied)


def test_kv_bytes_of_grouped_and_of_full_heads():
    seventy = model_config("llama-3.1-70b")
    assert kv_bytes_per_token(model(LLAMA)) == 131_072  # G7
    full = kv_bytes_per_token(model({**seventy, "num_key_value_heads": 64}))
    assert full == 2_621_440  # G21
    assert full * 4096 == pytest.approx(10.74e9, rel=1e-3)
    grouped = kv_bytes_per_token(model(seventy))
    assert grouped == 327_680  # G22
    assert grouped * 4096 == pytest.approx(1.34e9, rel=2e-3)


def test_fp8_kv_takes_half():
    assert kv_bytes_per_token(model(LLAMA, kv_dtype="fp8")) == 65_536


def test_key_value_heads_default_to_all_heads():
    assert shaped(num_key_value_heads=None).kv_heads == 32


def test_an_explicit_head_dim_beats_the_quotient():
    # Mistral-Nemo: 5120 / 32 = 160, but its config says 128; 40 layers, 8 KV heads.
    assert kv_bytes_per_token(shipped("mistral-nemo")) == 163_840  # G36
    assert kv_bytes_per_token(shipped("mistral-nemo", head_dim=None)) == 204_800


def test_latent_attention_keeps_one_small_vector_a_token():
    assert kv_bytes_per_token(shipped("deepseek-v3")) == 70_272  # G35: 61 · (512 + 64) · 2


def test_windowed_layers_keep_no_more_than_their_window():
    # G38: 12 · 4096 · 2048 + 12 · 128 · 2048, where 2048 = 2 · 8 heads · 64 · 2 bytes
    assert kv_bytes(shipped("gpt-oss-20b"), 4096) == 103_809_024
    assert kv_bytes(shipped("gpt-oss-20b"), 100) == 24 * 100 * 2048


def test_a_hybrid_keeps_a_state_of_constant_size_in_place_of_kv():
    nemotron = shipped("nemotron-3-nano-30b-a3b")
    # 23 layers: 64 heads · 64 · 128 in 4 bytes, and 3 inputs of the convolution: 4096 + 2 · 8 · 128 in 2 bytes
    assert state_bytes(nemotron) == 23 * (2_097_152 + 3 * 6144 * 2)
    assert kv_bytes_per_token(nemotron) == 6 * 2 * 2 * 128 * 2
    assert kv_bytes(nemotron, 1000) == state_bytes(nemotron) + 1000 * 6144
    qwen = shipped("qwen3-next-80b-a3b")
    assert state_bytes(qwen) == 36 * 2 * (32 * 128 * 128 + 3 * 8192)
    assert kv_bytes_per_token(qwen) == 12 * 2 * 2 * 256 * 2


def test_a_batch_hits_experts_as_if_each_token_drew_its_own():
    # G37
    assert [round(expert_hits(8, 2, B), 3) for B in (1, 4, 16)] == [2.0, 5.469, 7.92]
    assert [round(expert_hits(256, 8, B), 1) for B in (16, 64)] == [102.0, 222.4]


def test_a_step_reads_the_experts_that_its_batch_hits_and_everything_else_once():
    mixtral = shipped("mixtral-8x7b")
    one, all_ = weights(mixtral).read(1), weights(mixtral).read(10_000)
    assert one == 2 * parameters(mixtral).matmul
    assert all_ == pytest.approx(2 * (parameters(mixtral).total - parameters(mixtral).head))
    each = 32 * 3 * 4096 * 14336 * 2  # one expert in 32 layers
    assert weights(mixtral).read(4) - one == pytest.approx((5.46875 - 2) * each)


def test_an_encoder_keeps_nothing_and_has_no_head():
    bge = shipped("bge-m3")
    assert not bge.generates
    assert kv_bytes_per_token(bge) == 0
    assert parameters(bge).matmul == 24 * (4 * 1024**2 + 2 * 1024 * 4096)
    # the rest is looked up: 250,002 words and 8194 + 1 positions
    assert parameters(bge).total - parameters(bge).matmul == (250_002 + 8_195) * 1024


def test_an_ungated_mlp_has_two_matrices():
    gated, plain = shaped(), shaped(model_type="gpt_neox")
    assert parameters(gated).body - parameters(plain).body == 32 * 4096 * 14336


def test_tying_defaults_to_what_the_architecture_does():
    silent = {key: value for key, value in LLAMA.items() if key != "tie_word_embeddings"}
    assert not model(silent).tied
    assert model({**silent, "model_type": "gemma"}).tied


def test_a_multimodal_config_is_read_for_its_language_model_and_says_what_it_leaves_out():
    outer = {"model_type": "mistral3", "vision_config": {"hidden_size": 1024}, "torch_dtype": "bfloat16"}
    inner = model({**outer, "text_config": model_config("mistral-small-24b")}, "small")
    assert parameters(inner).total == pytest.approx(23_572_403_200, rel=2e-4)
    assert inner.notes == ("vision_config: what the model sees or hears with is left out",)


def test_weights_stored_in_32_bits_count_the_16_that_servers_cast_them_to():
    assert weight_bytes(shaped(torch_dtype="float32")) == 2 * 8_029_995_008
    with pytest.raises(HarnessError, match="--dtype bfloat16"):
        model(LLAMA, dtype="float32")


def test_quantised_weights_leave_embeddings_and_head_in_16_bits():
    fp8 = model(LLAMA, dtype="fp8")
    assert weight_bytes(fp8) == 6_979_321_856 + 2 * 2 * 525_336_576
    assert weights(fp8).read(1) == 6_979_321_856 + 2 * 525_336_576


def test_gpt_oss_is_as_large_as_its_files():
    # published: 13.8 GB and 65.2 GB of weights; experts in 4.25 bits, everything else in 16
    assert weight_bytes(shipped("gpt-oss-20b")) == pytest.approx(13.8e9, rel=0.01)
    assert weight_bytes(shipped("gpt-oss-120b")) == pytest.approx(65.2e9, rel=0.01)
    assert weights(shipped("gpt-oss-20b")).expert == 24 * 3 * 2880 * 2880 * 4.25 / 8


def test_a_config_without_a_needed_figure_names_it():
    with pytest.raises(HarnessError, match="'toy' has no intermediate_size"):
        model({**LLAMA, "intermediate_size": None}, "toy")


@pytest.mark.parametrize("figures", [{"num_key_value_heads": "8"}, {"num_key_value_heads": -8}, {"vocab_size": 0.5}])
def test_a_figure_that_is_none_says_what_it_is(figures):
    ((field, value),) = figures.items()
    with pytest.raises(HarnessError) as raised:
        model({**LLAMA, **figures}, "toy")
    assert f"{field} of 'toy' is {value!r}, not a whole number above 0; " in str(raised.value)


YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("made", "most"),
    [
        (shipped("all-minilm-l6-v2"), 512),
        (shipped("bge-m3"), 8192),  # two of its 8194 positions belong to no token
        (shipped("llama-3.1-8b"), 131_072),
        (shipped("mistral-7b", sliding_window=4096), 32_768),  # a window says how far back, not how far
        (
            shaped(rope_scaling={"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}),
            131_072,
        ),
        (shaped(rope_scaling={"type": "longrope", "long_factor": [1.0, 2.0]}), 131_072),
        (shaped(rope_parameters={"rope_type": "default", "rope_theta": 500000.0}), 131_072),
        (shipped("qwen2.5-7b", max_position_embeddings=131_072, rope_scaling=YARN), 131_072),
    ],
)
def test_a_request_longer_than_the_model_is_refused(made, most):
    assert must_fit_context(made, most) == []
    with pytest.raises(HarnessError) as raised:
        must_fit_context(made, most + 1)
    refused = f"--input-tokens: a request of {most + 1:,} tokens is longer than {made.name} can take"
    assert str(raised.value) == f"{refused}; at most {most:,}, prompt and answer together"


@pytest.mark.parametrize(
    ("scaling", "most"),
    [
        ({"rope_scaling": YARN}, 131_072),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 65_536),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4}}, 131_072),
        ({"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0}, "other": None}}, 262_144),
        ({"rope_scaling": {"type": "new"}}, 10**9),
    ],
)
def test_positions_that_a_server_may_stretch_are_a_note_and_no_refusal(scaling, most):
    stretched = shipped("qwen2.5-7b", **scaling)
    assert must_fit_context(stretched, 32_768) == []
    for tokens in (32_769, most):
        (note,) = must_fit_context(stretched, tokens)
        assert note.startswith(f"{tokens:,} tokens are more than the 32,768 of qwen2.5-7b unless ")
    with pytest.raises(HarnessError, match=f"at most {most:,}"):
        must_fit_context(stretched, most + 1)


@pytest.mark.parametrize("field", ["rope_scaling", "rope_parameters"])
def test_a_rope_scaling_gone_wrong_is_read_or_left(field):
    for junk in JUNK:
        assert shaped(**{field: junk}).max_context == 131_072
        for inner in ("type", "factor", "original_max_position_embeddings"):
            assert shaped(**{field: {**YARN, inner: junk}}).max_context == 131_072


JUNK = [None, "x", "", -1, 0, [], [1], ["x"] * 3, {}, {"a": 1}, 3.5, True, False, 10**30]
SHAPES = ["llama-3.1-8b", "deepseek-v3", "gpt-oss-20b", "qwen3-30b-a3b", "llama-4-scout", "gemma-3-27b", "bge-m3"]
HYBRIDS = ["qwen3-next-80b-a3b", "nemotron-3-nano-30b-a3b", "modernbert-large"]


@pytest.mark.parametrize("name", SHAPES + HYBRIDS)
def test_a_config_with_one_field_gone_wrong_is_a_model_or_the_operators_mistake(name):
    config = model_config(name)
    for field in config:
        for junk in JUNK:
            try:
                made = model({**config, field: junk}, name)
            except HarnessError:
                continue
            assert weight_bytes(made) > 0
            assert kv_bytes(made, 100) >= 0


@pytest.mark.parametrize("junk", JUNK)
def test_a_quantisation_gone_wrong_is_one_as_well(junk):
    for method in ("fp8", "awq", "modelopt", "compressed-tensors", "bitsandbytes"):
        sound = {"quant_method": method, "bits": 4, "group_size": 64, "config_groups": {"a": {"weights": {}}}}
        for field in (*sound, "quantization", "kv_cache_scheme", "ignore", "modules_to_not_convert"):
            try:
                made = model({**LLAMA, "quantization_config": {**sound, field: junk}}, "toy")
            except HarnessError:
                continue
            assert weight_bytes(made) > 0


def test_fields_that_a_family_leaves_out_have_its_defaults():
    # as published: a 4B Gemma 3 names neither heads nor vocabulary
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    outer = {"model_type": "gemma3", "text_config": {**text, "sliding_window": 1024}, "vision_config": {"a": 1}}
    found, known = model(outer, "4b"), shipped("gemma-3-4b")
    assert parameters(found) == parameters(known)
    assert kv_bytes(found, 8000) == kv_bytes(known, 8000)


def test_layers_of_gemma_4_that_see_everything_have_wider_heads_and_no_values_of_their_own():
    wide = next(each for each in shipped("gemma-4-31b").attention if each.window is None)
    assert wide.layers == 10
    assert wide.matrices == {"q_proj": 5376 * 32 * 512, "k_proj": 5376 * 4 * 512, "o_proj": 5376 * 32 * 512}
    assert wide.kv == 2 * 4 * 512  # keys turn with their position, values do not: both are kept


def test_experts_of_a_latent_mixture_work_on_its_smaller_vector():
    mix = shipped("nemotron-3-super-120b-a12b").experts
    assert mix.each == 2 * 1024 * 2688
    assert mix.shared == 2 * 4096 * 5376 + 2 * 4096 * 1024


def test_layers_that_attend_to_chosen_tokens_are_refused_before_the_nearest_family_is_named():
    config = {**model_config("deepseek-v3"), "model_type": "glm_moe_sparse", "index_topk": 2048}
    with pytest.raises(HarnessError, match=r"index_topk of 'toy' \(attention to chosen tokens only\) is not predicted"):
        model(config, "toy")


GLM_5_2 = ["full"] * 3 + (["shared"] * 3 + ["full"]) * 18 + ["shared"] * 3  # the schedule of that model


@pytest.mark.parametrize(
    "fields",
    [
        {"indexer_types": GLM_5_2},
        {"index_topk_pattern": "".join("F" if each == "full" else "S" for each in GLM_5_2)},
        {"index_topk_freq": 4, "index_skip_topk_offset": 3},
    ],
)
def test_a_layer_that_reuses_the_tokens_another_chose_has_no_indexer(fields):
    plain = model_config("glm-5")
    found, every = model({**plain, **fields}, "toy"), model(plain, "toy")
    indexer = 2048 * 32 * 128 + 6144 * 128 + 6144 * 32
    assert parameters(every).total - parameters(found).total == (78 - 21) * indexer
    # a key of 128 bytes and its scale in 21 layers; 512 + 64 elements of 16 bits in all
    assert kv_bytes_per_token(found) == 78 * 576 * 2 + 21 * 132
    assert all(each.window == 2048 and each.all_kept for each in found.attention)


def test_that_every_layer_chooses_says_nothing_new():
    plain = model_config("glm-5")
    assert model({**plain, "indexer_types": ["full"] * 78}, "toy") == model(plain, "toy")


@pytest.mark.parametrize("listed", [["full"] * 77, ["full"] * 77 + ["half"], 7])
def test_a_schedule_of_choices_that_does_not_fit_the_layers_is_refused(listed):
    with pytest.raises(HarnessError, match="indexer_types of 'toy'"):
        model({**model_config("glm-5"), "indexer_types": listed}, "toy")


@pytest.mark.parametrize("field", ["kv_lora_rank", "index_topk"])
def test_a_model_of_chosen_tokens_without_its_latent_attention_or_their_number_is_refused(field):
    config = {key: value for key, value in model_config("glm-5").items() if key != field}
    with pytest.raises(HarnessError, match=field):
        model(config, "toy")


def test_a_field_that_says_that_every_layer_chooses_its_own_tokens_changes_nothing():
    plain = model_config("glm-5")
    assert parameters(model({**plain, "index_topk_freq": 1, "indexer_types": None}, "toy")) == parameters(
        model(plain, "toy")
    )
