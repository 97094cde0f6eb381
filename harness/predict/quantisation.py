"""How weights are stored and in what precision they are multiplied: two different things.

A checkpoint's quantization_config names a method, its bits and the modules left in 16 bits; scales and zero
points count, since 4-bit weights in groups of 32 are really 4.5 or so. The multiplication is in the same
precision only where activations are quantised as well; else weights are expanded to 16 bits first. Whether a
card has the units for it is the card's affair (predict.roofline), so here it is only named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from harness.base.errors import HarnessError, nearest
from harness.predict.families import refused

PARTS = ("attention", "dense", "experts", "shared", "head")


class Quantisation(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored how; the shares of each part's parameters that are converted, the rest has 16 bits."""

    method: str = "none"
    bits: float = 16.0  # of a converted weight, with its share of scales and zero points
    compute: str = "bf16"  # precision of the multiplication where the card has it
    attention: float = 1.0
    dense: float = 1.0
    experts: float = 1.0
    shared: float = 1.0
    head: float = 0.0

    def bytes_of(self, part: str) -> float:
        """Return the bytes of one parameter of a part, on average.

        >>> Quantisation(bits=8.0, attention=0.5).bytes_of("attention")
        1.5
        """
        share = float(getattr(self, part))
        return (share * self.bits + (1 - share) * 16) / 8


PLAIN = Quantisation()
_SIXTEEN = {"bfloat16", "float16", "bf16", "fp16", "half"}
_BY_DTYPE = {  # what --dtype can ask for on a 16-bit checkpoint; all layers but the head
    "fp8": Quantisation(method="fp8", bits=8.0, compute="fp8"),
    "int8": Quantisation(method="int8", bits=8.0, compute="int8"),
    "int4": Quantisation(method="int4", bits=4 + 20 / 128),  # AWQ or GPTQ in groups of 128
    "mxfp4": Quantisation(method="mxfp4", bits=4.25, compute="fp4"),
    "nvfp4": Quantisation(method="nvfp4", bits=4.5, compute="fp4"),
}
_FOUR_BITS = ("int4", "mxfp4", "nvfp4")
_KV_BITS = {"fp8": 8.0, "fp8_e4m3": 8.0, "fp8_e5m2": 8.0, "int8": 8.0, **dict.fromkeys(_SIXTEEN, 16.0)}
_WHERE = "quantization_config"
_KEPT = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "llm_int8_skip_modules")


def quantisation(
    config: Mapping[str, Any], name: str, dtype: str, modules: Iterable[tuple[str, str, int]]
) -> Quantisation:
    """Return how a model's weights are stored, by its config and the server's --dtype.

    `modules` are (part, dotted name, parameters). A 16-bit --dtype on a quantised checkpoint is the precision of
    its activations, as servers have it, and changes nothing that is stored.
    """
    stored = config.get(_WHERE) or config.get("compression_config")
    wanted = _normal(dtype)
    if wanted != "auto" and wanted not in _SIXTEEN and wanted not in _BY_DTYPE:
        known = ["auto", "bfloat16", "float16", *_BY_DTYPE]
        raise HarnessError(f"unknown precision {dtype!r}", place="--dtype", way_out=nearest(wanted, known))
    if stored and not isinstance(stored, Mapping):
        raise refused(_WHERE, str(stored), name)
    if not stored:
        return PLAIN if wanted == "auto" or wanted in _SIXTEEN else _BY_DTYPE[wanted]
    scheme, kept = _scheme(stored, name), _named(stored, name)
    if _asks_another(wanted, scheme):
        return _another(_BY_DTYPE[wanted], latent=bool(config.get("kv_lora_rank")))
    if wanted in _BY_DTYPE and wanted != scheme.method and _BY_DTYPE[wanted].compute != scheme.compute:
        way_out = "leave --dtype out, or give the config of the 16-bit checkpoint"
        raise HarnessError(f"{name!r} is stored as {scheme.method}, not as {wanted}", place="--dtype", way_out=way_out)
    targets = _targets(stored, name)
    return _left_out(scheme, kept, targets, list(modules), name) if kept or targets else scheme


