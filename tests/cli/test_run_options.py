"""The options of `knee run` and the scenario's fields that they set."""

from __future__ import annotations

import typing
from typing import Any

import click
import msgspec
import pytest

from harness.cli.grouped import Option as Grouped
from harness.cli.run import run
from harness.dialects import DIALECTS
from harness.spec import options, scenario
from harness.spec.choices import APIS
from harness.spec.options import Option

OPTIONS = [option for some in options.OPTIONS.values() for option in some]
FIELDS = [option for option in OPTIONS if option.sets and not option.read]


def table_type(table: str) -> Any:
    """The struct of a table, also of one that need not be there."""
    kind = typing.get_type_hints(scenario.Scenario)[table]
    return next((each for each in typing.get_args(kind) if each is not msgspec.UnsetType), kind)


def field_type(path: str) -> Any:
    table, _, name = path.partition(".")
    return typing.get_type_hints(table_type(table))[name]


@pytest.mark.parametrize("option", FIELDS, ids=lambda option: str(option.names))
def test_an_option_that_sets_a_field_is_of_that_field_s_kind(option: Option) -> None:
    kind = field_type(option.sets[0])
    allowed = {part for part in (typing.get_args(kind) or (kind,)) if part is not type(None)}
    choices = {word for part in [kind, *typing.get_args(kind)] for word in typing.get_args(part) if type(word) is str}
    if option.kind is not str:
        assert option.kind in allowed
    elif option.choices:
        assert str in allowed or (choices and set(option.choices) >= choices)
    else:  # a text: of its own, or a count or a duration that the scenario reads
        assert allowed & {str, int, float}


def test_every_option_stands_under_a_heading_and_sets_a_field_once() -> None:
    assert all(isinstance(param, Grouped) and param.heading for param in run.params if isinstance(param, click.Option))
    assert len(FIELDS) > 30
    assert len({option.sets for option in FIELDS}) == len(FIELDS)


def test_every_path_that_an_option_sets_is_a_field() -> None:
    for path in (path for option in OPTIONS for path in option.sets):
        table, _, name = path.partition(".")
        assert not name or name in table_type(table).__struct_fields__, path


def test_the_fields_without_an_option_are_known() -> None:
    """What is written in a file alone, or follows from another; a field that is added is decided on here."""
    known = {path for option in OPTIONS for path in option.sets}
    found = {
        f"{section}.{field.name}"
        for section in ("target", "workload", "ramp", "hardware", "sim", "hooks")
        for field in msgspec.structs.fields(table_type(section))
    }
    assert found - known == {
        "workload.session", "workload.node", "workload.tools", "workload.images",
        "workload.image_size", "sim.max_num_seqs", "sim.prefix_caching", "sim.block_size", "sim.scheduling_policy",
        "sim.kv_tokens", "sim.reasoning_tokens", "sim.replicas",
    }  # fmt: skip


def test_the_apis_of_the_options_and_the_dialects_are_the_same() -> None:
    option = next(each for each in run.params if each.name == "api")
    assert isinstance(option.type, click.Choice)
    assert tuple(option.type.choices) == APIS == tuple(DIALECTS)
