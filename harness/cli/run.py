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
from harness.cli.grouped import Grouped
from harness.errors import HarnessError
from harness.terminal import console

if TYPE_CHECKING:
    from harness.experiment.run import Outcome
    from harness.scenario import Scenario

# Every flag is one path in the scenario: (section, key).
_FLAGS: dict[str, tuple[str, str]] = {
    "url": ("target", "url"),
    "model": ("target", "model"),
    "api": ("target", "api"),
    "api_key_env": ("target", "api_key_env"),
    "request_timeout": ("target", "request_timeout"),
    "max_rps": ("target", "max_rps"),
    "ca_file": ("target", "ca_file"),
    "insecure": ("target", "insecure"),
    "transport": ("target", "transport"),
    "metrics_url": ("target", "metrics_url"),
    "input_tokens": ("workload", "input_tokens"),
    "output_tokens": ("workload", "output_tokens"),
    "tokenizer": ("workload", "tokenizer"),
    "seed": ("workload", "seed"),
    "max_concurrency": ("ramp", "max_concurrency"),
    "level_seconds": ("ramp", "level_seconds"),
    "precision": ("ramp", "precision"),
    "quick": ("ramp", "quick"),
    "max_ttft": ("ramp", "max_ttft"),
    "probe": ("ramp", "probe"),
    "max_seconds": ("ramp", "max_seconds"),
    "max_requests": ("ramp", "max_requests"),
    "max_dollars": ("ramp", "max_dollars"),
    "start": ("ramp", "start"),
    "arrivals": ("ramp", "arrivals"),
    "repeat": ("ramp", "repeat"),
    "keep_going": ("ramp", "keep_going"),
    "gpu": ("hardware", "gpu"),
    "gpus": ("hardware", "gpus"),
    "price": ("hardware", "price"),
    "model_config": ("hardware", "model_config"),
    "tp": ("hardware", "tp"),
    "dtype": ("hardware", "dtype"),
    "kv_dtype": ("hardware", "kv_dtype"),
    "calibration": ("hardware", "calibration"),
    "max_num_seqs": ("hardware", "max_num_seqs"),
    "profile": ("sim", "profile"),
    "speed": ("sim", "speed"),
}

_HEADINGS = {
    "Target": (
        "url", "model", "api", "api_key_env", "header", "extra_body", "request_timeout", "max_rps", "ca_file",
        "insecure", "transport", "metrics_url", "server_meta",
    ),
    "Workload": ("input_tokens", "output_tokens", "tokenizer", "trust_remote_code", "seed"),
    "Ramp": (
        "levels", "rate", "arrivals", "max_concurrency", "level_seconds", "precision", "quick", "probe", "repeat",
        "start", "keep_going", "workers",
    ),
    "Limits": ("slo", "goodput", "slo_fail", "max_ttft", "max_seconds", "max_requests", "max_dollars"),
    "Hardware, for the prediction and the cost": (
        "gpu", "gpus", "tp", "model_config", "dtype", "kv_dtype", "max_num_seqs", "calibration", "host_cpus", "price",
        "price_per_mtok",
    ),
    "Simulated endpoint": ("profile", "speed"),
    "Output": (
        "out", "resume", "as_json", "quiet", "verbose", "no_plots", "print_scenario", "yes", "allow_env",
    ),
}  # fmt: skip

_BESIDE_RESUME = {
    "header", "as_json", "yes", "allow_env", "trust_remote_code", "url", "quiet", "verbose", "no_plots",
}  # fmt: skip


_EXAMPLES = """\b
Examples:
  knee run --url http://127.0.0.1:8000
  knee run --url http://127.0.0.1:8000 --levels 1,2,4,8,16,32 --level-seconds 10s
  knee run --url http://127.0.0.1:8000 --gpu h100-sxm --model-config llama-3.1-8b
  knee run --url http://127.0.0.1:8000 --slo ttft_p99=2s,itl_p99=50ms --max-seconds 5m
  knee run scenarios/chat.toml --url http://127.0.0.1:8000"""


