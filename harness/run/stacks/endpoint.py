"""An endpoint of a stack as long as a `with` block lasts: started, answering, and gone without a rest.

Each of its processes is owned by a watchdog that outlives this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from harness.base import interpreter
from harness.base.errors import HarnessError
from harness.base.secrecy import redact
from harness.base.terminal import clean
from harness.data.manifest import PoolServer, StackStart
from harness.dialects import DIALECTS
from harness.load import control
from harness.load.client import client
from harness.load.control import Client, TransportError
from harness.load.transport import Target
from harness.run.stacks import command as commands
from harness.run.stacks.command import Command
from harness.run.stacks.watchdog import Task
from harness.spec.recipe import Stack

_VERSION_S = 60.0  # for a command that prints it; importing an engine takes a while
_LONGEST_FACT = 200  # characters
_EVERY_S = 0.2  # between two looks
_LOOK_S = 5.0  # longest time of one look
_TOKENS = 8  # tokens of the first answer
_QUESTION = "Name ten rivers."
_BODIES: dict[str, dict[str, object]] = {
    "chat": {"messages": [{"role": "user", "content": _QUESTION}]},
    "completions": {"prompt": _QUESTION},
}


class Endpoint(msgspec.Struct, frozen=True):
    """What a run is pointed at: its URL, the model's name there, and how it came to be."""

    url: str
    model: str
    start: StackStart


@contextlib.contextmanager
def running(
    stack: Stack,
    model: str,
    api: str,
    note: Callable[[str], object],
    *,
    cpus: Sequence[int] = (),
) -> Iterator[Endpoint]:
    """Start a stack's processes, yield its endpoint once it has answered, and end them after the block."""
    recipe, name, began = stack.recipe, stack.spec.name, time.monotonic()
    made = commands.processes(stack, model, iter(_free_port, 0))
    last, version = made[-1], _printed(recipe.version)
    note(f"starting {name}")
    starting, server = last, None
    try:
        with contextlib.ExitStack() as started:
            pools = [started.enter_context(owned(each, stop_s=recipe.stop_within, cpus=cpus)) for each in made[:-1]]
            for starting, server in zip(made, pools, strict=False):
                asyncio.run(healthy(starting.port, starting.health, _over(server), recipe.ready_within))
            starting, server = last, started.enter_context(owned(last, stop_s=recipe.stop_within, cpus=cpus))
            called = commands.served(recipe, commands.loaded(recipe, model))
            first = asyncio.run(first_answer(last.port, recipe.health, api, called, _over(server), recipe.ready_within))
            ready_s = first.ready_at - began
            start = StackStart(
                name=name,
                command=commands.shown(last.words),
                version=version or None,
                start_to_ready_s=round(ready_s, 3),
                first_answer_s=None if first.answer_s is None else round(first.answer_s, 3),
                pools=[
                    PoolServer(name=each.pool, url=_url(each), command=commands.shown(each.words)) for each in made[:-1]
                ]
                or UNSET,
            )
            answered = "" if first.answer_s is None else f", its first answer took {first.answer_s:.2f} s"
            note(f"{name} is ready after {ready_s:.1f} s{answered}")
            yield Endpoint(_url(last), first.model, start)
    except NotReadyError as error:
        assert server is not None
        whose = f"{name}, {starting.pool}" if starting.pool else name
        raise failed(server, whose, clean(error), commands.secrets(starting)) from None


def _over(of: Server) -> Callable[[], bool]:
    return lambda: of.over


def _at(port: int) -> contextlib.AbstractAsyncContextManager[Client]:
    """Return a client of a server on this machine."""
    return client(Target(scheme="http", host="127.0.0.1", port=port, path="/", headers={}), connect_s=_LOOK_S)


