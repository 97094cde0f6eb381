"""`knee.run`: options are fields of a scenario, and a run goes on in a thread, inside a running loop or not."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import harness as knee
from harness.library.run import laid_over

SMALL: dict[str, Any] = {"levels": [1, 2], "level_seconds": 0.5, "input_tokens": 64, "output_tokens": 16, "speed": 8.0}


def test_an_option_is_the_field_of_its_name() -> None:
    found = laid_over(None, "sim:", {**SMALL, "model": "m", "gpu": "h100-sxm", "slo": "e2e_p99=2s"})
    assert (found.target.url, found.target.model, found.hardware.gpu) == ("sim:", "m", "h100-sxm")
    assert (found.ramp.levels, found.ramp.level_seconds, found.workload.output_tokens) == ([1, 2], 0.5, 16)
    assert (found.sim.speed, found.slo) == (8.0, {"e2e_p99": 2.0})


def test_texts_are_read_as_in_a_scenario_file() -> None:
    found = laid_over(None, "sim:", {"level_seconds": "10s", "slo": {"ttft_p99": "500ms"}, "dataset": "prompts.jsonl"})
    assert (found.ramp.level_seconds, found.slo) == (10.0, {"ttft_p99": 0.5})
    assert found.workload.dataset
    assert found.workload.dataset.path == "prompts.jsonl"


@pytest.mark.parametrize(
    ("options", "gpus"), [({"tp": 2}, 2), ({"tp": 2, "gpus": 4}, 4), ({"gpus": 4}, 4), ({"tp": None}, 1)]
)
def test_a_replica_over_several_gpus_counts_them(options: dict[str, Any], gpus: int) -> None:
    assert laid_over(None, "http://127.0.0.1:8000", options).hardware.gpus == gpus


def test_rates_replace_the_scenario_s_levels_and_the_other_way_round() -> None:
    closed = laid_over(None, "sim:", {"levels": [1, 2]})
    opened = laid_over(closed, None, {"rates": [2.0]})
    assert (opened.ramp.levels, opened.ramp.rates) == (None, [2.0])
    assert laid_over(opened, None, {"levels": [4]}).ramp.rates is None


def test_a_server_s_limit_is_the_simulated_one_s_too() -> None:
    assert laid_over(None, "sim:", {"max_num_seqs": 8}).sim.max_num_seqs == 8


def test_a_ready_scenario_is_taken_by_its_name() -> None:
    found = laid_over("chat", "sim:", {"seed": 7})
    assert (found.name, found.workload.seed, found.target.url) == ("chat", 7, "sim:")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"level": [1]}, "no field of a scenario: level; did you mean 'levels'"),
        ({"levels": [1], "rates": [2.0]}, "levels and rates exclude each other"),
        ({"slo": {"ttfb": 2}}, "ttfb"),
    ],
)
def test_what_is_no_scenario_is_refused_in_one_line(options: dict[str, Any], words: str) -> None:
    with pytest.raises(knee.HarnessError) as refused:
        laid_over(None, "sim:", options)
    assert words in str(refused.value)


@pytest.mark.slow
def test_without_an_address_there_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(knee.HarnessError, match="no endpoint"):
        knee.run(out=tmp_path / "out")


@pytest.mark.slow
def test_a_run_is_a_result_folder_from_a_running_loop_too(tmp_path: Path) -> None:
    async def main() -> list[knee.Measurement]:
        alone = knee.run("sim:", out=tmp_path / "sync", **SMALL)  # as in a notebook's cell, which a loop runs
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.05)
                ticks += 1

        ticking = asyncio.create_task(tick())
        awaited = await knee.run_async("sim:", out=tmp_path / "async", **SMALL)
        ticking.cancel()
        assert ticks > 5, "the loop goes on while a run is awaited"
        return [alone, awaited]

    for measured in asyncio.run(main()):
        assert [level.concurrency for level in measured.summary.levels] == [1, 2]
        assert measured.summary.simulated
        stored = json.loads((measured.path / "summary.json").read_text())
        assert stored["levels"][1]["requests"] == measured.levels["requests"].tolist()[1]
        assert measured.requests["in_window"].sum() == measured.levels["requests"].sum()


@pytest.mark.slow
def test_a_cancelled_run_ends_in_order_and_leaves_what_it_measured(tmp_path: Path) -> None:
    async def main() -> None:
        options: dict[str, Any] = {**SMALL, "level_seconds": 60.0}
        running = asyncio.create_task(knee.run_async("sim:", out=tmp_path / "out", **options))
        while not (tmp_path / "out" / "requests.spool").exists():
            await asyncio.sleep(0.05)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert not (tmp_path / "out" / "requests.spool").exists(), "the run was closed in order"
    assert not knee.load(tmp_path / "out").summary.complete
