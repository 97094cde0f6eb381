"""The ceilings of this machine, each with its command, and what they come to at a million tokens a second and more.

Every figure is processor time, bytes or memory, so that other work on the machine moves it little; the error of a clock
alone is of the wall clock. Figures a token and a request come from loads that differ in the length of answers or
prompts, by solving for both. What is measured and what it comes to are apart: `scale_paper` derives the tables from the
recorded ceilings, and bench/research/scale.md has them as they are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import scale_paper
import scale_parent
from scale_paper import Ceilings

from harness.data.record import Level, Record
from harness.dialects import DIALECTS
from harness.load.http1 import request, request_head
from harness.results import columns, frames
from harness.results.spool import header
from harness.run.trial import LONGEST, Load, Trial, run_trial
from harness.sim.profile import StreamPace
from harness.workload.source import Uniform
from harness.workload.text import COMMON

sys.path.append(str(Path(__file__).resolve().parents[1]))
import summary_speed  # its folder is a line above

ROOT = Path(__file__).resolve().parents[2]
RECORDED, PAGE = ROOT / "bench/research/scale.json", ROOT / "bench/research/scale.md"
PARENT = "bench/research/scale_parent.py"
BEGIN, END = "<!-- bench/research/scale --recorded -->", "<!-- end of it -->"
RATES = (1e6, 10e6)
SHORT, LONG = 32, 256  # tokens of an answer
FEW, MANY = 16, 512  # words of a prompt
FEWEST = 64  # requests of which bytes are averaged
PACED = "512 streams × 40 tok/s: answers of 32 and 256 tokens, prompts of 16 and 512 words"
PACE = StreamPace(ttft_s=0.2, itl_s=0.025, groups=64)


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, where and how."""

    date: str
    machine: str
    priority: str
    trials: int
    ceilings: Ceilings
    spread: dict[str, tuple[float, float]]  # of each figure with several trials: least and most
    command: dict[str, str]  # by which each was measured
    remark: str = ""  # what else is to be said of it; written by hand


Figures = dict[str, float]


# ---- the worker, and the bytes of its requests --------------------------------------------------------------


def paced(answer: int, words: int) -> Trial:
    """512 streams at 40 tokens a second, as `knee run` sends them: with a token count in every chunk."""
    whole = PACE.ttft_s + PACE.itl_s * answer
    load = Load(pace=PACE, streams=512, output_tokens=answer, prompt_words=words, seconds=6.0, spread_s=whole,
                settle_s=1.0)  # fmt: skip
    return run_trial(load)


def worker() -> Figures:
    """Return what a token, a request and a word of its prompt cost a worker, and their bytes."""
    loads = [(SHORT, FEW), (LONG, FEW), (SHORT, MANY)]
    trials = [paced(answer, words) for answer, words in loads]
    amounts = []  # tokens, requests and words of each
    for (_, words), trial in zip(loads, trials, strict=True):
        sent = trial.after.progress.begun_in_run - trial.before.progress.begun_in_run
        amounts.append([trial.tokens, sent, sent * words])
    s_token, s_request, s_word = np.linalg.solve(amounts, [trial.client_cpu_s for trial in trials]).tolist()
    whole = [[each for each in trial.records if not each.error] for trial in trials[:2]]
    if min(map(len, whole)) < FEWEST:
        sys.exit("error: too few answers ended in time; the machine is too busy: try again when it is quiet")
    return {
        "worker_s_token": s_token,
        "worker_s_request": s_request,
        "worker_s_word": s_word,
        **both("in_bytes", [statistics.mean(r.bytes_received for r in records) for records in whole]),
        **both("spool_bytes", [spooled(records) / len(records) for records in whole]),
        **both("parquet_bytes", [packed(records) / len(records) for records in whole]),
    }


def both(name: str, of_request: Sequence[float]) -> Figures:
    """Return a figure a token and a request, from what a request of each length takes."""
    short, long = of_request
    a_token = (long - short) / (LONG - SHORT)
    return {f"{name}_token": a_token, f"{name}_request": short - SHORT * a_token}


def spooled(records: Sequence[Record]) -> int:
    """Bytes of some requests in the spool."""
    pieces = [records[i : i + scale_parent.BATCH] for i in range(0, len(records), scale_parent.BATCH)]
    return sum(len(frames.frame(frames.batch(piece))) for piece in pieces)


def packed(records: Sequence[Record]) -> int:
    """Bytes of some requests in requests.parquet, those of the empty file left out."""
    with tempfile.TemporaryDirectory(prefix="knee-bench-") as folder:
        sizes = []
        for some in ([], records):
            columns.write_requests(Path(folder, "f"), header(0, 0.0), [Level(0, 512, 0, 0.0)], some)
            sizes.append(Path(folder, "f").stat().st_size)
    return sizes[1] - sizes[0]


