"""The options of `knee run`: names, help, heading, and the field of the scenario that each sets.

The kind of an option is written here, not taken from the field's type: `knee run --help` does not import the scenario.
A test compares every option with its field.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import click

from harness.cli.grouped import F, Spec, field, option, under
from harness.spec.work import APIS

target, workload, ramp, hardware, sim = (
    partial(field, section) for section in ("target", "workload", "ramp", "hardware", "sim")
)


class ApiName(click.Choice[str]):
    """The name of an API: Knee's own, or one that another package adds."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Take the name of a plug-in too, without loading it."""
        from harness.base import plugins

        if value not in self.choices and value in plugins.names(plugins.DIALECTS):
            return value
        return super().convert(value, param, ctx)


_HEADINGS: tuple[tuple[str, *tuple[Spec, ...]], ...] = (
    (
        "Common options",
        option(
            "--url",
            multiple=True,
            metavar="URL",
            help="Endpoint, like http://host:8000; 'sim:' is the simulated one. Several: replicas of one.",
            with_resume=True,
        ),
        target("--model", metavar="NAME", help="Model name; needed only if the server has several."),
        target("--api-key-env", metavar="VAR", help="Environment variable that holds the API key."),
        workload("--input-tokens", metavar="N", help="Prompt length in tokens; default 512."),
        workload("--output-tokens", metavar="N", help="Answer length in tokens; default 128."),
        option(
            "--levels", metavar="1,2,4", help="Requests in flight, level by level; default: until the knee is found."
        ),
        option("--rate", metavar="R[,R…]", help="Requests per second instead; auto seeks the most within --slo."),
        option(
            "--slo", metavar="NAME=TIME,…", help="Limits, like ttft_p99=2s,itl_p99=50ms,e2e=10s; finds the SLO knee."
        ),
        ramp("--max-seconds", metavar="TIME", help="End the run after this long."),
        option("--out", metavar="DIR", help="Result folder; default results/NAME-TIME."),
    ),
    (
        "Endpoint",
        target(
            "--api",
            type=ApiName(APIS),
            metavar="NAME",
            help=f"One of {', '.join(APIS)}; default chat.",
            with_resume=True,
        ),
        option(
            "--header",
            "header",
            multiple=True,
            metavar="K:V",
            help="Extra header; its value is not stored. V may be env:NAME.",
            with_resume=True,
        ),
        option("--extra-body", metavar="JSON", help="Fields added to every request."),
        option("--omit", multiple=True, metavar="FIELD,…", help="Fields left out of every request, like ignore_eos."),
        target("--request-timeout", metavar="TIME", help="Deadline of one request; default 600s."),
        target("--wait", metavar="TIME", help="Wait for a server that does not answer; default 0, during the run 5s."),
        target("--max-rps", type=float, metavar="R", help="Quota of the endpoint, requests per second."),
        target("--stream/--no-stream", default=None, help="Whether answers come piece by piece; default: they do."),
        target("--ca-file", metavar="PEM", help="Authorities to trust in place of the system's."),
        target("--insecure", is_flag=True, default=None, help="Take any certificate; the result says so."),
        target(
            "--transport",
            type=click.Choice(["socket", "httpx"]),
            help="httpx: proxies, HTTP/2, odd endpoints; default socket.",
        ),
        target(
            "--balance",
            type=click.Choice(["round-robin", "least-in-flight", "session"]),
            help="How requests are spread over several replicas; default round-robin.",
        ),
        target(
            "--allow-different-replicas",
            is_flag=True,
            default=None,
            help="Load replicas of different models, versions or limits together.",
        ),
        target("--session-header", metavar="NAME", help="Send each session's id in this header, for a gateway."),
        target("--traceparent", is_flag=True, default=None, help="Send a W3C trace id, another with each request."),
        target("--metrics-url", metavar="URL", help="The server's Prometheus page; default /metrics on its host."),
        option("--exporter", multiple=True, metavar="URL", help="Page of a DCGM or node exporter of what serves."),
        option("--server-meta", multiple=True, metavar="K=V", help="Facts about the server for the manifest."),
    ),
    (
        "Workload",
        option(
            "--dataset",
            metavar="FILE",
            help="Requests or lengths from a file, a trace or a result folder; FORMAT:FILE names its format.",
            with_resume=True,
        ),
        option("--skip-broken", is_flag=True, help="Leave out what of the dataset cannot be read, and count it."),
        option("--canaries", is_flag=True, help="Check that answers under load are those of an unloaded server."),
        option("--questions", metavar="FILE", help="Canaries from a file, as JSON lines, with their right answers."),
        workload("--tokenizer", metavar="PATH|ID", help="Makes prompts exact; default: words, counted by the server."),
        option(
            "--trust-remote-code",
            is_flag=True,
            help="Run the code that the tokenizer's folder brings.",
            with_resume=True,
        ),
        workload("--inputs", metavar="N", help="Texts of a request of embeddings, rerank or score; default 1."),
        workload("--seed", type=int, metavar="N", help="Seed of the prompts; default: a new one each run."),
    ),
    (
        "Load",
        ramp(
            "--max-concurrency", metavar="N", help="Bound of the search without --levels, and of --rate; default 1024."
        ),
        ramp("--quick", is_flag=True, default=None, help="End the search at its first answer."),
        ramp("--level-seconds", metavar="TIME", help="Window of every level; default: what the answer needs."),
        ramp("--duration", metavar="TIME", help="Soak: one window this long, and how the figures move over it."),
        ramp("--knee-share", type=float, metavar="SHARE", help="Load of a soak without --levels; default 0.8."),
        ramp("--precision", type=float, metavar="SHARE", help="Measure every level until ± so much, like 0.02."),
        ramp("--repeat", metavar="N", help="Measure all levels N times."),
        ramp(
            "--arrivals",
            metavar="KIND",
            help="Of --rate: constant, gamma(K) (bursts: K < 1); default poisson. With rates of their own, of which "
            "R is the mean: series(0s:10,60s:40), wave(period=60s,low=5,high=20), "
            "spike(period=120s,for=10s,low=5,high=50); trace, trace(speed=2): the times of --dataset.",
        ),
        option(
            "--burstiness",
            type=click.FloatRange(0.001),
            metavar="K",
            help="As vLLM has it: the same as --arrivals 'gamma(K)'.",
        ),
        ramp(
            "--start",
            type=click.Choice(["staggered", "burst", "batch"]),
            help="How a level's new slots begin; batch: all at once, and again when all are over.",
        ),
        ramp("--think", metavar="TIME", help="Pause of a slot behind each answer, like 2s or 500ms..5s."),
        ramp("--keep-going", is_flag=True, default=None, help="Go on past a level of --levels or --rate that fails."),
        ramp("--probe", type=click.Choice(["prefill", "decode"]), help="Measure one phase alone."),
        option("--workers", metavar="N|auto", help="Load-generating processes; default auto, one for 256 streams."),
        option("--shard", metavar="I/N", help="Be the I-th of N machines that load together; docs/scale.md."),
        option("--start-at", metavar="TIME", help="When the shards' first level begins, like 2030-01-31T12:00:00Z."),
        option("--run-id", metavar="NAME", help="Of a run in shards; default: by scenario and start."),
        ramp("--ray", metavar="ADDRESS", help="Run the workers on this Ray cluster's nodes, auto or HOST:PORT."),
    ),
    (
        "Limits",
        option("--goodput", metavar="NAME:MS …", help="The limits of --slo as vLLM writes them: 'ttft:500 tpot:50'."),
        option("--slo-fail", is_flag=True, help="Exit status 99 if even the lowest load misses the SLO."),
        ramp("--max-ttft", metavar="TIME", help="Measure no level above one whose TTFT p99 exceeds this."),
        ramp("--max-requests", metavar="N", help="End the run after N requests."),
        ramp("--max-dollars", type=float, metavar="USD", help="End the run at this cost, by the prices below."),
        ramp("--max-disk", metavar="SIZE", help="End the run when its records take this much, like 10GB."),
    ),
    (
        "Prediction and cost",
        hardware("--gpu", metavar="KEY|host", help="GPU of the server, like h100-sxm; host measures this machine."),
        hardware("--gpus", type=int, metavar="N", help="How many GPUs serve; default as many as --tp."),
        hardware("--tp", type=int, metavar="N", help="GPUs that share a replica, where several serve."),
        hardware("--model-config", metavar="PATH|NAME", help="config.json, model folder or shipped name."),
        hardware(
            "--dtype", metavar="TYPE", help="Weights as the server loads them, like fp8; default as they are stored."
        ),
        hardware("--kv-dtype", metavar="TYPE", help="KV cache of the server, like fp8."),
        hardware(
            "--max-num-seqs", type=int, metavar="N", help="The server's limit of running requests (also of 'sim:')."
        ),
        hardware("--calibration", metavar="FILE", help="Profile of `knee calibrate model`, for a second prediction."),
        option("--host-cpus", metavar="0,1", help="Cores of this machine that serve, with --gpu host; default all."),
        hardware("--price", type=float, metavar="USD", help="Per GPU and hour."),
        option("--price-per-mtok", metavar="IN,OUT[,CACHED]", help="USD per million tokens of a hosted endpoint."),
    ),
    (
        "Simulated endpoint",
        sim("--profile", metavar="MODEL/GPU", help="What 'sim:' stands for; default llama-3.1-8b/h100-sxm."),
        sim("--speed", type=float, metavar="X", help="How many times faster than real time 'sim:' runs; default 1."),
    ),
    (
        "Output",
        option("--json", "as_json", is_flag=True, help="Print summary.json on stdout.", with_resume=True),
        option("--quiet", is_flag=True, help="No progress and no table.", with_resume=True),
        option(
            "--verbose",
            is_flag=True,
            help="Every remark with its advice, the details of the answer, and every table.",
            with_resume=True,
        ),
        option("--no-plots", is_flag=True, help="No curve.png and no report.html.", with_resume=True),
        option("--resume", metavar="DIR", help="Continue a run that ended early, with its own scenario."),
        option("--list", "list_ready", is_flag=True, help="List the ready scenarios with their questions and stop."),
        option("--print-scenario", is_flag=True, help="Print the resolved scenario as TOML and stop."),
        option("--print-requests", metavar="N", help="Print the first N requests as JSON lines and stop."),
        option(
            "--yes",
            is_flag=True,
            help="Answer yes to every question, like loading a public host.",
            with_resume=True,
        ),
        option(
            "--allow-env",
            multiple=True,
            metavar="NAME",
            help="Variable that a scenario or a resumed folder may send.",
            with_resume=True,
        ),
    ),
)


def options(command: F) -> F:
    """Give a command all options of `knee run`."""
    return options_without()(command)


def options_without(*names: str) -> Callable[[F], F]:
    """Give a command the options of `knee run`, in their order, but for those whose first name is among these."""

    def decorate(command: F) -> F:
        for heading, *specs in reversed(_HEADINGS):
            kept = [spec for spec in specs if spec.names[0] not in names]
            command = under(heading, *kept)(command)
        return command

    return decorate
