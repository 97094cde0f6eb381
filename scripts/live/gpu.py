"""vLLM and knee on one machine with a GPU: the ramp, limits, both phases alone, and the ramp with one flag changed.

    python scripts/live/gpu.py measure --gpu h100-sxm --vary fp8
    python scripts/live/gpu.py table results/live-gpu-*

vLLM is started twice, as the command line of the folder's gpu.json says, and invents its weights unless --model has
some. Every run has its prediction made before the load. Left out: which other processes the machine runs.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import make_model
import msgspec
from servers import LIVE, Processes, ServerError, answer, free_folders, free_port, interval
from table import measure_and_table, table

from harness.data.prediction import Band
from harness.data.summary import Summary

GPU_FILE = "gpu.json"
AROUND_S = 12.0  # of every run: its checks, its last requests, and its report
LEAST, MOST = 0.85, 1.3  # of the seconds of a run; where there is time for less, the last runs are left out
LEAST_S = 10.0  # of the last one that is left
CLIENT_CORES = 4  # the last ones of the machine, or half of a smaller one


class PlannedRun(NamedTuple):
    """One `knee run`: how its folder is called, its seconds where there is time for all, and its own options."""

    name: str
    seconds: float
    options: tuple[str, ...] = ()
    varied: bool = False  # it needs the second server


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of one run that are not in its summary."""

    server: list[str]  # the command line
    start_to_ready_s: float
    server_cores: str
    client_cores: str
    seconds: float
    status: int


class Server(NamedTuple):
    """How vLLM is started, and the options of knee that describe it."""

    flags: tuple[str, ...]
    facts: tuple[str, ...]


def varied(what: str) -> Server:
    """Return the server of the second half, by what --vary takes.

    >>> varied("max-num-seqs=64")
    Server(flags=('--max-num-seqs', '64'), facts=('--max-num-seqs', '64'))
    """
    if what == "fp8":
        return Server(("--quantization", "fp8"), ("--dtype", "fp8"))
    name, _, count = what.partition("=")
    if name == "max-num-seqs" and count.isdecimal():
        return Server(("--max-num-seqs", count), ("--max-num-seqs", count))
    raise argparse.ArgumentTypeError(f"{what!r}: fp8 or max-num-seqs=N")


def parts(slo: str, most: int, prompt: int, answer: int) -> list[PlannedRun]:
    """Return the runs in their order, with searches of up to `most` requests in flight.

    >>> parts("ttft_p99=1s", 384, 512, 128)[3].options
    ('--input-tokens', '32', '--output-tokens', '1024', '--levels', '64,256')
    """
    bound = ("--max-concurrency", str(most))
    usual = (*bound, "--input-tokens", str(prompt), "--output-tokens", str(answer))
    long = (*bound, "--input-tokens", str(4 * prompt), "--output-tokens", str(answer))
    decode = ("--input-tokens", "32", "--output-tokens", str(8 * answer), "--levels", f"{most // 6},{2 * most // 3}")
    return [
        PlannedRun("ramp", 150.0, usual),
        PlannedRun("slo", 90.0, (*usual, "--slo", slo)),
        PlannedRun("prefill", 60.0, (*bound, "--probe", "prefill")),
        PlannedRun("decode", 90.0, decode),
        PlannedRun("long", 90.0, long),
        PlannedRun("varied", 150.0, usual, varied=True),
    ]


NAMES = [part.name for part in parts("", 8, 1, 1)]


def seconds_of(part: PlannedRun, left: float, todo: Sequence[PlannedRun], start_s: float) -> float:
    """Return the seconds of a run, so that it and those `todo` after it end in what is left of the budget.

    The second server takes as long to start as the first did. All runs are shortened alike, or held a bit longer.

    >>> ramp, *more = parts("ttft_p99=1s", 384, 512, 128)
    >>> seconds_of(ramp, 1200, more, 60), round(seconds_of(ramp, 600, more, 60))
    (195.0, 111)
    """
    runs = [part, *todo]
    there = left - len(runs) * AROUND_S - start_s * any(each.varied for each in todo)
    return part.seconds * max(0.0, min(MOST, there / sum(each.seconds for each in runs)))


