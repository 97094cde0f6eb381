"""The fields of a config.json, what the family of a model implies without saying so there, and its MLPs and experts.

Only families whose fields are known are read: the same field name means different things in different ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from harness.base.errors import HarnessError, nearest

PLACE = "--model-config"


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """What a model_type implies without saying so in its config.json."""

    matrices: int = 3  # matrices of an MLP: 3 when gated (gate, up, down), else 2
    tied: bool = False  # embeddings are tied by default
    generates: bool = True  # False: an encoder, which answers with a vector
    pattern: int = 0  # one layer in so many attends to everything, the others to a window; 0: all alike
    expert_width: str = "moe_intermediate_size"
    dense_width: str = "intermediate_size"
    reads: frozenset[str] = frozenset()  # fields that are understood here and refused in other families
    defaults: dict[str, int] = {}  # fields that published configs of the family leave out


_GEMMA3 = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
}
_PLAIN, _TIED, _UNGATED = Family(), Family(tied=True), Family(matrices=2)
_WIDE_EXPERTS = Family(expert_width="intermediate_size")
_ENCODER = Family(matrices=2, tied=True, generates=False)
_CHOOSING = Family(reads=frozenset({"index_topk", "indexer_types", "index_topk_freq", "index_topk_pattern"}))
_MINIMAX_M3 = Family(expert_width="intermediate_size", dense_width="dense_intermediate_size")
FAMILIES = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta"), _ENCODER),
    **dict.fromkeys(("cohere", "gemma", "smollm3"), _TIED),
    **dict.fromkeys(
        (
            "deepseek_v2", "deepseek_v3", "glm4", "glm4_moe", "glm4_moe_lite", "granite", "kimi_k2", "kimi_linear",
            "llama", "mistral", "olmo2", "olmo3", "phi3", "qwen2", "qwen2_5_vl", "qwen2_5_vl_text",
            "qwen2_moe", "qwen2_vl", "qwen3", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text",
            "qwen3_moe", "qwen3_next", "qwen3_vl_moe_text", "qwen3_vl_text",
        ),
        _PLAIN,
    ),
    **dict.fromkeys(("gpt_oss", "granitemoe", "minimax_m2", "mixtral", "olmoe", "phimoe"), _WIDE_EXPERTS),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), _CHOOSING),
    **dict.fromkeys(("minimax_m3", "minimax_m3_vl", "minimax_m3_vl_text"), _MINIMAX_M3),
    "bidir_mistral": Family(tied=True, generates=False),
    "cohere2": Family(tied=True, pattern=4),
    "deepseek_v4": Family(reads=frozenset({"index_topk"})),
    "gemma2": Family(tied=True, pattern=2),
    "gemma3_text": Family(tied=True, pattern=6, defaults=_GEMMA3),
    "gemma4_text": Family(tied=True, pattern=6),
    "gpt_neox": _UNGATED,
    "granitemoehybrid": Family(
        expert_width="intermediate_size",
        dense_width="shared_intermediate_size",
        reads=frozenset({"mamba_d_state"}),
    ),
    "llama4_text": Family(pattern=4, expert_width="intermediate_size", dense_width="intermediate_size_mlp"),
    "modernbert": Family(tied=True, generates=False),
    "nemotron_h": _UNGATED,
    "starcoder2": Family(matrices=2, tied=True),
}  # fmt: skip
_MOST = {"num_hidden_layers": 1_000, "num_attention_heads": 10_000}  # more is a slip of the pen
_SHARING = "layers that share the tokens they chose"
_REFUSED = {
    "is_encoder_decoder": "an encoder-decoder",
    "mamba_d_state": "a state-space hybrid of another kind",
    "cross_attention_layers": "layers that attend to images",
    "attention_pattern": "a pattern of attention by letters",
    "index_topk": "attention to chosen tokens only",
    "indexer_types": _SHARING,
    "index_topk_freq": _SHARING,
    "index_topk_pattern": _SHARING,
    "hidden_size_per_layer_input": "embeddings for every layer",
    "num_kv_shared_layers": "layers that share their KV",
}


class Config:
    """The fields of one model's config.json, its name, and its family; a field that is not understood is refused."""

    def __init__(self, fields: Mapping[str, Any], name: str) -> None:
        """Read a model's config; raise HarnessError for a family or a field that matters but is unknown here."""
        self.fields, self.name = text_of(fields), name
        self.kind = str(self.get("model_type", ""))
        known = FAMILIES.get(self.kind)
        for field, what in _REFUSED.items():  # first: the nearest family is no answer where such a field says more
            value = self.get(field)
            every = field == "index_topk_freq" and value == 1  # each layer chooses
            if value and not every and not (known and field in known.reads):
                raise self.refused(field, what)
        if known is None:
            raise refused("model_type", self.kind, name, nearest(self.kind, FAMILIES))
        self.family = known

    def get(self, field: str, default: Any = None) -> Any:
        return self.fields.get(field, default)

    def refused(self, field: str, value: str) -> HarnessError:
        return refused(field, value, self.name)

    def figure(self, field: str) -> int:
        """Return a whole number of at least 1 that the config has to hold, or that its family always has."""
        value = self.get(field)
        return whole(self.family.defaults.get(field) if value is None else value, field, self.name)

    def maybe(self, field: str) -> int | None:
        """Return a whole number that may be absent, null or 0, which all mean None."""
        return self.figure(field) if self.get(field) else None


