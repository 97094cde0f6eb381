"""knee and its peers, in turn against one reference endpoint: what each costs, and how far its figures are off.

The endpoint gives every stream its tokens at a known pace from core 0 and logs each write; one tool at a time runs
on core 1, and after them the bare receive loop of bench/engine_floor.c. What a tool reports is printed next to the
server's log of the same requests. How and why: docs/peers.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from peers_measure import ToolRun
from peers_tools import (
    ANSWER_TOKENS,
    KNEE,
    PEERS,
    PROMPT_TOKENS,
    ROOT,
    TOOLS,
    InstallError,
    Reported,
    Tool,
    ToolLoad,
    environment,
    last_line,
    version,
)
from tokenizers import Tokenizer, models, pre_tokenizers

from harness.base import units
from harness.sim.api import WORDS
from harness.sim.connection import Entry, entries
from harness.sim.process import running
from harness.sim.profile import Reference, StreamPace

sys.path.append(str(ROOT / "bench"))
import engine_floor  # its folder is a line above

PACE = StreamPace(ttft_s=0.2, itl_s=0.025, groups=64)
REQUEST_S = PACE.ttft_s + (ANSWER_TOKENS - 1) * PACE.itl_s
SERVER_CPU, TOOL_CPU = 0, 1
VOCABULARY = 4096


class Truth(msgspec.Struct, frozen=True):
    """One run by the server's log; seconds, and times are CLOCK_MONOTONIC in nanoseconds."""

    first_ns: int  # the first request of any kind
    begin_ns: int  # the first request of the load
    last_ns: int  # the last token
    requests: int  # of the load, that ended with all their tokens
    tokens: int  # of the load
    all_tokens: int  # with warm-up and checks
    tokens_per_s: float  # in the middle half of the load
    in_flight: float  # in the middle half of the load
    ttft_p50: float
    ttft_p99: float
    itl_p50: float
    itl_p99: float


class Row(msgspec.Struct, frozen=True):
    """One run of one tool, or why there is none."""

    tool: str
    version: str
    streams: int
    repeat: int
    failed: str | None = None
    command: str | None = None
    load_average: float | None = None  # of the host, over the minute before
    cpu_load_s_per_m: float | None = None  # CPU seconds a million tokens, from the first request to the last token
    cpu_all_s_per_m: float | None = None  # of the whole command
    first_request_s: float | None = None
    load_begins_s: float | None = None
    end_s: float | None = None  # from the last token to the end of the command
    peak_mb: float | None = None
    reported: Reported | None = None
    truth: Truth | None = None


# ---- the server's truth -----------------------------------------------------------------------------------------


def load_begin(log: Sequence[Entry], streams: int) -> int | None:
    """When the first request of the load came: it opens the busy time in which half of the streams are in flight.

    Readiness checks and warm-up requests come before it, with nothing in flight in between.

    >>> from array import array
    >>> entry = lambda begin, end: Entry("", begin, array("q", [end]), 1, True, end)
    >>> load_begin([entry(0, 5), entry(9, 20), entry(10, 19), entry(11, 30)], streams=4)
    9
    """
    changes = sorted([(each.received_ns, 1) for each in log] + [(each.end_ns, -1) for each in log])
    in_flight, begin = 0, 0
    for at, change in changes:
        if in_flight == 0:
            begin = at
        in_flight += change
        if in_flight >= streams / 2:
            return begin
    return None


def truth_of(log: Sequence[Entry], streams: int) -> Truth | None:
    """Return the server's account of a run; None if the load never reached half of its streams."""
    begin = load_begin(log, streams)
    if begin is None:
        return None
    load = [each for each in log if each.received_ns >= begin]
    writes = [np.frombuffer(each.writes_ns, dtype=np.int64) for each in load]
    every = np.concatenate(writes)
    last = int(every.max())
    low, high = begin + (last - begin) / 4, last - (last - begin) / 4
    busy_ns = sum(max(0.0, min(each.end_ns, high) - max(each.received_ns, low)) for each in load)
    ttft = [w[0] - each.received_ns for each, w in zip(load, writes, strict=True) if len(w)]
    ttft_p50, ttft_p99 = np.percentile(ttft, [50, 99]) / 1e9
    itl_p50, itl_p99 = np.percentile(np.concatenate([np.diff(w) for w in writes]), [50, 99]) / 1e9
    return Truth(
        first_ns=min(each.received_ns for each in log),
        begin_ns=begin,
        last_ns=last,
        requests=sum(each.finished for each in load),
        tokens=len(every),
        all_tokens=sum(each.tokens for each in log),
        tokens_per_s=int(((every >= low) & (every < high)).sum()) / (high - low) * 1e9,
        in_flight=busy_ns / (high - low),
        ttft_p50=float(ttft_p50),
        ttft_p99=float(ttft_p99),
        itl_p50=float(itl_p50),
        itl_p99=float(itl_p99),
    )


