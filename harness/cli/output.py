"""What every verb hands out: files of a result for people, data on stdout, talk on stderr."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harness.terminal import console, json_text, to_nobody

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.manifest import Manifest
    from harness.results.levelmap import Map
    from harness.summary import Summary

secrets: list[str] = []  # of this process's run, for what is printed where nobody knows the run any more


def write_reports(folder: Path, summary: Summary, manifest: Manifest, *, plots: bool) -> list[tuple[str, str | Path]]:
    """summary.json and the files for people; what was made, with its name."""
    import msgspec

    from harness import files
    from harness.report import markdown, run_report
    from harness.results.folder import SUMMARY

    must_be_files(folder, plots=plots)
    files.write_json(folder / SUMMARY, summary)
    paths: list[tuple[str, str | Path]] = [("result folder", folder), ("summary", folder / SUMMARY)]
    about = msgspec.to_builtins(manifest)
    document = run_report.report(summary, about)
    if plots:
        from harness.report import charts, page, png

        files.write(folder / "curve.png", png.draw(charts.curve(summary, about)))
        files.write(folder / "report.html", page.render(document))
        paths += [("report", folder / "report.html"), ("curve", folder / "curve.png")]
    files.write(folder / "report.md", markdown.render(document))
    return paths


def must_be_files(folder: Path, *, plots: bool) -> None:
    """HarnessError unless all that `write_reports` writes can stand in the folder."""
    from harness import files
    from harness.results.folder import FOR_PEOPLE, SUMMARY

    files.must_be_files(folder, (SUMMARY, *(FOR_PEOPLE if plots else ("report.md",))))


def write_map(folder: Path, found: Map, *, plots: bool) -> tuple[str, list[Path]]:
    """The files of a level map for people: its table, and what was made; the cells have reports of their own."""
    from harness import files
    from harness.report import level_map, markdown
    from harness.results import levelmap

    table = markdown.render(level_map.report(found))
    files.must_be_files(folder, levelmap.FOR_PEOPLE if plots else ("map.md",))
    files.write(folder / "map.md", table)
    if plots:
        from harness.report import map_png

        files.write(folder / "map.png", map_png.draw(level_map.panels(found)))
    return table, [folder / name for name in (levelmap.MAP, "map.md", *(["map.png"] if plots else []))]


def print_json(text: str) -> None:
    """JSON on stdout: the same data, and no character that steers a terminal."""
    print(json_text(text))


def print_map(found: Map, table: str, files: list[Path], *, as_json: bool, quiet: bool) -> None:
    """Data to stdout: the JSON if asked for, else the table."""
    import msgspec

    if as_json:
        print_json(msgspec.json.encode(found).decode())
    if not quiet:
        print(table, *files, sep="\n", file=sys.stderr if as_json else sys.stdout)


def print_summary(
    summary: Summary,
    manifest: Manifest,
    paths: list[tuple[str, str | Path]],
    *,
    as_json: bool,
    quiet: bool,
    verbose: bool = False,
) -> None:
    """Data to stdout: the JSON if asked for, else the table."""
    import msgspec

    from harness.report import run_report, terminal

    if as_json:
        print_json(json.dumps(msgspec.to_builtins(summary), ensure_ascii=False))
        if quiet:
            return
    if not quiet:
        talk = console(stderr=as_json)
        terminal.show(run_report.screen(summary, msgspec.to_builtins(manifest), verbose=verbose), talk)
        terminal.show_paths(paths, talk)


@contextlib.contextmanager
def to_whoever_listens() -> Iterator[None]:
    """Print, and let it be where nobody reads on."""
    try:
        yield
        sys.stdout.flush()
    except OSError:
        to_nobody(sys.stdout)
