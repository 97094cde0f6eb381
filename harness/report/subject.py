"""What was measured and where: title and subtitle of a report, the note on a simulated run, the manifest's facts."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from harness.data.machines import Amount
from harness.data.manifest import Manifest
from harness.data.summary import Summary
from harness.report.document import Fact
from harness.report.format import flat, number, plain
from harness.report.headline import of_ramp

BY_CONSTRUCTION = "results agree with the prediction by construction"
_DIFFERS = 0.02  # of the tokens requested: the mean that was sent is shown too if it differs by more


def subject(summary: Summary, manifest: Manifest) -> tuple[str, str]:
    """What was measured, as a title and a subtitle; what is unknown is left out."""
    prediction, workload, server = summary.prediction, manifest.workload, manifest.server
    model = manifest.model or (prediction.model if prediction else None)
    gpu = manifest.gpu or (prediction.gpu if prediction else None)
    gpus = manifest.gpus or (prediction.gpus if prediction else None)
    asked_in = workload.input_tokens if summary.workload else workload.prompt_tokens
    tokens_in = asked_in or workload.input_tokens or (prediction.input_tokens if prediction else None)
    tokens_out = workload.output_tokens or (prediction.output_tokens if prediction else None)
    parts = [
        " × ".join([number(gpus)] * bool(gpus) + [plain(gpu)]) if gpu else "",
        _lengths(summary, tokens_in, tokens_out, manifest.scenario.workload.inputs or None),
        " ".join(plain(server[key]) for key in ("name", "version") if server.get(key)),
        plain(manifest.created or ""),
    ]
    return plain(model) if model else "unnamed model", " · ".join(part for part in parts if part)


def _tokens(wanted: Amount, sent: float | None, unit: str) -> str:
    """A length as it was requested; what was sent before it, where the two differ."""
    if sent is None or abs(sent / wanted - 1) <= _DIFFERS:
        return f"{number(wanted)}{unit}"
    return f"{number(sent)}{unit} ({number(wanted)} requested)"


def _lengths(summary: Summary, tokens_in: Amount | None, tokens_out: Amount | None, inputs: int | None = None) -> str:
    """Tokens of a request; of requests that differ the mean that was asked, for what came has a table of its own."""
    if not tokens_in:
        return ""
    if not tokens_out:
        texts = f"{number(inputs)} texts of " if inputs and inputs > 1 else ""
        return f"{texts}{number(tokens_in)} tokens in{' on average' if summary.workload else ''}"
    if summary.workload:
        return f"{number(tokens_in)} tokens in, {number(tokens_out)} out on average"
    own = of_ramp(summary.levels)
    sent_in = _mean([(level.input_tokens_mean, level.requests) for level in own])
    sent_out = _mean([(level.output_tokens_mean, level.requests) for level in own])
    return f"{_tokens(tokens_in, sent_in, ' tokens in')}, {_tokens(tokens_out, sent_out, ' out')}"


def _mean(pairs: list[tuple[float | None, int]]) -> float | None:
    """Mean tokens of all requests, from each level's mean and number; None where they were not counted."""
    known = [(tokens, n) for tokens, n in pairs if tokens is not None and n > 0]
    total = sum(n for _, n in known)
    return sum(tokens * n for tokens, n in known) / total if total else None


def simulated_words(summary: Summary, manifest: Manifest) -> str:
    """What was simulated, in words; "" for a measurement."""
    if not summary.simulated:
        return ""
    played = manifest.simulated
    profile = played.profile if played else None
    what = f"the simulated endpoint {f'played {plain(profile)}' if profile else 'answered'}"
    if played and played.speed is not UNSET and played.speed != 1:
        what += f" at {number(played.speed)} × real time"
    return f"{what}. No GPU was measured; {BY_CONSTRUCTION}."


def manifest_facts(manifest: Manifest) -> list[Fact]:
    """What most readers want to know of how it was measured; absent facts are left out."""
    known = {
        "scenario": manifest.name, "measured": manifest.created, "endpoint": manifest.urls or manifest.url,
        "model": manifest.model,
        "server": manifest.server, "GPU": manifest.gpu, "GPUs": manifest.gpus, "workload": manifest.workload,
        "simulated": manifest.simulated, "client host": manifest.host, "harness": manifest.harness_version,
    }  # fmt: skip
    return [Fact(label, flat(value)) for label, value in msgspec.to_builtins(known).items() if value]
