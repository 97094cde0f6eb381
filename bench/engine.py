"""What the load generator costs, how exact it is, and where it ends: measured against the reference endpoint.

Server and client are on different processors; figures are medians of several trials with their spread, errors are
the client's stamp of a token against the server's own stamp right before it wrote that token. A row that misses what
it is to reach exits 1, unless docs/engine.md has its profile under a heading `Profile: ROW`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import engine_floor
import numpy as np
import summary_speed

from harness.dialects import DIALECTS
from harness.load.http1 import request, request_head
from harness.run.trial import Load, Trial, errors, pairs, run_trial
from harness.sim.connection import entries
from harness.sim.process import serving
from harness.sim.profile import Reference, StreamPace
from harness.workload.request import Request
from harness.workload.text import COMMON

DOCS = Path("docs/engine.md")
STREAMS, ANSWER = 512, 120  # 40 tok/s a stream: requests of 3.2 s
FAST, LONG = StreamPace(ttft_s=0.2, itl_s=0.005, groups=64), 500
SMOOTH, ONE_STEP = StreamPace(ttft_s=0.2, itl_s=0.025, groups=64), StreamPace(ttft_s=0.2, itl_s=0.025, groups=1)


class Row(NamedTuple):
    """One figure: its name, what it is to reach, how it is measured (one trial), and how it reads."""

    name: str
    reach: float | None  # None: no target
    at_most: bool
    unit: str
    trial: Callable[[], tuple[float, str]]  # (figure, remark)
    trials: int = 0  # 0: as many as --trials


def load(streams: int = STREAMS) -> tuple[float, str]:
    """CPU of the load as `knee run` sends it, over the machine's own floor."""
    trial, bare = smooth(streams=streams, running_usage=True), floor(streams, running_usage=True)
    return trial.cpu_s_per_million / bare, f"{trial.cpu_s_per_million:.1f} CPU s/M over {bare:.1f}"


def cost(streams: int = STREAMS, **changes: object) -> tuple[float, str]:
    """CPU seconds per million tokens, with the floor of as many streams as a remark."""
    trial = smooth(streams=streams, **changes)
    bare = floor(streams, running_usage=bool(changes.get("running_usage")))
    off = errors(trial.inside, trial.entries, trial.origin_ns)[0]
    detail = f"{trial.tokens_per_s:,.0f} tok/s, arrival error p99 {1e6 * p99(off):.1f} µs"
    return trial.cpu_s_per_million, f"floor {bare:.1f}, × {trial.cpu_s_per_million / bare:.2f}; {detail}"


def floor(
    streams: int = STREAMS, answer: int = ANSWER, pace: StreamPace = SMOOTH, *, running_usage: bool = False
) -> float:
    """Return what receiving alone costs on this machine now, in CPU seconds per million tokens."""
    with serving(Reference(pace=pace), cpu=processors()[0]) as served:
        return engine_floor.cost(
            served.url,
            streams,
            answer,
            spread_s=pace.ttft_s + pace.itl_s * answer,
            itl_s=pace.itl_s,
            cpu=processors()[-1],
            running_usage=running_usage,
        )


def p99(values: np.ndarray) -> float:
    return float(np.percentile(np.abs(values), 99))


def smooth(**changes: object) -> Trial:
    fields: dict[str, object] = {
        "pace": SMOOTH, "streams": STREAMS, "output_tokens": ANSWER, "seconds": 6.0, "settle_s": 3.0,
        "spread_s": 3.2, "running_usage": False,
    }  # fmt: skip
    return run_trial(Load(**(fields | changes)))  # type: ignore[arg-type]


def arrival_error(pace: StreamPace) -> tuple[float, str]:
    trial = smooth(pace=pace)
    off = np.abs(errors(trial.inside, trial.entries, trial.origin_ns)[0]) * 1e6
    p50, high, most = np.percentile(off, [50, 99, 100])
    return float(high), f"p50 {p50:.1f}, max {most:.0f}, {len(off):,} tokens"


