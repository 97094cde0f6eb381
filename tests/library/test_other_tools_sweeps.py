"""Sweeps of other tools, as they lie: joined, a folder, a list, a table; all of one server whose knee is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.base.errors import HarnessError
from harness.cli import cli
from harness.decide.compare.runs import labelled, of_files
from harness.library import answers
from harness.library.measurement import load
from harness.results import exporters, readers
from tests.builders import foreign
from tests.builders.foreign import KNEE, LOADS, PLATEAU

RESULTS = Path(__file__).parents[2] / "results"

SWEEPS = {
    "vllm-lines.json": foreign.lines([foreign.vllm(C) for C in LOADS]),
    "vllm-joined.json": "\n".join(json.dumps(foreign.vllm(C), indent=2) for C in LOADS),
    "vllm-list.json": json.dumps([foreign.vllm(C) for C in LOADS]),
    "vllm-sweep.json": json.dumps([foreign.vllm(C, run_number=run) for C in LOADS for run in (0, 1)]),
    "vllm-sweep.csv": foreign.table([foreign.vllm(C) for C in LOADS]),
    "vllm-bounded.json": foreign.lines([foreign.vllm(C, request_rate=1000.0) for C in LOADS]),
    "vllm-names.csv": foreign.table(
        [{"max_concurrency": C, "output_throughput": foreign.throughput(C)} for C in LOADS]
    ),
    "vllm-old.jsonl": foreign.lines([foreign.old_vllm(C) for C in LOADS]),
    "sglang.jsonl": foreign.lines([foreign.sglang(C) for C in LOADS]),
    "genai-perf.json": "".join(json.dumps(foreign.genai_perf(C)) for C in LOADS),
    "inferencex.json": json.dumps([foreign.inferencex(C) for C in LOADS]),
    "inferencex-apart.json": json.dumps([foreign.inferencex_apart(C) for C in LOADS]),
    "guidellm-cut-off.json": json.dumps(
        {"benchmarks": [foreign.guidellm({"type_": "concurrent", "streams": C}, C, 1 - C / 300) for C in LOADS]}
    ),
    "guidellm-sweep.json": json.dumps(
        {
            "benchmarks": [
                foreign.guidellm({"type_": "synchronous"}, 1),
                foreign.guidellm({"type_": "throughput", "max_concurrency": 512}, 400),
                *(
                    foreign.guidellm({"type_": "constant", "rate": foreign.throughput(N) / foreign.OUT}, N)
                    for N in (2, 3, 5, 8, 12, 18, 24, 28)
                ),
            ]
        }
    ),
    "llm-d.yaml": "---\n".join(foreign.llm_d(C) for C in LOADS),
}  # fmt: skip


def is_the_server(*sources: Path | str) -> None:
    """Knee and plateau lie in their intervals, and the middle is within 4 %."""
    found = answers.fitted(answers.read(*map(str, sources)))
    hinge, plateau = found.curve.hinge_concurrency, found.curve.plateau_tokens_per_s
    for value, truth in ((hinge, KNEE), (plateau, PLATEAU)):
        assert value.value == pytest.approx(truth, rel=0.04)
        assert value.ci95 is not None
        assert (value.ci95[0] or 0) <= truth <= (value.ci95[1] or 0)


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_in_one_file_is_one_curve(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(SWEEPS[name])
    is_the_server(tmp_path / name)


def one_file_a_level(folder: Path, factor: float = 1.0, name: str = "c") -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{name}{C:03}.json" for C in LOADS]
    for path, C in zip(paths, LOADS, strict=True):
        path.write_text(json.dumps(foreign.vllm(C, factor)))
    return paths


def test_a_file_a_level_is_one_curve_by_its_folder_its_names_or_joined(tmp_path: Path) -> None:
    paths = one_file_a_level(tmp_path / "runs")
    is_the_server(tmp_path / "runs")
    is_the_server(*paths)
    joined = "".join(path.read_text() for path in paths)
    curves = [
        CliRunner().invoke(cli, ["fit", *arguments, "--json"], input=joined)
        for arguments in ([str(tmp_path / "runs")], [str(path) for path in paths], ["-"])
    ]
    assert [done.exit_code for done in curves] == [0, 0, 0]
    assert len({done.stdout for done in curves}) == 1


def test_a_level_that_is_held_twice_is_pooled_and_no_second_run(tmp_path: Path) -> None:
    one_file_a_level(tmp_path / "runs", 0.999, "a")
    one_file_a_level(tmp_path / "runs", 1.001, "b")
    is_the_server(tmp_path / "runs")
    (run,) = labelled([str(tmp_path / "runs")])
    assert len(run.points) == 2 * len(LOADS)
    assert len(run.throughput()) == len(LOADS)


def test_the_summary_of_a_sweep_says_nothing_new_of_its_levels(tmp_path: Path) -> None:
    one_file_a_level(tmp_path)
    (tmp_path / "summary.json").write_text(SWEEPS["vllm-list.json"])
    (tmp_path / "summary.csv").write_text(SWEEPS["vllm-sweep.csv"])
    (tmp_path / "inputs.json").write_text("{}")
    (tmp_path / "torn.json").write_text('{"output_throughput": 1')
    found = readers.read_folder(tmp_path)
    assert sorted(level.concurrency or 0 for level in found.levels) == list(LOADS)
    assert found.lacks[-1] == "not read, as they are damaged or too large: torn.json"


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="no run of Knee and no file of measured levels in it"):
        answers.read(str(tmp_path))


def test_files_of_several_levels_are_runs_and_those_of_one_are_levels(tmp_path: Path) -> None:
    paths = one_file_a_level(tmp_path / "runs")
    whole = tmp_path / "whole.json"
    whole.write_text(SWEEPS["vllm-lines.json"])
    read = [(str(path), readers.read(path)) for path in (whole, *paths)]
    assert [len(run.points) for run in of_files("x", read)] == [len(LOADS), len(LOADS)]


def test_a_folder_of_knee_compares_with_another_tool_s_files(tmp_path: Path) -> None:
    """vLLM's own tool and the same lengths; the table says that its figures are over the whole run."""
    folder = RESULTS / "live-vllm-ramp-1"
    levels = load(folder).summary.levels
    for level in levels:
        C, X = level.concurrency, level.output_tokens_per_s.mean
        assert C is not None
        lengths = {"total_input_tokens": 10 * C * 128, "total_output_tokens": 10 * C * 64, "model_id": "toy"}
        (tmp_path / f"c{C}.json").write_text(json.dumps(foreign.vllm(C) | lengths | {"output_throughput": X}))
    done = CliRunner().invoke(cli, ["compare", str(folder), f"bench={tmp_path}", "--no-plots"])
    words = " ".join(done.output.split())
    assert done.exit_code == 0, words
    assert "throughput is over the whole run" in words


@pytest.mark.parametrize(
    "name", ["live-h100-bf16", "live-vllm-ramp-1", "live-h100-kv", "live-llama-4", "live-transformers"]
)
@pytest.mark.parametrize("to", ["csv", "vllm"])
def test_an_export_fits_as_its_folder_does(name: str, to: str, tmp_path: Path) -> None:
    run = load(RESULTS / name)
    exporter = exporters.find(to)
    for file, content in (exporter.files(run) if exporter.files else {}).items():
        if file != "requests.csv":
            (tmp_path / file).write_text(content if isinstance(content, str) else json.dumps(content))
    of_folder, of_export = (answers.fitted(answers.read(str(each))) for each in (RESULTS / name, tmp_path))
    assert of_export.knees.seats == of_folder.knees.seats
    for figure in ("hinge_concurrency", "plateau_tokens_per_s", "single_stream_tokens_per_s"):
        one, other = getattr(of_export.curve, figure), getattr(of_folder.curve, figure)
        assert one.value == pytest.approx(other.value, rel=1e-6)
