"""A run where Linux's own calls are missing, as on macOS: `tests/builders/without_linux` takes them away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.data.manifest import Manifest
from harness.results.result import Result

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[1] / "builders" / "without_linux"
_TRIAL = """
import json
from harness.run.trial import Load, errors, run_trial
from harness.sim.profile import StreamPace
trial = run_trial(Load(pace=StreamPace(), streams=64, seconds=2.0))
found, *_ = errors(trial.records, trial.entries, trial.origin_ns)
print(json.dumps([sorted({done.timestamp_source for done in trial.done}), sorted(map(abs, found))]))
"""


def without_linux(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(FOLDER), str(Path(__file__).parents[2])])
    environ = os.environ | {"PYTHONPATH": path}
    return subprocess.run([sys.executable, *words], env=environ, cwd=cwd, capture_output=True, text=True, check=False)


def test_a_run_ends_in_its_answer_and_says_that_the_clock_stamped_it(tmp_path: Path) -> None:
    out = tmp_path / "out"
    levels = ["--levels", "1,4", "--level-seconds", "1"]
    done = without_linux("-m", "harness", "run", "sim:", *levels, "--out", str(out))
    assert done.returncode in (0, 3), done.stderr
    assert "Traceback" not in done.stderr
    manifest = Result.open(out).manifest
    assert isinstance(manifest, Manifest)
    assert manifest.client.timestamp_source == "user"
    for verb in (["report", str(out)], ["compare", str(out), str(out)], ["predict", "llama-3.1-8b", "h100-sxm"]):
        shown = without_linux("-m", "harness", *verb)
        assert "Traceback" not in shown.stderr, verb


@pytest.mark.alone
def test_what_arrives_is_read_as_soon_as_it_is_there_where_the_kernel_gives_no_stamps() -> None:
    done = without_linux("-c", _TRIAL)
    assert done.returncode == 0, done.stderr
    sources, errors = json.loads(done.stdout)
    assert sources == ["user"]
    assert errors[len(errors) // 2] < 0.5e-3, "by ticks the median would be above a millisecond"
