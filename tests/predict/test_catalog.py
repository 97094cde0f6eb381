import json

import pytest

from harness.base.errors import HarnessError
from harness.predict import catalog
from harness.predict.catalog import gpu, key_of, model_config
from harness.predict.model import kv_bytes_per_token, model, parameters


def test_a_gpu_key_is_found_in_any_case_and_printed_in_lower_case():
    assert gpu("H100-SXM") is gpu("h100-sxm")
    assert gpu("H100-SXM").key == "h100-sxm"


def test_figures_are_bytes_per_second_and_dense_flops():
    h100 = gpu("h100-sxm")
    assert h100.bandwidth == 3.35e12
    assert h100.flops == {"bf16": 989.4e12, "fp8": 1978.9e12, "int8": 1978.9e12}
    assert h100.link == 450e9  # 900 GB/s counts both directions
    assert h100.certainty == "high"
    assert h100.source


def test_memory_is_what_the_driver_reports_and_the_label_only_without_it():
    assert gpu("h100-sxm").memory_bytes == 81559 * 2**20
    assert gpu("a100-80-sxm").memory_bytes == 81920 * 2**20
    assert gpu("mi300x").memory_bytes == 192e9


def test_a_dtype_without_tensor_cores_is_absent():
    assert "fp8" not in gpu("a100-80-sxm").flops


def test_a_wrong_gpu_key_names_the_nearest():
    with pytest.raises(HarnessError, match="unknown GPU 'h100-sx'; did you mean 'h100-sxm'"):
        gpu("h100-sx")


@pytest.mark.parametrize(
    ("key", "like"),
    [("v100", "v100-16-sxm, v100-32-sxm"), ("H100", "h100-pcie, h100-sxm, h100-nvl")],
)
def test_a_card_without_its_form_names_its_forms_and_no_other_card(key, like):
    with pytest.raises(HarnessError) as raised:
        gpu(key)
    assert str(raised.value) == f"--gpu: unknown GPU {key!r}; did you mean {like}?"


@pytest.mark.parametrize(
    ("key", "memory", "bandwidth", "bf16"),
    [  # by their data sheets
        ("t4", 15360 * 2**20, 320e9, 65e12),
        ("v100-32-sxm", 2**35, 900e9, 125e12),
        ("a40", 46068 * 2**20, 696e9, 149.7e12),
        ("a6000", 49140 * 2**20, 768e9, 154.8e12),
        ("mi250x", 64e9, 1638e9, 191.5e12),  # one of two dies
        ("mi350x", 288e9, 8e12, 2306.9e12),
        ("tpu-v7", 192 * 2**30, 7380e9, 2307e12),
        ("trainium2", 96 * 2**30, 2900e9, 667e12),
    ],
)
def test_cards_have_the_figures_of_their_data_sheets(key, memory, bandwidth, bf16):
    card = gpu(key)
    assert (card.memory_bytes, card.bandwidth, card.flops["bf16"]) == (memory, bandwidth, bf16)


@pytest.mark.parametrize(
    ("key", "sevenths", "eighths"),
    [
        ("h100-sxm:1g.10gb", 1, 1),
        ("h100-sxm:1g.20gb", 1, 2),
        ("H100-SXM:3g.40gb", 3, 4),
        ("h100-sxm:4g.40gb", 4, 4),
        ("a100-40-sxm:2g.10gb", 2, 2),
        ("h200-sxm:1g.18gb", 1, 1),
        ("h200-sxm:3g.71gb", 3, 4),
        ("b200-sxm:1g.23gb", 1, 1),
        ("a100-80-sxm:7g.80gb", 7, 8),
    ],
)
def test_a_mig_slice_has_its_share_of_memory_bandwidth_and_sms(key, sevenths, eighths):
    part, whole = gpu(key), gpu(key.partition(":")[0])
    assert part.key == key.lower()
    assert part.memory_bytes == whole.memory_bytes * eighths / 8
    assert part.bandwidth == whole.bandwidth * eighths / 8
    assert part.flops["bf16"] == pytest.approx(whole.flops["bf16"] * sevenths / 7)
    assert part.link is None


@pytest.mark.parametrize("key", ["h100-sxm:3g.20gb", "h100-sxm:5g.50gb", "h100-sxm:half", "h100-sxm:"])
def test_a_slice_that_does_not_exist_names_those_that_do(key):
    with pytest.raises(HarnessError, match=r"known: h100-sxm:1g.10gb, h100-sxm:2g.20gb, h100-sxm:3g.40gb, h100-sxm:4g"):
        gpu(key)


