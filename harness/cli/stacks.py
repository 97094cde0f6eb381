"""`knee stacks` and `knee tune`: servers that are started by their recipes, and measured one after the other."""

from __future__ import annotations

import asyncio
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.base import ExitStatus
from harness.base.errors import HarnessError
from harness.cli import output
from harness.cli.grouped import Grouped, of_run, option, under
from harness.cli.run import command_line, consent_of, copying, laid_over, measure_map, must_stand_alone, options_without
from harness.spec import options, ready

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.cli.run import Saved
    from harness.decide.tuning import Goal
    from harness.run.launch.consent import Agreed
    from harness.run.stacks.command import Command
    from harness.run.tuned import Tuning
    from harness.spec.recipe import Stack, StackSpec
    from harness.spec.scenario import Scenario

_EXAMPLES = """\b
Examples:
  knee stacks run chat --stack vllm --stack sglang --model /models/llama-3.1-8b --repeat 3
  knee stacks run chat --stack vllm --stack ./mine.toml --model /models/llama-3.1-8b --print
  knee stacks run chat --stack a=vllm --stack b=vllm --set b.max-num-seqs=16 --model /models/llama-3.1-8b
  knee stacks run tensor-parallel --model /models/llama-3.1-70b --gpu h100-sxm
  knee stacks run --resume results/chat-20260101-120000"""
# Options of `knee run` that name an endpoint of the operator's own or a share of a run, or that print and stop.
_NOT_OF_STACKS = (
    "--url", "--model", "--header", "--api-key-env", "--metrics-url", "--server-meta", "--transport", "--ca-file",
    "--insecure", "--probe", "--profile", "--speed", "--list", "--print-scenario", "--print-requests", "--verbose",
    "--shard", "--start-at", "--run-id", "--size",
)  # fmt: skip
_OF_RUN: dict[str, Any] = {"header": (), "server_meta": (), "api_key_env": None}  # what those that are read would be


@click.group()
def stacks() -> None:
    """Start servers by their recipes and measure each."""


@stacks.command(name="list")
def list_() -> None:
    """List the recipes and the campaigns that come with Knee."""
    from harness.run.stacks import command

    recipes = [(name, command.shipped(name).title) for name in command.names()]
    campaigns = [(campaign.name, campaign.question) for campaign in ready.campaigns()]
    width = max(len(name) for name, _ in recipes + campaigns)
    for heading, rows in (("recipes", recipes), ("campaigns", campaigns)):
        print(f"{heading}:")
        for name, what in rows:
            print(f"  {name:{width}}  {what}")


@stacks.command(cls=Grouped, epilog=_EXAMPLES)
@click.argument("scenario", required=False)
@under(
    "Stacks",
    option(
        "--stack",
        multiple=True,
        metavar="[NAME=]RECIPE",
        help="A recipe by its name or path, once for each stack; NAME= tells two of one recipe apart.",
    ),
    option(
        "--set",
        "settings",
        multiple=True,
        metavar="NAME.OPTION=VALUE",
        help="A setting of one stack, or an option of its server's own, like b.max-num-seqs=16.",
    ),
    of_run(options.target("--model", "What every stack loads: a folder, a file or a name.", "DIR")),
    option("--max-model-len", type=click.IntRange(1), help="Tokens of a prompt and its answer, on every stack."),
    option("--print", "print_only", is_flag=True, help="Print the commands that would be run and stop."),
)
@options_without(*_NOT_OF_STACKS)
def run(scenario: str | None, **flags: Any) -> None:
    """Start each stack in turn, measure it, and take it away again.

    SCENARIO is a TOML file or the name of a ready scenario; one with [[stack]] tables brings its stacks along.
    --repeat N measures every stack N times, the stacks taking turns.
    """
    from harness.run import stacked
    from harness.run.stacks.command import text

    flags |= _OF_RUN
    resumed = flags["resume"]
    if resumed is not None:
        resolved, chosen = _resumed(resumed)
    else:
        resolved, chosen = _resolved(scenario or "", flags)
    commands = stacked.printed(resolved, chosen)
    if flags["print_only"]:
        for _, command in commands:
            print(text(command))
        return
    agreed = consent_of(resolved, flags, scenario or "")
    unknown = {each.spec.name: each.recipe.version for each in chosen if each.own or resumed is not None}
    if unknown and not flags["yes"]:
        _must_be_agreed([each for each in commands if each[0] in unknown], unknown, resumed or ", ".join(unknown))
    swept = measure_map(resolved, agreed, flags, partial(stacked.plan, stacks=chosen))
    folders = [str(swept.folder / cell.name) for cell in swept.map.cells if cell.status is not None]
    if len(folders) > 1 and not flags["quiet"]:
        print(f"Compare them: {shlex.join(['knee', 'compare', *folders])}", file=sys.stderr)
    sys.exit(swept.status)


