"""How the layers of a model mix tokens, from the fields of its config.json: which attention, and how far back.

A layer mixes tokens (attention, or a state of constant size for all of the past) and then works on each token alone
(predict.families, as is how a field is read). Norms, biases, convolutions and the towers of other senses
are left out.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from harness.predict.families import DENSE, EXPERTS, Config, dense, experts, heads, indices, pattern, works

_FULL, _WINDOW, _LINEAR = "full_attention", "sliding_attention", "linear_attention"
_CHOOSING, _REUSING = "chooses", "reuses"  # attention to chosen tokens, by the layer's own choice or an earlier one's
_CHOSEN_RATIO = 4  # tokens in one, up to which an indexer chooses among them
_COMPRESSED = "compressed "  # and how many tokens become one
_SORTS = {  # names in `layer_types`
    **{each: each for each in (_FULL, _WINDOW, _LINEAR)},
    "attention": _FULL,
    "chunked_attention": _WINDOW,
    "compressed_sparse_attention": f"{_COMPRESSED}4",
    "heavily_compressed_attention": f"{_COMPRESSED}128",
    "mamba": _LINEAR,
    "minimax_m3_sparse": _CHOOSING,
}


class Index(msgspec.Struct, frozen=True):
    """What chooses the tokens that a layer attends to: small keys of all tokens, compared in 8 bits.

    Every rank keeps all of them (vLLM's DeepseekV32IndexerCache); the matrices before are counted as split.
    """

    kept: float  # bytes a token
    attend: float  # FLOP of one token compared with one other


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    """Some layers that mix tokens alike, and what one of them holds, keeps and computes."""

    layers: int
    matrices: dict[str, int]  # parameters by the names that checkpoints use
    kv: float = 0  # elements kept of each token: 2 n_kv d; with latent attention rank + rope
    kv_heads: int = 0  # heads over which TP can split them; 0: every rank keeps all
    attend: float = 0  # FLOP of one token attending to one other: 4 n_q d
    prefill: float = 0  # the same where whole prompts are computed
    window: int | None = None  # tokens it attends to; None: all of them
    chosen: bool = False  # the window is of chosen tokens, so all are kept
    index: Index | None = None  # what chooses them, if this layer does
    both_ways: bool = False  # an encoder's tokens see the later ones too
    state: float = 0.0  # bytes a request of constant size, in place of KV

    @property
    def parameters(self) -> int:
        return sum(self.matrices.values())

    @property
    def all_kept(self) -> bool:
        """Return whether the KV of every token is kept, however far back."""
        return self.window is None or self.chosen

    def kept_of_token(self, kv_bits: float) -> float:
        """Return the bytes that one layer keeps of one token."""
        return self.kv * kv_bits / 8 + (self.index.kept if self.index else 0)

    def kept(self, context: float, kv_bits: float) -> float:
        """Return bytes that one layer keeps of so many tokens, or of its window; without a state of constant size."""
        tokens = context if self.all_kept else min(context, self.window or context)
        return tokens * self.kept_of_token(kv_bits)


# ---- layers that mix tokens -----------------------------------------------------------------------------


def attention(config: Config) -> tuple[Attention, ...]:
    """Return the layers that mix tokens, those that are alike together."""
    return tuple(each for alike in _alike(config).values() for each in alike)


def _alike(config: Config) -> dict[str, tuple[Attention, ...]]:
    """Return the layers by their sort. Where one reads a window and compressed tokens, its sort has two entries."""
    sorts = [each for each in _sorts(config) if each]
    order = [_LINEAR, _FULL, _WINDOW, *sorts]
    return {sort: _built(config, sort, sorts.count(sort)) for sort in dict.fromkeys(order) if sort in sorts}


def _built(config: Config, sort: str, layers: int) -> tuple[Attention, ...]:
    """Return the attention of `layers` layers of one sort: linear, compressed, latent (MLA) or plain."""
    if sort == _LINEAR:
        return (_linear(config, layers),)
    if config.kind == "deepseek_v4":
        return _compressed(config, layers, int(sort.removeprefix(_COMPRESSED)) if sort != _WINDOW else 0)
    if config.get("kv_lora_rank") or sort == _REUSING or "indexer_types" in config.family.reads:
        return (_latent(config, layers, sort),)
    return (_attending(config, layers, _window(config) if sort == _WINDOW else None, sort),)


def _sorts(config: Config) -> list[str]:
    """Return the sort of attention of each layer, in order; "" for a layer without any."""
    if config.kind == "nemotron_h":
        return [{"*": _FULL, "M": _LINEAR}.get(kind, "") for kind in pattern(config)]
    L = config.figure("num_hidden_layers")
    if "indexer_types" in config.family.reads:
        return _choices(config, L)
    if ratios := indices(config, "compress_ratios"):  # those after the last layer are of one that drafts tokens
        return [f"{_COMPRESSED}{ratio}" if ratio else _WINDOW for ratio in ratios[:L]]
    if choosing := indices(config, "sparse_attention_freq"):
        return [_CHOOSING if each else _FULL for each in choosing]
    if linear := indices(config, "kda_layers"):  # they count from 1
        return [_LINEAR if i + 1 in linear else _FULL for i in range(L)]
    types = config.get("layer_types")
    if types and not isinstance(types, list):
        raise config.refused("layer_types", str(types))
    if types:
        for kind in map(str, types):
            if kind not in _SORTS:
                raise config.refused("layer_types", kind)
        if len(types) != L:
            raise config.refused("layer_types", f"{len(types)} of them for {L} layers")
        return [_SORTS[kind] if _SORTS[kind] != _WINDOW or _window(config) else _FULL for kind in types]
    every = config.maybe("full_attention_interval")
    if every:
        return [_FULL if (i + 1) % every == 0 else _LINEAR for i in range(L)]
    if _window(config) is None:
        return [_FULL] * L
    between = config.maybe("global_attn_every_n_layers")
    if between:
        return [_FULL if i % between == 0 else _WINDOW for i in range(L)]
    one_in = config.maybe("sliding_window_pattern") or config.family.pattern
    if one_in:
        return [_FULL if (i + 1) % one_in == 0 else _WINDOW for i in range(L)]
    # a Qwen2 has windows only above these
    first = (config.maybe("max_window_layers") or 0) if config.get("use_sliding_window") else 0
    return [_WINDOW if i >= first else _FULL for i in range(L)]


def _choices(config: Config, L: int) -> list[str]:
    """Return which layers choose tokens and which reuse a choice (transformers, configuration_glm_moe_dsa.py)."""
    listed = config.get("indexer_types") or config.get("index_topk_pattern")
    if not listed:
        every, first = config.maybe("index_topk_freq") or 1, int(config.get("index_skip_topk_offset", 2))
        return [_REUSING if max(i - first + 1, 0) % every else _CHOOSING for i in range(L)]
    known = {"full": _CHOOSING, "F": _CHOOSING, "shared": _REUSING, "S": _REUSING}
    if not isinstance(listed, list | str) or len(listed) != L or set(map(str, listed)) - set(known):
        raise config.refused("indexer_types", "not full or shared for each layer")
    return [known[str(each)] for each in listed]


def _window(config: Config) -> int | None:
    """Return the tokens that a windowed layer attends to; None if it never cuts anything off."""
    # The configs of the Qwens have a window that is off unless another field switches it on.
    if not config.get("use_sliding_window", not config.kind.startswith("qwen")):
        return None
    fields = ("sliding_window", "attention_chunk_size", "local_attention")
    window = next((config.figure(field) for field in fields if config.get(field)), None)
    longest = config.maybe("max_position_embeddings")
    return None if window is None or (longest and window >= longest) else window


def _attending(config: Config, layers: int, window: int | None, sort: str) -> Attention:
    """Return weights, KV elements and operations of plain attention layers; `window` in tokens, None: the context."""
    h = config.figure("hidden_size")
    n_q, n_kv, d = heads(config)
    kind, values = config.kind, True
    queries = 2 if kind == "qwen3_next" or config.get("attn_output_gate") else 1  # a gate of their own size
    if kind == "gemma4_text" and window is None:  # its layers that see everything have heads of their own
        d = config.maybe("global_head_dim") or d
        if config.get("attention_k_eq_v"):
            n_kv, values = config.maybe("num_global_key_value_heads") or n_kv, False
    encoder = not config.family.generates
    index, indexing = None, {}
    if sort == _CHOOSING:  # blocks of tokens, by small keys of 16 bits
        window = config.figure("index_topk_blocks") * config.figure("index_block_size")
        lookups, size, index = _lookups(config, 2.0)
        indexing = {"indexer.q_proj": h * lookups * size, "indexer.k_proj": h * size}
    return Attention(
        layers=layers,
        matrices={
            "q_proj": queries * h * n_q * d,
            "k_proj": h * n_kv * d,
            **({"v_proj": h * n_kv * d} if values else {}),  # otherwise values are keys without positions, kept apart
            "o_proj": n_q * d * h,
            **indexing,
        },
        kv=0 if encoder else 2 * n_kv * d,
        kv_heads=n_kv,
        attend=4 * n_q * d,
        prefill=4 * n_q * d,
        window=window,
        chosen=index is not None,
        index=index,
        both_ways=encoder,
    )


def _lookups(config: Config, width: float = 1 + 1 / 32, ratio: int = 1) -> tuple[int, int, Index]:
    """Return an indexer (its heads, their size, its cost); a value is `width` bytes, by default 8 bits and a scale."""
    lookups, size = config.figure("index_n_heads"), config.figure("index_head_dim")
    return lookups, size, Index(kept=int(width * size) / ratio, attend=2 * lookups * size / ratio)


def _latent(config: Config, layers: int, sort: str) -> Attention:
    """Return the costs of MLA layers, which keep one small vector a token for all heads, whole on each rank."""
    h, n_q = config.figure("hidden_size"), config.figure("num_attention_heads")
    rank, rope = config.figure("kv_lora_rank"), config.figure("qk_rope_head_dim")
    nope, value = config.figure("qk_nope_head_dim"), config.figure("v_head_dim")
    squeezed = config.maybe("q_lora_rank")
    queries = n_q * (nope + rope)
    q = {"q_a_proj": h * squeezed, "q_b_proj": squeezed * queries} if squeezed else {"q_proj": h * queries}
    absorbed = 2 * n_q * (2 * rank + rope)  # FLOP of a pair if the work is on the small vector itself, as in decode
    chosen = config.figure("index_topk") if sort in (_CHOOSING, _REUSING) else None
    index, more = None, {}
    if config.get("mla_use_output_gate"):
        more = {"g_proj": h * n_q * value}
    if sort == _CHOOSING:
        lookups, size, index = _lookups(config)
        more |= {
            "indexer.wq_b": config.figure("q_lora_rank") * lookups * size,
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
            **more,
        },
        kv=rank + rope,
        attend=absorbed,
        # Chosen tokens are of all of the past: prompts gather their small vectors too (vLLM, flashmla_sparse.py).
        prefill=absorbed if chosen else 2 * n_q * (nope + rope + value),
        window=chosen,
        chosen=chosen is not None,
        index=index,
    )


def _compressed(config: Config, layers: int, ratio: int) -> tuple[Attention, ...]:
    """Return layers with one KV vector for all heads: a window, and the past, `ratio` tokens in one (0: no past).

    Where four become one (or few), an indexer chooses among them; of more all are read (transformers,
    modeling_deepseek_v4.py).
    """
    h, n_q, d = (config.figure(each) for each in ("hidden_size", "num_attention_heads", "head_dim"))
    q_rank, o_rank, groups = (config.figure(each) for each in ("q_lora_rank", "o_lora_rank", "o_groups"))
    matrices = {
        "wq_a": h * q_rank,
        "wq_b": q_rank * n_q * d,
        "wkv": h * d,
        "wo_a": n_q * d * o_rank,
        "wo_b": groups * o_rank * h,
    }
    attend = 4 * n_q * d
    window = Attention(
        layers=layers,
        matrices=matrices,
        kv=d,
        attend=attend,
        prefill=attend,
        window=config.figure("sliding_window"),
    )
    if not ratio:
        return (window,)
    chooses = ratio <= _CHOSEN_RATIO
    overlap = 2 if chooses else 1
    compressing = {"compressor.wkv": overlap * h * d, "compressor.wgate": overlap * h * d}
    index = None
    if chooses:
        lookups, size, index = _lookups(config, ratio=ratio)
        compressing |= {
            "indexer.wq_b": q_rank * lookups * size,
            "indexer.weights_proj": h * lookups,
            "indexer.compressor": 2 * overlap * h * size,
        }
    past = Attention(
        layers=layers,
        matrices=compressing,
        kv=d / ratio,
        attend=attend / ratio,
        prefill=attend / ratio,
        window=config.figure("index_topk") * ratio if chooses else None,
        chosen=chooses,
        index=index,
    )
    return window, past


def _linear(config: Config, layers: int) -> Attention:
    """Return the layers that keep a matrix a head instead of KV, read and written with every token."""
    kept = config.get("mamba_ssm_cache_dtype") or config.get("mamba_ssm_dtype")
    bits = 32 if kept == "float32" else 16
    h = config.figure("hidden_size")
    if config.get("mamba_num_heads"):  # Mamba-2
        n, d = config.figure("mamba_num_heads"), config.figure("mamba_head_dim")
        groups, size = config.figure("n_groups"), config.figure("ssm_state_size")
        inner, mixed, kernel = n * d, n * d + 2 * groups * size, config.figure("conv_kernel")
        matrices, state = {"in_proj": h * (inner + mixed + n), "out_proj": inner * h}, n * d * size
    elif config.kind.startswith(("qwen3_next", "qwen3_5")):  # gated delta net
        keys = config.figure("linear_num_key_heads") * config.figure("linear_key_head_dim")
        n, d = config.figure("linear_num_value_heads"), config.figure("linear_value_head_dim")
        mixed, kernel = 2 * keys + n * d, config.figure("linear_conv_kernel_dim")
        matrices = {"in_proj_qkvz": h * (mixed + n * d), "in_proj_ba": h * 2 * n, "out_proj": n * d * h}
        state = n * d * config.figure("linear_key_head_dim")
    elif config.get("linear_num_heads"):  # Kimi delta attention
        n, d = config.figure("linear_num_heads"), config.figure("linear_head_dim")
        inner, kernel = n * d, config.figure("linear_conv_kernel_dim")
        wide, small, mixed = h * inner, h * d + d * inner, 3 * inner
        matrices = {
            **dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), wide),
            "f_proj": small,
            "g_proj": wide if config.get("use_full_rank_gate") else small,
            "b_proj": h * n,
        }
        state = n * d * d
    else:
        raise config.refused("layer_types", _LINEAR)
    return Attention(layers=layers, matrices=matrices, state=state * bits / 8 + mixed * (kernel - 1) * 2)


def modules(config: Config) -> Iterator[tuple[str, str, int]]:
    """Yield every matrix as (part, dotted name, parameters); the experts of a layer are one."""
    mixing = {
        sort: [pair for each in alike for pair in each.matrices.items()] for sort, alike in _alike(config).items()
    }
    mixture, working, hybrid = experts(config), works(config), config.kind == "nemotron_h"
    mlp = dense(config) // max(1, working.count(DENSE))
    work = "mixer" if hybrid else "mlp"
    router, experts_name, shared = f"{work}.gate", f"{work}.experts", f"{work}.shared_expert"
    if config.kind == "gemma4_text":
        router, experts_name, shared = "router", "experts", "mlp"
    for i, (sort, alone) in enumerate(zip(_sorts(config), working, strict=True)):
        delta = sort == _LINEAR and not config.get("kda_layers")  # Kimi's are named as attention
        inside = "mixer" if hybrid else "linear_attn" if delta else "self_attn"
        for matrix, count in mixing[sort] if sort else ():
            yield "attention", f"layers.{i}.{inside}.{matrix}", count
        if alone == DENSE:
            names = ("gate_proj", "up_proj", "down_proj")[-config.family.matrices :]
            for matrix in names:
                yield "dense", f"layers.{i}.{work}.{matrix}", mlp // len(names)
        if mixture is not None and alone == EXPERTS:
            yield "router", f"layers.{i}.{router}", mixture.router
            yield "experts", f"layers.{i}.{experts_name}", mixture.count * mixture.each
            if mixture.shared:
                yield "shared", f"layers.{i}.{shared}", mixture.shared
    yield "head", "lm_head", config.figure("vocab_size") * config.figure("hidden_size")
