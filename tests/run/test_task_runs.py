"""Whole runs of sessions and graphs, against a server that records its requests and against the simulated endpoint."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from harness.data.record import Record
from harness.results.result import Result
from tests.builders.servers import Request, serving
from tests.builders.streams import DONE, delta, event, usage

pytestmark = pytest.mark.slow

GRAPH = """
name = "agent"
[workload]
output_tokens = 2
[[workload.tools]]
type = "function"
function = { name = "search", parameters = { type = "object" } }
[workload.prefix]
tokens = 12
[[workload.node]]
name = "plan"
input_tokens = 20
[[workload.node]]
name = "search"
after = ["plan"]
fan_out = 3
fresh = true
input_tokens = 8
pause = "10ms..40ms"
[[workload.node]]
name = "join"
after = ["plan", "search"]
input_tokens = 5
[ramp]
levels = [3]
level_seconds = 1.5
"""
SESSION = """
name = "chat"
[workload]
output_tokens = 16
[workload.session]
turns = 3
user_tokens = 20
think = "20ms..60ms"
system_tokens = 50
[ramp]
levels = [1, 4, 2]
level_seconds = 1.5
"""


class Log:
    """A server that answers each request with two tokens that name it, and records when it came and was answered."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.bodies: dict[str, Any] = {}
        self.came: dict[str, float] = {}
        self.answered: dict[str, float] = {}

    def __call__(self, r: Request) -> None:
        if r.path == "/v1/models":
            r.answer(200, b'{"data": [{"id": "toy"}]}')
            return
        if not r.body:
            r.answer(404, b"{}")
            return
        name, body = r.header("X-Request-Id") or "", json.loads(r.body)
        with self.lock:
            self.came[name], self.bodies[name] = time.monotonic(), body
        time.sleep(0.01)
        words = sum(len(each["content"].split()) for each in body["messages"])
        with self.lock:
            self.answered[name] = time.monotonic()
        r.stream(
            delta(content="answer "), delta("length", content=name),
            event({"choices": [], "usage": usage(words, 2)}), DONE,
        )  # fmt: skip


def ran(tmp_path: Path, scenario: str, url: str, *arguments: str) -> list[Record]:
    """The records of a run of the scenario; its folder is `out`."""
    (tmp_path / "scenario.toml").write_text(scenario)
    command = [sys.executable, "-m", "harness", "run", "scenario.toml", "--url", url, "--out", "out", "--no-plots"]
    done = subprocess.run(
        [*command, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode in (0, 3), done.stderr
    return Result.open(tmp_path / "out").records


def by_task(records: list[Record]) -> dict[str, dict[int, Record]]:
    found: dict[str, dict[int, Record]] = {}
    for record in records:
        found.setdefault(record.session_id, {})[record.turn] = record
    return found


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_graph_s_order_is_the_server_s_and_its_prompts_hold_the_server_s_own_answers(
    tmp_path: Path, workers: str
) -> None:
    log = Log()
    with serving(log) as port:
        records = ran(tmp_path, GRAPH, f"http://127.0.0.1:{port}", "--workers", workers)
    whole = [task for task in by_task(records).values() if len(task) == 5 and not any(r.error for r in task.values())]
    assert len(whole) > 10
    for task in whole:
        ids = [task[turn].request_id for turn in range(5)]
        plan, *searches, join = ids
        assert all(log.came[each] >= log.answered[plan] + 0.009 for each in searches), "after the plan, and a pause"
        assert log.came[join] >= max(log.answered[each] for each in searches)
        messages = log.bodies[join]["messages"]
        assert [each["role"] for each in messages] == ["system", "user", "assistant", "user"]
        assert messages[2]["content"] == f"answer {plan}"
        assert messages[3]["content"].startswith("\n\n".join(f"answer {each}" for each in searches))
        assert [each["role"] for each in log.bodies[searches[0]]["messages"]] == ["system", "user"]
        assert log.bodies[plan]["tools"][0]["function"]["name"] == "search"
    shared = {log.bodies[record.request_id]["messages"][0]["content"] for record in records if not record.error}
    assert len(shared) == 1


def test_sessions_of_the_simulated_endpoint_grow_by_its_own_answers(tmp_path: Path) -> None:
    """The template adds 8 tokens: 8 + 50 + 20, then 16 of an answer and 20 more each turn."""
    records = ran(tmp_path, SESSION, "sim:", "--speed", "4", "--seed", "1")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    for task in by_task(records).values():
        for turn, record in task.items():
            if record.error:
                continue
            assert record.input_tokens == 78 + 36 * turn
            if turn:
                before = task[turn - 1]
                assert before.done_s is not None
                assert record.sent_s is not None
                assert 0.0199 <= record.scheduled_s - before.done_s <= 0.0601
                assert record.sent_s >= record.scheduled_s
    # Blocks of 16: a first turn finds 58 shared tokens as 48, the later ones 78 + 16 as 80 and 114 + 16 as 128.
    assert manifest["workload"]["expected_hit_rate"] == pytest.approx((48 + 80 + 128) / (78 + 114 + 150), rel=0.01)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert [level["concurrency"] for level in summary["levels"]] == [1, 4, 2]
    assert all(0 < level["in_flight"] < level["concurrency"] for level in summary["levels"])
    assert not [v for level in summary["levels"] for v in level["verdicts"] if v["code"] == "in_flight_low"]
    assert all(level["errors"] == 0 for level in summary["levels"])


def test_a_session_beyond_the_context_is_refused_before_any_load(tmp_path: Path) -> None:
    long = SESSION.replace("turns = 3", "turns = 900").replace("user_tokens = 20", "user_tokens = 500")
    (tmp_path / "scenario.toml").write_text(long)
    command = [sys.executable, "-m", "harness", "run", "scenario.toml", "--url", "sim:", "--out", "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "do not fit into 131072; fewer turns or shorter texts" in done.stderr
    assert not (tmp_path / "out").exists()
