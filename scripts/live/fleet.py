"""The loss of one of two real llama-servers: does the recovery that the records show agree with the server's own log?

    python scripts/live/fleet.py measure --out results/live-node-loss
    python scripts/live/fleet.py table results/live-node-loss

Both servers run on core 0, knee on core 1. In the last level one of them is killed by SIGKILL, and started again on its
port. Its log tells when it took the first request after that. The result folder gets a `live.json` with these moments.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
from servers import (
    KNEE,
    LENGTHS,
    LIVE,
    LIVE_FILE,
    MODEL,
    Processes,
    ServerError,
    free_port,
    llama_command,
    llama_version,
)
from table import table

from harness.data.summary import NodeLoss, Summary
from harness.results.result import Result

SLOTS = 2  # of each server
LEVELS = "2,4,6,3"  # the loss is in the last one
WITHIN_S = 0.2  # of the recovery by the log
SETTLED_S, DOWN_S = 10.0, 2.0  # from the last level's beginning to the loss, and from there to the new start
_LEVEL_ENDED = re.compile(r"\s*\d+/\d+ +C = [\d,]+ +[\d,.]+ tok/s")  # while a level runs, its phase comes first
_TAKEN = re.compile(r"(\d+)\.(\d\d)\.(\d{3})\.(\d{3}) .*launch_slot_")  # minutes, seconds, milli-, microseconds


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """The moments of the loss, seconds since the run's origin, by this script and by the server's log."""

    server: str
    version: str
    url: str  # of the server that was killed
    killed_s: float
    started_s: float  # again
    first_request_s: float  # that it took after that, by its log
    status: int  # of `knee run`

    @property
    def recovery_s(self) -> float:
        return self.first_request_s - self.killed_s


def first_request(log: str) -> float | None:
    """When a llama-server took its first request, seconds since it began; None where it took none.

    >>> first_request("0.00.128.771 I cmn init\\n0.01.250.500 I slot launch_slot_: id  1 | task 0 | processing task")
    1.2505
    """
    for line in log.splitlines():
        if match := _TAKEN.match(line):
            minutes, seconds, milli, micro = map(int, match.groups())
            return 60 * minutes + seconds + milli / 1e3 + micro / 1e6
    return None


def judged(live: Live, losses: list[NodeLoss]) -> str:
    """'yes', or what the records do not show as the log does."""
    found = [loss for loss in losses if loss.url == live.url]
    if len(found) != 1:
        return f"no: {len(found)} losses of it found"
    recovery = found[0].recovery_s
    if recovery is None:
        return "no: it did not come back"
    apart = recovery - live.recovery_s
    return "yes" if abs(apart) <= WITHIN_S else f"no: {apart:+.2f} s apart"


def report(folder: Path) -> str:
    live = msgspec.json.decode((folder / LIVE_FILE).read_bytes(), type=Live)
    summary = msgspec.json.decode((folder / "summary.json").read_bytes(), type=Summary)
    losses = list(summary.node_losses or ())
    rows = [
        [f"{loss.url}", f"{loss.recovery_s or 0:.2f}", f"{live.recovery_s:.2f}", str(loss.errors)] for loss in losses
    ]
    head = ["replica", "recovery s", "by its log", "errors"]
    return f"{table(head, rows)}\n\nrecovery within ±{WITHIN_S:g} s of the log: {judged(live, losses)}"


class Server:
    """One llama-server, which can be killed and started again on its port."""

    def __init__(self, processes: Processes, name: str) -> None:
        self._processes, self._name, self._port = processes, name, free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.starts = 0

    def start(self, *, wait: bool) -> float:
        """When its process began, on CLOCK_MONOTONIC."""
        self.starts += 1
        self._log = f"{self._name}-{self.starts}"
        self._process = self._processes.start(self._log, llama_command(self._port, SLOTS))
        began = time.monotonic()
        if wait:
            self._processes.wait_ready(f"{self.url}/health")
        return began

    def kill(self) -> float:
        """End it as a machine that is lost does; when, on CLOCK_MONOTONIC."""
        self._processes.forget(self._process)
        at = time.monotonic()
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()
        return at

    @property
    def log(self) -> str:
        return (LIVE / "log" / f"{self._log}.log").read_text(errors="replace")


def measure(out: Path, levels: str, level_seconds: float) -> None:
    processes = Processes()
    try:
        kept, lost = Server(processes, "llama-kept"), Server(processes, "llama-lost")
        for server in (kept, lost):
            server.start(wait=True)
        command = ["taskset", "-c", "1", KNEE, "run", "--url", kept.url, "--url", lost.url]
        command += ["--balance", "least-in-flight", "--levels", levels, "--level-seconds", f"{level_seconds:g}"]
        command += [*LENGTHS, "--keep-going"]
        command += ["--tokenizer", str(MODEL), "--out", str(out)]
        process = subprocess.Popen(command, stdout=sys.stderr.fileno(), stderr=subprocess.PIPE, text=True)
        before_last, killed, started = levels.count(","), 0.0, 0.0
        for line in process.stderr or []:
            sys.stderr.write(line)
            before_last -= bool(_LEVEL_ENDED.match(line) or (line.startswith("plan:") and not before_last))
            if not killed and before_last <= 0 - ("," not in levels):
                time.sleep(SETTLED_S)
                killed = lost.kill()
                time.sleep(DOWN_S)
                started = lost.start(wait=False)
        status = process.wait()
    finally:
        processes.stop()
    taken = first_request(lost.log)
    if taken is None:
        raise ServerError("the server that was started again took no request")
    clock = Result.open(out).manifest.clock
    if not clock:
        raise ServerError("the run has no clock")
    origin_s = clock.monotonic_ns_origin * 1e-9
    live = Live(
        server="llama-server", version=llama_version(), url=lost.url, status=status,
        killed_s=killed - origin_s, started_s=started - origin_s, first_request_s=started + taken - origin_s,
    )  # fmt: skip
    (out / LIVE_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(live), indent=1) + b"\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="The loss of one of two real llama-servers.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    measuring = verbs.add_parser("measure")
    measuring.add_argument("--out", type=Path, default=Path("results/live-node-loss"))
    measuring.add_argument("--short", action="store_true", help="one short level: does everything start and answer?")
    tabling = verbs.add_parser("table")
    tabling.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    if arguments.verb == "table":
        print(report(arguments.folder))
        return
    if arguments.out.exists():
        sys.exit(f"error: {arguments.out}: the folder exists; remove it, or choose another --out")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        measure(arguments.out, "3" if arguments.short else LEVELS, 14.0 if arguments.short else 20.0)
    except ServerError as error:
        sys.exit(f"error: {error}")
    print(f"\n{report(arguments.out)}")


if __name__ == "__main__":
    main()
