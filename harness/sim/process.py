"""The simulated endpoint in this process, or in processes of its own as long as a `with` block lasts."""

from __future__ import annotations

import errno
import ipaddress
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from harness.base import interpreter, kernel
from harness.base.errors import HarnessError
from harness.sim.connection import WriteLog
from harness.sim.endpoint import Endpoint
from harness.sim.profile import Profile, Reference

_READY = "ready "


def beyond_this_machine(host: str) -> bool:
    """Return whether others can reach what listens on that IPv4 host; an empty one is every address of this machine."""
    return not ipaddress.ip_address(socket.gethostbyname(host)).is_loopback


def serve(
    profile: Profile | Reference,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    log: str | Path | None = None,
    ready: Callable[[str], object] = lambda url: None,
    lifeline: int | None = None,
    share_port: bool = False,
) -> None:
    """Serve in this thread, the main one, until SIGTERM, SIGINT or the end of `lifeline`; port 0 takes any.

    `ready` is called with the URL as soon as connections are taken; with `share_port` other processes may take
    connections at the same port.
    """
    log_file = WriteLog(log)
    try:
        listener = socket.create_server((host, port), backlog=4096, reuse_port=share_port)
    except OSError as error:
        words = (error.strerror or str(error)).partition(" (while")[0]  # the rest repeats the address
        fact, place, way_out = f"cannot listen on {host}:{port}: {words}", "--host", "give an address of this machine"
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            place, way_out = "--port", "--port 0 takes a free one"
        raise HarnessError(fact, place=place, way_out=way_out) from None
    wake, woken = kernel.pipe()
    endpoint = Endpoint(profile, listener, log_file)
    endpoint.stop_when_readable(wake)
    if lifeline is not None:
        endpoint.stop_when_readable(lifeline)
    # The byte that a signal puts into the pipe ends the loop; the handler only keeps it from ending us.
    old = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    old_fd = signal.set_wakeup_fd(woken)
    try:
        ready(f"http://{host}:{listener.getsockname()[1]}")
        endpoint.run()
    finally:
        signal.set_wakeup_fd(old_fd)
        for number, handler in old.items():
            signal.signal(number, handler)
        log_file.close()
        listener.close()
        os.close(wake)
        os.close(woken)


class Served(NamedTuple):
    url: str
    pids: tuple[int, ...]  # ids of its processes
    logs: tuple[Path, ...]  # a write log each; none without `log`


@contextmanager
def running(
    profile: Profile | Reference, *, log: str | Path | None = None, cpu: int | None = None, processes: int = 1
) -> Iterator[str]:
    """Start the endpoint, give its URL, and end it afterwards; see `serving`."""
    with serving(profile, log=log, cpu=cpu, processes=processes) as served:
        yield served.url


@contextmanager
def serving(
    profile: Profile | Reference, *, log: str | Path | None = None, cpu: int | None = None, processes: int = 1
) -> Iterator[Served]:
    """Start the endpoint, yield where it is, and end it afterwards.

    `log` is its write log, `cpu` the core that it is pinned to. Several processes share one port, and the kernel
    deals the connections out to them: each has its own machine, counters and log (`log`, `log.1`, …), and with
    `cpu` its own core, the allowed ones from that one on. They also end by themselves when this process dies,
    since it has the other end of their standard input.
    """
    allowed = kernel.cpus()
    logs = [] if log is None else [Path(log), *(Path(f"{log}.{i}") for i in range(1, processes))]
    with ExitStack() as stack:
        port, pids = 0, []
        for i in range(processes):
            command = interpreter.module("harness.sim", "--port", str(port))
            command += ["--log", str(logs[i])] if logs else []
            command += [] if cpu is None else ["--cpu", str(allowed[(allowed.index(cpu) + i) % len(allowed)])]
            command += ["--share-port"] if processes > 1 else []
            url, pid = stack.enter_context(_process(command, profile))
            port = int(url.rsplit(":", 1)[1])
            pids.append(pid)
        yield Served(url, tuple(pids), tuple(logs))


@contextmanager
def _process(command: list[str], profile: Profile | Reference) -> Iterator[tuple[str, int]]:
    """Start one process of the endpoint, yield (its URL, its pid) once it serves, and end it.

    Raise HarnessError if it ends before it serves.
    """
    # A session of its own: Ctrl-C is for the run, which still has to end its requests here.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(profile) + b"\n")
            process.stdin.flush()
            line = process.stdout.readline().decode()
            if not line.startswith(_READY):
                fact = f"the simulated endpoint ended with status {process.wait()} before it served"
                raise HarnessError(fact, place="sim:", way_out="its own message stands above this one")
            yield line.removeprefix(_READY).strip(), process.pid
        finally:
            process.terminate()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
