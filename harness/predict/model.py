"""From a Hugging Face config.json to parameters, weight bytes and KV bytes.

Decoders with MHA, GQA, MQA or latent attention, with windows or constant states in some layers, dense or with a
mixture of experts, in 16 bits or quantised; and encoders, which answer with a vector and keep nothing. Whatever
would make these figures silently wrong is refused by the field's name (predict.layers, predict.quantisation).
Norms and biases are left out: below 0.02 % of a large model. So are vision towers, which are named instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from harness.base.errors import HarnessError
from harness.predict import families, layers
from harness.predict.families import Config, Experts, heads
from harness.predict.layers import Attention
from harness.predict.quantisation import PLAIN, Quantisation, another_checkpoint, kv_bits, quantisation

_SENSES = ("vision_config", "audio_config", "vision_tower")


_CHOSEN = "attention is to {:,} chosen tokens: no published level of such a model set the time that choosing takes"

_LEARNT = {"bert", "roberta", "xlm-roberta"}  # their positions are a table
_OFFSET, _OFFSETS = 2, {"roberta", "xlm-roberta"}  # the first rows of theirs belong to no token
_COUNTED = (None, "default", "mrope", "llama3", "longrope", "su")  # no scaling, or max_position_embeddings has it in it
_ENDLESS = 10**9  # tokens, where how far positions are stretched cannot be read


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """The architecture figures that bytes and FLOP follow from."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    vocab: int
    tied: bool  # input and output embedding are one matrix
    max_context: int  # tokens of prompt and answer
    stretched: int = 0  # the same if a server stretches its positions, as the config allows; 0: it does not
    attention: tuple[Attention, ...]
    dense: int  # parameters of all dense MLPs
    experts: Experts | None = None
    positions: int = 0  # parameters of learnt positions, only read row by row
    generates: bool = True  # False: an encoder, prefill only
    stored: Quantisation = PLAIN
    kv_bits: float = 16.0
    notes: tuple[str, ...] = ()  # what the figures leave out


class Parameters(msgspec.Struct, frozen=True):
    """Parameter counts, without norms and biases."""

    body: int  # every layer's matrices
    head: int  # one vocabulary matrix
    total: int  # what lies in memory: N_total
    matmul: int  # what a token is multiplied with: N_mm; the input embedding is only read row by row


def model(config: Mapping[str, Any], name: str = "", *, dtype: str = "auto", kv_dtype: str = "auto") -> Model:
    """Return the figures of a config.json; an explicit head_dim beats hidden_size / num_attention_heads.

    `dtype` is the server's: "auto" takes what is stored, fp8, int8, int4, mxfp4 and nvfp4 quantise a 16-bit
    checkpoint as it is loaded. Weights stored in 32 bits count 16, for that is what servers cast them to.
    """
    name = name or str(config.get("_name_or_path") or config.get("model_type", ""))
    text = Config(config, name)
    if dtype.lower().removeprefix("torch.") in ("float32", "fp32", "float"):
        way_out = "servers cast such weights down: give --dtype bfloat16"
        raise HarnessError(f"32-bit weights of {name!r} are not predicted", place="--dtype", way_out=way_out)
    hidden = text.figure("hidden_size")
    n_q, n_kv = (0, 0) if text.get("kv_lora_rank") else heads(text)[:2]
    mixture, mixing = families.experts(text), layers.attention(text)
    longest = text.figure("max_position_embeddings")
    rows = longest + (text.maybe("type_vocab_size") or 0) if text.kind in _LEARNT else 0
    unseen = [field for field in _SENSES if config.get(field)]
    return Model(
        name=name,
        layers=text.figure("num_hidden_layers"),
        hidden=hidden,
        heads=n_q or text.figure("num_attention_heads"),
        kv_heads=n_kv,
        vocab=text.figure("vocab_size"),
        tied=bool(text.get("tie_word_embeddings", text.family.tied)),
        max_context=longest - (_OFFSET if text.kind in _OFFSETS else 0),
        stretched=_stretched(text, longest),
        attention=mixing,
        dense=families.dense(text),
        experts=mixture,
        positions=rows * hidden,
        generates=text.family.generates,
        stored=quantisation(text.fields, name, dtype, layers.modules(text)),
        kv_bits=kv_bits(text.fields, kv_dtype),
        notes=(
            *((f"{', '.join(unseen)}: what the model sees or hears with is left out",) if unseen else ()),
            *(_CHOSEN.format(each) for each in dict.fromkeys(group.window for group in mixing if group.chosen)),
            *another_checkpoint(text.fields, name, dtype),
        ),
    )


def _stretched(config: Config, longest: int) -> int:
    """Return the longest context that scaling of the rope allows, if that is above `longest`; else 0.

    Configs state their context before such scaling or after it.
    """
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(scaling, Mapping):
        return 0
    most = 0
    for each in (scaling, *scaling.values()):  # newer configs may have one for each sort of layer
        if isinstance(each, Mapping) and each.get("rope_type", each.get("type")) not in _COUNTED:
            factor: Any = each.get("factor")
            before: Any = each.get("original_max_position_embeddings") or longest
            known = isinstance(factor, int | float) and isinstance(before, int | float)
            known = known and 0 <= factor < _ENDLESS and 0 <= before < _ENDLESS
            most = max(most, int(before * factor) if known else _ENDLESS)
    return most if most > longest else 0


