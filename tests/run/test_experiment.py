"""Whole runs through real sockets and processes, compared with the server's own write log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import numpy as np
import pytest

from harness.analysis.table import Table
from harness.data.summary import Summary
from harness.results.folder import SPOOL
from harness.results.result import Result
from harness.sim import connection
from harness.sim.process import running
from harness.sim.profile import profile

SCHEMA = Path(__file__).parents[2] / "docs" / "summary.schema.json"
KNEE = [sys.executable, "-m", "harness"]
LOAD = ["--input-tokens", "64", "--output-tokens", "32"]
pytestmark = pytest.mark.slow
LEVELS = [1, 4, 16, 64]  # of a server with 16 seats


def knee(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*KNEE, *arguments], capture_output=True, text=True, timeout=120, check=False, **options)


def measured_well(folder: Path, status: int) -> bool:
    """Exit status 0; or 3 because this machine was too busy for the client, which is no fault of the program."""
    summary = json.loads((folder / "summary.json").read_text())
    found = [*summary["verdicts"], *(v for level in summary["levels"] for v in level["verdicts"])]
    invalid = {v["code"] for v in found if v["level"] == "invalid"}
    return (status == 0 and not invalid) or (status == 3 and invalid == {"client_limited"})


def test_the_committed_schema_is_the_shape_of_the_summary() -> None:
    assert json.loads(SCHEMA.read_text()) == msgspec.json.schema(Summary), "run scripts/schema"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[connection.Entry], dict[str, Any], int]:
    """A short ramp against the simulated endpoint: folder, the server's write log, the printed summary, status."""
    folder = tmp_path_factory.mktemp("run")
    log = folder / "server.jsonl"
    with running(profile(max_num_seqs=16, speed=1.0), log=log, cpu=min(os.sched_getaffinity(0))) as url:
        done = knee(
            "run", "--url", url, *LOAD, "--levels", ",".join(map(str, LEVELS)), "--level-seconds", "3", "--seed", "3",
            "--out", str(folder / "out"), "--json", "--quiet", "--no-plots",
        )  # fmt: skip
    assert measured_well(folder / "out", done.returncode), done.stderr
    return folder / "out", connection.entries(log), json.loads(done.stdout), done.returncode


@pytest.mark.alone
def test_the_summary_on_stdout_is_the_file_and_keeps_the_schema(measured: Any) -> None:
    folder, _, printed, _ = measured
    assert json.loads((folder / "summary.json").read_text()) == printed
    jsonschema.validate(printed, json.loads(SCHEMA.read_text()))
    assert [level["concurrency"] for level in printed["levels"]] == LEVELS
    assert printed["complete"] is True
    assert printed["client"]["timestamp_source"] == "kernel"


@pytest.mark.alone
def test_every_request_s_tokens_are_the_server_s(measured: Any) -> None:
    folder, log, _, _ = measured
    by_id = {entry.id: entry for entry in log}
    records = Result.open(folder).records
    whole = [r for r in records if not r.error]
    cut = [r for r in records if r.error == "cancelled"]
    assert len(whole) > 50
    assert len(cut) == 64
    assert len(whole) + len(cut) == len(records)
    for r in whole:
        assert r.output_tokens == by_id[r.request_id].tokens == 32
        assert r.input_tokens == 64
    for r in cut:
        assert len(r.arrivals) // 8 <= by_id[r.request_id].tokens


@pytest.mark.alone
def test_the_window_counts_what_the_server_wrote_in_it(measured: Any) -> None:
    folder, log, printed, _ = measured
    run = Result.open(folder)
    table = Table.of(run.records)
    writes = np.sort(np.concatenate([np.array(e.writes_ns, dtype=np.int64) for e in log]))
    writes_s = (writes - run.header.monotonic_ns_origin) * 1e-9
    for level in printed["levels"]:
        start, end = level["window"]
        inside = (table.arrival >= start) & (table.arrival < end)
        ours = int(table.tokens[inside].sum())
        theirs = int(((writes_s >= start) & (writes_s < end)).sum())
        edges = 2 * min(level["concurrency"], 16)  # one engine step's tokens at each edge
        assert abs(ours - theirs) <= max(edges, 0.005 * theirs), level["concurrency"]
        mean = level["output_tokens_per_s"]["mean"]
        assert mean == pytest.approx(ours / (end - start), rel=0.01)


@pytest.mark.alone
def test_first_tokens_and_gaps_are_the_server_s(measured: Any) -> None:
    folder, log, _, _ = measured
    by_id = {entry.id: entry for entry in log}
    run = Result.open(folder)
    late = []
    for r in run.records:
        stamps = np.frombuffer(r.arrivals, dtype=np.int64) + run.header.monotonic_ns_origin
        late.append(stamps - np.array(by_id[r.request_id].writes_ns[: len(stamps)]))
    error = np.concatenate(late)
    assert error.min() > -200_000  # the two clocks are one; only the offset of the kernel's stamp can be early
    assert np.median(error) < 200_000


@pytest.mark.alone
def test_prompts_reach_the_server_once_each(measured: Any) -> None:
    folder, log, _, _ = measured
    ids = [entry.id for entry in log if entry.id != "knee-check"]
    assert len(ids) == len(set(ids)) == len(Result.open(folder).records)


