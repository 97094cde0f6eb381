"""`knee check`: thresholds against result folders, for a CI job to pass or fail by."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.base.errors import HarnessError
from harness.base.terminal import console
from harness.cli import output

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.decide.check.decision import Report
    from harness.decide.check.expression import Threshold

FORMATS = ("text", "markdown", "json", "junit", "github")
_EXAMPLES = """\b
Examples:
  knee check results/new -t 'plateau >= 1500' -t 'ttft_p99@32 < 2s' -t 'error_rate < 1%'
  knee check results/new --baseline results/old -t 'plateau >= 0.98*baseline'
  knee check results/new --thresholds thresholds.txt --format github --junit check.xml"""


@click.command(epilog=_EXAMPLES)
@click.argument("folder", nargs=-1, required=True, metavar="DIR…")
@click.option("--baseline", multiple=True, metavar="DIR", help="What to compare with; several are repeats.")
@click.option("-t", "--threshold", multiple=True, metavar="EXPR", help="A figure and its bound: docs/check.md.")
@click.option("--thresholds", metavar="FILE", help="A file of thresholds, one a line.")
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True, help="On stdout.")
@click.option("--json", "as_json", is_flag=True, help="As --format json.")
@click.option("--junit", "--junit-xml", metavar="FILE", help="Write JUnit XML there.")
@click.option("--markdown", metavar="FILE", help="Write the table as Markdown there.")
@click.option("--quiet", is_flag=True, help="No table beside other formats.")
def check(
    folder: tuple[str, ...],
    baseline: tuple[str, ...],
    threshold: tuple[str, ...],
    thresholds: str | None,
    **shown: Any,
) -> None:
    """Hold results against thresholds: met, missed or unresolved.

    An interval decides. Several folders are repeats of one run, and so are the repeats in a folder.

    Exit status 0: all are met; 99: one is missed; 3: none is missed, and one is unresolved.
    """
    from harness.data.judgement import Outcome
    from harness.decide.check import decision, sides
    from harness.decide.compare.runs import each_once

    wanted = _wanted(threshold, thresholds, baseline=bool(baseline))
    read = [[run for place in each_once(places) for run in sides.read(place)] for places in (folder, baseline)]
    found = decision.decide(wanted, *read)
    _publish(found, **shown)
    sys.exit({Outcome.MET: 0, Outcome.MISSED: 99, Outcome.UNRESOLVED: 3}[Outcome(found.outcome)])


def _wanted(texts: Sequence[str], file: str | None, *, baseline: bool) -> list[Threshold]:
    """Return all thresholds; each must be of a figure that there is."""
    from harness.base import decoding
    from harness.decide.check import expression, figures

    wanted = [(expression.parse(text), "--threshold") for text in texts]
    if file is not None:
        with decoding.reading(file, "a file of thresholds", "write one a line, like plateau >= 1500"):
            text = decoding.content(Path(file)).decode("utf-8-sig")
        wanted += expression.lines(text, file)
    if not wanted:
        way_out = "give -t 'plateau >= 1500' or --thresholds FILE"
        raise HarnessError("no threshold is given", place=file or "knee check", way_out=way_out)
    figures.must_be_decidable(wanted, baseline=baseline)
    return [each for each, _ in wanted]


def _publish(found: Report, *, form: str, as_json: bool, junit: str | None, markdown: str | None, quiet: bool) -> None:
    """Write the files that the options name, and print the answer: on stderr where stdout has another form of it."""

    from harness.base import files
    from harness.report import check, terminal
    from harness.report import markdown as rendering

    form = "json" if as_json else form
    document = check.report(found)
    forms: dict[str, Callable[[], str]] = {
        "markdown": lambda: rendering.render(document),
        "junit": lambda: check.junit(found),
        "github": lambda: check.github(found),
    }
    for name, file in (("junit", junit), ("markdown", markdown)):
        if file is not None:
            files.write(files.named(Path(file)), forms[name]())
    with output.closed_stdout_ignored():
        if form == "json":
            output.print_json(found)
        elif form != "text":
            print(forms[form](), end="")
        if form == "text" or not quiet:
            terminal.show(document, console(stderr=form != "text"))
