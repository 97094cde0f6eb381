"""What the layers of a model do to each token alone: a dense MLP, or the few of many experts that a router picks."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from harness.predict.families import Config, blocks, indices, mapping, pattern, whole

EXPERTS, DENSE = "experts", "dense"  # what works on a token alone
_EXPERT_COUNTS = ("n_routed_experts", "num_local_experts", "num_experts")


class Experts(msgspec.Struct, frozen=True, kw_only=True):
    """Some layers with a mixture of experts; parameters of one layer."""

    layers: int
    count: int  # E
    per_token: int  # k
    each: int  # parameters of one expert, 3 h f_e
    shared: int  # of the experts that every token passes
    router: int  # h E


def works(config: Config) -> list[str]:
    """Return how each layer works on a token alone, in order: by experts, by a dense MLP, or "" where it does not."""
    if config.kind == "nemotron_h":
        return [{"E": EXPERTS, "-": DENSE}.get(each, "") for each in pattern(config)]
    if searched := blocks(config):
        return [DENSE if each.width else "" for each in searched]
    if not any(config.get(each) for each in _EXPERT_COUNTS):
        return [DENSE] * config.figure("num_hidden_layers")
    return [EXPERTS if each else DENSE for each in _sparse(config)]


def dense(config: Config) -> int:
    """Return the parameters of all dense MLPs together."""
    kind = config.family
    if searched := blocks(config):
        return kind.matrices * config.figure("hidden_size") * sum(each.width for each in searched)
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
    heads, width, latent, learnt = (whole(fields.get(each), each, config.name) for each in names)
    return 4 * heads * width * latent + 3 * 4 * latent * latent + learnt * latent


def experts(config: Config) -> Experts | None:
    """Return the layers with experts; None where there are none."""
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
    """Return whether each layer of a model with experts has them, in order."""
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
