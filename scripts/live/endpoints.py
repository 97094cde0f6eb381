"""A real encoder on core 0 and knee on core 1: does a run end with a knee, and are its tokens those of the server?

    python scripts/live/endpoints.py --out results/live-embeddings

The server is llama-server with MiniLM (scripts/live/endpoints builds both). It counts twice: in the usage of each
answer, which knee keeps, and on its page of metrics. A third count is of the texts themselves: those of some requests
are made again from the run's seed, and its tokenizer is asked for their length.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from servers import LIVE, Live, Processes, Target, fetch, free_port, knee_run, llama_version, write

from harness.data.manifest import Manifest
from harness.data.record import Record
from harness.observe import server
from harness.results.result import Result
from harness.spec.work import Unit
from harness.workload.source import DOCUMENT, Uniform, together
from harness.workload.text import COMMON

MODEL = LIVE / "minilm/model"
SLOTS, CONTEXT = 8, 512
INPUT_TOKENS, MAX_SECONDS = 32, 120.0
ASKED_AGAIN = 20  # requests whose texts the server's tokenizer counts
APART = 0.01  # of the server's tokens, up to which the two counts are one: requests that were cut, and the checks


class Counts(msgspec.Struct, frozen=True):
    """Input tokens of a run, by both sides."""

    server: float  # by its page of metrics, from before the run to after it
    records: int  # by the usage of every answer
    tokenized: list[tuple[int, int]]  # of single requests: by its tokenizer, and in their records

    @property
    def wrong(self) -> list[str]:
        """Return what keeps the counts from being one.

        >>> Counts(1000.0, 995, [(34, 34)]).wrong, Counts(1000.0, 900, [(34, 34)]).wrong
        ([], ['1,000 tokens by the server, 900 by the records'])
        """
        found = [
            f"{theirs} tokens by the tokenizer, {ours} in the record"
            for theirs, ours in self.tokenized
            if theirs != ours
        ]
        if not self.records or abs(self.server / self.records - 1) > APART:
            found.append(f"{self.server:,.0f} tokens by the server, {self.records:,} by the records")
        return found


def serve(processes: Processes) -> Target:
    port = free_port()
    command = [str(LIVE / "llama/llama-server"), "-m", str(LIVE / "minilm/minilm.gguf"), "--alias", "all-minilm-l6-v2"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--embedding", "--pooling", "mean", "-np", str(SLOTS)]
    command += ["-c", str(CONTEXT * SLOTS), "-b", str(CONTEXT * SLOTS), "-ub", str(CONTEXT * SLOTS)]
    processes.start("llama-embedding", [*command, "-t", "1", "-tb", "1", "--metrics", "--no-webui"])
    processes.wait_ready(f"http://127.0.0.1:{port}/health")
    return Target(f"http://127.0.0.1:{port}", "all-minilm-l6-v2", ("embeddings", "--model-config", str(MODEL)))


def prompt_tokens(target: Target) -> float:
    """Input tokens that the server has computed since it began."""
    with fetch(f"{target.url}/metrics") as answer:
        return server.figures(answer.read().decode())["computed_prompt_tokens"]


def texts(manifest: Manifest, number: int) -> list[str]:
    """Return the texts of a request, made again from the run's seed."""
    workload: Any = manifest.workload
    words = Uniform(words=COMMON, prompt_words=workload.prompt_words, output_tokens=0, seed=workload.seed, alike=True)
    prompt = together(manifest.scenario, words).request(number).prompt
    return [prompt] if isinstance(prompt, str) else [each.content for each in prompt if each.role == DOCUMENT]


def tokenized(target: Target, manifest: Manifest, records: Sequence[Record]) -> list[tuple[int, int]]:
    """(tokens by the server's tokenizer, tokens in the record) of some requests."""
    found = []
    for record in [each for each in records if each.input_tokens is not None][:ASKED_AGAIN]:
        count = 0
        for text in texts(manifest, int(record.request_id.rpartition("-")[2])):
            with fetch(f"{target.url}/tokenize", {"content": text, "add_special": True}) as answer:
                count += len(json.load(answer)["tokens"])
        found.append((count, record.input_tokens or 0))
    return found


def faults(run: Result, summary: dict[str, Any], status: int, counts: Counts) -> list[str]:
    """Return what keeps the run from being as it should."""
    found = [] if status == 0 else [f"exit status {status}"]
    if summary["unit"] != Unit.INPUT_TOKENS:
        found.append(f"throughput is in {summary['unit']}")
    if any(level["itl_s"]["mean"] is not None or level["ttft_s"]["n"] for level in summary["levels"]):
        found.append("a level has times of tokens, though none is decoded")
    if "ITL" in (Path(run.path) / "report.md").read_text():
        found.append("the report has a column for ITL")
    return found + counts.wrong


def main() -> None:
    parser = argparse.ArgumentParser(description="A real encoder, measured.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--max-seconds", type=float, default=MAX_SECONDS, help="of the ramp")
    parser.add_argument("--short", action="store_true", help="the levels 1 and 2, 2 s each")
    arguments = parser.parse_args()
    out = arguments.out or Path(f"results/live-{'short-' * arguments.short}embeddings")
    if out.exists():
        sys.exit(f"error: {out}: the folder exists; remove it, or choose another --out")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    bound = (
        ["--levels", "1,2", "--level-seconds", "2"]
        if arguments.short
        else ["--max-seconds", f"{arguments.max_seconds:g}"]
    )
    processes = Processes()
    try:
        target = serve(processes)
        before, began = prompt_tokens(target), time.monotonic()
        status, seconds, error = knee_run(target, out, ["--input-tokens", str(INPUT_TOKENS), "--inputs", "1", *bound])
        print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
        if not (out / "summary.json").exists():
            sys.exit(f"error: the run ended with status {status}: {error}")
        run = Result.open(out)
        counts = Counts(
            prompt_tokens(target) - before,
            sum(record.input_tokens or 0 for record in run.records),
            tokenized(target, run.manifest, run.records),
        )
    finally:
        processes.stop()
    most = None if arguments.short else arguments.max_seconds
    live = Live(
        name="embeddings", server="llama-server --embedding", version=llama_version(), limit=None, max_seconds=most
    )
    write(out, msgspec.structs.replace(live, seconds=round(seconds, 1), status=status, error=error))
    (out / "tokens.json").write_bytes(msgspec.json.format(msgspec.json.encode(counts), indent=1) + b"\n")
    wrong = faults(run, json.loads((out / "summary.json").read_bytes()), status, counts)
    print(
        f"server {counts.server:,.0f} input tokens, records {counts.records:,}; {'; '.join(wrong) or 'as it should be'}"
    )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