def _must_be_agreed(commands: Sequence[tuple[str, Command]], versions: Mapping[str, Sequence[str]], place: str) -> None:
    """Ask before commands of a file are run, with those that print a version; raise HarnessError if that is refused."""
    from harness.run.launch import consent
    from harness.run.stacks.command import to_agree

    shown = [line for name, command in commands for line in to_agree(name, command, versions[name])]
    fact = "these commands come from a file and would be run"
    asyncio.run(consent.ask(shown, place, fact=fact, way_out="add --yes", question="Run them?"))


def _resolved(path: str, flags: dict[str, Any]) -> tuple[Scenario, list[Stack]]:
    """Return the scenario with the flags laid over it, and the stacks to be measured."""
    import msgspec

    from harness.run.stacks import command

    base, specs = campaign_of(path) if path else (None, [])
    params = click.get_current_context().command.params
    resolved = laid_over(base, flags, params, path or "command line")
    foreign = bool(specs) and ready.path(path, or_campaign=True).parent != ready.CAMPAIGNS
    specs = _chosen(specs, flags["stack"]) if specs else _specs(flags["stack"])
    length = flags["max_model_len"]
    specs = [msgspec.structs.replace(spec, max_model_len=spec.max_model_len or length) for spec in specs]
    return resolved, _set(command.stacks(specs, foreign=foreign), flags["settings"])


def _set(stacks: list[Stack], settings: Sequence[str]) -> list[Stack]:
    """Return the stacks with the settings of the command line, like b.max-num-seqs=16."""
    from harness.base.errors import nearest
    from harness.run.stacks import command

    names = [stack.spec.name for stack in stacks]
    of: dict[str, dict[str, str]] = {name: {} for name in names}
    for text in settings:
        at, equals, value = text.partition("=")
        name, dot, option = at.rpartition(".")
        if not (equals and dot and option and value):
            raise HarnessError(f"{text!r} sets nothing", place="--set", way_out="write it like b.max-num-seqs=16")
        if name not in of:
            raise HarnessError(f"no stack is called {name}", place=f"--set {text}", way_out=nearest(name, names))
        of[name][option.lstrip("-")] = value
    return [command.with_options(stack, of[stack.spec.name], "--set") for stack in stacks]


def campaign_of(path: str) -> tuple[Scenario, list[StackSpec]]:
    """Return the scenario and the stacks of a file, or of a ready scenario's or campaign's name."""
    from harness.base import decoding
    from harness.spec import reading, recipe

    file = ready.path(path, or_campaign=True)
    with decoding.reading(str(file), "TOML", "give the path of a scenario.toml, or a name of `knee run --list`"):
        tree = decoding.toml(decoding.content(Path(file)))
    rest, specs = recipe.split(tree, str(file))
    return reading.read(rest, place=str(file)), specs


def _chosen(specs: Sequence[StackSpec], names: Sequence[str]) -> list[StackSpec]:
    """Return the stacks of a campaign, or those of the names."""
    known = {spec.name or spec.recipe: spec for spec in specs}
    for name in names:
        if name not in known:
            way_out = f"it has {', '.join(known)}"
            raise HarnessError("the campaign has no such stack", place=f"--stack {name}", way_out=way_out)
    return [spec for name, spec in known.items() if not names or name in names]


def _specs(names: Sequence[str]) -> list[StackSpec]:
    """Return the stacks named as RECIPE or NAME=RECIPE, in their order."""
    from harness.spec.recipe import StackSpec

    def spec(text: str) -> StackSpec:
        name, equals, path = text.partition("=")
        return StackSpec(recipe=path, name=name) if equals else StackSpec(recipe=text)

    return [spec(text) for text in names]


def _resumed(folder: str) -> tuple[Scenario, list[Stack]]:
    """Return what a folder was begun with; raise HarnessError if it is no comparison."""
    from harness.data.manifest import MapManifest
    from harness.results import result
    from harness.run.resume import begun_with
    from harness.run.stacks import command

    must_stand_alone()
    resolved, manifest = begun_with(folder, {}), result.read_manifest(folder)
    if not isinstance(manifest, MapManifest) or not manifest.stacks:
        way_out = f"knee run --resume {shlex.quote(folder)}"
        raise HarnessError("it is no comparison of stacks", place=folder, way_out=way_out)
    for stack in manifest.stacks:
        command.must_be_whole(stack, folder)
    return resolved, list(manifest.stacks)


# ---- tune -----------------------------------------------------------------------------------------------------------

_EXAMPLES_OF_TUNE = """\b
Examples:
  knee tune chat --stack vllm --model /models/llama-3.1-8b --try max-num-seqs=64,128,256 --max-seconds 2h
  knee tune chat --stack vllm --model DIR --try max-num-batched-tokens=2k,8k --try kv-cache-dtype=auto,fp8 \\
    --slo ttft_p99=2s --gpu h100-sxm --model-config DIR
  knee tune --resume results/tune-vllm-20260101-120000"""
