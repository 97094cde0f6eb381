"""`knee compare`: stacks against each other, from result folders and other tools' files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli import output
from harness.terminal import console

if TYPE_CHECKING:
    from harness.decide.compare.comparison import Report

REFUSED = 3  # exit status


@click.command()
@click.argument("stacks", nargs=-1, required=True, metavar="[NAME=]DIR|FILE…")
@click.option("--vary", metavar="NAME,…", help="What may differ: engine, precision, kv-dtype, tp, max-num-seqs, start.")
@click.option("--force", is_flag=True, help="Rank although what must be alike is not; the report says so.")
@click.option("--scenarios", metavar="NAME,…", help="Compare under each of these scenarios: who wins where.")
@click.option("--out", metavar="DIR", help="Write comparison.json, .md, .html and .png there.")
@click.option("--json", "as_json", is_flag=True, help="Print comparison.json on stdout.")
@click.option("--no-plots", is_flag=True, help="No comparison.png and no comparison.html.")
@click.option("--quiet", is_flag=True, help="No table.")
def compare(
    stacks: tuple[str, ...],
    vary: str | None,
    force: bool,
    scenarios: str | None,
    out: str | None,
    as_json: bool,
    no_plots: bool,
    quiet: bool,
) -> None:
    """Compare stacks, and rank them where the data show a difference.

    Each is a result folder, or another tool's file. Several of one stack are its repeats: vllm=A vllm=B llama=C.
    Without names, folders are told apart by the stacks that `knee stacks run` started, else by their engines, else by
    their own names.

    Exit status 3: what must be alike is not, so nothing is ranked.
    """
    from harness.library import comparison

    names = [name.strip() for name in (scenarios or "").split(",") if name.strip()]
    found = comparison.compare(*stacks, vary=vary or "", force=force, scenarios=names)
    _publish(found, out, plots=not no_plots, as_json=as_json, quiet=quiet)
    if any(each.refused for each in found.workloads):
        sys.exit(REFUSED)


def _publish(found: Report, out: str | None, *, plots: bool, as_json: bool, quiet: bool) -> None:
    """Write the files where a place for them is given, and print the answer."""
    import msgspec

    from harness import files
    from harness.report import comparison, markdown, page, png, terminal

    document = comparison.report(found)
    made: list[tuple[str, str | Path]] = []
    if out is not None:
        folder = Path(out)
        files.make_folder(folder, way_out="choose another --out")
        files.write_json(folder / "comparison.json", found)
        files.write(folder / "comparison.md", markdown.render(document))
        made = [("comparison", folder / "comparison.md")]
        if plots:
            files.write(folder / "comparison.html", page.render(document))
            made.append(("report", folder / "comparison.html"))
        for section in document.sections:
            if plots and section.picture and section.charts:
                files.write(folder / section.picture, png.draw(section.charts[0]))
                made.append(("curves", folder / section.picture))
    with output.closed_stdout_ignored():
        if as_json:
            output.print_json(msgspec.json.encode(found).decode())
        if not quiet:
            talk = console(stderr=as_json)
            terminal.show(document, talk)
            terminal.show_paths(made, talk)
