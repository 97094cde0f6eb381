"""`knee report`, `fit`, `export` and `list`: results are read from disk."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.base import ExitStatus
from harness.base.errors import HarnessError
from harness.base.terminal import console
from harness.cli import output
from harness.cli.grouped import Choice
from harness.results import exporters

if TYPE_CHECKING:
    from harness.data.record import Level
    from harness.data.summary import Summary
    from harness.library.answers import Measured

_EVERY_S = 0.5


@click.command()
@click.argument("folder", nargs=-1, required=True, metavar="DIR…", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print summary.json on stdout.")
@click.option("--out", metavar="DIR", help="Merge the shards of one run (knee run --shard) into this new folder.")
@click.option("--figures", metavar="DIR", help="Write every chart there as PNG and SVG.")
@click.option("--no-plots", is_flag=True, help="No curve.png and no report.html.")
@click.option("--quiet", is_flag=True, help="No table.")
@click.option(
    "--verbose", "-v", is_flag=True, help="Every remark with its advice, the details of the answer, and every table."
)
@click.option("--follow", is_flag=True, help="Print the table of a run that goes on whenever a level ends.")
@click.option("--rules", multiple=True, metavar="NAME", help="Apply the rules of an installed package, too.")
def report(
    folder: tuple[str, ...],
    out: str | None,
    figures: str | None,
    no_plots: bool,
    follow: bool,
    rules: tuple[str, ...],
    **shown: bool,
) -> None:
    """Make summary and report again from a result folder.

    Several folders are the shards of one run, which are merged into --out. A run that died is read as far as it got. Of
    a folder without its requests the stored summary is shown.
    """
    from harness.analysis import rules as registry
    from harness.analysis.summarise import summarise
    from harness.results import levelmap
    from harness.results.result import Result, read_summary, without_requests

    if follow:
        written = {"--out": out, "--figures": figures}
        rest = {"--json": shown["as_json"], **written, "--quiet": shown["quiet"]}
        must_be_alone(folder, rest)
        print_levels(Path(folder[0]), verbose=shown["verbose"])
        return
    if figures is not None and no_plots:
        raise HarnessError("--figures with --no-plots", way_out="leave one of them out")
    if figures is not None and len(folder) > 1 and out is None:
        raise HarnessError("--figures with several folders", way_out="name one folder at a time")

    for name in rules:
        registry.load(name)

    for each in folder:
        if Path(each).is_file():
            way_out = "give the folder of a run; `knee fit` and `knee compare` read files of other tools"
            raise HarnessError("it is a file", place=each, way_out=way_out)

    def opened(place: str) -> tuple[Result, Callable[[], Summary]]:
        stored = without_requests(place)
        if stored is not None:
            return stored, partial(read_summary, place)
        measured = Result.open(place)
        return measured, partial(summarise, measured)

    if out is not None:
        folder = (str(_merged(folder, out)),)
    for each in folder:
        if levelmap.is_map(each):
            found = levelmap.read(each)
            silent = {"as_json": shown["as_json"], "quiet": shown["quiet"]}
            output.publish_map(Path(each), found, plots=not no_plots, **silent)
            continue
        measured, summarised = opened(each)
        output.must_be_files(measured.path, plots=not no_plots)  # before the work that takes time
        more = output.More(measured, Path(figures) if figures is not None else None)
        output.publish(measured.path, summarised(), measured.manifest, plots=not no_plots, more=more, **shown)


def _merged(shards: tuple[str, ...], out: str) -> Path:
    """Merge the shards of a run into a new result folder `out` and return it; nothing is written if they do not fit."""
    from harness.results import folder as folders
    from harness.results import shards as merging

    run = merging.merge(shards)
    folder = folders.create(out)
    with folders.claimed(folder):
        merging.write(run, folder)
    return folder


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="FILE|DIR|-…")
@click.option("--json", "as_json", is_flag=True, help="Print the `curve` object of summary.json on stdout.")
@click.option("--seed", default=0, show_default=True, type=int, help="Seed of the drawn curves.")
@click.option("--format", "named", metavar="NAME", default="", help=output.FORMAT_HELP)
def fit(sources: tuple[str, ...], as_json: bool, seed: int, named: str) -> None:
    """Fit the curve to measured points.

    They are those of a result folder, of another tool's file (vllm bench serve and sweep, SGLang, GuideLLM, AIPerf,
    genai-perf, inference-perf, llm-d, InferenceX), or of a CSV of concurrency and output tokens per second. Several
    files, or a folder of them, are the levels of one curve. The CSV begins with
    `concurrency,output_tokens_per_s[,error]`, the error being one standard error; - reads stdin.
    """

    from harness.library import answers as fitting
    from harness.report import facts, terminal

    measured = _of_stdin(named) if sources == ("-",) else fitting.read(*sources, format=named)
    fitted = fitting.fitted(measured, seed)
    if as_json:
        output.print_json(fitted.curve)
    else:
        loads = [point.concurrency for point in measured.points]
        document = facts.fit(fitted.curve, fitted.knees, loads, measured.unit, measured.about)
        terminal.show(document, console(stderr=False))


def _of_stdin(named: str) -> Measured:
    """Return the levels of a file on stdin, in the named tool's format or in one that is recognised."""
    from harness.base import decoding
    from harness.library import answers as fitting
    from harness.results import readers

    with decoding.reading("stdin", "text", "give a result folder or a file"):
        data = decoding.bounded(sys.stdin.buffer)
    return fitting.of_foreign(readers.of_bytes(data, "stdin", named), "stdin")