@click.command(cls=Grouped, headings=_HEADINGS, epilog=_EXAMPLES)
@click.argument("scenario", nargs=-1, metavar="[SCENARIO]")
@click.option("--url", "--base-url", help="Endpoint, like http://host:8000; 'sim:' is the embedded simulated one.")
@click.option("--model", help="Model to ask for; found out where only one is served.")
@click.option("--api", type=click.Choice(["chat", "completions"]), help="Endpoint dialect; default chat.")
@click.option("--api-key-env", metavar="VAR", help="Environment variable that holds the API key.")
@click.option(
    "--header", "header", multiple=True, metavar="K:V", help="Extra header; its value is not stored. V may be env:NAME."
)
@click.option("--extra-body", metavar="JSON", help="Fields added to every request.")
@click.option("--server-meta", multiple=True, metavar="K=V", help="Facts about the server for the manifest.")
@click.option("--request-timeout", metavar="TIME", help="Deadline of one request; default 600s.")
@click.option("--max-rps", type=float, metavar="R", help="Quota of the endpoint, requests per second.")
@click.option("--ca-file", metavar="PEM", help="Authorities to trust in place of the system's.")
@click.option("--insecure", is_flag=True, default=None, help="Take any certificate; the result says so.")
@click.option(
    "--transport", type=click.Choice(["socket", "httpx"]), help="httpx: proxies, HTTP/2, odd endpoints; default socket."
)
@click.option("--metrics-url", metavar="URL", help="The server's Prometheus page, if not /metrics beside the API.")
@click.option("--input-tokens", "--random-input-len", metavar="N", help="Prompt length in tokens; default 512.")
@click.option("--output-tokens", "--random-output-len", metavar="N", help="Answer length in tokens; default 128.")
@click.option("--tokenizer", metavar="PATH|ID", help="Makes prompts exact; else words, counted by the server's usage.")
@click.option("--seed", type=int, help="Of the prompts; default another one each run.")
@click.option("--levels", metavar="1,2,4", help="Concurrency levels to hold.")
@click.option("--keep-going", is_flag=True, default=None, help="Go on past a level of --levels or --rate that fails.")
@click.option("--max-concurrency", metavar="N", help="Without --levels: look up to here; default 1024.")
@click.option("--level-seconds", metavar="TIME", help="Window of every level; default: what the ramp needs.")
@click.option("--precision", type=float, metavar="SHARE", help="Measure every level until ± so much, like 0.02.")
@click.option("--quick", is_flag=True, default=None, help="End the ramp at its first answer.")
@click.option("--max-ttft", metavar="TIME", help="No level above one whose TTFT p99 passes this.")
@click.option(
    "--slo", metavar="NAME=TIME,…", help="Limits, like ttft_p99=2s,itl_p99=50ms,e2e=10s; looks for their knee."
)
@click.option("--goodput", metavar="NAME:MS …", help="The same limits as others write them: 'ttft:500 tpot:50'.")
@click.option("--slo-fail", is_flag=True, help="Exit status 99 where the SLO is missed.")
@click.option("--probe", type=click.Choice(["prefill", "decode"]), help="Measure one phase alone.")
@click.option("--max-seconds", metavar="TIME", help="End the ramp after this long.")
@click.option("--max-requests", metavar="N", help="End the ramp after so many requests.")
@click.option(
    "--max-dollars", type=float, metavar="USD", help="End the ramp when so much is spent, by the prices given."
)
@click.option("--start", type=click.Choice(["staggered", "burst"]), help="How a level's new slots begin.")
@click.option(
    "--rate", "--request-rate", metavar="R[,R…]", help="Open loop: requests per second; auto seeks the SLO's."
)
@click.option("--arrivals", metavar="KIND", help="Of --rate: constant, gamma(K) (bursts: K < 1); default poisson.")
@click.option("--repeat", metavar="N", help="Hold the whole ramp so often.")
@click.option("--workers", metavar="N|auto", help="Load-generating processes; default auto, one for 256 streams.")
@click.option("--gpu", metavar="KEY|host", help="GPU of the server, like h100-sxm; host measures this machine.")
@click.option("--host-cpus", metavar="0,1", help="Cores of this machine that serve, with --gpu host; default all.")
@click.option("--gpus", type=int, help="How many GPUs serve.")
@click.option("--tp", type=int, help="GPUs that share a replica, where several serve.")
@click.option("--price", type=float, metavar="USD", help="Per GPU and hour.")
@click.option("--price-per-mtok", metavar="IN,OUT[,CACHED]", help="USD per million tokens of a hosted endpoint.")
@click.option("--model-config", metavar="PATH|NAME", help="config.json, model folder or shipped name.")
@click.option("--dtype", help="Weights as the server loads them, like fp8; default as they are stored.")
@click.option("--kv-dtype", help="KV cache of the server, like fp8.")
@click.option("--calibration", metavar="FILE", help="Profile of `knee calibrate model`, for a prediction beside.")
@click.option("--max-num-seqs", type=int, help="The server's limit of running requests (also of 'sim:').")
@click.option("--profile", metavar="MODEL/GPU", help="What 'sim:' stands for; default llama-3.1-8b/h100-sxm.")
@click.option("--speed", type=float, help="How much faster than life 'sim:' runs; default 1.")
@click.option("--out", metavar="DIR", help="Result folder; default results/NAME-TIME.")
@click.option(
    "--resume", metavar="DIR", help="Go on with a run that ended early, by its own scenario; no other argument."
)
@click.option("--json", "as_json", is_flag=True, help="Print summary.json on stdout.")
@click.option("--yes", is_flag=True, help="Agree to all that would be asked: a public host, a file's address.")
@click.option(
    "--allow-env", multiple=True, metavar="NAME", help="Variable that a scenario or a resumed folder may name and send."
)
@click.option("--trust-remote-code", is_flag=True, help="Run the code that the tokenizer's folder brings.")
@click.option("--quiet", is_flag=True, help="No progress and no table.")
@click.option("--verbose", is_flag=True, help="Every remark, not only the gravest three.")
@click.option("--no-plots", is_flag=True, help="No curve.png and no report.html.")
@click.option("--print-scenario", is_flag=True, help="Print the resolved scenario as TOML and stop.")
def run(
    scenario: tuple[str, ...],
    header: tuple[str, ...],
    extra_body: str | None,
    server_meta: tuple[str, ...],
    out: str | None,
    resume: str | None,
    as_json: bool,
    yes: bool,
    allow_env: tuple[str, ...],
    trust_remote_code: bool,
    quiet: bool,
    verbose: bool,
    no_plots: bool,
    print_scenario: bool,
    **flags: Any,
) -> None:
    """Measure an endpoint: hold levels of concurrency, fit the curve, write a result folder."""
    from harness import scenario as scenarios
    from harness.experiment import consent
    from harness.experiment import run as experiment

    if resume is not None:
        source = str(Path(resume) / "manifest.json")
        _alone("resume", beside=_BESIDE_RESUME)
        resolved = experiment.begun_with(resume, dict(giving.header(each) for each in header))
        if flags["url"] not in (None, resolved.target.url):
            fact = f"the run was begun with {resolved.target.url}"
            raise HarnessError(fact, place=f"--url {flags['url']}", way_out="give that one, or run anew")
    else:
        source = _one(scenario, flags) or ""
        resolved = _resolve(source, flags, header, extra_body, server_meta)
        if print_scenario:
            with contextlib.suppress(HarnessError):  # a scenario may be printed where its variables are not set
                output.secrets[:] = scenarios.secrets(resolved, os.environ)
            shown = scenarios.shown(resolved, output.secrets)
            if shown != resolved:
                print("# What may be secret is not repeated; written env:NAME it is.")
            print(scenarios.to_toml(shown), end="")
            return
        if resolved.target.url is None:
            raise click.UsageError("no endpoint: give --url http://host:8000, or --url sim: for the simulated one")
    consent.must_be_allowed(resolved, {*_typed(flags, header, extra_body), *allow_env}, os.environ, source)
    agreed = consent.Agreed(
        yes=yes,
        named_by=source if flags["url"] is None or resolved.sweep.urls else "",
        resumed=resume is not None,
        trust_remote_code=trust_remote_code,
    )
    output.secrets[:] = scenarios.secrets(resolved, os.environ)
    from harness.report.live import Progress

    command = shlex.join(["knee", *giving.shown(sys.argv[1:], output.secrets)])
    swept = resolved.sweep != scenarios.Sweep()
    with Progress(console(stderr=True), quiet=quiet) as view:
        if swept:
            from harness.experiment import sweep

            def report(cell: Outcome) -> None:
                output.write_reports(cell.folder, cell.summary, cell.manifest, plots=not no_plots)
                if not no_plots:
                    output.write_plots(cell.folder, cell.summary, cell.manifest)

            if resume is not None:
                found = sweep.resume(resume, resolved, view, command, agreed=agreed, report=report)
            else:
                found = sweep.sweep(resolved, out, view, command, agreed=agreed, report=report)
        elif resume is not None:
            outcome = experiment.resume(resume, resolved, view, command, agreed=agreed)
        else:
            outcome = experiment.run(resolved, out, view, command, agreed=agreed)
    plots = not no_plots
    if swept:
        output.hand_out_map(found.folder, found.map, plots=plots, as_json=as_json, quiet=quiet)
        sys.exit(found.status)
    folder, summary, manifest = outcome.folder, outcome.summary, outcome.manifest
    output.hand_out(folder, summary, manifest, plots=plots, as_json=as_json, quiet=quiet, verbose=verbose)
    sys.exit(outcome.status)


