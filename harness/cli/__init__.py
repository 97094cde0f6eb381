"""The `knee` command: parses arguments, calls the rooms, and prints errors; it decides nothing.

Data goes to stdout, messages to stderr. A verb's module is imported when the verb is called, and the rooms inside the
verbs, so that `knee --help` starts at once.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from harness.base import ExitStatus, __version__
from harness.base.terminal import guard

# Each verb's module, which has a command of the verb's name (`list_` for `list`, which Python has), and the first
# sentence of that command's help.
VERBS = {
    "calibrate": ("calibrate", "Measure the load generator, or fit the prediction to a server."),
    "check": ("decide", "Check results against thresholds: met, missed or unresolved."),
    "compare": ("decide", "Compare stacks, and rank them where the data show a difference."),
    "completion": ("completion", "Print the completion of commands for a shell."),
    "export": ("report", "Write a result in another tool's format."),
    "fit": ("report", "Fit the curve to measured points."),
    "list": ("report", "List result folders, a line each."),
    "plan": ("decide", "Plan how many replicas a demand needs, and what they cost."),
    "predict": ("predict", "Predict the whole curve from a model's config and a GPU's name."),
    "report": ("report", "Make summary and report again from a result folder."),
    "run": ("run", "Measure an endpoint and write a result folder."),
    "sim": ("sim", "Serve the simulated endpoint."),
    "stacks": ("stacks", "Start servers by their recipes and measure each."),
    "tune": ("stacks", "Find the best setting of a server."),
}


class _Verbs(click.Group):
    """Prints an operator's mistake or wrong usage as one line; other exceptions are bugs and keep their tracebacks."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; `knee help VERB` is `knee VERB --help`."""
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def make_context(self, *arguments: Any, **more: Any) -> click.Context:
        """Return click's context; exit as `_misused` says on a wrong command line, and with 130 on Ctrl-C."""
        try:
            return super().make_context(*arguments, **more)
        except click.UsageError as error:
            sys.exit(_misused(error))
        except KeyboardInterrupt:  # click would exit with status 1
            sys.exit(ExitStatus.INTERRUPTED)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb's own command in place of the group's, which has only its name and its help."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else verb(name), rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs with their whole first sentences."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help or "") for name, command in self.commands.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; an operator's mistake is printed as one line, and the exit status is 1, or 130 on Ctrl-C."""
        from harness.base.errors import HarnessError

        try:
            return super().invoke(ctx)
        except HarnessError as error:
            print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
            ctx.exit(ExitStatus.MISTAKE)
        except click.UsageError as error:
            ctx.exit(_misused(error))
        except KeyboardInterrupt:  # before any load: once levels run, the run itself takes Ctrl-C
            print("interrupted", file=sys.stderr)
            ctx.exit(ExitStatus.INTERRUPTED)


def _misused(error: click.UsageError) -> int:
    """Print a usage error as one line (or the help, for a command without arguments); return the exit status."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
    else:
        from harness.cli.grouped import one_line

        print(f"error: {' '.join(one_line(error).split())}", file=sys.stderr)
    return ExitStatus.USAGE


def verb(name: str) -> click.Command:
    """Import a verb's module and return its command."""
    module = importlib.import_module(f"harness.cli.{VERBS[name][0]}")
    found: click.Command = getattr(module, f"{name}_", None) or getattr(module, name)
    return found


def _version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Print the version, and which receive path runs here."""
    if wanted and not context.resilient_parsing:
        from harness.load.receive import path

        click.echo(f"knee, version {__version__}, {path()} receive path")
        context.exit()


@click.group(
    "knee",
    cls=_Verbs,
    commands={name: click.Command(name, help=line) for name, (_, line) in VERBS.items()},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version and exit."
)
def cli() -> None:
    """Load testing for LLM servers that ends in an answer: the knee, with an interval."""


def main() -> None:
    """Run the `knee` command; a bug ends with its traceback and exit status 70."""
    _open_closed()
    guard()
    try:
        cli()
    except Exception:  # noqa: BLE001  # the one place: a traceback and the status that says bug
        import traceback

        from harness.base.secrecy import redact
        from harness.cli import output

        print(redact(traceback.format_exc(), output.secrets), end="", file=sys.stderr)
        sys.exit(ExitStatus.BUG)


def _open_closed() -> None:
    """Open stdin, stdout and stderr if they are closed, so that no other file gets their numbers."""
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
