"""What is known beforehand: GPUs from their data sheets, model architectures from their config.json.

The figures lie in `data/`, each GPU with its source and how sure it is. Dense peaks only: adverts often
print the 2:4-sparse ones, twice as high. Nothing is fetched: a model that is not shipped is read from its
own config.json.
"""

from __future__ import annotations

import csv
import difflib
import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from harness.base import decoding
from harness.base.errors import HarnessError, nearest

_DATA = Path(__file__).with_name("data")
_PEAKS = {
    "bf16": "bf16_dense_tflops",
    "fp8": "fp8_dense_tflops",
    "fp4": "fp4_dense_tflops",
    "int8": "int8_dense_tops",
}


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU as its data sheet has it: bytes, bytes/s, FLOP/s (dense)."""

    key: str
    memory_bytes: float
    bandwidth: float
    flops: dict[str, float]  # FLOP/s by compute dtype; a dtype without tensor cores is absent
    link: float | None = None  # bytes/s in one direction, to the other GPUs of its node
    bridged: int | None = None  # GPUs that the bridge joins, if the link is one; more of them speak over PCIe
    pcie: float | None = None  # bytes/s in one direction, if there is a bridge too
    certainty: str = ""  # high | medium | low
    source: str = ""
    vendor: str = "NVIDIA"
    watts: float | None = None  # rated power (TDP)
    usd_per_hour: tuple[float, float] | None = None  # what renting one costs, from cheap to dear; of whole cards only


def gpu(key: str, place: str = "--gpu") -> Gpu:
    """Return the GPU with this key or driver's name, in any case; a MIG slice of it if one follows a colon or "MIG".

    A text with figures ("bandwidth=…") instead of a name describes a card that the table lacks.

    >>> gpu("H100-SXM").key, gpu("NVIDIA H100 80GB HBM3").bandwidth
    ('h100-sxm', 3350000000000.0)
    >>> gpu("NVIDIA H100 80GB HBM3 MIG 3g.40gb") == gpu("h100-sxm:3g.40gb")  # as nvidia-smi calls a slice
    True
    >>> gpu("h100-sxm:3g.40gb").bandwidth  # four of eight memory slices
    1675000000000.0
    """
    if "=" in key:
        return _described(key, place)
    if maker := next((each for each in _MEASURABLE if each in key.lower()), None):
        way_out = "measure it: leave --gpu out"
        raise HarnessError(f"what {maker.title()} serves is not predicted", place=place, way_out=way_out)
    whole, colon, slice_ = key.lower().replace(" mig ", ":").removesuffix("+me").partition(":")
    known, whole = _gpus(), key_of(whole) or whole
    if whole not in known:
        several = [each for each in known if each.startswith(f"{whole}-")]  # b200 is b200-sxm, and no gb200
        way_out = f"did you mean {', '.join(several)}?" if several else nearest(whole, known)
        raise HarnessError(f"unknown GPU {key!r}", place=place, way_out=way_out)
    return _slice(known[whole], slice_, place) if colon else known[whole]


_MEASURABLE = ("cerebras", "sambanova", "groq")  # their chips share no memory as GPUs do
_FIGURES = ("bandwidth", "memory", "fp16", "fp8", "fp4", "int8", "link")
_UNITS = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_QUANTITY = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([kmgtp]i?)?(?:b|flops?|ops)?(?:/s)?")


def _described(text: str, place: str) -> Gpu:
    """Return a card made from figures of its data sheet: bandwidth, memory, dense peaks, and link in one direction.

    >>> _described("bandwidth=936GB/s,memory=24GiB,fp16=71T", "--gpu").memory_bytes / 2**30
    24.0
    """
    way_out = "give figures like bandwidth=936GB/s,memory=24GiB,fp16=71T"
    sheet: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        match = _QUANTITY.fullmatch(value.strip().lower())
        if name not in _FIGURES or match is None or not float(match[1]):
            raise HarnessError(f"{part.strip()!r} describes no card", place=place, way_out=way_out)
        sheet[name] = float(match[1]) * _UNITS.get(match[2] or "", 1.0)
    if missing := [name for name in ("bandwidth", "memory", "fp16") if name not in sheet]:
        raise HarnessError(f"a card without {' and '.join(missing)}", place=place, way_out=way_out)
    peaks = {
        ("bf16" if name == "fp16" else name): sheet[name] for name in ("fp16", "fp8", "fp4", "int8") if name in sheet
    }
    return Gpu(
        key="described", memory_bytes=sheet["memory"], bandwidth=sheet["bandwidth"], flops=peaks,
        link=sheet.get("link"), certainty="low", source="as it was described", vendor="a described card",
    )  # fmt: skip


def gpus() -> list[Gpu]:
    """Return every GPU of the table, in its order."""
    return list(_gpus().values())


def among(gpu: Gpu, n: int) -> Gpu:
    """Return the GPU with the link that n of them have: PCIe if they are more than its bridge joins, or none.

    >>> among(gpu("h100-pcie"), 2).link, among(gpu("h100-pcie"), 4).link, among(gpu("h100-sxm"), 4).link
    (300000000000.0, 64000000000.0, 450000000000.0)
    >>> among(gpu("dgx-spark"), 2).link, among(gpu("dgx-spark"), 4).link
    (25000000000.0, None)
    """
    if gpu.bridged is None or n <= gpu.bridged:
        return gpu
    return msgspec.structs.replace(gpu, link=gpu.pcie)


_PUBLISHED = ("h100-sxm", "h200-sxm", "b200-sxm", "gb200")  # their published levels set constants, docs/predict.md
_OLDER = ("t4", "v100")  # have no BF16, and other kernels than any card with published levels
Constants = Literal["published", "other cards", "guess"]


def constants(gpu: Gpu) -> Constants:
    """Return how well MBU, MFU and overheads are known on this card: by its own published levels, by others', or not.

    >>> constants(gpu("h100-sxm")), constants(gpu("l40s")), constants(gpu("mi300x"))
    ('published', 'other cards', 'guess')
    """
    if gpu.vendor != "NVIDIA" or gpu.certainty == "measured" or gpu.key.startswith(_OLDER):
        return "guess"
    return "published" if gpu.key.startswith(_PUBLISHED) else "other cards"


def doubts(gpu: Gpu) -> list[str]:
    """Return what makes a prediction on this card less sure than on others, in words that do not name the card."""
    out = []
    if gpu.certainty == "measured":
        return [gpu.source, "overheads were fitted on NVIDIA cards, here they are a guess"]
    if gpu.vendor != "NVIDIA":
        out.append(f"MBU, MFU and overheads were fitted on NVIDIA cards, on {gpu.vendor} they are a guess")
    elif constants(gpu) == "guess":
        out.append("MBU, MFU and overheads were fitted on newer cards, here they are a guess")
    if gpu.certainty in ("medium", "low"):
        out.append(f"its data-sheet figures are of {gpu.certainty} certainty")
    if gpu.bridged and gpu.link and gpu.link == gpu.pcie:
        out.append(f"a bridge joins {gpu.bridged} of them, more are counted at the speed of PCIe")
    return out


_MIG = re.compile(r"([1-7])g\.([0-9]{1,4})gb")
_SEVENTHS: dict[int, tuple[int, ...]] = {1: (1, 2), 2: (2,), 3: (4,), 4: (4,), 7: (8,)}
_QUARTERS: dict[int, tuple[int, ...]] = {1: (1,), 2: (2,), 4: (4,)}
# By how a card's key begins: parts of its SMs, parts of its memory, and the memory parts by the number of SM parts.
_SLICED = {
    **dict.fromkeys(("a100", "h100", "h20-", "h200", "gh200", "b200", "gb200", "b300", "gb300"), (7, 8, _SEVENTHS)),
    **dict.fromkeys(("a30", "rtx-pro-6000"), (4, 4, _QUARTERS)),
}


def _slice(gpu: Gpu, text: str, place: str) -> Gpu:
    """Return a MIG slice: its parts of the SMs, and of memory and bandwidth; no link to others."""
    sliced = next((parts for begin, parts in _SLICED.items() if gpu.key.startswith(begin)), None)
    if sliced is None:
        raise HarnessError(f"{gpu.key} has no MIG slices", place=place, way_out=f"give --gpu {gpu.key}")
    parts, memories, shapes = sliced
    label = float(_rows()[gpu.key]["mem_gb"])  # slices share the label
    match = _MIG.fullmatch(text)
    compute, memory = (int(match[1]), round(memories * int(match[2]) / label)) if match else (0, 0)
    if memory not in shapes.get(compute, ()):
        some = ", ".join(f"{gpu.key}:{g}g.{int(label * each[0] / memories + 0.5)}gb" for g, each in shapes.items())
        raise HarnessError(f"{gpu.key} has no slice {text!r}", place=place, way_out=f"known: {some}")
    return msgspec.structs.replace(
        gpu,
        key=f"{gpu.key}:{text}",
        memory_bytes=gpu.memory_bytes * memory / memories,
        bandwidth=gpu.bandwidth * memory / memories,
        flops={dtype: peak * compute / parts for dtype, peak in gpu.flops.items()},
        link=None,
        bridged=None,
        watts=None,
        usd_per_hour=None,
    )


def key_of(name: str) -> str | None:
    """Return the key of the GPU with this product name (as NVML has it), in any case, with or without the maker.

    Whole names only, for near ones are other cards (L4 and L40S, H20 and H20-3e, RTX 4090 and 4090 D). None for a
    card that the table lacks, and for part of one (MIG, vGPU).

    >>> key_of("NVIDIA H100 80GB HBM3"), key_of("NVIDIA H200"), key_of("NVIDIA A100-SXM4-40GB MIG 1g.5gb")
    ('h100-sxm', 'h200-sxm', None)
    """
    return _nvml_names().get(_without_maker(name))


def _without_maker(name: str) -> str:
    """Return a product name in lower case, without the maker in front."""
    return name.lower().removeprefix("nvidia ").removeprefix("amd ")


def driver_names(key: str) -> list[str]:
    """Return the names by which `key_of` knows a card, as its driver writes them.

    >>> driver_names("h100-sxm")
    ['H100 80GB HBM3']
    """
    return _rows()[key]["nvml_names"].split("|")


@cache
def _nvml_names() -> dict[str, str]:
    """Return the keys of the cards by their product names, in lower case without the maker."""
    return {_without_maker(name): key for key, row in _rows().items() for name in row["nvml_names"].split("|") if name}


@cache
def _gpus() -> dict[str, Gpu]:
    """Return the cards of the catalog by their keys, in lower case."""
    return {key: _gpu(key, row) for key, row in _rows().items()}


@cache
def _rows() -> dict[str, dict[str, str]]:
    """Return the rows of the table of GPUs, by their keys in lower case."""
    with (_DATA / "gpus.csv").open(newline="", encoding="utf-8") as file:
        return {row["key"].lower(): row for row in csv.DictReader(file)}


def _gpu(key: str, row: dict[str, str]) -> Gpu:
    """Return the card of a row of the catalog, in bytes, bytes/s (of links one way) and FLOP/s; empty cells: None."""
    # The driver's own figure if it is known: an "80 GB" H100 has 81,559 MiB = 85.5e9 bytes.
    memory = float(row["mem_mib"]) * 2**20 if row["mem_mib"] else float(row["mem_gb"]) * 1e9
    return Gpu(
        key=key,
        memory_bytes=memory,
        bandwidth=float(row["bw_gbs"]) * 1e9,
        flops={dtype: float(row[column]) * 1e12 for dtype, column in _PEAKS.items() if row[column]},
        link=float(row["link_bidir_gbs"]) * 1e9 / 2 if row["link_bidir_gbs"] else None,
        bridged=int(row["bridge_gpus"]) if row["bridge_gpus"] else None,
        pcie=float(row["pcie_bidir_gbs"]) * 1e9 / 2 if row["pcie_bidir_gbs"] else None,
        certainty=row["certainty"],
        source=row["source"],
        vendor=row["vendor"],
        watts=float(row["tdp_w"]) if row["tdp_w"] else None,
        usd_per_hour=(float(row["usd_hr_low"]), float(row["usd_hr_high"])) if row["usd_hr_low"] else None,
    )


_FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
_FEW = 3  # names that an unknown one is answered with
# What names of tuned checkpoints have besides the model's: no difference of architecture. Nor is a month, like 2407.
_TUNED = {"instruct", "it", "chat", "thinking", "hf", "base", "meta", "nvidia", "bf16", "v0.1", "v0.2", "v0.3"}
_SHORTENED = {  # names at the hub that are longer than ours, without the above
    "llama-4-scout-17b-16e": "llama-4-scout",
    "llama-4-maverick-17b-128e": "llama-4-maverick",
    "mistral-large": "mistral-large-2",
}


def model_config(name: str, place: str = "--model-config") -> dict[str, Any]:
    """Return the config.json of a model, as a dict: a shipped name, a config.json, or its folder.

    A name may be the hub's, with its organisation and what says how the model was tuned; `-fp8` is how it is stored.

    >>> model_config("meta-llama/Llama-3.1-8B-Instruct")["num_hidden_layers"]
    32
    >>> model_config("mistralai/Mistral-Nemo-Instruct-2407") == model_config("mistral-nemo")
    True
    >>> model_config("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8")["quantization_config"]["quant_method"]
    'fp8'
    """
    shipped = _models()
    short = _short(name)
    path = Path(name)
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        return _read(path, place)
    if short in shipped:
        return dict(shipped[short])
    config = shipped.get(short.removesuffix("-fp8"))
    if config and config.get("quantization_config", _FP8)["quant_method"] == "fp8":
        return {"quantization_config": _FP8, **config}
    begin = [each for each in shipped if _squashed(each).startswith(_squashed(short))]
    near = [*begin, *(each for each in difflib.get_close_matches(short, shipped, n=_FEW) if each not in begin)][:_FEW]
    near = near or list(shipped)[:_FEW]
    way_out = f"give the path of its config.json, or one of the {len(shipped)} that are shipped, like {', '.join(near)}"
    raise HarnessError(f"unknown model {name!r}", place=place, way_out=way_out)


def _squashed(name: str) -> str:
    return "".join(filter(str.isalnum, name))


def _short(name: str) -> str:
    """Return the catalog's name of a hub's model, without its owner and words like "instruct".

    >>> _short("Qwen/Qwen3-30B-A3B-Instruct-2507"), _short("BAAI/bge-large-en-v1.5")
    ('qwen3-30b-a3b-2507', 'bge-large-en-v1.5')
    """
    short = name.rsplit("/", 1)[-1].lower()
    if short in _models():
        return short
    words = [word for word in short.split("-") if word not in _TUNED]
    for kept in (words, [word for word in words if not (word.isdecimal() and len(word) == 4)]):
        short = "-".join(kept)
        short = _SHORTENED.get(short, short)
        if short.removesuffix("-fp8") in _models():
            break
    return short


def _read(path: Path, place: str) -> dict[str, Any]:
    """Return the decoded config.json; if it lacks quantisation, with that of an hf_quant_config.json next to it."""
    config = _decoded(path, place)
    quantised = path.with_name("hf_quant_config.json")
    if not config.get("quantization_config") and quantised.is_file():
        config["quantization_config"] = {"quant_method": "modelopt", **_decoded(quantised, place)}
    return config


def _decoded(path: Path, place: str) -> dict[str, Any]:
    way_out = "give the config.json next to the model's weights"
    with decoding.reading(f"{place} {path}", "a model config", way_out):
        return decoding.typed(decoding.json(decoding.content(path), numbers=False), dict[str, Any])


def short(name: str) -> str:
    """Return a model's name without the path that leads to it.

    >>> short("/models/llama-3.1-8b/config.json"), short("meta-llama/Llama-3.1-8B")
    ('llama-3.1-8b', 'Llama-3.1-8B')
    """
    return name.rstrip("/").removesuffix("/config.json").rsplit("/")[-1]


def models() -> list[str]:
    """Return the names of the models that are shipped."""
    return list(_models())


def is_model(name: str) -> bool:
    """Return whether that is the name of a shipped model, also as the hub has it."""
    return _short(name).removesuffix("-fp8") in _models()


@cache
def _models() -> dict[str, dict[str, Any]]:
    """Return the shipped configs; `same_as` names the one that a config differs from in the fields it has."""
    found = msgspec.json.decode((_DATA / "models.json").read_bytes(), type=dict[str, dict[str, Any]])
    return {name: {**found.get(config.pop("same_as", ""), {}), **config} for name, config in found.items()}


_HUB = "--hub"


def from_hub(name: str) -> str:
    """Return the path of the config.json that the hub has for `name`, like meta-llama/Llama-3.1-8B; its cache keeps it.

    Where that says nothing of quantisation, the hf_quant_config.json comes with it, if there is one.
    """
    try:
        import huggingface_hub
    except ImportError:
        way_out = "install huggingface_hub, or give the path of a config.json"
        raise HarnessError("huggingface_hub is not installed", place=_HUB, way_out=way_out) from None
    from huggingface_hub.errors import EntryNotFoundError

    # HfHubHTTPError and a hub that cannot be reached are OSErrors; a name that is none is a ValueError.
    try:
        path = huggingface_hub.hf_hub_download(name, "config.json")
    except (OSError, ValueError, EntryNotFoundError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        way_out = "see its name and HF_TOKEN, or give the path of a config.json"
        raise HarnessError(f"no config.json of {name!r} ({reason})", place=_HUB, way_out=way_out) from None
    with suppress(OSError, ValueError, EntryNotFoundError):
        if b"quantization_config" not in decoding.content(Path(path)):
            huggingface_hub.hf_hub_download(name, "hf_quant_config.json")
    return path
