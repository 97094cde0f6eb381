"""A run in each dialect that the simulated endpoint speaks finds the same figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli.run import run
from harness.dialects import DIALECTS

INPUT, OUTPUT = 64, 16


def level(folder: Path, *options: str) -> dict[str, object]:
    """The one level of a run of the simulated endpoint at 2 in flight."""
    lengths = ["--input-tokens", str(INPUT), "--output-tokens", str(OUTPUT)]
    load = ["--levels", "2", "--level-seconds", "1", "--speed", "4", "--quiet", "--no-plots", "--json"]
    done = CliRunner().invoke(run, ["--url", "sim:", *lengths, *load, "--out", str(folder), *options])
    assert done.exit_code in (0, 3), done.output  # 3: this machine was too busy for the client
    found = json.loads(done.stdout)["levels"][0]
    assert isinstance(found, dict)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("api", [name for name, dialect in DIALECTS.items() if dialect.server is not None])
def test_a_run_counts_the_same_in_every_dialect(api: str, tmp_path: Path) -> None:
    found = level(tmp_path / "run", "--api", api)
    assert (found["errors"], found["input_tokens_mean"], found["output_tokens_mean"]) == (0, INPUT, OUTPUT)
    assert (found["tokens_per_chunk"], found["unplaced_tokens"]) == (1.0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("api", [name for name, dialect in DIALECTS.items() if dialect.whole and dialect.server])
def test_an_answer_that_does_not_stream_has_its_tokens_and_no_gaps(api: str, tmp_path: Path) -> None:
    found = level(tmp_path / "run", "--api", api, "--no-stream")
    assert (found["errors"], found["input_tokens_mean"], found["output_tokens_mean"]) == (0, INPUT, OUTPUT)
    assert found["tokens_per_chunk"] == OUTPUT
    itl, ttft, e2e = found["itl_s"], found["ttft_s"], found["e2e_s"]
    assert isinstance(itl, dict)
    assert isinstance(ttft, dict)
    assert isinstance(e2e, dict)
    assert itl["mean"] is None
    assert ttft["p50"] == pytest.approx(e2e["p50"])
