import json

import pytest

from harness.errors import HarnessError
from harness.predict.catalog import gpu, model_config


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
    assert gpu("a100-80-sxm").memory_bytes == 80e9


def test_a_dtype_without_tensor_cores_is_absent():
    assert "fp8" not in gpu("a100-80-sxm").flops


def test_a_wrong_gpu_key_names_the_nearest():
    with pytest.raises(HarnessError, match="unknown GPU 'h100-sx'; did you mean 'h100-sxm'"):
        gpu("h100-sx")


@pytest.mark.parametrize("name", ["llama-3.1-8b", "Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct"])
def test_a_shipped_model_is_found_by_the_names_people_use(name):
    assert model_config(name)["intermediate_size"] == 14336


def test_a_config_file_and_its_folder_are_read_alike(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 7}))
    assert model_config(str(tmp_path)) == model_config(str(tmp_path / "config.json")) == {"hidden_size": 7}


def test_an_unknown_model_names_the_nearest_and_the_way_by_path():
    with pytest.raises(HarnessError, match=r"did you mean 'llama-3.1-8b'\?; or give the path"):
        model_config("lama-3.1-8b")


@pytest.mark.parametrize("text", ["{", "[1]", '"x"'])
def test_a_file_that_is_no_config_is_the_operators_mistake(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(HarnessError, match="is no model config"):
        model_config(str(tmp_path))
