"""`knee compare`: stacks against each other, from result folders and other tools' files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli import output

if TYPE_CHECKING:
    from harness.decide.compare.comparison import Comparison

REFUSED = 3  # exit status


@click.command()
@click.argument("stacks", nargs=-1, required=True, metavar="[NAME=]DIR|FILE…")
@click.option(
    "--vary",
    metavar="NAME,…",
    help="All that may differ, of engine, precision, kv-dtype, tp, max-num-seqs and start; without it each may.",
)
@click.option("--force", is_flag=True, help="Rank although what must be alike is not; the report says so.")
@click.option("--format", metavar="NAME", default="", help=output.FORMAT_HELP)
@click.option("--out", metavar="DIR", help="Write comparison.json, .md, .html and .png and pareto.png there.")
@click.option("--json", "as_json", is_flag=True, help="Print comparison.json on stdout.")
@click.option("--no-plots", is_flag=True, help="No comparison.png and no comparison.html.")
@click.option("--quiet", is_flag=True, help="No table.")
def compare(
    stacks: tuple[str, ...],
    vary: str | None,
    force: bool,
    format: str,
    **shown: Any,
) -> None:
    """Compare stacks, and rank them where the data show a difference.

    Each is a result folder, or another tool's file. Several of one stack are its repeats: vllm=A vllm=B llama=C.
    Without names, folders are told apart by the stacks that `knee stacks run` started, else by their engines, else by
    their own names.

    Exit status 3: what must be alike is not, so nothing is ranked.
    """
    from harness.library import answers as library

    found = library.compare(*stacks, vary=vary or "", force=force, format=format)
    publish(found, **shown)
    if found.refused:
        sys.exit(REFUSED)


def publish(found: Comparison, out: str | None, *, as_json: bool, no_plots: bool, quiet: bool) -> None:
    """Write the files where a place for them is named, and print the answer."""
    from harness.base import files
    from harness.report import comparison, markdown, page, png

    document = comparison.report(found)
    made: list[tuple[str, str | Path]] = []
    if out is not None:
        folder = Path(out)
        files.make_folder(folder, way_out="choose another --out")
        files.write_json(folder / "comparison.json", found)
        files.write(folder / "comparison.md", markdown.render(document))
        made = [("comparison", folder / "comparison.md")]
        if not no_plots:
            files.write(folder / "comparison.html", page.render(document))
            made.append(("report", folder / "comparison.html"))
        for section in document.sections:
            if not no_plots and section.picture and section.charts:
                names = [section.picture, comparison.PARETO]
                for name, chart in zip(names, section.charts, strict=False):
                    files.write(folder / name, png.draw(chart))
                made.append(("curves", folder / section.picture))
    output.show(comparison.report(found, brief=True), made, found, as_json=as_json, quiet=quiet)
