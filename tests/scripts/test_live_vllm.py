"""A real server: the CPU vLLM that scripts/live/vllm builds, measured for a few seconds a level.

Short levels carry no knee; what they do carry is that both sides counted the same requests and tokens.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROMPT, ANSWER = 128, 64  # tokens that scripts/live/vllm asks for
TEMPLATE = 10  # tokens that the toy model's chat template adds to a prompt

pytestmark = [pytest.mark.live, pytest.mark.slow]


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("live") / "result"
    run = subprocess.run(
        [ROOT / "scripts/live/vllm", "--short", "--out", out], capture_output=True, text=True, timeout=420
    )
    assert run.returncode == 0, run.stderr[-2000:]
    found: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return found


def test_the_short_run_measures_every_level_without_an_error(summary: dict[str, Any]) -> None:
    assert not summary["simulated"]
    assert summary["complete"]
    assert [level["concurrency"] for level in summary["levels"]] == [1, 4, 16]
    assert [level["errors"] for level in summary["levels"]] == [0, 0, 0]


def test_lengths_are_those_asked_for(summary: dict[str, Any]) -> None:
    for level in summary["levels"]:
        assert level["output_tokens_mean"] == ANSWER
        assert PROMPT <= level["input_tokens_mean"] <= PROMPT + TEMPLATE


def test_the_server_counted_the_tokens_that_we_counted(summary: dict[str, Any]) -> None:
    ratios = [level["server"]["generation_tokens_ratio"] for level in summary["levels"]]
    carried = [ratio for ratio in ratios if ratio is not None]  # too short a level carries none
    assert carried
    assert carried == pytest.approx([1.0] * len(carried), abs=0.02)


def test_the_server_ran_as_many_as_we_held(summary: dict[str, Any]) -> None:
    # A handful of samples, some of them taken between one answer and the next request.
    for level in summary["levels"]:
        assert level["concurrency"] / 2 < level["server"]["running"] <= level["concurrency"]
        assert level["in_flight"] == pytest.approx(level["concurrency"], rel=0.05)


def test_a_batch_gets_more_tokens_and_each_user_fewer(summary: dict[str, Any]) -> None:
    one, *_, most = summary["levels"]
    assert most["output_tokens_per_s"]["mean"] > 2 * one["output_tokens_per_s"]["mean"]
    assert most["itl_s"]["mean"] > one["itl_s"]["mean"]
