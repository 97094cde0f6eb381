"""Waiting for a server that does not answer: one that still loads its model, or one that was there and is gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from harness.load import control
from harness.load.client import client
from harness.load.fleet import answers
from harness.load.messages import Replica
from harness.load.transport import Target
from harness.run.launch.endpoint import Address
from harness.spec.scenario import Target as TargetSpec

AGAIN_S = 5.0  # that a run waits for a server which has stopped answering, unless --wait says otherwise
_EVERY_S = 0.25  # between two tries
_TRY_S = 2.0  # for one of them
_LOADING = (502, 503, 504)  # what a server that loads its model answers, or a proxy before it


async def until_ready(
    servers: Sequence[Address], target: TargetSpec, wait_s: float, note: Callable[[str], None]
) -> None:
    """Wait until every server answers, though not longer than `wait_s`: the check after this says why one does not."""
    until_s = time.monotonic() + wait_s
    for where in servers:
        noted = False
        while time.monotonic() < until_s and not await _is_ready(where, target):
            if not noted:
                note(f"waiting up to {wait_s:g} s for {where.place} to answer")
                noted = True
            await asyncio.sleep(_EVERY_S)


async def _is_ready(where: Address, target: TargetSpec) -> bool:
    """Whether a server answers, with anything but that it loads."""
    wire = Target(
        scheme=where.scheme, host=where.host, port=where.port, path="", headers={}, uds=where.uds,
        ca_file=target.ca_file or "", insecure=target.insecure, transport=target.transport,
    )  # fmt: skip
    try:
        async with client(wire, connect_s=_TRY_S) as http:
            page = await control.page(http, where.path(f"{where.root}/models"), _TRY_S)
    except control.TransportError:
        return False
    return page.status not in _LOADING


async def answers_again(servers: Sequence[Replica], wait_s: float) -> bool:
    """Return whether any of the servers answers within so many seconds; what it answers does not matter."""
    until_s = time.monotonic() + wait_s
    while not any(await asyncio.gather(*map(answers, servers))):
        if time.monotonic() + _EVERY_S > until_s:
            return False
        await asyncio.sleep(_EVERY_S)
    return True
