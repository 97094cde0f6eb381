"""Plug-ins: what other packages add, by entry points that are read and loaded when their names are used.

Nothing is loaded because a file names it: whoever asks for a name has it from the operator. Names that Knee has itself
come first, so that no package replaces them; that is for the caller to see to.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from harness.base.errors import HarnessError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

DATASETS, DIALECTS, EXPORTERS = "knee.datasets", "knee.dialects", "knee.exporters"
READERS, RULES = "knee.readers", "knee.rules"


def names(group: str) -> list[str]:
    """Return the names that installed packages add to a group, sorted; no code of theirs is run."""
    return sorted({point.name for point in _points(group)})


def find(group: str, name: str, kind: type = object) -> Any:
    """Load the object that a package has under a name; None if no package has the name.

    Raise HarnessError if two packages have it, if it cannot be imported, or if it is not of the kind.
    """
    named = [point for point in _points(group) if point.name == name]
    if not named:
        return None
    place, packages = f"{group} {name}", sorted({_package(point) for point in named})
    if len(packages) > 1:
        raise HarnessError(f"{' and '.join(packages)} both have it", place=place, way_out="uninstall all but one")
    way_out = f"mend {packages[0]}, or uninstall it"
    try:
        loaded = named[0].load()
    except (ImportError, AttributeError, SyntaxError) as error:
        fact = f"{named[0].value} cannot be imported: {error or type(error).__name__}"
        raise HarnessError(fact, place=place, way_out=way_out) from error
    if not isinstance(loaded, kind):
        fact = f"{named[0].value} is {type(loaded).__name__}, not {kind.__name__}"
        raise HarnessError(fact, place=place, way_out=way_out)
    return loaded


def modules(package: str, folders: Iterable[str]) -> list[ModuleType]:
    """Import the modules of one of Knee's own packages, which register what it has; in the order of their names."""
    return [importlib.import_module(f"{package}.{name}") for name in module_names(folders)]


def module_names(folders: Iterable[str], first: Sequence[str] = ()) -> list[str]:
    """Return the names of the modules in a package's folders: those that come first, then the others, sorted."""
    found = {path.stem for folder in folders for path in Path(folder).glob("[a-z]*.py")}
    return sorted(found, key=lambda name: (first.index(name) if name in first else len(first), name))


def _points(group: str) -> list[EntryPoint]:
    from importlib.metadata import entry_points  # 20 ms: most runs use no plug-in

    return list(entry_points(group=group))


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an unknown package"