def must_fit_context(model: Model, tokens: float) -> list[str]:
    """Raise HarnessError for a request of more tokens, prompt and answer, than the model has positions for.

    Where its config leaves open how far they are stretched, return a note that says so instead.
    """
    if tokens <= model.max_context:
        return []
    if tokens <= model.stretched:
        return [
            f"{tokens:,.0f} tokens are more than the {model.max_context:,} of {model.name} "
            "unless its server stretches them by the config's rope scaling"
        ]
    most = max(model.max_context, model.stretched)
    fact = f"a request of {tokens:,.0f} tokens is longer than {model.name} can take"
    raise HarnessError(fact, place="--input-tokens", way_out=f"at most {most:,}, prompt and answer together")


def parameters(model: Model) -> Parameters:
    """Return the parameter counts; numbers.

    body = Σ layers: 2 h n_q d + 2 h n_kv d + 3 h f, or with experts 3 h f_e (E + shared) + h E, of which
    3 h f_e (k + shared) + h E are active; head = V h, N_total = body + head (1 if tied else 2),
    N_mm = active body + head (docs/method.md, Bytes and FLOP of a model).
    """
    head = model.vocab * model.hidden
    body = active = sum(group.layers * group.parameters for group in model.attention) + model.dense
    if mix := model.experts:
        body += mix.layers * (mix.count * mix.each + mix.shared + mix.router)
        active += mix.layers * (mix.per_token * mix.each + mix.shared + mix.router)
    if not model.generates:
        return Parameters(body, 0, body + head + model.positions, active)
    return Parameters(body, head, body + head * (1 if model.tied else 2), active + head)


def expert_hits(E: int, k: int, B: float) -> float:
    """Return the experts of a layer that a batch of B tokens needs, each token k of E uniformly. E (1 - (1 - k/E)^B).

    >>> round(expert_hits(8, 2, 4), 3)
    5.469
    """
    return E * (1.0 - float((1 - k / E) ** B))


class Weights(msgspec.Struct, frozen=True):
    """Weights by how a decode step reads them; bytes."""

    always: float  # read by every step, whatever the batch
    expert: float  # one expert in every layer that has any; a step reads those that its batch hits
    experts: int = 0  # E
    per_token: int = 0  # k
    looked_up: float = 0.0  # lies in memory, is not read whole

    @property
    def total(self) -> float:
        return self.always + self.experts * self.expert + self.looked_up

    def read(self, B: float) -> float:
        """Return the bytes that one decode step of B tokens reads: W(B)."""
        return self.always + (expert_hits(self.experts, self.per_token, B) * self.expert if self.experts else 0.0)


def weights(model: Model) -> Weights:
    """Return the weights of a model, by how they are read (docs/method.md, Bytes and FLOP of a model)."""
    stored, count = model.stored, parameters(model)
    always = sum(group.layers * group.parameters for group in model.attention) * stored.bytes_of("attention")
    always += model.dense * stored.bytes_of("dense") + count.head * stored.bytes_of("head")
    untied = not model.tied and model.generates
    looked_up = (model.vocab * model.hidden if untied or not model.generates else 0) + model.positions
    if not (mix := model.experts):
        return Weights(always, 0.0, looked_up=2.0 * looked_up)
    always += mix.layers * (mix.shared * stored.bytes_of("shared") + 2.0 * mix.router)
    each = mix.layers * mix.each * stored.bytes_of("experts")
    return Weights(always, each, mix.count, mix.per_token, 2.0 * looked_up)


def weight_bytes(model: Model) -> float:
    """Return the weights as they lie in memory; bytes. N_total · b_w."""
    return weights(model).total


def kv_bytes_per_token(model: Model) -> float:
    """Return KV cache of one more token in every layer that keeps any: kv of the formulas; bytes.

    2 L n_kv d b_kv; with latent attention L (kv_lora_rank + qk_rope_head_dim) b_kv.
    """
    return sum(group.layers * group.kept_of_token(model.kv_bits) for group in model.attention)


def kv_bytes(model: Model, context: float) -> float:
    """Return KV cache of a request of `context` tokens, windows and constant states in their own size; bytes.

    Σ layers kv_layer · min(context, window_layer).
    """
    return sum(group.layers * group.kept(context, model.kv_bits) for group in model.attention) + state_bytes(model)


def state_bytes(model: Model) -> float:
    """Return the bytes that a request of any length stores in layers with a state instead of KV."""
    return sum(group.layers * group.state for group in model.attention)


def kind(model: Model) -> str:
    """Return what the constants of a model are set by: dense, experts, or latent attention, with experts or not."""
    latent = any(group.kv and not group.kv_heads for group in model.attention)
    return "latent attention" if latent else "experts" if model.experts else "dense"
