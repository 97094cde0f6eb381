"""A result for other tools: files in the shape of another benchmark's, or a run sent to where a tool keeps its own.

Each tool's exporter is a module here that has EXPORTER. Other packages add exporters by the entry point
`knee.exporters`; such a one is loaded only where its name is given.

Files have the figures of Knee's own summary, renamed and in the other tool's units; nothing is worked out anew. What
the other format demands and Knee did not measure is left out or null, never 0. `results.readers` reads the files back.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from harness.base import plugins
from harness.base.errors import HarnessError, nearest
from harness.base.terminal import json_text
from harness.data.levels import LevelSummary
from harness.data.manifest import Manifest
from harness.data.summary import Summary
from harness.spec.work import Unit

if TYPE_CHECKING:
    import pandas

_FIRST = ("csv", "vllm")  # in this order; others come after them


class Run(Protocol):
    """A measured run as an exporter gets it."""

    @property
    def path(self) -> Path: ...
    @property
    def manifest(self) -> Manifest: ...
    @property
    def summary(self) -> Summary: ...
    @property
    def has_requests(self) -> bool: ...
    @property
    def requests(self) -> pandas.DataFrame: ...


class Exporter(msgspec.Struct, frozen=True, kw_only=True):
    """What can be made of a run for another tool; None: nothing of the kind."""

    files: Callable[[Run], Mapping[str, Any]] | None = None  # by name: text as it is, or plain data for JSON
    text: Callable[[Run], str] | None = None  # text on stdout; None: each file's data as a line of JSON
    send: Callable[[Run, str], str] | None = None  # to an address, or a folder if there are no files; in a line

    def on_stdout(self, run: Run) -> str:
        """Return the exported run as text for stdout: the exporter's text, or its documents as JSON."""
        if self.text is not None:
            return self.text(run)
        found = self.files(run) if self.files is not None else {}
        return "".join(f"{json_text(msgspec.json.encode(each).decode())}\n" for each in found.values())


def names() -> list[str]:
    """Return the names of the exporters of this package."""
    return [name.replace("_", "-") for name in plugins.module_names(__path__, _FIRST)]


def find(name: str) -> Exporter:
    """Return the exporter called `name`, built in or of another package; raise HarnessError for an unknown name."""
    if name in names():
        found: Exporter = importlib.import_module(f"{__name__}.{name.replace('-', '_')}").EXPORTER
        return found
    added: Exporter | None = plugins.find(plugins.EXPORTERS, name, Exporter)
    if added is None:
        known = [*names(), *plugins.names(plugins.EXPORTERS)]
        raise HarnessError(f"no format '{name[:40]}'", place="--to", way_out=nearest(name, known))
    return added


def verdicts(level: LevelSummary) -> list[str]:
    """Return the verdicts of a level, each once, like "invalid: stalled"; `readers.level.validity` reads them."""
    return list(dict.fromkeys(f"{verdict.level}: {verdict.code}" for verdict in level.verdicts))


def of_point(level: LevelSummary) -> dict[str, Any]:
    """Return the figures that a curve and seats need of a level, for an export (read by `readers.level.own_point`)."""
    service, server = level.service, level.server
    return {
        "in_flight": level.in_flight,
        "output_tokens_per_s_se": level.output_tokens_per_s_se,
        "output_tokens_per_s_se_assumed": level.output_tokens_per_s_se_assumed,
        "window_s": level.window_s,
        "in_service": service.streaming.mean if service else None,
        "in_service_most": service.most if service else None,
        "in_service_most_fraction": service.most_fraction if service else None,
        "server_running": server.running if server else None,
        "server_waiting": server.waiting if server else None,
    }


def by_level(
    run: Run, to: str, of_level: Callable[[LevelSummary, Manifest, int, bool], dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return {file name: document} for each level with a throughput; of_level(level, manifest, index, …) makes one."""
    summary = run.summary
    if summary.unit != Unit.OUTPUT_TOKENS:
        fact = f"{to} counts output tokens, and this run {summary.unit}"
        raise HarnessError(fact, place=str(run.path), way_out="give --to csv")
    rows = {}
    for index, level in enumerate(summary.levels):
        if level.output_tokens_per_s.mean is not None:
            load = f"c{level.concurrency}" if level.rate is None else f"rate{level.rate:g}"
            rows[f"{to}-{index:02}-{load}.json"] = of_level(level, run.manifest, index, summary.simulated)
    if not rows:
        raise HarnessError("no level with a throughput", place=str(run.path), way_out="measure one")
    return rows
