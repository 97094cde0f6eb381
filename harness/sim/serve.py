"""The simulated endpoint in this process: its listener, its signals, and how it ends."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

from harness.base.errors import HarnessError
from harness.sim.endpoint import Endpoint
from harness.sim.profile import Profile, Reference
from harness.sim.writelog import WriteLog


def beyond_this_machine(host: str) -> bool:
    """Whether others can reach what listens on that IPv4 host; an empty one is every address of this machine."""
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
        fact = f"cannot listen on {host}:{port} ({error.strerror})"
        raise HarnessError(fact, place="--port", way_out="--port 0 takes a free one") from None
    wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
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
