"""Whole runs of requests that differ, held against what the simulated endpoint counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.data.record import Record, arrivals_of
from harness.results.result import Result
from harness.spec import reading
from harness.workload import shape
from tests.builders.fit import kolmogorov_smirnov

KNEE = [sys.executable, "-m", "harness"]
CLASSES = """
[workload]
seed = 5
[[class]]
name = "chat"
share = 3
input = "100..300"
output = "lognormal(24,8)"
[[class]]
name = "summary"
input = "400±60"
output = 8
[ramp]
levels = [8]
level_seconds = 4
[sim]
speed = 8
"""

pytestmark = pytest.mark.slow


def run(folder: Path, toml: str, *arguments: str) -> list[Record]:
    """The records of a run of that scenario against the simulated endpoint."""
    file, out = folder / "scenario.toml", folder / "out"
    file.write_text(toml)
    command = [*KNEE, "run", str(file), "--url", "sim:", "--out", str(out), "--quiet", "--no-plots", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=dict(os.environ))
    assert done.returncode in (0, 3), done.stderr  # 3: this machine was too busy for the client
    return Result.open(out).records


def test_prompts_begin_with_a_prefix_of_the_pool_by_the_server_s_count(tmp_path: Path) -> None:
    """A prefix of 256 tokens before 64 own ones, in half of the requests."""
    prefix = "prefix = { tokens = 256, pool = 3, share = 0.5 }"
    toml = f"[workload]\nseed = 5\ninput_tokens = 64\noutput_tokens = 8\n{prefix}\n[sim]\nspeed = 8\n"
    records = run(tmp_path, toml, "--levels", "4", "--level-seconds", "1")
    found = [r.input_tokens for r in records if r.input_tokens is not None]
    assert set(found) == {64, 320}
    assert abs(found.count(320) / len(found) - 0.5) < 2 / len(found) ** 0.5


def test_the_expected_hit_rate_is_the_one_that_the_server_serves(tmp_path: Path) -> None:
    """Shared 320 tokens before 64 own ones: 20 blocks of 16, and of each request's 384 tokens 320 are found, 83 %."""
    prefix = "prefix = { tokens = 320 }"
    toml = f"[workload]\nseed = 5\ninput_tokens = 64\noutput_tokens = 8\n{prefix}\n[sim]\nspeed = 8\n"
    run(tmp_path, toml, "--levels", "4", "--level-seconds", "2")
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    (level,) = json.loads((tmp_path / "out/summary.json").read_text())["levels"]
    assert manifest["workload"]["expected_hit_rate"] == pytest.approx(320 / 384, abs=0.03)
    assert level["cached_input_fraction"] == pytest.approx(manifest["workload"]["expected_hit_rate"], abs=0.03)
    assert "prefix_cache_hits" not in [verdict["code"] for verdict in level["verdicts"]]


@pytest.mark.alone  # it counts the tokens that come until the client has read the fourth
def test_requests_that_are_given_up_leave_the_server_to_others(tmp_path: Path) -> None:
    """Two seats, four slots: a request that is given up after 4 of its 200 tokens frees its seat for the next."""
    give_up = "cancel = { share = 0.9, after_tokens = 4 }"
    toml = (
        f"[workload]\nseed = 5\n[[class]]\nname = 'a'\ninput = 32\noutput = 200\n{give_up}\n[sim]\nmax_num_seqs = 2\n"
    )
    records = run(tmp_path, toml, "--levels", "4", "--level-seconds", "3")
    given_up = [r for r in records if r.error == "abandoned"]
    over = [r for r in records if r.error != "cancelled"]
    assert {r.error for r in over} <= {"", "abandoned"}
    assert 0.75 < len(given_up) / len(over) <= 1
    assert all(4 <= len(arrivals_of(r)) <= 8 for r in given_up)
    alone_s = 200 * 0.0069  # of a whole answer: in three times that, two seats that are not freed end 6
    ended = [r for r in over if r.done_s is not None and r.done_s - records[0].scheduled_s < 3 * alone_s]
    assert len(ended) > 15


