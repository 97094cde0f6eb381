"""Stacks against each other, as `knee compare` ranks them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.decide.compare import comparison, fairness, labels
from harness.decide.compare.comparison import Report


def compare(*stacks: str | Path, vary: str = "", force: bool = False, scenarios: Sequence[str] = ()) -> Report:
    """A comparison for each workload, as in comparison.json.

    Each stack is a result folder or another tool's file, with its name in front where it needs one: "vllm=results/a".
    Several of one name are its repeats. `vary` names what may differ, `force` ranks although something else does, and
    `scenarios` are those to compare under. HarnessError where nothing can be compared.
    """
    runs = labels.labelled([str(each) for each in stacks])
    return comparison.by_workload(runs, scenarios, vary=fairness.varied(vary), forced=force)
