"""The action for other repositories' workflows: its steps are run as the runner would, but for the installation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.sim.process import running
from harness.sim.profile import profile

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]


def filled(text: str, inputs: dict[str, str]) -> str:
    for name, value in inputs.items():
        text = text.replace("${{ inputs." + name + " }}", value)
    assert "${{" not in text
    return text


def run(step: dict[str, Any], inputs: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    own = {name: filled(value, inputs) for name, value in step["env"].items()}
    given = {"RUNNER_TEMP": str(folder), "GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
    command = ["bash", "-eo", "pipefail", "-c", step["run"]]
    return subprocess.run(
        command, env=os.environ | given | own, cwd=folder, capture_output=True, text=True, check=False
    )


def test_no_step_has_an_input_in_its_script() -> None:
    """A value in the text of a script would be run by the shell."""
    assert [step["name"] for step in STEPS] == ["Install Knee", "Measure", "Check"]
    assert all("${{" not in step["run"] and step["shell"] == "bash" for step in STEPS)


@pytest.mark.slow
def test_it_measures_and_fails_where_a_threshold_is_missed(tmp_path: Path) -> None:
    knee = tmp_path / "knee" / "bin" / "knee"
    knee.parent.mkdir(parents=True)
    knee.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -P -m harness "$@"\n')
    knee.chmod(0o755)
    inputs = {name: str(each.get("default", "")) for name, each in ACTION["inputs"].items()}
    inputs |= {"arguments": "--levels 4 --level-seconds 8 --output-tokens 32 --no-plots", "out": "result"}
    _, measure, check = STEPS
    with running(profile(max_num_seqs=8, speed=4.0)) as url:
        done = run(measure, inputs | {"url": url}, tmp_path)
    assert done.returncode in (0, 3), done.stderr
    assert "requests in flight" in (tmp_path / "summary.md").read_text()
    for bound, status in (("100", 0), ("1000000", 99)):
        thresholds = f"error_rate < 5%\noutput_tokens_per_s@4 >= {bound}\n"
        done = run(check, inputs | {"thresholds": thresholds}, tmp_path)
        assert done.returncode == status, done.stdout + done.stderr
