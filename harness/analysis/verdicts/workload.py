"""Whether the requests were those asked for, and whether their texts show what the server does with users' own."""

from __future__ import annotations

from harness.data.judgement import Code, Verdict, doubt
from harness.data.manifest import Manifest
from harness.data.summary import ClassWorkload, Lengths, WorkloadSummary

LENGTHS_OFF = 0.02  # of the mean that was asked
_BY_CHANCE = 3  # standard errors of the realised mean, up to which it is no sign of anything


def lengths_off(workload: WorkloadSummary) -> Verdict | None:
    """Mean lengths that left what was asked by more than 2 % and by more than chance explains."""
    off = [text for each in workload.classes for text in _off(each)]
    if not off:
        return None
    return doubt(
        Code.LENGTHS_OFF,
        f"mean lengths differ from those asked: {'; '.join(off)}",
        "prompts: name the model's tokenizer; answers: check that the server honours ignore_eos and max_tokens",
    )


def _off(of_class: ClassWorkload) -> list[str]:
    of = f" of {of_class.class_}" if of_class.class_ else ""
    named = (("prompts", of_class.input_tokens), ("answers", of_class.output_tokens))
    return [
        f"{noun}{of} {each.realised.mean:.1f} tokens, {each.asked.mean:.1f} asked"
        for noun, each in named
        if _is_off(each) and each.asked is not None
    ]


def _is_off(lengths: Lengths) -> bool:
    if lengths.asked is None or not lengths.asked.mean or lengths.realised.mean is None:
        return False
    apart = abs(lengths.realised.mean - lengths.asked.mean)
    return apart > max(LENGTHS_OFF * lengths.asked.mean, _BY_CHANCE * (lengths.mean_se or 0.0))


def synthetic_text(manifest: Manifest, *, drafts: bool) -> Verdict | None:
    """Random words where the server's speed depends on the text: it drafts tokens, or routes them to experts.

    `drafts`: its own metrics count drafted tokens. No doubt with a dataset, nor about the simulated endpoint, which
    reads no text.
    """
    prediction, workload = manifest.prediction, manifest.scenario.workload
    if manifest.simulated is not None or workload.dataset:
        return None
    reasons = []
    if drafts or (prediction is not None and prediction.assumptions.draft_tokens):
        reasons.append("how many drafted tokens are accepted")
    if prediction is not None and any(level.experts_hit is not None for level in prediction.levels):
        reasons.append("which experts are hit")
    if not reasons:
        return None
    return doubt(
        Code.SYNTHETIC_TEXT,
        f"prompts are random words: {' and '.join(reasons)} is not as with users' texts",
        "measure with a dataset of real prompts",
    )
