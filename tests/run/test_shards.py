"""A run in shards: processes that know nothing of each other load one endpoint, and their folders are one run."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from harness.results import shards
from harness.sim.process import running
from harness.sim.profile import profile

KNEE = [sys.executable, "-m", "harness"]
JOB = Path(__file__).parents[2] / "docker" / "shards.yaml"
OF = 3
OPEN = ["--rate", "24", "--arrivals", "constant"]
CLOSED = ["--levels", "4,7"]


def knee_run(url: str, folder: Path, load: list[str], number: int, start_s: int) -> subprocess.Popen[str]:
    command = [
        *KNEE, "run", "--url", url, *load, "--level-seconds", "1", "--input-tokens", "32", "--output-tokens", "8",
        "--shard", f"{number}/{OF}", "--start-at", str(start_s), "--out", str(folder / str(number)),
    ]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def measured(url: str, folder: Path, load: list[str]) -> list[Path]:
    """The folders of all shards; the start lies further ahead where this machine was too slow for it."""
    for ahead_s in (15, 60, 240):
        start_s = int(time.time()) + ahead_s
        tries = folder / str(ahead_s)
        tries.mkdir()
        processes = [knee_run(url, tries, load, number, start_s) for number in range(1, OF + 1)]
        ended = [(process.communicate(), process.returncode) for process in processes]
        if not any("is past by" in errors for (_, errors), _ in ended):
            assert [status for _, status in ended] == [0] * OF, ended
            return [tries / str(number) for number in range(1, OF + 1)]
    pytest.skip("this machine takes minutes to start three processes")


@pytest.mark.slow
@pytest.mark.parametrize("load", [CLOSED, OPEN], ids=["closed", "open"])
def test_three_machines_are_one_run_without_a_gap_or_a_twin(tmp_path: Path, load: list[str]) -> None:
    with running(profile(max_num_seqs=16, speed=1.0)) as url:
        folders = measured(url, tmp_path, load)
    run = shards.merge(folders)
    ids = Counter(record.request_id for record in run.records)
    assert set(ids.values()) == {1}
    numbers = defaultdict(list)
    for each in run.records:
        run_id, worker, number = each.request_id.rsplit("-", 2)
        assert (run_id, int(worker)) == ((run.manifest.shards or [])[0].run_id, each.worker)
        numbers[each.worker].append(int(number))
    workers = run.manifest.client.workers
    assert sorted(numbers) == list(range(workers))
    assert workers == (OF if load is CLOSED else 2 * OF), "an open loop may come to 1,024 in flight"
    for worker, taken in numbers.items():
        assert sorted(taken) == list(range(1024 + worker, max(taken) + 1, workers))
    assert all(level.finished for level in run.levels)
    for level, moments in zip(run.levels, [(0.0, 1.0, 2.0), (3.0, 4.0, 5.0)], strict=False):
        assert (level.begin_s, *level.window) == moments
    if load is OPEN:
        due = sorted(record.scheduled_s for record in run.records if record.level == 0)
        gaps = [after - before for before, after in itertools.pairwise(due)]
        assert gaps == pytest.approx([1 / 24] * len(gaps), abs=0.02), "one schedule, by the machines' clocks"
    done = subprocess.run(
        [*KNEE, "report", *map(str, folders), "--out", str(tmp_path / "all"), "--json", "--quiet", "--no-plots"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    levels = json.loads(done.stdout)["levels"]
    assert [level["rate"] or level["concurrency"] for level in levels] == ([24.0] if load is OPEN else [4, 7])
    again = subprocess.run([*KNEE, "run", "--resume", str(folders[0])], capture_output=True, text=True, check=False)
    assert (again.returncode, "this run is complete" in again.stderr) == (1, True)


class Container(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    name: str
    image: str
    command: list[str]
    args: list[str]
    env: list[dict[str, str]]
    resources: dict[str, dict[str, str]]
    security_context: dict[str, Any]
    volume_mounts: list[dict[str, Any]]


class Pod(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    restart_policy: str
    topology_spread_constraints: list[dict[str, Any]]
    security_context: dict[str, Any]
    containers: list[Container]
    volumes: list[dict[str, Any]]


class Template(msgspec.Struct, forbid_unknown_fields=True):
    spec: Pod


class JobSpec(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    completion_mode: str
    completions: int
    parallelism: int
    backoff_limit: int
    template: Template


class Job(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """The fields of a batch/v1 Job that the example has."""

    api_version: str
    kind: str
    metadata: dict[str, str]
    spec: JobSpec


def test_the_job_gives_every_pod_a_shard_of_its_own() -> None:
    job = msgspec.convert(yaml.safe_load(JOB.read_text()), Job)
    spec, pod = job.spec, job.spec.template.spec
    assert (job.api_version, job.kind, spec.completion_mode) == ("batch/v1", "Job", "Indexed")
    assert (spec.completions, spec.backoff_limit, pod.restart_policy) == (spec.parallelism, 0, "Never")
    (container,) = pod.containers
    assert {each["name"] for each in container.volume_mounts} == {each["name"] for each in pod.volumes}
    said = subprocess.run(
        [*container.command, container.args[0].replace("exec knee", "printf '%s '")],
        env={each["name"]: each["value"] for each in container.env} | {"JOB_COMPLETION_INDEX": "7", "PATH": "/bin"},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert re.search(rf"--shard 8/{spec.completions} --out /results/shard-8", said)


@pytest.mark.slow
def test_the_shards_of_a_server_that_dies_are_not_complete_nor_is_their_run(tmp_path: Path) -> None:
    load = ["--levels", "3,6"]
    for ahead_s in (15, 60, 240):
        start_s, folder = int(time.time()) + ahead_s, tmp_path / str(ahead_s)
        folder.mkdir()
        with running(profile(max_num_seqs=16, speed=1.0)) as url:
            processes = [knee_run(url, folder, load, number, start_s) for number in range(1, OF + 1)]
            time.sleep(max(0.0, start_s + 2.0 - time.time()))  # inside the first level
        ended = [(process.communicate(), process.returncode) for process in processes]
        if not any("is past by" in errors for (_, errors), _ in ended):
            break
    for (_, said), status in ended:
        assert status == 3, said
        assert "nobody has answered since" in said
    run = shards.merge(folder / str(number) for number in range(1, OF + 1))
    assert not run.complete
    assert {note for level in run.levels for note in level.notes} & {"refused", "stalled"}
