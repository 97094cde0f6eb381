"""What a scenario's hooks do around levels: empty the prefix cache, run a command, stop a replica during a level."""

from __future__ import annotations

import asyncio
import shlex
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Awaitable, Sequence

from harness.base.errors import HarnessError
from harness.data.summary import RampStep
from harness.load import control
from harness.load.client import client
from harness.run.launch.endpoint import Endpoint
from harness.run.launch.published import CONNECT_S
from harness.spec.scenario import Hooks

_RESET = ("/reset_prefix_cache", "/flush_cache")  # vLLM in its development mode, SGLang
_RESET_S = 10.0
LOSS_PART = 0.25  # share of a repeat's time for the level in which a replica is stopped


async def before_level(hooks: Hooks, endpoint: Endpoint) -> None:
    """Empty the prefix cache and run the --before-level command, whichever the scenario asks for before a level."""
    if hooks.reset_cache:
        await reset_cache(endpoint)
    if hooks.before_level:
        await command(hooks.before_level, "--before-level")


async def reset_cache(endpoint: Endpoint) -> None:
    """Ask every server to empty its prefix cache; raise HarnessError if one has no such page or does not answer 200."""
    for replica in endpoint.replicas or (endpoint,):
        place, fact = f"--reset-cache, {replica.address.place}", ""
        async with client(replica.wire.target, connect_s=CONNECT_S) as api:
            for path in _RESET:
                try:
                    page = await control.page(api, replica.address.path(path), _RESET_S, b"{}")
                except control.TransportError as error:
                    raise HarnessError(str(error), place=place) from None
                if page.status == 200:
                    break
                fact = fact or (f"{path}: status {page.status}" if page.status not in (404, 405) else "")
            else:
                fact = fact or f"it has neither {' nor '.join(_RESET)}"
                way_out = "vLLM has it with VLLM_SERVER_DEV_MODE=1; else --before-level COMMAND"
                raise HarnessError(fact, place=place, way_out=way_out)


async def command(text: str, option: str) -> None:
    """Run a command, without a shell, until it ends; raise HarnessError if it fails."""
    try:
        process = await asyncio.create_subprocess_exec(*shlex.split(text), stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE)
    except (ValueError, OSError) as error:
        raise HarnessError(str(error), place=option, way_out="write it as in a terminal") from None
    _, output = await process.communicate()
    if process.returncode:
        last = output.decode("utf-8", "replace").strip().rpartition("\n")[2][:200]
        fact = f"status {process.returncode}{': ' + last if last else ''}"
        raise HarnessError(fact, place=f"{option} {shlex.quote(text)}", way_out="run it in a terminal")


def load_at_loss(steps: Sequence[RampStep]) -> int:
    """Return the concurrency to lose a replica at: the middle one of those that were measured."""
    found = sorted({step.concurrency for step in steps if step.concurrency is not None})
    return found[len(found) // 2] if found else 1


async def stopping_replica(level: Awaitable[object], stop: str, due: asyncio.Event) -> None:
    """Await `level` while it is measured, and run the command `stop` once that is due; raise if that fails.

    The command is not run if the level ends before it is due; one that runs is waited for.
    """

    async def run() -> None:
        await due.wait()
        await command(stop, "--stop-replica")

    stopping = asyncio.create_task(run())
    try:
        await level
    finally:
        if not due.is_set():
            stopping.cancel()
        ended = await asyncio.gather(stopping, return_exceptions=True)
    if isinstance(ended[0], Exception):
        raise ended[0]
