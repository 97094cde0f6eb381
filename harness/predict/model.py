"""From a Hugging Face config.json to parameters, weight bytes and KV bytes.

Dense decoders with MHA, GQA or MQA. Whatever would make these figures silently wrong (experts, latent
attention, quantised weights, sliding windows, an unknown architecture) is refused by the field's name.
Norms and biases are left out: below 0.02 % of any of these models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from harness.errors import HarnessError, nearest

# model_type: (matrices of its MLP, are its embeddings tied when the config does not say)
_FAMILIES = {
    "gemma": (3, True),
    "gpt_neox": (2, False),
    "granite": (3, False),
    "llama": (3, False),
    "mistral": (3, False),
    "olmo2": (3, False),
    "phi3": (3, False),
    "qwen2": (3, False),
    "qwen3": (3, False),
    "starcoder2": (2, True),
}
_BYTES = {"bfloat16": 2, "float16": 2}
_REFUSED = {
    "text_config": "a multimodal model",
    "vision_config": "a multimodal model",
    "is_encoder_decoder": "an encoder-decoder",
    "quantization_config": "quantised weights",
    "num_local_experts": "a mixture of experts",
    "num_experts": "a mixture of experts",
    "n_routed_experts": "a mixture of experts",
    "kv_lora_rank": "latent attention",
    "sliding_window_pattern": "sliding windows",
    "mamba_d_state": "a state-space hybrid",
}


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """The architecture figures that bytes and FLOP follow from."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    mlp_matrices: int  # 3 when gated (gate, up, down), else 2
    vocab: int
    tied: bool  # input and output embedding are one matrix
    max_context: int
    weight_bits: int = 16
    kv_bits: int = 16


class Parameters(msgspec.Struct, frozen=True):
    """Parameter counts, without norms and biases."""

    body: int  # every layer's matrices
    head: int  # one vocabulary matrix
    total: int  # what lies in memory: N_total
    matmul: int  # what a token is multiplied with: N_mm; the input embedding is only looked up


def model(config: Mapping[str, Any], name: str = "", *, dtype: str = "auto") -> Model:
    """The figures of a config.json; an explicit head_dim beats hidden_size / num_attention_heads.

    `dtype` is the server's: "auto" takes the config's own.
    """
    name = name or str(config.get("_name_or_path") or config.get("model_type", ""))
    _refuse_what_is_not_predicted(config, name)
    matrices, tied = _family(config, name)
    heads = _figure(config, "num_attention_heads", name)
    hidden = _figure(config, "hidden_size", name)
    stored = config.get("torch_dtype") or config.get("dtype") or "bfloat16"
    dtype = str(stored if dtype == "auto" else dtype).removeprefix("torch.")
    if dtype not in _BYTES:
        raise _not_predicted("dtype", dtype, name, "if the server casts them down, say --dtype bfloat16")
    return Model(
        name=name,
        layers=_figure(config, "num_hidden_layers", name),
        hidden=hidden,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or hidden // heads,
        intermediate=_figure(config, "intermediate_size", name),
        mlp_matrices=matrices,
        vocab=_figure(config, "vocab_size", name),
        tied=config.get("tie_word_embeddings", tied),
        max_context=_figure(config, "max_position_embeddings", name),
        weight_bits=8 * _BYTES[dtype],
        kv_bits=8 * _BYTES[dtype],
    )


def _figure(config: Mapping[str, Any], field: str, name: str) -> int:
    value = config.get(field)
    if not isinstance(value, int) or value < 1:
        way_out = "give the config.json that lies beside the model's weights"
        raise HarnessError(f"the config of {name!r} has no {field}", place="--model-config", way_out=way_out)
    return value


def _family(config: Mapping[str, Any], name: str) -> tuple[int, bool]:
    kind = str(config.get("model_type", ""))
    if kind not in _FAMILIES:
        raise _not_predicted("model_type", kind, name, nearest(kind, _FAMILIES))
    return _FAMILIES[kind]


def _refuse_what_is_not_predicted(config: Mapping[str, Any], name: str) -> None:
    for field, what in _REFUSED.items():
        if config.get(field):
            raise _not_predicted(field, what, name)
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    # A window as wide as the longest context never cuts anything off.
    if window and window < config.get("max_position_embeddings", 0):
        raise _not_predicted("sliding_window", str(window), name)
    for kind in config.get("layer_types") or ():
        if kind != "full_attention":
            raise _not_predicted("layer_types", str(kind), name)


def _not_predicted(field: str, value: str, name: str, way_out: str = "") -> HarnessError:
    fact = f"{field} of {name!r} ({value}) is not predicted yet"
    way_out = way_out or "measure it without a prediction: leave --gpu and --model-config out"
    return HarnessError(fact, place="--model-config", way_out=way_out)


def parameters(model: Model) -> Parameters:
    """Parameter counts; numbers.

    body = L (2 h n_q d + 2 h n_kv d + 3 h f), head = V h, N_total = body + head (1 if tied else 2),
    N_mm = body + head (analytic.md §3).
    """
    h, d = model.hidden, model.head_dim
    attention = 2 * h * model.heads * d + 2 * h * model.kv_heads * d
    mlp = model.mlp_matrices * h * model.intermediate
    body = model.layers * (attention + mlp)
    head = model.vocab * h
    return Parameters(body, head, body + head * (1 if model.tied else 2), body + head)


def weight_bytes(model: Model) -> float:
    """Weights as they lie in memory; bytes. N_total · b_w."""
    return parameters(model).total * model.weight_bits / 8


def weight_bytes_per_step(model: Model) -> float:
    """Weights read by one decode step: W of the formulas; bytes. N_mm · b_w."""
    return parameters(model).matmul * model.weight_bits / 8


def kv_bytes_per_token(model: Model) -> float:
    """KV cache of one token: kv of the formulas; bytes. 2 L n_kv d b_kv."""
    return 2 * model.layers * model.kv_heads * model.head_dim * model.kv_bits / 8


def parameters_in(size: float, bits: int = 16) -> float:
    """Parameters that a weight file of `size` bytes holds.

    >>> parameters_in(15.7e9)
    7850000000.0
    """
    return size * 8 / bits
