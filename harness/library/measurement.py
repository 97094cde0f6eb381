"""A result folder in a program or a notebook: its answer, tables and curve, and the same in another tool's format."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from harness.base import files
from harness.base.errors import HarnessError
from harness.data.manifest import Manifest
from harness.data.summary import Headline, Summary
from harness.results import exporters
from harness.results.folder import SUMMARY, has_requests
from harness.results.result import Result, read_summary, run_manifest

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

_ELSEWHERE = "choose another --out"


class Measurement(msgspec.Struct, frozen=True, dict=True, eq=False):
    """One measured run; what is read of it is read once, when it is first asked for."""

    path: Path
    manifest: Manifest

    @cached_property
    def summary(self) -> Summary:
        """Return the answer, as in summary.json: made from the records, or as stored if these were removed."""
        if not self.has_requests:
            return read_summary(self.path)
        from harness.analysis.summarise import summarise

        return summarise(self._result)

    @property
    def knee(self) -> Headline:
        """Return the knee in requests in flight: `.value`, the interval `.low` to `.high`, `.kind` and `.state`."""
        return self.summary.knee

    @cached_property
    def levels(self) -> pandas.DataFrame:
        """Return a row a level: load, throughput, latencies; seconds and tokens per second."""
        from harness.library import notebook

        return notebook.levels(self.summary)

    @cached_property
    def requests(self) -> pandas.DataFrame:
        """Return a row a request, those of the warm-up too; `in_window` marks those that a level's figures are of."""
        from harness.library import notebook

        return notebook.requests(self._result)

    @cached_property
    def telemetry(self) -> pandas.DataFrame:
        """Return a row a figure of server, client, host or GPU: time_s, source, metric, value."""
        from harness.library import notebook

        return notebook.telemetry(self._result.samples)

    @property
    def has_requests(self) -> bool:
        """Return whether the requests lie in the folder; committed results may be without them."""
        return has_requests(self.path)

    def plot(self) -> Figure:
        """Return the curve as a figure of matplotlib: throughput against load with fit, prediction and knees."""
        from harness.report import charts, png

        drawn: Figure = png.figure(charts.curve(self.summary, self.manifest))
        return drawn

    def _repr_html_(self) -> str:
        from harness.library import notebook

        return notebook.html(self.summary, self.manifest)

    def __repr__(self) -> str:
        from harness.report.answer import answer

        simulated = "SIMULATED, " * self.summary.simulated
        return f"<Measurement {str(self.path)!r}: {simulated}{answer(self.summary).sentence}>"

    @cached_property
    def _result(self) -> Result:
        return Result.open(self.path)


def load(path: str | Path) -> Measurement:
    """Return the result folder of a run, finished, interrupted or dead; raise HarnessError if it is none."""
    folder, manifest = Path(path), run_manifest(path)
    if not has_requests(folder) and not (folder / SUMMARY).exists():
        raise HarnessError("neither requests nor summary.json here", place=str(folder), way_out="was it a run?")
    return Measurement(folder, manifest)


def text(run: Measurement, to: str) -> str:
    """Return the levels: a CSV, or JSON with a line a level; OpenTelemetry's metrics are one line."""
    return exporters.find(to).on_stdout(run)


def export(run: Measurement | str | Path, to: str, out: str | Path) -> list[Path]:
    """Write a run, or its folder, for another tool, and return the files: `to` names the format.

    They are levels.csv and requests.csv, a JSON for each level, or one of all metrics. Raise HarnessError if the format
    cannot have them.
    """
    exporter = exporters.find(to)
    if exporter.files is None:
        way_out = f"knee.send(run, '{to}', a folder or an address)"
        raise HarnessError(f"{to} keeps runs in a store", place="to", way_out=way_out)
    run = run if isinstance(run, Measurement) else load(run)
    folder = Path(out)
    files.make_folder(folder, way_out=_ELSEWHERE)
    made = exporter.files(run)
    for name, found in made.items():
        content = found if isinstance(found, str) else files.json_text(found)
        files.write(folder / name, content, way_out=_ELSEWHERE)
    return [folder / name for name in made]


def send(run: Measurement | str | Path, to: str, address: str) -> str:
    """Send a run to where a tool keeps its own, and return what became of it in a line.

    `to` is the exporter of another package; Knee's own write files.
    """
    exporter = exporters.find(to)
    if exporter.send is None:
        raise HarnessError(f"{to} is written to a folder", place="--out", way_out="give a folder")
    return exporter.send(run if isinstance(run, Measurement) else load(run), address)


def is_sent(to: str, out: str) -> bool:
    """Return whether a run goes there by `send`: to an address, or into a store that the tool keeps in a folder."""
    return out.lower().startswith(("http://", "https://")) or exporters.find(to).files is None
