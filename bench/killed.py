"""A server that is killed while it is measured: does the run end soon, with status 3, whatever it was about to do?

    python bench/killed.py --times 10

Each row kills the simulated endpoint so many seconds after the load began, and prints how long the run went on.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
KNEE = str(Path(sys.executable).with_name("knee"))
WITHIN_S, STATUS = 15.0, 3
KILLED_AT_S = (3.0, 8.0, 20.0)
LOADS = {"the default search": (), "--levels 1,2,4": ("--levels", "1,2,4")}


class Ended(NamedTuple):
    """How a run ended after its server was killed."""

    status: int
    seconds: float  # since then
    last_line: str

    @property
    def well(self) -> bool:
        return self.status == STATUS and self.seconds <= WITHIN_S


def killed(options: tuple[str, ...], after_s: float) -> Ended:
    """Return how one run ended whose server was killed so many seconds after its first level began."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    server = subprocess.Popen([KNEE, "sim", "--port", str(port), "--max-num-seqs", "16", "--speed", "0.5"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        with tempfile.TemporaryDirectory() as folder:
            command = [KNEE, "run", f"http://127.0.0.1:{port}", "--out", f"{folder}/run", "--no-plots"]
            command += ["--input-tokens", "128", "--output-tokens", "64"]
            _until_listening(port)
            with subprocess.Popen(
                [*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            ) as run:
                assert run.stderr is not None
                lines = [next(run.stderr)]
                while "single stream" not in lines[-1] and "C = 1" not in lines[-1]:
                    lines.append(next(run.stderr))
                time.sleep(after_s)
                os.kill(server.pid, signal.SIGKILL)
                began = time.monotonic()
                lines += list(run.stderr)
                return Ended(run.wait(), time.monotonic() - began, lines[-1].strip())
    finally:
        server.kill()
        server.wait()


def _until_listening(port: int) -> None:
    for _ in range(200):
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    sys.exit("the simulated endpoint does not listen")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--at-once", type=int, default=2, help="runs beside each other")
    arguments = parser.parse_args()
    good = True
    print(f"bench/killed.py --times {arguments.times}\n")
    print("| load | killed after | ended well | longest | statuses |\n|---|--:|--:|--:|---|")
    with ThreadPoolExecutor(arguments.at_once) as pool:
        for name, options in LOADS.items():
            for after_s in KILLED_AT_S:
                ended = list(pool.map(lambda _, o=options, s=after_s: killed(o, s), range(arguments.times)))
                well = sum(each.well for each in ended)
                good = good and well == len(ended)
                statuses = ", ".join(map(str, sorted({each.status for each in ended})))
                longest = max(each.seconds for each in ended)
                print(f"| {name} | {after_s:g} s | {well} of {len(ended)} | {longest:.1f} s | {statuses} |", flush=True)
                for each in ended:
                    if not each.well:
                        print(f"  {each.last_line}", file=sys.stderr)
    sys.exit(not good)


if __name__ == "__main__":
    main()