def asked() -> Figures:
    """Bytes of a request."""
    head = request_head("POST", "/v1/chat/completions", [("Host", "server.example:8000")])
    encoder = DIALECTS["chat"].encoder("a-model-of-usual-name")

    def size(words: int) -> float:
        source = Uniform(words=COMMON, prompt_words=words, output_tokens=LONG, seed=0)
        sizes = [len(request(head, "0123456789ab-0-1234", encoder.encode(source.request(i)))) for i in range(200)]
        return statistics.mean(sizes)

    a_word = (size(MANY) - size(FEW)) / (MANY - FEW)
    return {"out_bytes_word": a_word, "out_bytes_request": size(FEW) - FEW * a_word}


def answers_in_flight() -> Figures:
    """Memory of a worker for a token whose answer is not over: of answers that none ends of."""
    short, long = (
        run_trial(Load(pace=StreamPace(flood=64), streams=512, output_tokens=LONGEST, seconds=seconds, spread_s=0.0))
        for seconds in (2.0, 8.0)
    )
    tokens = long.after.progress.tokens - short.after.progress.tokens
    return {"worker_bytes_token": (long.memory_bytes - short.memory_bytes) / tokens}


# ---- the parent, the summary and clocks -----------------------------------------------------------------------


def parent(*arguments: str) -> Figures:
    """Return what bench/research/scale_parent.py prints."""
    command = [sys.executable, str(Path(scale_parent.__file__)), *arguments]
    found = subprocess.run(command, check=True, capture_output=True, timeout=300).stdout
    return dict(json.loads(found))


def parent_of_records() -> Figures:
    """Return what a token and a request cost the parent, in time and memory."""
    loads = [(51_200, 8), (10_240, 1_024)]
    found = [parent("--requests", str(requests), "--tokens", str(tokens)) for requests, tokens in loads]
    amounts = [[requests * tokens, requests] for requests, tokens in loads]
    s_token, s_request = np.linalg.solve(amounts, [each["cpu_s"] for each in found]).tolist()
    token, a_request = np.linalg.solve(amounts, [each["memory"] for each in found]).tolist()
    return {
        "parent_s_token": s_token,
        "parent_s_request": s_request,
        "parent_bytes_token": token,
        "parent_bytes_request": a_request,
    }


def parent_of_reports() -> Figures:
    """Return what a report costs the parent, of 64 workers."""
    short, long = (parent("--workers", "64", "--turns", str(turns)) for turns in (20, 100))
    return {"parent_s_report": (long["cpu_s"] - short["cpu_s"]) / (64 * 80)}


def clocks() -> Figures:
    return {"clock_error_s": parent("--clock")["error_s"]}


def summaries() -> Figures:
    """Return what a token costs when a run is packed and when it is summarised, beyond what a small run costs."""
    found = []
    for tokens in (4_000_000, 20_000_000):
        with tempfile.TemporaryDirectory(prefix="knee-bench-") as folder:
            there = summary_speed.write(Path(folder), tokens, LONG, summary_speed.LEVELS[-4:])
            pack = summary_speed.cost([sys.executable, "-c", summary_speed.PACK, folder])
            report = summary_speed.cost([sys.executable, "-m", "harness", "report", folder])
            found.append((there, pack[1], report[1], report[2]))
    (less, *few), (more, *many) = found
    pack_s, report_s, megabytes = ((b - a) / (more - less) for a, b in zip(few, many, strict=True))
    return {"pack_s_token": pack_s, "summary_s_token": report_s, "summary_bytes_token": megabytes * 2**20}


# ---- all of them --------------------------------------------------------------------------------------------

SOURCES: list[tuple[Callable[[], Figures], str, bool]] = [  # with its command, and whether trials differ
    (worker, PACED, True),
    (asked, "200 requests of 16 and of 512 words", False),
    (answers_in_flight, "512 answers without an end, as fast as they come: 2 s and 8 s", True),
    (parent_of_records, f"{PARENT} --requests 51200 --tokens 8; --requests 10240 --tokens 1024", True),
    (parent_of_reports, f"{PARENT} --workers 64 --turns 20; --turns 100", True),
    (clocks, f"{PARENT} --clock", True),
    (summaries, "bench/summary's runs of 4 M and 20 M tokens, packed and reported", True),
]  # fmt: skip


