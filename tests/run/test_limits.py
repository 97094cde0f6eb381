"""What does not fit this machine is an error with the limit and its origin, before anything starts."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import Any

import pytest

import harness
from harness.base.errors import HarnessError
from harness.run.launch import limits
from harness.spec import reading, scenario


def spec(**sections: Any) -> scenario.Scenario:
    return reading.build(sections, place="test")


def test_what_people_measure_fits() -> None:
    limits.check(spec())
    limits.check(spec(ramp={"workers": 8, "levels": [1, 512]}, workload={"input_tokens": 8192}))


@pytest.mark.parametrize("tasks", [{"session": {"turns": 2, "user_tokens": "9..99"}}, {"node": [{"name": "a"}]}])
def test_sessions_and_graphs_may_have_a_prefix_and_tools(tasks: dict[str, Any]) -> None:
    limits.check(spec(workload={"prefix": {"tokens": 9}, "tools": [{"type": "function"}]} | tasks))


def test_a_graph_takes_as_many_connections_as_it_has_requests_side_by_side() -> None:
    nodes = [
        {"name": "plan"},
        {"name": "search", "after": ["plan"], "fan_out": 3},
        {"name": "write", "after": ["plan"]},
    ]
    assert limits.most_streams(spec(workload={"node": nodes}, ramp={"levels": [10]})) == 40


def test_static_batches_have_one_worker() -> None:
    _, placed = limits.placement(spec(ramp={"start": "batch", "levels": [4096]}))
    assert len(placed) == 1


def test_workers_are_bound_by_processors() -> None:
    most = max(8, 4 * len(os.sched_getaffinity(0)))
    limits.check(spec(ramp={"workers": most}))
    with pytest.raises(HarnessError, match=rf"{most + 1} workers are too many for .*; stay at or below "):
        limits.check(spec(ramp={"workers": most + 1}))


def test_memory_bounds_what_is_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 1,024: 3 prompts of 7 B a token, 24 B an answer's token, 64 KiB: 210,000 + 24,000 + 65,536 B."""
    long = spec(workload={"input_tokens": 10_000, "output_tokens": 1000})
    monkeypatch.setattr(limits, "memory", lambda: 400_000_000)
    limits.check(long)
    monkeypatch.setattr(limits, "memory", lambda: 200_000_000)
    with pytest.raises(HarnessError, match=r"1,024 in flight, 10,000 tokens in .* 0.3 GB of 0.2 GB .* below 667"):
        limits.check(long)


def test_a_container_s_share_is_what_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text("300000000\n")
    (tmp_path / "memory.current").write_text("200000000\n")
    (tmp_path / "memory.stat").write_text("anon 50000000\nactive_file 30000000\ninactive_file 20000000\n")
    assert limits.memory() == 150_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert limits.memory() > 100_000_000


def test_no_loader_of_transformers_decides_by_itself_whether_code_is_run() -> None:
    """Left out, `trust_remote_code` asks on standard input."""
    calls = [
        (path.name, {keyword.arg for keyword in node.keywords})
        for path in Path(harness.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "from_pretrained"
    ]
    assert calls == [("words.py", {"trust_remote_code", "local_files_only"})]


def test_a_quota_is_one_worker_s_and_every_worker_of_an_open_loop_has_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits.kernel, "cpus", lambda: list(range(8)))
    high = {"levels": [1024]}
    assert len(limits.placement(spec(ramp=high))[1]) == 4
    assert len(limits.placement(spec(ramp=high, target={"max_rps": 4}))[1]) == 1
    assert len(limits.placement(spec(ramp={"rates": [20], "max_concurrency": 2, "workers": 4}))[1]) == 2
