"""A command whose --help lists its options under headings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click


class Grouped(click.Command):
    """The options of each heading in the order in which they are named there, and --help at the end of the last.

    `headings` names options by their parameters, like max_rps.
    """

    def __init__(self, *args: Any, headings: Mapping[str, Sequence[str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.headings = headings

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one list of options for each heading."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        lines = {option.name: line for option in options if (line := option.get_help_record(ctx)) is not None}
        lists = [[lines.pop(name) for name in names] for names in self.headings.values()]
        lists[-1] += lines.values()
        for heading, rows in zip(self.headings, lists, strict=True):
            with formatter.section(heading):
                formatter.write_dl(rows)