_NOT_HERE = (*_NOT_OF_STACKS, "--repeat", "--rate", "--duration", "--no-plots")


@click.command(cls=Grouped, epilog=_EXAMPLES_OF_TUNE)
@click.argument("scenario", required=False)
@under(
    "Settings",
    option("--stack", metavar="NAME|FILE", help="The recipe that starts the server (`knee stacks list`)."),
    of_run(options.target("--model", "What the server loads: a folder, a file or a name.", "DIR")),
    option(
        "--try",
        "tries",
        multiple=True,
        metavar="OPTION=V1,V2",
        help="Values of a setting of Knee's or of an option of the server's; once for each. `auto` is its default.",
    ),
    option(
        "--for",
        "goal",
        type=click.Choice(["plateau", "slo", "cost"]),
        help="Most throughput, most within --slo, or most for a dollar; default slo with --slo, else plateau.",
    ),
)
@options_without(*_NOT_HERE)
def tune(scenario: str | None, tries: tuple[str, ...], goal: Goal | None, **flags: Any) -> None:
    """Find the best setting of a server.

    All combinations of the values are measured in short runs, the promising ones in longer runs. With --gpu and
    --model-config the order follows the prediction. Without --slo all settings are compared at one load: --levels, else
    a quarter above the largest max-num-seqs that is tried.
    """
    from harness.run import tuned

    flags |= _OF_RUN
    if flags["resume"] is not None:
        must_stand_alone()
        tuning, of = tuned.interrupted(flags["resume"])
        agreed = consent_of(of, flags, "")
    else:
        of, stack = _tuned_of(scenario or "", flags)
        agreed = consent_of(of, flags, scenario or "")
        goal = goal or ("slo" if of.slo else "plateau")
        tuning = tuned.begun(of, stack, tries, goal, command_line())
    stack = tuning.stack
    if (stack.own or flags["resume"] is not None) and not flags["yes"]:
        tried = [(each.name, tuned.command_of(tuning, of, each.name)) for each in tuning.settings if not each.left_out]
        _must_be_agreed(tried, {each: stack.recipe.version for each, _ in tried}, stack.spec.recipe)
    with copying(flags) as saved:
        status = _measure(tuning, of, flags, agreed, saved)
    sys.exit(status)


def _measure(found: Tuning, of: Scenario, flags: dict[str, Any], agreed: Agreed, saved: Saved) -> int:
    """Measure, write the files for people and print the result; return the exit status."""
    from harness.base import files
    from harness.base.terminal import console
    from harness.decide import tuning
    from harness.report import markdown, page, png
    from harness.report import tuned as reports
    from harness.report.live import LiveView
    from harness.run import tuned
    from harness.run.stacks import command

    with LiveView(console(stderr=True), quiet=flags["quiet"], saved=saved) as view:
        resumed = flags["resume"] is not None
        out = flags["resume"] if resumed else flags["out"]
        folder, found = tuned.run(found, of, out, view, resumed=resumed, agreed=agreed)
    if not found.complete:
        print(f"to go on: knee tune --resume {shlex.quote(str(folder))}", file=sys.stderr)
        return ExitStatus.INTERRUPTED
    ranks = tuning.ranks(found.settings, found.trials)
    at = "within the limits" if found.in_flight is None else f"at {found.in_flight} requests in flight"
    document = reports.report(
        ranks,
        title=f"{found.stack.recipe.title}: {len(found.settings)} settings",
        per=found.per,
        at=at,
        command=command.text(tuned.command_of(found, of, ranks[0].setting), hidden=True),
        seconds=sum(trial.seconds for trial in found.trials),
        simulated=found.simulated,
    )
    files.must_be_files(folder, tuned.FOR_PEOPLE)
    files.write(folder / "tune.md", markdown.render(document))
    made: list[tuple[str, str | Path]] = [(name, folder / f"tune.{name}") for name in ("json", "md", "html", "png")]
    output.show(document, made, found, as_json=flags["as_json"], quiet=flags["quiet"])
    files.write(folder / "tune.html", page.render(document))
    files.write(folder / "tune.png", png.draw(document.sections[1].charts[0]))
    return ExitStatus.UNSETTLED if any(rank.state == "untried" for rank in ranks) else ExitStatus.DONE


def _tuned_of(path: str, flags: dict[str, Any]) -> tuple[Scenario, Stack]:
    """Return the scenario with the flags laid over it, and the stack to be tuned."""
    from harness.run.stacks import command
    from harness.spec.recipe import StackSpec

    if flags["stack"] is None:
        raise HarnessError("no server to start", place="--stack", way_out="give --stack vllm; see `knee stacks list`")
    found = campaign_of(path)[0] if path else None
    resolved = laid_over(found, flags, click.get_current_context().command.params, path or "command line")
    (stack,) = command.stacks([StackSpec(recipe=flags["stack"])])
    return resolved, stack
