"""A measurement in another tool's format: as text, as files in a folder, or sent to where that tool keeps its own."""

from __future__ import annotations

from pathlib import Path

from harness.base import files
from harness.base.errors import HarnessError
from harness.library.measurement import Measurement, load
from harness.results import exporters

_ELSEWHERE = "choose another --out"


def text(run: Measurement, to: str) -> str:
    """Return the levels: a CSV, or JSON with a line a level; OpenTelemetry's metrics are one line."""
    return exporters.find(to).on_stdout(run)


def export(run: Measurement | str | Path, to: str, out: str | Path) -> list[Path]:
    """Write a run, or its folder, for another tool, and return the files: `to` names the format.

    They are levels.csv and requests.csv, a JSON for each level, or one of all metrics. HarnessError where the format
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
