"""`knee list`: what lies in result folders, a line each, and a page that plots a figure of them over time."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from harness.base.errors import HarnessError
from harness.base.terminal import console
from harness.cli import output


@click.command("list")
@click.argument("folder", nargs=-1, metavar="[DIR…]")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON on stdout.")
@click.option("--html", metavar="FILE", help="Write a page there that plots a figure over time.")
@click.option("--figure", metavar="NAME", help="The figure, as knee check names it: plateau, ttft_p99@32. [plateau]")
def list_(folder: tuple[str, ...], as_json: bool, html: str | None, figure: str | None) -> None:
    """List result folders, a line each.

    A folder may hold results anywhere below; without one it is results. The oldest come first.

    Exit status 1: a folder cannot be read. It is named, and the others are listed.
    """
    import msgspec

    from harness.base import files
    from harness.decide import listing
    from harness.decide.check import expression, figures
    from harness.report import listing as report
    from harness.report import terminal

    name = figure or "plateau"
    wanted = expression.subject(name, "--figure")
    unit = figures.unit(wanted, "--figure")
    if wanted.at == expression.ALL:
        way_out = "name a level: @knee or @32"
        raise HarnessError("all levels make no figure of one run", place="--figure", way_out=way_out)
    found = listing.listing(folder or ("results",), wanted if figure or html else None)
    if html is not None:
        from harness.report import page

        files.write(files.named(Path(html)), page.render(report.index(found, name, unit)))
    with output.closed_stdout_ignored():
        if as_json:
            output.print_json(msgspec.json.encode(found).decode())
        else:
            talk = console(stderr=False)
            terminal.show(report.table(found, name if figure else "", unit, whole=not talk.is_terminal), talk)
    for each in found.broken:
        print(f"error: {' '.join(each.error.split())}", file=sys.stderr)
    sys.exit(1 if found.broken else 0)
