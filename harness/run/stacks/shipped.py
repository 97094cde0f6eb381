"""The recipes and compose files that come with knee, and a campaign's stacks with the recipes that they name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from harness.base.errors import HarnessError, nearest
from harness.results import levelmap
from harness.spec import recipe as recipes
from harness.spec.recipe import Recipe, Stack, StackSpec

RECIPES = Path(__file__).with_name("recipes")
_PLACES = Path(__file__).with_name("compose"), Path(__file__).parents[3] / "docker" / "stacks"  # of a wheel, of a clone
COMPOSE = next((place for place in _PLACES if place.is_dir()), _PLACES[0])


def names() -> list[str]:
    """Return the names of the shipped recipes."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def shipped(name: str) -> Recipe:
    """Return the shipped recipe of that name."""
    return recipes.load(RECIPES / f"{name}.toml")


def compose_file(recipe: Recipe) -> Path:
    """Return the recipe's compose file: a shipped one by its name, or one's own by its path."""
    if not recipe.compose:
        raise HarnessError("its recipe has no compose file", place=recipe.title, way_out="leave --compose out")
    own = os.sep in recipe.compose or recipe.compose.endswith((".yaml", ".yml"))
    return Path(recipe.compose) if own else COMPOSE / f"{recipe.compose}.yaml"


def stacks(specs: Sequence[StackSpec], *, foreign: bool = False) -> list[Stack]:
    """Each stack with its recipe, and with a name that no other stack has; `foreign`: somebody's file has them."""
    if not specs:
        way_out = "give --stack NAME for each; `knee stacks list` shows them"
        raise HarnessError("no stack to run", place="--stack", way_out=way_out)
    found: list[Stack] = []
    for spec in specs:
        own = os.sep in spec.recipe or spec.recipe.endswith(".toml")
        if not own and spec.recipe not in names():
            raise HarnessError("no shipped recipe", place=spec.recipe, way_out=nearest(spec.recipe, names()))
        name = spec.name or (Path(spec.recipe).stem if own else spec.recipe)
        levelmap.must_name_a_folder(name, "stack", spec.recipe)
        if name in [each.spec.name for each in found]:
            raise HarnessError(
                f"two stacks are called {name}", place=spec.recipe, way_out="give each a name of its own"
            )
        recipe = recipes.load(Path(spec.recipe)) if own else shipped(spec.recipe)
        found.append(Stack(spec=msgspec.structs.replace(spec, name=name), recipe=recipe, own=own or foreign))
    return found