_SAME = {  # names of other families for what is the same
    "mamba_d_conv": "conv_kernel",
    "mamba_d_head": "mamba_head_dim",
    "mamba_d_state": "ssm_state_size",
    "mamba_n_groups": "n_groups",
    "mamba_n_heads": "mamba_num_heads",
    "model_max_length": "max_position_embeddings",
    "num_experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
    "routed_expert_hidden_size": "moe_latent_size",
    "shared_intermediate_size": "shared_expert_intermediate_size",
}
_INSIDE = {  # objects whose fields newer configs have outside, by the names that they have there
    "linear_attn_config": {
        "head_dim": "linear_head_dim",
        "num_heads": "linear_num_heads",
        "short_conv_kernel_size": "linear_conv_kernel_dim",
    },
    "sparse_attention_config": {
        "sparse_num_index_heads": "index_n_heads",
        "sparse_index_dim": "index_head_dim",
        "sparse_block_size": "index_block_size",
        "sparse_topk_blocks": "index_topk_blocks",
    },
}


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a value if it is an object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def text_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the language model inside a multimodal config; what it lacks the outer one has.

    >>> text_of({"torch_dtype": "bfloat16", "text_config": {"hidden_size": 8}})["hidden_size"]
    8
    """
    inner = config.get("text_config")
    text = dict(config) if not isinstance(inner, Mapping) else {**config, **inner, "text_config": None}
    for field in _INSIDE:
        text |= {_INSIDE[field].get(name, name): value for name, value in mapping(text.get(field)).items()}
    text |= {ours: text[theirs] for theirs, ours in _SAME.items() if theirs in text and ours not in text}
    listed = text.get("layers_block_type")  # some Nemotrons have this and do not count their layers
    return {"num_hidden_layers": len(listed), **text} if isinstance(listed, list) else text


def refused(field: str, value: str, name: str, way_out: str = "") -> HarnessError:
    """Return the error of an architecture that is not understood, by the field that says so."""
    fact = f"{field} of {name!r} ({value}) is not predicted"
    way_out = way_out or "measure it without a prediction: leave --gpu and --model-config out"
    return HarnessError(fact, place=PLACE, way_out=way_out)


def whole(value: Any, field: str, name: str) -> int:
    """Return a config field's value if it is a whole number from 1 to a plausible most; else raise HarnessError."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        missing, wrong = f"the config of {name!r} has no {field}", f"{field} of {name!r} is {value!r}"
        fact = missing if value is None else f"{wrong}, not a whole number above 0"
        raise HarnessError(fact, place=PLACE, way_out="give the config.json next to the model's weights")
    if value > _MOST.get(field, 10**9):
        raise refused(field, f"{value:g}" if value < 2**63 else f"a number of {value.bit_length():,} bits", name)
    return value


def heads(config: Config) -> tuple[int, int, int]:
    """Return n_q, n_kv and d; an explicit head_dim beats hidden_size / num_attention_heads."""
    n_q, defaults = config.figure("num_attention_heads"), config.family.defaults
    n_kv = config.maybe("num_key_value_heads") or defaults.get("num_key_value_heads") or n_q
    d = config.maybe("head_dim") or defaults.get("head_dim") or config.figure("hidden_size") // n_q
    if n_q % n_kv:
        raise config.refused("num_key_value_heads", f"{n_kv} for {n_q} heads")
    return n_q, n_kv, d


def indices(config: Config, field: str) -> list[int]:
    """Return a config field's list of whole numbers; [] if it is missing, HarnessError if it is something else."""
    listed = config.get(field) or []
    if not isinstance(listed, list) or not all(isinstance(each, int) for each in listed):
        raise config.refused(field, str(listed))
    return [int(each) for each in listed]  # a flag, as true, is 1


_KINDS = {"mamba": "M", "attention": "*", "moe": "E", "mlp": "-"}


