"""Runs that are killed, stopped, cut off from their disk or sent a signal, and what the server's own log says of them.

A case is a function: it gets a place to work in, does its worst to a `knee run` against the simulated endpoint, and
gives the account. The tests hold each account against its claim; `scripts/trust` prints all of them as a table.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from harness.analysis.summarise import summarise
from harness.base.errors import HarnessError
from harness.data.summary import Summary
from harness.results.folder import MANIFEST, SPOOL
from harness.results.result import Result
from harness.sim import connection
from harness.sim.process import running
from harness.sim.profile import profile

KNEE = [sys.executable, "-m", "harness"]
LEVELS = [1, 2, 4, 8]
LOAD = ["--input-tokens", "64", "--output-tokens", "32", "--levels", "1,2,4,8", "--level-seconds", "0.5", "--no-plots"]
LATEST_S = 1.0  # what a process that is killed may take with it
MEASURED = (0, 3)  # 3: this machine was too busy for the client, which is no fault of the program


class Account(NamedTuple):
    """What a fault cost, by the server's log."""

    logged: int  # requests that the server got
    answered: int  # of them, those that it answered to the end
    kept: int  # that the folder has
    lost: int  # answered to the end, and not in the folder
    lost_early: int  # of them, those that were over more than LATEST_S before the fault
    reported: int  # requests without a record, by the summary
    twice: int  # in the folder more than once, or sent to the server more than once
    unknown: int  # in the folder, and not of the server
    loaded_s: float | None  # from the fault to the last request that the server got; None: there was another session
    files: frozenset[str]  # of the folder
    statuses: tuple[int, ...]  # exit status of each session
    talk: str  # stderr of the last session
    summary: Summary

    @property
    def levels(self) -> list[int | None]:
        return [level.concurrency for level in self.summary.levels]

    def verdicts(self) -> set[str]:
        return {v.code for v in [*self.summary.verdicts, *(v for s in self.summary.levels for v in s.verdicts)]}


class Sitting:
    """A `knee run` that goes on while a case does something to it."""

    def __init__(self, out: Path, *arguments: str, **options: Any) -> None:
        self.out = out
        self.err = out.with_name(f"{out.name}.err")
        with self.err.open("w") as err:
            streams = {"stdout": subprocess.DEVNULL, "stderr": err, **options}
            # Whoever runs the tests may ignore SIGHUP (nohup does), and a child would ignore it as well.
            kept = signal.signal(signal.SIGHUP, signal.SIG_DFL)
            try:
                self.process = subprocess.Popen([*KNEE, "run", *arguments], **streams)
            finally:
                signal.signal(signal.SIGHUP, kept)

    def workers(self) -> list[psutil.Process]:
        children = psutil.Process(self.process.pid).children()
        return [child for child in children if "harness.load.worker" in child.cmdline()]

    def reached(self, levels: int, moment: Callable[[Any], bool] = lambda level: True) -> None:
        """Wait until so many levels are finished and the next has come to a moment of its own."""
        until = time.monotonic() + 90
        while time.monotonic() < until and self.process.poll() is None:
            with contextlib.suppress(HarnessError):  # not there yet
                found = [level for level in Result.open(self.out).levels if "void" not in level.notes]
                if sum(level.finished for level in found) >= levels and not found[-1].finished and moment(found[-1]):
                    return
            time.sleep(0.02)
        raise AssertionError(f"not reached: {self.process.poll()} {self.err.read_text()}")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()


class Scene:
    """An endpoint with its log, and the sittings of one run against it."""

    def __init__(self, place: Path, url: str, log: Path) -> None:
        self.place, self.out, self.url, self.log = place, place / "out", url, log
        self.statuses: list[int] = []
        self.last: Sitting | None = None
        self.fault_ns = 0  # when the process was hurt

    def begin(self, *arguments: str, **options: Any) -> Sitting:
        self.last = Sitting(self.out, "--url", self.url, *LOAD, "--out", str(self.out), *arguments, **options)
        return self.last

    def resume(self, **options: Any) -> Sitting:
        self.last = Sitting(self.out, "--resume", str(self.out), "--no-plots", **options)
        return self.last

    def hurt(self, process: psutil.Process | Sitting, number: int) -> None:
        self.fault_ns = self.fault_ns or time.monotonic_ns()
        process.send_signal(number) if isinstance(process, psutil.Process) else process.signal(number)

    def ended(self) -> int:
        assert self.last is not None
        self.statuses.append(self.last.end())
        return self.statuses[-1]

    def account(self) -> Account:
        assert self.last is not None
        time.sleep(0.3)  # the server sees who went away, and its log is written
        log = [e for e in connection.entries(self.log) if e.id != "knee-check"]
        ids = [e.id for e in log]
        whole = {e.id: e.end_ns for e in log if e.finished}
        run = Result.open(self.out)
        kept = Counter(record.request_id for record in run.records)
        early_ns = self.fault_ns - int(LATEST_S * 1e9)
        summary = summarise(run)
        missing = "".join(v.message for v in summary.verdicts if v.code == "requests_lost")
        reported = re.match(r"at least (\d+) requests", missing)
        sent = {r.request_id for r in run.records if r.sent_s is not None}
        return Account(
            logged=len(ids),
            answered=len(whole),
            kept=len(run.records),
            lost=len(whole.keys() - kept.keys()),
            lost_early=sum(end < early_ns for id, end in whole.items() if id not in kept),
            reported=int(reported[1]) if reported else 0,
            twice=sum(n - 1 for n in [*kept.values(), *Counter(ids).values()]),
            unknown=len(sent - set(ids)),
            loaded_s=(max(e.received_ns for e in log) - self.fault_ns) * 1e-9 if len(self.statuses) == 1 else None,
            files=frozenset(path.name for path in self.out.iterdir()),
            statuses=tuple(self.statuses),
            talk=self.last.err.read_text(),
            summary=summary,
        )


