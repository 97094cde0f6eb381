import json
import subprocess
import sys

import msgspec
import pytest

from harness.base.errors import HarnessError
from harness.data.prediction import Prediction
from harness.predict.catalog import gpu, model_config
from harness.predict.question import Question, answer, predict, setup

CHAT = Question(model="llama-3.1-8b", gpu="h100-sxm", input_tokens=1000, output_tokens=200)


def ask(**figures):
    return msgspec.structs.replace(CHAT, **figures)


def test_names_become_a_model_a_card_and_a_deployment(tmp_path):
    path = tmp_path / "toy" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(model_config("qwen2.5-0.5b")))
    made, where, workload = setup(ask(model=str(path), gpu="L4", dtype="fp8", figures={"tp": 2, "mbu": 0.7}))
    assert (made.name, made.stored.method) == ("toy", "fp8")
    assert (where.gpu.key, where.tp, where.gpus, where.mbu) == ("l4", 2, 2, 0.7)
    assert workload.context == 1100


def test_a_card_of_ones_own_can_be_given():
    own = msgspec.structs.replace(gpu("h100-sxm"), key="host", bandwidth=50e9, memory_bytes=64e9, flops={"bf16": 1e12})
    assert predict(ask(model="qwen2.5-0.5b", gpu=own)).gpu == "host"


def test_golden_figures_are_reached_through_ordinary_options():
    def assumed(model, **figures):
        return predict(ask(model=model, **figures)).assumptions

    assert assumed("llama-3.1-8b").kv_bytes_per_token == 131_072  # G7
    assert assumed("llama-3.1-70b", figures={"tp": 4}).kv_bytes_per_token == 327_680  # G22
    assert assumed("llama-3.1-8b").parameters == 8_029_995_008  # G34
    assert assumed("deepseek-v3", gpu="h200-sxm", figures={"tp": 8}).kv_bytes_per_token == 70_272  # G35
    assert assumed("mistral-nemo").kv_bytes_per_token == 163_840  # G36
    # G38: 4095 + 2/2 tokens of context
    assert assumed("gpt-oss-20b", input_tokens=4095, output_tokens=2).kv_bytes_per_request == 103_809_024
    # G37: experts hit by 1, 4 and 16 running
    levels = predict(ask(model="mixtral-8x7b", levels=[1, 4, 16], figures={"tp": 2})).levels
    assert [round(level.experts_hit, 3) for level in levels] == [2.0, 5.469, 7.92]


def test_the_prefill_of_g33b_is_reached_through_ordinary_options():
    quiet = {"o_layer": 0.0, "o_step": 0.0, "o_req": 0.0, "mbu": 0.7, "mfu_prefill": 0.5, "mfu_decode": 0.5}
    found = predict(ask(levels=[64], figures={**quiet, "weight_bytes": 16e9}))
    assert found.assumptions.prefill_s == pytest.approx(28.76e-3, rel=0.01)
    assert found.levels[0].output_tokens_per_s.mid == pytest.approx(3206, rel=0.01)


def test_what_an_input_walks_into_is_in_the_notes():
    found = predict(ask(peak_flops=1979e12, gpu="h100-sxm"))
    assert any("sparse peak" in note for note in found.notes)
    assert any("reach beyond a node" in note for note in predict(ask(model="llama-3.1-70b", figures={"tp": 16})).notes)
    assert any("fitted on NVIDIA" in note for note in predict(ask(gpu="mi300x")).notes)
    assert predict(CHAT).notes == []


def test_an_answer_travels_as_json():
    found = answer(ask(slo={"ttft_p50": 20.0}, price=2.0))
    again = msgspec.json.decode(msgspec.json.encode(found.prediction), type=Prediction)
    assert again == found.prediction
    assert [limit.name for limit in found.limits if limit.binds] == ["kv_memory"]


def test_an_encoder_answers_without_decoding():
    found = answer(ask(model="bge-m3", input_tokens=512))
    assert found.prediction.output_tokens == 0


def test_weights_weighed_by_hand_are_for_dense_models():
    with pytest.raises(HarnessError, match="are not all read by every step"):
        predict(ask(model="mixtral-8x7b", figures={"tp": 2, "weight_bytes": 9e10}))


def test_a_request_longer_than_the_context_is_refused():
    with pytest.raises(HarnessError, match="at most 512"):
        predict(ask(model="all-minilm-l6-v2", input_tokens=4000))


def test_predicting_imports_nothing_heavy():
    code = "import sys, harness.predict.question, harness.decide.choice; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert not {"numpy", "pandas", "pyarrow", "httpx", "transformers", "matplotlib"} & set(out.split())
