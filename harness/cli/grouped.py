"""Commands whose --help has examples first and options under headings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from harness.cli import familiar
from harness.cli.familiar import VERBS, Ours

if TYPE_CHECKING:
    from harness.spec.options import Option as OfRun


F = TypeVar("F", bound=Callable[..., Any])
Spec = Callable[..., Callable[[Any], Any]]  # makes the option, once it has its heading
_TOO_MANY = "Got unexpected extra argument"  # click's error of an unexpected argument begins so
TAKEN = "harness.cli.taken"  # in a context's meta: the command line in Knee's words, if it was another tool's


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


def flag_of(name: str) -> str:
    """Return the option that sets the parameter of that name, like --input-tokens."""
    return f"--{name.replace('_', '-')}"


def option(*names: str, **settings: Any) -> Spec:
    """Return an option for `under`, from the arguments of `click.option`."""
    return partial(click.option, *names, cls=Option, **settings)


def of_run(spec: OfRun) -> Spec:
    """Return a click option's names and settings for an option of `knee run`, from its declaration."""
    flag = spec.kind is bool and "/" not in spec.names
    settings: dict[str, Any] = {"metavar": spec.metavar, "help": spec.help, "multiple": spec.multiple, "of_run": spec}
    if flag:
        settings["is_flag"] = True
    elif spec.bare:
        settings |= {"is_flag": False, "flag_value": spec.bare}
    elif spec.choices:
        settings["type"] = Choice(spec.choices, spec.plugins)
    elif spec.kind is not bool:
        settings["type"] = spec.kind if spec.least is None else click.FloatRange(spec.least)
    if spec.kind is bool and spec.sets and not spec.read:
        settings["default"] = None  # the scenario's
    return option(spec.names, *spec.also, *([spec.name] if spec.name else []), **settings)


def under(heading: str, *specs: Spec) -> Callable[[F], F]:
    """Return a decorator that gives a command these options, in this order, under a heading of its help."""

    def decorate(command: F) -> F:
        for spec in reversed(specs):
            command = spec(heading=heading)(command)
        return command

    return decorate


class Grouped(click.Command):
    """Lists its options under their headings in the order of their definition; --help ends the last list.

    Lines of other load generators are read as they mean them there (`familiar`).
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line, other load generators' options translated first; return the arguments left over.

        Notes on the translation go to stderr unless --quiet is given. UsageError names all that cannot be translated.
        """
        if ctx.resilient_parsing or not args or {"-h", "--help"} & {*args}:
            return super().parse_args(ctx, args)
        args = self._with_values(args)
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        known = {name for param in options for name in (*param.opts, *param.secondary_opts)}
        flags = {name for param in options if param.is_flag for name in (*param.opts, *param.secondary_opts)}
        alone = {param.name or "" for param in self.get_params(ctx) if isinstance(param, click.Argument)}
        taken = familiar.read(args, Ours(known, flags, alone, measures={"--levels", "--url"} <= known))
        if taken.wrong:
            raise click.UsageError(" · ".join(taken.wrong), ctx)
        if taken.arguments != args:
            ctx.meta[TAKEN] = taken.arguments
        rest = super().parse_args(ctx, list(taken.arguments))
        for note in taken.notes if "--quiet" not in taken.arguments else ():
            click.echo(f"note: {note}", err=True)
        return rest

    def _with_values(self, args: list[str]) -> list[str]:
        """Return the arguments with its default value added to each option that stands without a number after it."""
        ours = [(param.opts[0], param.of_run) for param in self.params if isinstance(param, Option)]
        bare = {name: option.bare for name, option in ours if option is not None and option.bare}
        return [
            f"{each}={bare[each]}" if each in bare and not following.isdigit() else each
            for each, following in zip(args, [*args[1:], ""], strict=True)
        ]

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples before the options, which are many."""
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


def one_line(error: click.UsageError) -> str:
    """Return what follows `error:`."""
    if type(error) is click.UsageError and not error.message.startswith(_TOO_MANY):
        return error.format_message()  # a verb's own, with its way out
    place, fact, way_out = _parts(error)
    way_out = way_out or f"see `{error.ctx.command_path if error.ctx else 'knee'} --help`"
    return f"{place}: {fact}; {way_out}" if place else f"{fact}; {way_out}"


def _parts(error: click.UsageError) -> tuple[str, str, str]:
    """Return (place, fact, way out or "") of an error that click itself raised."""
    match error:
        case click.NoSuchOption():
            return error.option_name, "no such option", ""
        case click.exceptions.NoSuchCommand():
            return error.command_name, "no such command", _nearest_verb(error)
        case click.BadOptionUsage():
            if "requires" in error.message:
                return error.option_name, "it needs a value", f"write {error.option_name} VALUE"
            return error.option_name, "it takes no value", f"write {error.option_name} alone"
        case click.MissingParameter(param=click.Option(type=click.Choice(choices=choices), opts=[name, *_])):
            return "", f"no {name}", f"give one of: {', '.join(map(str, choices))}"
        case click.MissingParameter() if error.param is not None:
            return "", f"no {error.param.human_readable_name.rstrip('.…')}", ""
        case click.BadParameter() if error.param is not None:
            name = error.param.opts[0] if isinstance(error.param, click.Option) else ""
            fact = error.message.rstrip(".").replace("valid integer", "whole number").replace("valid float", "number")
            return name or error.param.human_readable_name, fact, ""
        case click.UsageError(ctx=click.Context() as ctx) if error.message.startswith(_TOO_MANY):
            usage = " ".join([ctx.command_path, *ctx.command.collect_usage_pieces(ctx)])
            return error.message.partition("(")[2].removesuffix(")"), "too many arguments", f"write `{usage}`"
    message = error.format_message().rstrip(".")
    return "", message[:1].lower() + message[1:], ""


def _nearest_verb(error: click.exceptions.NoSuchCommand) -> str:
    """Return a question with the command that was probably meant; "" if none is near."""
    name = error.command_name
    if "://" in name or name.startswith("sim:"):
        return f"did you mean `knee run {name}`?"
    if name in {word for tool in familiar.tools() for words in tool.words for word in words.split()[:1]} - {*VERBS}:
        return f"did you mean `knee run {name} …`?"
    if error.ctx and f"--{name}" in {opt for param in error.ctx.command.params for opt in param.opts}:
        return f"did you mean `{error.ctx.command_path} --{name}`?"
    near = VERBS.get(name) or next(iter(error.possibilities or ()), "")
    return f"did you mean `{error.ctx.command_path if error.ctx else 'knee'} {near}`?" if near else ""
