"""`knee run`: every flag is one path in the scenario."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness import units
from harness.cli import given as giving
from harness.cli import output
from harness.cli.grouped import Grouped, Option
from harness.cli.run_options import options
from harness.errors import HarnessError
from harness.terminal import console

if TYPE_CHECKING:
    from harness.experiment.consent import Agreed
    from harness.experiment.run import Outcome
    from harness.scenario import Scenario

_EXAMPLES = """\b
Examples:
  knee run --url http://127.0.0.1:8000
  knee run --url http://127.0.0.1:8000 --levels 1,2,4,8,16,32 --level-seconds 10s
  knee run --url http://127.0.0.1:8000 --gpu h100-sxm --model-config llama-3.1-8b
  knee run --url http://127.0.0.1:8000 --slo ttft_p99=2s,itl_p99=50ms --max-seconds 5m
  knee run scenarios/chat.toml --url http://127.0.0.1:8000"""


@click.command(cls=Grouped, epilog=_EXAMPLES)
@click.argument("scenario", nargs=-1, metavar="[SCENARIO]")
@options
def run(scenario: tuple[str, ...], **flags: Any) -> None:
    """Measure an endpoint: hold levels of concurrency, fit the curve, write a result folder."""
    from harness import scenario as scenarios
    from harness.experiment import consent

    resume = flags["resume"]
    if resume is not None:
        source, resolved = _resumed(resume, flags)
    else:
        source = _one(scenario, flags) or ""
        resolved = _resolve(source, flags)
        if flags["print_scenario"]:
            _print_scenario(resolved)
            return
        if resolved.target.url is None:
            raise click.UsageError("no endpoint: give --url http://host:8000, or --url sim: for the simulated one")
    consent.must_be_allowed(resolved, {*_typed(flags), *flags["allow_env"]}, os.environ, source)
    agreed = consent.Agreed(
        yes=flags["yes"],
        named_by=source if flags["url"] is None or resolved.sweep.urls else "",
        resumed=resume is not None,
        trust_remote_code=flags["trust_remote_code"],
    )
    output.secrets[:] = scenarios.secrets(resolved, os.environ)
    measure = _measure if resolved.sweep == scenarios.Sweep() else _measure_map
    sys.exit(measure(resolved, agreed, flags))


def _command() -> str:
    """The command line as the manifest may keep it."""
    return shlex.join(["knee", *giving.shown(sys.argv[1:], output.secrets)])


def _measure(resolved: Scenario, agreed: Agreed, flags: dict[str, Any]) -> int:
    """One run and its result; its exit status."""
    from harness.experiment import run as experiment
    from harness.report.live import Progress

    with Progress(console(stderr=True), quiet=flags["quiet"]) as view:
        if flags["resume"] is not None:
            outcome = experiment.resume(flags["resume"], resolved, view, _command(), agreed=agreed)
        else:
            outcome = experiment.run(resolved, flags["out"], view, _command(), agreed=agreed)
    shown = {name: flags[name] for name in ("as_json", "quiet", "verbose")}
    output.hand_out(outcome.folder, outcome.summary, outcome.manifest, plots=not flags["no_plots"], **shown)
    return outcome.status


def _measure_map(resolved: Scenario, agreed: Agreed, flags: dict[str, Any]) -> int:
    """A level map and its result; the exit status of the whole."""
    from harness.experiment import sweep
    from harness.report.live import Progress

    plots = not flags["no_plots"]

    def report(cell: Outcome) -> None:
        document = output.write_reports(cell.folder, cell.summary, cell.manifest, plots=plots)
        if plots:
            output.write_plots(cell.folder, document)

    with Progress(console(stderr=True), quiet=flags["quiet"]) as view:
        if flags["resume"] is not None:
            found = sweep.resume(flags["resume"], resolved, view, _command(), agreed=agreed, report=report)
        else:
            found = sweep.sweep(resolved, flags["out"], view, _command(), agreed=agreed, report=report)
    output.hand_out_map(found.folder, found.map, plots=plots, as_json=flags["as_json"], quiet=flags["quiet"])
    return found.status


def _resumed(folder: str, flags: dict[str, Any]) -> tuple[str, Scenario]:
    """The file that names the scenario of a run that goes on, and that scenario."""
    from harness.experiment.resume import begun_with

    _alone("resume")
    resolved = begun_with(folder, dict(giving.header(each) for each in flags["header"]))
    if flags["url"] not in (None, resolved.target.url):
        fact = f"the run was begun with {resolved.target.url}"
        raise HarnessError(fact, place=f"--url {flags['url']}", way_out="give that one, or run anew")
    return str(Path(folder) / "manifest.json"), resolved