@pytest.mark.alone
def test_levels_change_without_draining(measured: Any) -> None:
    """Between the first send and the end of the last cooldown somebody is always in flight."""
    folder, _, _, _ = measured
    run = Result.open(folder)
    spans = sorted((r.sent_s, r.done_s) for r in run.records if r.sent_s is not None and r.done_s is not None)
    covered = spans[0][1]
    gaps = []
    for sent, done in spans:
        gaps.append(sent - covered)
        covered = max(covered, done)
    assert max(gaps) < 0.1
    by_level = {level.index: level for level in run.levels}
    for level in run.levels[1:]:
        before = by_level[level.index - 1]
        across = [
            r for r in run.records if r.level == before.index and r.done_s is not None and r.done_s > level.begin_s
        ]
        assert len(across) >= 0.5 * before.concurrency


@pytest.mark.alone
def test_the_simulated_endpoint_brands_the_result_however_it_was_reached(measured: Any) -> None:
    folder, _, printed, _ = measured
    assert printed["simulated"] is True
    assert "SIMULATED" in (folder / "report.md").read_text()


@pytest.mark.alone
def test_a_report_made_anew_is_the_same(measured: Any, tmp_path: Path) -> None:
    folder, _, printed, _ = measured
    done = knee("report", str(folder), "--json", "--quiet", "--no-plots")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == printed


def test_the_manifest_holds_the_prediction_made_before_load(tmp_path: Path) -> None:
    done = knee(
        "run", "--url", "sim:", *LOAD, "--levels", "1,2", "--level-seconds", "1", "--out", str(tmp_path / "out"),
        "--quiet", "--no-plots",
    )  # fmt: skip
    assert measured_well(tmp_path / "out", done.returncode), done.stderr
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["simulated"]["profile"] == "llama-3.1-8b/h100-sxm"
    assert [level["concurrency"] for level in manifest["prediction"]["levels"]] == [1, 2]
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["simulated"] is True
    assert "SIMULATED" in (tmp_path / "out" / "report.md").read_text()


def test_without_levels_the_ramp_climbs_and_then_asks_for_the_knee(tmp_path: Path) -> None:
    done = knee(
        "run", "--url", "sim:", "--max-num-seqs", "2", "--speed", "0.5", *LOAD, "--output-tokens", "16",
        "--level-seconds", "1", "--max-concurrency", "6", "--max-seconds", "40", "--out", str(tmp_path / "out"),
        "--quiet", "--no-plots", "--api", "completions",
    )  # fmt: skip  # slow, so that a busy machine does not make the client the limit
    assert done.returncode in (0, 3), done.stderr
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    concurrencies = [step["concurrency"] for step in manifest["ramp"]]
    climbed = list(dict.fromkeys(concurrencies))  # a level that this busy machine made invalid is measured again
    assert climbed[:3] == [1, 2, 4], "two seats: at 4 in flight at the earliest is a doubling flat"
    assert {3, 5, 6} & set(concurrencies), "and then, further up or near the bend"
    assert max(C for C in concurrencies if C is not None) <= 6
    assert concurrencies[-1] is None
    assert manifest["ramp"][-1]["reason"].startswith("stopped: ")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["ramp"] == manifest["ramp"]
    finished = summary["levels"]
    assert [level["reason"] for level in finished] == [step["reason"] for step in manifest["ramp"]][: len(finished)]


@pytest.mark.alone
def test_a_window_without_a_length_ends_when_it_is_precise(tmp_path: Path) -> None:
    done = knee(
        "run", "--url", "sim:", *LOAD, "--levels", "4", "--precision", "0.05", "--slo", "ttft_p50=10s",
        "--out", str(tmp_path / "out"), "--quiet", "--no-plots",
    )  # fmt: skip
    assert measured_well(tmp_path / "out", done.returncode), done.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    (level,) = summary["levels"]
    low, high = level["output_tokens_per_s"]["ci95"]
    assert "not_precise" in {v["code"] for v in level["verdicts"]} or (high - low) / 2 < 0.06 * (high + low) / 2
    assert level["window_s"] >= 20 * level["e2e_s"]["mean"]
    assert [each["outcome"] for each in level["slo"]] == ["met"]
    if done.returncode == 0:
        assert summary["knee_concurrency"] == summary["knees"]["slo"]["value"] == 4


def after_first_level(folder: Path) -> None:
    """Wait until a run has finished its first level."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if (folder / SPOOL).exists() and any(level.finished for level in Result.open(folder).levels):
            return
        time.sleep(0.05)
    raise AssertionError("no level was finished within a minute")


def test_a_server_that_dies_leaves_the_finished_levels_and_stops_the_ramp(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with running(profile(max_num_seqs=8, speed=1.0)) as url:
        process = subprocess.Popen(
            [
                *KNEE,
                "run",
                "--url",
                url,
                *LOAD,
                "--levels",
                "1,2,4,8,16",
                "--level-seconds",
                "1.5",
                "--out",
                str(out),
                "--quiet",
            ]
        )
        after_first_level(out)
    process.wait(60)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["levels"][0]["errors"] == 0
    assert summary["levels"][-1]["errors"] > 0
    assert len(summary["levels"]) < 5
    manifest = json.loads((out / "manifest.json").read_text())
    assert "nobody has answered since" in manifest["ramp"][-1]["reason"]
