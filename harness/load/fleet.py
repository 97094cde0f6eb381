"""Several replicas behind the seam of a transport: each request goes to the one that the balancer picks.

Nothing is sent again: a request that fails at one replica is a failed request. A replica that is out is probed ten
times a second by a GET of its list of models, which is no request of the load.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from harness.load import control
from harness.load.client import client
from harness.load.messages import Replica
from harness.load.schedule import Balancer, State
from harness.load.transport import Exchange, Transport
from harness.spec.choices import LOST

PROBE_EVERY_S = 0.1
_PROBE_S = 2.0  # for one probe, connecting included


_Unsent = tuple[str, bytes, str]  # id, body and session of a request that is built once its replica is known


async def answers(replica: Replica) -> bool:
    """Return whether a replica answers a GET of its list of models, whatever it answers."""
    try:
        async with client(replica.target, connect_s=_PROBE_S) as http:
            await control.page(http, replica.probe_path, _PROBE_S)
    except control.TransportError:
        return False
    return True


class FleetTransport:
    """A transport for each replica, and one for all of them."""

    def __init__(
        self,
        replicas: Sequence[Replica],
        transports: Sequence[Transport],
        balancer: Balancer,
        deadline_s: float,
        probe: Callable[[Replica], Awaitable[bool]] = answers,
    ) -> None:
        self._replicas, self._transports, self._balancer = replicas, transports, balancer
        self._deadline_s = deadline_s  # a request that the workload gives up before this says nothing of a server
        self._probe = probe
        self._probing: dict[int, asyncio.Task[None]] = {}

    @property
    def resent(self) -> int:
        return sum(transport.resent for transport in self._transports)

    @property
    def stamped(self) -> bool:
        return all(transport.stamped for transport in self._transports)

    def request(self, request_id: str, body: bytes, session: str = "") -> _Unsent:
        return request_id, body, session

    def begin(self, exchange: Exchange, request: _Unsent) -> None:
        """Nothing: a request is built once its replica is known, which `send` decides."""

    async def send(self, exchange: Exchange, request: _Unsent, timeout_s: float) -> None:
        """Send one request to a replica, and wait until its response is over."""
        _, _, session = request
        at = self._balancer.begin(session)
        transport = self._transports[at]
        exchange.url = self._replicas[at].url
        try:
            await transport.send(exchange, transport.request(*request), timeout_s)
        finally:
            given_up = exchange.error == "client_deadline" and timeout_s < self._deadline_s
            failed = exchange.error in LOST or exchange.response.status >= 500
            self._balancer.end(at, failed=failed, cut=given_up or exchange.error == "cancelled")
            if self._balancer.states[at] is State.OUT and at not in self._probing:
                self._probing[at] = asyncio.get_running_loop().create_task(self._until_it_answers(at))

    async def _until_it_answers(self, at: int) -> None:
        """Probe a replica that is out until it answers, or until a request to it has ended well."""
        try:
            while self._balancer.states[at] is State.OUT:
                await asyncio.sleep(PROBE_EVERY_S)
                if await self._probe(self._replicas[at]):
                    self._balancer.answered(at)
        finally:
            del self._probing[at]

    async def prepare(self, connections: int) -> None:
        """Open so many connections, an equal share to each replica."""
        each = -(-connections // len(self._transports))
        await asyncio.gather(*(transport.prepare(each) for transport in self._transports))

    async def aclose(self) -> None:
        probing = list(self._probing.values())
        for task in probing:
            task.cancel()
        await asyncio.gather(*probing, return_exceptions=True)
        await asyncio.gather(*(transport.aclose() for transport in self._transports))
