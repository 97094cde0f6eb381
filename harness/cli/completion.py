"""`knee completion`: a script that completes commands, options and ready scenarios in a shell."""

from __future__ import annotations

import click

_EXAMPLES = """\b
Examples:
  source <(knee completion bash)
  knee completion zsh > ~/.zfunc/_knee
  knee completion fish > ~/.config/fish/completions/knee.fish"""


@click.command(epilog=_EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion of commands for a shell."""
    from click.shell_completion import get_completion_class

    from harness.cli import cli

    kind = get_completion_class(shell)
    assert kind is not None  # click has all three
    script = kind(cli, {}, "knee", "_KNEE_COMPLETE")
    print(script.source_template % script.source_vars())  # not `source()`, which runs bash to ask for its version