def _url(of: Command) -> str:
    return f"http://127.0.0.1:{of.port}"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def _printed(words: Sequence[str]) -> str:
    """Run a command and return the first line that it prints; "" if it prints none or fails."""
    if not words:
        return ""
    try:
        done = subprocess.run(
            list(words),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=_VERSION_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = done.stdout[:65_536].decode("utf-8", "replace").strip().splitlines()
    return clean(lines[0], _LONGEST_FACT) if lines and done.returncode == 0 else ""


# ---- waiting for its health, then for one real answer ------------------------------------------------------


class NotReadyError(Exception):
    """The server is not ready in time, or answers what is none."""


class Answered(NamedTuple):
    ready_at: float  # time on the monotonic clock
    answer_s: float | None  # seconds of its first answer; None: that API's answer is left to the checks
    model: str  # the name that requests carry


async def healthy(port: int, health: str, over: Callable[[], bool], within_s: float) -> float:
    """Wait until a page answers 200, and return the moment; NotReadyError after `within_s`, or once `over` is true."""
    began, seen = time.monotonic(), "nothing answers there"
    async with _at(port) as http:
        while not over():
            try:
                page = await control.page(http, health, _LOOK_S)
                if page.status == 200:
                    return time.monotonic()
                seen = f"{health} answers {page.status}"
            except TransportError as error:
                seen = str(error)
            if time.monotonic() - began > within_s:
                raise NotReadyError(f"it was not ready within {within_s:g} s: {seen}")
            await asyncio.sleep(_EVERY_S)
    raise NotReadyError("it ended before it was ready")


async def first_answer(
    port: int, health: str, api: str, model: str, over: Callable[[], bool], within_s: float
) -> Answered:
    """Wait until a server is healthy and answers one request for `model` ("": the first it lists); return the times.

    `over`: whether the server has ended. NotReadyError after `within_s`, or if the answer is not as it must be.
    """
    until = time.monotonic() + within_s
    ready_at = await healthy(port, health, over, within_s)
    async with _at(port) as http:
        if not model:
            listed = (await _list(http, "/v1/models", _LOOK_S, "data"))[0]
            model = str(listed.get("id", "")) if isinstance(listed, dict) else ""
        if api not in _BODIES:
            return Answered(ready_at, None, model)
        body = msgspec.json.encode(_BODIES[api] | {"model": model, "max_tokens": _TOKENS})
        sent = time.monotonic()
        await _list(http, "/v1" + DIALECTS[api].path, max(_LOOK_S, until - ready_at), "choices", body)
        return Answered(ready_at, time.monotonic() - sent, model)


async def _list(http: Client, path: str, within_s: float, field: str, body: bytes | None = None) -> list[Any]:
    """Return the list in a field of a page's JSON; raise NotReadyError if it is missing or empty."""
    try:
        page = await control.page(http, path, within_s, body)
    except TransportError as error:
        raise NotReadyError(f"{path} fails: {error}") from None
    document = page.json()
    if not (isinstance(document, dict) and isinstance(document.get(field), list) and document[field]):
        raise NotReadyError(f"{path} gives no {field}: {page.status} {page.text[:200]}")
    listed: list[Any] = document[field]
    return listed


# ---- a process of it, owned by a watchdog that outlives knee ---------------------------------------------------------


_BEYOND_S = 90.0  # the watchdog may take so long besides the server, for what is left of it
_USAGE = 2  # exit status of a program whose command line is wrong, by argparse and click
_SHOWN_LINES, _SHOWN = 12, 1_500  # lines and characters from the end of a log
_LINE, _AFTER, _LAST = 300, 2, 4  # characters of a line; lines from the first exception on, and at the end
_RAISED = re.compile(  # how a traceback ends, behind what an engine's logger puts before each line
    r"(?:\([^)]*\) )?(?:ERROR [^\]]*\] )?(?:\w+\.)*\w*(?:Error|Exception): "
)


class Server:
    """The knee's end of the watchdog's pipes."""

    def __init__(self, watchdog: subprocess.Popen[bytes]) -> None:
        self.pid: int | None = None  # the server's own process, once it is started
        self.status: int | None = None  # it ended by itself
        self.error = ""  # why it was never started
        self.log = ""  # the end of it, once it has ended
        self._watchdog = watchdog
        self._unread = b""

    @property
    def over(self) -> bool:
        """Return whether the server has ended, or never began."""
        self.listen(0.0)
        return self.status is not None or bool(self.error) or self._watchdog.poll() is not None

    def listen(self, within_s: float) -> bool:
        """Take in what the watchdog reports within `within_s` seconds; return False if the watchdog has ended."""
        assert self._watchdog.stdout is not None
        pipe = self._watchdog.stdout.fileno()
        if not select.select([pipe], [], [], within_s)[0]:
            return True
        data = os.read(pipe, 1 << 20)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._take(json.loads(line))
        return bool(data)

    def _take(self, message: dict[str, Any]) -> None:
        self.pid = message.get("pid", self.pid)
        self.status = message.get("ended", self.status)
        self.error = message.get("error", self.error)
        self.log = message.get("log", self.log)

    def end(self, within_s: float) -> None:
        """End the server by its watchdog; if that is gone or late, kill the server's process group."""
        assert self._watchdog.stdin is not None
        with contextlib.suppress(OSError):
            self._watchdog.stdin.write(b"end\n")
            self._watchdog.stdin.flush()
        until = time.monotonic() + within_s
        while self.listen(max(0.0, until - time.monotonic())) and time.monotonic() < until:
            pass
        with contextlib.suppress(OSError):
            self._watchdog.stdin.close()
        if self._watchdog.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._watchdog.wait(1.0)
        if self._watchdog.poll() is None or self._watchdog.returncode:
            if self.pid is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)
            self._watchdog.kill()


