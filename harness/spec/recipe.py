"""How a server is started for a measurement: a recipe, and the settings of one stack.

A recipe is a TOML file with the words of a command. `{model}`, `{port}`, `{served}` and the settings are in braces;
no shell reads them. A campaign is a scenario file with `[[stack]]` tables. Reading the shipped ones, and starting
anything, is for `harness.run.stacks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from harness.base import decoding, units
from harness.base.errors import HarnessError
from harness.spec.bounds import above_0, bound, typed

Natural = Annotated[int, bound("it must be 1 or more", "give 1 or more", ge=1)]
Seconds = Annotated[float, above_0("write it like '10m'", units.seconds)]
Words = Annotated[list[str], bound("it has no words", "write it like ['vllm', 'serve', '{model}']", min_length=1)]


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """Servers that have one phase of every request, behind the endpoint: a command that each of them is started by.

    In braces it has its `{port}`, `{url}`, a second port `{side}` and the numbers of its GPUs, `{devices}`.
    """

    command: Words
    env: dict[str, str] = {}  # in addition to the environment that knee has
    named: list[str] = []  # words that the endpoint's command gets for each of its servers
    health: str = "/health"  # answers 200 once a server is ready


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """How one server is started, and how it says that it is ready."""

    title: str
    command: Words
    env: dict[str, str] = {}  # in addition to the environment that knee has
    flags: dict[str, list[str]] = {}  # the words of a setting, by its name or by 'name=value'; of each pool's servers
    pools: dict[str, Pool] = {}  # servers behind the command, which is then a proxy's; {}: the command is the server's
    served: str = "model"  # the name that requests carry; "": the first that the server lists
    model_file: str = ""  # a pattern of the one file of the model's folder that is loaded; "": the folder itself
    health: str = "/health"  # answers 200 once the server is ready
    version: list[str] = []  # a command that prints it, for a server that does not publish it
    ready_within: Seconds = 1200.0  # from the start; a first one may load the weights
    stop_within: Seconds = 30.0  # from the signal that asks it to end to the one that ends it


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What is set alike, or on purpose not alike, on every stack; None is the server's own default."""

    tp: Natural | None = None  # GPUs that share each layer: tensor parallelism
    gpus: Natural | None = None  # GPUs of the whole server
    dtype: str | None = None  # type of the weights and activations
    kv_dtype: str | None = None  # type of the KV cache
    max_num_seqs: Natural | None = None  # requests that run at once, at most
    max_model_len: Natural | None = None  # tokens of a prompt and its answer, at most
    prefix_caching: Literal["on", "off"] | None = None  # whether the server keeps what prompts begin with


class StackSpec(Settings, frozen=True, kw_only=True):
    """One `[[stack]]`: a recipe, by the name of a shipped one or by its path, and what is its own."""

    recipe: str  # the name of one that comes with Knee, or the path of one's own
    name: str = ""  # name of its result folders; "": the recipe's
    model: str = ""  # a folder or file of its own; "": the one of the whole campaign
    args: list[str] = []  # further words of the command
    pools: dict[str, Natural] = {}  # how many servers a pool of the recipe has; else one
    start: Literal["staggered", "burst", "batch"] | None = None  # how slots begin; None: as the scenario has it


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """One stack with its recipe, as it is kept in the manifest."""

    spec: StackSpec
    recipe: Recipe
    own: bool = False  # its recipe or its words do not come with knee


def load(path: Path) -> Recipe:
    """Return the recipe in a TOML file."""
    place = str(path)
    with decoding.reading(place, "TOML", "give the path of a recipe, or a name of `knee stacks list`"):
        tree = decoding.toml(decoding.content(path))
        decoding.check(tree)
    return typed(tree, Recipe, place)


def split(tree: Mapping[str, Any], place: str) -> tuple[dict[str, Any], list[StackSpec]]:
    """Return (tables of the scenario, stacks) of a campaign file, whose [[stack]] tables are split off and checked."""
    rest = {name: each for name, each in tree.items() if name != "stack"}
    with decoding.reading(place, "a campaign", "write what can be measured"):
        decoding.check(dict(tree))
    tables = tree.get("stack", [])
    if not isinstance(tables, list):
        raise HarnessError("one table is no list at $.stack", place=place, way_out="write it [[stack]]")
    return rest, [typed(table, StackSpec, f"{place}: [[stack]] {i}") for i, table in enumerate(tables, 1)]
