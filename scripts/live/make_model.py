"""A toy causal language model, made offline: config.json and a tokenizer trained on the spot.

A server with invented weights (`vllm serve DIR --load-format dummy`) runs the same code paths,
batching and timing on this folder as on a downloaded model of that shape; only the text is noise. `--weights` adds
random ones for a server that reads them. Left out: any wish that the vocabulary be the same on two machines (it is
trained on the standard library's sources of whichever Python runs this).

    python scripts/live/make_model.py OUT --size tiny|mid|small|llama-8b [--weights]
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TRAINED = 8192  # entries of the vocabulary that come from the corpus


class Shape(NamedTuple):
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int = 64
    vocab: int = TRAINED
    tied: bool = True  # embeddings, so that the head costs no parameters of its own
    rope_theta: float = 10000.0


SHAPES = {
    "tiny": Shape(256, 704, 4, 4, 2),
    "mid": Shape(512, 1408, 8, 8, 4),
    "small": Shape(1024, 2816, 12, 16, 8),
    "llama-8b": Shape(4096, 14336, 32, 32, 8, 128, vocab=128256, tied=False, rope_theta=500000.0),  # Llama-3.1-8B
}
CONTEXT = 8192
END, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def corpus(limit: int = 6_000_000) -> Iterator[str]:
    """English and code that every machine has: the standard library's modules, about `limit` characters."""
    read = 0
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(stdlib.glob("*.py")) + sorted(stdlib.glob("[a-z]*/*.py")):
        text = path.read_text(encoding="utf-8", errors="ignore")
        yield text
        read += len(text)
        if read >= limit:
            return


def train(vocab: int = TRAINED) -> Tokenizer:
    """Return a byte-level BPE tokenizer of `vocab` entries: every text has tokens, none is unknown."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def pad(tokenizer: Tokenizer, vocab: int) -> Tokenizer:
    """Return the tokenizer with words of two known parts added up to `vocab` entries; the special ones come last.

    Invented weights give any token of the model's vocabulary. One that the tokenizer does not know has no text, and
    one that is special is left out of the answer: neither would arrive.
    """
    whole = json.loads(tokenizer.to_str())
    model = whole["model"]
    known = sorted(model["vocab"], key=model["vocab"].__getitem__)
    special = [entry["content"] for entry in whole["added_tokens"]]
    plain = [token for token in known if token not in special]
    heads = [token for token in plain if token.startswith("Ġ") and token[1:].isascii() and token[1:].isalpha()]
    tails = [token for token in plain if token.isascii() and token.isalpha()]
    taken, pairs = set(known), list[list[str]]()
    for head, tail in itertools.product(heads, tails):
        if len(known) + len(pairs) >= vocab:
            break
        if head + tail not in taken:
            taken.add(head + tail)
            pairs.append([head, tail])
    entries = [*plain, *(head + tail for head, tail in pairs), *special]
    model["vocab"] = {token: i for i, token in enumerate(entries)}
    model["merges"] += pairs
    for entry in whole["added_tokens"]:
        entry["id"] = model["vocab"][entry["content"]]
    return Tokenizer.from_str(json.dumps(whole))


def config(shape: Shape, tokenizer: Tokenizer) -> dict[str, object]:
    """Return the Llama config.json of a shape."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": CONTEXT,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": shape.rope_theta,
        "attention_bias": False,
        "tie_word_embeddings": shape.tied,
        "torch_dtype": "bfloat16",
        "bos_token_id": tokenizer.token_to_id(END),
        "eos_token_id": tokenizer.token_to_id(TURN_END),
        "pad_token_id": tokenizer.token_to_id(END),
    }


def tensors(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Return every weight of a Llama by its name, with its dimensions; those of norms have one.

    >>> sum(math.prod(dimensions) for dimensions in tensors(SHAPES["mid"]).values())
    27795968
    >>> sum(math.prod(dimensions) for dimensions in tensors(SHAPES["llama-8b"]).values())
    8030261248
    """
    hidden, q, kv = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    layer = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (q, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (shape.intermediate, hidden),
        "mlp.up_proj": (shape.intermediate, hidden),
        "mlp.down_proj": (hidden, shape.intermediate),
    }
    layers = {f"layers.{i}.{name}": dimensions for i in range(shape.layers) for name, dimensions in layer.items()}
    every: dict[str, tuple[int, ...]] = {"embed_tokens": (shape.vocab, hidden), **layers, "norm": (hidden,)}
    head: dict[str, tuple[int, ...]] = {} if shape.tied else {"lm_head.weight": (shape.vocab, hidden)}
    return {f"model.{name}.weight": dimensions for name, dimensions in every.items()} | head


def write_weights(path: Path, shape: Shape) -> None:
    """Random bfloat16 weights as safetensors: the header's length, the header, then one tensor after the other."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, dimensions in tensors(shape).items():
        start, end = end, end + 2 * math.prod(dimensions)
        header[name] = {"dtype": "BF16", "shape": dimensions, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for dimensions in tensors(shape).values():
            ones = len(dimensions) == 1
            values = np.ones(dimensions, "<f4") if ones else 0.02 * rng.standard_normal(dimensions, dtype=np.float32)
            # A bfloat16 is the upper half of a float32.
            file.write((values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes())


def write(out: Path, size: str, *, weights: bool = False) -> None:
    """Write the model folder `out`, whole or not at all: config.json is the last file written."""
    out.mkdir(parents=True, exist_ok=True)
    shape = SHAPES[size]
    tokenizer = pad(train(), shape.vocab) if shape.vocab > TRAINED else train()
    tokenizer.save(str(out / "tokenizer.json"))
    special = {"bos_token": END, "eos_token": TURN_END, "pad_token": END}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
        **special,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")
    (out / "special_tokens_map.json").write_text(json.dumps(special, indent=1) + "\n")
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    if weights:
        write_weights(out / "model.safetensors", shape)
    (out / "config.json").write_text(json.dumps(config(shape, tokenizer), indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a toy model folder, offline.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", choices=SHAPES, default="mid")
    parser.add_argument("--weights", action="store_true", help="random ones, in model.safetensors")
    arguments = parser.parse_args()
    write(arguments.out, arguments.size, weights=arguments.weights)
    print(f"{arguments.out}: {arguments.size}, vocabulary {SHAPES[arguments.size].vocab}")


if __name__ == "__main__":
    main()