def test_a_card_that_cannot_be_sliced_says_so():
    with pytest.raises(HarnessError, match="l40s has no MIG slices; give --gpu l40s"):
        gpu("l40s:1g.6gb")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA A10", "a10"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA A100-PCIE-40GB", "a100-40-pcie"),
        ("A100-SXM4-40GB", "a100-40-sxm"),  # drivers before 470 left the maker out
        ("NVIDIA A100 80GB PCIe", "a100-80-pcie"),
        ("NVIDIA A100-SXM4-80GB", "a100-80-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA GH200 480GB", "gh200-96"),  # the name counts the processor's memory
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA H200 NVL", "h200-nvl"),
        ("NVIDIA H20", "h20-96"),
        ("NVIDIA B200", "b200-sxm"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B300 SXM6 AC", "b300-sxm"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-srv"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA GeForce RTX 5090", "rtx5090"),
        ("NVIDIA GB10", "dgx-spark"),
        ("Tesla T4", "t4"),
        ("Tesla V100-SXM2-32GB", "v100-32-sxm"),
        ("NVIDIA A40", "a40"),
        ("NVIDIA RTX A6000", "a6000"),
    ],
)
def test_a_gpu_is_known_by_the_name_its_driver_gives_it(name, key):
    assert key_of(name) == key_of(name.upper()) == key
    assert gpu(key).key == key


@pytest.mark.parametrize(
    "name",
    [
        "Tesla V100-PCIE-32GB",
        "NVIDIA L2",
        "NVIDIA A100-SXM-64GB",
        "NVIDIA H100",
        "NVIDIA H20-3e",
        "NVIDIA GH200 144G HBM3e",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA RTX PRO 5000 Blackwell",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA A10-24Q",
        "NVIDIA ",
        "",
    ],
)
def test_a_card_that_only_looks_like_one_of_the_table_is_none_of_them(name):
    assert key_of(name) is None


def test_every_nvidia_gpu_of_the_table_has_a_name_of_its_own():
    rows = [row for row in catalog._rows().values() if row["vendor"] == "NVIDIA"]
    names = [name for row in rows for name in row["nvml_names"].split("|")]
    assert all(names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct"])
def test_a_shipped_model_is_found_by_the_names_people_use(name):
    assert model_config(name)["intermediate_size"] == 14336


def test_a_config_file_and_its_folder_are_read_alike(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 7}))
    assert model_config(str(tmp_path)) == model_config(str(tmp_path / "config.json")) == {"hidden_size": 7}


@pytest.mark.parametrize(("name", "like"), [("lama-3.1-8b", "llama-3.1-8b, "), ("./nowhere/config.json", "")])
def test_an_unknown_model_names_a_few_and_the_way_by_path(name, like):
    with pytest.raises(HarnessError) as raised:
        model_config(name)
    message, shipped = str(raised.value), catalog.models()
    way_out = f"give the path of its config.json, or one of the {len(shipped)} that are shipped, like {like}"
    assert message.startswith(f"--model-config: unknown model {name!r}; {way_out}")
    few = message.partition(" like ")[2].split(", ")
    assert len(few) == 3
    assert set(few) <= set(shipped)


@pytest.mark.parametrize(
    ("name", "like", "context"),
    [
        ("zai-org/GLM-4.6", "glm-4.5", 202752),
        ("deepseek-ai/DeepSeek-V3.1", "deepseek-v3", 163840),
        ("Qwen/Qwen3-235B-A22B-Thinking-2507", "qwen3-235b-a22b", 262144),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "qwen2.5-32b", 131072),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "llama-3.1-8b", 131072),
    ],
)
def test_a_later_training_has_the_architecture_of_the_first_and_its_own_context(name, like, context):
    assert model_config(name) == {**model_config(like), "max_position_embeddings": context}


def test_fp8_behind_a_name_is_how_it_is_stored():
    assert model_config("Qwen3-32B-FP8")["quantization_config"]["quant_method"] == "fp8"
    assert model_config("DeepSeek-V3.1-FP8") == model_config("DeepSeek-V3.1")  # it comes so
    with pytest.raises(HarnessError, match="unknown model 'gpt-oss-20b-fp8'"):  # which has 4 bits
        model_config("gpt-oss-20b-fp8")


QUANTISED = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}


def test_quantisation_that_stands_beside_a_config_is_read_with_it(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(model_config("llama-3.1-8b")))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(QUANTISED))
    for place in (tmp_path, tmp_path / "config.json"):
        read = model(model_config(str(place)))
        assert (read.stored.method, read.kv_bits) == ("fp8", 8.0)


