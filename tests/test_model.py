import pytest

from harness.errors import HarnessError
from harness.predict.catalog import model_config
from harness.predict.model import (
    kv_bytes_per_token,
    model,
    parameters,
    parameters_in,
    weight_bytes,
    weight_bytes_per_step,
)

LLAMA = model_config("llama-3.1-8b")


def shaped(**figures):
    return model({**LLAMA, **figures})


# G34: by hand from the published configs, and the parameter counts of the published checkpoints.
COUNTS = {
    "llama-3.1-8b": (8_029_995_008, 8_030_261_248),
    "llama-3.1-70b": (70_552_387_584, 70_553_706_496),
    "llama-3.1-405b": (405_849_243_648, 405_853_388_800),
    "mistral-7b": (7_247_757_312, 7_248_023_552),
    "qwen2.5-0.5b": (493_961_216, 494_032_768),
}


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_counts_follow_from_the_config(name):
    by_hand, published = COUNTS[name]
    assert parameters(model(model_config(name), name)).total == by_hand
    assert by_hand == pytest.approx(published, rel=2e-4)


def test_the_8b_splits_into_body_and_head():
    # attention 2·4096·4096 + 2·4096·1024, MLP 3·4096·14336, 32 layers; head 128256·4096
    count = parameters(model(LLAMA))
    assert count.body == 32 * (41_943_040 + 176_160_768)
    assert count.head == 525_336_576
    assert count.matmul == count.body + count.head
    assert count.total == count.matmul + count.head


def test_tied_embeddings_are_kept_once_but_read_all_the_same():
    tied, untied = shaped(tie_word_embeddings=True), shaped(tie_word_embeddings=False)
    assert weight_bytes(untied) - weight_bytes(tied) == 2 * 525_336_576
    assert weight_bytes_per_step(untied) == weight_bytes_per_step(tied) == weight_bytes(tied)


def test_kv_bytes_of_grouped_and_of_full_heads():
    seventy = model_config("llama-3.1-70b")
    assert kv_bytes_per_token(model(LLAMA)) == 131_072  # G7
    full = kv_bytes_per_token(model({**seventy, "num_key_value_heads": 64}))
    assert full == 2_621_440  # G21
    assert full * 4096 == pytest.approx(10.74e9, rel=1e-3)
    grouped = kv_bytes_per_token(model(seventy))
    assert grouped == 327_680  # G22
    assert grouped * 4096 == pytest.approx(1.34e9, rel=2e-3)


def test_key_value_heads_default_to_all_heads():
    assert shaped(num_key_value_heads=None).kv_heads == 32


def test_an_explicit_head_dim_beats_the_quotient():
    # Mistral-Nemo: 5120 / 32 = 160, but its config says 128; 40 layers, 8 KV heads.
    nemo = shaped(hidden_size=5120, num_hidden_layers=40, head_dim=128)
    assert kv_bytes_per_token(nemo) == 163_840


def test_an_ungated_mlp_has_two_matrices():
    gated, plain = shaped(), shaped(model_type="gpt_neox")
    assert parameters(gated).body - parameters(plain).body == 32 * 4096 * 14336


def test_tying_defaults_to_what_the_architecture_does():
    silent = {key: value for key, value in LLAMA.items() if key != "tie_word_embeddings"}
    assert not model(silent).tied
    assert model({**silent, "model_type": "gemma"}).tied


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_local_experts", 8),
        ("n_routed_experts", 256),
        ("kv_lora_rank", 512),
        ("quantization_config", {"quant_method": "awq"}),
        ("sliding_window", 4096),
        ("layer_types", ["full_attention", "sliding_attention"]),
        ("text_config", {"hidden_size": 1}),
        ("model_type", "rwkv"),
        ("torch_dtype", "float32"),
    ],
)
def test_what_would_be_silently_wrong_is_refused_by_name(field, value):
    name = "dtype" if field == "torch_dtype" else field
    with pytest.raises(HarnessError, match=f"{name} of .* is not predicted yet"):
        shaped(**{field: value})


@pytest.mark.parametrize(
    "harmless",
    [
        {"sliding_window": 32768, "use_sliding_window": False},
        {"sliding_window": 131072},
        {"layer_types": ["full_attention"] * 32},
        {"num_experts": 0, "quantization_config": None},
    ],
)
def test_a_field_that_changes_nothing_is_not_refused(harmless):
    assert parameters(shaped(**harmless)) == parameters(shaped())


def test_the_servers_dtype_beats_the_configs():
    assert weight_bytes(model({**LLAMA, "torch_dtype": "float32"}, dtype="float16")) == 2 * 8_029_995_008


def test_a_config_without_a_needed_figure_names_it():
    with pytest.raises(HarnessError, match="'toy' has no intermediate_size"):
        model({**LLAMA, "intermediate_size": None}, "toy")


def test_a_weight_files_size_gives_its_parameters():
    assert parameters_in(15.7e9) == pytest.approx(7.85e9)  # G31