def ttft_error() -> tuple[float, str]:
    trial = smooth()
    first = errors(trial.inside, trial.entries, trial.origin_ns)[1]
    ttft = [r.first_token_s - r.sent_s for r in trial.inside if r.first_token_s is not None and r.sent_s is not None]
    remark = f"reported TTFT p99 {np.percentile(ttft, 99) * 1e3:.1f} ms of {len(ttft):,} requests"
    return p99(first) * 1e3, remark


def fast() -> Trial:
    return smooth(pace=FAST, output_tokens=LONG, spread_s=2.7, seconds=5.0)


def fast_rate() -> tuple[float, str]:
    trial, bare = fast(), floor(STREAMS, LONG, FAST)
    return trial.tokens_per_s, f"{trial.cpu_s_per_million:.1f} CPU s/M, floor {bare:.1f}; {merged(trial):.1%} merged"


def fast_gaps() -> tuple[float, str]:
    trial = fast()
    ours, true = [], []
    for arrived, written in pairs(trial.inside, trial.entries, trial.origin_ns):
        ours.append(np.diff(arrived))
        true.append(np.diff(written))
    a, b = np.percentile(np.concatenate(ours), 99) * 1e3, np.percentile(np.concatenate(true), 99) * 1e3
    return abs(a - b), f"ITL p99 {a:.3f} ms of {b:.3f}, {merged(trial):.1%} merged, {trial.tokens_per_s:,.0f} tok/s"


def merged(trial: Trial) -> float:
    chunks = sum(len(r.arrivals) // 8 for r in trial.inside)
    return sum(r.merged for r in trial.inside) / chunks if chunks else 0.0


def bulk() -> tuple[float, str]:
    trial = run_trial(Load(pace=StreamPace(flood=64), streams=256, output_tokens=20_000, seconds=4.0, spread_s=0.0,
                      settle_s=0.5, running_usage=False))  # fmt: skip
    share = trial.client_cpu_s / trial.seconds
    return trial.tokens_per_s / 1e6, f"client {share:.0%}, server {trial.server_cpu:.0%} busy"


def many() -> tuple[float, str]:
    trial = run_trial(Load(pace=StreamPace(ttft_s=0.2, itl_s=1.0), streams=4000, seconds=3.0))
    return min(trial.after.progress.in_flight, trial.running), f"client {trial.after.progress.in_flight:,}, server " \
        f"{trial.running:,} at once"  # fmt: skip


def burst() -> tuple[float, str]:
    trial = run_trial(Load(pace=SMOOTH, streams=STREAMS, output_tokens=ANSWER, seconds=0.5, start="burst"))
    sent = sorted(r.sent_s for r in trial.records if r.sent_s is not None)[:STREAMS]
    return (sent[-1] - sent[0]) * 1e3, f"bare sends {bare_sends():.1f} ms"


def bare_sends() -> float:
    """Milliseconds that nothing but the sends takes, on as many open connections."""
    with serving(Reference(pace=SMOOTH), cpu=processors()[0]) as served:
        where = urlsplit(served.url)
        head = request_head("POST", "/v1/chat/completions", [("Host", where.netloc)])
        parser = Request(number=0, prompt=" ".join(COMMON[:16]), output_tokens=2)
        data = request(head, "bare", DIALECTS["chat"].encoder("reference").encode(parser))
        sockets = [socket.create_connection((where.hostname, where.port)) for _ in range(STREAMS)]
        allowed = os.sched_getaffinity(0)
        os.sched_setaffinity(0, processors()[-1:])
        time.sleep(0.2)
        began = time.monotonic_ns()
        for each in sockets:
            each.send(data)
        taken = time.monotonic_ns() - began
        os.sched_setaffinity(0, allowed)
        for each in sockets:
            each.close()
    return taken / 1e6


def level_change() -> tuple[float, str]:
    trial = run_trial(Load(pace=SMOOTH, streams=STREAMS, seconds=0.3, workers=2))
    return 5.0 + max(0.0, trial.took_s * 1e3), f"2 workers; announced 5 ms ahead, then {trial.took_s * 1e3:.2f} ms late"


def open_loop() -> tuple[float, str]:
    pace = StreamPace(ttft_s=0.02, itl_s=0.01, groups=64)
    trial = run_trial(Load(pace=pace, rate=2000.0, output_tokens=2, seconds=4.0, settle_s=1.0))
    lag = [(r.sent_s - r.scheduled_s) * 1e3 for r in trial.inside if r.sent_s is not None]
    rate = len(lag) / trial.seconds
    return float(np.percentile(lag, 99)), f"p50 {np.percentile(lag, 50):.2f} ms, {rate:,.0f} requests/s"


def long_answers() -> tuple[float, str]:
    trial = run_trial(Load(pace=StreamPace(flood=64), streams=STREAMS, output_tokens=32_000, seconds=45.0, spread_s=0.0,
                      running_usage=False))  # fmt: skip
    done = sum(r.error == "" for r in trial.records)
    return (
        trial.memory_bytes / 2**20,
        f"{STREAMS} streams of 32,000 tokens, {done:,} whole, {trial.tokens_per_s:,.0f} tok/s",
    )


def first_request() -> tuple[float, str]:
    """Seconds from the command to the first request that the server sees, and to the first of the load."""
    with tempfile.TemporaryDirectory() as kept:
        log = Path(kept, "log")
        with serving(Reference(pace=StreamPace(ttft_s=0.005, itl_s=0.002)), log=log, cpu=processors()[0]) as served:
            command = [
                sys.executable, "-m", "harness", "run", "--url", served.url, "--levels", "1", "--level-seconds", "0.3",
                "--input-tokens", "32", "--output-tokens", "16", "--out", str(Path(kept, "out")), "--quiet",
                "--no-plots",
            ]  # fmt: skip
            began = time.monotonic_ns()
            subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)
        came = sorted((entry.received_ns, entry.id) for entry in entries(log))
    load = next(at for at, name in came if name != "knee-check")
    return (came[0][0] - began) / 1e9, f"the load's first after {(load - began) / 1e9:.2f} s"


