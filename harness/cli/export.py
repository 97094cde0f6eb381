"""`knee export`: a result in another tool's format."""

from __future__ import annotations

import sys

import click

from harness.cli import output
from harness.results import exporters


class Format(click.Choice[str]):
    """The exporters that Knee has; one of an installed package is taken by its name."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from harness.base import plugins

        added = value not in self.choices and value in plugins.names(plugins.EXPORTERS)
        return value if added else super().convert(value, param, ctx)


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False))
@click.option("--to", type=Format(exporters.names()), required=True, help="Format of the files.")
@click.option("--out", metavar="DIR|URL", help="Write files there, or send otel or mlflow; default: stdout.")
def export(folder: str, to: str, out: str | None) -> None:
    """Write a result in another tool's format.

    csv: the levels and the requests as tables. vllm: what `vllm bench serve --save-result` writes, a file a level.
    llm-d: llm-d's benchmark report as JSON, a file a level. otel: OpenTelemetry metrics as JSON, one file, or posted
    to a collector's URL. mlflow: a run in MLflow, at a tracking server's URL or in a folder. On stdout each JSON is
    a line.
    """
    from harness.library import export as exporting
    from harness.library.measurement import load

    measured = load(folder)
    with output.closed_stdout_ignored():
        if out is None:
            # A pipe takes line feeds; a carriage return would be shown as an escape (`terminal.guard`).
            sys.stdout.write(exporting.text(measured, to).replace("\r\n", "\n"))
        elif exporting.is_sent(to, out):
            print(exporting.send(measured, to, out), file=sys.stderr)
        else:
            for path in exporting.export(measured, to, out):
                print(path, file=sys.stderr)
