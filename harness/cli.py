"""The command line: verbs only. Parses, connects the rooms, prints errors; decides nothing.

stdout is data, stderr is talk. Rooms are imported inside the verbs, so that `knee --help` starts at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from harness import __version__, units
from harness.errors import HarnessError

if TYPE_CHECKING:
    from rich.console import Console

    from harness.scenario import Scenario
    from harness.summary import Summary


class _Verbs(click.Group):
    """Prints an operator's mistake as one line; everything else that is raised is a bug and shows itself."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except HarnessError as error:
            print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
            ctx.exit(1)
        except KeyboardInterrupt:  # before any load: once levels run, the run itself takes Ctrl-C
            ctx.exit(130)


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="knee")
def cli() -> None:
    """Load testing for LLM servers that ends in an answer: the knee, with an interval."""


_secrets: list[str] = []  # of this process's run, for what is printed where nobody knows the run any more


def main() -> None:
    """The `knee` command; a bug ends with its traceback and exit status 70."""
    _open_closed()
    try:
        cli()
    except Exception:  # noqa: BLE001  # the one place: a traceback and the status that says bug
        import traceback

        from harness.secrecy import redact

        print(redact(traceback.format_exc(), _secrets), end="", file=sys.stderr)
        sys.exit(70)


def _open_closed() -> None:
    """Where stdin, stdout or stderr are closed: the next file to be opened would be taken for them."""
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


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
    "input_tokens": ("workload", "input_tokens"),
    "output_tokens": ("workload", "output_tokens"),
    "tokenizer": ("workload", "tokenizer"),
    "seed": ("workload", "seed"),
    "max_concurrency": ("ramp", "max_concurrency"),
    "level_seconds": ("ramp", "level_seconds"),
    "max_seconds": ("ramp", "max_seconds"),
    "max_requests": ("ramp", "max_requests"),
    "max_dollars": ("ramp", "max_dollars"),
    "start": ("ramp", "start"),
    "arrivals": ("ramp", "arrivals"),
    "repeat": ("ramp", "repeat"),
    "gpu": ("hardware", "gpu"),
    "gpus": ("hardware", "gpus"),
    "price": ("hardware", "price"),
    "model_config": ("hardware", "model_config"),
    "max_num_seqs": ("hardware", "max_num_seqs"),
    "profile": ("sim", "profile"),
    "speed": ("sim", "speed"),
}


