"""One question a run, on a real vLLM: what do its flags and our limits show, and what was predicted before the load?

    python scripts/live/cases.py measure slo rate --out results/live
    python scripts/live/cases.py table results/live-slo results/live-rate

vLLM runs on core 0 and knee on core 1, as `scripts/live/vllm` has it. The servers that the cases need are started one
after the other, or with --wait all ahead. The table needs no more than the folders.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec
from servers import MODEL, Processes, ServerError, Target, free_folders, free_port, knee_run, llama_command
from table import measure_and_table, table

from harness.data.levels import LevelSummary
from harness.data.prediction import Band
from harness.data.summary import Summary

SCRIPTS = Path("scripts/live")
SEATS = 16
SHORT = ("--input-tokens", "64", "--output-tokens", "16")
USUAL = ("--input-tokens", "128", "--output-tokens", "64")
PLAIN = ("--scheduling-policy", "priority")  # which serves by arrival where all have the same priority
BLOCKS = "192"  # of 128 tokens: 12 for each of 16 requests, and 0.4 GB
CACHING = ("--enable-prefix-caching", "--enable-prompt-tokens-details")
CACHE_END = ("--num-gpu-blocks-override", "224")  # of 32 tokens: eight conversations of scripts/live/case-agents.toml
N_GRAM = '{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_max":4,"prompt_lookup_min":2}'
LLAMAS = ("two llama-servers",)  # in the place of vLLM's flags
HEAD = ["run", "what it shows", "measured tok/s", "predicted"]


class Case(NamedTuple):
    """A run: vLLM's flags, knee's options, and what its table says of the summary."""

    server: tuple[str, ...]
    options: tuple[str, ...]
    shows: Callable[[Summary], str]


# ---- what a run shows: pure ------------------------------------------------------------------------------------------


def ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:,.0f} ms"


def share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def busiest(summary: Summary) -> LevelSummary:
    return max(summary.levels, key=lambda level: level.load or 0.0)


def limit(summary: Summary) -> str:
    """Return the load that keeps the limits, with its ends."""
    rate = summary.knees.slo_rate
    found, what = (rate, "requests/s") if rate else (summary.knees.slo, "in flight")
    limits = ", ".join(sorted({each.limit for level in summary.levels for each in level.slo}))
    if found is None:
        return f"{limits}: not decided"
    value = "–" if found.value is None else f"{found.value:,.3g}"
    low, high = ("–" if end is None else f"{end:,.3g}" for end in (found.low, found.high))
    return f"{limits}: kept up to {value} {what} ({low} to {high})"


def classes(summary: Summary) -> str:
    """Return the wait of each class at the highest load."""
    found = busiest(summary).classes or {}
    return "TTFT p50 " + ", ".join(f"{name} {ms(each.ttft_s.p50)}" for name, each in found.items())


def waits(summary: Summary) -> str:
    """Return the times at the highest load."""
    level = busiest(summary)
    text = f"TTFT p50 {ms(level.ttft_s.p50)}, ITL p50 {ms(level.itl_s.p50)}, p99 {ms(level.itl_s.p99)}"
    hits = level.server.prefix_hit_fraction if level.server else None
    return f"{text}, {share(hits)} of the prompts cached" if hits else text


def drafts(summary: Summary) -> str:
    level = summary.levels[0]
    text = f"one stream {level.output_tokens_per_s.mean or 0:,.0f} tok/s"
    kept = level.server.acceptance if level.server else None
    return f"{text}, {share(kept)} of the drafted tokens kept" if kept is not None else text


def preempted(summary: Summary) -> str:
    level = busiest(summary)
    server = level.server
    count, usage = (server.preemptions, server.kv_usage) if server else (None, None)
    return f"{count or 0:,.0f} preemptions, KV use {share(usage)}, {share(level.error_rate)} errors"


def checked(summary: Summary) -> str:
    return ", ".join(f"{each.name} {each.outcome}" for each in summary.checks or ())


def held(summary: Summary) -> str:
    """Return how many agents the cache holds, and the hits that say so."""
    agents, found = summary.agents, [f"{share(x.cached_input_fraction)} with {x.load:g}" for x in summary.levels]
    text = f"prompts cached: {', '.join(found)}"
    if not agents:
        return text
    measured = "more than asked" if agents.measured_holds is None else f"about {agents.measured_holds:.1f}"
    return f"the cache holds {measured} agents, {agents.holds or '–'} predicted; {text}"


def levels(text: str, seconds: float) -> tuple[str, ...]:
    return ("--levels", text, "--level-seconds", f"{seconds:g}")


PREFIXES = ("--input-tokens", "100", "--prefix-tokens", "600x4", "--output-tokens", "32", *levels("16", 15))
LONG_PROMPTS = (str(SCRIPTS / "case-long-prompts.toml"),)
CASES = {
    "slo": Case(PLAIN, (*SHORT, "--slo", "ttft_p99=685ms", "--max-seconds", "240"), limit),
    "rate": Case(PLAIN, (*SHORT, "--rate", "auto", "--slo", "e2e_p90=1200ms", "--max-seconds", "110"), limit),
    "classes": Case(PLAIN, (str(SCRIPTS / "case-classes.toml"),), classes),
    "prefix-on": Case(CACHING, PREFIXES, waits),
    "prefix-off": Case(PLAIN, PREFIXES, waits),
    "chunked-on": Case(("--max-num-batched-tokens", "256"), LONG_PROMPTS, waits),
    "chunked-off": Case(("--no-enable-chunked-prefill",), LONG_PROMPTS, waits),
    "ngram-on": Case(("--speculative-config", N_GRAM), (*USUAL, *levels("1,8", 10)), drafts),
    "ngram-off": Case(PLAIN, (*USUAL, *levels("1,8", 10)), drafts),
    "checks": Case(LLAMAS, ("checks", "--max-seconds", "540"), checked),
    "preempted": Case(
        ("--num-gpu-blocks-override", "24"),
        ("--input-tokens", "128", "--output-tokens", "256", *levels("16", 25)),
        preempted,
    ),
    "agents-end": Case((*CACHING, "--block-size", "32", *CACHE_END), (str(SCRIPTS / "case-agents.toml"),), held),
}


def row(folder: Path) -> list[str]:
    summary = msgspec.json.decode((folder / "summary.json").read_bytes(), type=Summary)
    name = next(name for name in sorted(CASES, key=len, reverse=True) if f"live-{name}" in folder.name)
    return [f"`{folder.name}`", CASES[name].shows(summary), *rates(summary)]


def rates(summary: Summary) -> tuple[str, str]:
    """Return output tok/s, of the plateau where there is one, and as it was predicted."""
    prediction, curve = summary.prediction, summary.curve
    if curve and curve.plateau_tokens_per_s.value:
        band = prediction.plateau_tokens_per_s if prediction else None
        return f"plateau {curve.plateau_tokens_per_s.value:,.0f}", shown(band)
    top = max(summary.levels, key=lambda level: level.output_tokens_per_s.mean or 0.0)
    rows = {each.concurrency: each.output_tokens_per_s for each in prediction.levels} if prediction else {}
    at = f"{top.concurrency} in flight" if top.concurrency is not None else f"{top.rate:,.3g} requests/s"
    return f"{top.output_tokens_per_s.mean or 0:,.0f} with {at}", shown(rows.get(top.concurrency or 0))


def shown(band: Band | None) -> str:
    return "–" if band is None else f"{band.mid:,.0f} ({band.low:,.0f}–{band.high:,.0f})"


# ---- measuring -------------------------------------------------------------------------------------------------------


def start(processes: Processes, flags: Sequence[str]) -> Target:
    """Start vLLM with these flags, or two llama-servers; `wait_ready` says when they are there."""
    port = free_port()
    if flags == LLAMAS:
        processes.start("cases-kept", llama_command(port, 4, 4096))
        lost = processes.start("cases-lost", llama_command(other := free_port(), 4, 4096))
        replicas = ("--url", f"http://127.0.0.1:{other}", "--balance", "least-in-flight")
        stop = ("--stop-replica", f"kill -9 {lost.pid}")
        return Target(f"http://127.0.0.1:{port}", "toy", ("--tokenizer", str(MODEL), *replicas, *stop))
    command = [str(SCRIPTS / "vllm"), "--serve-only", "--port", str(port), "--log", f".live/log/vllm-{port}.log"]
    blocks = () if "--num-gpu-blocks-override" in flags else ("--num-gpu-blocks-override", BLOCKS)
    processes.start(f"cases-{port}", [*command, "--", *flags, *blocks], pin_core=False)
    return Target(f"http://127.0.0.1:{port}", "toy", ("--tokenizer", str(MODEL), "--model", "toy"))


def measure(names: Sequence[str], out: str, more: Sequence[str], *, wait: bool) -> list[Path]:
    """Return the folders of the runs that were made."""
    facts = ["--gpu", "host", "--host-cpus", "0", "--model-config", str(MODEL), "--max-num-seqs", str(SEATS)]
    made, of_flags = list[Path](), dict[tuple[str, ...], Target]()
    with ExitStack() as stack:
        processes = Processes()
        stack.callback(processes.stop)
        for flags in dict.fromkeys(CASES[name].server for name in names) if wait else ():
            of_flags[flags] = start(processes, flags)
        for target in of_flags.values():
            processes.wait_ready(f"{target.url}/health")
        if wait:
            input("all servers are ready: press Enter")
        for name in names:
            case, folder = CASES[name], Path(f"{out}-{name}")
            if case.server not in of_flags:
                processes.stop()
                of_flags = {case.server: start(processes, case.server)}
                processes.wait_ready(f"{of_flags[case.server].url}/health")
            print(f"\n{name}: into {folder}", file=sys.stderr)
            words = [*case.options, *(facts if case.server != LLAMAS else ()), *more, "--no-plots"]
            status, _, _ = knee_run(of_flags[case.server], folder, words)
            made += [folder] if (folder / "summary.json").exists() else []
            if status < 0 or status in (129, 130, 143):
                break
    return made


def main() -> None:
    parser, measuring = measure_and_table("What vLLM's flags and our limits show, one run each.")
    measuring.add_argument("names", nargs="+", choices=CASES)
    measuring.add_argument("--out", default="results/live", help="what the names of the folders begin with")
    measuring.add_argument("--wait", action="store_true", help="start all servers, then wait for Enter")
    measuring.add_argument("--option", action="append", default=[], help="one more word of knee, in every run")
    arguments = parser.parse_args()
    if arguments.verb == "table":
        print(table(HEAD, [row(folder) for folder in arguments.folders]))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    free_folders([Path(f"{arguments.out}-{name}") for name in arguments.names])
    try:
        made = measure(arguments.names, arguments.out, arguments.option, wait=arguments.wait)
    except ServerError as error:
        sys.exit(f"error: {error}")
    print(f"\n{table(HEAD, [row(folder) for folder in made])}")


if __name__ == "__main__":
    main()
