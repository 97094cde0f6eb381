"""Stacks against each other, as `knee compare` ranks them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.decide.compare import comparison, fairness, runs
from harness.decide.compare.comparison import Report


def compare(
    *stacks: str | Path,
    vary: str = "",
    force: bool = False,
    scenarios: Sequence[str] = (),
    answers: bool = False,
    format: str = "",
) -> Report:
    """A comparison for each workload, as in comparison.json.

    Each stack is a result folder or another tool's file, with its name in front where it needs one: "vllm=results/a".
    Several of one name are its repeats. `vary` names what may differ, `force` ranks although something else does, and
    `scenarios` are those to compare under. With `answers` no stack is ranked whose canaries' answers change under load
    or are less often right. `format` names the files' format, where their content does not say it. HarnessError
    where nothing can be compared.
    """
    found = runs.labelled([str(each) for each in stacks], format)
    return comparison.by_workload(found, scenarios, vary=fairness.varied(vary), forced=force, answers=answers)