def _print_scenario(resolved: Scenario) -> None:
    """The resolved scenario as TOML, without what may be secret."""
    from harness import scenario as scenarios

    with contextlib.suppress(HarnessError):  # a scenario may be printed where its variables are not set
        output.secrets[:] = scenarios.secrets(resolved, os.environ)
    shown = scenarios.shown(resolved, output.secrets)
    if shown != resolved:
        print("# What may be secret is not repeated; written env:NAME it is.")
    print(scenarios.to_toml(shown), end="")


def _typed(flags: dict[str, Any]) -> set[str]:
    """The variables that are named on the command line itself."""
    from harness import scenario as scenarios

    headers = dict(giving.header(each) for each in flags["header"])
    body = giving.json_object(flags["extra_body"], "--extra-body", "{}") if flags["extra_body"] is not None else {}
    target = scenarios.Target(api_key_env=flags["api_key_env"], headers=headers, extra_body=body)
    return {name for name, _ in scenarios.variables(scenarios.Scenario(target=target))}


def _one(arguments: tuple[str, ...], flags: dict[str, Any]) -> str | None:
    """The scenario among the arguments; limits of --goodput need no quotes, as other tools have it."""
    paths = list(arguments)
    if flags["goodput"] is not None:
        limits = [each for each in paths if ":" in each]
        paths = [each for each in paths if ":" not in each]
        flags["goodput"] = " ".join([flags["goodput"], *limits])
    if len(paths) > 1:
        raise click.UsageError(f"more than one scenario: {', '.join(paths)}")
    return paths[0] if paths else None


def _alone(flag: str) -> None:
    """What a run is resumed by stands in its folder: an argument that says it again may say something else."""
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        given = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        beside = isinstance(parameter, Option) and parameter.beside_resume
        if given and name != flag and not beside:
            shown = parameter.opts[0] if parameter.opts[0].startswith("-") else "SCENARIO"
            fact = f"does not stand beside {shown}: the run goes on as its folder says"
            raise HarnessError(fact, place=f"--{flag}", way_out=f"leave {shown} out, or run anew")


def _resolve(path: str, flags: dict[str, Any]) -> Scenario:
    """The scenario file with the flags laid over it."""
    import msgspec

    from harness import scenario as scenarios

    headers = dict(giving.header(each) for each in flags["header"])  # a value split off by the shell is no path
    tree: dict[str, Any] = msgspec.to_builtins(scenarios.load(path)) if path else {}
    given = {flag: value for flag, value in flags.items() if value is not None}
    beaten = {"levels": ("levels", "rates", "search_rate"), "max_concurrency": ("levels",)}  # by a flag, of the file's
    for flag, keys in (beaten | {"rate": beaten["levels"]}).items():
        for key in keys if flag in given else ():
            tree.get("ramp", {}).pop(key, None)
    for option in run.params:
        if isinstance(option, Option) and option.section is not None and option.name in given:
            tree.setdefault(option.section, {})[option.name] = given[option.name]
    for section, fields in _parsed(given).items():
        tree.setdefault(section, {}).update(fields)
    if "slo" in given or "goodput" in given:
        limits = units.slo(given["slo"]) if "slo" in given else {}
        tree["slo"] = limits | (units.goodput(given["goodput"]) if "goodput" in given else {})
    if headers:
        tree.setdefault("target", {})["headers"] = headers
    if tree.get("target", {}).get("url") == "sim:" and "max_num_seqs" in given:
        tree.setdefault("sim", {})["max_num_seqs"] = given["max_num_seqs"]
    return scenarios.build(tree, place=path or "command line")


def _parsed(given: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The fields of flags that are written in a way of their own, by their sections."""
    ramp: dict[str, Any] = {}
    hardware: dict[str, Any] = {}
    target: dict[str, Any] = {}
    if "levels" in given:
        ramp["levels"] = units.levels(given["levels"])
    if given.get("rate") == "auto":
        ramp["search_rate"] = True
    elif "rate" in given:
        ramp["rates"] = units.rates(given["rate"])
    if given["slo_fail"]:
        ramp["slo_fail"] = True
    if "workers" in given:
        ramp["workers"] = None if given["workers"] == "auto" else units.count(given["workers"], "--workers")
    if "host_cpus" in given:
        hardware["host_cpus"] = units.cpus(given["host_cpus"])
    if "price_per_mtok" in given:
        hardware["price_per_mtok"] = units.prices(given["price_per_mtok"])
    if "extra_body" in given:
        target["extra_body"] = giving.json_object(given["extra_body"], "--extra-body", '{"top_p": 0.9}')
    if given["server_meta"]:
        target["server_meta"] = giving.facts(given["server_meta"])
    return {"ramp": ramp, "hardware": hardware, "target": target}
