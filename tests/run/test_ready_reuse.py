"""Ready scenarios whose prompts begin alike or wait for each other, against what was planted in the simulated endpoint.

On the clock that jumps, and shortened.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.data.levels import LevelSummary
from harness.predict.batching import StepMachine
from harness.predict.simulate import closed_loop
from harness.sim.connection import Entry
from harness.sim.profile import Profile, profile
from harness.spec.work import MeanLengths
from harness.workload import tasks
from tests.builders.virtual_run import Run, asked, lengths_kept, log_agrees, run

pytestmark = pytest.mark.slow


def measured(
    folder: Path, name: str, served: Profile, load: int, seconds: float, workers: int = 1, **workload: Any
) -> tuple[Run, LevelSummary]:
    """A run of one level, whose lengths are those asked and whose times are the server's own; and its level."""
    folder.mkdir(exist_ok=True)
    ramp = {"levels": [load], "level_seconds": seconds, "max_concurrency": None}
    found = run(asked(name, ramp=ramp, workload=workload), served, folder, workers=workers)
    assert {r.error for r in found.result.records} <= {"", "cancelled"}
    log_agrees(found)
    lengths_kept(found)
    return found, found.summary.levels[0]


def hit_rates(found: Run) -> dict[int, float]:
    """Share of the prompts' tokens that came from the cache, by turn; without the first sessions, which fill it."""
    prompts: dict[int, int] = {}
    cached: dict[int, int] = {}
    for record in found.result.records:
        if not record.error and int(record.session_id or 99) >= 4:
            prompts[record.turn] = prompts.get(record.turn, 0) + (record.input_tokens or 0)
            cached[record.turn] = cached.get(record.turn, 0) + (record.cached_tokens or 0)
    return {turn: cached[turn] / prompts[turn] for turn in sorted(prompts)}


def test_a_conversation_s_hit_rate_by_turn_is_what_its_history_comes_to(tmp_path: Path) -> None:
    """Blocks of 16, 8 tokens of template. The second turn is planted to be .80, the others follow.

    A first prompt has 8 + 195 shared tokens, 12 blocks, and 101 of its own: 192/304. The next one has 304 + 101 tokens
    before it, 25 blocks, and comes to 506: 400/506. The third has 607 before it, 37 blocks: 592/708.
    """
    session = {"turns": 3, "user_tokens": 101, "think": "1s", "system_tokens": 195}
    served = profile(max_num_seqs=8, speed=8.0, prefix_caching=True)
    found, level = measured(tmp_path, "conversation", served, 4, 20.0, output_tokens=101, session=session)
    assert hit_rates(found) == pytest.approx({0: 192 / 304, 1: 400 / 506, 2: 592 / 708}, abs=1e-9)
    assert hit_rates(found)[1] == pytest.approx(0.80, abs=0.02)
    assert level.cached_input_fraction == pytest.approx((192 + 400 + 592) / (304 + 506 + 708), abs=0.02)


def test_a_conversation_as_it_stands_is_served_from_the_cache_as_expected(tmp_path: Path) -> None:
    served = profile(max_num_seqs=16, speed=8.0, prefix_caching=True)
    found, level = measured(tmp_path, "conversation", served, 12, 60.0)
    in_order(found)
    expected = found.result.manifest.workload.expected_hit_rate
    assert expected
    assert level.cached_input_fraction == pytest.approx(expected, abs=0.03)


def in_order(found: Run) -> int:
    """Each request of a task came once those that it waits for were answered and its pause was over, by the log.

    Returns how many tasks were whole.
    """
    scenario = found.result.manifest.scenario
    source = tasks.of(scenario)
    assert source is not None
    log: dict[str, dict[int, Entry]] = {}
    for record in found.result.records:
        if entry := found.server.log.get(record.request_id):
            log.setdefault(record.session_id, {})[record.turn] = entry
    whole = 0
    for session, entries in log.items():
        nodes = source.task(int(session)).nodes
        for place, entry in entries.items():
            ends = [entries[parent] for parent in nodes[place].parents]
            assert all(end.finished for end in ends)
            if ends:
                due_ns = max(end.end_ns for end in ends) + nodes[place].pause_s * 1e9
                # What was read last is looked at within a millisecond.
                assert -1_000 <= entry.received_ns - due_ns <= 2_000_000
        whole += len(entries) == len(nodes) and all(entry.finished for entry in entries.values())
    return whole