def fitting(planned: Sequence[PlannedRun], left: float, start_s: float) -> list[PlannedRun]:
    """Return the first of the runs, as many as nearly have their seconds in what is left; one at least.

    >>> [part.name for part in fitting(parts("ttft_p99=1s", 384, 512, 128), 400, 120)]
    ['ramp', 'slo', 'prefill', 'decode']
    """
    runs = list(planned)
    while len(runs) > 1 and seconds_of(runs[0], left, runs[1:], start_s) < LEAST * runs[0].seconds:
        runs.pop()
    return runs


def cores(count: int) -> tuple[str, str]:
    """Return the server's and the client's cores, as taskset takes them.

    >>> cores(16), cores(2)
    (('0-11', '12-15'), ('0-0', '1-1'))
    """
    if count < 2:
        raise SystemExit(f"error: vLLM and knee need a core each; this machine has {count}")
    client = min(CLIENT_CORES, count // 2)
    return f"0-{count - client - 1}", f"{count - client}-{count - 1}"


def band(predicted: Band | None) -> str:
    return "–" if predicted is None else f"{predicted.mid:,.0f} ({predicted.low:,.0f}–{predicted.high:,.0f})"


def row(folder: Path) -> list[str]:
    started = msgspec.json.decode((folder / GPU_FILE).read_bytes(), type=Started)
    path = folder / "summary.json"
    summary = msgspec.json.decode(path.read_bytes(), type=Summary) if path.exists() else None
    curve, prediction = (summary.curve, summary.prediction) if summary else (None, None)
    phases = summary.phases if summary else None
    one = next((phase.tokens_per_s for phase in (phases.prefill, phases.decode) if phase), None) if phases else None
    power = [level.gpu.power_w for level in summary.levels if level.gpu and level.gpu.power_w] if summary else []
    return [
        folder.name,
        answer(summary.knee if summary else None),
        interval(one or (curve.plateau_tokens_per_s if curve else None), 0),
        band(prediction.plateau_tokens_per_s if prediction and not one else None),
        interval(curve.single_stream_tokens_per_s if curve else None),
        band(prediction.single_stream_tokens_per_s if prediction and not one else None),
        f"{max(power):,.0f}" if power else "–",
        f"{started.start_to_ready_s:.0f}",
        f"{started.seconds:.0f}",
        str(started.status),
    ]


HEAD = [
    "run",
    "knee [95 %]",
    "plateau tok/s [95 %]",
    "predicted",
    "single stream [95 %]",
    "predicted",
    "highest power W",
    "server ready s",
    "seconds",
    "exit",
]


@contextmanager
def serving(command: list[str], server_cores: str, env: dict[str, str]) -> Iterator[tuple[str, float]]:
    """vLLM on its cores: its URL, and the seconds from its start until it was ready."""
    port, processes, began = free_port(), Processes(), time.monotonic()
    url = f"http://127.0.0.1:{port}"
    whole = ["taskset", "-c", server_cores, *command, "--host", "127.0.0.1", "--port", str(port)]
    try:
        processes.start("live-gpu", whole, env, pin_core=False)
        processes.wait_ready(f"{url}/health")
        ready = time.monotonic() - began
        print(f"ready at {url} after {ready:.0f} s", file=sys.stderr)
        yield url, ready
    finally:
        processes.stop()


def measure(arguments: argparse.Namespace) -> list[Path]:
    """Return the folders of the runs that were made; a server that does not start ends its half only."""
    server_cores, client_cores = cores(os.cpu_count() or 1)
    model: Path = arguments.model or LIVE / f"model-{arguments.shape}"
    if not (model / "config.json").exists():
        make_model.write(model, arguments.shape)
    serve = [*shlex.split(arguments.vllm), "--model", str(model), "--served-model-name", "model"]
    serve += ["--max-model-len", "8192", *([] if arguments.model else ["--load-format", "dummy"])]
    serve += shlex.split(arguments.server_args)
    facts = ["--gpu", arguments.gpu, "--model-config", str(model), "--tokenizer", str(model), "--model", "model"]
    facts += ["--server-meta", f"args={' '.join(serve[1:])}"]
    if arguments.gpu == "host":
        facts += ["--host-cpus", server_cores.partition("-")[0]]
    every = parts(arguments.slo, arguments.max_concurrency, arguments.input_tokens, arguments.output_tokens)
    planned = [part for part in every if part.name in arguments.only]
    began_all, made = time.monotonic(), list[Path]()
    for is_varied in (False, True):
        planned = [part for part in planned if part.varied or not is_varied]
        if not any(part.varied == is_varied for part in planned):
            continue
        server = arguments.vary if is_varied else Server((), tuple(shlex.split(arguments.server_facts)))
        command = [*serve, *server.flags]
        print(f"\nstarting {shlex.join(command)}", file=sys.stderr)
        try:
            with serving(command, server_cores, {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}) as (url, ready):
                planned = fitting(planned, arguments.budget - (time.monotonic() - began_all), ready)
                for part in [each for each in planned if each.varied == is_varied]:
                    left = arguments.budget - (time.monotonic() - began_all)
                    seconds = seconds_of(part, left, planned[planned.index(part) + 1 :], ready)
                    if seconds < LEAST_S:
                        print(f"\n{part.name}: no time is left for it", file=sys.stderr)
                        continue
                    folder = Path(f"{arguments.out}-{part.name}")
                    knee = ["taskset", "-c", client_cores, sys.executable, "-m", "harness", "run", "--url", url]
                    knee += [*facts, *server.facts, *part.options, "--out", str(folder), "--no-plots"]
                    knee += ["--max-seconds", f"{seconds:.0f}"]
                    print(f"\n{part.name}: into {folder}", file=sys.stderr)
                    began = time.monotonic()
                    status = subprocess.call(knee, stdout=sys.stderr.fileno())
                    folder.mkdir(parents=True, exist_ok=True)
                    started = Started(
                        server=command,
                        start_to_ready_s=round(ready, 1),
                        server_cores=server_cores,
                        client_cores=client_cores,
                        seconds=round(time.monotonic() - began, 1),
                        status=status,
                    )
                    (folder / GPU_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(started), indent=1) + b"\n")
                    made.append(folder)
                    if status < 0 or status in (129, 130, 143):
                        return made
        except ServerError as error:
            print(f"error: {error}", file=sys.stderr)
    return made


