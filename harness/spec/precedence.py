"""What waits for what: names in an order in which each stands behind all that it waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from harness.base.errors import HarnessError, nearest


def order(names: Sequence[str], after: Mapping[str, Sequence[str]], *, path: str, place: str = "") -> list[str]:
    """The names, each behind those of `after` that it waits for; HarnessError at the path where there is no such order.

    >>> order(["join", "left", "right", "root"],
    ...     {"join": ["left", "right"], "left": ["root"], "right": ["root"]}, path="$.node")
    ['root', 'left', 'right', 'join']
    """

    def refused(fact: str, way_out: str) -> HarnessError:
        return HarnessError(f"{fact} at {path}", place=place, way_out=way_out)

    for i, name in enumerate(names):
        if name in names[:i]:
            raise refused(f"the name '{name}' stands twice", "give each a name of its own")
        parents = after.get(name, ())
        for j, parent in enumerate(parents):
            if parent not in names:
                raise refused(f"'{name}' waits for '{parent}', which is not there", nearest(parent, names))
            if parent in parents[:j]:
                raise refused(f"'{name}' waits for '{parent}' twice", "name it once")
    try:
        return list(TopologicalSorter({name: after.get(name, ()) for name in names}).static_order())
    except CycleError as error:
        circle: list[str] = error.args[1]
        raise refused(f"{' → '.join(circle)} is a circle", "let one of them wait for none of the others") from None
