"""`knee.fit`, `knee.predict` and `knee.compare`: the same figures as their verbs, from a program's own data."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

import harness as knee
from harness.cli import cli
from harness.library import answers as fitting

DATA = Path(__file__).parents[1] / "data"
SATURATING = [(C, min(100.0 * C, 1600.0)) for C in (1, 2, 4, 8, 16, 24, 32, 64)]  # a hinge at 16


def plain(value: object) -> object:
    """As JSON has it."""
    return json.loads(msgspec.json.encode(value))


def printed(*arguments: str) -> object:
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.slow
def test_pairs_and_a_csv_of_them_give_the_same_curve(tmp_path: Path) -> None:
    found = knee.fit(SATURATING)
    assert found.knees.hinge is not None
    assert found.knees.hinge.value == pytest.approx(16.0, rel=0.02)
    table = tmp_path / "points.csv"
    table.write_text("concurrency,output_tokens_per_s\n" + "".join(f"{C},{X}\n" for C, X in SATURATING))
    assert knee.fit(table).curve == found.curve
    assert printed("fit", str(table), "--json") == plain(found.curve)


def test_a_third_figure_is_the_standard_error() -> None:
    (point,) = [fitting._point(row) for row in [(4, 380.0, 2.5)]]
    assert (point.concurrency, point.throughput, point.se) == (4.0, 380.0, 2.5)


@pytest.mark.parametrize("row", [(1,), (1, 2, 3, 4), (0, 10), (1, float("nan")), (1, float("inf"))])
def test_what_is_no_point_is_refused(row: tuple[float, ...]) -> None:
    with pytest.raises(knee.HarnessError, match="is no point"):
        knee.fit([row])


def test_a_prediction_is_that_of_the_command_line() -> None:
    found = knee.predict("llama-3.1-8b", "h100-sxm", input_tokens=1000, output_tokens=200, dtype="fp8", tp=2)
    options = ["--input-tokens", "1000", "--output-tokens", "200", "--dtype", "fp8", "--tp", "2"]
    command = ["predict", "--model-config", "llama-3.1-8b", "--gpu", "h100-sxm", *options, "--json"]
    assert printed(*command) == plain(found)


def test_an_unknown_card_is_one_line_with_the_nearest_name() -> None:
    with pytest.raises(knee.HarnessError, match="did you mean 'h100-sxm'"):
        knee.predict("llama-3.1-8b", "h100-sxn")


@pytest.mark.slow
def test_two_files_are_compared_as_on_the_command_line() -> None:
    stacks = [f"a={DATA / 'foreign' / 'sglang.jsonl'}", f"b={DATA / 'foreign' / 'table.csv'}"]
    found = knee.compare(*stacks, force=True)
    assert [stack.label for stack in found.stacks] == ["a", "b"]
    shown = CliRunner().invoke(cli, ["compare", *stacks, "--force", "--json", "--quiet"])
    assert json.loads(shown.stdout) == plain(found)


def test_levels_at_fixed_rates_are_named_as_left_out() -> None:
    """A sweep of GuideLLM's: one stream, everything at once, and rates between the two."""
    found = fitting.read(str(DATA / "foreign" / "guidellm.json"))
    assert [point.concurrency for point in found.points] == [8.0]
    assert found.about.endswith("; 1 level at fixed rates left out")
