"""The ready scenarios: each is whole, has its question, and is found by its name."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from harness.base.errors import HarnessError
from harness.cli import cli
from harness.spec import reading, ready
from harness.spec.load import Rates

NAMES = [path.stem for path in sorted((Path(__file__).parents[2] / "scenarios").glob("*.toml"))]


def knee(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


@pytest.mark.parametrize("name", NAMES)
def test_a_ready_scenario_is_named_like_its_file_and_prints_back_to_the_same(name: str) -> None:
    read = reading.load(str(ready.path(name)))
    assert read.name == name
    printed = knee("run", name, "--print-scenario")
    assert printed.exit_code == 0, printed.output
    assert reading.build(tomllib.loads(printed.output), place="printed") == read


@pytest.mark.parametrize("name", NAMES)
def test_a_ready_scenario_begins_with_its_question_and_says_what_to_do_with_the_answer(name: str) -> None:
    _, question, *more = ready.path(name).read_text().partition("\nname = ")[0].splitlines()
    assert question.startswith("# ")
    assert question.endswith("?")
    assert more
    assert [line for line in more if not line.startswith("# ") or len(line) > 120] == []


def test_the_list_has_every_ready_scenario_with_its_question_in_a_line() -> None:
    got = knee("run", "--list")
    lines = got.output.splitlines()
    assert got.exit_code == 0
    assert [line.split()[0] for line in lines] == NAMES
    assert ["chat", "How many chats at once before answers feel slow?"] in [line.split(maxsplit=1) for line in lines]
    assert all(line.endswith("?") and len(line) <= 80 for line in lines)


def test_a_file_of_that_name_wins_over_the_ready_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "voice").mkdir()
    (tmp_path / "chat").write_text('name = "mine"')
    assert [ready.path(name) for name in ("chat", "voice")] == [Path("chat"), ready.FOLDER / "voice.toml"]
    assert tomllib.loads(knee("run", "chat", "--print-scenario").output)["name"] == "mine"


@pytest.mark.parametrize("path", ["mine.toml", "./chat", "/tmp/chat", "chat/"])
def test_what_looks_like_a_path_is_one(path: str) -> None:
    assert ready.path(path) == Path(path)


@pytest.mark.parametrize(
    ("name", "way_out"),
    [
        ("chta", "did you mean 'chat'?"),
        ("../chat\0", "embedded null"),
        ("x" * 5000, "`knee run --list` has the ready ones"),
        ("", "`knee run --list`"),
    ],
)
def test_an_unknown_name_is_one_line_with_the_nearest_right_one(name: str, way_out: str) -> None:
    with pytest.raises(HarnessError) as caught:
        reading.load(str(ready.path(name)))
    assert way_out in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_ready_scenario_s_requests_and_due_times_are_the_same_for_any_number_of_workers(name: str) -> None:
    digests = set()
    for workers in ("1", "2", "4"):
        printed = knee("run", name, "--print-requests", "1000", "--workers", workers)
        assert printed.exit_code == 0, printed.output
        assert printed.output.count("\n") == 1000
        digests.add(hashlib.sha256(printed.output.encode()).hexdigest())
    assert len(digests) == 1
    is_open = isinstance(reading.load(str(ready.path(name))).load, Rates)
    assert ('"due_s":null' not in printed.output) == is_open


def test_a_scenario_s_sizes_are_laid_over_it_and_the_first_is_the_default(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text(
        'name = "x"\n[workload]\nseed = 1\n'
        "[size.small.workload]\ninput_tokens = 10\n[size.large.workload]\ninput_tokens = 90\n"
    )
    found = [reading.load(str(file), size).workload for size in (None, "small", "large")]
    assert [(each.input_tokens, each.seed) for each in found] == [(10, 1), (10, 1), (90, 1)]
    with pytest.raises(HarnessError, match="did you mean 'large'"):
        reading.load(str(file), "larg")
    with pytest.raises(HarnessError, match="has one size"):
        reading.load(str(ready.path("chat")), "small")
