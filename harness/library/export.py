"""A measurement in another tool's format: as text, as files in a folder, or sent to where that tool keeps its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from harness.base import files
from harness.base.errors import HarnessError, nearest
from harness.base.terminal import json_text
from harness.data.manifest import Manifest
from harness.data.summary import LevelSummary
from harness.library import mlflow, otlp
from harness.library.measurement import Measurement, load
from harness.results.exports import llm_d, otel, table, vllm
from harness.results.exports.mlflow import of_run as as_mlflow
from harness.results.folder import MANIFEST, SUMMARY
from harness.spec.work import Unit

CSV, VLLM, LLM_D, OTEL, MLFLOW = "csv", "vllm", "llm-d", "otel", "mlflow"
_OF_LEVEL: Mapping[str, Callable[[LevelSummary, Manifest, int, bool], dict[str, Any]]] = {
    VLLM: lambda level, manifest, _, simulated: vllm.of_level(level, manifest, simulated=simulated),
    LLM_D: lambda level, manifest, index, simulated: llm_d.of_level(level, manifest, index=index, simulated=simulated),
}
FORMATS = (CSV, *_OF_LEVEL, OTEL, MLFLOW)
_LEFT_OUT = ("arrivals_s", "arrival_tokens", "error_message")  # of requests.csv: lists, and text of any length


def text(run: Measurement, to: str) -> str:
    """The levels: a CSV, or JSON with a line a level; OpenTelemetry's metrics are one line."""
    if _known(to) == MLFLOW:
        way_out = "give --out DIR, a store of its own, or --out http://HOST:5000"
        raise HarnessError("MLflow has no format for text", place="--to mlflow", way_out=way_out)
    if to == CSV:
        return table.levels(run.summary)
    return "".join(f"{json_text(msgspec.json.encode(found).decode())}\n" for _, found in _documents(run, to))


def export(run: Measurement | str | Path, to: str, out: str | Path) -> list[Path]:
    """Write a run, or its folder, for another tool, and return the files: `to` is one of FORMATS but "mlflow".

    They are levels.csv and requests.csv, a JSON for each level, or one of all metrics. HarnessError where the format
    cannot have them.
    """
    if _known(to) == MLFLOW:
        raise HarnessError(
            "MLflow keeps runs in a store", place="to", way_out="knee.send(run, 'mlflow', a folder or an address)"
        )
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
    """Send a run to where a tool keeps its own, and return what became of it in a line.

    `to` is "otel", and the address a collector's URL, or "mlflow", and the address a tracking server's or a folder.
    """
    if _known(to) not in (OTEL, MLFLOW):
        raise HarnessError(f"{to} is written to a folder", place="--out", way_out="give a folder, or --to otel")
    run = run if isinstance(run, Measurement) else load(run)
    if to == OTEL:
        return otlp.post(otel.of_run(run.summary, run.manifest), address)
    files_of_run = [run.path / name for name in (MANIFEST, SUMMARY) if (run.path / name).is_file()]
    return mlflow.log(as_mlflow(run.summary, run.manifest), files_of_run, address)


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
