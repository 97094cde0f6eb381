import pytest

from harness.base.errors import HarnessError
from harness.predict.catalog import model_config
from harness.predict.model import model, weight_bytes
from harness.predict.quantisation import kv_bits

LLAMA = model_config("llama-3.1-8b")


def stored(config=None, *, dtype="auto", base=LLAMA):
    return model({**base, "quantization_config": config}, "toy", dtype=dtype).stored


def compressed(weights, inputs=None, targets=("Linear",), **more):
    groups = {"group_0": {"weights": weights, "input_activations": inputs, "targets": list(targets)}}
    return {"quant_method": "compressed-tensors", "config_groups": groups, **more}


@pytest.mark.parametrize(
    ("config", "method", "bits", "compute"),
    [
        (None, "none", 16, "bf16"),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "fp8", 8, "fp8"),
        ({"quant_method": "fbgemm_fp8"}, "fp8", 8, "fp8"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "int4", 4 + 20 / 128, "bf16"),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "int8", 8, "bf16"),
        ({"quant_method": "mxfp4"}, "mxfp4", 4.25, "fp4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", 4.5, "fp4"),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}}, "fp8", 8, "fp8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4", 4.5, "bf16"),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 64, "sym": True}, "int4", 4 + 20 / 64, "bf16"),
        ({"quant_method": "auto-round", "bits": 4, "data_type": "mx_fp", "group_size": 32}, "mxfp4", 4.25, "fp4"),
        ({"quant_method": "mxfp8"}, "fp8", 8.25, "fp8"),
        ({"quant_algo": "FP8", "ignore": ["lm_head"]}, "fp8", 8, "fp8"),  # some of ModelOpt's have no method
        (compressed({"num_bits": 8, "type": "float"}, {"num_bits": 8}), "fp8", 8, "fp8"),
        (compressed({"num_bits": 8, "type": "int"}, {"num_bits": 8}), "int8", 8, "int8"),
        (compressed({"num_bits": 4, "type": "int", "group_size": 128}), "int4", 4.125, "bf16"),
        (compressed({"num_bits": 4, "type": "float", "group_size": 16}, {"num_bits": 4}), "nvfp4", 4.5, "fp4"),
    ],
)
def test_a_method_says_its_bits_and_where_it_multiplies(config, method, bits, compute):
    found = stored(config)
    assert (found.method, found.bits, found.compute) == (method, bits, compute)


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"quant_method": "quip"}, "quant_method"),
        ({"quant_method": "awq"}, "bits"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*mlp": {"bits": 99}}}, "bits"),
        ({"quant_method": "auto-round", "bits": 4, "data_type": "odd_fp"}, "data_type"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "quantized_layers"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8"}, "quant_algo"),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, "config_groups"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": {}, "b": {}}}, "num_bits"),
        ({"quant_method": "fp8", "modules_to_not_convert": ["some.adapter"]}, "modules_to_not_convert"),
        ({"quant_method": "fp8", "modules_to_not_convert": ["re:("]}, "modules_to_not_convert"),
        ({"quant_method": "bitsandbytes"}, "load_in_4bit"),
    ],
)
def test_a_method_that_is_not_understood_is_refused_by_its_field(config, field):
    with pytest.raises(HarnessError, match=f"quantization_config.*{field}"):
        stored(config)


def test_modules_left_in_16_bits_are_counted_by_name():
    def shares(*names):
        found = stored({"quant_method": "fp8", "modules_to_not_convert": list(names)})
        return found.attention, found.dense

    assert shares("lm_head", "model.embed_tokens") == (1.0, 1.0)
    assert shares("self_attn") == (0.0, 1.0)
    assert shares("model.layers.*.mlp") == (1.0, 0.0)
    assert shares("re:.*mlp.down_proj") == (1.0, pytest.approx(2 / 3))
    # one layer of 32, and not the tenth to nineteenth as well
    assert shares("model.layers.1") == (pytest.approx(31 / 32), pytest.approx(31 / 32))
    # of 41,943,040 parameters a layer the queries have 16,777,216
    assert shares("language_model.model.layers.0.self_attn.q_proj") == (pytest.approx(1 - 0.4 / 32), 1.0)


