"""Two ways to balance replicas, measured in turn and compared."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import HarnessError
from harness.results import levelmap
from harness.results.levelmap import BALANCE, REPEAT
from harness.run import campaign
from harness.sim.process import running
from harness.sim.profile import profile
from harness.spec import reading
from harness.spec.scenario import Scenario
from tests.builders.datasets import file, json_lines

URLS = ["http://127.0.0.1:1", "http://127.0.0.1:2"]
SESSION = {"turns": 4, "user_tokens": 64}


def asked(target: dict[str, Any], **sections: Any) -> Scenario:
    replicas = {} if "url" in target else {"url": URLS[0], "urls": URLS}
    tree = {"name": "s", "target": replicas | target, "workload": {"seed": 5, "session": SESSION}}
    return reading.build(tree | sections, place="test")


def test_both_ways_take_turns_with_prompts_of_their_own() -> None:
    found = campaign.plan(asked({"balance": "session", "versus": "least-in-flight"}, ramp={"repeat": 2}))
    assert [cell.at for cell in found.cells] == [
        {REPEAT: repeat, BALANCE: way} for repeat in (1, 2) for way in ("session", "least-in-flight")
    ]
    scenarios = [cell.scenario for cell in found.cells]
    assert [each.target.balance for each in scenarios] == ["session", "least-in-flight"] * 2
    assert [each.workload.seed for each in scenarios] == [5, 6, 7, 8]
    assert not any(each.many for each in scenarios)
    assert {each.ramp.repeat for each in scenarios} == {1}


@pytest.mark.parametrize(
    ("target", "sections", "line"),
    [
        ({"versus": "round-robin"}, {}, "the replicas are balanced so already at $.target.versus"),
        ({"versus": "session"}, {"workload": {}}, "$.target.versus"),
        ({"url": URLS[0], "versus": "session"}, {}, "there is one server at $.target.versus"),
    ],
)
def test_what_cannot_be_compared_is_refused(target: dict[str, Any], sections: dict[str, Any], line: str) -> None:
    with pytest.raises(HarnessError) as caught:
        asked(target, **sections)
    assert line in str(caught.value)


def test_texts_of_a_dataset_come_again_and_need_an_empty_cache(tmp_path: Path) -> None:
    lengths = file(tmp_path, "l.jsonl", json_lines([{"input_tokens": 9, "output_tokens": 9}]))
    texts = file(tmp_path, "t.jsonl", json_lines([{"prompt": "Why?", "output_tokens": 9}]))

    def planned(path: Path, **sections: Any) -> int:
        target = {"versus": "least-in-flight"}
        return len(campaign.plan(asked(target, workload={"seed": 1, "dataset": {"path": str(path)}}, **sections)).cells)

    assert planned(lengths) == planned(texts, hooks={"reset_cache": True}) == 2
    with pytest.raises(HarnessError, match=r"--versus: the texts of the dataset come again.* add --reset-cache"):
        planned(texts)


@pytest.mark.slow
def test_sessions_on_one_replica_are_served_more_from_its_cache_than_in_turns(tmp_path: Path) -> None:
    """A turn finds the one before where that was sent, in turns every other time at most. What lacks is resumed."""
    scenario = file(
        tmp_path,
        "s.toml",
        "[workload]\nseed = 5\noutput_tokens = 16\n[workload.session]\nturns = 6\nuser_tokens = 256\n",
    )
    caching = profile(max_num_seqs=8, speed=2.0, prefix_caching=True)
    with running(caching) as one, running(caching) as two:
        command = [sys.executable, "-m", "harness", "run", str(scenario), "--url", one, "--url", two, "--balance"]
        command += ["session", "--versus", "round-robin", "--levels", "3", "--level-seconds", "3", "--no-plots"]
        out = tmp_path / "out"
        done = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode in (0, 3), done.stderr  # 3: this machine was too busy for the client
        found = json.loads((out / "comparison.json").read_text())
        summaries = [json.loads((out / f"{way}-1" / "summary.json").read_text()) for way in ("session", "round-robin")]
        shutil.rmtree(out / "round-robin-1")
        for name, changed in (("manifest.json", {"complete": False}), ("map.json", {"cells": []})):
            kept = json.loads((out / name).read_text())
            (out / name).write_text(json.dumps(kept | changed))
        again = [sys.executable, "-m", "harness", "run", "--resume", str(out), "--no-plots"]
        resumed = subprocess.run(again, capture_output=True, text=True, timeout=120, check=False)
    assert resumed.returncode in (0, 3), resumed.stderr
    assert levelmap.read(out).complete
    assert "session against round-robin" in resumed.stdout
    assert [stack["label"] for stack in found["stacks"]] == ["session", "round-robin"]
    assert found["differ"] == ["balance"]
    cached = [each["levels"][0]["cached_input_fraction"] for each in summaries]
    assert cached[0] == pytest.approx(4080 / 5616, abs=0.06)  # of 272 k − 16 tokens in turn k, all before 256 are there
    assert cached[1] < cached[0] - 0.1
    if all(stack["loads"] for stack in found["stacks"]):  # else this machine was too busy for them to count
        assert [stack["loads"][0]["cached"] for stack in found["stacks"]] == cached
        assert f"{cached[0]:.1%}" in done.stdout
