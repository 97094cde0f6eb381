"""What people compare a prediction with: figures that are quoted without a source.

A claim is shown only where its condition is true, and marked unsourced; nothing is computed from it. The wrong ones
become notes with the right figure for that input. Conditions are `key=value` pairs that must all be true,
with `|` between values; the keys are those of `facts`.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec

from harness.base.errors import HarnessError
from harness.predict.deployment import Deployment, kv_capacity
from harness.predict.model import Model, kv_bytes_per_token, parameters, weight_bytes
from harness.spec.work import MeanLengths

TITLE = "Unsourced claims about such a setup"  # heading under which they are shown
_FILE = Path(__file__).with_name("data") / "seed_claims.csv"
_SIZES = {"7b": (6e9, 9e9), "70b": (65e9, 75e9)}
_CARDS = ("a100-80", "h100")
_MANY = 1000  # users a GPU that are unlikely to be all in flight


class Claim(msgspec.Struct, frozen=True):
    """One quoted figure; a missing end is None."""

    id: str
    quote: str
    condition: str
    low: float | None = None
    high: float | None = None
    status: str = "unsourced"  # unsourced | wrong | checked


@cache
def claims() -> tuple[Claim, ...]:
    """Return every claim."""
    with _FILE.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return tuple(
        msgspec.convert({field: text for field, text in row.items() if text}, Claim, strict=False) for row in rows
    )


def facts(model: Model, deployment: Deployment, workload: MeanLengths, users: Sequence[int] = ()) -> dict[str, str]:
    """Return facts on a setup (GPUs, card, size, weights …) by name, against which claims' conditions are checked.

    `weights` is how they are stored; `users` is there from 1,000 users a GPU on.
    """
    count, gpu = parameters(model).total, deployment.gpu.key
    decodes = model.generates and workload.output_tokens > 0
    rows = {
        "gpus": "0" if gpu == "host" else str(deployment.gpus),
        "tp": str(deployment.tp),
        "card": next((card for card in _CARDS if gpu.startswith(card)), gpu),
        "decodes": "yes" if decodes else "no",
        "speculative": "yes" if decodes and deployment.draft_tokens > 0 else "no",
        "weights": model.stored.method,
        "native": "yes" if model.stored.compute in deployment.gpu.flops else "no",
    }
    for size, (low, high) in _SIZES.items():
        if not model.experts and low <= count <= high:
            rows["size"] = size
    if max(users, default=0) >= _MANY * deployment.gpus:
        rows["users"] = "thousands"
    return rows


def holds(claim: Claim, facts: Mapping[str, str]) -> bool:
    """Return whether the facts meet every part, like key=value|other, of the claim's condition.

    >>> claim = Claim("a", "", "size=7b weights=int8|int4", 1.5, 2.0)
    >>> holds(claim, {"size": "7b", "weights": "int4"})
    True
    """
    pairs = (part.partition("=") for part in claim.condition.split())
    return all(facts.get(key) in values.split("|") for key, _, values in pairs)


def holding(facts: Mapping[str, str]) -> list[Claim]:
    """Return the claims without a source whose condition holds."""
    return [claim for claim in claims() if claim.status == "unsourced" and holds(claim, facts)]


def notes(
    model: Model,
    deployment: Deployment,
    workload: MeanLengths,
    users: Sequence[int] = (),
    peak_flops: float | None = None,
) -> list[str]:
    """Return the wrong claims that these inputs rely on, each with the right figure.

    To be called before predicting, since in some of these cases the model does not fit. `peak_flops` is the peak
    that the operator believes in, `users` are the levels.
    """
    known = facts(model, deployment, workload, users)
    walked = {claim.id for claim in claims() if claim.status == "wrong" and holds(claim, known)}
    card, kv, out = deployment.gpu, kv_bytes_per_token(model), []
    if "kv-70b" in walked:
        full = model.heads / model.kv_heads * kv if model.kv_heads else kv
        out.append(
            f"a 70B is said to need 1.6 MB of KV a token; this one needs {kv:,.0f} B, "
            f"and {full:,.0f} B if every head kept its own"
        )
    if peak_flops and abs(peak_flops / (2 * card.flops["bf16"]) - 1) < 0.02:
        out.append(
            f"{peak_flops / 1e12:,.0f} TFLOPS is the sparse peak of {card.key}; "
            f"dense matrices reach {card.flops['bf16'] / 1e12:,.0f}"
        )
    if "prefill-7b-a100" in walked:
        roof = prefill0(card.flops["bf16"], 1.0, parameters(model).matmul)
        out.append(
            f"25,000-50,000 prompt tok/s are quoted for a 7B on an A100; "
            f"the FLOP roof of {card.key} for {model.name} is {roof:,.0f} at 100 % MFU"
        )
    if "70b-fp16-80gb" in walked and weight_bytes(model) > card.memory_bytes:
        out.append(
            f"{weight_bytes(model) / 1e9:.0f} GB of 16-bit weights do not fit on one {card.key} "
            f"of {card.memory_bytes / 1e9:.0f} GB, whatever the batch"
        )
    if "users-70b-fp8" in walked:
        each = _kv_tokens(model, deployment, workload) // 50
        left = f"each would have {each:,} KV tokens" if each else "weights and activations leave no KV for any of them"
        out.append(f"50 chat users of a 70B in fp8 on one {card.key} are said to work; {left}")
    if "conversations-8" in walked:
        out.append(
            f"{max(users):,} conversations on {deployment.gpus} GPUs are not {max(users):,} requests in flight: "
            "with think time Z in flight is X/G·(R+Z), of which only X/G·R is load"
        )
    return out


def _kv_tokens(model: Model, deployment: Deployment, workload: MeanLengths) -> int:
    """Return KV tokens of one replica, 0 if the model does not fit."""
    try:
        return kv_capacity(model, deployment, workload.context)
    except HarnessError:
        return 0


def prefill0(peak: float, MFU: float, N: float) -> float:
    """Return the prompt tokens/s of the compute roof; quoted next to decode, never summed with it. peak MFU / (2 N)."""
    return peak * MFU / (2 * N)