def print_levels(folder: Path, *, verbose: bool = False) -> None:
    """Print a run's table after each level, and its answer with all details if `verbose` when the run has ended.

    Only the frames that are new are read while nothing ends; a level that has ended is summarised from the whole spool,
    as any other reading of the folder does. The run's lock on its folder says whether it goes on.
    """
    from harness.analysis.summarise import summarise
    from harness.report import document, level_table, run_report, terminal
    from harness.results.result import Result, run_manifest

    run_manifest(folder)  # an error if it is no run's folder
    talk = console(stderr=False)
    for summary in summaries(folder, lambda: time.sleep(_EVERY_S)):
        terminal.show(document.Document(sections=[level_table.by_load(summary)]), talk)
        talk.print()
    run = Result.open(folder)
    terminal.show(run_report.screen(summarise(run), run.manifest, verbose=verbose), talk)


def summaries(folder: Path, wait: Callable[[], object]) -> Iterator[Summary]:
    """Yield a running run's summary each time that another of its levels has ended, until the run has ended."""
    from harness.analysis.summarise import summarise
    from harness.results import folder as folders
    from harness.results import frames
    from harness.results.result import Result

    at, spool = frames.START, folder / folders.SPOOL
    levels: dict[int, Level] = {}
    ended: set[int] = set()  # a segment repeats the levels before it
    while folders.is_claimed(folder):
        summary: Summary | None = None
        with contextlib.suppress(FileNotFoundError, HarnessError):  # there is none yet, or it is being packed
            at = frames.read_since(spool, at, levels)
            new = {index for index, level in levels.items() if level.finished} - ended
            ended |= new
            if new:
                summary = summarise(Result.open(folder))
        if summary is not None:
            yield summary
        wait()


def must_be_alone(folders: tuple[str, ...], others: Mapping[str, object]) -> None:
    """Raise HarnessError if --follow is given with several folders or with options that write files."""
    if len(folders) > 1:
        raise HarnessError("--follow with several folders", way_out="name one folder at a time")
    for name, value in others.items():
        if value:
            raise HarnessError(f"--follow with {name}", way_out=f"leave {name} out: nothing is written")


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False))
@click.option("--to", type=Choice(exporters.names(), "knee.exporters"), required=True, help="Format of the files.")
@click.option("--out", metavar="DIR|URL", help="Write files there, or send to a URL; default: stdout.")
def export(folder: str, to: str, out: str | None) -> None:
    """Write a result in another tool's format.

    csv: the levels and the requests as tables. vllm: what `vllm bench serve --save-result` writes, a file a level.
    On stdout each JSON is a line. An exporter of another package may also send to a URL.
    """
    from harness.library import measurement as exporting
    from harness.library.measurement import load

    measured = load(folder)
    with output.closed_stdout_ignored():
        if out is None:
            # A pipe takes line feeds; a carriage return would be shown as an escape (`terminal.guard`).
            sys.stdout.write(exporting.text(measured, to).replace("\r\n", "\n"))
        elif exporting.is_sent(to, out):
            print(exporting.send(measured, to, out), file=sys.stderr)
        else:
            for path in exporting.export(measured, to, out):
                print(path, file=sys.stderr)


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
    listed = listing.listing(folder or ("results",), wanted if figure or html else None)
    if html is not None:
        from harness.report import page

        files.write(files.named(Path(html)), page.render(report.index(listed, name, unit)))
    with output.closed_stdout_ignored():
        if as_json:
            output.print_json(listed)
        else:
            talk = console(stderr=False)
            terminal.show(report.table(listed, name if figure else "", unit, whole=not talk.is_terminal), talk)
    for each in listed.broken:
        print(f"error: {' '.join(each.error.split())}", file=sys.stderr)
    sys.exit(ExitStatus.MISTAKE if listed.broken else ExitStatus.DONE)
