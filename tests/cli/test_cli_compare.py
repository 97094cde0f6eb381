"""`knee compare` as it is called: folders and files in, the answer, its files and its exit status out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from harness.base import files
from harness.cli import cli
from harness.data.summary import Summary
from harness.data.views import Estimate
from tests.builders import summaries

FOREIGN = Path(__file__).parents[1] / "data" / "foreign"


def folder(path: Path, factor: float = 1.0, tokens: float = 200.0, seed: int = 1, **manifest: Any) -> str:
    """A result folder whose requests were taken out."""
    made: Summary = summaries.full()
    levels = [
        msgspec.structs.replace(
            level,
            output_tokens_per_s=Estimate((level.output_tokens_per_s.mean or 0.0) * factor),
            output_tokens_mean=tokens,
        )
        for level in made.levels
    ]
    path.mkdir()
    spec = msgspec.structs.replace(summaries.MANIFEST.scenario.workload, seed=seed)
    scenario = msgspec.structs.replace(summaries.MANIFEST.scenario, workload=spec)
    about = msgspec.structs.replace(summaries.MANIFEST, scenario=scenario, **manifest)
    files.write_json(path / "manifest.json", about)
    files.write_json(path / "summary.json", msgspec.structs.replace(made, levels=levels))
    return str(path)


def knee(*words: str) -> Result:
    return CliRunner().invoke(cli, ["compare", *words])


def test_runs_that_differ_in_their_seed_alone_compare(tmp_path: Path) -> None:
    done = knee(folder(tmp_path / "a"), folder(tmp_path / "b", 1.2, seed=2))
    assert done.exit_code == 0, done.output
    assert "b has 1.200 ×" in done.output
    assert "no stack has repeats" in " ".join(done.output.split())


def test_other_lengths_exit_3_and_name_the_row(tmp_path: Path) -> None:
    a, b = folder(tmp_path / "a"), folder(tmp_path / "b", tokens=250.0)
    done = knee(a, b)
    assert done.exit_code == 3
    assert "not alike: realised lengths" in done.output
    forced = knee(a, b, "--force")
    assert forced.exit_code == 0
    assert "Forced" in forced.output


def test_engines_are_told_apart_by_themselves_and_are_the_question(tmp_path: Path) -> None:
    server = {"name": "llamacpp", "version": "b1"}
    runs = [folder(tmp_path / f"v{i}", 1 + i / 100) for i in range(3)]
    runs += [folder(tmp_path / f"l{i}", 0.5 + i / 100, server=server) for i in range(3)]
    assert knee(*runs, "--vary", "tp").exit_code == 3
    done = knee(*runs, "--json", "--quiet")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert found["differ"] == ["engine"]
    assert [(stack["label"], stack["runs"]) for stack in found["stacks"]] == [("vllm", 3), ("llamacpp", 3)]
    assert (found["pairs"][0]["outcome"], found["pairs"][0]["faster"]) == ("faster", "vllm")


def test_the_files_of_a_comparison(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = knee(f"x={folder(tmp_path / 'a')}", f"y={folder(tmp_path / 'b')}", "--out", str(out), "--no-plots")
    assert done.exit_code == 0
    assert sorted(path.name for path in out.iterdir()) == ["comparison.json", "comparison.md"]
    assert (out / "comparison.md").read_text().startswith("# x against y")
    assert str(out / "comparison.md") in done.output


@pytest.mark.slow
def test_a_page_and_a_picture_have_the_curves(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert knee(folder(tmp_path / "a"), folder(tmp_path / "b"), "--out", str(out), "--quiet").exit_code == 0
    assert (out / "comparison.png").read_bytes()[:4] == b"\x89PNG"
    assert '"frontier"' in (out / "comparison.html").read_text()


def test_other_tools_files_compare_with_their_like_and_say_what_they_lack() -> None:
    table = FOREIGN / "table.csv"
    done = knee(f"a={table}", f"b={table}")
    assert done.exit_code == 0, done.output
    assert "1.000 × the throughput" in done.output
    assert "no latencies and no lengths" in done.output


def test_another_tool_s_method_is_another(tmp_path: Path) -> None:
    done = knee(folder(tmp_path / "a"), str(FOREIGN / "sglang.jsonl"))
    assert done.exit_code == 3
    assert "measured by" in done.output


@pytest.mark.parametrize("others", [["b"], []])
def test_a_folder_without_a_finished_level_is_refused_by_its_name(tmp_path: Path, others: list[str]) -> None:
    measured = [folder(tmp_path / name) for name in ("a", *others)]
    empty = Path(folder(tmp_path / "empty"))
    files.write_json(empty / "summary.json", msgspec.structs.replace(summaries.full(), levels=[]))
    done = knee(*measured, str(empty))
    assert done.exit_code == 1
    assert f"{empty}: no level of it is finished; give the run more time" in done.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere: No such file"),
        ([str(FOREIGN / "table.csv")], "one stack alone"),
        ([str(FOREIGN / "table.csv"), "--vary", "gpu"], "--vary: 'gpu' cannot vary"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], message: str) -> None:
    done = knee(*words)
    assert done.exit_code == 1
    assert message in done.output


def test_a_folder_is_not_its_own_repeat(tmp_path: Path) -> None:
    a, b = folder(tmp_path / "a"), folder(tmp_path / "b", 0.9)
    done = CliRunner().invoke(cli, ["compare", f"x={a}", f"x={a}/../a", f"y={b}"])
    assert (done.exit_code, done.stderr) == (1, f"error: {a}: is given twice; give each folder once\n")