def _asks_another(wanted: str, scheme: Quantisation) -> bool:
    return wanted in _FOUR_BITS and 8.0 <= scheme.bits < 16.0  # scales are in the bits of a weight


def another_checkpoint(config: Mapping[str, Any], name: str, dtype: str) -> list[str]:
    """Return a note where --dtype is not how the weights are stored: no server loads this checkpoint so."""
    stored = _mapping(config.get(_WHERE) or config.get("compression_config"))
    wanted = _normal(dtype)
    if not stored or not _asks_another(wanted, scheme := _scheme(stored, name)):
        return []
    return [f"{name} is stored in {scheme.method}: this is the prediction of another checkpoint of it, in {wanted}"]


def _another(scheme: Quantisation, *, latent: bool) -> Quantisation:
    """Return the scheme as published 4-bit checkpoints of models that come in fp8 have it.

    Those with latent attention keep it in 16 bits (the hf_quant_config.json of nvidia/DeepSeek-R1-FP4, the config.json
    of moonshotai/Kimi-K2-Thinking); others convert every linear layer.
    """
    return msgspec.structs.replace(scheme, attention=0.0, shared=0.0, dense=0.0) if latent else scheme


def _normal(dtype: str) -> str:
    return dtype.lower().removeprefix("torch.").replace("w8a8", "int8").replace("awq", "int4").replace("gptq", "int4")


def kv_bits(config: Mapping[str, Any], kv_dtype: str) -> float:
    """Return the bits of one stored element of KV; "auto" is 16 unless the checkpoint brings its own scheme.

    >>> kv_bits({}, "auto"), kv_bits({}, "fp8")
    (16.0, 8.0)
    """
    wanted = kv_dtype.lower()
    if wanted == "auto":
        stored = _mapping(config.get(_WHERE))
        if scheme := _mapping(stored.get("kv_cache_scheme")):
            return float(scheme.get("num_bits", 8))
        algorithm = _mapping(stored.get("quantization")).get("kv_cache_quant_algo")
        return 8.0 if str(algorithm).upper() == "FP8" else 16.0
    if wanted not in _KV_BITS:
        raise HarnessError(f"unknown precision {kv_dtype!r}", place="--kv-dtype", way_out=nearest(wanted, _KV_BITS))
    return _KV_BITS[wanted]


def _named(stored: Mapping[str, Any], name: str) -> list[str]:
    """Return the modules that are left in 16 bits, by whichever field names them."""
    found = []
    inner = _mapping(stored.get("quantization"))  # of an hf_quant_config.json
    for field in _KEPT:
        value = stored.get(field) or inner.get(field) or []
        if not isinstance(value, list):
            raise refused(f"{_WHERE}.{field}", str(value), name)
        found += [str(each) for each in value]
    return found


