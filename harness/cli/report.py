"""`knee report` and `knee fit`: results are read from disk."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.base.terminal import console
from harness.cli import output

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.data.summary import Summary
    from harness.library.fit import Measured


@click.command()
@click.argument("folder", nargs=-1, required=True, metavar="DIR…", type=click.Path(file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print summary.json on stdout.")
@click.option("--out", metavar="DIR", help="Merge the shards of one run (knee run --shard) into this new folder.")
@click.option("--baseline", metavar="DIR", help="Lay the levels of another run over the curve.")
@click.option("--figures", metavar="DIR", help="Write every chart there as PNG and SVG.")
@click.option("--no-plots", is_flag=True, help="No curve.png and no report.html.")
@click.option("--quiet", is_flag=True, help="No table.")
@click.option(
    "--verbose", is_flag=True, help="Every remark with its advice, the details of the answer, and every table."
)
@click.option("--follow", is_flag=True, help="Print the table of a run that goes on whenever a level ends.")
@click.option("--claims", is_flag=True, help="Write unsourced claims about such a setup into the report, too.")
def report(
    folder: tuple[str, ...],
    out: str | None,
    baseline: str | None,
    figures: str | None,
    no_plots: bool,
    follow: bool,
    claims: bool,
    **shown: bool,
) -> None:
    """Make summary and report again from a result folder.

    Several folders are the shards of one run, which are merged into --out. A run that died is read as far as it got. Of
    a folder without its requests the stored summary is shown.
    """
    from harness.analysis.summarise import summarise
    from harness.base.errors import HarnessError
    from harness.results import levelmap
    from harness.results.result import Result, read_summary, without_requests

    if follow:
        from harness.cli import follow as following

        written = {"--out": out, "--baseline": baseline, "--figures": figures}
        rest = {"--json": shown["as_json"], **written, "--quiet": shown["quiet"], "--claims": claims}
        following.must_be_alone(folder, rest)
        following.follow(Path(folder[0]), verbose=shown["verbose"])
        return
    if figures is not None and no_plots:
        raise HarnessError("--figures with --no-plots", way_out="leave one of them out")
    if figures is not None and len(folder) > 1 and out is None:
        raise HarnessError("--figures with several folders", way_out="name one folder at a time")

    def opened(place: str) -> tuple[Result, Callable[[], Summary]]:
        stored = without_requests(place)
        if stored is not None:
            return stored, partial(read_summary, place)
        measured = Result.open(place)
        return measured, partial(summarise, measured)

    if out is not None:
        folder = (str(_merged(folder, out)),)
    other = opened(baseline)[1]() if baseline is not None else None
    for each in folder:
        if levelmap.is_map(each):
            found = levelmap.read(each)
            silent = {"as_json": shown["as_json"], "quiet": shown["quiet"]}
            output.publish_map(Path(each), found, plots=not no_plots, **silent)
            continue
        measured, summarised = opened(each)
        output.must_be_files(measured.path, plots=not no_plots)  # before the work that takes time
        more = output.More(measured, other, Path(figures) if figures is not None else None, claims)
        output.publish(measured.path, summarised(), measured.manifest, plots=not no_plots, more=more, **shown)


def _merged(shards: tuple[str, ...], out: str) -> Path:
    """The folder of a run whose shards are merged; none is left where they cannot be."""
    from harness.results import folder as folders
    from harness.results import shards as merging

    run = merging.merge(shards)
    folder = folders.create(out)
    with folders.claimed(folder):
        merging.write(run, folder)
    return folder


@click.command()
@click.argument("source", metavar="FILE|DIR|-")
@click.option("--json", "as_json", is_flag=True, help="Print the `curve` object of summary.json on stdout.")
@click.option("--seed", default=0, show_default=True, type=int, help="Seed of the drawn curves.")
@click.option("--format", "named", metavar="NAME", default="", help=output.FORMAT_HELP)
def fit(source: str, as_json: bool, seed: int, named: str) -> None:
    """Fit the curve to measured points.

    They are those of a result folder, of another tool's file (vllm bench serve, SGLang, GuideLLM, AIPerf,
    inference-perf, llm-d), or of a CSV of concurrency and output tokens per second. The CSV begins with
    `concurrency,output_tokens_per_s[,error]`, the error being one standard error; - reads stdin.
    """
    import msgspec

    from harness.library import fit as fitting
    from harness.report import fitted, terminal

    measured = _of_stdin(named) if source == "-" else fitting.read(source, named)
    found = fitting.fitted(measured, seed)
    if as_json:
        output.print_json(msgspec.json.encode(found.curve).decode())
    else:
        loads = [point.concurrency for point in measured.points]
        document = fitted.fit(found.curve, found.knees, loads, measured.unit, measured.about)
        terminal.show(document, console(stderr=False))


def _of_stdin(named: str) -> Measured:
    from harness.base import decoding
    from harness.library import fit as fitting
    from harness.results import readers

    with decoding.reading("stdin", "text", "give a result folder or a file"):
        data = decoding.bounded(sys.stdin.buffer)
    return fitting.of_foreign(readers.of_bytes(data, "stdin", named), "stdin")
