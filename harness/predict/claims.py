"""Figures that go round without a source, as data, and what to say when an input walks into a wrong one.

A claim is shown only where its condition holds, and marked unsourced; nothing is computed from it. The wrong ones
come out as notes beside the right figure for what was asked. Conditions are `key=value` pairs that must all hold,
with `|` between values; the keys are those of `facts`, and what a caller adds (stack, compare, plan, measured).
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec

from harness.predict import rules
from harness.predict.deployment import Deployment
from harness.predict.model import Model, kv_bytes_per_token, parameters, weight_bytes
from harness.predict.roofline import Workload

_FILE = Path(__file__).with_name("data") / "seed_claims.csv"
_SIZES = {"7b": (6e9, 9e9), "70b": (65e9, 75e9)}
_CARDS = ("a100-80", "h100")
_MANY = 1000  # users a GPU that are unlikely to be all in flight


class Claim(msgspec.Struct, frozen=True):
    """One quoted figure; an end that is not given is None."""

    id: str
    quote: str
    condition: str
    low: float | None
    high: float | None
    status: str  # unsourced | wrong | checked


@cache
def claims() -> tuple[Claim, ...]:
    """Every claim."""
    with _FILE.open(newline="", encoding="utf-8") as file:
        return tuple(
            Claim(
                id=row["id"],
                quote=row["quote"],
                condition=row["condition"],
                low=float(row["low"]) if row["low"] else None,
                high=float(row["high"]) if row["high"] else None,
                status=row["status"],
            )
            for row in csv.DictReader(file)
        )


def facts(model: Model, deployment: Deployment, workload: Workload, users: Sequence[int] = ()) -> dict[str, str]:
    """What conditions are held against."""
    count, gpus, key = parameters(model).total, deployment.gpus, deployment.gpu.key
    found = {
        "weights": model.stored.method,
        "native": "yes" if model.stored.compute in deployment.gpu.flops else "no",
        "gpus": str(gpus),
        "tp": str(deployment.tp),
        "card": next((card for card in _CARDS if key.startswith(card)), key),
        "speculative": "yes" if deployment.draft_tokens else "no",
        "decodes": "yes" if model.generates and workload.output_tokens else "no",
    }
    size = next((size for size, (low, high) in _SIZES.items() if low <= count <= high), None)
    if size and not model.experts:
        found["size"] = size
    if max(users, default=0) >= _MANY * gpus:
        found["users"] = "thousands"
    return found


def holds(claim: Claim, facts: Mapping[str, str]) -> bool:
    """Whether every part of the claim's condition is so.

    >>> holds(Claim("a", "", "size=7b weights=int8|int4", 1.5, 2.0, "unsourced"), {"size": "7b", "weights": "int4"})
    True
    """
    pairs = (part.partition("=") for part in claim.condition.split())
    return all(facts.get(key) in values.split("|") for key, _, values in pairs)


def holding(facts: Mapping[str, str]) -> list[Claim]:
    """The claims without a source whose condition holds."""
    return [claim for claim in claims() if claim.status == "unsourced" and holds(claim, facts)]


def notes(
    model: Model,
    deployment: Deployment,
    workload: Workload,
    users: Sequence[int] = (),
    peak_flops: float | None = None,
) -> list[str]:
    """The wrong claims that these inputs walk into, each with the right figure.

    To be asked before predicting, since some of them end in a model that does not fit. `peak_flops` is the peak
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
        roof = rules.prefill0(card.flops["bf16"], 1.0, parameters(model).matmul)
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
        each = rules.kv_share(card.memory_bytes, deployment.gpu_memory_utilization, weight_bytes(model), kv, 50)
        out.append(
            f"50 chat users of a 70B in fp8 on one {card.key} are said to work; each would have {each} KV tokens"
        )
    if "conversations-8" in walked:
        out.append(
            f"{max(users):,} conversations on {deployment.gpus} GPUs are not {max(users):,} requests in flight: "
            "with think time Z in flight is X/G·(R+Z), of which only X/G·R is load"
        )
    return out
