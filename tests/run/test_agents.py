"""Agents by the step machine and its cache, before the load: against the simulated endpoint, over real sockets."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.analysis.summarise import summarise
from harness.base.errors import HarnessError
from harness.data.prediction import crossing
from harness.data.record import Record
from harness.predict.batching import StepMachine
from harness.results.result import Result
from harness.run import agents, requests
from harness.sim import profile as profiles
from harness.spec.reading import build
from harness.spec.scenario import Scenario
from harness.workload import hit_rate, tasks
from harness.workload.dataset import table
from harness.workload.dataset.dataset import open_dataset
from harness.workload.text import COMMON, PromptWords
from tests.builders.datasets import file, json_lines

BLOCK = 64
TEMPLATE = 8  # tokens that the simulated endpoint puts before a chat's words


def trace(agents: int = 6, turns: int = 5, pause_s: float = 0.02) -> list[dict[str, Any]]:
    """Weka's conversations: every prompt is two blocks longer, from the third on without the last block of before."""
    found = []
    for agent in range(agents):
        hashes: list[int] = []
        requests = []
        for turn in range(turns):
            hashes = hashes[: -1 if turn > 2 else None] + [10 * turn, 10 * turn + 1, 10 * turn + 2][: 3 - (turn == 0)]
            tokens = BLOCK * len(hashes) - 7 * agent
            at = {"t": turn * (pause_s + 0.01), "api_time": 0.01}
            requests.append(at | {"type": "s", "model": "m", "in": tokens, "out": 4 + agent, "hash_ids": hashes[:]})
        found.append({"id": f"t{agent}", "block_size": BLOCK, "hash_id_scope": "local", "requests": requests})
    return found


def ran(folder: Path, tree: dict[str, Any], *arguments: str) -> tuple[Result, str]:
    """A run of the scenario against `sim:`, and what it said."""
    scenario = folder / "scenario.toml"
    scenario.write_text(toml(tree))
    command = [sys.executable, "-m", "harness", "run", str(scenario), "--url", "sim:", "--out", "out", "--no-plots"]
    done = subprocess.run([*command, *arguments], cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 3), done.stderr
    return Result.open(folder / "out"), done.stderr


def toml(tree: dict[str, Any], path: str = "") -> str:
    plain = {key: value for key, value in tree.items() if not isinstance(value, dict)}
    lines = [f"[{path}]"] if path else []
    lines += [f"{key} = {json.dumps(value)}" for key, value in plain.items()]
    inner = [toml(value, f"{path}.{key}".lstrip(".")) for key, value in tree.items() if isinstance(value, dict)]
    return "\n".join([*lines, *inner]) + "\n"


def first_answers(result: Result, sessions: int) -> dict[tuple[int, int], Record]:
    """The requests of a trace as they were answered first, by session and turn: the checks take its first sessions."""
    answered = [each for each in result.records if each.session_id and not each.error]
    found: dict[tuple[int, int], Record] = {}
    for each in sorted(answered, key=lambda each: int(each.session_id)):
        found.setdefault((int(each.session_id) % sessions, each.turn), each)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_cache_that_never_evicts_serves_the_trace_s_own_hits_token_for_token(tmp_path: Path, workers: int) -> None:
    path = file(tmp_path, "trace.jsonl", json_lines(trace()))
    dataset = {"path": str(path), "sessions": True}
    ramp = {"levels": [3], "level_seconds": 1.5}
    tree = {"workload": {"seed": 1, "dataset": dataset}, "ramp": ramp, "sim": {"speed": 40.0, "block_size": BLOCK}}
    result, _ = ran(tmp_path, tree, "--workers", str(workers))
    own = hit_rate.of_rows(open_dataset(path).rows())
    expected = {(agent, turn): next(own) for agent in range(6) for turn in range(5)}
    found = first_answers(result, 6)
    counted = {key: (each.input_tokens, each.cached_tokens) for key, each in found.items()}
    assert counted == {key: (hit.prompt, hit.cached) for key, hit in expected.items()}


EVICTS: dict[str, Any] = {
    "workload": {
        "seed": 3,
        "output_tokens": "10..30",
        "session": {"turns": "6..14", "user_tokens": "100..600", "think": "100ms..400ms", "system_tokens": 300},
    },
    "sim": {"kv_tokens": 18000, "speed": 16.0},
    "ramp": {"levels": [10], "level_seconds": 6.0, "start": "burst"},
}


def served(scenario: Scenario, slots: int, count: int) -> list[agents.Served]:
    """The first requests of a scenario's sessions, by the machine of its simulated endpoint."""
    of_sim = profiles.embedded(scenario.sim, prefix_caching=True)
    source = tasks.of(scenario)
    assert source is not None
    machine = StepMachine(of_sim.model, of_sim.deployment)
    return list(itertools.islice(agents.served(machine, source, slots, template=TEMPLATE), count))


