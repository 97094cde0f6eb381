"""An endpoint of a stack as long as a `with` block lasts: started, answering, and gone without a rest."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from harness.base.errors import HarnessError
from harness.base.terminal import clean
from harness.data.manifest import StackStart
from harness.dialects import DIALECTS
from harness.load import control
from harness.load.client import client
from harness.load.control import Client, TransportError
from harness.load.transport import Target
from harness.observe import gpu
from harness.run.stacks import command as commands
from harness.run.stacks import server, shipped
from harness.run.stacks.command import Command
from harness.spec.recipe import Recipe, Stack

_VERSION_S = 60.0  # for a command that prints it; importing an engine takes a while
_FREE_S, _FREE_BYTES = 60.0, 256 << 20  # for a GPU's memory to come back, to within so much
_LONGEST_FACT = 200  # characters
_EVERY_S = 0.2  # between two looks
_LOOK_S = 5.0  # that one may take
_TOKENS = 8  # of the first answer
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


def command(stack: Stack, model: str, port: int, *, composed: bool) -> Command:
    """Return what is run for the stack; HarnessError where the model or a setting does not fit its recipe."""
    model = loaded(stack.recipe, model)
    if composed:
        model = str(Path(model).resolve()) if Path(model).exists() else model  # Compose begins at its file's folder
        return commands.composed(stack, model, port, str(shipped.compose_file(stack.recipe)))
    return commands.local(stack, model, port)


def loaded(recipe: Recipe, model: str) -> str:
    """Return the folder, file or name that the server loads."""
    folder = Path(model)
    if not recipe.model_file or not folder.is_dir():
        return model
    found = sorted(folder.glob(recipe.model_file))
    if len(found) != 1:
        fact = f"{len(found)} files {recipe.model_file} in it, where {recipe.title} loads one"
        raise HarnessError(fact, place=str(folder), way_out="name the file by `model` of its [[stack]]")
    return str(found[0])


@contextlib.contextmanager
def running(
    stack: Stack,
    model: str,
    api: str,
    note: Callable[[str], object],
    *,
    composed: bool = False,
    cpus: Sequence[int] = (),
) -> Iterator[Endpoint]:
    """Start the stack, wait until it has answered, and take it away again; HarnessError where it is not ready."""
    recipe, name = stack.recipe, stack.spec.name
    port = _free_port()
    made = command(stack, model, port, composed=composed)
    version = "" if composed else _printed(recipe.version)
    before = _gpu_memory()
    note(f"starting {name}")
    owned = None
    try:
        with server.running(made, stop_s=recipe.stop_within, cpus=cpus) as owned:
            called = commands.served(recipe, "/model" if composed else loaded(recipe, model))
            found = asyncio.run(first_answer(port, recipe.health, api, called, lambda: owned.over, recipe.ready_within))
            start = StackStart(
                name=name,
                command=commands.shown(made.words),
                version=version or None,
                image=_printed(made.image, made.env) or None,
                start_to_ready_s=round(found.ready_s, 3),
                first_answer_s=None if found.answer_s is None else round(found.answer_s, 3),
            )
            answered = "" if found.answer_s is None else f", its first answer took {found.answer_s:.2f} s"
            note(f"{name} is ready after {found.ready_s:.1f} s{answered}")
            yield Endpoint(f"http://127.0.0.1:{port}", found.model, start)
    except NotReadyError as error:
        assert owned is not None
        raise server.failed(owned, name, clean(error), commands.secrets(made)) from None
    finally:
        _until_free(before, note)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def _printed(words: Sequence[str], env: dict[str, str] | None = None) -> str:
    """Return the first line that a command prints, on one line; "" where there is none."""
    if not words:
        return ""
    try:
        done = subprocess.run(
            list(words),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=_VERSION_S, check=False, env=os.environ | (env or {}),
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = done.stdout[:65_536].decode("utf-8", "replace").strip().splitlines()
    return clean(lines[0], _LONGEST_FACT) if lines and done.returncode == 0 else ""


def _gpu_memory() -> dict[str, float]:
    """Return the bytes in use on each GPU of this machine; none where there is no driver."""
    gpus = gpu.nvidia()
    if gpus is None:
        return {}
    try:
        found = gpus.samples(0.0)
    finally:
        gpus.close()
    return {each.metric: each.value for each in found if each.metric.endswith("/memory_used_bytes")}


def _until_free(before: dict[str, float], note: Callable[[str], object]) -> None:
    """Wait until no GPU has more memory in use than before; a note where that does not come."""
    until = time.monotonic() + _FREE_S
    while before:
        more = {name: used - before.get(name, used) for name, used in _gpu_memory().items()}
        if all(each <= _FREE_BYTES for each in more.values()):
            return
        if time.monotonic() > until:
            note(f"{max(more.values()) / 2**30:.1f} GiB of GPU memory are still in use after {_FREE_S:g} s")
            return
        time.sleep(0.5)


# ---- waiting for its health, then for one real answer ------------------------------------------------------


class NotReadyError(Exception):
    """The server is not ready in time, or answers what is none."""


class Answered(NamedTuple):
    """How a server began."""

    ready_s: float  # until it was healthy
    answer_s: float | None  # of its first answer; None: that API's answer is left to the checks
    model: str  # the name that requests carry


async def first_answer(
    port: int, health: str, api: str, model: str, over: Callable[[], bool], within_s: float
) -> Answered:
    """Wait for health and for one answer of `model`, of the first that it lists where that is "".

    `over`: whether the server has ended. NotReadyError after `within_s`, or where the answer is no answer.
    """
    began = time.monotonic()
    path = "/v1" + DIALECTS[api].path
    target = Target(scheme="http", host="127.0.0.1", port=port, path=path, headers={})
    async with client(target, connect_s=_LOOK_S) as server:
        seen = "nothing answers there"
        while True:
            if over():
                raise NotReadyError("it ended before it was ready")
            try:
                page = await control.page(server, health, _LOOK_S)
                if page.status == 200:
                    break
                seen = f"{health} answers {page.status}"
            except TransportError as error:
                seen = str(error)
            if time.monotonic() - began > within_s:
                raise NotReadyError(f"it was not ready within {within_s:g} s: {seen}")
            await asyncio.sleep(_EVERY_S)
        ready_s = time.monotonic() - began
        model = model or await _listed(server)
        if api not in _BODIES:
            return Answered(ready_s, None, model)
        body = msgspec.json.encode(_BODIES[api] | {"model": model, "max_tokens": _TOKENS})
        sent = time.monotonic()
        await _answer(server, path, body, max(_LOOK_S, within_s - ready_s))
        return Answered(ready_s, time.monotonic() - sent, model)


async def _listed(server: Client) -> str:
    """Return the first model that the server lists."""
    try:
        found = (await control.page(server, "/v1/models", _LOOK_S)).json()
    except TransportError as error:
        raise NotReadyError(f"it lists no model: {error}") from None
    try:
        return str(found["data"][0]["id"])
    except (TypeError, KeyError, IndexError):
        raise NotReadyError("it lists no model at /v1/models") from None


async def _answer(server: Client, path: str, body: bytes, within_s: float) -> None:
    """Raise NotReadyError unless the request gets an answer with a choice in it."""
    try:
        page = await control.page(server, path, within_s, body)
    except TransportError as error:
        raise NotReadyError(f"its first request fails: {error}") from None
    found = page.json()
    if not (isinstance(found, dict) and isinstance(found.get("choices"), list) and found["choices"]):
        raise NotReadyError(f"its first request has no answer: {page.status} {page.text[:200]}")
