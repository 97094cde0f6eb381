"""`knee stacks`: which commands are shown, and that one from a file is agreed to before it runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from harness.base import files
from harness.cli import cli
from harness.data.manifest import MapManifest, Session
from harness.results import levelmap
from harness.run.stacks import command
from harness.spec import scenario as scenarios
from harness.spec.recipe import Stack
from harness.spec.scenario import Scenario, Target, WorkloadSpec
from tests.builders import recipes

LOAD = ["--input-tokens", "16", "--output-tokens", "8", "--levels", "1", "--level-seconds", "0.3", "--no-plots"]


def knee(*words: str) -> Result:
    return CliRunner().invoke(cli, words, catch_exceptions=False)


def test_the_list_has_every_recipe_and_campaign() -> None:
    got = knee("stacks", "list")
    assert got.exit_code == 0
    assert [word in got.output for word in ("vllm", "triton", "tensor-parallel", "speculation")] == [True] * 4


def test_print_shows_the_commands_and_starts_nothing() -> None:
    got = knee(
        "stacks", "run", "--stack", "vllm", "--stack", "sglang", "--model", "/m", "--tp", "2", "--dtype", "fp8",
        "--max-model-len", "4096", "--print",
    )  # fmt: skip
    assert got.output.splitlines() == [
        "VLLM_NO_USAGE_STATS=1 vllm serve /m --host 127.0.0.1 --port 8000 --served-model-name model "
        "--tensor-parallel-size 2 --quantization fp8 --max-model-len 4096 --no-enable-prefix-caching",
        "python3 -m sglang.launch_server --model-path /m --host 127.0.0.1 --port 8000 --served-model-name model "
        "--enable-metrics --tp-size 2 --quantization fp8 --context-length 4096 --disable-radix-cache",
    ]


def test_a_campaign_brings_its_stacks_and_some_of_them_can_be_chosen() -> None:
    whole = knee("stacks", "run", "tensor-parallel", "--model", "/m", "--print").output.splitlines()
    some = knee("stacks", "run", "tensor-parallel", "--model", "/m", "--stack", "tp2", "--print").output.splitlines()
    assert len(whole) == 4
    assert some == [line for line in whole if "--tensor-parallel-size 2 " in line]
    got = knee("stacks", "run", "tensor-parallel", "--model", "/m", "--stack", "tp3", "--print")
    assert (got.exit_code, "it has tp1, tp2, tp4, tp8" in got.stderr) == (1, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "m"], "no stack to run"),
        (["--stack", "sim"], "no model to serve"),
        (["--stack", "vlm", "--model", "m"], "did you mean 'vllm'"),
        (["--stack", "vllm", "--model", "--trust-remote-code", "--yes"], "no folder, file or name"),
        (["--stack", "sim", "--model", "m", "--tp", "2"], "no flag for tp = 2"),
        (["chta", "--stack", "sim", "--model", "m"], "did you mean 'chat'"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], message: str) -> None:
    got = knee("stacks", "run", *words)
    assert got.exit_code == 1
    assert message in got.stderr
    assert len(got.stderr.splitlines()) == 1


def begun(folder: Path, stack: Stack) -> None:
    """A comparison that ended before its first run, as somebody may hand it over."""
    of = Scenario(target=Target(model="m"), workload=WorkloadSpec(seed=1))
    manifest = MapManifest(
        name="run", scenario=of, scenario_digest=scenarios.digest(of),
        sessions=[Session(created="now")], stacks=[command.stored(stack)],
    )  # fmt: skip
    folder.mkdir()
    files.write_json(folder / "manifest.json", manifest)


def test_a_command_in_a_folder_is_not_run_before_it_is_agreed_to(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    begun(tmp_path / "out", recipes.stack("evil", [sys.executable, "-c", f"open({str(ran)!r}, 'w')"]))
    got = knee("stacks", "run", "--resume", str(tmp_path / "out"))
    assert (got.exit_code, "come from a file" in got.stderr, "add --yes" in got.stderr) == (1, True, True)
    assert not ran.exists()


def test_the_words_of_somebody_s_campaign_are_not_run_before_they_are_agreed_to(tmp_path: Path) -> None:
    campaign = tmp_path / "theirs.toml"
    campaign.write_text('[[stack]]\nrecipe = "sim"\nargs = ["--host", "0.0.0.0"]\n')
    got = knee("stacks", "run", str(campaign), "--model", "m", "--out", str(tmp_path / "out"))
    assert (got.exit_code, "come from a file" in got.stderr) == (1, True)
    assert not (tmp_path / "out").exists()


def test_what_had_a_secret_in_it_and_what_is_no_comparison_is_not_resumed(tmp_path: Path) -> None:
    begun(tmp_path / "out", recipes.stack("a", ["serve", "--api-key", "s3cret"]))
    assert "s3cret" not in (tmp_path / "out" / "manifest.json").read_text()
    got = knee("stacks", "run", "--resume", str(tmp_path / "out"), "--yes")
    assert (got.exit_code, "which is not stored" in got.stderr) == (1, True)
    got = knee("stacks", "run", "--resume", str(tmp_path / "out"), "--stack", "sim")
    assert (got.exit_code, "leave --stack out" in got.stderr) == (1, True)


@pytest.mark.slow
def test_a_recipe_from_a_file_is_not_run_before_it_is_agreed_to(tmp_path: Path) -> None:
    recipe, ran = tmp_path / "mine.toml", tmp_path / "ran"
    recipe.write_text(recipes.toml([sys.executable, "-c", f"open({str(ran)!r}, 'w')"]))
    command = [sys.executable, "-m", "harness", "stacks", "run", "--stack", str(recipe), "--model", "m", *LOAD]
    command += ["--out", str(tmp_path / "out")]
    got = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert got.returncode == 1
    assert "come from a file" in got.stderr
    assert not ran.exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_comparison_ends_with_the_line_that_compares_and_is_not_resumed_unasked(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "harness", "stacks", "run"]
    first = [*command, "--stack", "sim", "--model", "m", "--repeat", "2", *LOAD, "--out", str(out)]
    got = subprocess.run(first, capture_output=True, text=True)
    assert got.returncode in (0, 3), got.stderr
    assert f"Compare them: knee compare {out}/sim-1 {out}/sim-2" in got.stderr
    found = levelmap.read(out)
    assert found.complete
    again = subprocess.run([*command, "--resume", str(out)], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert (again.returncode, "this run is complete" in again.stderr) == (1, True)