def summary() -> tuple[float, str]:
    with tempfile.TemporaryDirectory() as folder:
        tokens = summary_speed.write(Path(folder), 10_000_000, 256, summary_speed.LEVELS)
        packed, *_ = summary_speed.cost([sys.executable, "-c", summary_speed.PACK, folder])
        seconds, _, megabytes = summary_speed.cost([sys.executable, "-m", "harness", "report", folder])
    return seconds, f"{tokens:,} tokens, {megabytes:,.0f} MB; packed at the run's end in {packed:.1f} s"


def tls() -> tuple[float, str]:
    """CPU of receiving over TLS; the load's other costs are the same without."""
    script = Path(__file__).with_name("engine_tls.py")
    done = subprocess.run([sys.executable, str(script), "--streams", str(STREAMS)], check=True, capture_output=True)
    found = json.loads(done.stdout)
    return found["tls"], f"without TLS {found['plain']:.1f}"


def processors() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def rows() -> list[Row]:
    return [
        Row("load", None, True, "× the floor: CPU of the load as knee run sends it, 512 streams × 40 tok/s", load),
        Row("load-64", None, True, "× the floor: the same, 64 streams", lambda: load(64)),
        Row("cpu", 10.0, True, "CPU s/M, 512 streams × 40 tok/s, smooth", cost),
        Row("error-smooth", 20.0, True, "µs, p99 arrival error, smooth", lambda: arrival_error(SMOOTH)),
        Row("error-step", 20.0, True, "µs, p99 arrival error, all 512 in one step", lambda: arrival_error(ONE_STEP)),
        Row("ttft", 0.1, True, "ms, p99 of TTFT against first write − send, 512 streams", ttft_error),
        Row("fast", 85_000, False, "tok/s, one process, 512 streams × 200 tok/s", fast_rate),
        Row("fast-itl", 0.2, True, "ms, its ITL p99 against the truth", fast_gaps),
        Row("bulk", 0.5, False, "M tok/s, bulk, one process, JSON decoded", bulk),
        Row("streams", 4000, False, "streams at once, one process", many),
        Row("first-request", 0.5, True, "s from command to first request", first_request),
        Row("burst", 10.0, True, "ms from first to last of 512 sends, one worker", burst, 5),
        Row("level-change", 20.0, True, "ms until a level change has reached all workers", level_change),
        Row("open-loop", 1.0, True, "ms, p99 of send − scheduled, 2,000 requests/s", open_loop),
        Row("summary", 10.0, True, "s, report on 10 M tokens", summary, 1),
        Row("memory", 2048, True, "MB of the worker, 512 answers of 32,000 tokens", long_answers, 1),
        Row("cpu-usage", None, True, "CPU s/M, count in every chunk", lambda: cost(running_usage=True), 1),
        Row("cpu-64", None, True, "CPU s/M, 64 streams", lambda: cost(64), 1),
        Row("tls", None, True, "CPU s/M, 512 streams received over TLS, without the tasks that send", tls),
        Row("httpx", None, True, "CPU s/M, --transport httpx, 32 streams",
            lambda: cost(32, transport="httpx", seconds=4.0), 1),
    ]  # fmt: skip