def measure(trials: int) -> Measured:
    """Measure everything; medians of the trials."""
    middle: Figures = {}
    spread: dict[str, tuple[float, float]] = {}
    commands: dict[str, str] = {}
    for source, command, differs in SOURCES:
        found = [source() for _ in range(trials if differs else 1)]
        for name in found[0]:
            values = [each[name] for each in found]
            middle[name], commands[name] = statistics.median(values), command
            if len(values) > 1:
                spread[name] = min(values), max(values)
        print(f"{source.__name__}: {', '.join(found[0])}", file=sys.stderr, flush=True)
    return Measured(
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        machine=f"{cpu()}, {len(os.sched_getaffinity(0))} processors, Linux {platform.release().partition('-')[0]}, "
        f"Python {platform.python_version()}",
        priority=priority(),
        trials=trials,
        ceilings=Ceilings(**middle),
        spread=spread,
        command=commands,
    )


def cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def priority() -> str:
    """That of this process, and whether its group only gets what others leave."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers in ("", "cpu", "cpu,cpuacct"):
            folder = Path("/sys/fs/cgroup") / controllers / name.lstrip("/")
            if (folder / "cpu.idle").exists() and (folder / "cpu.idle").read_text().strip() == "1":
                return "idle"
    return f"nice {os.nice(0)}"


# ---- printed --------------------------------------------------------------------------------------------------

UNITS = {
    "_s_": ("µs", 1e6),
    "bytes_": ("B", 1.0),
    "error_s": ("µs", 1e6),
}
WHAT = {
    "worker_s_token": "a worker's processor, a token",
    "worker_s_request": "a worker's processor, a request",
    "worker_s_word": "a worker's processor, a word of a prompt",
    "parent_s_token": "the parent's processor, a token",
    "parent_s_request": "the parent's processor, a request",
    "parent_s_report": "the parent's processor, a worker's report",
    "pack_s_token": "packing at the end, a token",
    "summary_s_token": "summary, a token",
    "in_bytes_token": "from the server, a token",
    "in_bytes_request": "from the server, a request",
    "out_bytes_request": "to the server, a request",
    "out_bytes_word": "to the server, a word of a prompt",
    "spool_bytes_token": "in the spool, a token",
    "spool_bytes_request": "in the spool, a request",
    "parquet_bytes_token": "in requests.parquet, a token",
    "parquet_bytes_request": "in requests.parquet, a request",
    "worker_bytes_token": "a worker's memory, a token in flight",
    "parent_bytes_token": "the parent's memory, a token of the level",
    "parent_bytes_request": "the parent's memory, a request of the level",
    "summary_bytes_token": "memory of a summary, a token",
    "clock_error_s": "error of a clock over a socket (wall clock)",
}


def ceilings_table(found: Measured) -> str:
    lines = ["| what | figure | spread | measured by |", "|---|--:|--:|---|"]
    for name, what in WHAT.items():
        unit, scale = next(each for part, each in UNITS.items() if part in name)
        value = getattr(found.ceilings, name) * scale
        low, high = (each * scale for each in found.spread.get(name, (0.0, 0.0)))
        between = f"{low:.3g} … {high:.3g}" if name in found.spread else "–"
        lines.append(f"| {what} | {value:.3g} {unit} | {between} | {found.command[name]} |")
    return "\n".join(lines)


def text(found: Measured, rates: Sequence[float] = RATES, price: float | None = None) -> str:
    """Everything that bench/research/scale.md has of it."""
    node = scale_paper.Node() if price is None else scale_paper.Node(usd_processor_hour=price)
    loads = [scale_paper.Load(tokens_per_s=each) for each in rates]
    needs = [scale_paper.need(found.ceilings, load, node) for load in loads]
    return "\n\n".join([
        f"{found.date}, {found.machine}, priority: {found.priority}, median of {found.trials}. {found.remark}".strip(),
        ceilings_table(found),
        scale_paper.assumptions(loads[0], node),
        scale_paper.needs_table(needs),
        scale_paper.limits_table(found.ceilings, loads[0], node),
    ])  # fmt: skip


def recorded() -> Measured:
    return msgspec.json.decode(RECORDED.read_bytes(), type=Measured)


def in_page(page: str) -> tuple[str, str, str]:
    """Return what stands before, between and behind the marks."""
    before, _, rest = page.partition(BEGIN)
    between, _, behind = rest.partition(END)
    return before, between.strip(), behind


def record(found: Measured) -> None:
    """Keep it, and write its tables into the page."""
    RECORDED.write_text(json.dumps(msgspec.to_builtins(found), indent=2, ensure_ascii=False) + "\n")
    before, _, behind = in_page(PAGE.read_text())
    PAGE.write_text(f"{before}{BEGIN}\n\n{text(found)}\n\n{END}{behind}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recorded", action="store_true", help="measure nothing")
    parser.add_argument("--record", action="store_true", help="keep what is measured, beside this file and in the docs")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--price", type=float, help="dollars of a processor's hour")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="tok/s")
    options = parser.parse_args()
    found = recorded() if options.recorded else measure(options.trials)
    print(text(found, options.rates, options.price))
    if options.record:
        record(found)


if __name__ == "__main__":
    main()