def _typed(flags: dict[str, Any], header: tuple[str, ...], extra_body: str | None) -> set[str]:
    """The variables that are named on the command line itself."""
    from harness import scenario as scenarios

    headers = dict(giving.header(each) for each in header)
    body = giving.json_object(extra_body, "--extra-body", "{}") if extra_body is not None else {}
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


def _alone(flag: str, *, beside: set[str]) -> None:
    """What a run is resumed by stands in its folder: an argument that says it again may say something else."""
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        given = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if given and name not in {flag, *beside}:
            shown = parameter.opts[0] if parameter.opts[0].startswith("-") else "SCENARIO"
            fact = f"does not stand beside {shown}: the run goes on as its folder says"
            raise HarnessError(fact, place=f"--{flag}", way_out=f"leave {shown} out, or run anew")


def _resolve(
    path: str,
    flags: dict[str, Any],
    header: tuple[str, ...],
    extra_body: str | None,
    server_meta: tuple[str, ...],
) -> Scenario:
    """The scenario file with the flags laid over it."""
    import msgspec

    from harness import scenario as scenarios

    headers = dict(giving.header(each) for each in header)  # a value that its shell split off is no scenario's path
    tree: dict[str, Any] = msgspec.to_builtins(scenarios.load(path)) if path else {}

    def put(section: str, key: str, value: Any) -> None:
        tree.setdefault(section, {})[key] = value

    given = {flag: value for flag, value in flags.items() if value is not None}
    for flag, value in given.items():
        if flag in _FLAGS:
            put(*_FLAGS[flag], value)
    beaten = {"levels": ("levels", "rates", "search_rate"), "max_concurrency": ("levels",)}  # by a flag, of the file's
    for flag, keys in (beaten | {"rate": beaten["levels"]}).items():
        for key in keys if flag in given else ():
            tree.get("ramp", {}).pop(key, None)
    if "levels" in given:
        put("ramp", "levels", units.levels(given["levels"]))
    if given.get("rate") == "auto":
        put("ramp", "search_rate", True)
    elif "rate" in given:
        put("ramp", "rates", units.rates(given["rate"]))
    if "slo" in given or "goodput" in given:
        limits = units.slo(given["slo"]) if "slo" in given else {}
        tree["slo"] = limits | (units.goodput(given["goodput"]) if "goodput" in given else {})
    if given["slo_fail"]:
        put("ramp", "slo_fail", True)
    if "host_cpus" in given:
        put("hardware", "host_cpus", units.cpus(given["host_cpus"]))
    if "price_per_mtok" in given:
        put("hardware", "price_per_mtok", units.prices(given["price_per_mtok"]))
    if "workers" in given:
        workers = given["workers"]
        put("ramp", "workers", None if workers == "auto" else units.count(workers, "--workers"))
    if extra_body is not None:
        put("target", "extra_body", giving.json_object(extra_body, "--extra-body", '{"top_p": 0.9}'))
    if headers:
        put("target", "headers", headers)
    if server_meta:
        put("target", "server_meta", giving.facts(server_meta))
    if tree.get("target", {}).get("url") == "sim:" and "max_num_seqs" in given:
        put("sim", "max_num_seqs", given["max_num_seqs"])
    return scenarios.build(tree, place=path or "command line")
