"""The requests that a run will send: the same lines whatever the workers."""

from __future__ import annotations

import hashlib
import itertools
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness.cli import cli
from harness.run.requests import Planned, planned
from harness.spec import reading
from harness.spec.scenario import Scenario
from harness.workload import shape

MIX = """
[workload]
seed = 3
[[class]]
name = "chat"
share = 3
input = "100..300"
output = "lognormal(64,20)"
[[class]]
name = "rag"
input = "2k"
output = 16
"""

PREFIX = "[workload]\nseed = 3\nprefix = { tokens = 50, pool = 5, share = 0.8, zipf = 1 }"


def build(toml: str, workers: int = 1) -> Scenario:
    tree: dict[str, Any] = tomllib.loads(toml)
    return reading.build(tree | {"ramp": {"workers": workers} | tree.get("ramp", {})}, place="x.toml")


def first(count: int, toml: str, workers: int = 1) -> list[Planned]:
    return list(itertools.islice(planned(build(toml, workers)), count))


OPEN = (
    "rates = [50.0]",
    'rates = [40.0, 80.0]\narrivals = "gamma(0.25)"',
    'arrivals = "wave(period=60s,low=5,high=20)"',
)


@pytest.mark.parametrize("ramp", ["", *(f"\n[ramp]\n{each}" for each in OPEN)])
@pytest.mark.parametrize(
    "workload", ["[workload]\nseed = 3", MIX, PREFIX, '[workload]\nseed = 3\ninput_tokens = "64±20"']
)
def test_the_requests_are_the_same_for_any_number_of_workers(workload: str, ramp: str) -> None:
    alone = first(300, workload + ramp)
    assert alone == first(300, workload + ramp, 2) == first(300, workload + ramp, 4)
    assert [each.number for each in alone] == list(range(300))
    assert len({each.prompt_sha256 for each in alone}) == 300
    due = [each.due_s for each in alone]
    assert due == [None] * 300 if not ramp else due == sorted(due, key=lambda at: at or 0.0)


def test_lengths_and_classes_are_those_of_the_mix() -> None:
    mix = shape.of(build(MIX))
    for each in first(200, MIX):
        drawn = mix.shape(each.number)
        assert (each.class_, each.input_tokens, each.output_tokens) == (
            drawn.class_, drawn.input_tokens, drawn.output_tokens,
        )  # fmt: skip


def test_one_seed_has_one_digest_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "mix.toml"
    file.write_text(MIX + "[ramp]\nrates = [50.0]\n")

    def printed(*options: str) -> str:
        done = CliRunner().invoke(cli, ["run", str(file), "--print-requests", "200", *options])
        assert done.exit_code == 0, done.output
        return done.output

    digests = {hashlib.sha256(printed("--workers", n).encode()).hexdigest() for n in ("1", "2", "4", "auto")}
    assert len(digests) == 1
    assert printed() != printed("--seed", "4")
    lines = [json.loads(line) for line in printed().splitlines()]
    assert len(lines) == 200
    assert set(lines[0]) == {
        "number", "class", "session", "turn", "after", "input_tokens", "output_tokens", "due_s", "prompt_sha256",
    }  # fmt: skip


def test_no_requests_at_all_are_a_mistake() -> None:
    done = CliRunner().invoke(cli, ["run", "--print-requests", "0"])
    assert done.exit_code == 1
    assert "--print-requests: it must be 1 or more; give 1 or more" in done.stderr


def test_the_requests_of_tasks_name_their_session_and_what_they_wait_for() -> None:
    toml = "[workload]\nseed = 3\noutput_tokens = 5\n[workload.session]\nturns = 2\nuser_tokens = 20\n"
    lines = first(4, toml)
    assert lines == first(4, toml, 2)
    assert [(each.number, each.session, each.turn, each.after) for each in lines] == [
        (0, "0", 0, ()), (1, "0", 1, (0,)), (1000, "1", 0, ()), (1001, "1", 1, (1000,)),
    ]  # fmt: skip
    assert [each.input_tokens for each in lines] == [20, 45, 20, 45]
    assert len({each.prompt_sha256 for each in lines}) == 4


def test_a_phase_probe_prints_the_requests_of_its_ramp() -> None:
    """Decode: prompts of 32 tokens, answers of 256; prefill: the lengths asked, and one token out."""
    (decode,) = first(1, '[workload]\nseed = 3\n[ramp]\nprobe = "decode"')
    assert (decode.input_tokens, decode.output_tokens) == (32, 256)
    (prefill,) = first(1, '[workload]\nseed = 3\n[ramp]\nprobe = "prefill"')
    assert (prefill.input_tokens, prefill.output_tokens) == (512, 1)
