"""Recipes and campaigns are read strictly, and every shipped one makes a command."""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from harness.base.errors import HarnessError
from harness.base.terminal import clean
from harness.cli import cli
from harness.cli.stacks import campaign_of
from harness.run import stacked
from harness.run.stacks import command
from harness.spec import ready, recipe
from harness.spec.recipe import Settings, StackSpec
from harness.spec.scenario import Target
from tests.builders import recipes

OF_A_GPU = ("vllm", "sglang", "tgi", "tensorrt-llm", "triton", "llama-server", "transformers")


def test_there_is_a_recipe_for_each_of_the_servers_that_people_run() -> None:
    assert {*OF_A_GPU, "deepspeed-mii", "sim", "vllm-pools", "sglang-pools"} == set(command.names())


@pytest.mark.parametrize("name", OF_A_GPU)
def test_a_shipped_recipe_takes_its_model_and_its_port(name: str) -> None:
    (stack,) = command.stacks([StackSpec(recipe=name)])
    assert not stack.own
    (made,) = command.processes(stack, "/models/m", iter([8123]))
    assert any("8123" in word for word in made.words)
    assert any("/models/m" in word for word in made.words)


@pytest.mark.parametrize("name", OF_A_GPU)
def test_no_brace_is_left_in_a_command(name: str) -> None:
    found = command.shipped(name)
    names = [key for key in found.flags if "=" not in key]
    settings = {key: ("auto" if "dtype" in key else 4) for key in names}
    spec = StackSpec(recipe=name, name=name, **settings)  # type: ignore[arg-type]
    words = command.processes(recipe.Stack(spec=spec, recipe=found), "m", iter([1]))[-1].words
    assert [word for word in words if "{" in word] == []


def test_a_setting_without_a_flag_is_refused_with_the_way_out() -> None:
    stack = recipes.stack("sim")
    wanted = recipe.Stack(spec=StackSpec(recipe="sim", name="sim", tp=2), recipe=stack.recipe)
    with pytest.raises(HarnessError, match=r"no flag for tp = 2.*flags\.tp"):
        command.processes(wanted, "m", iter([1]))


def test_a_model_file_is_the_only_one_of_its_kind_in_the_folder(tmp_path: Path) -> None:
    gguf = recipes.recipe(model_file="*.gguf")
    with pytest.raises(HarnessError, match=r"0 files \*\.gguf"):
        command.loaded(gguf, str(tmp_path))
    (tmp_path / "a.gguf").touch()
    assert command.loaded(gguf, str(tmp_path)) == str(tmp_path / "a.gguf")
    assert command.loaded(gguf, "one.gguf") == "one.gguf"
    (tmp_path / "b.gguf").touch()
    with pytest.raises(HarnessError, match="2 files"):
        command.loaded(gguf, str(tmp_path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('title = "x"\n', "no 'command'"),
        ('title = "x"\ncommand = []\n', "it has no words"),
        ('title = "x"\ncommand = ["a"]\nhealht = "/"\n', "did you mean 'health'"),
        ('title = "x"\ncommand = ["a"]\nready_within = "soon"\n', "not a duration"),
        ("title = [", "not TOML"),
    ],
)
def test_a_recipe_that_is_none_is_refused_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(HarnessError, match=message):
        recipe.load(tmp_path / "mine.toml")


def test_stacks_have_names_of_their_own_that_can_name_folders(tmp_path: Path) -> None:
    own = tmp_path / "mine.toml"
    own.write_text(recipes.toml(["serve"]))
    found = command.stacks([StackSpec(recipe=str(own)), StackSpec(recipe="sim", name="two")])
    assert [(stack.spec.name, stack.own) for stack in found] == [("mine", True), ("two", False)]
    for specs, message in (
        ([], "no stack to run"),
        ([StackSpec(recipe="vlm")], "did you mean 'vllm'"),
        ([StackSpec(recipe="sim"), StackSpec(recipe="sim")], "two stacks are called sim"),
        ([StackSpec(recipe="sim", name="../up")], "cannot name a stack"),
    ):
        with pytest.raises(HarnessError, match=message):
            command.stacks(specs)