@contextlib.contextmanager
def scene(place: Path) -> Iterator[Scene]:
    log = place / "server.log"
    with running(profile(max_num_seqs=8, speed=2.0), log=log) as url:
        yield Scene(place, url, log)


def in_window(level: Any) -> bool:
    return level.window_start_s is not None and level.window_end_s is None


def in_cooldown(level: Any) -> bool:
    return level.window_end_s is not None


# The cases


def worker_killed(s: Scene) -> None:
    run = s.begin("--workers", "2")
    run.reached(2, in_window)
    s.hurt(run.workers()[1], signal.SIGKILL)
    s.ended()


def worker_killed_and_resumed(s: Scene) -> None:
    worker_killed(s)
    s.resume()
    s.ended()


def main_killed(s: Scene) -> None:
    run = s.begin("--workers", "2")
    run.reached(2, in_window)
    s.hurt(run, signal.SIGKILL)
    s.ended()


def main_killed_and_resumed(s: Scene) -> None:
    main_killed(s)
    s.resume()
    s.ended()


def all_killed_and_resumed(s: Scene) -> None:
    """Main process and workers at once, as a container's end does."""
    run = s.begin("--workers", "2")
    run.reached(1, in_window)
    for process in [*run.workers(), psutil.Process(run.process.pid)]:
        s.hurt(process, signal.SIGKILL)
    s.ended()
    s.resume()
    s.ended()


def frame_cut_and_resumed(s: Scene) -> None:
    """As if the machine had gone down in the middle of a write: the last bytes are missing, and rubbish follows."""
    main_killed(s)
    data = (s.out / SPOOL).read_bytes()
    (s.out / SPOOL).write_bytes(data[:-7] + b"\x00\xff\x00")
    s.resume()
    s.ended()


def resumed_twice(s: Scene) -> None:
    """Killed, resumed, interrupted, resumed."""
    run = s.begin()
    run.reached(1, in_window)
    s.hurt(run, signal.SIGKILL)
    s.ended()
    run = s.resume()
    run.reached(2, in_window)
    run.signal(signal.SIGINT)
    s.ended()
    s.resume()
    s.ended()


def _signalled(number: int, moment: Callable[[Any], bool] = in_window, times: int = 1) -> Callable[[Scene], None]:
    def case(s: Scene) -> None:
        run = s.begin()
        run.reached(1, moment)
        for _ in range(times):
            s.hurt(run, number)
            time.sleep(0.05)
        s.ended()

    return case


def interrupted_and_resumed(s: Scene) -> None:
    _signalled(signal.SIGINT)(s)
    s.resume()
    s.ended()


def terminated_in_warm_up(s: Scene) -> None:
    run = s.begin()
    run.reached(1, lambda level: level.window_start_s is None)
    s.hurt(run, signal.SIGTERM)
    s.ended()


