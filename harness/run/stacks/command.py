"""The recipes that come with knee, and the words that start one stack, from its recipe and its settings."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from harness.base import secrecy
from harness.base.errors import HarnessError, nearest
from harness.base.secrecy import HIDDEN
from harness.results import levelmap
from harness.spec import recipe as recipes
from harness.spec.recipe import Pool, Recipe, Settings, Stack, StackSpec

_LINE = 300  # characters of a command on one line
_SWITCHES = {"on": "--{}", "off": "--no-{}"}  # a server's switches, by value
_CONTEXT, _SEQS = 4096, 8  # tokens and seats, for a server that has to be given their product


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a stack; no shell reads any of it."""

    words: list[str]
    port: int = 0
    health: str = ""  # a page that answers 200 once a server of a pool is ready
    pool: str = ""  # its pool's name, like "prefill", numbered if there are several; "": it is the endpoint
    env: dict[str, str] = {}  # besides the environment that knee has


def processes(stack: Stack, model: str, ports: Iterator[int]) -> list[Command]:
    """Return the commands that start a stack: its pools' servers, then the endpoint.

    Raise HarnessError if the recipe cannot load the model or has no such setting.

    >>> from harness.spec.recipe import StackSpec
    >>> plain = Recipe(title="", command=["serve", "{model}", "-p", "{port}"], flags={"tp": ["--tp", "{value}"]})
    >>> processes(Stack(spec=StackSpec(recipe="", tp=2, args=["-v"]), recipe=plain), "m", iter([80]))[0].words
    ['serve', 'm', '-p', '80', '--tp', '2', '-v']
    """
    recipe, gpus = stack.recipe, stack.spec.tp or 1
    model = loaded(recipe, model)
    values = {"model": model, "served": served(recipe, model), "python": sys.executable}
    values["recipes"] = str(RECIPES)  # folder of the files that a recipe brings along
    made: list[Command] = []
    named: list[str] = []
    for name, pool, number in servers(stack):
        port, first = next(ports), gpus * len(made)
        devices = ",".join(map(str, range(first, first + gpus)))
        own = values | {"port": str(port), "side": str(next(ports)), "url": f"http://127.0.0.1:{port}"}
        own["devices"] = devices
        words, env = [_filled(word, own) for word in pool.command], pool.env
        filled = {key: _filled(value, own) for key, value in env.items()}
        called = name if stack.spec.pools.get(name, 1) == 1 else f"{name} {number}"
        made.append(Command(words=[*words, *flags(stack)], env=filled, port=port, health=pool.health, pool=called))
        named += [_filled(word, own) for word in pool.named]
    values["port"] = str(port := next(ports))
    words = [_filled(word, values) for word in recipe.command]
    env = {name: _filled(value, values) for name, value in recipe.env.items()}
    return [*made, Command(words=[*words, *(named if made else flags(stack))], env=env, port=port)]


def loaded(recipe: Recipe, model: str) -> str:
    """Return what the server loads: `model`, or the only file of the recipe's pattern if `model` is a folder.

    Raise HarnessError if the folder has no such file, or several.
    """
    folder = Path(model)
    if not recipe.model_file or not folder.is_dir():
        return model
    files = sorted(folder.glob(recipe.model_file))
    if len(files) != 1:
        fact = f"{len(files)} files {recipe.model_file} in it, where {recipe.title} loads one"
        raise HarnessError(fact, place=str(folder), way_out="name the file by `model` of its [[stack]]")
    return str(files[0])


def servers(stack: Stack) -> Iterator[tuple[str, Pool, int]]:
    """Yield every server of the pools: the pool's name, the pool and the server's number in it, from 1.

    Raise HarnessError if the stack names a pool that its recipe lacks.
    """
    unknown = next((name for name in stack.spec.pools if name not in stack.recipe.pools), None)
    if unknown is not None:
        way_out = nearest(unknown, list(stack.recipe.pools)) if stack.recipe.pools else "leave `pools` out"
        raise HarnessError(f"its recipe has no pool {unknown}", place=stack.spec.name, way_out=way_out)
    for name, pool in stack.recipe.pools.items():
        for number in range(1, stack.spec.pools.get(name, 1) + 1):
            yield name, pool, number


