"""Commands whose --help has examples first and options under headings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from harness.cli import familiar

if TYPE_CHECKING:
    from harness.spec.options import Option as OfRun

F = TypeVar("F", bound=Callable[..., Any])


class Option(click.Option):
    """An option under a heading of --help; `of_run` is what `knee run` knows of one of its own."""

    def __init__(self, *args: Any, heading: str, of_run: OfRun | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heading = heading
        self.of_run = of_run


class Choice(click.Choice[str]):
    """Names that Knee has; of `plugins` one of an installed package is taken too, without loading it."""

    def __init__(self, choices: Sequence[str], plugins: str) -> None:
        super().__init__(choices)
        self.plugins = plugins

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from harness.base import plugins

        added = value not in self.choices and self.plugins and value in plugins.names(self.plugins)
        return value if added else super().convert(value, param, ctx)


class Spec(NamedTuple):
    """An option that has no heading yet."""

    names: tuple[str, ...]
    settings: dict[str, Any]


def option(*names: str, **settings: Any) -> Spec:
    """As `click.option`, for `under`."""
    return Spec(names, settings)


def of_run(of: OfRun) -> Spec:
    """One of the options of `knee run`."""
    flag = of.kind is bool and "/" not in of.names
    settings: dict[str, Any] = {"metavar": of.metavar, "help": of.help, "multiple": of.multiple, "of_run": of}
    if flag:
        settings["is_flag"] = True
    elif of.choices:
        settings["type"] = Choice(of.choices, of.plugins)
    elif of.kind is not bool:
        settings["type"] = of.kind if of.least is None else click.FloatRange(of.least)
    if of.kind is bool and of.sets and not of.read:
        settings["default"] = None  # the scenario's
    return Spec((of.names, of.name) if of.name else (of.names,), settings)


def under(heading: str, *specs: Spec) -> Callable[[F], F]:
    """Give a command the options, in this order, under a heading."""

    def decorate(command: F) -> F:
        for names, settings in reversed(specs):
            command = click.option(*names, cls=Option, heading=heading, **settings)(command)
        return command

    return decorate


class Grouped(click.Command):
    """Lists its options under their headings in the order of their definition; --help ends the last list.

    Options of other load generators are taken for ours where they mean the same (`familiar`).
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The values of all parameters into the context, as click has it."""
        known = {name for param in self.params for name in param.opts}
        typed = list(args)
        while True:
            try:
                return super().parse_args(ctx, list(typed))
            except click.NoSuchOption as error:
                found = familiar.ours(typed, error.option_name, known)
                if found is None:
                    raise
                typed = found

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples stand before the options, of which there are many."""
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        self.format_epilog(ctx, formatter)
        self.format_options(ctx, formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one list of options for each heading."""
        rows: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            heading = param.heading if isinstance(param, Option) else next(reversed(rows), "Options")
            if isinstance(param, click.Option) and (line := param.get_help_record(ctx)) is not None:
                rows.setdefault(heading, []).append(line)
        for heading, lines in rows.items():
            with formatter.section(heading):
                formatter.write_dl(lines)
