"""The options and verbs of other load generators: which of ours they are, or what to type in their place.

They are those of `vllm bench serve`, SGLang's `bench_serving`, GuideLLM, AIPerf, LLMPerf, k6, wrk and hey, each with
the meaning that it has there. A name that would need a guess is no alias: its error says what to type.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

# By our option: the names that mean the same.
ALIASES: dict[str, tuple[str, ...]] = {
    "--url": ("--base-url", "--target", "-u"),
    "--model": ("-m",),
    "--request-timeout": ("--request-timeout-seconds",),
    "--stream": ("--streaming",),
    "--input-tokens": (
        "--input-len", "--isl", "--random-input-len", "--random-input", "--synthetic-input-tokens-mean",
        "--mean-input-tokens", "--prompt-tokens",
    ),
    "--output-tokens": (
        "--output-len", "--osl", "--random-output-len", "--random-output", "--output-tokens-mean",
        "--mean-output-tokens", "--max-tokens",
    ),
    "--dataset": ("--dataset-path", "--input-file"),
    "--seed": ("--random-seed",),
    "--levels": ("--concurrency", "--num-concurrent-requests", "--vus", "-c"),
    "--rate": ("--request-rate", "--rps", "--qps"),
    "--burstiness": ("--arrival-smoothness",),
    "--max-requests": ("--num-prompts", "--request-count", "--num-requests", "-n"),
    "--tp": ("--tensor-parallel-size",),
    "--kv-dtype": ("--kv-cache-dtype",),
    "--out": ("--output-dir", "--result-dir", "--artifact-dir", "--output-artifact-dir", "-o"),
}  # fmt: skip

_ALREADY = "leave it out: {}"
# Names without an equal here, and what to type in their place.
ELSEWHERE: dict[tuple[str, ...], str] = {
    ("--benchmark-duration", "--run-time", "-d", "-z"): (
        "give --level-seconds 60s for each level, or --max-seconds 60s for the whole run"
    ),
    ("--backend", "--endpoint-type", "--request-type", "--service-kind"): "give --api, like --api completions",
    ("--endpoint",): "write the path behind the address, like http://host:8000/v1/completions",
    ("--host", "--port"): "give --url http://HOST:PORT",
    ("--api-key", "--token"): "put the key into a variable, export MY_KEY=…, and give --api-key-env MY_KEY",
    ("-H",): "give --header 'Name: value'",
    ("--dataset-name", "--public-dataset", "--custom-dataset-type", "--data"): (
        "give --dataset FILE, or lengths: --input-tokens 512 --output-tokens 128"
    ),
    ("--rate-type", "--strategy"): "give --levels 1,8,64 or --rate 5,10; without either Knee searches the knee",
    ("--arrival-pattern",): "give --arrivals poisson or --arrivals constant",
    ("--isl-stddev", "--synthetic-input-tokens-stddev", "--stddev-input-tokens", "--random-range-ratio"): (
        "write the spread with the length: --input-tokens '512±64' or 400..600"
    ),
    ("--osl-stddev", "--output-tokens-stddev", "--stddev-output-tokens"): (
        "write the spread with the length: --output-tokens '128±32' or 100..200"
    ),
    ("--ramp-up-strategy", "--ramp-up-start-rps", "--stage", "--stages"): (
        "give --arrivals 'series(0s:10,60s:40)'; without --levels the load rises by itself"
    ),
    ("--batch-size",): "give --levels 8 --start batch for static batches of 8",
    ("--timeout",): "give --request-timeout 60s for one request, or --max-seconds 10m for the whole run",
    ("--served-model-name",): "give --model, the name that the server lists, and --tokenizer, its folder",
    ("--temperature", "--top-p", "--top-k", "--min-p"): """give --extra-body '{"temperature": 0.7}'""",
    ("--ignore-eos",): _ALREADY.format("answers have the length that is asked for"),
    ("--warmup", "--num-warmups", "--warmup-requests", "--warmup-request-count", "--warmup-percent"): (
        _ALREADY.format("every level warms up until it is steady")
    ),
    ("--save-result", "--save-detailed", "--append-result"): _ALREADY.format("every run writes a result folder"),
    ("--percentile-metrics", "--metric-percentiles"): _ALREADY.format("p50, p90, p95 and p99 are in summary.json"),
    ("--plot", "--plot-timeline"): _ALREADY.format("every run draws curve.png and report.html"),
    ("--result-filename", "--output", "--output-path", "--output-file", "--profile-export-file"): (
        "give --out DIR, the result folder; --json prints the summary"
    ),
    ("--disable-tqdm", "--silent", "-q"): "give --quiet",
    ("--lora-modules",): "write [[class]] tables with a model each, as docs/workloads.md shows",
}
# The same of verbs.
VERBS = {"bench": "run", "benchmark": "run", "profile": "run", "sweep": "run", "test": "run", "serve": "sim"}

_OURS = {alias: name for name, aliases in ALIASES.items() for alias in aliases}
WAY_OUT = {name: way_out for names, way_out in ELSEWHERE.items() for name in names}


def ours(arguments: Sequence[str], alias: str, known: Collection[str]) -> list[str] | None:
    """Return the command line with our option in place of that alias; None where it is no alias of a known option.

    >>> ours(["--isl=512", "chat"], "--isl", ["--input-tokens"])
    ['--input-tokens=512', 'chat']
    >>> ours(["-c8"], "-c", ["--levels"])
    ['--levels', '8']
    """
    name = _OURS.get(alias, "")
    if name not in known:
        return None
    found: list[str] = []
    for argument in arguments:
        if argument == alias or argument.startswith(f"{alias}="):
            found.append(name + argument[len(alias) :])
        elif not alias.startswith("--") and argument.startswith(alias):
            found += [name, argument[len(alias) :]]
        else:
            found.append(argument)
    return found
