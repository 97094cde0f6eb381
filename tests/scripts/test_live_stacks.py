"""scripts/live/stacks.py: its recipes and campaigns are what `knee stacks run` reads, on one weight set at one type."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

import pytest

from harness.spec import recipe
from tests.builders.texts import same

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
sys.path.append(str(ROOT / "scripts/live"))

import msgspec  # noqa: E402
import stacks  # noqa: E402  # its folder is a line above

from harness.cli.stacks import campaign_of  # noqa: E402
from harness.run import stacked  # noqa: E402
from harness.run.stacks import command  # noqa: E402
from harness.spec.scenario import Target  # noqa: E402


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    (model / "model-f32.gguf").touch()
    monkeypatch.setattr(stacks, "FOLDER", tmp_path / "stacks")
    monkeypatch.setattr(stacks, "MODEL", model)
    stacks.write()
    return tmp_path


def commands(written: Path, name: str) -> dict[str, list[str]]:
    scenario, specs = campaign_of(str(written / f"stacks/live-{name}.toml"))
    scenario = msgspec.structs.replace(scenario, target=Target(model=str(written / "model")))
    chosen = command.stacks(specs)
    assert stacked.plan(scenario, chosen).cells
    return {name: made.words for name, made in stacked.printed(scenario, chosen)}


def test_the_three_servers_load_one_weight_set_in_float32(written: Path) -> None:
    found = commands(written, "stacks")
    assert list(found) == ["vllm", "llama-server", "transformers"]
    assert str(written / "model") in found["vllm"]
    assert str(written / "model") in found["transformers"]
    assert str(written / "model/model-f32.gguf") in found["llama-server"]
    assert "--dtype float32" in shlex.join(found["vllm"])
    assert "--dtype float32" in shlex.join(found["transformers"])
    assert "--max-num-seqs 8 --max-model-len 1024 --no-enable-prefix-caching" in shlex.join(found["vllm"])
    assert "--parallel 8 --ctx-size 8192 --no-cache-prompt" in shlex.join(found["llama-server"])


def test_the_quantised_file_is_served_with_the_same_flags(written: Path) -> None:
    found = commands(written, "quantised")
    f32, q4 = ([word for word in words if not word.endswith(".gguf")] for words in found.values())
    assert f32 == q4
    assert found["q4"][2].endswith("model-q4/model.gguf")


def test_all_four_are_asked_the_same_questions(written: Path) -> None:
    assert list(commands(written, "answers")) == ["vllm", "llama-server", "transformers", "q4"]
    scenario, _ = campaign_of(str(written / "stacks/live-answers.toml"))
    assert scenario.quality
    assert scenario.quality.file == str(stacks.QUESTIONS)
    assert stacks.QUESTIONS.is_file()


@pytest.mark.slow
def test_the_committed_comparison_is_what_its_records_say(tmp_path: Path) -> None:
    shutil.copytree(RESULTS / "live-stacks", tmp_path / "live-stacks", ignore=shutil.ignore_patterns("comparison"))
    assert stacks.compare("stacks", str(tmp_path / "live-stacks")) == 0
    made, kept = (
        (folder / "live-stacks/comparison/comparison.json")
        .read_text()
        .replace(f"{folder}/", "")
        .replace("results/", "")
        for folder in (tmp_path, RESULTS)
    )
    same(made, kept)


def test_every_recipe_is_one(written: Path) -> None:
    assert {recipe.load(path).title for path in (written / "stacks").glob("[!l]*.toml")} >= {"vLLM on the CPU"}