@cli.command()
@click.argument("scenario", required=False, type=click.Path(dir_okay=False))
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
@click.option("--input-tokens", "--random-input-len", metavar="N", help="Prompt length in tokens; default 512.")
@click.option("--output-tokens", "--random-output-len", metavar="N", help="Answer length in tokens; default 128.")
@click.option("--tokenizer", metavar="PATH|ID", help="Makes prompts exact; else words, counted by the server's usage.")
@click.option("--seed", type=int, help="Of the prompts; default another one each run.")
@click.option("--levels", metavar="1,2,4", help="Concurrency levels to hold.")
@click.option("--max-concurrency", metavar="N", help="Without --levels: double up to this; default 1024.")
@click.option(
    "--level-seconds", metavar="TIME", help="Steady window of a level; default 25 request times, 3 s to 10 min."
)
@click.option("--max-seconds", metavar="TIME", help="End the ramp after this long.")
@click.option("--max-requests", metavar="N", help="End the ramp after so many requests.")
@click.option(
    "--max-dollars", type=float, metavar="USD", help="End the ramp when so much is spent, by the prices given."
)
@click.option("--start", type=click.Choice(["staggered", "burst"]), help="How a level's new slots begin.")
@click.option("--rate", "--request-rate", metavar="R[,R…]", help="Open loop: requests per second, a level each.")
@click.option("--arrivals", type=click.Choice(["poisson", "constant"]), help="Of an open loop; default poisson.")
@click.option("--repeat", metavar="N", help="Hold the whole ramp so often.")
@click.option("--workers", metavar="N|auto", help="Load-generating processes; default auto, one for 256 streams.")
@click.option("--gpu", metavar="KEY", help="GPU of the server, like h100-sxm, for the prediction and cost.")
@click.option("--gpus", type=int, help="How many GPUs serve.")
@click.option("--price", type=float, metavar="USD", help="Per GPU and hour.")
@click.option("--price-per-mtok", metavar="IN,OUT[,CACHED]", help="USD per million tokens of a hosted endpoint.")
@click.option("--model-config", metavar="PATH|NAME", help="config.json, model folder or shipped name.")
@click.option("--max-num-seqs", type=int, help="The server's limit of running requests (also of 'sim:').")
@click.option("--profile", metavar="MODEL/GPU", help="What 'sim:' stands for; default llama-3.1-8b/h100-sxm.")
@click.option("--speed", type=float, help="How much faster than life 'sim:' runs; default 1.")
@click.option("--out", metavar="DIR", help="Result folder; default results/NAME-TIME.")
@click.option(
    "--resume", metavar="DIR", help="Go on with a run that ended early, by its own scenario; no other argument."
)
@click.option("--json", "as_json", is_flag=True, help="Print summary.json on stdout.")
@click.option("--yes", is_flag=True, help="Load a public host without asking.")
@click.option("--quiet", is_flag=True, help="No progress and no table.")
@click.option("--no-plots", is_flag=True, help="No curve.png and no report.html.")
@click.option("--print-scenario", is_flag=True, help="Print the resolved scenario as TOML and stop.")
def run(
    scenario: str | None,
    header: tuple[str, ...],
    extra_body: str | None,
    server_meta: tuple[str, ...],
    levels: str | None,
    rate: str | None,
    workers: str | None,
    price_per_mtok: str | None,
    out: str | None,
    resume: str | None,
    as_json: bool,
    yes: bool,
    quiet: bool,
    no_plots: bool,
    print_scenario: bool,
    **flags: Any,
) -> None:
    """Measure an endpoint: hold levels of concurrency, fit the curve, write a result folder."""
    from harness import scenario as scenarios
    from harness.experiment import run as experiment

    if resume is not None:
        _alone("resume", beside={"header", "as_json", "yes", "quiet", "no_plots"})
        resolved = experiment.begun_with(resume, dict(_header(each) for each in header))
    else:
        resolved = _resolve(scenario, flags, header, extra_body, server_meta, levels, rate, workers, price_per_mtok)
        if print_scenario:
            with contextlib.suppress(HarnessError):  # a scenario may be printed where its variables are not set
                _secrets[:] = scenarios.secrets(resolved, os.environ)
            shown = scenarios.shown(resolved, _secrets)
            if shown != resolved:
                print("# What may be secret is not repeated; written env:NAME it is.")
            print(scenarios.to_toml(shown), end="")
            return
        if resolved.target.url is None:
            raise click.UsageError("no endpoint: give --url http://host:8000, or --url sim: for the simulated one")
    _secrets[:] = scenarios.secrets(resolved, os.environ)
    from harness.report.live import Progress

    command = shlex.join(["knee", *_shown(sys.argv[1:])])
    with Progress(_console(stderr=True), quiet=quiet) as view:
        if resume is not None:
            outcome = experiment.resume(resume, resolved, view, command, yes=yes)
        else:
            outcome = experiment.run(resolved, out, view, command, yes=yes)
    paths = _write_reports(outcome.folder, outcome.summary, outcome.manifest, plots=not no_plots)
    try:
        _print(outcome.summary, outcome.manifest, paths, as_json=as_json, quiet=quiet)
        sys.stdout.flush()
    except OSError:  # all of it is in the folder, and the status is the run's
        _to_nobody(sys.stdout)
    sys.exit(outcome.status)


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


