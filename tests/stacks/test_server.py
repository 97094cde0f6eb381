"""A server is there while it is needed, and nothing of it afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.base.errors import HarnessError
from harness.run.stacks import endpoint
from harness.run.stacks.command import Command
from tests.builders import recipes

PRINTS = "import sys, time; print('x' * 200_000); print('the last', flush=True); time.sleep(600)"


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and is not yet fetched does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter between opening and reading
        return False


def pids(folder: Path) -> list[int]:
    """Of the forking server: itself, its child, and the one that left its group."""
    until = time.monotonic() + 30
    while not (folder / "server").exists() and time.monotonic() < until:
        time.sleep(0.05)
    return [int((folder / name).read_text()) for name in ("server", "child", "away")]


def gone(found: list[int], within_s: float) -> list[int]:
    """Those that still run after so long."""
    until = time.monotonic() + within_s
    while (left := [pid for pid in found if alive(pid)]) and time.monotonic() < until:
        time.sleep(0.05)
    return left


def test_a_secret_of_the_command_is_hidden_in_what_a_failed_server_said() -> None:
    said = "import sys; print('unrecognized arguments: ' + sys.argv[1]); raise SystemExit(2)"
    stack = recipes.stack("a", [sys.executable, "-c", said, "--hf-token=hf_SECRET123"])
    with pytest.raises(HarnessError, match="unrecognized arguments") as failed:  # noqa: SIM117
        with endpoint.running(stack, "m", "chat", lambda note: None):
            pass
    assert "hf_SECRET123" not in str(failed.value)


@pytest.mark.slow
def test_an_endpoint_answers_and_is_gone_afterwards_with_all_that_it_started(tmp_path: Path) -> None:
    notes: list[str] = []
    stack = recipes.stack("forks", recipes.forking(tmp_path))
    with endpoint.running(stack, "m", "chat", notes.append) as found:
        running = pids(tmp_path)
        assert all(map(alive, running))
        assert found.url.startswith("http://127.0.0.1:")
        assert found.model
        assert found.start.start_to_ready_s > 0
        assert (found.start.first_answer_s or 0) > 0
    assert gone(running, 0.0) == []
    assert [note.partition(" after")[0] for note in notes] == ["starting forks", "forks is ready"]


@pytest.mark.slow
def test_a_server_that_ends_before_it_is_ready_is_an_error_with_the_end_of_its_log() -> None:
    with (
        pytest.raises(HarnessError, match=r"ended with status 3.*loading \| no \\u001b\[31mmemory"),
        endpoint.running(recipes.stack("ends", recipes.ENDS), "m", "chat", lambda _: None),
    ):
        pytest.fail("it was never ready")


@pytest.mark.slow
def test_a_command_that_is_not_there_and_a_server_that_is_never_ready_are_errors() -> None:
    for stack, message in (
        (recipes.stack("none", ["/no/such/server"]), "cannot be started: /no/such/server"),
        (recipes.stack("late", [sys.executable, "-c", PRINTS], ready_within=0.5), r"not ready within 0\.5 s.*the last"),
    ):
        with pytest.raises(HarnessError, match=message), endpoint.running(stack, "m", "chat", lambda _: None):
            pytest.fail("it was never ready")


@pytest.mark.slow
def test_only_the_end_of_a_log_is_kept() -> None:
    with endpoint.owned(Command(words=[sys.executable, "-c", PRINTS]), stop_s=1.0) as found:
        time.sleep(0.5)
    assert found.log.endswith("the last\n")
    assert len(found.log) <= 64 << 10


@pytest.mark.slow
def test_a_server_that_ignores_the_signal_is_ended_all_the_same() -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    with endpoint.owned(Command(words=[sys.executable, "-c", deaf]), stop_s=0.3) as found:
        pid = found.pid
        time.sleep(0.3)
    assert pid is not None
    assert not alive(pid)


@pytest.mark.slow
def test_a_server_runs_on_the_cores_that_it_is_given() -> None:
    core = max(os.sched_getaffinity(0))
    code = "import os; print(sorted(os.sched_getaffinity(0)))"
    with endpoint.owned(Command(words=[sys.executable, "-c", code]), stop_s=1.0, cpus=[core]) as found:
        while not found.over:
            time.sleep(0.05)
    assert found.log == f"[{core}]\n"


@pytest.mark.slow
def test_kill_9_of_knee_leaves_no_server(tmp_path: Path) -> None:
    recipe, out = tmp_path / "forks.toml", tmp_path / "out"
    recipe.write_text(recipes.toml(recipes.forking(tmp_path)))
    load = ["--input-tokens", "16", "--output-tokens", "8", "--levels", "1,2", "--level-seconds", "60"]
    knee = subprocess.Popen(
        [sys.executable, "-m", "harness", "stacks", "run", "--stack", str(recipe), "--model", "m", "--yes",
         "--no-plots", "--out", str(out), *load],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    running = pids(tmp_path)
    spool, until = out / "forks-1" / "requests.spool", time.monotonic() + 60
    while not (spool.exists() and spool.stat().st_size > 5_000) and time.monotonic() < until:
        time.sleep(0.1)
    knee.send_signal(signal.SIGKILL)
    knee.wait()
    assert gone(running, 5.0) == []
    report = [sys.executable, "-m", "harness", "report", "--no-plots", "--json", "--quiet"]
    run = subprocess.run([*report, str(out / "forks-1")], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    whole = subprocess.run([*report, str(out)], capture_output=True, text=True)
    assert whole.returncode == 0, whole.stderr