# ---- one run ----------------------------------------------------------------------------------------------------


def make_tokenizer(folder: Path) -> None:
    """Write a tokenizer for which a word is a token, as it is for the reference endpoint; made offline.

    Words that it does not know count as one token too, and come back as a known one.
    """
    words = [word.decode().strip() for word in WORDS]
    words += [f"word{i}" for i in range(VOCABULARY - len(words) - 2)]
    vocabulary = {word: i for i, word in enumerate(["<s>", "</s>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 8192,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "</s>",
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def run(tool: Tool, streams: int, seconds: float, repeat: int, tokenizer: Path) -> Row:
    """One tool against a fresh endpoint; what it wrote stays until its next run."""
    row = Row(tool.name, version(tool), streams, repeat, load_average=os.getloadavg()[0])
    folder = PEERS / "runs" / f"{tool.name}-{streams}"
    shutil.rmtree(folder, ignore_errors=True)
    out, log = folder / "out", folder / "writes.log"
    out.mkdir(parents=True)
    requests, limit_s = streams * math.ceil(seconds / REQUEST_S), 120 + 10 * seconds
    with running(Reference(pace=PACE), log=log, cpu=SERVER_CPU) as url:
        load = ToolLoad(url, streams, requests, seconds, tokenizer, out)
        command = tool.command(tool.home / "bin", load)
        measured = measure(command, environment(tool, load), folder, limit_s)
    shown = shlex.join([Path(command[0]).name, *command[1:]])
    for name, value in (("OUT", str(out)), ("URL", url), ("TOKENIZER", str(tokenizer))):
        shown = shown.replace(value, name)
    last_output = last_line((folder / "output.txt").read_text(errors="replace"))
    truth = truth_of(entries(log), streams)
    failed, reported = None, None
    if measured.timed_out:
        failed = f"killed after {limit_s:.0f} s: {last_output}"
    elif measured.status:
        failed = f"exit status {measured.status}: {last_output}"
    elif truth is None:
        failed = f"never had {streams / 2:.0f} requests in flight: {last_output}"
    else:
        try:
            reported = tool.read(load)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            failed = f"its result cannot be read ({type(error).__name__}: {error}): {last_output}"
    return completed(msgspec.structs.replace(row, command=shown), measured, truth, reported, failed)


def run_floor(streams: int, repeat: int) -> Row:
    """Return what receiving as many streams at the same pace costs by itself, as a row."""
    with running(Reference(pace=PACE), cpu=SERVER_CPU) as url:
        cost = engine_floor.cost(url, streams, ANSWER_TOKENS, spread_s=REQUEST_S, itl_s=PACE.itl_s, cpu=TOOL_CPU)
    return Row("floor", "of this machine", streams, repeat, cpu_load_s_per_m=cost)


def measure(command: list[str], env: dict[str, str], folder: Path, limit_s: float) -> ToolRun:
    """Return the command's cost, taken by a process of its own that stays on the server's core."""
    meter = [
        *(sys.executable, str(ROOT / "bench/research/peers_measure.py"), "--cpu", str(TOOL_CPU)),
        *("--limit", str(limit_s), "--log", str(folder / "output.txt"), "--out", str(folder / "measured.json"), "--"),
    ]
    pinned = ["taskset", "-c", str(SERVER_CPU), *meter, *command]
    subprocess.run(pinned, check=True, env=env, cwd=folder / "out", timeout=limit_s + 60)
    return msgspec.json.decode((folder / "measured.json").read_bytes(), type=ToolRun)


def completed(
    row: Row,
    measured: ToolRun,
    truth: Truth | None,
    reported: Reported | None,
    failed: str | None,
) -> Row:
    """Return the row with all that is known of its run."""
    if truth is None:
        return msgspec.structs.replace(row, failed=failed)
    at, spent = zip(*measured.samples, strict=True)
    before, after = np.interp([truth.begin_ns, truth.last_ns], at, spent)
    return msgspec.structs.replace(
        row,
        failed=failed,
        cpu_load_s_per_m=float(after - before) / truth.tokens * 1e6,
        cpu_all_s_per_m=measured.cpu_s / truth.all_tokens * 1e6,
        first_request_s=(truth.first_ns - measured.start_ns) / 1e9,
        load_begins_s=(truth.begin_ns - measured.start_ns) / 1e9,
        end_s=(measured.end_ns - truth.last_ns) / 1e9,
        peak_mb=measured.peak_bytes / 1e6,
        reported=reported,
        truth=truth,
    )


# ---- the tables -------------------------------------------------------------------------------------------------


def values(rows: Iterable[Row], name: str) -> list[float]:
    """Return a field of runs, like `truth.ttft_p50`, where it is there."""
    there = []
    for row in rows:
        value: Any = row
        for part in name.split("."):
            value = None if value is None else getattr(value, part)
        there += [] if value is None else [float(value)]
    return there


def median(rows: Iterable[Row], name: str) -> float | None:
    """Return the median over runs of a field; None if it is nowhere."""
    there = values(rows, name)
    return statistics.median(there) if there else None


def interval(of: Sequence[float]) -> tuple[float, float] | None:
    """Return between which of the values the median is with 95 %, by their order; None if they are too few.

    >>> interval([10, 1, 2, 3, 4, 5, 6, 7, 8, 9]), interval([1, 2, 3, 4, 5])
    ((2, 9), None)
    """
    n, beyond, out = len(of), 0.0, 0
    while (beyond := beyond + math.comb(n, out) / 2**n) <= 0.025:
        out += 1
    return (sorted(of)[out - 1], sorted(of)[n - out]) if out else None


def _text(value: float | None, times: float = 1.0, digits: int = 1) -> str:
    return "–" if value is None else f"{value * times:,.{digits}f}"


HEAD = (
    *("tool", "CPU s/M, load", "× knee", "CPU s/M, all", "× knee", "TTFT ms, reported p50 / p99", "true"),
    *("ITL ms, reported p50 / p99", "true", "tok/s", "in flight", "first request s", "load begins s", "end s"),
    "peak MB",
)


def cells(rows: Sequence[Row], knee: Sequence[Row]) -> list[str]:
    """Return a line of the table: the medians of one tool's runs."""

    def cost(name: str) -> list[str]:
        value, of, between = median(rows, name), median(knee, name), interval(values(rows, name))
        text = _text(value) + (f" ({_text(between[0])}–{_text(between[1])})" if between else "")
        return [text, "–" if value is None or not of else f"{value / of:.2f}"]

    def pair(name: str) -> str:
        return " / ".join(_text(median(rows, f"{name}_{percent}"), 1e3) for percent in ("p50", "p99"))

    return [
        rows[0].tool,
        *cost("cpu_load_s_per_m"),
        *cost("cpu_all_s_per_m"),
        *(pair(f"{source}.{what}") for what in ("ttft", "itl") for source in ("reported", "truth")),
        *(_text(median(rows, f"truth.{name}"), digits=0) for name in ("tokens_per_s", "in_flight")),
        *(_text(median(rows, name), digits=2) for name in ("first_request_s", "load_begins_s", "end_s")),
        _text(median(rows, "peak_mb"), digits=0),
    ]


def tables(rows: Sequence[Row], options: argparse.Namespace) -> str:
    """Return all that is printed: what was run, a table for each number of streams, and what failed."""
    by_tool: dict[str, list[Row]] = {}
    for row in rows:
        by_tool.setdefault(row.tool, []).append(row)
    loads = [row.load_average for row in rows if row.load_average is not None]
    lines = [
        f"`{shlex.join(['bench/research/peers', *options.line])}`, {time.strftime('%Y-%m-%d')}, {_processor()}, "
        f"{os.cpu_count()} cores, Python {platform.python_version()}; load average before the runs "
        f"{_text(min(loads, default=None), digits=2)} … {_text(max(loads, default=None), digits=2)}. "
        f"The endpoint on core {SERVER_CPU}, the tool on core {TOOL_CPU}; TTFT {1e3 * PACE.ttft_s:g} ms and up to one "
        f"ITL more, ITL {1e3 * PACE.itl_s:g} ms; {PROMPT_TOKENS} tokens in, {ANSWER_TOKENS} out; medians of "
        f"{options.repeat}, CPU with 95 % intervals where the runs are enough for one.",
        "",
        "Versions: " + ", ".join(f"{name} {of[0].version}" for name, of in by_tool.items()) + ".",
    ]
    for streams in options.streams:
        knee = [row for row in by_tool.get(KNEE.name, []) if row.streams == streams and row.failed is None]
        lines += ["", f"{streams} streams:", "", _line(HEAD), _line(["---"] * len(HEAD))]
        for of in by_tool.values():
            here = [row for row in of if row.streams == streams and row.failed is None]
            if here:
                lines.append(_line(cells(here, knee)))
            else:
                lines.append(_line([of[0].tool, "failed", *[""] * (len(HEAD) - 2)]))
    failures = [row for row in rows if row.failed is not None]
    if failures:
        lines += ["", "Failed:", ""]
        lines += [f"- {row.tool}, {row.streams} streams, run {row.repeat}: {row.failed}" for row in failures]
    return "\n".join(lines)


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


# ---- the command ------------------------------------------------------------------------------------------------


def parsed() -> argparse.Namespace:
    names = [tool.name for tool in TOOLS]
    parser = argparse.ArgumentParser(
        prog="bench/research/peers",
        description="knee and its peers against one reference endpoint, one after the other; knee always runs.",
    )
    parser.add_argument("tools", nargs="*", metavar="TOOL", help=f"default all: {', '.join(names)}")
    parser.add_argument("--streams", type=units.levels, default=(64, 256, 512), help="default 64,256,512")
    parser.add_argument("--seconds", type=float, default=20.0, help="of load in a run; default 20")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each, in turn; default 1")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also keep every run's figures there")
    parser.add_argument("--install-only", action="store_true", help="install the tools and stop")
    options = parser.parse_args()
    if unknown := [name for name in options.tools if name not in (*names, KNEE.name)]:
        parser.error(f"unknown tool {unknown[0]!r}; there are {', '.join(names)}")
    if (os.cpu_count() or 1) < 2:
        parser.error("the endpoint and the tool need a core each")
    options.line = sys.argv[1:]
    return options


def installed(tools: Sequence[Tool]) -> tuple[list[Tool], list[tuple[Tool, str]]]:
    """Return the tools that are there or could be installed, and the others with the reason."""
    there, missing = [], []
    for tool in tools:
        print(f"{tool.name}: installing where needed …", file=sys.stderr)
        try:
            tool.install(tool)
        except InstallError as reason:
            print(f"{tool.name}: not installed: {reason}", file=sys.stderr)
            missing.append((tool, str(reason)))
        else:
            there.append(tool)
    return there, missing


def main() -> None:
    options = parsed()
    wanted = [tool for tool in TOOLS if not options.tools or tool.name in options.tools]
    there, missing = installed([KNEE, *wanted])
    if options.install_only:
        return
    rows = []
    with tempfile.TemporaryDirectory(prefix="peers-tokenizer-") as scratch:
        tokenizer = Path(scratch) / "words"
        make_tokenizer(tokenizer)
        for repeat in range(1, options.repeat + 1):
            for streams in options.streams:
                for tool in there:
                    print(f"{tool.name}, {streams} streams, run {repeat} of {options.repeat} …", file=sys.stderr)
                    rows.append(run(tool, streams, options.seconds, repeat, tokenizer))
                    if rows[-1].failed:
                        print(f"{tool.name}: failed: {rows[-1].failed}", file=sys.stderr)
                rows.append(run_floor(streams, repeat))
    print(tables(rows, options))
    for tool, reason in missing:
        print(f"\n{tool.name} is not in the tables, since it could not be installed: {reason}")
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(rows)) + b"\n")
    if any(row.failed for row in rows if row.tool.startswith(KNEE.name)):
        sys.exit(1)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
