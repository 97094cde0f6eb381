"""A result folder in a program or a notebook: its answer, its tables, its curve."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from harness.base.errors import HarnessError
from harness.data.manifest import Manifest
from harness.data.summary import Headline, Summary
from harness.results.folder import SUMMARY, has_requests
from harness.results.result import Result, read_summary, run_manifest

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


class Measurement(msgspec.Struct, frozen=True, dict=True, eq=False):
    """One measured run; what is read of it is read once, when it is first asked for."""

    path: Path
    manifest: Manifest

    @cached_property
    def summary(self) -> Summary:
        """Return the answer, as in summary.json: made from the records, or as stored where they were taken out."""
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
    """Return the result folder of a run, finished, interrupted or dead; HarnessError where it is none."""
    folder, manifest = Path(path), run_manifest(path)
    if not has_requests(folder) and not (folder / SUMMARY).exists():
        raise HarnessError("neither requests nor summary.json here", place=str(folder), way_out="was it a run?")
    return Measurement(folder, manifest)