def disk_full(s: Scene) -> None:
    """No file may grow beyond a limit that the spool meets in the second or third level."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (48_000, 48_000))

    s.begin(preexec_fn=limit)
    s.ended()


def disk_full_and_resumed(s: Scene) -> None:
    disk_full(s)
    s.resume()
    s.ended()


def worker_stopped(s: Scene) -> None:
    run = s.begin("--workers", "2")
    run.reached(1, in_window)
    (worker, _) = run.workers()
    s.hurt(worker, signal.SIGSTOP)
    time.sleep(0.8)
    worker.send_signal(signal.SIGCONT)
    s.ended()


def main_stopped(s: Scene) -> None:
    run = s.begin()
    run.reached(1, in_window)
    s.hurt(run, signal.SIGSTOP)
    time.sleep(2.0)
    run.signal(signal.SIGCONT)
    s.ended()


def nobody_listens(s: Scene) -> None:
    """stdout and stderr are pipes whose other ends are closed: `| head` that has seen enough."""
    near, far = os.pipe()
    os.close(near)
    try:
        s.begin(stdout=far, stderr=far)
    finally:
        os.close(far)
    s.ended()


def terminal_gone(s: Scene) -> None:
    """The terminal that a run talks to is closed in the middle of it, without a hang-up signal to this process."""
    master, slave = os.openpty()
    run = s.begin(stdout=slave, stderr=slave)
    os.close(slave)
    run.reached(1, in_window)
    os.close(master)
    s.ended()


def folder_removed(s: Scene) -> None:
    run = s.begin()
    run.reached(1, in_window)
    kept = s.place / "kept"
    kept.mkdir()
    os.link(s.out / SPOOL, kept / SPOOL)  # for a test to read
    shutil.copy(s.out / MANIFEST, kept)
    s.hurt(run, 0)
    shutil.rmtree(s.out)
    s.ended()
    s.out = kept


CASES: dict[str, Callable[[Scene], None]] = {
    "kill -9 of one of two workers": worker_killed,
    "kill -9 of one of two workers, --resume": worker_killed_and_resumed,
    "kill -9 of the main process": main_killed,
    "kill -9 of the main process, --resume": main_killed_and_resumed,
    "kill -9 of all processes, --resume": all_killed_and_resumed,
    "the last frame cut and damaged, --resume": frame_cut_and_resumed,
    "kill -9, --resume, Ctrl-C, --resume": resumed_twice,
    "Ctrl-C": _signalled(signal.SIGINT),
    "Ctrl-C twice": _signalled(signal.SIGINT, times=2),
    "Ctrl-C, --resume": interrupted_and_resumed,
    "SIGTERM in the window": _signalled(signal.SIGTERM),
    "SIGTERM in the warm-up": terminated_in_warm_up,
    "SIGTERM in the cooldown": _signalled(signal.SIGTERM, in_cooldown),
    "SIGHUP": _signalled(signal.SIGHUP),
    "disk full": disk_full,
    "disk full, --resume with room": disk_full_and_resumed,
    "a worker stands still for 0.8 s": worker_stopped,
    "the main process stands still for 2 s": main_stopped,
    "stdout and stderr closed": nobody_listens,
    "terminal gone": terminal_gone,
    "result folder removed": folder_removed,
}
STATUSES: dict[str, tuple[object, ...]] = {
    "kill -9 of one of two workers": (1,),
    "kill -9 of one of two workers, --resume": (1, MEASURED),
    "kill -9 of the main process": (-9,),
    "kill -9 of the main process, --resume": (-9, MEASURED),
    "kill -9 of all processes, --resume": (-9, MEASURED),
    "the last frame cut and damaged, --resume": (-9, MEASURED),
    "kill -9, --resume, Ctrl-C, --resume": (-9, 130, MEASURED),
    "Ctrl-C": (130,),
    "Ctrl-C twice": (130,),
    "Ctrl-C, --resume": (130, MEASURED),
    "SIGTERM in the window": (143,),
    "SIGTERM in the warm-up": (143,),
    "SIGTERM in the cooldown": (143,),
    "SIGHUP": (129,),
    "disk full": (1,),
    "disk full, --resume with room": (1, MEASURED),
    "a worker stands still for 0.8 s": (3,),
    "the main process stands still for 2 s": (MEASURED,),
    "stdout and stderr closed": (MEASURED,),
    "terminal gone": (MEASURED,),
    "result folder removed": (1,),
}


def tried(name: str, place: Path) -> Account:
    """Do one case and give its account."""
    place.mkdir(parents=True, exist_ok=True)
    with scene(place) as s:
        CASES[name](s)
        return s.account()


def wrong(name: str, a: Account) -> list[str]:
    """What does not hold of a case; empty if all does."""
    complete = name not in _BROKEN_OFF
    found = {
        f"{a.lost_early} lost that were over {LATEST_S:g} s before": a.lost_early > 0,
        f"{a.lost} lost though nothing died": a.lost > 0 and not any(mark in name for mark in ("kill", "cut", "full")),
        f"{a.twice} counted twice": a.twice > 0,
        f"{a.unknown} of no server": a.unknown > 0,
        f"it says {a.reported} are missing of {a.logged - a.kept}": a.reported > a.logged - a.kept,
        f"status {a.statuses}": not _as_expected(a.statuses, STATUSES[name]),
        "a traceback": "Traceback" in a.talk,
        f"levels {a.levels}": a.levels != (LEVELS if complete else LEVELS[: len(a.levels)]) or not a.levels,
        "complete is wrong": a.summary.complete != complete,
        f"files {sorted(a.files)}": SPOOL in a.files and 130 <= a.statuses[-1] <= 143,
    }
    return [what for what, holds in found.items() if holds]


_BROKEN_OFF = {name for name, statuses in STATUSES.items() if statuses[-1] != MEASURED and statuses[-1] != 3}


def _as_expected(found: tuple[int, ...], expected: tuple[object, ...]) -> bool:
    return len(found) == len(expected) and all(
        status in want if isinstance(want, tuple) else status == want
        for status, want in zip(found, expected, strict=True)
    )