def pattern(config: Config) -> str:
    """Return the layers of a Nemotron-H, a letter each: M a state, * attention, E experts, - an MLP."""
    listed = config.get("layers_block_type")  # newer configs have words instead
    if isinstance(listed, list):
        letters = "".join(_KINDS.get(str(each), "?") for each in listed)
    else:
        letters = str(config.get("hybrid_override_pattern", ""))
    if not letters or set(letters) - set("M*E-"):
        raise config.refused("hybrid_override_pattern", letters or "none")
    return letters


EXPERTS, DENSE = "experts", "dense"  # what works on a token alone
_EXPERT_COUNTS = ("n_routed_experts", "num_local_experts", "num_experts")


class Experts(msgspec.Struct, frozen=True, kw_only=True):
    """Some layers with a mixture of experts; parameters of one layer."""

    layers: int
    count: int  # E
    per_token: int  # k
    each: int  # parameters of one expert, 3 h f_e
    shared: int  # parameters of the experts that every token passes
    router: int  # h E


def works(config: Config) -> list[str]:
    """Return the feed-forward part of each layer, in order: EXPERTS, DENSE, or "" for a layer without one."""
    if config.kind == "nemotron_h":
        return [{"E": EXPERTS, "-": DENSE}.get(each, "") for each in pattern(config)]
    if not any(config.get(each) for each in _EXPERT_COUNTS):
        return [DENSE] * config.figure("num_hidden_layers")
    return [EXPERTS if each else DENSE for each in _sparse(config)]


def dense(config: Config) -> int:
    """Return the parameters of all dense MLPs together."""
    kind = config.family
    layers = works(config).count(DENSE)
    if not layers:
        return 0
    field = kind.dense_width if config.get(kind.dense_width) else "intermediate_size"
    return layers * kind.matrices * config.figure("hidden_size") * config.figure(field) + _pooler(config)


def _pooler(config: Config) -> int:
    """Return the parameters of the layer that makes one vector of all tokens, where a model has one (NV-Embed).

    Heads as wide as `cross_dim_head` look at learnt vectors, then a gated MLP four times as wide (modeling_nvembed.py).
    """
    fields = mapping(config.get("latent_attention_config"))
    if not fields:
        return 0
    names = ("num_cross_heads", "cross_dim_head", "latent_dim", "num_latents_value")
    heads, width, latent, learnt = (whole(fields.get(name), name, config.name) for name in names)
    return 4 * heads * width * latent + 3 * 4 * latent * latent + learnt * latent


def experts(config: Config) -> Experts | None:
    """Return number and sizes of a model's layers with experts; None for a model without experts."""
    field = next((each for each in _EXPERT_COUNTS if config.get(each)), None)
    if field is None:
        return None
    kind, E, h = config.family, config.figure(field), config.figure("hidden_size")
    layers = works(config).count(EXPERTS)
    if not layers:
        return None
    width = config.figure(kind.expert_width)
    shared = config.maybe("shared_expert_intermediate_size") or config.maybe("moe_shared_expert_intermediate_size")
    if shared is None:
        copies = 1 if config.kind == "llama4_text" else config.maybe("n_shared_experts") or 0
        shared = copies * width
    if config.kind == "gemma4_text":  # its layers have a dense MLP as well, which every token passes
        shared = config.figure("intermediate_size")
    chosen = "top_k_experts" if config.get("top_k_experts") else "num_experts_per_tok"
    per_token = config.figure(chosen)
    if per_token > E:
        raise config.refused(chosen, f"{per_token} of {E} experts")
    latent = config.maybe("moe_latent_size")  # experts work on a smaller vector, made and undone by two matrices
    return Experts(
        layers=layers,
        count=E,
        per_token=per_token,
        each=kind.matrices * (latent or h) * width,
        shared=kind.matrices * h * shared + 2 * h * (latent or 0),
        router=h * E,
    )


def _sparse(config: Config) -> Sequence[bool]:
    """Return for each layer, in order, whether it has experts, by whichever config field of the family says so."""
    L = config.figure("num_hidden_layers")
    if config.kind == "llama4_text":
        step = config.maybe("interleave_moe_layer_step") or 1
        chosen = indices(config, "moe_layers") or range(step - 1, L, step)
        return [i in chosen for i in range(L)]
    if isinstance(listed := config.get("mlp_layer_types"), list) and len(listed) == L:
        return [each != "dense" for each in listed]
    if isinstance(config.get("moe_layer_freq"), list):
        listed = indices(config, "moe_layer_freq")  # a flag a layer
        if len(listed) != L:
            raise config.refused("moe_layer_freq", f"{len(listed)} of them for {L} layers")
        return [bool(each) for each in listed]
    every, first = config.maybe("moe_layer_freq") or 1, config.maybe("first_k_dense_replace") or 0
    step, only = config.maybe("decoder_sparse_step") or 1, indices(config, "mlp_only_layers")
    return [i >= first and i % every == 0 and (i + 1) % step == 0 and i not in only for i in range(L)]
