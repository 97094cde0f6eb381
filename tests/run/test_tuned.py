"""The best setting of a server, found by starting it: what is tried, what fails, and what an interruption costs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from harness import cli
from harness.base.errors import HarnessError
from harness.cli import stacks
from harness.decide import tuning
from harness.decide.tuning import Setting
from harness.run import tuned
from harness.run.stacks import command
from harness.spec import reading
from harness.spec.recipe import Stack, StackSpec
from harness.spec.scenario import Scenario
from tests.trust.guard_consent import Terminal

KNEE = [sys.executable, "-m", "harness", "tune", "--stack", "sim", "--model", "m", "--workers", "1"]
SHORT = ["--input-tokens", "32", "--output-tokens", "16", "--quiet"]


def stack(name: str) -> Stack:
    (found,) = command.stacks([StackSpec(recipe=name)])
    return found


def scenario(**sections: object) -> Scenario:
    return reading.build({"target": {"model": "m"}, **sections}, place="test")


def begun(*tries: str, goal: tuning.Goal = "plateau", recipe: str = "vllm", **sections: object) -> tuned.Tuning:
    return tuned.begun(scenario(**sections), stack(recipe), tries, goal, "knee tune")


def words(option: str, value: str, recipe: str = "vllm") -> str:
    made = tuned.with_setting(stack(recipe), Setting({option: value}), scenario())
    return " ".join(command.processes(made, "m", iter([8000]))[0].words)


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("max-num-seqs", "64", "--max-num-seqs 64"),
        ("kv-cache-dtype", "fp8", "--kv-cache-dtype fp8"),
        ("kv-dtype", "fp8", "--kv-cache-dtype fp8"),
        ("max-num-batched-tokens", "8k", "--max-num-batched-tokens 8k"),
        ("enable-chunked-prefill", "on", "--enable-chunked-prefill"),
        ("enable-chunked-prefill", "off", "--no-enable-chunked-prefill"),
    ],
)
def test_an_option_of_ours_or_of_the_server_s_becomes_words(option: str, value: str, expected: str) -> None:
    assert expected in words(option, value)


def test_auto_is_the_server_s_default() -> None:
    assert "kv-cache-dtype" not in words("kv-cache-dtype", "auto")


def test_plateaus_are_compared_past_the_seats_of_all_settings() -> None:
    assert begun("max-num-seqs=8,64").in_flight == 80
    assert begun("enforce-eager=on,off", ramp={"levels": [32]}).in_flight == 32


@pytest.mark.parametrize(
    ("tries", "goal", "sections", "fact"),
    [
        (["enforce-eager=on,off"], "plateau", {}, "how many requests a setting runs at once is not known"),
        (["max-num-seqs=4"], "cost", {}, "no price of a GPU-hour"),
        (["max-num-seqs=4"], "slo", {}, "no limits to meet"),
        (["max-num-seqs=four"], "plateau", {}, "max-num-seqs=four"),
        (["max-num-seqs=4"], "plateau", {"ramp": {"levels": [1, 2]}}, "settings are compared at one load"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_a_server_starts(
    tries: list[str], goal: tuning.Goal, sections: dict[str, object], fact: str
) -> None:
    with pytest.raises(HarnessError, match=fact):
        begun(*tries, goal=goal, **sections)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(None, "1 min or more"), (30.0, "15 s or more"), (10.0, "15 s or more; --max-seconds allows fewer")],
)
def test_what_the_first_round_takes_is_said_before_a_server_starts(seconds: float | None, said: str) -> None:
    found = begun("max-num-seqs=4,8,16", ramp={"max_seconds": seconds})
    assert tuned._plan(found) == f"plan: 3 settings, each started and measured once in {said}"


def test_the_prediction_orders_the_settings_and_leaves_out_what_does_not_fit() -> None:
    hardware = {"gpu": "l4", "model_config": "llama-3.1-8b"}
    found = begun("max-num-seqs=4,64", "dtype=bf16,fp8", hardware=hardware)
    first, *_ = tuning.ordered(found.settings)
    assert first.name == "max-num-seqs=64 dtype=fp8"
    huge = begun("dtype=bf16,fp8", hardware={"gpu": "h200-sxm", "model_config": "llama-3.1-70b"}, ramp={"levels": [8]})
    assert [bool(each.left_out) for each in huge.settings] == [True, False]


def test_a_fresh_comparison_sends_the_headers_and_its_file_lacks_them(tmp_path: Path) -> None:
    of = scenario(target={"model": "m", "headers": {"authorization": "Bearer abc"}})
    found = tuned.begun(of, stack("vllm"), ["max-num-seqs=4"], "plateau", "knee tune")
    (tmp_path / tuned.FILE).write_bytes(msgspec.json.encode(found))
    assert "abc" not in (tmp_path / tuned.FILE).read_text()
    with pytest.raises(HarnessError, match="the value of its header 'authorization' is not stored"):
        tuned.interrupted(str(tmp_path))


@pytest.mark.parametrize("wrong", ["max-num-seqs=2..8", "prefix-caching=maybe"])
def test_a_value_that_a_setting_cannot_have_is_named_before_anything_starts(wrong: str) -> None:
    with pytest.raises(HarnessError, match="a setting has no such value; write whole numbers, and on or off for pre"):
        tuned.begun(scenario(), stack("vllm"), [wrong], "plateau", "knee tune")


def test_no_file_has_the_secrets_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(stacks, "_measure", lambda found, *_: seen.append(found.command) or 0)
    tries = ["--try", "max-num-seqs=2,8", "--levels", "4", "--extra-body", '{"api_key": "s3cret"}']
    monkeypatch.setattr(sys, "argv", ["knee", *KNEE[3:], *tries])
    assert CliRunner().invoke(cli.cli, sys.argv[1:]).exit_code == 0
    assert "--try max-num-seqs=2,8" in seen[0]
    assert "s3cret" not in seen[0]


def test_a_recipe_of_one_s_own_is_shown_with_the_command_that_prints_its_version(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text('title = "Mine"\ncommand = ["./serve", "{port}"]\nversion = ["./serve", "--version"]\n')
    asked = Terminal(tmp_path, *KNEE[3:4], "--stack", str(recipe), "--model", "m", "--try", "a=1,2", "--levels", "4")
    assert asked.until(b"Run them?")
    asked.answer(b"n\n")
    assert asked.process.wait(20) == 1
    assert b"a=2: ./serve --version" in asked.said


@pytest.mark.slow
def test_the_best_setting_is_found_and_one_that_breaks_the_server_costs_one_start(tmp_path: Path) -> None:
    out = tmp_path / "out"
    tries = ["--try", "max-num-seqs=2,8", "--try", "scheduling-policy=fcfs,nosuch", "--max-seconds", "30"]
    done = subprocess.run([*KNEE, *tries, *SHORT, "--out", str(out)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = tuned.read(out)
    assert found.complete
    ranks = tuning.ranks(found.settings, found.trials)
    assert ranks[0].setting == "max-num-seqs=8 scheduling-policy=fcfs"
    assert {rank.state for rank in ranks if "nosuch" in rank.setting} == {"failed"}
    assert sum("nosuch" in trial.setting for trial in found.trials) == 1
    assert "--max-num-seqs 8" in (out / "tune.md").read_text()
    assert "SIMULATED" in (out / "tune.md").read_text()
    assert (out / "tune.png").stat().st_size > 1000
    again = subprocess.run([*KNEE[:4], "--resume", str(out)], capture_output=True, text=True, check=False)
    assert "this comparison is complete" in again.stderr


@pytest.mark.slow
def test_an_interrupted_comparison_goes_on_with_the_trials_that_it_lacks(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [*KNEE, "--try", "max-num-seqs=2,8", "--max-seconds", "30", *SHORT, "--out", str(out)]
    assert subprocess.run(command, check=False).returncode in (0, 3)  # 3: on a busy machine the time may be too short
    whole = tuned.read(out)
    cut = msgspec.structs.replace(whole, trials=whole.trials[:1], complete=False)
    (out / tuned.FILE).write_text(json.dumps(msgspec.to_builtins(cut)))
    resumed = [*KNEE[:4], "--resume", str(out), "--quiet", "--yes"]
    assert subprocess.run(resumed, check=False).returncode in (0, 3)
    found = tuned.read(out)
    assert found.complete
    assert found.trials[0] == whole.trials[0]
    assert len({trial.folder for trial in found.trials}) == len(found.trials)
