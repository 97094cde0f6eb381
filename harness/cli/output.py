"""The output of every verb: the files of a result for people, data on stdout, messages on stderr."""

from __future__ import annotations

import contextlib
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.base.terminal import console, json_text, to_nobody

FORMAT_HELP = "Format of the files, if their content does not say it: that of an installed plug-in."

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from harness.data.manifest import Manifest, Shard
    from harness.data.summary import Summary
    from harness.report.document import Document
    from harness.results.levelmap import Map
    from harness.results.result import Result

secrets: list[str] = []  # the secrets of this run, which a traceback must not show


class More(NamedTuple):
    """What a report may have besides its summary: a result already read, and a place for pictures.

    `noted` are the notes that were printed already, before the load.
    """

    result: Result | None = None
    figures: Path | None = None
    noted: Collection[str] = ()


def write_reports(folder: Path, summary: Summary, manifest: Manifest, *, plots: bool) -> Document:
    """Write summary.json and report.md; return the report's document, from which page and plots are drawn later."""
    from harness.base import files
    from harness.report import markdown, run_report
    from harness.results.folder import SUMMARY

    must_be_files(folder, plots=plots)
    files.write_json(folder / SUMMARY, summary)
    document = run_report.report(summary, manifest)
    files.write(folder / "report.md", markdown.render(document))
    return document


def write_plots(
    folder: Path, document: Document, summary: Summary, result: Result | None = None, figures: Path | None = None
) -> None:
    """Write report.html and curve.png, and every chart into `figures` as PNG and SVG.

    They come after the answer: reading the requests again and importing jinja2 and matplotlib takes longer.
    """
    from harness.base import files
    from harness.report import page, png, run_report
    from harness.results.result import Result

    whole = run_report.with_records(document, summary, result or Result.open(folder))
    files.write(folder / "report.html", page.render(whole))
    for section in whole.sections:
        if section.picture:
            files.write(folder / section.picture, png.draw(section.charts[0]))
    if figures is None:
        return
    files.make_folder(figures, way_out="choose another --figures")
    for chart in (chart for section in whole.sections for chart in section.charts if chart.series):
        files.write(figures / f"{chart.name}.png", png.draw(chart))
        files.write(figures / f"{chart.name}.svg", png.vector(chart))


def open_in_browser(page: Path) -> None:
    """Open a page in the browser; where there is none, say where the page is."""
    import webbrowser

    from harness.base.errors import HarnessError

    if not page.exists():
        raise HarnessError("there is no page to open", place="--open", way_out="leave --no-plots out")
    if not webbrowser.open_new_tab(page.absolute().as_uri()):
        print(f"note: no browser opens {page}", file=sys.stderr)


def must_be_files(folder: Path, *, plots: bool) -> None:
    """Raise HarnessError unless the name of each report file in the folder is free or a plain file's."""
    from harness.base import files
    from harness.results.folder import FOR_PEOPLE, SUMMARY

    files.must_be_files(folder, (SUMMARY, *(FOR_PEOPLE if plots else ("report.md",))))


def publish(
    folder: Path,
    summary: Summary,
    manifest: Manifest,
    *,
    plots: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    more: More = More(),
) -> None:
    """Write a result's summary and report, print its answer, then draw page and plots (also if stdout is closed)."""
    from harness.report import run_report
    from harness.results.folder import SUMMARY

    document = write_reports(folder, summary, manifest, plots=plots)
    drawn: list[tuple[str, str | Path]] = [("report", folder / "report.html"), ("curve", folder / "curve.png")]
    made: list[tuple[str, str | Path]] = [("result folder", folder), ("summary", folder / SUMMARY)]
    to_go_on: list[tuple[str, str | Path]] = [("to go on", f"knee run --resume {shlex.quote(str(folder))}")]
    screen = run_report.screen(summary, manifest, verbose=verbose, noted=more.noted)
    more_files = drawn * plots + to_go_on * (not summary.complete and bool(manifest.created))
    show(screen, made + more_files, summary, as_json=as_json, quiet=quiet)
    if plots:
        write_plots(folder, document, summary, more.result, more.figures)


def publish_shard(folder: Path, shard: Shard, *, quiet: bool) -> None:
    """Say where a machine's share of a run lies; a share has no answer."""
    if not quiet:
        with closed_stdout_ignored():
            print(f"shard {shard.number} of {shard.of}  {folder}")
            print("merge all of them: knee report DIR DIR … --out DIR")


def publish_map(folder: Path, measured: Map, *, plots: bool, as_json: bool, quiet: bool) -> None:
    """Write and print the result of a level map; its cells have reports of their own."""
    from harness.base import files
    from harness.report import level_map, markdown
    from harness.results import levelmap

    document = level_map.report(measured)
    files.must_be_files(folder, levelmap.FOR_PEOPLE if plots else ("map.md",))
    files.write(folder / "map.md", markdown.render(document))
    drawn: list[tuple[str, str | Path]] = [("page", folder / "map.html")]
    made: list[tuple[str, str | Path]] = [("map", folder / levelmap.MAP), ("report", folder / "map.md")]
    show(document, made + drawn * plots, measured, as_json=as_json, quiet=quiet)
    if plots:
        from harness.report import page

        files.write(folder / "map.html", page.render(document))


def print_json(data: object) -> None:
    """Print data as JSON on stdout, their control characters as escapes."""
    import msgspec

    print(json_text(msgspec.json.encode(data).decode()))


def show(document: Document, files: list[tuple[str, str | Path]], data: object, *, as_json: bool, quiet: bool) -> None:
    """Print a document and its files' paths on stdout; with `as_json` print `data` as JSON there, these on stderr."""
    from harness.report import terminal

    with closed_stdout_ignored():
        if as_json:
            print_json(data)
        if not quiet:
            talk = console(stderr=as_json)
            terminal.show(document, talk)
            terminal.show_paths(files, talk)


@contextlib.contextmanager
def closed_stdout_ignored() -> Iterator[None]:
    """Print as long as somebody reads: a closed stdout is no error."""
    try:
        yield
        sys.stdout.flush()
    except OSError:
        to_nobody(sys.stdout)
