"""How long a big run takes to be packed and summarised, and in how much memory.

Writes the spool that a run of so many tokens would leave (twelve levels or fewer, a token every 20 ms a stream, no
server), then times the two commands that a user waits for, each in a process of its own: the packing into
requests.parquet at a run's end, and `knee report`. Exit status 1 where one takes longer or more memory than its limit.
Best of a few, since other work on the machine only ever adds. One level is what a soak is; it has 512 slots.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from harness.base import files
from harness.data.record import Level, Record, Sample
from harness.results import frames
from harness.results.folder import MANIFEST
from harness.results.spool import Spool, header

LIMITS = ((10_000_000, 10.0, 1000.0), (100_000_000, 180.0, 4000.0))  # tokens at most, seconds, MB
LEVELS = [2**i for i in range(12)]
SOAK = 512
TTFT_S, ITL_S, JITTER_S = 0.2, 0.02, 0.002
PACK = "import sys; from pathlib import Path; from harness.results.spool import finish; finish(Path(sys.argv[1]))"


def level_records(level: Level, output_tokens: int, requests: int, rng: np.random.Generator) -> Iterator[Record]:
    """Yield a closed loop of the level's slots, staggered over one request; a token a chunk."""
    concurrency = level.concurrency
    assert concurrency is not None
    request_s = TTFT_S + ITL_S * output_tokens
    even = TTFT_S + ITL_S * np.arange(output_tokens)
    for i in range(requests):
        sent = level.begin_s + i / concurrency * request_s
        arrivals = np.sort(sent + even + rng.uniform(0, JITTER_S, output_tokens))
        first, last = float(arrivals[0]), float(arrivals[-1])
        yield Record(
            request_id=f"bench-{level.index}-{i}", level=level.index, repeat=0, concurrency=concurrency, worker=0,
            url="http://127.0.0.1:8000", scheduled_s=sent, sent_s=sent, connect_s=None, first_token_s=first,
            first_content_s=first, last_token_s=last, done_s=last, input_tokens=512, cached_tokens=None,
            output_tokens=output_tokens, reasoning_tokens=None, token_source="continuous", status=200, error="",
            finish_reason="length", bytes_received=300 * output_tokens,
            arrivals=(arrivals * 1e9).astype(np.int64).tobytes(),
        )  # fmt: skip


def write(folder: Path, tokens: int, output_tokens: int, levels: list[int]) -> int:
    """Write a run that has just ended, not yet packed, and return its tokens."""
    rng = np.random.default_rng(0)
    requests = max(1, tokens // output_tokens // len(levels))
    request_s = TTFT_S + ITL_S * output_tokens
    spool, begin = Spool(folder, header(0, 0.0)), 0.0
    for index, concurrency in enumerate(levels):
        span = requests / concurrency * request_s
        level = Level(index, concurrency, 0, begin, begin + 0.1 * span, begin + span, begin + span + request_s)
        spool.level(level)
        records = level_records(level, output_tokens, requests, rng)
        while batch := list(itertools.islice(records, 64)):
            spool.write(frames.batch(batch))
        seconds = np.arange(begin, begin + span).tolist()
        spool.telemetry([Sample(at, "server", "running", float(concurrency)) for at in seconds])
        begin += span + request_s
    spool.close()
    files.write_json(folder / MANIFEST, {"complete": True})
    return requests * output_tokens * len(levels)


def cost(command: list[str]) -> tuple[float, float, float]:
    """Wall seconds, processor seconds and peak resident MB of one command."""
    began = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        sys.exit(f"error: {' '.join(command)} failed; run it by hand")
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def limits(tokens: float) -> tuple[float, float]:
    """Seconds and MB that a run of so many tokens may take: those of the next larger run that has limits."""
    return next(((s, mb) for most, s, mb in LIMITS if tokens <= most), (math.inf, math.inf))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=float, default=10e6)
    parser.add_argument("--output-tokens", type=int, nargs="+", default=[256, 1000], help="of one request")
    parser.add_argument("--levels", type=int, default=len(LEVELS), help="how many, 1 to 12")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    levels = LEVELS[: options.levels] if options.levels > 1 else [SOAK]
    limit_s, limit_mb = limits(options.tokens)
    slow = False
    print("tokens/request  what         seconds    CPU s  peak MB  µs/token")
    for output_tokens in options.output_tokens:
        with tempfile.TemporaryDirectory() as kept:
            original, folder = Path(kept, "spool"), Path(kept, "run")
            original.mkdir()
            tokens = write(original, int(options.tokens), output_tokens, levels)
            packed, reported = [], []
            for _ in range(options.repeat):
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(original, folder)
                packed.append(cost([sys.executable, "-c", PACK, str(folder)]))
                reported.append(cost([sys.executable, "-m", "harness", "report", str(folder)]))
        for what, costs in (("pack", packed), ("knee report", reported)):
            seconds, cpu, megabytes = min(costs)[0], min(cpu for _, cpu, _ in costs), max(mb for _, _, mb in costs)
            figures = f"{seconds:7.2f}  {cpu:7.2f}  {megabytes:7.0f}  {seconds / tokens * 1e6:8.3f}"
            print(f"{output_tokens:14}  {what:11}  {figures}", flush=True)
            slow |= seconds > limit_s or megabytes > limit_mb
    sys.exit(1 if slow else 0)


if __name__ == "__main__":
    main()