@contextlib.contextmanager
def owned(command: Command, *, stop_s: float, cpus: Sequence[int] = ()) -> Iterator[Server]:
    """Start a command as a server on these cores, yield it, and end all its processes, also if knee is killed."""
    task = Task(words=command.words, env=command.env, cpus=list(cpus), stop_s=stop_s)
    words = interpreter.module("harness.run.stacks.watchdog")
    # A session of its own: Ctrl-C is for the run, which still has to end its requests at the server.
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as watchdog:
        assert watchdog.stdin is not None
        server = Server(watchdog)
        try:
            watchdog.stdin.write(json.dumps(task).encode() + b"\n")
            watchdog.stdin.flush()
            while server.pid is None and not server.over:
                server.listen(1.0)
            yield server
        finally:
            server.end(stop_s + _BEYOND_S)


def end_of(log: str) -> str:
    r"""Return on one line what a log says of a server's end: its first exception and its last lines.

    The first exception is the cause. An engine raises others because of it, in every process that waited for it.

    >>> print(end_of("ValueError: bad length\nsay 8\n" + "in f\n" * 20 + "(A pid=2) RuntimeError: failed\n"))
    ValueError: bad length | say 8 | … | in f | in f | in f | (A pid=2) RuntimeError: failed
    >>> print(end_of("first\n\nload \x1b[31merror\n"))
    first | load \u001b[31merror
    """
    lines = [line.strip()[:_LINE] for line in log.splitlines() if line.strip(" ^~")]
    first = next((at for at, line in enumerate(lines) if _RAISED.match(line)), len(lines))
    if first < len(lines) - _SHOWN_LINES:
        lines = [*lines[first : first + _AFTER], "…", *lines[-_LAST:]]
    return clean(" | ".join(lines[-_SHOWN_LINES:]), _SHOWN)


class RefusedError(HarnessError):
    """The server ended before it was ready with status 2, which is that of a command line that it does not know."""


def failed(server: Server, name: str, fact: str, secrets: Iterable[str] = ()) -> HarnessError:
    """Return the error of a server that did not get ready: `fact` or how it ended, and its log without secrets."""
    if server.error:
        return HarnessError(
            f"it cannot be started: {server.error}", place=name, way_out="install it, or mend its recipe"
        )
    if server.status is not None:
        fact = f"it ended with status {server.status} before it was ready"
    log = end_of(redact(server.log, secrets))
    kind = RefusedError if server.status == _USAGE else HarnessError
    return kind(f"{fact}; the end of its log: {log}" if log else fact, place=name, way_out="see why, and resume")
