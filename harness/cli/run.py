"""`knee run`: every option is one field of the scenario."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.base import units
from harness.base.errors import HarnessError
from harness.base.terminal import console
from harness.cli import output
from harness.cli.grouped import TAKEN, F, Grouped, Option, flag_of, of_run, under
from harness.cli.theirs import is_address
from harness.spec import options, ready
from harness.spec.options import OPTIONS

if TYPE_CHECKING:
    from harness.cli.live_page import LivePage
    from harness.report.live import LiveView
    from harness.run.campaign import Planner, Swept
    from harness.run.experiment import Outcome
    from harness.run.launch.consent import Agreed
    from harness.spec.scenario import Scenario
    from harness.spec.shard import Shard

Saved = Callable[[Path], str] | None  # takes the folder of a run whose files have changed; a remark or ""

_EXAMPLES = """\b
Examples:
  knee run http://127.0.0.1:8000
  knee run http://127.0.0.1:8000 --slo ttft_p99=2s,itl_p99=50ms --max-seconds 5m
  knee run http://127.0.0.1:8000 --levels 1,8,64 --level-seconds 30s
  knee run http://127.0.0.1:8000 --gpu h100-sxm --model-config llama-3.1-8b
  knee run chat http://127.0.0.1:8000"""


def _ready(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Completes the name of a ready scenario."""
    return [scenario.name for scenario in ready.scenarios() if scenario.name.startswith(incomplete)]


def options_without(*names: str) -> Callable[[F], F]:
    """Give a command the options of `knee run`, in their order, but for those of these names."""

    def decorate(command: F) -> F:
        for heading, some in reversed(OPTIONS.items()):
            command = under(heading, *(of_run(each) for each in some if each.names not in names))(command)
        return command

    return decorate


@click.command(cls=Grouped, epilog=_EXAMPLES)
@click.argument("scenario", nargs=-1, metavar="[SCENARIO] [URL]", shell_complete=_ready)
@options_without()
def run(scenario: tuple[str, ...], **flags: Any) -> None:
    """Measure an endpoint and write a result folder.

    The load rises from level to level of concurrency until the knee is found. SCENARIO is a TOML file, or the name of
    a ready scenario (--list). Lines of vllm bench, SGLang, GuideLLM, AIPerf, genai-bench, evalscope, Locust, k6 and hey
    are taken as they are (docs/comparability.md).
    """
    if flags["list_ready"]:
        _list_ready()
        return
    resume = flags["resume"]
    if resume is not None:
        source, resolved = _resumed(resume, flags)
    else:
        source = _one(scenario, flags) or ""
        resolved = _resolve(source, flags)
        if flags["print_scenario"]:
            _note_no_effect("--print-scenario")
            _print_scenario(resolved)
            return
        if flags["print_requests"] is not None:
            _note_no_effect("--print-requests", "shard", "start_at", "run_id")
            count = units.count(flags["print_requests"], "--print-requests")
            _print_requests(resolved, count, _shard(resolved, flags))
            return
        if resolved.target.url is None:
            raise click.UsageError("no endpoint; give http://host:8000, or --url sim: for the simulated one")
        _note_bound(resolved, flags)
    named_by = source if not flags["url"] or resolved.sweep.urls else ""
    agreed = consent_of(resolved, flags, source, named_by=named_by, resumed=resume is not None)
    _shard(resolved, flags)
    if not resolved.many:
        sys.exit(_measure(resolved, agreed, flags))
    swept = measure_map(resolved, agreed, flags)
    if resolved.target.versus:
        _compare(swept, flags)
    sys.exit(swept.status)


def _compare(swept: Swept, flags: dict[str, Any]) -> None:
    """Compare the runs of each way to balance load and publish the comparison, if each way was measured."""
    from harness.cli import decide
    from harness.library import answers
    from harness.results.levelmap import BALANCE

    cells = [cell for cell in swept.map.cells if cell.status is not None]
    if len({cell.at[BALANCE] for cell in cells}) > 1:
        compared = answers.compare(*(f"{cell.at[BALANCE]}={swept.folder / cell.name}" for cell in cells))
        shown = {name: flags[name] for name in ("no_plots", "quiet")}
        decide.publish_comparison(compared, str(swept.folder), as_json=False, **shown)


def consent_of(resolved: Scenario, flags: dict[str, Any], place: str, **more: Any) -> Agreed:
    """Return what the operator agrees to; raise HarnessError if the scenario sends or runs what was not named."""
    from harness.run.launch import consent
    from harness.spec import scenario as scenarios

    consent.must_be_allowed(resolved, {*typed_variables(flags), *flags["allow_env"]}, os.environ, place)
    output.secrets[:] = scenarios.secrets(resolved, os.environ)
    return consent.Agreed(yes=flags["yes"], trust_remote_code=flags["trust_remote_code"], **more)


def _note_bound(resolved: Scenario, flags: dict[str, Any]) -> None:
    """Print a note where an option may be taken for another."""
    most = flags["max_concurrency"]
    if most is not None and not resolved.load.is_open and not flags["quiet"]:
        click.echo(
            f"note: --max-concurrency {most} bounds the search; --levels {most} holds {most} in flight", err=True
        )


def _note_no_effect(printing: str, *but: str) -> None:
    """Print a note with the options of a measurement, which a command that only prints does not use."""
    used = {printing, "--size", "--trust-remote-code", "--allow-env", *map(flag_of, but)}
    every = [param for param in click.get_current_context().command.params if isinstance(param, Option)]
    idle = [each.opts[0] for each in every if each.of_run and not each.of_run.sets and _is_typed(each)]
    if idle := [name for name in idle if name not in used]:
        click.echo(f"note: nothing is measured, so {', '.join(idle)} has no effect", err=True)


def _list_ready() -> None:
    """Print the ready scenarios, one a line with its question."""
    found = ready.scenarios()
    width = max((len(each.name) for each in found), default=0)
    for each in found:
        print(f"{each.name:{width}}  {each.question}")


def command_line() -> str:
    """Return the command line for the manifest, without secrets."""
    context = click.get_current_context()
    typed = context.meta.get(TAKEN)
    words = sys.argv[1:] if typed is None else [*context.command_path.split()[1:], *typed]
    return shlex.join(["knee", *shown(words, output.secrets)])


def shown(arguments: Sequence[str], secrets: Sequence[str]) -> list[str]:
    """Return the command line without the values of headers and of secret fields."""
    from harness.base import secrecy

    plain = [secret for secret in secrets if len(secret) >= 8]  # a shorter one may be part of any number
    out: list[str] = []
    flag = ""
    for argument in arguments:
        name, found, value = argument.partition("=")
        if not flag and found and name in ("--header", "--extra-body"):
            out, flag, argument = [*out, name], name, value
        if flag == "--header":
            argument = f"{argument.partition(':')[0]}: {secrecy.HIDDEN}"
        elif flag == "--extra-body":
            argument = json.dumps(secrecy.shown(options.json_object(argument)))
        flag = argument if not flag and argument in ("--header", "--extra-body") else ""
        out.append(secrecy.redact(argument, plain))
    return out


def _watched(terminal: LiveView, flags: dict[str, Any], exits: contextlib.ExitStack) -> LiveView | LivePage:
    """Return what shows a run: the terminal, and with --live a page too, whose process ends with `exits`."""
    if flags.get("live") is None:
        return terminal
    from harness.cli import live_page

    if flags["no_plots"]:
        raise HarnessError("its page ends as report.html", place="--live", way_out="leave --no-plots out")
    at = live_page.listening(options.port(flags["live"]))
    return exits.enter_context(live_page.LivePage(terminal, at))


@contextlib.contextmanager
def copying(flags: dict[str, Any], *, many: bool = True) -> Iterator[Saved]:
    """Yield the copier of a folder, of one run or many, to --copy-to; it makes the last copy after the block."""
    if flags["copy_to"] is None:
        yield None
        return
    from harness.results.copies import Copy

    copy = Copy(flags["copy_to"], resumed=flags["resume"] is not None, of=flags["resume"] or flags["out"])
    try:
        yield lambda folder: copy.follow(folder.parent if many else folder)
    finally:
        message = copy.finish()
        if message and not (flags["quiet"] and message.startswith("copied")):
            click.echo(message, err=True)


def _measure(resolved: Scenario, agreed: Agreed, flags: dict[str, Any]) -> int:
    """Measure one run, publish its result, and return its exit status."""
    from harness.report.live import LiveView
    from harness.run import experiment

    with copying(flags, many=False) as saved, contextlib.ExitStack() as exits:
        with LiveView(console(stderr=True), quiet=flags["quiet"], saved=saved) as terminal:
            view = _watched(terminal, flags, exits)
            if flags["resume"] is not None:
                outcome = experiment.resume(flags["resume"], resolved, view, command_line(), agreed=agreed)
            else:
                share = _shard(resolved, flags)
                outcome = experiment.run(resolved, flags["out"], view, command_line(), agreed=agreed, share=share)
        folder, plots = outcome.folder, not flags["no_plots"]
        if outcome.manifest.shards:
            output.publish_shard(folder, outcome.manifest.shards[0], quiet=flags["quiet"])
            return outcome.status
        shown = {name: flags[name] for name in ("as_json", "quiet", "verbose")}
        more = output.More(noted=terminal.noted)
        output.publish(folder, outcome.summary, outcome.manifest, plots=plots, more=more, **shown)
        view.over(folder / "report.html")
    if flags["open_report"]:
        output.open_in_browser(outcome.folder / "report.html")
    return outcome.status


def measure_map(resolved: Scenario, agreed: Agreed, flags: dict[str, Any], plan: Planner | None = None) -> Swept:
    """Measure the cells of a plan, else of a level map, and publish their result."""
    from harness.report.live import LiveView
    from harness.run import campaign

    plots = not flags["no_plots"]

    def report(cell: Outcome) -> None:
        document = output.write_reports(cell.folder, cell.summary, cell.manifest, plots=plots)
        if plots:
            output.write_plots(cell.folder, document, cell.summary)

    with copying(flags) as saved, contextlib.ExitStack() as exits:
        with LiveView(console(stderr=True), quiet=flags["quiet"], saved=saved) as terminal:
            view = _watched(terminal, flags, exits)
            resumed = flags["resume"] is not None
            folder = flags["resume"] if resumed else flags["out"]
            how: dict[str, Any] = {"plan": plan or campaign.plan, "agreed": agreed, "report": report}
            swept = campaign.run(resolved, folder, view, command_line(), resumed=resumed, **how)
        output.publish_map(swept.folder, swept.map, plots=plots, as_json=flags["as_json"], quiet=flags["quiet"])
        view.over(swept.folder / "map.html")
    if flags.get("open_report"):
        output.open_in_browser(swept.folder / "map.html")
    return swept


def _resumed(folder: str, flags: dict[str, Any]) -> tuple[str, Scenario]:
    """Return (manifest, scenario) of a run that is resumed."""
    from harness.run.resume import begun_with, must_be_named

    must_stand_alone()
    resolved = begun_with(folder, options.headers(flags["header"]))
    must_be_named(resolved, api=flags["api"], dataset=flags["dataset"], place=folder)
    begun = resolved.target.every_url
    if flags["url"] and list(flags["url"]) != begun:
        fact = f"the run was begun with {', '.join(begun)}"
        raise HarnessError(fact, place=f"--url {', '.join(flags['url'])}", way_out="give that, or start a new run")
    return str(Path(folder) / "manifest.json"), resolved


def _print_scenario(resolved: Scenario) -> None:
    """Print the resolved scenario as TOML, without what may be secret."""
    from harness.spec import scenario as scenarios

    with contextlib.suppress(HarnessError):  # a scenario may be printed even if its variables are not set
        output.secrets[:] = scenarios.secrets(resolved, os.environ)
    shown = scenarios.shown(resolved, output.secrets)
    if shown != resolved:
        print("# Values that may be secret are left out; write env:NAME in their place.")
    print(scenarios.to_toml(shown), end="")


def _shard(resolved: Scenario, flags: dict[str, Any]) -> Shard | None:
    """Return this machine's share of the run; None if it is the only one."""
    if flags["shard"] is None:
        for name in ("start_at", "run_id"):
            if flags[name] is not None:
                way_out = "give --shard, or leave it out"
                raise HarnessError("it is of a shard", place=flag_of(name), way_out=way_out)
        return None
    from harness.spec import shard

    return shard.of_run(resolved, flags["shard"], flags["start_at"], flags["run_id"])


def _print_requests(resolved: Scenario, count: int, share: Shard | None) -> None:
    """Print the first requests of the run, or of a share of it, one a line; no server is asked."""
    import itertools

    import msgspec

    from harness.run import requests
    from harness.run.requests import planned

    if count < 1:
        raise HarnessError("it must be 1 or more", place="--print-requests", way_out="give 1 or more")
    with requests.read(resolved, lambda text: click.echo(text, err=True)) as (read, rows):
        for request in itertools.islice(planned(read, rows, share), count):
            print(msgspec.json.encode(request).decode())


def typed_variables(flags: dict[str, Any]) -> set[str]:
    """Return the environment variables that the command line itself names, and the command that it runs."""
    from harness.spec import scenario as scenarios

    headers, extra = options.headers(flags["header"]), flags["extra_body"]
    body = {} if extra is None else options.json_object(extra)
    target = scenarios.Target(api_key_env=flags["api_key_env"], headers=headers, extra_body=body)
    commands = {flags[name] for name in ("before_level", "stop_replica") if flags[name]}
    return commands | {name for name, _ in scenarios.variables(scenarios.Scenario(target=target))}


def _one(arguments: tuple[str, ...], flags: dict[str, Any]) -> str | None:
    """Return the scenario among the arguments; addresses among them are --url's."""
    paths = list(arguments)
    urls = [path for path in paths if is_address(path) or ":" in path]  # else host:port, or limits
    if urls and flags["url"]:
        raise click.UsageError(f"--url and an address without it: {', '.join(urls)}; write all of them as --url")
    flags["url"] = flags["url"] or tuple(url if is_address(url) else f"http://{url}" for url in urls)
    paths = [path for path in paths if path not in urls]
    if values := [path for path in paths if (path.isdigit() or set(path) & set("=±,")) and not Path(path).exists()]:
        way_out = "write several numbers with commas (--levels 1,2,4), and a value with blanks in quotes"
        raise click.UsageError(f"{' '.join(values)}: no scenario; {way_out}")
    if len(paths) > 1:
        raise click.UsageError(f"more than one scenario: {', '.join(paths)}; give one, and options with --")
    return paths[0] if paths else None


def _is_typed(param: click.Parameter) -> bool:
    """Return whether a parameter is on the command line by its own name."""
    return click.get_current_context().get_parameter_source(param.name or "") is click.core.ParameterSource.COMMANDLINE


def must_stand_alone() -> None:
    """Raise HarnessError if another option contradicts --resume, which takes the scenario from the folder."""
    for parameter in click.get_current_context().command.params:
        option = parameter.of_run if isinstance(parameter, Option) else None
        allowed = parameter.name == "resume" or (option is not None and option.with_resume)
        if _is_typed(parameter) and not allowed:
            shown = parameter.opts[0] if parameter.opts[0].startswith("-") else "SCENARIO"
            fact = f"not allowed with {shown}: the run continues with the scenario of its folder"
            raise HarnessError(fact, place="--resume", way_out=f"leave {shown} out, or start a new run")


def _resolve(path: str, flags: dict[str, Any]) -> Scenario:
    """Return the scenario file with the flags laid over it."""
    from harness.spec import reading

    options.headers(flags["header"])  # first: a value that the shell split off is no path
    base = reading.load(str(ready.path(path)), flags["size"]) if path else None
    if flags["size"] is not None and base is None:
        raise HarnessError("no scenario that has sizes", place="--size", way_out="give one, like coding-agents")
    return laid_over(base, flags, run.params, path or "command line")


def laid_over(base: Scenario | None, flags: dict[str, Any], params: Sequence[click.Parameter], place: str) -> Scenario:
    """Return a scenario, or none, with the flags of a command laid over it."""
    from harness.spec import reading

    if flags["burstiness"] is not None and flags["arrivals"] is not None:
        fact = "--arrivals says how requests come, and so does this"
        raise HarnessError(fact, place="--burstiness", way_out="leave one of them out")
    for name in ("skip_broken", "skip_longer", "fields"):
        if flags[name] and flags["dataset"] is None:
            raise HarnessError("no dataset to read", place=f"--{name.replace('_', '-')}", way_out="give --dataset FILE")
    tables: dict[str, Any] = {}
    for param in params:
        set_ = param.of_run.fields(flags[param.name or ""]) if isinstance(param, Option) and param.of_run else {}
        for path, value in set_.items():
            table, _, name = path.partition(".")
            owner, key = (tables.setdefault(table, {}), name) if name else (tables, table)
            owner[key] = {**owner.get(key, {}), **value} if isinstance(value, dict) else value
    if flags["agents"] is not None:
        if flags["levels"] is not None:
            raise HarnessError("--levels says so too", place="--agents", way_out="leave one of them out")
        if flags["dataset"] is not None:
            tables["workload"]["dataset"]["sessions"] = True
    try:
        scenario = reading.laid_over(base, tables, place=place)
    except HarnessError as error:
        raise _by_flag(error, flags, params) from None
    if flags["agents"] is not None and not scenario.has_tasks:
        way_out = "give a --dataset or a scenario with sessions, or --levels for requests in flight"
        raise HarnessError("this workload has no sessions", place="--agents", way_out=way_out)
    return scenario


def _by_flag(error: HarnessError, flags: dict[str, Any], params: Sequence[click.Parameter]) -> HarnessError:
    """Return the error with the option that was typed as its place, instead of the path in the scenario."""
    fact, at, path = error.fact.rpartition(" at $.")
    if not at:
        fact, (_, at, path) = error.fact, error.place.rpartition(": $.")
    field = path.rpartition(".")[2]
    for param in params:
        option = param.of_run if isinstance(param, Option) else None
        sets = {each.rpartition(".")[2] for each in option.sets} if option else ()
        if at and field in sets and (flags[param.name or ""] or _is_typed(param)):
            return HarnessError(fact, place=param.opts[0], way_out=error.way_out)
    return error
