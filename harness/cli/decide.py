"""`knee check`, `compare` and `plan`: what results decide, for a CI job, between stacks, and for a demand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.base import ExitStatus, units
from harness.base.errors import HarnessError
from harness.base.terminal import console
from harness.cli import output
from harness.cli.grouped import Grouped, flag_of, option, under

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.decide.check.decision import Report
    from harness.decide.check.expression import Threshold
    from harness.decide.compare.comparison import Comparison
    from harness.decide.plan.plan import Plan

_FORMATS = ("text", "markdown", "json", "junit", "github")
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
@click.option("--format", "form", type=click.Choice(_FORMATS), default="text", show_default=True, help="On stdout.")
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
    """Check results against thresholds: met, missed or unresolved.

    An interval decides. Several folders are repeats of one run, and so are the repeats in a folder.

    Exit status 0: all are met; 99: one is missed; 3: none is missed, and one is unresolved.
    """
    from harness.data.judgement import Outcome
    from harness.library.answers import decided

    example = "plateau >= 0.98*baseline" if baseline else "plateau >= 1500"
    checked = decided(_wanted(threshold, thresholds, example), folder, baseline)
    _publish_check(checked, **shown)
    statuses = {
        Outcome.MET: ExitStatus.DONE,
        Outcome.MISSED: ExitStatus.MISSED,
        Outcome.UNRESOLVED: ExitStatus.UNSETTLED,
    }
    sys.exit(statuses[Outcome(checked.outcome)])


def _wanted(texts: Sequence[str], file: str | None, example: str = "plateau >= 1500") -> list[tuple[Threshold, str]]:
    """Return all thresholds of the options and the file, each with the place where it is given; refuse none at all."""
    from harness.base import decoding
    from harness.decide.check import expression

    wanted = [(expression.parse(text), "--threshold") for text in texts]
    if file is not None:
        with decoding.reading(file, "a file of thresholds", "write one a line, like plateau >= 1500"):
            text = decoding.content(Path(file)).decode("utf-8-sig")
        wanted += expression.lines(text, file)
    if not wanted:
        way_out = f"give -t '{example}' or --thresholds FILE"
        raise HarnessError("no threshold is given", place=file or "knee check", way_out=way_out)
    return wanted


def _publish_check(
    checked: Report, *, form: str, as_json: bool, junit: str | None, markdown: str | None, quiet: bool
) -> None:
    """Write the files that the options name, and print the answer: on stderr where stdout has another form of it."""
    from harness.base import files
    from harness.report import check, terminal
    from harness.report import markdown as rendering

    form = "json" if as_json else form
    document = check.report(checked)
    forms: dict[str, Callable[[], str]] = {
        "markdown": lambda: rendering.render(document),
        "junit": lambda: check.junit(checked),
        "github": lambda: check.github(checked),
    }
    for name, file in (("junit", junit), ("markdown", markdown)):
        if file is not None:
            files.write(files.named(Path(file)), forms[name]())
    with output.closed_stdout_ignored():
        if form == "json":
            output.print_json(checked)
        elif form != "text":
            print(forms[form](), end="")
        if form == "text" or not quiet:
            terminal.show(document, console(stderr=form != "text"))


# ---- compare --------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("stacks", nargs=-1, required=True, metavar="[NAME=]DIR|FILE…")
@click.option(
    "--vary",
    metavar="NAME,…",
    help="All that may differ, of engine, precision, kv-dtype, tp, pools, balance, max-num-seqs and start; without it"
    " each may.",
)
@click.option("--force", is_flag=True, help="Rank although what must be alike is not; the report says so.")
@click.option("--format", metavar="NAME", default="", help=output.FORMAT_HELP)
@click.option("--out", metavar="DIR", help="Write comparison.json, .md, .html and .png and pareto.png there.")
@click.option("--json", "as_json", is_flag=True, help="Print comparison.json on stdout.")
@click.option("--no-plots", is_flag=True, help="No comparison.png and no comparison.html.")
@click.option("--quiet", is_flag=True, help="No table.")
def compare(stacks: tuple[str, ...], vary: str | None, force: bool, format: str, **shown: Any) -> None:
    """Compare stacks, and rank them where the data show a difference.

    Each is a result folder, or another tool's file. Several of one stack are its repeats: vllm=A vllm=B llama=C.
    Without names, folders are told apart by the stacks that `knee stacks run` started, else by their engines, else by
    their own names.

    Exit status 3: what must be alike is not, so nothing is ranked.
    """
    from harness.library import answers as library

    comparison = library.compare(*stacks, vary=vary or "", force=force, format=format)
    publish_comparison(comparison, **shown)
    if comparison.refused:
        sys.exit(ExitStatus.UNSETTLED)


def publish_comparison(found: Comparison, out: str | None, *, as_json: bool, no_plots: bool, quiet: bool) -> None:
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


# ---- plan -----------------------------------------------------------------------------------------------------------

_FILES = ("plan.json", "plan.md", "alerts.yml")

_MOST_HEADROOM = 10.0  # above the peak: more is a percentage that lacks its sign


@click.command(cls=Grouped)
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False))
@under(
    "Demand",
    option("--rps", metavar="R", help="Requests per second at the peak."),
    option("--users", metavar="N", help="Users at the peak, in place of --rps; with --think-time."),
    option("--think-time", metavar="TIME", help="Pause of a user between an answer and the next question."),
    option(
        "--documents-per-s", "--judgments-per-s", metavar="R", help="Documents per second, where nothing is decoded."
    ),
    option("--traffic", metavar="SHAPE|FILE", help="A day: wave(period=24h,low=5,high=50), series(…), or a CSV file."),
    option(
        "--offline-tokens", metavar="N", help="A batch of so many output tokens, like 10e9 or 10B; with --deadline."
    ),
    option("--offline-documents", metavar="N", help="A batch of so many documents; with --deadline."),
    option("--deadline", metavar="TIME", help="Time for the batch, like 8h."),
    option("--input-tokens", metavar="N", help="Mean prompt length where it is not the measured one."),
    option("--output-tokens", metavar="N", help="Mean answer length where it is not the measured one."),
)
@under(
    "Operating point",
    option("--by", type=click.Choice(["slo", "cost", "knee"]), help="Default slo if there is one, else knee."),
    option("--slo", metavar="NAME=TIME,…", help="Limits, like ttft_p99=2s, in place of the run's and its classes'."),
)
@under(
    "Reserve",
    option("--utilization", metavar="SHARE", help="Share of the operating point used at the peak; default 70%."),
    option("--headroom", metavar="SHARE", help="Reserve above the peak, in place of --utilization: 43% is 1/0.7 - 1."),
    option("--spare", type=click.IntRange(0, 10_000), metavar="K", help="Replicas that may be down at the peak (N+K)."),
)
@under(
    "Money",
    option("--price", metavar="USD", help="Dollars per GPU and hour; default as recorded."),
    option("--gpus", metavar="N", help="GPUs of one replica; default as recorded."),
    option("--cold-start", metavar="TIME", help="Time a replica takes to start; default as `knee stacks` measured it."),
)
@under(
    "Output",
    option("--out", metavar="DIR", help="Write plan.json, plan.md and the Prometheus rules alerts.yml there."),
    option("--json", "as_json", is_flag=True, help="Print plan.json on stdout."),
    option("--quiet", is_flag=True, help="No table."),
)
def plan(folder: str, out: str | None, as_json: bool, quiet: bool, **flags: Any) -> None:
    """Plan how many replicas a demand needs, and what they cost.

    DIR is the result folder of a run on one replica, or on several that are alike. Each replica is planned at a load
    that was measured: never beyond the curve.

    Exit status 99: no measured load meets the SLO. 3: too few requests to decide it.
    """
    from harness.library import answers

    if flags["utilization"] is not None and flags["headroom"] is not None:
        raise HarnessError("--utilization says the same", place="--headroom", way_out="give one of them")
    demand = {
        field: read(flags[name], flag_of(name)) for name, (field, read) in _ASKED.items() if flags[name] is not None
    }
    limits = units.slo(flags["slo"]) if flags["slo"] is not None else None
    made = answers.plan(folder, slo=limits, by=flags["by"], spare=flags["spare"], **demand)
    _publish_plan(made, out, as_json=as_json, quiet=quiet)
    sys.exit(made.exit_status)


def _amount(text: str, place: str) -> float:
    """Return a number from 0 on, also like 10e9 or 10B.

    >>> _amount("10e9", ""), _amount("2.5k", "")
    (10000000000.0, 2500.0)
    """
    try:
        value = float(text)
    except ValueError:
        return units.number(text, place)
    if not 0 <= value < units.BEYOND:
        raise HarnessError(
            f"{text[:40]!r} is not a number from 0 on", place=place, way_out="write it like '50' or '1.5k'"
        )
    return value


def _above_0(text: str, place: str) -> float:
    """Return a number above 0, and above what no server has."""
    return _positive(_amount(text, place), text, place)


def _lasting(text: str, place: str) -> float:
    """Return seconds, above 0."""
    return _positive(units.seconds(text, place), text, place)


def _positive(value: float, text: str, place: str) -> float:
    if not value > units.BEYOND**-1:
        raise HarnessError(f"{text[:40]!r} is not above 0", place=place, way_out="give more")
    return value


def _utilization(headroom: str, place: str) -> float:
    """Return the utilisation that leaves a headroom above the peak, 1 / (1 + headroom); "50%" gives 0.67."""
    share = units.share(headroom, place)
    if share > _MOST_HEADROOM:
        raise HarnessError(f"a headroom of {share:,.0%}", place=place, way_out=f"a share of the peak: write {share:g}%")
    return 1 / (1 + share)


# What each option asks, by its field of a plan's question, and how its text is read.
_ASKED: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "rps": ("requests_per_s", _above_0),
    "users": ("users", _above_0),
    "documents_per_s": ("documents_per_s", _above_0),
    "think_time": ("think_s", units.seconds),
    "traffic": ("traffic", lambda text, _: text),
    "offline_tokens": ("offline_tokens", _above_0),
    "offline_documents": ("offline_documents", _above_0),
    "deadline": ("deadline_s", _lasting),
    "input_tokens": ("input_tokens", _above_0),
    "output_tokens": ("output_tokens", _above_0),
    "utilization": ("utilization", units.portion),
    "headroom": ("utilization", _utilization),
    "price": ("gpu_hour", _amount),
    "gpus": ("gpus", _above_0),
    "cold_start": ("cold_start_s", units.seconds),
}


def _publish_plan(made: Plan, out: str | None, *, as_json: bool, quiet: bool) -> None:
    """Write the files where a place for them is given, and print the answer."""
    from harness.base import files
    from harness.report import markdown
    from harness.report import plan as planning

    document = planning.report(made)
    paths: list[tuple[str, str | Path]] = []
    if out is not None:
        folder = Path(out)
        files.make_folder(folder, way_out="choose another --out")
        files.must_be_files(folder, _FILES)
        rules = made.thresholds.rules if made.thresholds else ""
        contents = (files.json_text(made), markdown.render(document), rules)
        for name, content in zip(_FILES, contents, strict=True):
            if content:
                files.write(folder / name, content)
                paths.append((name, folder / name))
    output.show(document, paths, made, as_json=as_json, quiet=quiet)
