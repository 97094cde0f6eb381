"""`knee report` and `knee fit`: results are read from disk."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli import output
from harness.terminal import console

if TYPE_CHECKING:
    from harness.library.fit import Measured


@click.command()
@click.argument("folder", nargs=-1, required=True, type=click.Path(file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print summary.json on stdout.")
@click.option("--no-plots", is_flag=True, help="No curve.png and no report.html.")
@click.option("--quiet", is_flag=True, help="No table.")
@click.option(
    "--verbose", is_flag=True, help="Every remark with its advice, the details of the answer, and every table."
)
@click.option("--claims", is_flag=True, help="Write unsourced claims about such a setup into the report, too.")
def report(folder: tuple[str, ...], as_json: bool, no_plots: bool, quiet: bool, verbose: bool, claims: bool) -> None:
    """Make summary and report again from a result folder.

    A run that died is read as far as it got.
    """
    from harness.analysis.summarise import summarise
    from harness.results import levelmap
    from harness.results.result import Result

    for each in folder:
        if levelmap.is_map(each):
            found = levelmap.read(each)
            output.publish_map(Path(each), found, plots=not no_plots, as_json=as_json, quiet=quiet)
            continue
        measured = Result.open(each)
        output.must_be_files(measured.path, plots=not no_plots)  # before the work that takes time
        summary = summarise(measured)
        output.publish(
            measured.path, summary, measured.manifest, plots=not no_plots, as_json=as_json, quiet=quiet,
            verbose=verbose, with_claims=claims,
        )  # fmt: skip


@click.command()
@click.argument("source", metavar="FILE|DIR|-")
@click.option("--json", "as_json", is_flag=True, help="Print the `curve` object of summary.json on stdout.")
@click.option("--seed", default=0, show_default=True, type=int, help="Seed of the bootstrap.")
def fit(source: str, as_json: bool, seed: int) -> None:
    """Fit the curve to measured points.

    They are those of a result folder, of another tool's file (vllm bench serve, SGLang, GuideLLM, AIPerf,
    inference-perf, llm-d), or of a CSV of concurrency and output tokens per second. The CSV begins with
    `concurrency,output_tokens_per_s[,error]`, the error being one standard error; - reads stdin.
    """
    import msgspec

    from harness.analysis import curve
    from harness.library import fit as fitting
    from harness.report import run_report, terminal

    measured = _of_stdin() if source == "-" else fitting.read(source)
    found = curve.fit(measured.points, seed=seed)
    if as_json:
        output.print_json(msgspec.json.encode(found.curve).decode())
    else:
        loads = [point.concurrency for point in measured.points]
        document = run_report.fit(found.curve, found.knees, loads, measured.unit, measured.about)
        terminal.show(document, console(stderr=False))


def _of_stdin() -> Measured:
    from harness import decoding
    from harness.library import fit as fitting
    from harness.results.foreign import formats

    with decoding.reading("stdin", "text", "give a result folder or a file"):
        data = decoding.bounded(sys.stdin.buffer)
    return fitting.of_foreign(formats.of_bytes(data, "stdin"), "stdin")
