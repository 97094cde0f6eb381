"""The GGUF twin of a model folder that scripts/live/make_model.py made: the same shape and tokenizer, random weights.

    python scripts/live/make_gguf.py MODEL OUT.gguf

Needs the `gguf` package, which scripts/live/servers installs beside llama.cpp.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf  # type: ignore[import-not-found, unused-ignore]  # no part of the development environment
import numpy as np


def add_model(writer: Any, config: dict[str, Any], *, name: str, file_type: gguf.LlamaFileType) -> None:
    """Add the keys of a Llama's shape."""
    writer.add_name(name)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(file_type)


def add_tokenizer(
    writer: Any, config: dict[str, Any], tokenizer: dict[str, Any], template: str, *, pre: str = "gpt-2"
) -> None:
    """Add the byte-level BPE vocabulary with its merges, and the chat template; `pre` names how text is cut first."""
    vocab: dict[str, int] = tokenizer["model"]["vocab"]
    special = {token["content"] for token in tokenizer["added_tokens"]}
    tokens = sorted(vocab, key=vocab.__getitem__)
    kinds = [gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens]
    merges = tokenizer["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(template)


def add_weights(writer: Any, config: dict[str, Any]) -> None:
    """Add random float16 matrices, norms of one; the head is the embedding."""
    hidden, intermediate = config["hidden_size"], config["intermediate_size"]
    q, kv = (config[heads] * config["head_dim"] for heads in ("num_attention_heads", "num_key_value_heads"))
    matrices = {
        "attn_q": (q, hidden),
        "attn_k": (kv, hidden),
        "attn_v": (kv, hidden),
        "attn_output": (hidden, q),
        "ffn_gate": (intermediate, hidden),
        "ffn_up": (intermediate, hidden),
        "ffn_down": (hidden, intermediate),
    }
    rng = np.random.default_rng(0)

    def noise(name: str, dimensions: tuple[int, int]) -> None:
        values = 0.02 * rng.standard_normal(dimensions, dtype=np.float32)
        writer.add_tensor(f"{name}.weight", values.astype(np.float16))

    noise("token_embd", (config["vocab_size"], hidden))
    for layer in range(config["num_hidden_layers"]):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{norm}.weight", np.ones(hidden, np.float32))
        for name, dimensions in matrices.items():
            noise(f"blk.{layer}.{name}", dimensions)
    writer.add_tensor("output_norm.weight", np.ones(hidden, np.float32))


@contextmanager
def written(out: Path, architecture: str) -> Iterator[Any]:
    """Yield a writer, and write what it was given to `out`, whole or not at all."""
    part = out.with_suffix(".part")
    writer = gguf.GGUFWriter(part, architecture)
    yield writer
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.replace(out)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the GGUF twin of a toy model folder.")
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    config = json.loads((arguments.model / "config.json").read_text())
    tokenizer = json.loads((arguments.model / "tokenizer.json").read_text())
    template = json.loads((arguments.model / "tokenizer_config.json").read_text())["chat_template"]

    with written(arguments.out, "llama") as writer:
        add_model(writer, config, name="toy", file_type=gguf.LlamaFileType.MOSTLY_F16)
        add_tokenizer(writer, config, tokenizer, template)
        add_weights(writer, config)
    print(f"{arguments.out}: {arguments.out.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