def test_of_compressed_tensors_only_the_targets_are_converted():
    def shares(*targets, **more):
        found = stored(compressed({"num_bits": 8, "type": "float"}, {"num_bits": 8}, targets, **more))
        return found.attention, found.dense

    assert shares("Linear") == shares() == shares("re:.*mlp.*", "Linear") == (1.0, 1.0)
    assert shares("re:.*mlp.*") == (0.0, 1.0)
    assert shares("re:.*mlp.*", "re:.*self_attn.*", ignore=["re:.*mlp.down_proj"]) == (1.0, pytest.approx(2 / 3))
    for target, shown in (("FusedMoE", "FusedMoE"), ("re:(", r"re:\("), ("model.layers.0.adapter", "adapter")):
        with pytest.raises(HarnessError, match=f"quantization_config: targets.*{shown}"):
            shares(target)
    with pytest.raises(HarnessError, match=r"quantization_config\.targets"):
        stored(
            {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 8}, "targets": 3}}}
        )


def test_gpt_oss_keeps_its_attention_and_quantises_its_experts():
    found = model(model_config("gpt-oss-20b")).stored
    assert (found.attention, found.experts, found.head) == (0.0, 1.0, 0.0)


def test_a_16_bit_dtype_is_the_activations_and_leaves_stored_weights_alone():
    awq = {"quant_method": "awq", "bits": 4, "group_size": 128}
    assert stored(awq, dtype="half") == stored(awq)
    assert stored(dtype="bfloat16") == stored()


@pytest.mark.parametrize(
    ("dtype", "bits"), [("fp8", 8), ("int8", 8), ("awq", 4.15625), ("mxfp4", 4.25), ("nvfp4", 4.5)]
)
def test_a_dtype_quantises_everything_but_embeddings_and_head(dtype, bits):
    size = weight_bytes(model(LLAMA, dtype=dtype))
    assert size == pytest.approx(6_979_321_856 * bits / 8 + 2 * 2 * 525_336_576)


def test_a_dtype_that_contradicts_the_checkpoint_is_refused():
    with pytest.raises(HarnessError, match="'toy' is stored as mxfp4, not as fp8"):
        stored({"quant_method": "mxfp4"}, dtype="fp8")


def test_unknown_precisions_name_the_nearest():
    with pytest.raises(HarnessError, match=r"--dtype: unknown precision 'pf8'; did you mean 'fp8'"):
        stored(dtype="pf8")
    with pytest.raises(HarnessError, match=r"--kv-dtype: unknown precision 'fp8e4m3'; did you mean 'fp8_e4m3'"):
        kv_bits({}, "fp8e4m3")


def test_kv_follows_the_checkpoints_own_scheme_unless_it_is_told():
    scheme = {"quantization_config": {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}}
    assert kv_bits(scheme, "auto") == 8
    assert kv_bits(scheme, "bfloat16") == 16
    assert kv_bits(LLAMA, "auto") == 16


def test_a_model_that_comes_in_fp8_has_4_bit_checkpoints_too():
    r1 = model(model_config("deepseek-r1"), "r1", dtype="nvfp4")
    assert (r1.stored.method, r1.stored.attention, r1.stored.experts) == ("nvfp4", 0.0, 1.0)  # latent: 16 bits
    m2 = model(model_config("minimax-m2.5"), "m2", dtype="nvfp4")
    assert (m2.stored.method, m2.stored.attention) == ("nvfp4", 1.0)
    # 62 · 256 experts of 3 · 3072 · 1536 and 62 layers of attention in 4.5 bits, the vocabulary twice in 16
    body = 62 * (256 * 3 * 3072 * 1536 + 3072 * 128 * (2 * 48 + 2 * 8))
    assert weight_bytes(m2) == pytest.approx(body * 4.5 / 8 + 62 * 3072 * 256 * 2 + 2 * 200064 * 3072 * 2)