def test_a_config_that_has_its_own_quantisation_keeps_it(tmp_path):
    own = model_config("llama-3.1-8b") | {"quantization_config": {"quant_method": "awq", "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(own))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(QUANTISED))
    assert model_config(str(tmp_path)) == own


@pytest.mark.parametrize("text", ["{", "[1]", '"x"'])
def test_a_file_that_is_no_config_is_the_operators_mistake(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(HarnessError, match="not a model config"):
        model_config(str(tmp_path))


def test_a_config_may_have_numbers_that_only_python_writes(tmp_path):
    plain = {**model_config("nemotron-3-nano-30b-a3b"), "time_step_limit": [0.0, 1e9], "rope_theta": 1e4}
    text = json.dumps(plain)
    (tmp_path / "config.json").write_text(text.replace("1000000000.0", "Infinity").replace("10000.0", "NaN"))
    assert model(model_config(str(tmp_path)), "toy") == model(plain, "toy")
    (tmp_path / "config.json").write_text('{"a": Infinity')
    with pytest.raises(HarnessError, match="not a model config"):
        model_config(str(tmp_path))


def test_an_encoder_made_of_a_decoder_has_a_pooling_layer_of_its_own():
    text = {**model_config("mistral-7b"), "model_type": "bidir_mistral"}
    latent = {"num_cross_heads": 8, "cross_dim_head": 4096, "latent_dim": 4096, "num_latents_value": 512}
    made = model({"model_type": "nvembed", "text_config": text, "latent_attention_config": latent}, "nv-embed-v2")
    # 7.85e9 by its model card; the head of the decoder is not there
    assert parameters(made).total == pytest.approx(7.85e9, rel=0.01)
    assert (made.generates, kv_bytes_per_token(made)) == (False, 0)
    with pytest.raises(HarnessError, match="num_cross_heads"):
        model({**text, "latent_attention_config": {**latent, "num_cross_heads": None}}, "toy")


def test_a_hybrid_without_a_layer_of_states_is_a_decoder_like_others():
    figures = {"layer_types": ["attention"] * 40, "mamba_n_heads": 128, "mamba_d_state": 256, "mamba_d_head": 40}
    made = model({**model_config("granite-4.0-micro"), **figures}, "toy")
    assert made == model(model_config("granite-4.0-micro"), "toy")
    assert kv_bytes_per_token(made) == 40 * 2 * 8 * 64 * 2
    mixed = {"layer_types": ["mamba"] * 36 + ["attention"] * 4, "mamba_n_groups": 1, "mamba_d_conv": 4}
    (states, _) = model({**model_config("granite-4.0-micro"), **figures, **mixed}, "toy").attention
    assert (states.layers, states.state) == (36, 128 * 40 * 256 * 2 + (128 * 40 + 2 * 256) * 3 * 2)


def test_a_card_may_be_described_by_its_data_sheet():
    card = gpu("bandwidth=936GB/s, memory=24GiB, fp16=71T, int8=284T")
    assert (card.bandwidth, card.memory_bytes) == (936e9, 24 * 2**30)
    assert card.flops == {"bf16": 71e12, "int8": 284e12}
    assert (card.link, catalog.constants(card)) == (None, "guess")


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("bandwidth=936GB/s,memory=24GiB", "a card without fp16"),
        ("bandwidth=fast,memory=24GiB,fp16=71T", "'bandwidth=fast' describes no card"),
        ("speed=3,memory=24GiB,fp16=71T", "'speed=3' describes no card"),
        ("bandwidth=0,memory=24GiB,fp16=71T", "'bandwidth=0' describes no card"),
    ],
)
def test_a_description_that_is_not_understood_says_how_one_looks(text, fact):
    with pytest.raises(HarnessError, match=f"{fact}; give figures like bandwidth=936GB/s"):
        gpu(text)


@pytest.mark.parametrize("name", ["Cerebras CS-3", "groq-lpu", "SambaNova SN40L"])
def test_chips_without_the_memory_of_a_gpu_are_measured_and_not_predicted(name):
    with pytest.raises(HarnessError, match="is not predicted; measure it"):
        gpu(name)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA GeForce RTX 3090", "rtx3090"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000-ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtx-pro-6000-maxq"),
        ("NVIDIA H800", "h800-sxm"),
        ("NVIDIA A800-SXM4-80GB", "a800-80-sxm"),
        ("NVIDIA L40", "l40"),
        ("NVIDIA A30", "a30"),
        ("AMD Instinct MI210", "mi210"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_a_card_is_known_by_its_drivers_name(name, key):
    assert gpu(name).key == key


@pytest.mark.parametrize(
    ("name", "key", "share"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "a100-40-sxm", 1 / 8),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", "h100-sxm", 1 / 8),
        ("NVIDIA A30 MIG 2g.12gb", "a30", 1 / 2),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition MIG 1g.24gb", "rtx-pro-6000-srv", 1 / 4),
        ("Instinct MI300X", "mi300x", 1.0),
    ],
)
def test_cards_and_slices_are_known_by_what_their_drivers_print(name, key, share):
    assert gpu(name).bandwidth == gpu(key).bandwidth * share