@cli.command()
@click.argument("folder", nargs=-1, required=True, type=click.Path(file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print summary.json on stdout.")
@click.option("--no-plots", is_flag=True, help="No curve.png and no report.html.")
@click.option("--quiet", is_flag=True, help="No table.")
def report(folder: tuple[str, ...], as_json: bool, no_plots: bool, quiet: bool) -> None:
    """Make summary and report anew from a result folder's records; a run that died is read as far as it got."""
    from harness import store
    from harness.experiment.summarise import summarise

    for each in folder:
        measured = store.read(each)
        summary = summarise(measured)
        paths = _write_reports(measured.path, summary, measured.manifest, plots=not no_plots)
        _print(summary, measured.manifest, paths, as_json=as_json, quiet=quiet)


@cli.group()
def calibrate() -> None:
    """Measure the measuring: what this machine's load generator can follow, and its error."""


@calibrate.command("client")
@click.option("--quick", is_flag=True, help="Some 10 seconds instead of some 35.")
@click.option("--json", "as_json", is_flag=True, help="Print the calibration as JSON on stdout.")
def calibrate_client(quick: bool, as_json: bool) -> None:
    """Flood and pace the load generator by the reference endpoint, and keep the result for this host."""
    import msgspec
    from rich.console import Console

    from harness.experiment import calibrate as calibrating
    from harness.report import tables

    talk = Console(stderr=True)
    found = calibrating.calibrate(
        calibrating.QUICK if quick else calibrating.THOROUGH, tell=lambda what: talk.print(f"measuring {what} …")
    )
    where = calibrating.save(found)
    if as_json:
        print(msgspec.json.encode(found).decode())
    else:
        tables.print_rows(calibrating.rows(found), Console())
    talk.print(f"kept in {where}")


@cli.command()
@click.option("--profile", default="llama-3.1-8b/h100-sxm", show_default=True, metavar="MODEL/GPU")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8000, show_default=True, type=int, help="0 takes a free one.")
@click.option("--max-num-seqs", default=16, show_default=True, type=int)
@click.option("--speed", default=1.0, show_default=True, type=float, help="How much faster than life it runs.")
@click.option("--log", metavar="FILE", help="Write log: a frame a request.")
def sim(profile: str, host: str, port: int, max_num_seqs: int, speed: float, log: str | None) -> None:
    """Serve the simulated endpoint: an OpenAI-compatible server that only pretends to be a model on a GPU."""
    from harness.sim import endpoint
    from harness.sim import profile as profiles

    chosen = profiles.profile(profile, max_num_seqs=max_num_seqs, speed=speed)
    endpoint.serve(chosen, host, port, log=log, ready=lambda url: print(f"ready {url}", flush=True))


def _resolve(
    path: str | None,
    flags: dict[str, Any],
    header: tuple[str, ...],
    extra_body: str | None,
    server_meta: tuple[str, ...],
    levels: str | None,
    rate: str | None,
    workers: str | None,
    price_per_mtok: str | None,
) -> Scenario:
    """The scenario file with the flags laid over it."""
    import msgspec

    from harness import scenario as scenarios

    headers = dict(_header(each) for each in header)  # a value that its shell split off is no scenario's path
    tree: dict[str, Any] = msgspec.to_builtins(scenarios.load(path)) if path else {}

    def put(section: str, key: str, value: Any) -> None:
        tree.setdefault(section, {})[key] = value

    for flag, value in flags.items():
        if value is not None:
            put(*_FLAGS[flag], value)
    if flags.get("max_concurrency") is not None:
        put("ramp", "levels", None)  # a flag beats the file's levels
    if levels is not None:
        put("ramp", "levels", units.levels(levels))
        put("ramp", "rates", None)
    if rate is not None:
        put("ramp", "rates", units.rates(rate))
        if levels is None:
            put("ramp", "levels", None)  # a flag beats the file's levels
    if price_per_mtok is not None:
        put("hardware", "price_per_mtok", units.prices(price_per_mtok))
    if workers is not None:
        put("ramp", "workers", None if workers == "auto" else units.count(workers, "--workers"))
    if extra_body is not None:
        put("target", "extra_body", _json(extra_body, "--extra-body", '{"top_p": 0.9}'))
    if headers:
        put("target", "headers", headers)
    if server_meta:
        put("target", "server_meta", _facts(server_meta))
    if tree.get("target", {}).get("url") == "sim:" and flags.get("max_num_seqs") is not None:
        put("sim", "max_num_seqs", flags["max_num_seqs"])
    return scenarios.build(tree, place=path or "command line")


def _json(text: str, flag: str, example: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise HarnessError(f"not JSON: {error}", place=flag, way_out=f"write it like '{example}'") from None
    if not isinstance(value, dict):
        raise HarnessError("not a JSON object", place=flag, way_out=f"write it like '{example}'")
    return value


def _facts(given: tuple[str, ...]) -> dict[str, str]:
    """Facts given one by one, or as the path of a JSON file that holds an object of them."""
    facts: dict[str, str] = {}
    for each in given:
        if "=" in each or not Path(each).is_file():
            facts.update([_pair(each, "=", "--server-meta")])
            continue
        read = _json(Path(each).read_text(encoding="utf-8"), "--server-meta", '{"version": "1.0"}')
        facts.update({key: str(value) for key, value in read.items()})
    return facts


def _pair(text: str, mark: str, flag: str) -> tuple[str, str]:
    key, found, value = text.partition(mark)
    if not found or not key.strip():
        raise HarnessError(f"{text!r} has no '{mark}'", place=flag, way_out=f"write it like name{mark}value")
    return key.strip(), value.strip()


def _header(text: str) -> tuple[str, str]:
    """A header's name and value; what is no header is not repeated, it may be a key."""
    name, found, value = text.partition(":")
    if not found or not name.strip() or not value.strip():
        raise HarnessError("not a name and a value", place="--header", way_out="write it like 'Name: value', in quotes")
    return name.strip(), value.strip()


def _shown(arguments: list[str]) -> list[str]:
    """The command for the manifest, without the values of headers and of fields that may be secret."""
    from harness import secrecy

    plain = [secret for secret in _secrets if len(secret) >= 8]  # a shorter one may be any number here
    out: list[str] = []
    flag = ""
    for argument in arguments:
        name, found, value = argument.partition("=")
        if not flag and found and name in ("--header", "--extra-body"):
            out, flag, argument = [*out, name], name, value
        if flag == "--header":
            argument = f"{argument.partition(':')[0]}: {secrecy.HIDDEN}"
        elif flag == "--extra-body":
            argument = json.dumps(secrecy.shown(_json(argument, flag, "")))
        flag = argument if not flag and argument in ("--header", "--extra-body") else ""
        out.append(secrecy.redact(argument, plain))
    return out


def _write_reports(
    folder: Path, summary: Summary, manifest: dict[str, Any], *, plots: bool
) -> list[tuple[str, str | Path]]:
    """summary.json and the files for people; what was made, with its name."""
    from harness import store
    from harness.report import page
    from harness.report import plots as plotting

    store.write_json(folder / store.SUMMARY, summary)
    paths: list[tuple[str, str | Path]] = [("result folder", folder), ("summary", folder / store.SUMMARY)]
    if plots:
        plotting.curve_png(summary, manifest, folder / "curve.png")
        (folder / "report.html").write_text(page.html(summary, manifest), encoding="utf-8")
        paths += [("report", folder / "report.html"), ("curve", folder / "curve.png")]
    (folder / "report.md").write_text(page.markdown(summary, manifest), encoding="utf-8")
    return paths


def _print(
    summary: Summary, manifest: dict[str, Any], paths: list[tuple[str, str | Path]], *, as_json: bool, quiet: bool
) -> None:
    """Data to stdout: the JSON if asked for, else the table."""
    import msgspec

    from harness.report import tables

    if as_json:
        print(json.dumps(msgspec.to_builtins(summary), ensure_ascii=False))
        if quiet:
            return
    if not quiet:
        tables.print_summary(summary, manifest, paths, _console(stderr=as_json))


def _console(*, stderr: bool) -> Console:
    """A console that nobody need listen to: `| head`, a terminal that is gone."""
    from rich.console import Console

    class Talk(Console):
        def on_broken_pipe(self) -> None:
            self.quiet = True
            _to_nobody(self.file)

    return Talk(stderr=stderr)


def _to_nobody(stream: IO[str]) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    main()
