"""Commands whose --help has examples first and options under headings, and options that set a field of the scenario."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import click

from harness.cli import familiar

F = TypeVar("F", bound=Callable[..., Any])


class Option(click.Option):
    """An option under a heading of --help.

    `section`: it sets the field of its own name in that section of the scenario. `with_resume`: it is allowed together
    with --resume, which takes everything else from the folder.
    """

    def __init__(
        self, *args: Any, heading: str, section: str | None = None, with_resume: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.heading = heading
        self.section = section
        self.with_resume = with_resume


class Spec(NamedTuple):
    """An option that has no heading yet."""

    names: tuple[str, ...]
    settings: dict[str, Any]


def option(*names: str, **settings: Any) -> Spec:
    """As `click.option`, for `under`."""
    return Spec(names, settings)


def field(section: str, *names: str, **settings: Any) -> Spec:
    """An option that sets the field of its own name in a section of the scenario."""
    return Spec(names, {**settings, "section": section})


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
