"""A measurement in another tool's format: as text, a document a level, or as files in a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from harness import files
from harness.errors import HarnessError, nearest
from harness.library import otlp
from harness.library.measurement import Measurement, load
from harness.manifest import Manifest
from harness.results.exports import llm_d, otel, table, vllm
from harness.summary import LevelSummary
from harness.terminal import json_text
from harness.work import Unit

CSV, VLLM, LLM_D, OTEL = "csv", "vllm", "llm-d", "otel"
_OF_LEVEL: Mapping[str, Callable[[LevelSummary, Manifest, int, bool], dict[str, Any]]] = {
    VLLM: lambda level, manifest, _, simulated: vllm.of_level(level, manifest, simulated=simulated),
    LLM_D: lambda level, manifest, index, simulated: llm_d.of_level(level, manifest, index=index, simulated=simulated),
}
FORMATS = (CSV, *_OF_LEVEL, OTEL)
_LEFT_OUT = ("arrivals_s", "arrival_tokens", "error_message")  # of requests.csv: lists, and text of any length


def text(run: Measurement, to: str) -> str:
    """The levels: a CSV, or JSON with a line a level; OpenTelemetry's metrics are one line."""
    if _known(to) == CSV:
        return table.levels(run.summary)
    return "".join(f"{json_text(msgspec.json.encode(found).decode())}\n" for _, found in _documents(run, to))


def export(run: Measurement | str | Path, to: str, out: str | Path) -> list[Path]:
    """Write a run, or its folder, for another tool, and return the files: `to` is one of FORMATS.

    They are levels.csv and requests.csv, a JSON for each level, or one of all metrics. HarnessError where the format
    cannot have them.
    """
    _known(to)
    run = run if isinstance(run, Measurement) else load(run)
    folder = Path(out)
    files.make_folder(folder, way_out="choose another --out")
    made: dict[str, str] = {}
    if to == CSV:
        made["levels.csv"] = table.levels(run.summary)
        if run.has_requests:
            made["requests.csv"] = _requests(run)
    else:
        made = {name: files.json_text(found) for name, found in _documents(run, to)}
    for name, content in made.items():
        files.write(folder / name, content, way_out="choose another --out")
    return [folder / name for name in made]


def send(run: Measurement | str | Path, to: str, address: str) -> str:
    """Post a run's metrics to a collector of OpenTelemetry, and return what became of them in a line."""
    if _known(to) != OTEL:
        raise HarnessError(f"{to} is written to a folder", place="--out", way_out="give a folder, or --to otel")
    run = run if isinstance(run, Measurement) else load(run)
    return otlp.post(otel.of_run(run.summary, run.manifest), address)


def _known(to: str) -> str:
    if to not in FORMATS:
        raise HarnessError(f"no format '{to[:40]}'", place="--to", way_out=nearest(to, FORMATS))
    return to


def _documents(run: Measurement, to: str) -> list[tuple[str, dict[str, Any]]]:
    """(file name, document) of each level that has a throughput; of OpenTelemetry's metrics one of all levels."""
    summary = run.summary
    if to == OTEL:
        return [("metrics.otlp.json", otel.of_run(summary, run.manifest))]
    if summary.unit != Unit.OUTPUT_TOKENS:
        fact = f"{to} counts output tokens, and this run {summary.unit}"
        raise HarnessError(fact, place=str(run.path), way_out="give --to csv")
    found = []
    for index, level in enumerate(summary.levels):
        if level.output_tokens_per_s.mean is not None:
            load = f"c{level.concurrency}" if level.rate is None else f"rate{level.rate:g}"
            name = f"{to}-{index:02}-{load}.json"
            found.append((name, _OF_LEVEL[to](level, run.manifest, index, summary.simulated)))
    if not found:
        raise HarnessError("no level with a throughput", place=str(run.path), way_out="measure one")
    return found


def _requests(run: Measurement) -> str:
    frame = run.requests.drop(columns=list(_LEFT_OUT)).astype(object)
    return table.text(list(frame.columns), frame.where(frame.notna(), None).to_dict("records"))
