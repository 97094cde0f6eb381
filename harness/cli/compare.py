"""`knee compare`: stacks against each other, from result folders and other tools' files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli import output
from harness.terminal import console

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.decide.compare.comparison import Report
    from harness.decide.compare.runs import Run

REFUSED = 3  # exit status


@click.command()
@click.argument("stacks", nargs=-1, required=True, metavar="[NAME=]DIR|FILE…")
@click.option("--vary", metavar="NAME,…", help="What may differ: engine, precision, kv-dtype, tp, max-num-seqs, start.")
@click.option("--answers", is_flag=True, help="Rank only stacks whose canaries' answers are unchanged and as right.")
@click.option("--force", is_flag=True, help="Rank although what must be alike is not; the report says so.")
@click.option("--scenarios", metavar="NAME,…", help="Compare under each of these scenarios: who wins where.")
@click.option("--out", metavar="DIR", help="Write comparison.json, .md, .html and .png there.")
@click.option("--json", "as_json", is_flag=True, help="Print comparison.json on stdout.")
@click.option("--no-plots", is_flag=True, help="No comparison.png and no comparison.html.")
@click.option("--quiet", is_flag=True, help="No table.")
def compare(
    stacks: tuple[str, ...],
    vary: str | None,
    answers: bool,
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
    from harness.decide.compare import comparison, fairness

    allowed = fairness.varied(vary)
    names = [name.strip() for name in (scenarios or "").split(",") if name.strip()]
    found = comparison.by_workload(_runs(stacks), names, vary=allowed, forced=force, answers=answers)
    _publish(found, out, plots=not no_plots, as_json=as_json, quiet=quiet)
    if any(each.refused for each in found.workloads):
        sys.exit(REFUSED)


def _runs(stacks: Sequence[str]) -> list[Run]:
    """The runs of every folder and file, labelled; several files of one label are one stack's."""
    import msgspec

    from harness.decide.compare import runs
    from harness.results.foreign import formats

    given = [_named(text) for text in stacks]
    folders = {place: runs.read_folder(place) for _, place in given if Path(place).is_dir()}
    files = {place: formats.read(place) for _, place in given if place not in folders}
    started = {place: own[0].stack or "" for place, own in folders.items() if own}
    engines = {place: (own[0].facts.engine or "").partition(" ")[0] for place, own in folders.items() if own}
    engines |= {place: found.engine or "" for place, found in files.items()}
    labels = _labels(given, started, engines)
    out: list[Run] = []
    for label in dict.fromkeys(labels):
        own = [place for each, (_, place) in zip(labels, given, strict=True) if each == label]
        out += [msgspec.structs.replace(run, label=label) for place in own for run in folders.get(place, [])]
        out += runs.of_files(label, [(place, files[place]) for place in own if place in files])
    return out


def _named(text: str) -> tuple[str, str]:
    """A stack's name, "" for none, and its folder or file.

    >>> _named("vllm=results/a"), _named("results/a=b")
    (('vllm', 'results/a'), ('', 'results/a=b'))
    """
    name, equals, place = text.partition("=")
    return (name, place) if equals and name and "/" not in name and not Path(text).exists() else ("", text)


def _labels(given: Sequence[tuple[str, str]], *found: Mapping[str, str]) -> list[str]:
    """The stacks' names: those given, else the first names found that tell them apart, else their own.

    >>> _labels([("", "runs/a"), ("", "runs/b"), ("x", "c")], {}, {"runs/a": "vllm", "runs/b": "llamacpp"})
    ['vllm', 'llamacpp', 'x']
    >>> _labels([("", "runs/a"), ("", "old/a"), ("", "b.json")], {"runs/a": "vllm", "old/a": "vllm"})
    ['runs/a', 'old/a', 'b']
    """
    bare = [place for name, place in given if not name]
    for names in found:
        known = [names.get(place, "") for place in bare]
        if all(known) and len(set(known)) > 1:
            return [name or names[place] for name, place in given]
    stems = {place: Path(place).name if Path(place).is_dir() else Path(place).stem for place in bare}
    alone = {place for place in bare if list(stems.values()).count(stems[place]) == 1}
    return [name or (stems[place] if place in alone else place) for name, place in given]


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