def test_secrets_of_a_command_are_not_stored_and_then_it_cannot_be_resumed() -> None:
    plain = recipes.stack("sim")
    spec = StackSpec(recipe="sim", name="sim", args=["--api-key", "s3cret"])
    stored = command.stored(recipe.Stack(spec=spec, recipe=plain.recipe))
    assert "s3cret" not in str(stored)
    command.must_be_whole(command.stored(plain), "folder")
    with pytest.raises(HarnessError, match="had a secret in it"):
        command.must_be_whole(stored, "folder")


def test_no_word_of_a_command_is_left_out_where_it_is_agreed_to() -> None:
    made = command.Command(words=["sh", "-c", "x" * 1000 + "evil" + "y" * 1000])
    lines = command.to_agree("a", made, [])
    assert "".join(line.removeprefix("a: ") for line in lines) == shlex.join(made.words)
    assert all(clean(line) == line for line in lines)


def test_a_campaign_s_tables_are_split_from_its_scenario() -> None:
    rest, specs = recipe.split({"name": "c", "stack": [{"recipe": "sim", "tp": 2}]}, "here")
    assert rest == {"name": "c"}
    assert specs == [StackSpec(recipe="sim", tp=2)]
    with pytest.raises(HarnessError, match=r"write it \[\[stack\]\]"):
        recipe.split({"stack": {}}, "here")


@pytest.mark.parametrize("name", [each.name for each in ready.campaigns()])
def test_a_ready_campaign_has_commands(name: str) -> None:
    scenario, specs = campaign_of(name)
    stacks = command.stacks(specs)
    served = msgspec.structs.replace(scenario, target=Target(model="/models/m"))
    made = stacked.plan(served, stacks)
    assert len(made.cells) == scenario.ramp.repeat * len(stacks) >= 6


def test_settings_are_names_of_flags() -> None:
    known = {field for field in Settings.__struct_fields__ if field != "gpus"}
    for name in command.names():
        assert {key.partition("=")[0] for key in command.shipped(name).flags} <= known


ENGINES = Path(__file__).parents[1] / "data" / "engines"


@pytest.mark.parametrize("name", sorted(path.stem for path in ENGINES.glob("*.txt")))
def test_a_recipe_uses_options_that_its_engine_has_today(name: str) -> None:
    known = set((ENGINES / f"{name}.txt").read_text().split("\n"))
    found = command.shipped(name)
    words = [*found.command, *(word for words in found.flags.values() for word in words)]
    used = {word for word in words if word.startswith("--")}
    assert used
    assert used <= known


def test_two_stacks_of_one_recipe_are_told_apart_by_names_and_settings() -> None:
    done = CliRunner().invoke(
        cli,
        ["stacks", "run", "chat", "--stack", "a=vllm", "--stack", "b=vllm", "--set", "b.max-num-seqs=16", "--set",
         "b.enable-chunked-prefill=off", "--model", "/models/m", "--print"],
    )  # fmt: skip
    first, second = done.output.splitlines()
    assert "--max-num-seqs" not in first
    assert second.endswith("--max-num-seqs 16 --no-enable-prefix-caching --no-enable-chunked-prefill")


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("fats.tp=2", "no stack is called fats; did you mean 'fast'?"),
        ("c.tp=2", "no stack is called c; known: fast"),
        ("fast.tp", "sets nothing"),
        ("fast.tp=two", "tp=two"),
    ],
)
def test_a_setting_of_no_stack_or_of_no_value_is_one_line(text: str, fact: str) -> None:
    done = CliRunner().invoke(cli, ["stacks", "run", "chat", "--stack", "fast=vllm", "--set", text, "--model", "/m"])
    assert done.exit_code == 1
    assert fact in done.output