def shared(requests: Iterable[Any]) -> float:
    """The share of the prompt tokens of answers that the cache had."""
    prompts, cached = zip(*((each[0], each[1]) for each in requests), strict=True)
    return float(sum(cached) / sum(prompts))


@pytest.mark.slow
def test_a_cache_that_evicts_serves_what_the_machine_says_and_the_run_says_so_before_it(tmp_path: Path) -> None:
    result, said = ran(tmp_path, EVICTS)
    answered = sorted((each for each in result.records if not each.error), key=lambda each: each.done_s or 0.0)
    measured = shared((each.input_tokens, each.cached_tokens) for each in answered)
    expected = shared((each.prompt, each.cached) for each in served(build(EVICTS, place=""), 10, len(answered)))
    assert 0.3 < expected < 0.6, "it evicts, and keeps some"
    assert measured == pytest.approx(expected, abs=0.02)
    made = result.manifest.agents
    assert made
    assert made.kv_tokens == 18000
    assert made.levels[0].cached_input_fraction == pytest.approx(measured, abs=0.04), "of another part of the run"
    (line,) = [each for each in said.splitlines() if each.startswith("prediction: ")]
    assert "18,000 tokens" in line
    assert "at 10 sessions" in line


@pytest.mark.slow
def test_requests_beyond_the_context_are_counted_before_the_load_and_left_out_only_when_asked(tmp_path: Path) -> None:
    """Of six sessions each has a last request of 9 blocks or a little less, and one of 200,000 tokens behind it."""
    long = {"t": 1, "api_time": 1, "type": "s", "in": 200_000, "out": 5, "hash_ids": []}
    path = file(tmp_path, "x.jsonl", json_lines([each | {"requests": [*each["requests"], long]} for each in trace()]))
    tree = {"workload": {"seed": 1, "dataset": {"path": str(path), "sessions": True}}, "ramp": {"levels": [1]}}
    command = [sys.executable, "-m", "harness", "run", "x.toml", "--url", "sim:", "--out", "out", "--no-plots"]
    (tmp_path / "x.toml").write_text(toml(tree))
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "6 of 36 requests are longer than the 131,072 tokens that the server takes" in done.stderr
    assert "leave them out with --skip-longer 131072" in done.stderr
    assert not (tmp_path / "out").exists()
    notes: list[str] = []
    tree["workload"]["dataset"]["skip_longer"] = 131_072
    with requests.read(build(tree, place=""), notes.append) as (found, rows):
        assert requests.must_fit(found, rows, 131_072) == ""
        assert found.workload.dataset
        assert found.workload.dataset.requests == 30
    assert "6 requests longer than 131,072 tokens, or behind one, are left out" in notes[0]


def test_one_request_in_a_hundred_may_be_beyond_the_context(tmp_path: Path) -> None:
    rows = [{"input_tokens": 100, "output_tokens": 20}] * 199 + [{"input_tokens": 900, "output_tokens": 101}]
    path = file(tmp_path, "x.jsonl", json_lines(rows))
    with requests.read(build({"workload": {"dataset": {"path": str(path)}}}, place=""), print) as (found, table_path):
        assert requests.must_fit(found, table_path, 1001) == ""
        assert "1 of 200 requests are longer than the 1,000 tokens" in requests.must_fit(found, table_path, 1000)
        with pytest.raises(HarnessError, match="200 of 200"):
            requests.must_fit(found, table_path, 119)


# ---- without sockets -------------------------------------------------------------------------------------------------

SUB_AGENTS = {"share": 0.5, "count": 2, "turns": 2}
KINDS: dict[str, dict[str, Any]] = {
    "sessions": {"session": {"turns": 4, "user_tokens": "5..40", "system_tokens": 50, "sub_agents": SUB_AGENTS}},
    "scripted": {"session": {"turns": 4, "user_tokens": "5..40", "history": "scripted"}},
    "graph": {
        "prefix": {"tokens": 30, "pool": 2},
        "node": [
            {"name": "plan", "input_tokens": 30},
            {"name": "search", "after": ["plan"], "fan_out": 2, "fresh": True, "input_tokens": 20},
            {"name": "end", "after": ["plan", "search"], "input_tokens": 9},
        ],
    },
}