@pytest.mark.parametrize("workers", [1, 2])
def test_an_agent_s_requests_come_in_the_order_of_its_graph(tmp_path: Path, workers: int) -> None:
    served = profile(max_num_seqs=16, speed=8.0, prefix_caching=True)
    found, level = measured(tmp_path, "agent", served, 4, 12.0, workers=workers)
    assert in_order(found) > 15
    assert level.sessions
    assert level.sessions.requests_mean == 5
    ends: dict[str, list[float]] = {}
    begins: dict[str, float] = {}
    start, end = level.window
    for record in found.result.records:
        entry = found.server.log[record.request_id]
        begins[record.session_id] = min(begins.get(record.session_id, 1e18), entry.received_ns * 1e-9)
        ends.setdefault(record.session_id, []).append(entry.end_ns * 1e-9 if entry.finished else float("nan"))
    whole = {each for each, done in ends.items() if len(done) == 5 and all(at == at for at in done)}
    spans = [max(ends[each]) - begins[each] for each in whole if start <= begins[each] < end]
    assert level.sessions.latency_s.mean == pytest.approx(sum(spans) / len(spans), rel=0.01)


def alone(served: Profile, tokens: tuple[int, int], hit: float, C: int) -> float:
    """Output tok/s of the step machine where this share of every prompt is cached."""
    known = msgspec.structs.replace(served.deployment, prefix_caching=False, prefix_hit=hit)
    machine = StepMachine(served.model, known)
    return closed_loop(machine, MeanLengths(*tokens), C, requests=200, stagger=0.5).output_tokens_per_s


def test_the_prefix_cache_serves_its_share_and_saves_what_the_machine_says(tmp_path: Path) -> None:
    """Of 2,200 tokens 8 + 2,000 are the template and the prefix: 125 blocks, 2,000 tokens."""
    on = profile(max_num_seqs=4, speed=8.0, prefix_caching=True)
    off = profile(max_num_seqs=4, speed=8.0)
    _, cached = measured(tmp_path / "on", "prefix-cache", on, 4, 8.0, output_tokens=150)
    _, plain = measured(tmp_path / "off", "prefix-cache", off, 4, 8.0, output_tokens=150)
    assert cached.cached_input_fraction == pytest.approx(2000 / 2200, abs=0.02)
    assert not plain.cached_input_fraction
    saved = (cached.output_tokens_per_s.mean or 0.0) / (plain.output_tokens_per_s.mean or 1.0)
    wanted = alone(off, (2200, 150), 2000 / 2200, 4) / alone(off, (2200, 150), 0.0, 4)
    assert saved == pytest.approx(wanted, rel=0.06)


def test_a_cache_of_half_the_working_set_serves_half_of_it(tmp_path: Path) -> None:
    """12 prefixes of 4,000 tokens, drawn alike often: six of them stay, or with room for what follows them, all."""
    fractions = {}
    for tokens in (6 * 4_000 + 4 * 160, 2 * 12 * 4_000):
        served = profile(max_num_seqs=4, speed=8.0, prefix_caching=True, kv_tokens=tokens)
        prefix = {"tokens": 4000, "pool": 12}
        _, level = measured(tmp_path / str(tokens), "kv-offload", served, 4, 8.0, prefix=prefix)
        fractions[tokens] = (level.cached_input_fraction or 0.0) * 4100 / 4000
    half, whole = fractions.values()
    assert half == pytest.approx(0.5, abs=0.08)
    assert whole > 0.93


def test_rag_shares_its_system_prompt_alone(tmp_path: Path) -> None:
    """8 + 500 tokens are 31 blocks; passages and question are new in each request."""
    served = profile(max_num_seqs=4, speed=16.0, prefix_caching=True)
    found, level = measured(tmp_path, "rag", served, 4, 6.0)
    later = sorted((r for r in found.result.records if not r.error), key=lambda r: r.sent_s or 0.0)[4:]
    assert {r.cached_tokens for r in later} == {31 * 16}
    expected = found.result.manifest.workload.expected_hit_rate
    assert expected
    assert level.cached_input_fraction == pytest.approx(expected, abs=0.02)
