"""Seats in every committed folder, compared with the limit that its server was started with.

Folders with records count requests one by one. Those of the H100 without records have throughput and TPOT of their
summaries. A folder counts as passed where at least two levels kept more in flight than the limit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from knee_table import Line

from harness.analysis import seats
from harness.analysis.level import Facts, summarise_level
from harness.analysis.rules import Purpose, usable
from harness.analysis.seats import Seats
from harness.data.levels import LevelSummary
from harness.results.folder import REQUESTS
from harness.results.result import Result, read_summary

RESULTS = Path(__file__).parents[1] / "results"
CLOSE, FAR, EXCEPT = 0.07, 0.15, 1  # relative: within the first in all but so many, within the second in all
CLAIMED = 22 / 24  # of the folders that two levels passed
# Folders by the limit of their server: docs/live-servers.md, docs/stacks.md, docs/fleets.md,
# results/README.md, and live.json, gpu.json or `slots` of the manifest where the folder has them.
LIMITS = {
    16: ["live-vllm", "live-litellm", "live-nginx-buffered", "live-vllm-sweep-1", "live-slo"]
    + [f"live-vllm-ramp-{i}" for i in (1, 2, 3)],
    8: ["live-llama-8", "live-answers/vllm-1", "live-answers/llama-server-1", "live-answers/q4-1"]
    + [f"live-quantised/{kind}-{i}" for kind in ("f32", "q4") for i in (1, 2)]
    + [f"live-stacks/{kind}-{i}" for kind in ("vllm", "llama-server") for i in (1, 2, 3)],
    6: ["live-vllm-versus-adaptive", "live-vllm-versus-fixed"],
    4: ["live-llama-4", "live-node-loss"]
    + [f"live-api-llama-{api}" for api in ("anthropic", "completions", "llama-cpp", "responses")],
    64: ["live-h100-seqs64"],
}
NONE = {  # folders in which no number may be claimed
    "no limit is set": ["live-transformers", "live-answers/transformers-1"]
    + [f"live-stacks/transformers-{i}" for i in (1, 2, 3)],
    "memory is the limit": ["live-h100-bf16", "live-h100-fp8", "live-h100-kv", "live-h200-ramp"],
    "nothing streams": ["live-embeddings", "live-h200-prefill", "live-api-llama-rank-rerank"]
    + [f"live-api-vllm-pooling-{api}" for api in ("embeddings", "rerank", "score")],
    "not reached": [
        "live-h100-decode",
        "live-h200-decode",
        "live-h200-long",
        "live-h200-slo",
        "live-workload-conversation",
        "live-workload-prefix",
    ]
    + [f"live-api-vllm-{api}" for api in ("anthropic", "completions", "responses")],
}


class Folder(msgspec.Struct, frozen=True):
    """A folder, its server's limit if that is known, and the seats that its levels show."""

    name: str
    limit: int | None
    why: str  # no number may be claimed; "": one may
    passed: tuple[float, ...]  # loads above the limit
    found: Seats | None

    @property
    def off(self) -> float | None:
        """Return the seats over the limit, less 1; None without either."""
        return self.found.value / self.limit - 1 if isinstance(self.found, Seats) and self.limit else None

    def __str__(self) -> str:
        limit = f"limit {self.limit}, passed at {_loads(self.passed) or 'no load'}" if self.limit else self.why
        if not isinstance(self.found, Seats):
            return f"{self.name:32} none; {limit}"
        low, high = self.found.ci95
        how = "counted" if self.found.counted else "mean"
        what = f"{self.found.value:.4g} [{low:.4g}, {high:.4g}] {how}, {self.found.source}"
        off = f"{self.off:+.1%}" if self.off is not None else "no number may be claimed"
        return f"{self.name:32} {what}; {off}; waits at {_loads(self.found.loads)}; {limit}"


def levels(folder: Path) -> list[LevelSummary]:
    """Return the levels of a folder, by its records where it has them."""
    if not (folder / REQUESTS).exists():
        return read_summary(folder).levels
    run = Result.open(folder)
    facts = Facts.of(run.manifest)
    table = facts.table(run.records)
    finished = [level for level in run.levels if level.finished and level.window_end_s is not None]
    return [summarise_level(run.records, table, run.samples, level, facts) for level in finished]


def folders() -> Iterator[Folder]:
    """Yield every folder of the lists, with what its levels show."""
    named: list[tuple[str, int | None, str]] = [(name, limit, "") for limit, names in LIMITS.items() for name in names]
    named += [(name, None, why) for why, names in NONE.items() for name in names]
    for name, limit, why in named:
        measured = levels(RESULTS / name)
        loads = {s.concurrency for s in measured if s.concurrency and usable(s, Purpose.POINT)}
        passed = tuple(sorted(load for load in loads if limit and load > limit))
        yield Folder(name, limit, why, passed, seats.find(seats.occupancies(measured)))


def lines(show: Callable[[str], object] = lambda text: None) -> Iterator[Line]:
    """Yield the rows `folders` of the table; every folder is shown as it is read."""
    found = []
    for folder in folders():
        show(str(folder))
        found.append(folder)
    known = [folder for folder in found if len(folder.passed) > 1]
    offs = [abs(folder.off) for folder in found if folder.off is not None]
    claimed, close = sum(folder.off is not None for folder in known), sum(off <= CLOSE for off in offs)
    covered = [
        f for f in found if isinstance(f.found, Seats) and f.limit and f.found.ci95[0] <= f.limit <= f.found.ci95[1]
    ]
    wrong = [folder.name for folder in found if folder.why and isinstance(folder.found, Seats)]
    forbidden = sum(bool(folder.why) for folder in found)
    yield Line(
        "folders-claimed", f"seats in the {len(known)} committed folders whose limit two levels passed",
        f"≥ {CLAIMED:.0%}", f"{claimed} of {len(known)}", claimed >= CLAIMED * len(known),
        f"the interval holds the limit in {len(covered)} of {len(offs)}",
    )  # fmt: skip
    yield Line(
        "folders-limit", "the seats against the limit that was set",
        f"± {CLOSE:.0%} in all but {EXCEPT}, ± {FAR:.0%} in all",
        f"± {CLOSE:.0%} in {close} of {len(offs)}, at most {max(offs, default=0.0):.1%} off",
        bool(offs) and len(offs) - close <= EXCEPT and max(offs) <= FAR,
    )  # fmt: skip
    yield Line(
        "folders-none", f"seats in the {forbidden} folders without a limit, a stream or two waiting loads",
        "none", ", ".join(wrong) or "none", not wrong,
    )  # fmt: skip


def _loads(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def main() -> int:
    """Print a row a folder and the three lines; 1 where one is not met."""
    met = []
    for line in lines(print):
        print(
            f"{line.row}: {line.what}: {line.found} (target {line.reach}): {'yes' if line.met else 'no'}. {line.remark}"
        )
        met.append(line.met)
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
