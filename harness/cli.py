"""The command line: verbs only. Parses, connects the rooms, prints errors; decides nothing.

stdout is data, stderr is talk. Rooms are imported inside the verbs, so that `knee --help` starts at once.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness import __version__, units
from harness.errors import HarnessError

if TYPE_CHECKING:
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


def main() -> None:
    """The `knee` command; a bug ends with its traceback and exit status 70."""
    try:
        cli()
    except Exception:  # noqa: BLE001  # the one place: a traceback and the status that says bug
        import traceback

        traceback.print_exc()
        sys.exit(70)


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
@click.option("--header", "header", multiple=True, metavar="K:V", help="Extra header; its value is not stored.")
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
@click.option("--start", type=click.Choice(["staggered", "burst"]), help="How a level's new slots begin.")
@click.option("--rate", "--request-rate", metavar="R[,R…]", help="Open loop: requests per second, a level each.")
@click.option("--arrivals", type=click.Choice(["poisson", "constant"]), help="Of an open loop; default poisson.")
@click.option("--repeat", metavar="N", help="Hold the whole ramp so often.")
@click.option("--workers", metavar="N|auto", help="Load-generating processes; default auto, one for 256 streams.")
@click.option("--gpu", metavar="KEY", help="GPU of the server, like h100-sxm, for the prediction and cost.")
@click.option("--gpus", type=int, help="How many GPUs serve.")
@click.option("--price", type=float, metavar="USD", help="Per GPU and hour.")
@click.option("--model-config", metavar="PATH|NAME", help="config.json, model folder or shipped name.")
@click.option("--max-num-seqs", type=int, help="The server's limit of running requests (also of 'sim:').")
@click.option("--profile", metavar="MODEL/GPU", help="What 'sim:' stands for; default llama-3.1-8b/h100-sxm.")
@click.option("--speed", type=float, help="How much faster than life 'sim:' runs; default 1.")
@click.option("--out", metavar="DIR", help="Result folder; default results/NAME-TIME.")
@click.option("--json", "as_json", is_flag=True, help="Print summary.json on stdout.")
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
    out: str | None,
    as_json: bool,
    quiet: bool,
    no_plots: bool,
    print_scenario: bool,
    **flags: Any,
) -> None:
    """Measure an endpoint: hold levels of concurrency, fit the curve, write a result folder."""
    from harness import scenario as scenarios

    resolved = _resolve(scenario, flags, header, extra_body, server_meta, levels, rate, workers)
    if print_scenario:
        print(scenarios.to_toml(resolved), end="")
        return
    if resolved.target.url is None:
        raise click.UsageError("no endpoint: give --url http://host:8000, or --url sim: for the simulated one")
    from rich.console import Console

    from harness.experiment import run as experiment
    from harness.report.live import Progress

    talk = Console(stderr=True)
    with Progress(talk, quiet=quiet) as view:
        outcome = experiment.run(resolved, out, view, shlex.join(["knee", *_shown(sys.argv[1:])]))
    paths = _write_reports(outcome.folder, outcome.summary, outcome.manifest, plots=not no_plots)
    _print(outcome.summary, outcome.manifest, paths, as_json=as_json, quiet=quiet)
    sys.exit(outcome.status)


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
) -> Scenario:
    """The scenario file with the flags laid over it."""
    import msgspec

    from harness import scenario as scenarios

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
    if workers is not None:
        put("ramp", "workers", None if workers == "auto" else units.count(workers, "--workers"))
    if extra_body is not None:
        put("target", "extra_body", _json(extra_body, "--extra-body", '{"top_p": 0.9}'))
    if header:
        put("target", "headers", dict(_pair(each, ":", "--header") for each in header))
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


def _shown(arguments: list[str]) -> list[str]:
    """The command for the manifest, without header values."""
    out, hide = [], False
    for argument in arguments:
        name, found, value = argument.partition("=")
        if hide or (name == "--header" and found):
            key = (value if found and name == "--header" else argument).partition(":")[0]
            argument = f"--header={key}:…" if not hide else f"{key}:…"
            hide = False
        elif argument == "--header":
            hide = True
        out.append(argument)
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
    from rich.console import Console

    from harness.report import tables

    if as_json:
        print(json.dumps(msgspec.to_builtins(summary), ensure_ascii=False))
        if quiet:
            return
    if not quiet:
        tables.print_summary(summary, manifest, paths, Console(stderr=as_json))


if __name__ == "__main__":
    main()
