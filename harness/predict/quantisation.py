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
from harness.predict.families import mapping, refused

PARTS = ("attention", "dense", "experts", "shared", "head")


class Quantisation(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored how; the shares of each part's parameters that are converted, the rest has 16 bits.

    Where a checkpoint has several precisions, this is that of most parameters, and `also` has the others.
    """

    method: str = "none"
    bits: float = 16.0  # bits of a converted weight, with its share of scales and zero points
    compute: str = "bf16"  # precision of the multiplication if the card has it
    attention: float = 1.0
    dense: float = 1.0
    experts: float = 1.0
    shared: float = 1.0
    head: float = 0.0
    also: tuple[Quantisation, ...] = ()

    def shares(self, part: str) -> list[tuple[float, float, str]]:
        """Return the share of a part's parameters in each precision: the share, its bits, and how it multiplies."""
        found = [(float(getattr(each, part)), each.bits, each.compute) for each in (self, *self.also)]
        return [*found, (1.0 - sum(share for share, _, _ in found), 16.0, "bf16")]

    def bytes_of(self, part: str) -> float:
        """Return the bytes of one parameter of a part, on average.

        >>> Quantisation(bits=8.0, attention=0.5).bytes_of("attention")
        1.5
        """
        return sum(share * bits for share, bits, _ in self.shares(part)) / 8


PLAIN = Quantisation()
_SIXTEEN = {"bfloat16", "float16", "bf16", "fp16", "half"}
_BY_DTYPE = {  # what --dtype can ask for on a 16-bit checkpoint; all layers but the head
    "fp8": Quantisation(method="fp8", bits=8.0, compute="fp8"),
    "int8": Quantisation(method="int8", bits=8.0, compute="int8"),
    "int4": Quantisation(method="int4", bits=4 + 20 / 128),  # AWQ or GPTQ in groups of 128
    "mxfp4": Quantisation(method="mxfp4", bits=4.25, compute="fp4"),
    "nvfp4": Quantisation(method="nvfp4", bits=4.5, compute="fp4"),
}
_FP8 = _BY_DTYPE["fp8"]
_BY_ALGORITHM = {  # ModelOpt's names
    "FP8": _FP8,
    "FP8_PB_WO": _FP8,
    "FP8_PER_CHANNEL_PER_TOKEN": _FP8,
    "MXFP4": _BY_DTYPE["mxfp4"],
    "MXFP8": Quantisation(method="fp8", bits=8.25, compute="fp8"),  # a scale of 8 bits for 32 weights
    "NVFP4": _BY_DTYPE["nvfp4"],
    "W4A16_NVFP4": Quantisation(method="nvfp4", bits=4.5),
}
_AUTO_ROUND = ("auto-round", "auto_round", "autoround", "intel/auto-round", "inc")
_SHOWN = 256  # characters of an entry
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
    rules, kept = _rules(stored, name), _named(stored, name)
    if config.get("expert_dtype") in ("fp4", "mxfp4"):  # a DeepSeek-V4
        rules = [(_BY_DTYPE["mxfp4"], ["experts"]), *rules]
    listed = list(modules) if kept or any(targets is not None for _, targets in rules) else []
    scheme = _shared(rules, kept, listed, name) if listed else rules[0][0]
    if _asks_another(wanted, scheme):
        # As published 4-bit checkpoints of models that come in fp8 have it: those with latent attention keep it in 16
        # bits (the hf_quant_config.json of nvidia/DeepSeek-R1-FP4, the config.json of moonshotai/Kimi-K2-Thinking).
        kept_whole = dict.fromkeys(("attention", "shared", "dense"), 0.0) if config.get("kv_lora_rank") else {}
        return msgspec.structs.replace(_BY_DTYPE[wanted], **kept_whole)
    if wanted in _BY_DTYPE and wanted != scheme.method and _BY_DTYPE[wanted].compute != scheme.compute:
        way_out = "leave --dtype out, or give the config of the 16-bit checkpoint"
        raise HarnessError(f"{name!r} is stored as {scheme.method}, not as {wanted}", place="--dtype", way_out=way_out)
    return scheme


def _asks_another(wanted: str, scheme: Quantisation) -> bool:
    return wanted in _FOUR_BITS and 8.0 <= scheme.bits < 16.0  # scales are in the bits of a weight


def another_checkpoint(config: Mapping[str, Any], name: str, dtype: str) -> list[str]:
    """Return a note where --dtype is not how the weights are stored: no server loads this checkpoint so."""
    stored = mapping(config.get(_WHERE) or config.get("compression_config"))
    wanted = _normal(dtype)
    if not stored or not _asks_another(wanted, scheme := _rules(stored, name)[-1][0]):
        return []
    return [f"{name} is stored in {scheme.method}: this is the prediction of another checkpoint of it, in {wanted}"]


def _normal(dtype: str) -> str:
    return dtype.lower().removeprefix("torch.").replace("w8a8", "int8").replace("awq", "int4").replace("gptq", "int4")


def kv_bits(config: Mapping[str, Any], kv_dtype: str) -> float:
    """Return the bits of one stored element of KV; "auto" is 16 unless the checkpoint brings its own scheme.

    Raise HarnessError for an unknown `kv_dtype`.

    >>> kv_bits({}, "auto"), kv_bits({}, "fp8")
    (16.0, 8.0)
    """
    wanted = kv_dtype.lower()
    if wanted == "auto":
        stored = mapping(config.get(_WHERE))
        scheme = stored.get("kv_cache_scheme") or mapping(stored.get("quantization")).get("kv_cache_quant_algo")
        if isinstance(scheme, Mapping):
            return float(scheme.get("num_bits", 8))
        return 8.0 if str(scheme or stored.get("kv_cache_quant_algo")).upper() == "FP8" else 16.0
    if wanted not in _KV_BITS:
        raise HarnessError(f"unknown precision {kv_dtype!r}", place="--kv-dtype", way_out=nearest(wanted, _KV_BITS))
    return _KV_BITS[wanted]


def _named(stored: Mapping[str, Any], name: str) -> list[str]:
    """Return the names of the modules that stay in 16 bits, from every config field that lists such modules."""
    names = []
    inner = mapping(stored.get("quantization"))  # where an hf_quant_config.json has them
    for field in _KEPT:
        value = stored.get(field) or inner.get(field) or []
        if not isinstance(value, list):
            raise refused(f"{_WHERE}.{field}", str(value), name)
        names += [str(each) for each in value]
    return names


Rule = tuple[Quantisation, list[str] | None]  # a precision, and the modules that have it; None: all others


def _rules(stored: Mapping[str, Any], name: str) -> list[Rule]:
    """Return the rules (precision, modules; None: all others) of a quantisation config, the general one last."""
    inner = mapping(stored.get("quantization")) or stored
    unnamed = "modelopt" if inner.get("quant_algo") else ""  # some checkpoints of ModelOpt leave its name out
    method = str(stored.get("quant_method") or unnamed).lower()
    if method in ("fp8", "fbgemm_fp8"):
        dynamic = stored.get("activation_scheme", "dynamic") is not None
        return [(Quantisation(method="fp8", bits=8.0, compute="fp8" if dynamic else "bf16"), None)]
    if method in ("mxfp4", "mxfp8"):
        return [(_BY_ALGORITHM[method.upper()], None)]
    if method in ("awq", "gptq", *_AUTO_ROUND):
        return _in_groups(stored, name)
    if method in ("modelopt", "modelopt_fp4", "modelopt_mixed", "nvfp4"):
        return _modelopt(inner, name)
    if method == "compressed-tensors":
        groups = [_group(mapping(each), name) for each in mapping(stored.get("config_groups")).values()]
        if not groups:
            raise refused(f"{_WHERE}.config_groups", "none of them", name)
        return sorted(groups, key=lambda rule: rule[1] is None)
    if method == "bitsandbytes":
        if stored.get("load_in_8bit"):
            return [(Quantisation(method="int8", bits=8.0), None)]
        if stored.get("load_in_4bit"):
            # a scale for 64 weights, of 32 bits or itself quantised to 8
            scale = (8 if stored.get("bnb_4bit_use_double_quant") else 32) / 64
            return [(Quantisation(method="int4", bits=4 + scale), None)]
        raise refused(f"{_WHERE}.load_in_4bit", "neither 4 nor 8 bits", name)
    raise refused(f"{_WHERE}.quant_method", method or "none", name)


def _in_groups(stored: Mapping[str, Any], name: str) -> list[Rule]:
    """Return the rules of AWQ, GPTQ and AutoRound: whole numbers with a scale a group, other bits for some modules.

    GPTQModel's `dynamic` has patterns, + for other bits and - for none; AutoRound's `extra_config` has names.
    """
    if stored.get("modules_in_block_to_quantize"):
        raise refused(f"{_WHERE}.modules_in_block_to_quantize", "some modules of a block", name)
    rules: list[Rule] = []
    for entry, other in mapping(stored.get("dynamic")).items():
        pattern = "re:" + entry.removeprefix("+:").removeprefix("-:")
        rules.append((PLAIN if entry.startswith("-:") else _whole(stored, mapping(other), name), [pattern]))
    for entry, other in mapping(stored.get("extra_config")).items():
        rules.append((_whole(stored, mapping(other), name), [entry]))
    return [*rules, (_whole(stored, {}, name), None)]


def _whole(stored: Mapping[str, Any], other: Mapping[str, Any], name: str) -> Quantisation:
    """Return the precision of weights quantised in groups, with a module's own settings `other` over the common."""
    fields = {**stored, **other}
    bits, group, kind = (
        _number(fields, "bits", name),
        fields.get("group_size", 128),
        str(fields.get("data_type", "int")),
    )
    if bits == 16:
        return PLAIN
    if not isinstance(group, int):
        raise refused(f"{_WHERE}.group_size", str(group), name)
    if not kind.startswith("int"):
        algorithm = kind.replace("_", "").upper().rstrip("0123456789") + str(bits)  # mx_fp, nv_fp
        if algorithm not in _BY_ALGORITHM:
            raise refused(f"{_WHERE}.data_type", kind, name)
        return _BY_ALGORITHM[algorithm]
    # a 16-bit scale and a zero point of the weights' own bits a group; -1 is one group a column
    return Quantisation(method=f"int{bits}", bits=bits + ((16 + bits) / group if group > 0 else 0.0))


def _number(stored: Mapping[str, Any], field: str, name: str, most: int = 16) -> int:
    value = stored.get(field)
    if not isinstance(value, int) or not 1 <= value <= most:
        raise refused(f"{_WHERE}.{field}", str(value), name)
    return value


def _modelopt(stored: Mapping[str, Any], name: str) -> list[Rule]:
    """Return ModelOpt's rules: one algorithm for all modules, or one for each set of modules that are listed."""
    algorithm = str(stored.get("quant_algo", "NVFP4")).upper()
    if algorithm != "MIXED_PRECISION":
        return [(_algorithm(stored, algorithm, name), None)]
    by: dict[Quantisation, dict[str, None]] = {}
    for module, how in mapping(stored.get("quantized_layers")).items():
        each = mapping(how)
        scheme = _algorithm({**stored, **each}, str(each.get("quant_algo")).upper(), name)
        by.setdefault(scheme, {})[_EXPERT.sub(".experts", module)] = None
    if not by:
        raise refused(f"{_WHERE}.quantized_layers", "none", name)
    return [(scheme, list(names)) for scheme, names in by.items()]


def _algorithm(stored: Mapping[str, Any], algorithm: str, name: str) -> Quantisation:
    """Return the precision of an algorithm by ModelOpt's name for it; raise HarnessError for an unknown one."""
    if algorithm in ("W4A16_AWQ", "W4A8_AWQ"):
        group = _number(stored, "group_size", name, most=1024)
        # a 16-bit scale a group
        return Quantisation(method="int4", bits=4 + 16 / group, compute="fp8" if "A8" in algorithm else "bf16")
    if algorithm not in _BY_ALGORITHM:
        raise refused(f"{_WHERE}.quant_algo", algorithm, name)
    return _BY_ALGORITHM[algorithm]


def _group(group: Mapping[str, Any], name: str) -> Rule:
    """Return the rule (precision, modules) of one config group of compressed-tensors."""
    weights, inputs = (mapping(group.get(field)) for field in ("weights", "input_activations"))
    bits, size, kind = _number(weights, "num_bits", name), weights.get("group_size") or 0, weights.get("type", "int")
    if not isinstance(size, int):
        raise refused(f"{_WHERE}.group_size", str(size), name)
    targets = group.get("targets") or ["Linear"]
    if not isinstance(targets, list):
        raise refused(f"{_WHERE}.targets", str(targets), name)
    scale = 8 if kind == "float" and size in (16, 32) else 16  # nvfp4 scales its groups of 16 with fp8, mx with 8 bits
    method = ("nvfp4" if size == 16 else "mxfp4") if kind == "float" and bits == 4 else f"{kind}{bits}"
    native = inputs.get("num_bits") == bits
    scheme = Quantisation(
        method=method.replace("float", "fp"),
        bits=bits + (scale / size if size > 0 else 0.0),
        compute=("fp" if kind == "float" else "int") + str(bits) if native else "bf16",
    )
    return scheme, None if "Linear" in targets else sorted(map(str, targets))


_ALIKE = (
    (re.compile(r"^(model\.)?(language_model\.)?(model\.)?(backbone\.)?"), ""),
    (re.compile(r"\b(block_sparse_moe|feed_forward)\b"), "mlp"),
    (re.compile(r"\bmlp\.(router|gate_weight)\b"), "mlp.gate"),
    (re.compile(r"\bshared_experts\b"), "shared_expert"),
    (re.compile(r"\bindexers_proj\b"), "indexer.weights_proj"),
    (re.compile(r"\battn\b"), "self_attn"),
    (re.compile(r"\bffn\b"), "mlp"),
)
# Never in the counts, or never converted by anyone: naming them changes nothing.
_ELSEWHERE = re.compile(
    r"vis|image|audio|multi_modal|mm_projector|merger|connector|embed|norm|rotary|mtp|eagle|conv1d|e_score|sinks|aligner|patch"
    r"|q_scale|k_scale|v_scale|shared_expert_gate|kv_cache",
)
_MOST_COMPARED = 20_000_000  # entries times modules: some seconds
_EXPERT = re.compile(r"\.experts\.[0-9]+(\..*)?$")  # the experts of a layer are one module


def _shared(rules: list[Rule], kept: list[str], modules: list[tuple[str, str, int]], name: str) -> Quantisation:
    """Return the main precision with the others attached, each with its share of every part; `kept`: 16-bit modules."""
    taken = _matched(kept, "modules_to_not_convert", modules, name)
    totals = {part: sum(count for each, _, count in modules if each == part) for part in PARTS}
    schemes: list[tuple[float, Quantisation]] = []
    for scheme, targets in rules:
        everything = targets is None
        mine = set(range(len(modules))) if targets is None else _matched(targets, "targets", modules, name)
        counts = dict.fromkeys(PARTS, 0)
        for i in mine - taken:
            part, _, count = modules[i]
            if part != "router" and not (part == "head" and everything):  # the head only if it is named
                counts[part] += count
        taken |= mine
        if scheme is not PLAIN:
            # a part that this model lacks is no exception
            shares = {part: counts[part] / totals[part] if totals.get(part) else 1.0 * everything for part in PARTS}
            schemes.append((sum(counts.values()), msgspec.structs.replace(scheme, **shares)))
    main = max(schemes, key=lambda each: each[0], default=(0, PLAIN))
    return msgspec.structs.replace(main[1], also=tuple(each[1] for each in schemes if each is not main))


def _matched(entries: list[str], field: str, modules: list[tuple[str, str, int]], name: str) -> set[int]:
    """Return the indices of the modules that a config field's entries match.

    Raise HarnessError for too many entries, or for one that matches none and means modules that are counted here.
    """
    names = [dotted for _, dotted, _ in modules]
    if len(entries) * len(modules) > _MOST_COMPARED:
        raise refused(f"{_WHERE}: {field}", f"{len(entries):,} of them", name)
    meant: set[int] = set()
    for entry in entries:
        try:
            matches = {i for i, is_meant in enumerate(_means(entry, names)) if is_meant}
        except ValueError:  # a pattern that is none
            matches = set()
        if not matches and not _ELSEWHERE.search(entry.lower()) and not _beyond(entry, modules):
            raise refused(f"{_WHERE}: {field}", entry[:_SHOWN], name)
        meant |= matches
    return meant


def _means(entry: str, names: list[str]) -> list[bool]:
    """Return for each module name whether an entry matches it: as a regex behind `re:`, a glob, or whole name parts."""
    if entry.startswith("re:"):
        import pyarrow as pa
        import pyarrow.compute as pc

        # RE2, whose time is linear in the text, so that no config holds up a prediction
        texts = pa.array(["\n".join(_spellings(name)) for name in names], pa.string())
        return [bool(each) for each in pc.match_substring_regex(texts, f"(?m)^(?:{entry[3:]})").to_pylist()]
    for found, same in _ALIKE:
        entry = found.sub(same, entry)
    if "*" in entry:
        globs = (entry, f"{entry}.*")
        return [
            any(fnmatchcase(name, glob) for glob in globs) or fnmatchcase(f"{name}.weight", entry) for name in names
        ]
    whole = f".{_EXPERT.sub('.experts', entry)}."
    return [whole in f".{name}." for name in names]


def _beyond(entry: str, modules: list[tuple[str, str, int]]) -> bool:
    """Return whether an entry is of a layer past the last: one that drafts tokens, which is in no count."""
    number = entry.partition("layers.")[2].partition(".")[0].rstrip("*")
    layers = {dotted.split(".")[1] for _, dotted, _ in modules if dotted.startswith("layers.")}
    return number.isdecimal() and number not in layers


def _spellings(dotted: str) -> tuple[str, ...]:
    """Return a module's names in checkpoints that a pattern may be written for."""
    several = dotted.replace(".shared_expert", ".shared_experts")
    return dotted, f"model.{dotted}", several, f"model.{several}"
