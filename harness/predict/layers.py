"""What the layers of a model are, from the fields of its config.json: which attention, how far back, which MLP.

A layer mixes tokens (attention, or a state of constant size that stands for all of the past) and then works on
each token alone (a dense MLP, or the few of many experts that its router picks). How a field is read stands in
predict.families. Norms, biases, convolutions and the towers of other senses are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from harness.predict.families import FAMILIES, blocks, figure, heads, maybe, refused

_EXPERT_COUNTS = ("n_routed_experts", "num_local_experts", "num_experts")
_FULL, _WINDOW, _LINEAR = "full_attention", "sliding_attention", "linear_attention"


class Index(msgspec.Struct, frozen=True):
    """What chooses the tokens that a layer attends to: small keys of all tokens, compared in 8 bits.

    Every rank keeps all of them (vLLM's DeepseekV32IndexerCache); the matrices before are counted as split.
    """

    kept: int  # bytes a token
    attend: int  # FLOP of one token compared with one other


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    """Some layers that mix tokens alike, and what one of them holds, keeps and computes."""

    layers: int
    matrices: dict[str, int]  # parameters by the names that checkpoints use
    kv: int = 0  # elements kept of each token: 2 n_kv d; with latent attention rank + rope
    kv_heads: int = 0  # over which TP can split them; 0: every rank keeps all
    attend: int = 0  # FLOP of one token attending to one other: 4 n_q d
    prefill: int = 0  # the same where whole prompts are computed
    window: int | None = None  # tokens it attends to; None: all of them
    index: Index | None = None  # the window is of chosen tokens, so all are kept
    both_ways: bool = False  # an encoder's tokens see the later ones too
    state: float = 0.0  # bytes a request of constant size, in place of KV

    @property
    def parameters(self) -> int:
        return sum(self.matrices.values())

    @property
    def all_kept(self) -> bool:
        """Whether the KV of every token is kept, however far back."""
        return self.window is None or self.index is not None

    def kept_of_token(self, kv_bits: float) -> float:
        """Bytes that one layer keeps of one token."""
        return self.kv * kv_bits / 8 + (self.index.kept if self.index else 0)

    def kept(self, context: float, kv_bits: float) -> float:
        """Bytes that one layer keeps of so many tokens, or of its window; without a state of constant size."""
        tokens = context if self.all_kept else min(context, self.window or context)
        return tokens * self.kept_of_token(kv_bits)


class Experts(msgspec.Struct, frozen=True, kw_only=True):
    """Some layers with a mixture of experts; parameters of one layer."""

    layers: int
    count: int  # E
    per_token: int  # k
    each: int  # parameters of one expert, 3 h f_e
    shared: int  # of the experts that every token passes
    router: int  # h E


# ---- layers that mix tokens -----------------------------------------------------------------------------


def attention(config: Mapping[str, Any], name: str) -> tuple[Attention, ...]:
    """The layers that mix tokens, those that are alike together."""
    sorts = [each for each in _sorts(config, name) if each]
    reach = _window(config, name)
    found = [
        _linear(config, name, sorts.count(_LINEAR)) if _LINEAR in sorts else None,
        _attending(config, name, sorts.count(_FULL), None) if _FULL in sorts else None,
        _attending(config, name, sorts.count(_WINDOW), reach) if _WINDOW in sorts else None,
    ]
    return tuple(each for each in found if each is not None)


def _sorts(config: Mapping[str, Any], name: str) -> list[str]:
    """How each layer mixes tokens, in order; "" where it does not."""
    if config.get("model_type") == "nemotron_h":
        return [{"*": _FULL, "M": _LINEAR}.get(kind, "") for kind in _pattern(config, name)]
    L = figure(config, "num_hidden_layers", name)
    if searched := blocks(config, name):
        return [_FULL if each.kv_heads else "" for each in searched]
    types = config.get("layer_types")
    if types and not isinstance(types, list):
        raise refused("layer_types", str(types), name)
    if types:
        known = {_FULL: _FULL, _WINDOW: _WINDOW, "chunked_attention": _WINDOW, _LINEAR: _LINEAR}
        for kind in map(str, types):
            if kind not in known:
                raise refused("layer_types", kind, name)
        if len(types) != L:
            raise refused("layer_types", f"{len(types)} of them for {L} layers", name)
        return [known[kind] if known[kind] != _WINDOW or _window(config, name) else _FULL for kind in types]
    every = maybe(config, "full_attention_interval", name)
    if every:
        return [_FULL if (i + 1) % every == 0 else _LINEAR for i in range(L)]
    if _window(config, name) is None:
        return [_FULL] * L
    between = maybe(config, "global_attn_every_n_layers", name)
    if between:
        return [_FULL if i % between == 0 else _WINDOW for i in range(L)]
    pattern = maybe(config, "sliding_window_pattern", name) or FAMILIES[config["model_type"]].pattern
    if pattern:
        return [_FULL if (i + 1) % pattern == 0 else _WINDOW for i in range(L)]
    # a Qwen2 has windows only above these
    first = (maybe(config, "max_window_layers", name) or 0) if config.get("use_sliding_window") else 0
    return [_WINDOW if i >= first else _FULL for i in range(L)]


def _window(config: Mapping[str, Any], name: str) -> int | None:
    """Tokens that a windowed layer attends to; None where it never cuts anything off."""
    # The configs of the Qwens have a window that is off unless another field switches it on.
    if not config.get("use_sliding_window", not str(config.get("model_type")).startswith("qwen")):
        return None
    fields = ("sliding_window", "attention_chunk_size", "local_attention")
    window = next((figure(config, field, name) for field in fields if config.get(field)), None)
    longest = maybe(config, "max_position_embeddings", name)
    return None if window is None or (longest and window >= longest) else window


def _attending(config: Mapping[str, Any], name: str, layers: int, window: int | None) -> Attention:
    h = figure(config, "hidden_size", name)
    if config.get("kv_lora_rank") or FAMILIES[config["model_type"]].chooses:
        return _latent(config, name, layers)
    n_q, n_kv, d = heads(config, name)
    kind, values = config.get("model_type"), True
    queries = 2 if kind == "qwen3_next" or config.get("attn_output_gate") else 1  # a gate of their own size
    if kind == "gemma4_text" and window is None:  # its layers that see everything have heads of their own
        d = maybe(config, "global_head_dim", name) or d
        if config.get("attention_k_eq_v"):
            n_kv, values = maybe(config, "num_global_key_value_heads", name) or n_kv, False
    encoder = not FAMILIES[config["model_type"]].generates
    return Attention(
        layers=layers,
        matrices={
            "q_proj": queries * h * n_q * d,
            "k_proj": h * n_kv * d,
            **({"v_proj": h * n_kv * d} if values else {}),  # without it values are keys without positions, kept apart
            "o_proj": n_q * d * h,
        },
        kv=0 if encoder else 2 * n_kv * d,
        kv_heads=n_kv,
        attend=4 * n_q * d,
        prefill=4 * n_q * d,
        window=window,
        both_ways=encoder,
    )


def _latent(config: Mapping[str, Any], name: str, layers: int) -> Attention:
    """MLA: what is kept of a token is one small vector that all heads share, so no rank can keep less of it."""
    h, n_q = figure(config, "hidden_size", name), figure(config, "num_attention_heads", name)
    rank, rope = figure(config, "kv_lora_rank", name), figure(config, "qk_rope_head_dim", name)
    nope, value = figure(config, "qk_nope_head_dim", name), figure(config, "v_head_dim", name)
    squeezed = maybe(config, "q_lora_rank", name)
    queries = n_q * (nope + rope)
    q = {"q_a_proj": h * squeezed, "q_b_proj": squeezed * queries} if squeezed else {"q_proj": h * queries}
    absorbed = 2 * n_q * (2 * rank + rope)  # FLOP of a pair where the work is on the small vector itself, as in decode
    chosen, size, lookups, indexing = None, 0, 0, {}
    if FAMILIES[config["model_type"]].chooses:
        chosen, size = figure(config, "index_topk", name), figure(config, "index_head_dim", name)
        lookups = figure(config, "index_n_heads", name)
        indexing = {
            "indexer.wq_b": figure(config, "q_lora_rank", name) * lookups * size,
            "indexer.wk": h * size,
            "indexer.weights_proj": h * lookups,
        }
    return Attention(
        layers=layers,
        matrices={
            **q,
            "kv_a_proj_with_mqa": h * (rank + rope),
            "kv_b_proj": rank * n_q * (nope + value),
            "o_proj": n_q * value * h,
            **indexing,
        },
        kv=rank + rope,
        attend=absorbed,
        # Chosen tokens are of all of the past: prompts gather their small vectors too (vLLM, flashmla_sparse.py).
        prefill=absorbed if chosen else 2 * n_q * (nope + rope + value),
        window=chosen,
        index=Index(kept=size + size // 32, attend=2 * lookups * size) if chosen else None,  # a 32-bit scale for 128
    )


def _linear(config: Mapping[str, Any], name: str, layers: int) -> Attention:
    """Layers that keep a matrix a head instead of KV, read and written with every token."""
    kept = config.get("mamba_ssm_cache_dtype") or config.get("mamba_ssm_dtype")
    bits = 32 if kept == "float32" else 16
    h = figure(config, "hidden_size", name)
    if config.get("model_type") == "nemotron_h":  # Mamba-2
        n, d = figure(config, "mamba_num_heads", name), figure(config, "mamba_head_dim", name)
        groups, size = figure(config, "n_groups", name), figure(config, "ssm_state_size", name)
        inner, mixed, kernel = n * d, n * d + 2 * groups * size, figure(config, "conv_kernel", name)
        matrices, state = {"in_proj": h * (inner + mixed + n), "out_proj": inner * h}, n * d * size
    elif str(config.get("model_type")).startswith(("qwen3_next", "qwen3_5")):  # gated delta net
        keys = figure(config, "linear_num_key_heads", name) * figure(config, "linear_key_head_dim", name)
        n, d = figure(config, "linear_num_value_heads", name), figure(config, "linear_value_head_dim", name)
        mixed, kernel = 2 * keys + n * d, figure(config, "linear_conv_kernel_dim", name)
        matrices = {"in_proj_qkvz": h * (mixed + n * d), "in_proj_ba": h * 2 * n, "out_proj": n * d * h}
        state = n * d * figure(config, "linear_key_head_dim", name)
    else:
        raise refused("layer_types", _LINEAR, name)
    return Attention(layers=layers, matrices=matrices, state=state * bits / 8 + mixed * (kernel - 1) * 2)


_KINDS = {"mamba": "M", "attention": "*", "moe": "E", "mlp": "-"}


def _pattern(config: Mapping[str, Any], name: str) -> str:
    """The layers of a Nemotron-H, a letter each: M a state, * attention, E experts, - an MLP."""
    listed = config.get("layers_block_type")  # newer configs have words instead
    if isinstance(listed, list):
        pattern = "".join(_KINDS.get(str(each), "?") for each in listed)
    else:
        pattern = str(config.get("hybrid_override_pattern", ""))
    if not pattern or set(pattern) - set("M*E-"):
        raise refused("hybrid_override_pattern", pattern or "none", name)
    return pattern


# ---- layers that work on each token alone ---------------------------------------------------------------


def dense(config: Mapping[str, Any], name: str, sparse: int) -> int:
    """Parameters of all dense MLPs together, where `sparse` layers have experts instead."""
    kind = FAMILIES[config["model_type"]]
    if searched := blocks(config, name):
        return kind.matrices * figure(config, "hidden_size", name) * sum(each.width for each in searched)
    if config.get("model_type") == "nemotron_h":
        layers = _pattern(config, name).count("-")
    else:
        layers = figure(config, "num_hidden_layers", name) - sparse
    if not layers:
        return 0
    field = kind.dense_width if config.get(kind.dense_width) else "intermediate_size"
    return layers * kind.matrices * figure(config, "hidden_size", name) * figure(config, field, name)


def experts(config: Mapping[str, Any], name: str) -> Experts | None:
    """The layers with experts; None where there are none."""
    field = next((each for each in _EXPERT_COUNTS if config.get(each)), None)
    if field is None:
        return None
    kind, E, h = FAMILIES[config["model_type"]], figure(config, field, name), figure(config, "hidden_size", name)
    layers = sum(_sparse(config, name))
    if not layers:
        return None
    width = figure(config, kind.expert_width, name)
    shared = maybe(config, "shared_expert_intermediate_size", name) or maybe(
        config, "moe_shared_expert_intermediate_size", name
    )
    if shared is None:
        copies = 1 if config["model_type"] == "llama4_text" else maybe(config, "n_shared_experts", name) or 0
        shared = copies * width
    if config["model_type"] == "gemma4_text":  # its layers have a dense MLP as well, which every token passes
        shared = figure(config, "intermediate_size", name)
    chosen = "top_k_experts" if config.get("top_k_experts") else "num_experts_per_tok"
    per_token = figure(config, chosen, name)
    if per_token > E:
        raise refused(chosen, f"{per_token} of {E} experts", name)
    latent = maybe(config, "moe_latent_size", name)  # experts work on a smaller vector, made and undone by two matrices
    return Experts(
        layers=layers,
        count=E,
        per_token=per_token,
        each=kind.matrices * (latent or h) * width,
        shared=kind.matrices * h * shared + 2 * h * (latent or 0),
        router=h * E,
    )


def _sparse(config: Mapping[str, Any], name: str) -> Sequence[bool]:
    """Whether each layer has experts, in order."""
    if config.get("model_type") == "nemotron_h":
        return [kind == "E" for kind in _pattern(config, name)]
    L = figure(config, "num_hidden_layers", name)
    if config.get("model_type") == "llama4_text":
        step = maybe(config, "interleave_moe_layer_step", name) or 1
        chosen = _indices(config, "moe_layers", name) or range(step - 1, L, step)
        return [i in chosen for i in range(L)]
    if isinstance(config.get("moe_layer_freq"), list):
        listed = _indices(config, "moe_layer_freq", name)  # a flag a layer
        if len(listed) != L:
            raise refused("moe_layer_freq", f"{len(listed)} of them for {L} layers", name)
        return [bool(each) for each in listed]
    every, first = maybe(config, "moe_layer_freq", name) or 1, maybe(config, "first_k_dense_replace", name) or 0
    step, only = maybe(config, "decoder_sparse_step", name) or 1, _indices(config, "mlp_only_layers", name)
    return [i >= first and i % every == 0 and (i + 1) % step == 0 and i not in only for i in range(L)]


def _indices(config: Mapping[str, Any], field: str, name: str) -> list[int]:
    """A list of whole numbers; empty where there is none."""
    found = config.get(field) or []
    if not isinstance(found, list) or not all(isinstance(each, int) for each in found):
        raise refused(field, str(found), name)
    return found


def modules(config: Mapping[str, Any], name: str) -> Iterator[tuple[str, str, int]]:
    """Every matrix as (part, dotted name, parameters); the experts of a layer are one."""
    mixing = {
        (_LINEAR if each.state else _FULL if each.all_kept else _WINDOW): each for each in attention(config, name)
    }
    mixture, sorts, sparse = experts(config, name), _sorts(config, name), _sparse(config, name)
    has_experts = mixture is not None
    mlp = dense(config, name, sum(sparse) if has_experts else 0)
    hybrid = config.get("model_type") == "nemotron_h"
    work = "mixer" if hybrid else "mlp"
    names_of = (f"{work}.gate", f"{work}.experts", f"{work}.shared_expert")
    if config.get("model_type") == "gemma4_text":
        names_of = ("router", "experts", "mlp")
    plain = [i for i in range(len(sorts)) if not (has_experts and sparse[i])]
    if hybrid:
        plain = [i for i, kind in enumerate(_pattern(config, name)) if kind == "-"]
    if searched := blocks(config, name):
        plain = [i for i, each in enumerate(searched) if each.width]
    for i, sort in enumerate(sorts):
        inside = "mixer" if hybrid else "linear_attn" if sort == _LINEAR else "self_attn"
        for matrix, count in mixing[sort].matrices.items() if sort else ():
            yield "attention", f"layers.{i}.{inside}.{matrix}", count
        if i in plain:
            names = ("gate_proj", "up_proj", "down_proj")[-FAMILIES[config["model_type"]].matrices :]
            for matrix in names:
                yield "dense", f"layers.{i}.{work}.{matrix}", mlp // len(plain) // len(names)
        if mixture is not None and sparse[i]:
            router, experts_name, shared = names_of
            yield "router", f"layers.{i}.{router}", mixture.router
            yield "experts", f"layers.{i}.{experts_name}", mixture.count * mixture.each
            if mixture.shared:
                yield "shared", f"layers.{i}.{shared}", mixture.shared
    yield "head", "lm_head", figure(config, "vocab_size", name) * figure(config, "hidden_size", name)
