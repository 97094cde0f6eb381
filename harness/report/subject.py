"""What was measured and where: title and subtitle of a report, what stands after SIMULATED, the manifest's facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.report.document import Fact
from harness.report.format import flat, number, plain
from harness.report.headline import of_ramp
from harness.summary import Summary

CLAIMS = "Claims that are often made of such a setup, unsourced"
BY_CONSTRUCTION = "agreement with the prediction is there by construction"
_DIFFERS = 0.02  # of the tokens requested, from where the mean that was sent is told too


def subject(summary: Summary, manifest: Mapping[str, Any]) -> tuple[str, str]:
    """What was measured, as a title and a line under it; what is unknown is left out."""
    prediction = summary.prediction
    model = manifest.get("model") or (prediction.model if prediction else None)
    gpu = manifest.get("gpu") or (prediction.gpu if prediction else None)
    gpus = manifest.get("gpus") or (prediction.gpus if prediction else None)
    work = manifest.get("workload") or {}
    tokens_in = (
        work.get("prompt_tokens") or work.get("input_tokens") or (prediction.input_tokens if prediction else None)
    )
    tokens_out = work.get("output_tokens") or (prediction.output_tokens if prediction else None)
    own = of_ramp(summary.levels)
    sent_in = _mean([(level.input_tokens_mean, level.requests) for level in own])
    sent_out = _mean([(level.output_tokens_mean, level.requests) for level in own])
    server = manifest.get("server") or {}
    parts = [
        " × ".join([flat(gpus)] * bool(gpus) + [flat(gpu)]) if gpu else "",
        f"{_tokens(tokens_in, sent_in, ' tokens in')}, {_tokens(tokens_out, sent_out, ' out')}"
        if tokens_in and tokens_out
        else "",
        " ".join(plain(server[key]) for key in ("name", "version") if server.get(key)),
        plain(manifest.get("created") or ""),
    ]
    return plain(model) if model else "unnamed model", " · ".join(part for part in parts if part)


def _tokens(wanted: Any, sent: float | None, unit: str) -> str:
    """A length as it was requested; what was sent before it, where the two differ."""
    if not isinstance(wanted, int | float) or sent is None or abs(sent / wanted - 1) <= _DIFFERS:
        return f"{flat(wanted)}{unit}"
    return f"{number(sent)}{unit} ({number(wanted)} requested)"


def _mean(pairs: list[tuple[float | None, int]]) -> float | None:
    """Mean tokens of all requests, from each level's mean and number; None where nobody counted."""
    known = [(tokens, n) for tokens, n in pairs if tokens is not None and n > 0]
    total = sum(n for _, n in known)
    return sum(tokens * n for tokens, n in known) / total if total else None


def simulated_words(summary: Summary, manifest: Mapping[str, Any]) -> str:
    """What stands after the word SIMULATED; "" for a real measurement."""
    if not summary.simulated:
        return ""
    about = manifest.get("simulated") or {}
    profile, speed = about.get("profile"), about.get("speed")
    what = f"the simulated endpoint{f' played {plain(profile)}' if profile else ' answered'}"
    if speed not in (None, 1):
        what += f" at {number(speed)} × real time"
    return f"{what}. No GPU was measured; {BY_CONSTRUCTION}."


def manifest_facts(manifest: Mapping[str, Any]) -> list[Fact]:
    """What a reader looks up first of how it was measured; absent facts are left out."""
    labels = {
        "name": "scenario", "created": "measured", "url": "endpoint", "model": "model", "server": "server",
        "gpu": "GPU", "gpus": "GPUs", "workload": "workload", "simulated": "simulated", "host": "client host",
        "harness_version": "harness", "notes": "notes",
    }  # fmt: skip
    return [Fact(label, flat(manifest[key])) for key, label in labels.items() if manifest.get(key)]