@pytest.mark.parametrize("kind", [*KINDS, "trace"])
def test_prompts_share_as_many_blocks_as_their_words_do(tmp_path: Path, kind: str) -> None:
    """Every two requests of four tasks, by blocks of 16 tokens, which are words here; a trace of three begins anew."""
    tree: dict[str, Any] = KINDS.get(kind) or {"dataset": {"path": "x", "sessions": True}}
    if kind == "trace":
        table.write(open_dataset(file(tmp_path, "x.jsonl", json_lines(trace(3)))).rows(), tmp_path / "rows")
    asked = build({"workload": {"seed": 1, "output_tokens": "3..40"} | tree}, place="test")
    words = PromptWords(words=COMMON, added_tokens=TEMPLATE)
    source = tasks.of(asked, words, str(tmp_path / "rows") if kind == "trace" else "")
    assert source is not None
    found = []
    for number in range(4):
        task = source.task(number)
        prompts = hit_rate.Prompts(source, task, block=16, template=TEMPLATE)
        answers = {
            place: " ".join(f"a{number}-{place}-{i}" for i in range(node.output_tokens))
            for place, node in enumerate(task.nodes)
        }
        for place in range(len(task.nodes)):
            prompt = source.request(task, place, answers).prompt
            spoken = " ".join(each if isinstance(each, str) else each.text for each in prompt).split()
            whole = [*[""] * TEMPLATE, *spoken, *answers[place].split()]
            assert prompts.of(place).tokens == TEMPLATE + len(spoken)
            found.append((prompts.of(place).hashes, hit_rate.hashes(whole, 16)))
    for (one, its_words), (other, other_words) in itertools.combinations(found, 2):
        assert common(one, other) == common(its_words, other_words)
    assert {len(one) == len(words) for one, words in found} == {True}


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many blocks two prompts begin alike with."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@pytest.mark.slow
def test_a_cache_holds_as_many_agents_as_their_conversations_fit_into() -> None:
    """A conversation grows by 160 + 16 tokens a turn, to 3,520 in the last of 20: 1,848 on average.

    So 12,000 tokens are six and a half conversations, and fewer where several are long at once.
    """
    tree = {
        "workload": {
            "seed": 1,
            "output_tokens": 16,
            "session": {"turns": 20, "user_tokens": 160, "think": "20s..40s"},
        },
        "sim": {"kv_tokens": 12_000},
    }
    asked = build(tree, place="test")
    of_sim = profiles.embedded(asked.sim, prefix_caching=True)
    source = tasks.of(asked)
    assert source is not None
    kept = hit_rate.expected(asked, block=16)
    found = agents.predict(of_sim.model, of_sim.deployment, source, [1, 2, 4, 8, 16, 32], kept)
    assert found.levels[0].cached_input_fraction == pytest.approx(kept, abs=0.01)
    assert found.holds
    assert 4 <= found.holds <= 12_000 / 1_848
    assert "holds about" in agents.sentence(found, "agents")
    more = msgspec.structs.replace(of_sim.deployment, kv_tokens=24_000)
    twice = agents.predict(of_sim.model, more, source, [1, 2, 4, 8, 16, 32], kept).holds
    assert twice == pytest.approx(2 * found.holds, rel=0.3)


def test_what_a_cache_holds_is_between_the_levels_where_the_share_falls() -> None:
    """Half way down from 4 to 16 agents on a log axis are 8."""
    assert crossing([(16, 0.3), (1, 0.9), (4, 0.9)], 0.6) == pytest.approx(8)
    assert crossing([(1, 0.9), (16, 0.8)], 0.6) is None, "all are held"
    assert crossing([(1, 0.5), (16, 0.3)], 0.6) is None, "none is"


def test_a_request_that_no_cache_holds_is_refused() -> None:
    tree = {"workload": {"seed": 1, "session": {"turns": 30, "user_tokens": 900}}, "sim": {"kv_tokens": 4000}}
    with pytest.raises(HarnessError, match=r"does not fit into a KV cache of 4,000"):
        served(build(tree, place="test"), 1, 30)


@pytest.mark.slow
def test_the_cache_s_end_is_predicted_where_the_run_then_finds_it(tmp_path: Path) -> None:
    """Conversations of 20 turns, of 1,848 tokens on average, in a cache of 24,000: within 15 % of each other."""
    tree = {
        "workload": {
            "seed": 1,
            "output_tokens": 16,
            "session": {"turns": 20, "user_tokens": 160, "think": "100ms..200ms"},
        },
        "sim": {"kv_tokens": 24_000, "speed": 8.0},
        "ramp": {"levels": [4, 8, 12, 16, 24], "level_seconds": 5.0},
    }
    result, _ = ran(tmp_path, tree)
    found = summarise(result).agents
    assert found
    assert found.holds
    assert found.measured_holds == pytest.approx(found.holds, rel=0.15)
