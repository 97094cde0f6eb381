"""What a real prefix cache serves of prompts, beside what Knee expects of it: vLLM on core 0, knee on core 1.

    python scripts/live/workloads.py measure prefix agents --out results/live
    python scripts/live/workloads.py table results/live-workload-*

The expected share is worked out before any load, from the scenario and the size of the server's blocks. What is served
the server says twice: in the usage of each request, and by its own counters. The table needs no more than the folders.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from servers import ServerError, Target, free_folders, knee_run, serve_vllm, serving
from table import measure_and_table, table

from harness.data.levels import LevelSummary
from harness.data.manifest import Manifest
from harness.data.summary import Summary
from harness.results.result import read_manifest

SCENARIOS = ("prefix", "conversation", "agents")
WITHIN = 0.03  # of all prompt tokens, that what is served may be off what is expected
HEAD = ["run", "sessions", "requests", "prompt tokens", "expected", "served, by usage", "by its counters", "within .03"]
SHORT = ["--levels", "2,4", "--level-seconds", "5"]


def agrees(expected: float | None, served: float | None) -> bool:
    """Return whether a share is the expected one; not where either is unknown.

    >>> agrees(0.80, 0.78), agrees(0.80, 0.76), agrees(0.80, None)
    (True, False, False)
    """
    return expected is not None and served is not None and abs(served - expected) <= WITHIN


def row(name: str, level: LevelSummary, expected: float | None) -> list[str]:
    counted = level.server.prefix_hit_fraction if level.server else None
    return [
        name if level.concurrency is None else f"{name}, C = {level.concurrency}",
        str(level.sessions.sessions) if level.sessions else "–",
        str(level.requests),
        share(level.input_tokens_mean, 0),
        share(expected),
        share(level.cached_input_fraction),
        share(counted),
        "yes" if agrees(expected, level.cached_input_fraction) else "no",
    ]


def share(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def report(folders: Sequence[Path]) -> tuple[str, bool]:
    """(the table of the folders' levels, whether every level serves the expected share)."""
    rows, good = [], True
    for folder in folders:
        about = read_manifest(folder)
        assert isinstance(about, Manifest)
        expected = about.workload.expected_hit_rate or None
        levels = msgspec.json.decode((folder / "summary.json").read_bytes(), type=Summary).levels
        rows += [row(folder.name, level, expected) for level in levels]
        good &= all(agrees(expected, level.cached_input_fraction) for level in levels)
    return table(HEAD, rows), good and bool(rows)


def measure(target: Target, folders: dict[str, Path], options: list[str]) -> int:
    """Measure a run for each scenario until one is interrupted or refused, and return the last exit status."""
    status = 0
    for name, out in folders.items():
        print(f"\n{name}: into {out}", file=sys.stderr)
        words = [] if name == "agents" else options  # which are levels, and a trace has its times
        status, _, _ = knee_run(target, out, [f"scripts/live/workload-{name}.toml", "--seed", "1", *words])
        if status not in (0, 3):
            break
    return status


def main() -> None:
    parser, measuring = measure_and_table("What a real prefix cache serves, beside what Knee expects.")
    measuring.add_argument("names", nargs="*", help=f"of {', '.join(SCENARIOS)}; default: all")
    measuring.add_argument("--out", default="results/live", help="what the names of the folders begin with")
    measuring.add_argument("--short", action="store_true", help="the levels 2 and 4, 5 s each")
    arguments = parser.parse_args()
    if arguments.verb == "table":
        text, good = report(arguments.folders)
        print(text)
        sys.exit(not good)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    prefix = f"{arguments.out}-short" if arguments.short else arguments.out
    folders = {name: Path(f"{prefix}-workload-{name}") for name in arguments.names or SCENARIOS}
    free_folders(list(folders.values()))
    try:
        with serving("vllm", serve_vllm(16, "--prefix-caching")) as target:
            status = measure(target, folders, SHORT if arguments.short else [])
    except ServerError as error:
        sys.exit(f"error: {error}")
    if status not in (0, 3):
        sys.exit(status)
    text, good = report(list(folders.values()))
    print(f"\n{text}")
    sys.exit(not good)


if __name__ == "__main__":
    main()
