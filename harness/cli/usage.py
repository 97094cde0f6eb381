"""Wrong usage of the command line in one line: fact, place and way out, without click's summary of the usage."""

from __future__ import annotations

import difflib

import click

from harness.cli.familiar import ALIASES, VERBS, WAY_OUT


def one_line(error: click.UsageError) -> str:
    """What stands behind `error:`."""
    if type(error) is click.UsageError and not error.message.startswith("Got unexpected"):
        return error.format_message()  # a verb's own, with its way out
    place, fact, way_out = _parts(error)
    way_out = way_out or f"see `{error.ctx.command_path if error.ctx else 'knee'} --help`"
    return f"{place}: {fact}; {way_out}" if place else f"{fact}; {way_out}"


def _parts(error: click.UsageError) -> tuple[str, str, str]:
    """Place, fact, and way out or "" of one of click's own."""
    match error:
        case click.NoSuchOption():
            return error.option_name, "no such option", WAY_OUT.get(error.option_name) or _nearest_option(error)
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
    message = error.format_message().rstrip(".")
    return "", message[:1].lower() + message[1:], ""


def _nearest_option(error: click.NoSuchOption) -> str:
    known = [name for param in (error.ctx.command.params if error.ctx else ()) for name in param.opts]
    known += [alias for name in known for alias in ALIASES.get(name, ())]
    near = difflib.get_close_matches(error.option_name, known, n=1)
    return f"did you mean {near[0]}?" if near else ""


def _nearest_verb(error: click.exceptions.NoSuchCommand) -> str:
    name = error.command_name
    if "://" in name or name.startswith("sim:"):
        return f"did you mean `knee run {name}`?"
    near = VERBS.get(name) or next(iter(error.possibilities or ()), "")
    return f"did you mean `{error.ctx.command_path if error.ctx else 'knee'} {near}`?" if near else ""