def shown(row: Row, value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def profiled() -> set[str]:
    """Rows whose profile stands in the docs."""
    mark = "### Profile: "
    lines = DOCS.read_text(encoding="utf-8").splitlines() if DOCS.exists() else []
    return {line.removeprefix(mark).strip() for line in lines if line.startswith(mark)}


def measured(row: Row, trials: int) -> tuple[list[float], str]:
    """Return the figures of every trial, and the remark on the median one."""
    found = [row.trial() for _ in range(row.trials or trials)]
    ordered = sorted(found)
    return [value for value, _ in ordered], ordered[len(ordered) // 2][1]


def table(chosen: Iterable[Row], trials: int) -> bool:
    """Print a line as each row is measured; whether a miss is unexplained."""
    print("| row | what | to reach | median | spread | met | beside it |\n|---|---|---|---|---|---|---|", flush=True)
    unexplained, explained = False, profiled()
    for row in chosen:
        values, detail = measured(row, trials)
        middle = statistics.median(values)
        spread = "–" if len(values) == 1 else f"{shown(row, values[0])} … {shown(row, values[-1])} of {len(values)}"
        reach, met = "–", "–"
        if row.reach is not None:
            reach = f"{'≤' if row.at_most else '≥'} {shown(row, row.reach)}"
            good = middle <= row.reach if row.at_most else middle >= row.reach
            met = "yes" if good else "no, profile in the docs" if row.name in explained else "no"
            unexplained |= met == "no"
        print(f"| {row.name} | {row.unit} | {reach} | {shown(row, middle)} | {spread} | {met} | {detail} |", flush=True)
    return unexplained


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", nargs="*", help="only these rows")
    parser.add_argument("--trials", type=int, default=3)
    options = parser.parse_args()
    known = {row.name: row for row in rows()}
    if unknown := set(options.row) - set(known):
        parser.error(f"no row {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print(f"bench/engine {' '.join(sys.argv[1:])}".rstrip())
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, {len(processors())} processors "
        f"(server on the first, client on the last), load {os.getloadavg()[0]:.2f}\n"
    )
    chosen = [known[name] for name in options.row] if options.row else list(known.values())
    sys.exit(1 if table(chosen, options.trials) else 0)


if __name__ == "__main__":
    main()
