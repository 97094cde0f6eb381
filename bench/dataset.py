"""How long a large dataset takes to be read before a load, and in how much memory: many short rows, and few long ones.

Exit status 1 where the rows take more than 60 s, or either file more than 1 GB of memory.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SECONDS, MEMORY = 60.0, 1e9  # bounds; bytes
HASHES, BLOCK = 20, 512  # blocks of a row at most; tokens of one
LONG = 200_000  # bytes of a long row's prompt


def short(path: Path, rows: int) -> None:
    """Write a trace whose prompts begin alike with one of a thousand blocks."""
    rng = random.Random(1)
    with path.open("w") as file:
        for number in range(rows):
            blocks = rng.randint(1, HASHES)
            tokens = blocks * BLOCK - rng.randint(0, BLOCK - 1)
            hashes = [rng.randrange(1000), *(1000 + number * HASHES + i for i in range(blocks - 1))]
            file.write(
                f'{{"timestamp": {number * 10}, "input_length": {tokens}, "output_length": {rng.randint(1, 500)}, '
                f'"hash_ids": {hashes}}}\n'
            )


def long(path: Path, size: int) -> None:
    """Write rows of long prompts until the file has a size in bytes."""
    prompt = "word " * (LONG // 5)
    row = f'{{"prompt": "{prompt}", "output_tokens": 9}}\n'
    with path.open("w") as file:
        for _ in range(size // len(row) + 1):
            file.write(row)


def read(path: str) -> None:
    """Read a dataset as a run does, and print rows, seconds and the highest resident memory in bytes."""
    from harness.run import requests
    from harness.spec.reading import build
    from harness.workload import hit_rate

    began = time.monotonic()
    asked = build({"workload": {"seed": 1, "dataset": {"path": path}}}, place="bench")
    with requests.read(asked, lambda _: None) as (found, rows):
        hit_rate.expected(found, block=16, rows=rows)
        count = found.workload.dataset.requests if found.workload.dataset else 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(count, time.monotonic() - began, peak)


def main() -> int:
    if sys.argv[1:2] == ["--read"]:
        read(sys.argv[2])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--size", type=float, default=2e9, help="bytes of the file of long rows")
    options = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory(prefix="knee-bench-") as scratch:
        for name, limit in (("short", SECONDS), ("long", float("inf"))):
            path = Path(scratch, f"{name}.jsonl")
            if name == "short":
                short(path, options.rows)
            else:
                long(path, round(options.size))
            size = path.stat().st_size
            done = subprocess.run(
                [sys.executable, __file__, "--read", str(path)], check=True, capture_output=True, text=True
            )
            path.unlink()
            rows, seconds, peak = (float(each) for each in done.stdout.split())
            print(f"{name} rows: {rows:,.0f} in {size / 1e9:.2f} GB, {seconds:.1f} s, {peak / 1e6:.0f} MB at most")
            good = good and seconds <= limit and peak <= MEMORY
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