def flags(stack: Stack) -> list[str]:
    """Return the command-line words of the stack's settings, by its recipe's flags, and then its own arguments."""
    recipe, spec = stack.recipe, stack.spec
    seqs, context = spec.max_num_seqs or _SEQS, spec.max_model_len or _CONTEXT
    words: list[str] = []
    for name, value in set_values(spec).items():
        values = {"value": value, "cache_tokens": str(seqs * context)}
        words += [_filled(word, values) for word in flag(recipe, name, value, spec.name)]
    return [*words, *spec.args]


def with_options(stack: Stack, options: Mapping[str, str], place: str) -> Stack:
    """Return the stack with these options: settings of ours by their names, else the server's own.

    An option by which the recipe says one of our settings is that setting. `auto` is the server's default of a setting;
    `on` and `off` become --OPTION and --no-OPTION. HarnessError names `place` where a setting has no such value.
    """
    ours: dict[str, Any] = {}
    words: list[str] = []
    known = {field.name: field.name for field in msgspec.structs.fields(Settings)}
    known |= {each[0].lstrip("-"): key for key, each in stack.recipe.flags.items() if each and "{value}" in each}
    for option, value in options.items():
        name = known.get(option.replace("-", "_"), known.get(option))
        if name is not None:
            ours[name] = None if value == "auto" else value
        else:
            words += [_SWITCHES[value].format(option)] if value in _SWITCHES else [f"--{option}", value]
    try:
        typed = msgspec.convert(ours, Settings, strict=False)
    except msgspec.ValidationError:
        given = " ".join(f"{option}={value}" for option, value in options.items())
        way_out = "write whole numbers, and on or off for prefix_caching; --try takes several apart by commas"
        raise HarnessError(f"{given}: a setting has no such value", place=place, way_out=way_out) from None
    own = {name: getattr(typed, name) for name in ours}
    return msgspec.structs.replace(
        stack, spec=msgspec.structs.replace(stack.spec, **own, args=[*stack.spec.args, *words])
    )


def served(recipe: Recipe, model: str) -> str:
    """Return the name of the model in the requests."""
    return recipe.served.replace("{model}", model)


def set_values(settings: Settings) -> dict[str, str]:
    """Return {name: text} of the settings that are not None, without `gpus`, which is no setting of a server.

    >>> set_values(Settings(tp=2, prefix_caching="off"))
    {'tp': '2', 'prefix_caching': 'off'}
    """
    names = [field.name for field in msgspec.structs.fields(Settings) if field.name != "gpus"]
    values = {name: getattr(settings, name) for name in names}
    return {name: str(value) for name, value in values.items() if value is not None}


def flag(recipe: Recipe, name: str, value: str, stack: str) -> list[str]:
    """Return the recipe's command-line words for one setting: those for this value, else those for any value.

    >>> flag(Recipe(title="", command=["x"], flags={"dtype": ["a"], "dtype=fp8": ["b"]}), "dtype", "fp8", "x")
    ['b']
    """
    for key in (f"{name}={value}", name):
        if key in recipe.flags:
            return recipe.flags[key]
    fact = f"its recipe has no flag for {name} = {value}"
    raise HarnessError(fact, place=stack, way_out=f"write flags.{name} in a recipe of your own, or leave it out")


def shown(words: Sequence[str]) -> list[str]:
    """Return the command for people and the disk: the values of flags that name secrets are hidden.

    >>> shown(["serve", "--api-key", "s3cret", "--token=abc", "--tp", "2"])
    ['serve', '--api-key', '(not stored)', '--token=(not stored)', '--tp', '2']
    """
    out: list[str] = []
    hide = False
    for word in words:
        name, equals, _ = word.partition("=")
        is_flag = word.startswith("-")
        secret = is_flag and secrecy.secret_field(name.lstrip("-").replace("-", "_"))
        if hide and not is_flag:
            word = HIDDEN
        elif secret and equals:
            word = f"{name}={HIDDEN}"
        hide = secret and not equals
        out.append(word)
    return out


def secrets(command: Command) -> tuple[str, ...]:
    """Return the secret values in a command's words and environment variables, which a server's log may repeat.

    >>> secrets(Command(words=["serve", "--token=abc", "--api-key", "s3cret"], env={"HF_TOKEN": "hf", "X": "1"}))
    ('abc', 's3cret', 'hf')
    """
    pairs = zip(command.words, shown(command.words), strict=True)
    hidden = [word if seen == HIDDEN else word.partition("=")[2] for word, seen in pairs if seen != word]
    seen_env = secrecy.shown(command.env)
    return (*hidden, *(value for name, value in command.env.items() if seen_env[name] != value))


