"""Real servers by each API that they speak: is every request answered, and are its tokens those of the server?

    python scripts/live/apis.py --out results/live-api
    python scripts/live/apis.py --only llama-completions,vllm-score

A server runs on core 0, knee on core 1, with the levels 1 and 4. The server's own counters, from before the run to
after it, stand in tokens.json next to the sums of the records. scripts/live/endpoints builds what is started here.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import msgspec
from servers import (
    LENGTHS,
    LIVE,
    Live,
    Processes,
    ServerError,
    Target,
    fetch,
    free_port,
    knee_run,
    llama_version,
    pin,
    serve_llama,
    serve_vllm,
    write,
)

from harness.observe import server
from harness.results.result import Result

MINILM = LIVE / "minilm"
LEVELS, LEVEL_SECONDS = "1,4", 8
APART, BEFORE = 0.01, 8  # of the tokens, for requests that were cut; requests that knee sends before the load
INPUTS = ["--input-tokens", "64", "--inputs", "4"]


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a run by the server's page of metrics, and by the records; None where it has no such counter.

    The server counts the few requests before the load as well, which have no record.
    """

    requests: int
    server_input: float | None
    input: int
    server_output: float | None
    output: int
    failed: int

    @property
    def wrong(self) -> list[str]:
        """Return what keeps the counts from being one.

        >>> Counts(requests=100, server_input=1060.0, input=1000, server_output=None, output=0, failed=0).wrong
        []
        >>> Counts(requests=100, server_input=1060.0, input=1000, server_output=900.0, output=600, failed=1).wrong
        ['1 requests failed', '900 output tokens by the server, 600 by the records']
        """
        found = [f"{self.failed} requests failed"] if self.failed else []
        for word, theirs, ours in (
            ("input", self.server_input, self.input),
            ("output", self.server_output, self.output),
        ):
            if theirs is None:
                continue
            before, cut = BEFORE * ours / max(1, self.requests), APART * ours
            if not ours - cut <= theirs <= ours + before + cut:
                found.append(f"{theirs:,.0f} {word} tokens by the server, {ours:,} by the records")
        return found


class Server(NamedTuple):
    title: str
    version: Callable[[], str]
    serve: Callable[[Processes], Target]


class Case(NamedTuple):
    """An API of a server."""

    server: str
    api: str
    options: list[str] = LENGTHS


def serve_llama_rank(processes: Processes) -> Target:
    """Return a reranker: the encoder with a made head (scripts/live/make_minilm.py --rank)."""
    port, slots, context = free_port(), 4, 512
    command = [str(LIVE / "llama/llama-server"), "-m", str(MINILM / "rank.gguf"), "--alias", "minilm-rank"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--reranking", "-np", str(slots), "-t", "1", "-tb", "1"]
    command += ["-c", str(slots * context), "-b", str(slots * context), "-ub", str(slots * context)]
    processes.start("llama-rank", [*command, "--metrics", "--no-webui"])
    processes.wait_ready(f"http://127.0.0.1:{port}/health")
    return Target(f"http://127.0.0.1:{port}", "minilm-rank", ("--model-config", str(MINILM / "model")))


def serve_vllm_pooling(processes: Processes) -> Target:
    """Return the encoder, whose scores are the cosine of two embeddings."""
    port = free_port()
    command = [str(LIVE / "vllm/bin/vllm"), "serve", str(MINILM / "model"), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--served-model-name", "minilm", "--dtype", "float32", "--runner", "pooling", "--max-num-seqs", "16"]
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0", "VLLM_NO_USAGE_STATS": "1"}
    processes.start("vllm-pooling", [*command, "--enforce-eager"], {**environment, "HF_HUB_OFFLINE": "1"})
    processes.wait_ready(f"http://127.0.0.1:{port}/health")
    return Target(f"http://127.0.0.1:{port}", "minilm", ("--model-config", str(MINILM / "model")))


def vllm_version() -> str:
    return pin("vllm.txt", "vllm-cpu")


SERVERS = {
    "llama": Server("llama-server", llama_version, serve_llama(4)),
    "llama-rank": Server("llama-server --reranking", llama_version, serve_llama_rank),
    "vllm": Server("vLLM", vllm_version, serve_vllm(16)),
    "vllm-pooling": Server("vLLM --runner pooling", vllm_version, serve_vllm_pooling),
}
CASES = [
    *(Case("llama", api) for api in ("completions", "llama-cpp", "responses", "anthropic")),
    Case("llama-rank", "rerank", INPUTS),
    *(Case("vllm", api) for api in ("completions", "responses", "anthropic")),
    *(Case("vllm-pooling", api, INPUTS) for api in ("embeddings", "score", "rerank")),
]
BY_NAME = {f"{case.server}-{case.api}": case for case in CASES}


def counted(target: Target) -> tuple[float | None, float | None]:
    """(input tokens, output tokens) that the server has counted since it began."""
    with fetch(f"{target.url}/metrics") as answer:
        found = server.figures(answer.read().decode())
    output = found.get("generation_tokens", found.get("ended_generation_tokens"))
    return found.get("prompt_tokens", found.get("computed_prompt_tokens")), output


def since(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def measure(name: str, target: Target, out: Path) -> list[str]:
    """One run with its counts; what is wrong with it."""
    case, about = BY_NAME[name], SERVERS[BY_NAME[name].server]
    options = ["--api", case.api, *case.options, "--levels", LEVELS, "--level-seconds", str(LEVEL_SECONDS)]
    input_before, output_before = counted(target)
    status, seconds, error = knee_run(target, out, [*options, "--no-plots"])
    live = Live(name=name, server=about.title, version=about.version(), limit=None, max_seconds=None)
    write(out, msgspec.structs.replace(live, seconds=round(seconds, 1), status=status, error=error))
    if not (out / "summary.json").exists():
        return [f"exit status {status}: {error}"]
    input_after, output_after = counted(target)
    records = Result.open(out).records
    counts = Counts(
        requests=len(records),
        server_input=since(input_before, input_after),
        input=sum(record.input_tokens or 0 for record in records),
        server_output=since(output_before, output_after),
        output=sum(record.output_tokens or 0 for record in records),
        failed=sum(bool(record.error) and record.error != "cancelled" for record in records),
    )
    (out / "tokens.json").write_bytes(msgspec.json.format(msgspec.json.encode(counts), indent=1) + b"\n")
    return ([] if status in (0, 3) else [f"exit status {status}"]) + counts.wrong


def main() -> None:
    parser = argparse.ArgumentParser(description="Real servers by each API that they speak.")
    parser.add_argument("--out", default="results/live-api", help="what the names of the folders begin with")
    parser.add_argument("--only", default=",".join(BY_NAME), help="names, with commas between them")
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    for name in names:
        if name not in BY_NAME:
            parser.error(f"no case '{name}'; there are {', '.join(BY_NAME)}")
        if (folder := Path(f"{arguments.out}-{name}")).exists():
            sys.exit(f"error: {folder}: the folder exists; remove it, or choose another --out")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    failed = 0
    for which, of_server in groupby(names, lambda name: BY_NAME[name].server):
        processes = Processes()
        try:
            target = SERVERS[which].serve(processes)
            for name in of_server:
                wrong = measure(name, target, Path(f"{arguments.out}-{name}"))
                failed += bool(wrong)
                print(f"{name}: {'; '.join(wrong) or 'as it should be'}", flush=True)
        except ServerError as error:
            print(f"{which}: {error}")
            failed += 1
        finally:
            processes.stop()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