def _targets(stored: Mapping[str, Any], name: str) -> list[str]:
    """Return the modules that compressed-tensors converts, where that is not every linear layer."""
    found: set[str] = set()
    for group in _mapping(stored.get("config_groups")).values():
        targets = _mapping(group).get("targets") or []
        if not isinstance(targets, list):
            raise refused(f"{_WHERE}.targets", str(targets), name)
        found |= set(map(str, targets))
    return [] if "Linear" in found else sorted(found)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _scheme(stored: Mapping[str, Any], name: str) -> Quantisation:
    method = str(stored.get("quant_method", "")).lower()
    if method in ("fp8", "fbgemm_fp8"):
        dynamic = stored.get("activation_scheme", "dynamic") is not None
        return Quantisation(method="fp8", bits=8.0, compute="fp8" if dynamic else "bf16")
    if method in ("awq", "gptq"):
        if stored.get("dynamic") or stored.get("modules_in_block_to_quantize"):
            raise refused(f"{_WHERE}.dynamic", "bits that differ by module", name)
        bits, group = _number(stored, "bits", name), stored.get("group_size", 128)
        if not isinstance(group, int):
            raise refused(f"{_WHERE}.group_size", str(group), name)
        # a 16-bit scale and a zero point of the weights' own bits a group; -1 is one group a column
        return Quantisation(method=f"int{bits}", bits=bits + ((16 + bits) / group if group > 0 else 0.0))
    if method == "mxfp4":
        return Quantisation(method="mxfp4", bits=4.25, compute="fp4")
    if method in ("modelopt", "modelopt_fp4", "nvfp4"):
        return _modelopt(stored, name)
    if method == "compressed-tensors":
        return _compressed(stored, name)
    if method == "bitsandbytes":
        if stored.get("load_in_8bit"):
            return Quantisation(method="int8", bits=8.0)
        if stored.get("load_in_4bit"):
            # a scale for 64 weights, of 32 bits or itself quantised to 8
            return Quantisation(method="int4", bits=4 + (8 if stored.get("bnb_4bit_use_double_quant") else 32) / 64)
        raise refused(f"{_WHERE}.load_in_4bit", "neither 4 nor 8 bits", name)
    raise refused(f"{_WHERE}.quant_method", method or "none", name)


def _number(stored: Mapping[str, Any], field: str, name: str, most: int = 16) -> int:
    value = stored.get(field)
    if not isinstance(value, int) or not 1 <= value <= most:
        raise refused(f"{_WHERE}.{field}", str(value), name)
    return value


def _modelopt(stored: Mapping[str, Any], name: str) -> Quantisation:
    inner = _mapping(stored.get("quantization"))
    algorithm = str((inner or stored).get("quant_algo", "NVFP4")).upper()
    if algorithm == "FP8":
        return Quantisation(method="fp8", bits=8.0, compute="fp8")
    if algorithm == "NVFP4":
        return Quantisation(method="nvfp4", bits=4.5, compute="fp4")
    if algorithm == "W4A16_AWQ":
        group = _number(inner or stored, "group_size", name, most=1024)
        return Quantisation(method="int4", bits=4 + 16 / group)  # a 16-bit scale a group
    raise refused(f"{_WHERE}.quant_algo", algorithm, name)


def _compressed(stored: Mapping[str, Any], name: str) -> Quantisation:
    groups = list(_mapping(stored.get("config_groups")).values())
    if len(groups) != 1:
        raise refused(f"{_WHERE}.config_groups", f"{len(groups)} of them", name)
    weights, inputs = (_mapping(_mapping(groups[0]).get(field)) for field in ("weights", "input_activations"))
    bits, group, kind = _number(weights, "num_bits", name), weights.get("group_size") or 0, weights.get("type", "int")
    if not isinstance(group, int):
        raise refused(f"{_WHERE}.group_size", str(group), name)
    scale = 8 if kind == "float" and bits == 4 else 16  # nvfp4 scales its groups of 16 with fp8, mxfp4 with 8 bits
    method = ("nvfp4" if group == 16 else "mxfp4") if kind == "float" and bits == 4 else f"{kind}{bits}"
    native = inputs.get("num_bits") == bits
    return Quantisation(
        method=method.replace("float", "fp"),
        bits=bits + (scale / group if group > 0 else 0.0),
        compute=("fp" if kind == "float" else "int") + str(bits) if native else "bf16",
    )


