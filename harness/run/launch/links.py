"""The links to the workers of a run: processes of this machine, or of the nodes of a Ray cluster."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterator, Sequence

from harness.base.errors import HarnessError
from harness.data.manifest import WorkerClock
from harness.load.link import Link
from harness.load.local import LocalWorker
from harness.run.launch.endpoint import Address
from harness.spec.scenario import Scenario


@contextlib.contextmanager
def to_workers(
    scenario: Scenario, here: int, servers: Sequence[Address], addresses: Sequence[str], *, rows: str = ""
) -> Iterator[Sequence[Link]]:
    """A link to each worker: to `here` of them on this machine, or to those of the scenario's cluster.

    `addresses` are the servers' IP addresses: no worker stands on a node that has one of them. `rows` is the path of
    the table of the run's dataset. HarnessError where the run cannot be measured from other machines.
    """
    if not scenario.ramp.ray:
        yield [LocalWorker() for _ in range(here)]
        return
    from harness.load import cluster

    local = {
        "a dataset": rows,
        "a certificate file": scenario.target.ca_file,
        "a Unix socket": any(each.uds for each in servers),
    }
    if found := [name for name, there in local.items() if there]:
        fact = f"{found[0]} is on this machine alone"
        raise HarnessError(fact, place="--ray", way_out="leave one of them out")
    count = 1 if scenario.ramp.start == "batch" else scenario.ramp.workers
    with cluster.joined(scenario.ramp.ray) as nodes:
        apart = set(addresses)
        if any(ipaddress.ip_address(each.partition("%")[0]).is_loopback for each in addresses):
            apart.add(cluster.own_address())
        placed = cluster.spread(nodes, count, apart)
        yield [cluster.RayWorker.on(node, [(each.host, each.port) for each in servers]) for node in placed]


def described(clocks: Sequence[WorkerClock]) -> list[str]:
    """What to say of workers with clocks of their own, a sentence; nothing of workers without."""
    if not clocks:
        return []
    nodes = len({each.node for each in clocks})
    error_ms = max(each.error_s for each in clocks) * 1e3
    counts = f"{len(clocks)} worker{'s' * (len(clocks) != 1)} on {nodes} node{'s' * (nodes != 1)}"
    return [f"{counts}; their clocks are known to ± {error_ms:.2g} ms"]
