"""The options of `knee run`: names, help, heading, the fields of a scenario that each sets, and how its text is read.

A field's type and bounds are those of `scenario`, which is not imported here: `knee run --help` is fast. A test
compares every option with its field.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, get_args

from harness.base import units
from harness.base.errors import HarnessError
from harness.spec.choices import APIS, Balance, Phase, Start, Transport


class Option(NamedTuple):
    """One option; without `sets` it is of the command line alone."""

    names: str  # "--name", or "--name/--no-name"
    help: str
    metavar: str | None = None
    kind: type = str
    sets: tuple[str, ...] = ()  # paths of fields; of several, `read` gives those that it sets by their names
    read: Callable[[Any], Any] | None = None  # reads what was typed; None: the scenario reads it
    choices: Sequence[str] = ()
    plugins: str = ""  # entry points of other packages, whose names are choices too
    least: float | None = None
    name: str | None = None  # name of the parameter; None: that of the option
    multiple: bool = False
    also: tuple[str, ...] = ()  # other names of it
    bare: str = ""  # the value if no number follows
    with_resume: bool = False  # allowed together with --resume, which takes everything else from the folder

    def fields(self, value: Any) -> dict[str, Any]:
        """Return {path of a scenario's field: value} for a value that was typed for this option; {} if none was."""
        if not self.sets or value in (None, ()) or (value is False and self.read):
            return {}
        found = self.read(value) if self.read else value
        if len(self.sets) == 1:
            return {self.sets[0]: found}
        return {path: found[name] for path in self.sets if (name := path.rpartition(".")[2]) in found}


def _field(table: str, names: str, help: str, metavar: str | None = None, **more: Any) -> Option:
    """Return an option that sets the field of its own name in a table of the scenario."""
    name = names.partition("/")[0].removeprefix("--").replace("-", "_")
    return Option(names, help, metavar, sets=(f"{table}.{name}",), **more)


target, workload, ramp, hardware, sim, hooks = (
    partial(_field, table) for table in ("target", "workload", "ramp", "hardware", "sim", "hooks")
)


def json_object(text: str, flag: str = "--extra-body", example: str = '{"top_p": 0.9}') -> dict[str, Any]:
    """Return the JSON object that an option's text holds."""
    from harness.base import decoding

    with decoding.reading(flag, "JSON", f"write it like '{example}'"):
        value = decoding.json(text.encode())
    if not isinstance(value, dict):
        raise HarnessError("not a JSON object", place=flag, way_out=f"write it like '{example}'")
    return value


def headers(texts: Sequence[str]) -> dict[str, str]:
    """Return headers, values by name. The error does not quote the text, which may be a key."""
    headers: dict[str, str] = {}
    for text in texts:
        name, _, value = (part.strip() for part in text.partition(":"))
        if not name or not value:
            way_out = "write it like 'Name: value', in quotes"
            raise HarnessError("not a name and a value", place="--header", way_out=way_out)
        headers[name] = value
    return headers


def port(text: str, flag: str = "--live") -> int:
    """Return the number of a port, 0 for a free one."""
    if not (text.isascii() and text.isdigit() and int(text) < 1 << 16):
        raise HarnessError(f"{text!r} is no port", place=flag, way_out="give 1 to 65535, or the option alone")
    return int(text)


def _pools(texts: Sequence[str]) -> dict[str, str]:
    """Return {name of a pool: URL of its metrics page} from texts like name=URL.

    >>> _pools(["prefill=http://a:8100", "decode=http://b:8200"])
    {'prefill': 'http://a:8100', 'decode': 'http://b:8200'}
    """
    pairs = [each.partition("=") for each in texts]
    pools = {name: url for name, _, url in pairs if name and url}
    if len(pools) < len(pairs):
        way_out = "write it like prefill=http://HOST:8100, and each name once"
        raise HarnessError("it names no page of a pool", place="--pool-metrics", way_out=way_out)
    return pools


def _facts(texts: Sequence[str]) -> dict[str, str]:
    """Return facts about a server, by name, from texts that are K=V pairs or paths of JSON files with an object."""
    from pathlib import Path

    from harness.base import decoding

    facts: dict[str, str] = {}
    for each in texts:
        name, equals, value = each.partition("=")
        if not equals and os.path.isfile(each):
            example = '{"version": "1.0"}'
            with decoding.reading(f"--server-meta {each}", "a JSON file", f"write it like '{example}'"):
                text = decoding.content(Path(each)).decode()
            read = json_object(text, "--server-meta", example)
            facts.update({key: str(value) for key, value in read.items()})
        elif not equals or not name.strip():
            raise HarnessError(f"{each!r} has no '='", place="--server-meta", way_out="write it like name=value")
        else:
            facts[name.strip()] = value.strip()
    return facts


def _dataset(text: str) -> dict[str, Any]:
    """Return the file of a dataset, with its format if that is in front of it: plain:FILE."""
    name, colon, path = text.partition(":")
    named = bool(name and colon) and not text.startswith("hf:") and os.path.exists(path) and not os.path.exists(text)
    return {"path": path, "format": name} if named else {"path": text}


def _prefix(text: str) -> dict[str, Any]:
    tokens, _, pool = text.partition("x")
    place = "--prefix-tokens"
    return {"tokens": units.count(tokens, place), **({"pool": units.count(pool, place)} if pool else {})}


def _columns(text: str) -> dict[str, Any]:
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(what.strip() and name.strip() for what, _, name in pairs):
        raise HarnessError(f"{text[:60]!r} names no columns", place="--fields", way_out="write it like prompt=question")
    return {"fields": {what.strip(): name.strip() for what, _, name in pairs}}


def _urls(urls: Sequence[str]) -> dict[str, Any]:
    return {"urls": list(urls)} if len(urls) > 1 else {"url": urls[0]}


def _rate(text: str) -> dict[str, Any]:
    return {"search_rate": True} if text == "auto" else {"rates": units.rates(text)}


def _agents(text: str) -> dict[str, Any]:
    return {"arrivals": "trace"} if text == "recorded" else {"levels": units.levels(text)}


def _workers(text: str) -> int | None:
    return None if text == "auto" else units.count(text, "--workers")


def _names(texts: Sequence[str]) -> list[str]:
    """Return the names in comma-separated texts."""
    return [name.strip() for each in texts for name in each.split(",")]


OPTIONS: dict[str, tuple[Option, ...]] = {
    "Common options": (
        Option("--url", "Endpoint, like http://host:8000; 'sim:' is the simulated one. Several: replicas of one.",
               "URL", multiple=True, with_resume=True, sets=("target.url", "target.urls"), read=_urls),
        target("--model", "Model name; needed only if the server has several.", "NAME"),
        target("--api-key-env", "Environment variable that holds the API key.", "VAR"),
        workload("--input-tokens", "Prompt length in tokens; default 512.", "N"),
        workload("--output-tokens", "Answer length in tokens; default 128.", "N"),
        ramp("--levels", "Requests in flight, level by level; default: until the knee is found.",
             "1,2,4", read=units.levels),
        Option("--rate", "Requests per second instead; auto seeks the most within --slo.",
               "R[,R…]", sets=("ramp.rates", "ramp.search_rate"), read=_rate),
        Option("--slo", "Limits, like ttft_p99=2s,itl_p99=50ms,e2e=10s; finds the SLO knee.",
               "NAME=TIME,…", sets=("slo",), read=units.slo),
        ramp("--max-seconds", "End the run after this long.", "TIME"),
        Option("--out", "Result folder; default results/NAME-TIME.", "DIR"),
    ),
    "Endpoint": (
        target("--api", f"One of {', '.join(APIS)}; default chat.", "NAME",
               choices=APIS, plugins="knee.dialects", with_resume=True),
        Option("--header", "Extra header; its value is not stored. V may be env:NAME.",
               "K:V", multiple=True, with_resume=True, sets=("target.headers",), read=headers),
        target("--extra-body", "Fields added to every request.", "JSON", read=json_object),
        target("--omit", "Fields left out of every request, like ignore_eos.", "FIELD,…", multiple=True, read=_names),
        target("--request-timeout", "Deadline of one request; default 600s.", "TIME"),
        target("--wait", "Wait for a server that does not answer; default 0, during the run 5s.", "TIME"),
        target("--max-rps", "Quota of the endpoint, requests per second.", "R", kind=float),
        target("--stream/--no-stream", "Whether answers come piece by piece; default: they do.", kind=bool),
        target("--ca-file", "Authorities to trust in place of the system's.", "PEM"),
        target("--insecure", "Take any certificate; the result says so.", kind=bool),
        target("--transport", "httpx: proxies, HTTP/2, odd endpoints; default socket.", choices=get_args(Transport)),
        target("--balance", "How requests are spread over several replicas; default round-robin.",
               choices=get_args(Balance)),
        target("--versus", "A second way to spread them, measured too, to compare cache hits and TTFT.",
               choices=get_args(Balance)),
        target("--allow-different-replicas", "Load replicas of different models, versions or limits together.",
               kind=bool),
        hooks("--stop-replica", "Run this in one more level at the end: it stops one of several --url.", "COMMAND",
              with_resume=True),
        target("--session-header", "Send each session's id in this header, for a gateway.", "NAME"),
        target("--metrics-url", "The server's Prometheus page; default /metrics on its host.", "URL"),
        Option("--exporter", "Page of a DCGM exporter of the GPUs that serve.",
               "URL", multiple=True, sets=("target.exporters",), read=list),
        Option("--pool-metrics", "Prometheus page of a server behind a proxy, by its pool: prefill=http://HOST:8100.",
               "POOL=URL", multiple=True, sets=("target.pool_metrics",), read=_pools),
        target("--server-meta", "Facts about the server for the manifest.", "K=V", multiple=True, read=_facts),
    ),
    "Workload": (
        Option("--prefix-tokens", "Tokens that all prompts begin with, before their own; NxK: one of K such prefixes.",
               "N[xK]", sets=("workload.prefix",), read=_prefix),
        workload("--dataset",
                 "Requests or lengths from a file, a trace or a result folder; FORMAT:FILE names its format. "
                 "hf:ORG/NAME[:SPLIT], sharegpt: from Hugging Face's hub or its cache.",
                 "FILE", read=_dataset, with_resume=True),
        Option("--fields", "Names of the dataset's columns, like prompt=question,system=system_prompt.",
               "WHAT=NAME,…", sets=("workload.dataset",), read=_columns),
        Option("--skip-broken", "Leave out rows of the dataset that cannot be read, and count them.",
               kind=bool, sets=("workload.dataset",), read=lambda _: {"skip_broken": True}),
        Option("--skip-longer", "Leave out the dataset's requests with more tokens, and those that follow on them.",
               "N", sets=("workload.dataset",), read=lambda text: {"skip_longer": units.count(text, "--skip-longer")}),
        Option("--canaries", "Check that answers under load are those of an unloaded server.",
               kind=bool, sets=("quality",), read=lambda _: {}),
        Option("--questions", "Canaries from a file, as JSON lines, with their right answers.",
               "FILE", sets=("quality",), read=lambda path: {"file": path}),
        hooks("--audit-cache", "Report before the load what a prefix cache gives.", kind=bool),
        hooks("--reset-cache", "Empty the server's prefix cache before every level.", kind=bool),
        hooks("--before-level", "Run this before every level, without a shell.", "COMMAND",
              with_resume=True),
        workload("--tokenizer", "Makes prompts exact; default: words, counted by the server.", "PATH|ID"),
        Option("--trust-remote-code", "Run the code that the tokenizer's folder brings.", kind=bool, with_resume=True),
        workload("--inputs", "Texts of a request of embeddings, rerank or score; default 1.", "N"),
        Option("--size", "Size of a scenario that has several, like small; default: its first.", "NAME"),
        workload("--tool-time-scale", "Factor on the times that tools and users take; default 1.", "X", kind=float),
        Option("--agents", "Sessions of the dataset, or of the scenario, at once; recorded: as the dataset's began.",
               "N[,N…]|recorded", sets=("ramp.levels", "ramp.arrivals"), read=_agents),
        workload("--seed", "Seed of the prompts; default: a new one each run.", "N", kind=int),
    ),
    "Load": (
        ramp("--max-concurrency", "Bound of the search without --levels, and of --rate; default 1024.", "N"),
        ramp("--quick", "End the search at its first answer.", kind=bool),
        ramp("--level-seconds", "Window of every level; default: what the answer needs.", "TIME"),
        ramp("--duration", "Soak: one window this long, and how the figures move over it.", "TIME"),
        ramp("--knee-share", "Load of a soak without --levels; default 0.8.", "SHARE", kind=float),
        ramp("--precision", "Measure every level to this relative precision, like 0.02.", "SHARE", kind=float),
        ramp("--repeat", "Measure all levels N times.", "N"),
        ramp("--arrivals",
             "How requests of --rate arrive: constant, gamma(K) (bursts: K < 1); default poisson. With rates of "
             "their own, of which R is the mean: series(0s:10,60s:40), "
             "wave(period=60s,low=5,high=20), spike(period=120s,for=10s,low=5,high=50); trace, "
             "trace(speed=2): the times of --dataset.",
             "KIND"),
        Option("--burstiness", "vLLM's name for --arrivals 'gamma(K)'.",
               "K", kind=float, least=0.001, sets=("ramp.arrivals",), read="gamma({:g})".format),
        ramp("--start", "How a level's new slots begin; batch: all at once, and again when all are over.",
             choices=get_args(Start)),
        ramp("--think", "Pause of a slot after each answer, like 2s or 500ms..5s.", "TIME"),
        ramp("--keep-going", "Go on past a level of --levels or --rate that fails.", kind=bool),
        ramp("--probe", "Measure one phase alone.", choices=get_args(Phase)),
        ramp("--workers", "Load-generating processes; default auto, one for 256 streams.", "N|auto", read=_workers),
        Option("--shard", "Be the I-th of N machines that load together; docs/scale.md.", "I/N"),
        Option("--start-at", "When the shards' first level begins, like 2030-01-31T12:00:00Z.", "TIME"),
        Option("--run-id", "Name of a run in shards; default: by scenario and start.", "NAME"),
        ramp("--ray", "Run the workers on this Ray cluster's nodes, auto or HOST:PORT.", "ADDRESS"),
    ),
    "Limits": (
        Option("--goodput", "The limits of --slo as vLLM writes them: 'ttft:500 tpot:50'.",
               "NAME:MS …", sets=("slo",), read=units.goodput),
        ramp("--slo-confidence", "Confidence of --slo; default 0.95, 0.99 as MLPerf asks.", "SHARE", kind=float),
        ramp("--slo-fail", "Exit status 99 if even the lowest load misses the SLO.", kind=bool),
        ramp("--max-ttft", "Measure no level above one whose TTFT p99 exceeds this.", "TIME"),
        ramp("--max-requests", "End the run after N requests.", "N"),
        ramp("--max-dollars", "End the run at this cost, by the prices below.", "USD", kind=float),
        ramp("--max-disk", "End the run when its records take this much, like 10GB.", "SIZE"),
    ),
    "Prediction and cost": (
        hardware("--gpu", "GPU of the server, like h100-sxm; host measures this machine.", "KEY|host"),
        hardware("--gpus", "How many GPUs serve; default as many as --tp.", "N", kind=int),
        hardware("--tp", "GPUs that share a replica, if several serve.", "N", kind=int),
        hardware("--model-config", "config.json, model folder or shipped name.", "PATH|NAME"),
        hardware("--dtype", "Weights as the server loads them, like fp8; default as they are stored.", "TYPE"),
        hardware("--kv-dtype", "KV cache of the server, like fp8.", "TYPE"),
        hardware("--max-num-seqs", "The server's limit of running requests (also of 'sim:').", "N", kind=int),
        hardware("--calibration", "Profile of `knee calibrate model`, for a second prediction.", "FILE"),
        hardware("--host-cpus", "Cores of this machine that serve, with --gpu host; default all.",
                 "0,1", read=units.cpus),
        hardware("--price", "Dollars per GPU and hour.", "USD", kind=float),
        hardware("--price-per-mtok", "USD per million tokens of a hosted endpoint.",
                 "IN,OUT[,CACHED]", read=units.prices),
    ),
    "Simulated endpoint": (
        sim("--profile", "What 'sim:' stands for; default llama-3.1-8b/h100-sxm.", "MODEL/GPU"),
        sim("--speed", "How many times faster than real time 'sim:' runs; default 1.", "X", kind=float),
    ),
    "Output": (
        Option("--json", "Print summary.json on stdout.", kind=bool, name="as_json", with_resume=True),
        Option("--quiet", "No progress and no table.", kind=bool, with_resume=True),
        Option("--verbose", "Every remark with its advice, the details of the answer, and every table.",
               kind=bool, with_resume=True, also=("-v",)),
        Option("--no-plots", "No curve.png and no report.html.", kind=bool, with_resume=True),
        Option("--copy-to", "Copy the result there as levels end, like s3://BUCKET/RUN; docs/exports.md.", "URL",
               with_resume=True),
        Option("--open", "Open report.html in the browser.", kind=bool, name="open_report", with_resume=True),
        Option("--live", "Serve the page of the running measurement on this machine; default a free port.",
               "[PORT]", bare="0", with_resume=True),
        Option("--resume", "Continue a run that ended early, with its own scenario.", "DIR"),
        Option("--list", "List the ready scenarios with their questions and stop.", kind=bool, name="list_ready"),
        Option("--print-scenario", "Print the resolved scenario as TOML and stop.", kind=bool, also=("--dry-run",)),
        Option("--print-requests", "Print the first N requests as JSON lines and stop.", "N"),
        Option("--yes", "Answer yes to every question, like loading a public host.", kind=bool, with_resume=True),
        Option("--allow-env", "Variable that a scenario or a resumed folder may send.",
               "NAME", multiple=True, with_resume=True),
    ),

}  # fmt: skip