def test_modules_that_an_hf_quant_config_leaves_out_keep_16_bits():
    inner = {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head", "model.layers.*.self_attn*"]}
    found = stored({"quant_method": "modelopt", "quantization": inner})
    assert (found.method, found.attention, found.dense) == ("nvfp4", 0.0, 1.0)


def test_four_bit_weights_of_that_file_have_a_scale_a_group():
    inner = {"quant_algo": "W4A16_AWQ", "group_size": 128, "exclude_modules": ["lm_head"]}
    assert stored({"quant_method": "modelopt", "quantization": inner}).bits == 4 + 16 / 128


def test_the_layer_that_drafts_tokens_may_be_named_though_it_is_not_counted():
    listed = ["model.layers.32*", "*.mlp.up_proj.*"]
    found = stored({"quant_method": "fp8", "modules_to_not_convert": listed})
    assert (found.attention, found.dense) == (1.0, pytest.approx(2 / 3))
    with pytest.raises(HarnessError, match="modules_to_not_convert"):  # layer 31 is there, and has no such part
        stored({"quant_method": "fp8", "modules_to_not_convert": ["model.layers.31.adapter"]})


def test_a_pattern_may_be_written_for_either_name_of_shared_experts():
    moe = model_config("kimi-k2.5")
    found = model(moe, "k2.5").stored
    assert (found.method, found.experts, found.attention, found.shared, found.dense) == ("int4", 1.0, 0.0, 0.0, 0.0)


def test_another_precision_than_the_stored_one_is_named_as_another_checkpoint():
    note = "r1 is stored in fp8: this is the prediction of another checkpoint of it, in nvfp4"
    assert model(model_config("deepseek-r1"), "r1", dtype="nvfp4").notes == (note,)
    assert model(model_config("deepseek-r1"), "r1", dtype="fp8").notes == ()
    assert model(LLAMA, "llama", dtype="nvfp4").notes == ()  # 16-bit weights can be converted


ATTENTION, MLP = 41_943_040, 176_160_768  # parameters of a layer of an 8B, of 32


@pytest.mark.parametrize(
    "config",
    [
        {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {
                **{
                    f"model.layers.{i}.self_attn.{each}_proj": {"quant_algo": "FP8"}
                    for i in range(32)
                    for each in "qkvo"
                },
                **{f"model.layers.{i}.mlp.up_proj": {"quant_algo": "NVFP4", "group_size": 16} for i in range(32)},
            },
        },
        {
            "quant_method": "compressed-tensors",
            "config_groups": {
                "a": {"weights": {"num_bits": 8, "type": "float"}, "targets": ["re:.*self_attn.*"]},
                "b": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}, "targets": ["re:.*up_proj"]},
            },
        },
    ],
)
def test_modules_of_one_checkpoint_may_have_several_precisions(config):
    size = weight_bytes(model({**LLAMA, "quantization_config": config}, "toy"))
    # attention in 8 bits, a third of the MLP in 4.5, the rest and the vocabulary twice in 16
    layer = ATTENTION * 1.0 + MLP / 3 * 4.5 / 8 + MLP * 2 / 3 * 2
    assert size == pytest.approx(32 * layer + 2 * 2 * 525_336_576)


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "gptq", "bits": 4, "dynamic": {"-:.*self_attn.*": {}, "+:.*up_proj": {"bits": 8}}},
        {
            "quant_method": "auto-round",
            "bits": 4,
            "extra_config": {"self_attn": {"bits": 16}, "mlp.up_proj": {"bits": 8}},
        },
    ],
)
def test_some_modules_have_bits_of_their_own(config):
    found = stored(config)
    assert (found.method, found.attention, found.dense) == ("int4", 0.0, pytest.approx(2 / 3))
    assert [(each.method, each.attention, each.dense) for each in found.also] == [("int8", 0.0, pytest.approx(1 / 3))]


def test_of_mixed_precisions_each_multiplies_in_its_own():
    precisions = {"self_attn": {"quant_algo": "FP8"}, "mlp": {"quant_algo": "W4A16_NVFP4"}}
    mixed = stored({"quant_algo": "MIXED_PRECISION", "quantized_layers": precisions})
    assert mixed.shares("attention") == [(0.0, 4.5, "bf16"), (1.0, 8.0, "fp8"), (0.0, 16.0, "bf16")]
    assert mixed.shares("dense") == [(1.0, 4.5, "bf16"), (0.0, 8.0, "fp8"), (0.0, 16.0, "bf16")]


def test_the_experts_of_a_layer_are_one_module_however_they_are_listed():
    moe = model_config("qwen3-30b-a3b")
    listed = {
        f"model.layers.{i}.mlp.experts.{j}.{each}_proj": {"quant_algo": "NVFP4"}
        for i in range(48)
        for j in range(128)
        for each in ("gate", "up", "down")
    }
    found = stored({"quant_algo": "MIXED_PRECISION", "quantized_layers": listed}, base=moe)
    assert (found.method, found.experts, found.attention) == ("nvfp4", 1.0, 0.0)


def test_an_indexer_has_another_name_in_the_lists_of_published_checkpoints():
    listed = ["lm_head", *(f"model.layers.{i}.self_attn.indexers_proj" for i in range(78))]
    found = stored({"quant_method": "fp8", "modules_to_not_convert": listed}, base=model_config("glm-5"))
    weights = 6144 * 32  # a weight a head; of all matrices of a layer's attention
    (layer,) = model(model_config("glm-5")).attention
    assert found.attention == pytest.approx(1 - weights / layer.parameters)


@pytest.mark.parametrize("where", [{"kv_cache_scheme": "FP8"}, {"quantization": {"kv_cache_quant_algo": "FP8"}}])
def test_a_cache_of_8_bits_may_be_a_word(where):
    assert kv_bits({"quantization_config": where}, "auto") == 8