def main() -> None:
    parser, measuring = measure_and_table("vLLM on this machine's GPU, measured and predicted.")
    measuring.add_argument("--model", type=Path, help="a model folder with weights; default: a shape, weights invented")
    measuring.add_argument("--shape", choices=make_model.SHAPES, default="llama-8b")
    measuring.add_argument("--gpu", default="h100-sxm", help="as `knee predict --list gpus` names it")
    measuring.add_argument("--vary", type=varied, default=varied("fp8"), help="fp8 or max-num-seqs=N")
    measuring.add_argument(
        "--vllm", default="python3 -m vllm.entrypoints.openai.api_server", help="how vLLM is started"
    )
    measuring.add_argument("--server-args", default="", help="further arguments of vLLM, in both halves")
    measuring.add_argument("--server-facts", default="", help="what knee is told of them, like '--max-num-seqs 64'")
    measuring.add_argument("--only", type=lambda text: text.split(","), default=NAMES)
    measuring.add_argument("--budget", type=float, default=720.0, help="seconds of everything; shortens all runs")
    measuring.add_argument("--slo", default="ttft_p99=1s,itl_p99=40ms", help="the limits of the second run")
    measuring.add_argument("--input-tokens", type=int, default=512)
    measuring.add_argument("--output-tokens", type=int, default=128)
    measuring.add_argument("--max-concurrency", type=int, default=384)
    measuring.add_argument("--out", default="results/live-gpu", help="what the names of the folders begin with")
    arguments = parser.parse_args()
    if arguments.verb == "table":
        print(table(HEAD, [row(folder) for folder in arguments.folders if (folder / GPU_FILE).exists()]))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    free_folders([Path(f"{arguments.out}-{name}") for name in arguments.only])
    folders = measure(arguments)
    print(f"\n{table(HEAD, [row(folder) for folder in folders])}")
    sys.exit(0 if len(folders) == len(arguments.only) else 1)


if __name__ == "__main__":
    main()