def test_a_trace_is_sent_in_its_order_at_its_times_with_its_lengths(tmp_path: Path) -> None:
    rows = [(0, 300, 8), (50, 90, 20), (75, 40, 4), (400, 200, 12)]
    lines = [{"timestamp": t, "input_length": i, "output_length": o, "hash_ids": []} for t, i, o in rows]
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    arguments = ["--dataset", str(tmp_path / "trace.jsonl"), "--arrivals", "trace(speed=0.5)", "--level-seconds", "3"]
    records = run(tmp_path, "[workload]\nseed = 5\n[sim]\nspeed = 8\n", *arguments)
    by_time = sorted(records, key=lambda r: r.scheduled_s)
    assert len(by_time) > 12
    assert {r.error for r in by_time} == {""}
    lengths = [rows[i % 4][1:] for i in range(len(by_time))]
    assert [(r.input_tokens, r.output_tokens) for r in by_time] == lengths
    first = by_time[0].scheduled_s
    assert [r.scheduled_s - first for r in by_time[:5]] == pytest.approx([0.0, 0.1, 0.15, 0.8, 0.8 * 4 / 3], abs=1e-6)


def test_sessions_of_a_trace_begin_as_recorded_and_their_turns_follow_the_tools_time(tmp_path: Path) -> None:
    """Three sessions of two turns, a second apart: after six rows in 2.4 s the trace comes again."""
    rows = [(name, 1000 * k + 400 * turn, turn) for k, name in enumerate("abc") for turn in (0, 1)]
    lines = [
        {"session_id": name, "input_length": 40 + 40 * turn, "output_length": 8}
        | ({"delay": 400} if turn else {"timestamp": at})
        for name, at, turn in sorted(rows, key=lambda row: row[1])
    ]
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    arguments = ["--dataset", str(tmp_path / "trace.jsonl"), "--agents", "recorded", "--level-seconds", "4"]
    records = run(tmp_path, "[workload]\nseed = 5\n[sim]\nspeed = 8\n", *arguments)
    assert {r.error for r in records} == {""}
    turns = sorted((int(r.session_id), r.turn, r.scheduled_s, r.done_s or 0.0) for r in records)
    first = [at for _, turn, at, _ in turns if turn == 0]
    again_s = 6 * 2.4 / 5
    assert [at - first[0] for at in first[:5]] == pytest.approx([0, 1, 2, again_s, again_s + 1], abs=1e-6)
    ended = {session: done for session, turn, _, done in turns if turn == 0}
    later = [(at - ended[session]) for session, turn, at, _ in turns if turn == 1]
    assert len(later) >= 4
    assert later == pytest.approx([0.4] * len(later), abs=0.01)


def number(record: Record) -> int:
    return int(record.request_id.rpartition("-")[2])


def test_shares_and_lengths_are_those_that_were_asked_by_the_server_s_count(tmp_path: Path) -> None:
    records = run(tmp_path, CLASSES)
    cut = min(number(r) for r in records if r.error == "cancelled")  # of those behind it, the long ones are cut
    whole = [r for r in records if number(r) < cut]
    assert len(whole) > 300
    assert {r.error for r in whole} == {""}
    classes = {each.name: each for each in shape.of(reading.load(str(tmp_path / "scenario.toml"))).classes}
    chats = sum(r.class_ == "chat" for r in whole)
    assert abs(chats / len(whole) - 0.75) < 4 * (0.75 * 0.25 / len(whole)) ** 0.5
    for name, asked in classes.items():
        of = [r for r in whole if r.class_ == name]
        inputs, outputs = [r.input_tokens or 0 for r in of], [r.output_tokens or 0 for r in of]
        assert kolmogorov_smirnov(inputs, asked.input.cdf) > 0.01
        if name == "chat":
            assert kolmogorov_smirnov(outputs, asked.output.cdf) > 0.01
        else:
            assert set(outputs) == {8}
