"""The APIs that can be measured and simulated, by the names that `--api` takes. Pure.

A module of this package that holds a `Dialect` adds it; `spec.choices.APIS` has the names in their order. Another
package adds one by an entry point of `knee.dialects`.
"""

from __future__ import annotations

from functools import cache

from harness.base import plugins
from harness.base.errors import HarnessError
from harness.dialects.dialect import Dialect
from harness.spec.choices import APIS


class _Dialects(dict[str, Dialect]):
    """Knee's own dialects by name; another package's is loaded when its name is asked for, and is not stored."""

    def __missing__(self, name: str) -> Dialect:
        return _plugin(name)


@cache
def _plugin(name: str) -> Dialect:
    """Return another package's dialect of that name; raise HarnessError if none has it or it generates no answer."""
    dialect: Dialect | None = plugins.find(plugins.DIALECTS, name, Dialect)
    if dialect is None:
        raise HarnessError(f"unknown api '{name}'", place="--api", way_out=f"known: {', '.join(APIS)}")
    if not dialect.unit.decodes:
        fact, way_out = "it generates no answer", f"give one that does, or --api, one of: {', '.join(APIS)}"
        raise HarnessError(fact, place=f"{plugins.DIALECTS} {name}", way_out=way_out)
    return dialect


def _own() -> dict[str, Dialect]:
    """Return the dialects of this package's modules, in the order of their names in `APIS`."""
    modules = plugins.modules(__name__, __path__)
    every = [value for module in modules for value in vars(module).values() if isinstance(value, Dialect)]
    every.sort(key=lambda dialect: APIS.index(dialect.name))  # a path that ends like another's comes before it
    return {dialect.name: dialect for dialect in every}


DIALECTS = _Dialects(_own())