def text(command: Command, *, hidden: bool = False) -> str:
    """Return the command as a shell takes it; `hidden`: without the values of flags and variables that name secrets.

    >>> text(Command(words=["serve", "--token=abc"], env={"X": "1"}), hidden=True)
    "X=1 serve '--token=(not stored)'"
    """
    words, env = (shown(command.words), secrecy.shown(command.env)) if hidden else (command.words, command.env)
    return shlex.join([*(f"{name}={value}" for name, value in env.items()), *words])


def to_agree(name: str, command: Command, version: Sequence[str]) -> list[str]:
    """Return a stack's command and version command, cut into lines short enough to be shown whole, for consent.

    >>> to_agree("a", Command(words=["serve", "m"], env={"X": "1"}), ["serve", "--version"])
    ['a: X=1 serve m', 'a: serve --version']
    """
    whole = [text(command), *([shlex.join(version)] if version else [])]
    pieces = [line[start : start + _LINE] for line in whole for start in range(0, len(line), _LINE)]
    return [f"{name}: {piece}" for piece in pieces]


def stored(stack: Stack) -> Stack:
    """Return the stack as it may be written to a manifest, secrets in arguments, commands and environment hidden."""
    spec = msgspec.structs.replace(stack.spec, args=shown(stack.spec.args))
    recipe = stack.recipe
    pools: dict[str, Pool] = {
        name: msgspec.structs.replace(each, command=shown(each.command), env=secrecy.shown(each.env))
        for name, each in recipe.pools.items()
    }
    hidden = msgspec.structs.replace(recipe, command=shown(recipe.command), env=secrecy.shown(recipe.env), pools=pools)
    return msgspec.structs.replace(stack, spec=spec, recipe=hidden)


def must_be_whole(stack: Stack, place: str) -> None:
    """Raise HarnessError if a secret was hidden in a stored stack's command: it cannot be started again."""
    parts: list[Recipe | Pool] = [stack.recipe, *stack.recipe.pools.values()]
    words = [*stack.spec.args, *(word for part in parts for word in (*part.command, *part.env.values()))]
    if any(HIDDEN in word for word in words):
        fact = f"the command of {stack.spec.name} had a secret in it, which is not stored"
        raise HarnessError(fact, place=place, way_out="name secrets by variables, and start a new comparison")


def _filled(word: str, values: Mapping[str, str]) -> str:
    """Return the word with its braces filled; braces that name nothing stay as they are."""
    for name, value in values.items():
        word = word.replace("{" + name + "}", value)
    return word


# ---- The recipes that come with knee ---------------------------------------------------------------------------------


RECIPES = Path(__file__).with_name("recipes")


def names() -> list[str]:
    """Return the names of the shipped recipes."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def shipped(name: str) -> Recipe:
    return recipes.load(RECIPES / f"{name}.toml")


def stacks(specs: Sequence[StackSpec], *, foreign: bool = False) -> list[Stack]:
    """Return each stack with its recipe and a unique name; `foreign`: they come from a file of somebody else."""
    if not specs:
        way_out = "give --stack NAME for each; `knee stacks list` shows them"
        raise HarnessError("no stack to run", place="--stack", way_out=way_out)
    stacks: list[Stack] = []
    for spec in specs:
        own = os.sep in spec.recipe or spec.recipe.endswith(".toml")
        if not own and spec.recipe not in names():
            raise HarnessError("no shipped recipe", place=spec.recipe, way_out=nearest(spec.recipe, names()))
        name = spec.name or (Path(spec.recipe).stem if own else spec.recipe)
        levelmap.must_name_a_folder(name, "stack", spec.recipe)
        if name in [stack.spec.name for stack in stacks]:
            raise HarnessError(
                f"two stacks are called {name}", place=spec.recipe, way_out="give each a name of its own"
            )
        recipe = recipes.load(Path(spec.recipe)) if own else shipped(spec.recipe)
        stacks.append(Stack(spec=msgspec.structs.replace(spec, name=name), recipe=recipe, own=own or foreign))
    return stacks
