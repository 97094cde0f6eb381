"""Which process of a run is where, and this machine's limits: processors, open files and memory.

The workers are processes of this machine, or of the nodes of a Ray cluster. What exceeds every machine (a prompt longer
than any model takes, a million levels) is refused by the scenario itself.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from harness.base import kernel
from harness.base.errors import HarnessError
from harness.data.machines import WorkerClock
from harness.load import workers
from harness.load.link import Link, LocalWorker
from harness.run.launch import consent
from harness.run.launch.endpoint import Address
from harness.spec.scenario import Scenario
from harness.workload import shape, tasks

OTHER_FILES = 64  # files that a process needs besides its connections
_WORKERS_A_PROCESSOR, _FEWEST_WORKERS = 4, 8  # more would compete for the processors
_STREAM_BYTES = 64 << 10  # memory of a connection, its task and its buffers
_BYTES_A_TOKEN = 7  # bytes of a prompt: a short word and its space
_PROMPTS_A_STREAM = 3  # in flight, built ahead, and being built
_BYTES_AN_ARRIVAL = 24  # bytes of an answer's token: its stamp, its count, and its record
_CGROUP = Path("/sys/fs/cgroup")


def check(scenario: Scenario, machines: int = 1) -> None:
    """Raise HarnessError with the limit and its origin if this machine's share of the run does not fit."""
    if scenario.ramp.ray:
        return  # the nodes of the cluster have limits of their own
    wanted, cpus = scenario.ramp.workers or 1, len(kernel.cpus())
    if wanted > (most := max(_FEWEST_WORKERS, _WORKERS_A_PROCESSOR * cpus)):
        fact = f"{wanted:,} workers are too many for {cpus} processors"
        raise HarnessError(fact, place="--workers", way_out=_at_most(most))
    _check_connections(scenario, machines)
    _check_memory(scenario, machines)


def most_streams(scenario: Scenario) -> int:
    """Return the most requests in flight that the run can reach; an open loop's is its limit."""
    ramp = scenario.ramp
    return max(ramp.levels or [ramp.max_concurrency]) * tasks.width(scenario)


def placement(scenario: Scenario, machines: int | None = None) -> tuple[int | None, list[tuple[int, ...]]]:
    """Return (processor of the simulated endpoint, processors of each worker); one tuple a worker, so their number too.

    Each process has a processor of its own if there are enough; empty: not bound. The parent, which has little to do,
    is never bound. A batch, and a quota without `workers`, have one worker. Of several `machines` each has as many
    workers, whatever its processors.
    """
    allowed = kernel.cpus()
    server = scenario.target.url == "sim:" and len(allowed) >= 2
    free = allowed[1:] if server else allowed
    one = scenario.ramp.start == "batch"  # a batch waits for all of its requests
    free_cpus, streams = max(1, len(allowed) - 1), most_streams(scenario)
    if machines is not None:
        free_cpus, streams = _FEWEST_WORKERS, -(-streams // machines)
    count = 1 if one else scenario.ramp.workers or workers.wanted(free_cpus, streams)
    if not scenario.ramp.workers and scenario.target.max_rps:
        count = 1  # each has its part of the quota, whether it has slots or not
    if scenario.load.is_open:
        count = min(count, scenario.ramp.max_concurrency)  # each has its part of the places, at least one
    bound = count <= (len(free) if server else len(free) - 1)
    return allowed[0] if server else None, [(free[-1 - i],) if bound else () for i in range(count)]


@contextlib.contextmanager
def links(
    scenario: Scenario, here: int, servers: Sequence[Address], addresses: Sequence[str], *, rows: str = ""
) -> Iterator[Sequence[Link]]:
    """Yield a link to each worker to be started: `here` of them on this machine, or those on the scenario's cluster.

    `addresses` are the servers' IP addresses: no worker runs on a node that has one of them. `rows` is the path of
    the table of the run's dataset. Raise HarnessError if the run cannot be measured from other machines.
    """
    if not scenario.ramp.ray:
        yield [LocalWorker() for _ in range(here)]
        return
    from harness.load import cluster

    local = {
        "a dataset": rows,
        "a certificate file": scenario.target.ca_file,
        "a Unix socket": any(server.uds for server in servers),
    }
    if found := [name for name, there in local.items() if there]:
        fact = f"{found[0]} is on this machine alone"
        raise HarnessError(fact, place="--ray", way_out="leave one of them out")
    count = 1 if scenario.ramp.start == "batch" else scenario.ramp.workers
    with cluster.joined(scenario.ramp.ray) as nodes:
        apart = set(addresses)
        if any(map(consent.is_loopback, addresses)):
            apart.add(cluster.own_address())
        placed = cluster.spread(nodes, count, apart)
        yield [cluster.RayWorker.on(node, [(server.host, server.port) for server in servers]) for node in placed]


def described_clocks(clocks: Sequence[WorkerClock]) -> list[str]:
    """Return a sentence on how well the clocks of workers on other nodes are known; [] without such workers."""
    if not clocks:
        return []
    nodes = len({clock.node for clock in clocks})
    error_ms = max(clock.error_s for clock in clocks) * 1e3
    counts = f"{len(clocks)} worker{'s' * (len(clocks) != 1)} on {nodes} node{'s' * (nodes != 1)}"
    return [f"{counts}; their clocks are known to ± {error_ms:.2g} ms"]


def _check_connections(scenario: Scenario, machines: int) -> None:
    """Raise HarnessError if the highest level needs more connections than files may be open."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted, most = -(-most_streams(scenario) // machines), files - OTHER_FILES
    if files != resource.RLIM_INFINITY and wanted > most:
        fact = f"{wanted:,} connections do not fit into {files:,} open files"
        way_out = f"{_at_most(most)}, or raise `ulimit -Hn`"
        raise HarnessError(fact, place=_levels(scenario), way_out=way_out)


def _check_memory(scenario: Scenario, machines: int) -> None:
    """Raise HarnessError if the requests in flight at the highest level need more memory than is free."""
    streams, mean, free = -(-most_streams(scenario) // machines), shape.of(scenario).mean(), memory()
    prompts = _PROMPTS_A_STREAM * _BYTES_A_TOKEN * mean.input_tokens
    each = round(_STREAM_BYTES + prompts + _BYTES_AN_ARRIVAL * mean.output_tokens)
    if streams * each > free:
        tokens = f"{mean.input_tokens:,.0f} tokens in and {mean.output_tokens:,.0f} out"
        fact = f"{streams:,} in flight, {tokens} each, take {_size(streams * each)} of {_size(free)} free memory here"
        fits = free // each
        way_out = _at_most(fits) if fits else "lower --input-tokens or --output-tokens"
        raise HarnessError(fact, place=_levels(scenario), way_out=way_out)


def memory() -> int:
    """Return the bytes of free memory: of the machine, or of the container's limit if that is less."""
    free = int(psutil.virtual_memory().available)
    try:
        share, used = (int((_CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        rows = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        cached = int(rows["active_file"]) + int(rows["inactive_file"])
    except (OSError, ValueError, KeyError):  # no container, or one without a limit ("max")
        return free
    return max(0, min(free, share - used + cached))  # the system drops cached pages of files when memory is needed


def _levels(scenario: Scenario) -> str:
    return "--levels" if scenario.ramp.levels else "--max-concurrency"


def _at_most(most: int) -> str:
    return f"stay at or below {most:,}"


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB"
