"""The ready scenarios: files that come with Knee, each with the question that it answers, found by name.

A scenario's name is its file's; the question is the first comment of the file, behind the schema that editors read.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from harness.base.errors import HarnessError, nearest

_PLACES = Path(__file__).parents[1] / "scenarios", Path(__file__).parents[2] / "scenarios"  # a wheel's, a clone's
FOLDER = next((place for place in _PLACES if place.is_dir()), _PLACES[0])


class Ready(NamedTuple):
    name: str
    question: str


CAMPAIGNS = FOLDER / "campaigns"


def scenarios() -> list[Ready]:
    """Return every ready scenario, by name."""
    return _of(FOLDER)


def campaigns() -> list[Ready]:
    """Return every ready comparison of stacks, by name."""
    return _of(CAMPAIGNS)


def _of(folder: Path) -> list[Ready]:
    return [Ready(path.stem, _question(path)) for path in sorted(folder.glob("*.toml"))]


def _question(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return next(line for line in file if not line.startswith("#:")).removeprefix("#").strip()


def path(scenario: str, *, or_campaign: bool = False) -> Path:
    """Return the path of the operator's own scenario, or of the one of that name that comes with Knee.

    A text with a path's separator or .toml is the operator's, whether it is there or not. Raise HarnessError for no
    such name.
    """
    if os.path.isfile(scenario) or os.sep in scenario or scenario.endswith(".toml"):
        return Path(scenario)
    if or_campaign and scenario in [campaign.name for campaign in campaigns()]:
        return CAMPAIGNS / f"{scenario}.toml"
    known = [each.stem for each in sorted(FOLDER.glob("*.toml"))]
    if scenario not in known:
        near = nearest(scenario, known)
        way_out = near if near.endswith("?") else "`knee run --list` has the ready ones; an address is http://… or sim:"
        raise HarnessError("neither a file nor a ready scenario", place=scenario, way_out=way_out)
    return FOLDER / f"{scenario}.toml"
