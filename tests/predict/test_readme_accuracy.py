"""README's sentence on the accuracy of predictions: today's predictions of the committed ramps on GPUs."""

from __future__ import annotations

from pathlib import Path

import msgspec

from harness.data.summary import Summary
from harness.predict import catalog, question, roofline
from harness.results.result import read_manifest
from harness.spec.work import MeanLengths

ROOT = Path(__file__).parents[2]
RUNS = ("live-h100-bf16", "live-h100-seqs64", "live-h100-fp8", "live-h100-kv", "live-h200-ramp")


def apart(name: str) -> tuple[float, float]:
    """Return how far the single stream and the plateau of a run are from today's prediction, as shares of it."""
    folder = ROOT / "results" / name
    manifest, summary = read_manifest(folder), msgspec.json.decode((folder / "summary.json").read_bytes(), type=Summary)
    hardware = msgspec.structs.replace(manifest.scenario.hardware, model_config="llama-3.1-8b")
    found = question.deployed(hardware, catalog.gpu(manifest.scenario.hardware.gpu or ""), manifest.cache_config)
    assert found is not None
    assert summary.curve is not None
    levels = sorted({level.concurrency or 0 for level in summary.levels})
    lengths = MeanLengths(manifest.workload.prompt_tokens, 128)
    today = roofline.predict(*found, lengths, levels)
    one = next(level.output_tokens_per_s.mean for level in summary.levels if level.concurrency == 1)
    plateau = summary.curve.plateau_tokens_per_s.value
    assert one is not None
    assert plateau is not None
    return abs(one / today.single_stream_tokens_per_s.mid - 1), abs(plateau / today.plateau_tokens_per_s.mid - 1)


def test_the_readme_says_how_far_the_predictions_of_today_are_off() -> None:
    single, plateaus = zip(*map(apart, RUNS), strict=True)
    said = (
        f"The single streams were within {100 * max(single):.0f} % of today's prediction, "
        f"the plateaus {100 * min(plateaus):.0f} to {100 * max(plateaus):.0f} % off"
    )
    assert said in " ".join((ROOT / "README.md").read_text().split())