_ALIKE = (
    (re.compile(r"^(model\.)?(language_model\.)?(model\.)?(backbone\.)?"), ""),
    (re.compile(r"\b(block_sparse_moe|feed_forward)\b"), "mlp"),
    (re.compile(r"\bmlp\.(router|gate_weight)\b"), "mlp.gate"),
    (re.compile(r"\bshared_experts\b"), "shared_expert"),
)
# Never in the counts, or never converted by anyone: naming them changes nothing.
_ELSEWHERE = re.compile(
    r"vis|image|audio|multi_modal|mm_projector|merger|connector|embed|norm|rotary|mtp|eagle|conv1d|e_score|sinks|aligner|patch"
    r"|q_scale|k_scale|v_scale|shared_expert_gate|kv_cache",
)
# A config's own pattern: a few repetitions, none of a group, so that no name takes long.
_PLAIN = re.compile(r"(?:\\.|[^\\*+{)]|\)(?![*+{]))*+(?:[*+{](?:\\.|[^\\*+{)]|\)(?![*+{]))*+){0,5}+", re.DOTALL)


_MOST_COMPARED = 20_000_000  # entries times modules: some seconds
_LONGEST_ENTRY = 256


def _left_out(
    scheme: Quantisation, kept: list[str], targets: list[str], modules: list[tuple[str, str, int]], name: str
) -> Quantisation:
    """Return the scheme, each part's share less the modules that stay in 16 bits: `kept`, and what is no target."""
    left = _matched(kept, "modules_to_not_convert", modules, name)
    if targets:
        left |= set(range(len(modules))) - _matched(targets, "targets", modules, name)
    shares: dict[str, float] = {}
    for part in PARTS[:-1]:
        of_part = [(i, count) for i, (each, _, count) in enumerate(modules) if each == part]
        everything = sum(count for _, count in of_part)
        shares[part] = sum(count for i, count in of_part if i not in left) / everything if everything else 1.0
    return msgspec.structs.replace(scheme, **shares)


def _matched(entries: list[str], field: str, modules: list[tuple[str, str, int]], name: str) -> set[int]:
    """Return the places of the modules that entries of a field mean; HarnessError where one means nothing."""
    if len(entries) * len(modules) > _MOST_COMPARED:
        raise refused(f"{_WHERE}: {field}", f"{len(entries):,} of them", name)
    meant: set[int] = set()
    for entry in entries:
        try:
            matches = _matcher(entry)
        except re.error:
            raise refused(f"{_WHERE}: {field}", entry, name) from None
        found = {i for i, (_, dotted, _) in enumerate(modules) if matches(dotted)}
        if not found and not _ELSEWHERE.search(entry.lower()) and not _beyond(entry, modules):
            raise refused(f"{_WHERE}: {field}", entry, name)
        meant |= found
    return meant


def _beyond(entry: str, modules: list[tuple[str, str, int]]) -> bool:
    """Return whether an entry is of a layer past the last: one that drafts tokens, which is in no count."""
    number = entry.partition("layers.")[2].partition(".")[0].rstrip("*")
    layers = {dotted.split(".")[1] for _, dotted, _ in modules if dotted.startswith("layers.")}
    return number.isdecimal() and number not in layers


def _spellings(dotted: str) -> tuple[str, ...]:
    """Return a module's names in checkpoints that a pattern may be written for."""
    several = dotted.replace(".shared_expert", ".shared_experts")
    return dotted, f"model.{dotted}", several, f"model.{several}"


def _matcher(entry: str) -> Any:
    """Return whether a module's dotted name is meant: `re:` a pattern, `*` a glob, else whole parts of the name."""
    if len(entry) > _LONGEST_ENTRY:
        raise re.error("too long")
    if entry.startswith("re:"):
        if not _PLAIN.fullmatch(entry, 3):
            raise re.error("a pattern that may take for ever")
        try:
            pattern = re.compile(entry[3:])
        except (OverflowError, RecursionError) as error:
            raise re.error(str(error)) from None
        return lambda dotted: any(pattern.match(each) for each in _spellings(dotted))
    for found, same in _ALIKE:
        entry = found.sub(same, entry)
    if "*" in entry:
        below = f"{entry}.*"
        return lambda dotted: (
            fnmatchcase(dotted, below) or any(fnmatchcase(each, entry) for each in (dotted, f"{dotted}.weight"))
        )
    return lambda dotted: f".{entry}." in f".{dotted}."
