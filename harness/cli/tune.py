"""`knee tune`: the best setting of a server for a goal, found by starting it with one after the other."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.base.errors import HarnessError
from harness.cli import output
from harness.cli.grouped import Grouped, of_run, option, under
from harness.cli.run import consent_of, laid_over, must_stand_alone, options_without
from harness.cli.stacks import NOT_OF_STACKS, OF_RUN, campaign_of, must_be_agreed
from harness.spec import options

if TYPE_CHECKING:
    from harness.decide.tuning import Goal
    from harness.run.tuned import Tuning
    from harness.spec.recipe import Stack
    from harness.spec.scenario import Scenario

_EXAMPLES = """\b
Examples:
  knee tune chat --stack vllm --model /models/llama-3.1-8b --try max-num-seqs=64,128,256 --max-seconds 2h
  knee tune chat --stack vllm --model DIR --try max-num-batched-tokens=2k,8k --try kv-cache-dtype=auto,fp8 \\
    --slo ttft_p99=2s --gpu h100-sxm --model-config DIR
  knee tune --resume results/tune-vllm-20260101-120000"""
_NOT_HERE = (*NOT_OF_STACKS, "--repeat", "--rate", "--duration", "--no-plots")


@click.command(cls=Grouped, epilog=_EXAMPLES)
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

    flags |= OF_RUN
    if flags["resume"] is not None:
        must_stand_alone()
        found, of = tuned.interrupted(flags["resume"])
        stack = found.stack
    else:
        of, stack = _resolved(scenario or "", flags)
        goal = goal or ("slo" if of.slo else "plateau")
        found = tuned.begun(of, stack, tries, goal, shlex.join(["knee", *sys.argv[1:]]))
    agreed = consent_of(of, flags, scenario or "")
    if (stack.own or flags["resume"] is not None) and not flags["yes"]:
        tried = [(each.name, tuned.command_of(found, of, each.name)) for each in found.settings if not each.left_out]
        must_be_agreed(tried, {each: stack.recipe.version for each, _ in tried}, stack.spec.recipe)
    sys.exit(_measured(found, of, flags, agreed))


def _measured(found: Tuning, of: Scenario, flags: dict[str, Any], agreed: Any) -> int:
    """Measure, write the files for people and print the result; return the exit status."""
    from harness.base import files
    from harness.base.terminal import console
    from harness.decide import tuning
    from harness.report import markdown, page, png
    from harness.report import tuned as reports
    from harness.report.live import LiveView
    from harness.run import tuned
    from harness.run.stacks import command

    with LiveView(console(stderr=True), quiet=flags["quiet"]) as view:
        resumed = flags["resume"] is not None
        out = flags["resume"] if resumed else flags["out"]
        folder, found = tuned.run(found, of, out, view, resumed=resumed, agreed=agreed)
    if not found.complete:
        print(f"to go on: knee tune --resume {shlex.quote(str(folder))}", file=sys.stderr)
        return 130
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
    return 3 if any(rank.state == "untried" for rank in ranks) else 0


def _resolved(path: str, flags: dict[str, Any]) -> tuple[Scenario, Stack]:
    """Return the scenario with the flags laid over it, and the stack to be tuned."""
    from harness.run.stacks import command
    from harness.spec.recipe import StackSpec

    if flags["stack"] is None:
        raise HarnessError("no server to start", place="--stack", way_out="give --stack vllm; see `knee stacks list`")
    found = campaign_of(path)[0] if path else None
    resolved = laid_over(found, flags, click.get_current_context().command.params, path or "command line")
    (stack,) = command.stacks([StackSpec(recipe=flags["stack"])])
    return resolved, stack
