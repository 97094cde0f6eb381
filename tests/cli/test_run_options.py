"""The options of `knee run` and the scenario's fields that they set."""

from __future__ import annotations

import typing
from typing import Any

import click
import msgspec
import pytest

from harness.cli.grouped import Option
from harness.cli.run import run
from harness.dialects import DIALECTS
from harness.spec import scenario
from harness.spec.work import APIS

FIELDS = [option for option in run.params if isinstance(option, Option) and option.section is not None]
KINDS: dict[str, tuple[type, ...]] = {"integer": (int,), "float": (float,), "boolean": (bool,)}


def field_type(option: Option) -> Any:
    sections = typing.get_type_hints(scenario.Scenario)
    return typing.get_type_hints(sections[option.section or ""])[option.name or ""]


@pytest.mark.parametrize("option", FIELDS, ids=lambda option: str(option.name))
def test_an_option_that_sets_a_field_is_of_that_field_s_kind(option: Option) -> None:
    kind = field_type(option)
    allowed = {part for part in (typing.get_args(kind) or (kind,)) if part is not type(None)}
    choices = {word for part in [kind, *typing.get_args(kind)] for word in typing.get_args(part) if type(word) is str}
    if option.type.name in KINDS:
        assert allowed & set(KINDS[option.type.name])
    elif isinstance(option.type, click.Choice):
        assert str in allowed or (choices and set(option.type.choices) >= choices)
    else:  # a text: of its own, or a count or a duration that the scenario reads
        assert allowed & {str, int, float}


def test_every_option_stands_under_a_heading_and_sets_a_field_once() -> None:
    assert all(isinstance(param, Option) and param.heading for param in run.params if isinstance(param, click.Option))
    assert len(FIELDS) > 30
    assert len({(option.section, option.name) for option in FIELDS}) == len(FIELDS)


def test_the_fields_without_an_option_of_their_own_kind_are_known() -> None:
    """What is written in a way of its own (`levels`), or in a file alone; a field that is added is decided on here."""
    sections = typing.get_type_hints(scenario.Scenario)
    known = {(option.section, option.name) for option in FIELDS}
    found = {
        (section, field.name)
        for section in ("target", "workload", "ramp", "hardware", "sim")
        for field in msgspec.structs.fields(sections[section])
    }
    assert {name for section, name in found - known} == {
        "url", "urls", "headers", "extra_body", "server_meta", "exporters", "omit", "levels", "rates", "search_rate",
        "slo_fail", "workers", "host_cpus", "price_per_mtok", "max_num_seqs", "prefix", "session", "node", "tools",
        "dataset", "prefix_caching", "block_size", "scheduling_policy", "reasoning_tokens", "replicas",
        "images", "image_size", "corrupt_share", "corrupt_above",
    }  # fmt: skip


def test_the_apis_of_the_option_the_scenario_and_the_table_are_the_same() -> None:
    option = next(each for each in FIELDS if each.name == "api")
    assert isinstance(option.type, click.Choice)
    assert tuple(option.type.choices) == APIS == tuple(DIALECTS)
