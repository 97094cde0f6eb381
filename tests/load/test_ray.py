"""Runs on a Ray cluster of this machine: one folder, whatever the number of nodes, and a node that is lost."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.summarise import summarise
from harness.base.errors import HarnessError
from harness.data.summary import Summary
from harness.data.views import Value
from harness.results.result import Result, read_summary

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra `ray` is not installed"),
    pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two nodes need two processors"),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]
KNEE = [sys.executable, "-m", "harness", "run", "--url", "sim:", "--seed", "7", "--no-plots"]
DEMO = [sys.executable, "-m", "harness", "run", "demo", "--seed", "7", "--level-seconds", "3", "--no-plots"]
LOAD = ["--input-tokens", "40..80", "--output-tokens", "16", "--level-seconds", "1"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of one node with one processor."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **node()})
    yield made
    made.shutdown()


def node() -> dict[str, int]:
    """A node with one processor; its agents' ports are fixed, since a node waits only so long for others."""
    names = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
    sockets = [socket.socket() for _ in names]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = {name: each.getsockname()[1] for name, each in zip(names, sockets, strict=True)}
    for each in sockets:
        each.close()
    return {"num_cpus": 1, "object_store_memory": 80 << 20, **ports}


def numbers(run: Result) -> dict[int, tuple[int, int | None]]:
    """The worker and the prompt's tokens of each request, by its number, without a gap or a twin in a worker."""
    found: dict[int, tuple[int, int | None]] = {}
    for r in run.records:
        number = int(r.request_id.split("-")[2])
        assert number not in found
        found[number] = (r.worker, r.input_tokens)
    workers = {worker for worker, _ in found.values()}
    for worker in workers:
        own = sorted(number for number, (by, _) in found.items() if by == worker)
        assert own == list(range(own[0], own[-1] + 1, len(workers)))
    return found


def actors_alive(address: str) -> int:
    """Actors of all jobs that the cluster still has, from a process of its own."""
    code = (
        "import sys, ray, ray._private.state as s; ray.init(sys.argv[1], log_to_driver=False, logging_level='ERROR');"
        "print(sum(each['State'] != 'DEAD' for each in s.actors().values()))"
    )
    done = subprocess.run([sys.executable, "-c", code, address], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


def digest(found: dict[int, tuple[int, int | None]], known: Collection[int]) -> str:
    """Of the prompts of these requests."""
    return hashlib.sha256(repr([(n, found[n][1]) for n in sorted(known)]).encode()).hexdigest()


def test_runs_on_one_two_and_three_nodes_send_the_same_and_a_lost_node_leaves_its_finished_levels(
    cluster: Any, tmp_path: Path
) -> None:
    runs = []
    for nodes in (1, 2, 3):
        if nodes > 1:
            last = cluster.add_node(**node())
        out = tmp_path / str(nodes)
        command = [*KNEE, *LOAD, "--levels", "1,2,4", "--ray", cluster.address, "--out", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode in (0, 3), done.stderr
        assert f"{nodes} worker{'s' * (nodes > 1)} on " in done.stderr
        run = Result.open(out)
        runs.append(run)
        assert [level.concurrency for level in summarise(run).levels] == [1, 2, 4]
        assert [each.worker for each in run.manifest.client.clocks or ()] == list(range(nodes))
        assert all(abs(each.offset_s) <= each.error_s for each in run.manifest.client.clocks or ()), "one machine"
    assert len({run.manifest.scenario_digest for run in runs}) == 1
    sent = [numbers(run) for run in runs]
    assert [{worker for worker, _ in found.values()} for found in sent] == [{0}, {0, 1}, {0, 1, 2}]
    known = {n for n in sent[0] if all(n in found and found[n][1] for found in sent)}
    assert len(known) > 20
    assert len({digest(found, known) for found in sent}) == 1, "the same prompts"

    out = tmp_path / "lost"
    command = [*KNEE, *LOAD, "--levels", "1,2,4,8,12,16", "--ray", cluster.address, "--out", str(out)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while finished(out) < 2:
            assert process.poll() is None
            time.sleep(0.2)
        cluster.remove_node(last, allow_graceful=False)
        _, talk = process.communicate()
    assert process.returncode == 1, talk
    assert "ended in the middle of the run: it was lost with node" in talk
    assert finished(out) >= 2
    assert len(summarise(Result.open(out)).levels) >= 2
    assert actors_alive(cluster.address) == 0


def test_the_demo_on_three_nodes_has_the_knee_of_the_demo_on_this_machine(cluster: Any, tmp_path: Path) -> None:
    while len(cluster.list_all_nodes()) < 3:
        cluster.add_node(**node())
    cluster.wait_for_nodes()  # one that was lost before may still be listed
    found = []
    for name, more in (("ray", ["--ray", cluster.address]), ("here", [])):
        command = [*DEMO, *more, "--out", str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode in (0, 3), done.stderr
        summary = read_summary(tmp_path / name)  # refused where it is not of the summary's form
        assert summary == summarise(Result.open(tmp_path / name))
        found.append(summary)
    ray, here = found
    assert ray.client.workers == 3
    for one, other in ((ray.knees.hinge, here.knees.hinge), (plateau(ray), plateau(here))):
        (low, high), (least, most) = ends(one), ends(other)
        assert low <= most, (one, other)
        assert least <= high, (one, other)


def plateau(summary: Summary) -> Value | None:
    return summary.curve.plateau_tokens_per_s if summary.curve else None


def ends(value: Value | None) -> tuple[float, float]:
    assert value is not None
    assert value.ci95 is not None
    low, high = value.ci95
    assert low is not None
    assert high is not None
    return low, high


def finished(folder: Path) -> int:
    """Levels of a folder that are over."""
    try:
        return sum(level.finished for level in Result.open(folder).levels)
    except HarnessError:
        return 0
