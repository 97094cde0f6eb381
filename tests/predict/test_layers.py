import pytest

from harness.base.errors import HarnessError
from harness.predict import families, layers
from harness.predict.catalog import model_config, models
from harness.predict.families import Config

LLAMA = model_config("llama-3.1-8b")
QWEN_MOE = model_config("qwen3-30b-a3b")


def reach(**figures):
    """Layers and windows of an 8B with these fields."""
    return [(each.layers, each.window) for each in layers.attention(Config({**LLAMA, **figures}, "toy"))]


def sparse(config, **figures):
    found = families.experts(Config({**config, **figures}, "toy"))
    return found.layers if found else 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_type", "rwkv"),
        ("is_encoder_decoder", True),
        ("mamba_d_state", 16),
        ("indexer_types", ["full"] * 32),
        ("index_topk_freq", 4),
        ("cross_attention_layers", [3, 8]),
    ],
)
def test_an_architecture_that_is_not_understood_is_refused_by_its_field(field, value):
    with pytest.raises(HarnessError, match=f"{field} of 'toy' .* is not predicted; "):
        Config({**LLAMA, field: value}, "toy")


def test_a_model_type_that_is_misspelt_has_the_nearest_family():
    with pytest.raises(HarnessError, match=r"; did you mean 'llama'\?$"):
        Config({**LLAMA, "model_type": "lama"}, "toy")


def test_chosen_tokens_are_understood_in_one_family_alone():
    with pytest.raises(HarnessError, match=r"index_topk of .toy. .* is not predicted; "):
        Config({**LLAMA, "index_topk": 2048}, "toy")
    (found,) = layers.attention(Config(model_config("deepseek-v3.2"), "toy"))
    (plain,) = layers.attention(Config(model_config("deepseek-v3"), "toy"))
    assert (found.window, found.all_kept, plain.window) == (2048, True, None)
    assert found.attend == found.prefill == plain.attend  # prompts gather the small vectors too
    assert found.index == layers.Index(kept=132, attend=2 * 64 * 128)


@pytest.mark.parametrize(
    ("figures", "field"),
    [
        ({"layer_types": ["full_attention", "ring_attention"] * 16}, "layer_types"),
        ({"layer_types": ["full_attention"] * 31}, "layer_types"),
        ({"layer_types": ["linear_attention"] * 32}, "layer_types"),
        ({"num_key_value_heads": 5}, "num_key_value_heads"),
        ({"num_local_experts": 4, "num_experts_per_tok": 5, "moe_intermediate_size": 7}, "num_experts_per_tok"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "MX"}, "hybrid_override_pattern"),
    ],
)
def test_layers_that_are_not_understood_are_refused_by_their_field(figures, field):
    config = {**LLAMA, **figures}
    with pytest.raises(HarnessError, match=f"{field} of 'toy'"):
        (layers.attention(Config(config, "toy")), families.experts(Config(config, "toy")))


@pytest.mark.parametrize(
    "harmless",
    [
        {"sliding_window": 4096, "use_sliding_window": False},
        {"sliding_window": 131072},
        {"layer_types": ["full_attention"] * 32},
        {"layer_types": ["sliding_attention"] * 32, "sliding_window": None},
        {"model_type": "qwen2", "sliding_window": 4096},  # a Qwen's window is off unless it says it is on
    ],
)
def test_a_window_that_never_cuts_is_none(harmless):
    assert reach(**harmless) == [(32, None)]


@pytest.mark.parametrize(
    ("figures", "found"),
    [
        ({"sliding_window": 4096}, [(32, 4096)]),
        (
            {"sliding_window": 4096, "layer_types": ["sliding_attention", "full_attention"] * 16},
            [(16, None), (16, 4096)],
        ),
        ({"sliding_window": 4096, "sliding_window_pattern": 4}, [(8, None), (24, 4096)]),
        ({"model_type": "gemma2", "sliding_window": 4096}, [(16, None), (16, 4096)]),
        ({"model_type": "gemma3_text", "sliding_window": 512}, [(5, None), (27, 512)]),
        (
            {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 28},
            [(28, None), (4, 4096)],
        ),
        ({"model_type": "llama4_text", "attention_chunk_size": 8192}, [(8, None), (24, 8192)]),
    ],
)
def test_which_layers_have_a_window_follows_from_the_familys_own_fields(figures, found):
    assert reach(**figures) == found


def test_modernbert_looks_at_everything_in_every_third_layer():
    found = layers.attention(Config(model_config("modernbert-large"), "modernbert"))
    assert [(each.layers, each.window, each.both_ways) for each in found] == [(10, None, True), (18, 128, True)]


def test_which_layers_have_experts_follows_from_the_familys_own_fields():
    assert sparse(QWEN_MOE) == 48
    assert sparse(QWEN_MOE, decoder_sparse_step=2) == 24
    assert sparse(QWEN_MOE, mlp_only_layers=[0, 1, 2]) == 45
    deepseek = model_config("deepseek-v3")
    assert sparse(deepseek) == 58
    assert sparse(deepseek, moe_layer_freq=2) == 29  # 4, 6, … 60
    assert sparse(deepseek, moe_layer_freq=[0] * 60 + [1]) == 1
    assert sparse(deepseek, moe_layer_freq=[False] * 60 + [True]) == 1
    assert sparse(model_config("llama-4-maverick")) == 24
    assert sparse(model_config("nemotron-3-nano-30b-a3b")) == 23
    assert sparse(LLAMA) == sparse(LLAMA, num_experts=0) == 0


def test_shared_experts_are_of_the_width_that_their_family_says():
    def shared(name):
        return families.experts(Config(model_config(name), name)).shared

    assert shared("deepseek-v2-lite") == 2 * 3 * 2048 * 1408
    assert shared("qwen3-next-80b-a3b") == 3 * 2048 * 512
    assert shared("llama-4-scout") == 3 * 5120 * 8192
    assert shared("mixtral-8x7b") == 0


def test_latent_attention_counts_its_small_matrices():
    # DeepSeek-V3: 7168·1536 + 1536·128·192 + 7168·576 + 512·128·256 + 128·128·7168
    (only,) = layers.attention(Config(model_config("deepseek-v3"), "v3"))
    assert only.parameters == 187_105_280
    assert only.attend == 2 * 128 * (2 * 512 + 64)
    assert only.prefill == 2 * 128 * (128 + 64 + 128)


@pytest.mark.parametrize("name", models())
def test_the_named_matrices_of_a_model_are_all_of_its_body(name):
    config = model_config(name)
    mixture = families.experts(Config(config, name))
    body = sum(each.layers * each.parameters for each in layers.attention(Config(config, name)))
    body += families.dense(Config(config, name))
    if mixture:
        body += mixture.layers * (mixture.count * mixture.each + mixture.shared + mixture.router)
    assert sum(count for part, _, count in layers.modules(Config(config, name)) if part != "head") == body
