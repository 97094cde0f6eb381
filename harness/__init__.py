"""Knee: load testing for LLM servers that ends in an answer.

As a library it is `import knee`, which is this package (docs/library.md). What `_PLACES` names is imported when it is
first used, so that importing the package stays light.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from harness.base import __version__ as __version__

TYPE_CHECKING = False  # type checkers take it for true; typing itself takes longer to import than all of this
if TYPE_CHECKING:
    import inspect
    from typing import Any

    from harness.base.errors import HarnessError as HarnessError
    from harness.library.answers import check as check
    from harness.library.answers import compare as compare
    from harness.library.answers import fit as fit
    from harness.library.answers import plan as plan
    from harness.library.measurement import Measurement as Measurement
    from harness.library.measurement import export as export
    from harness.library.measurement import load as load
    from harness.library.measurement import send as send
    from harness.library.prediction import predict as predict
    from harness.library.run import run as run
    from harness.library.run import run_async as run_async

_PLACES = {
    "HarnessError": "harness.base.errors",
    "Measurement": "harness.library.measurement",
    "check": "harness.library.answers",
    "compare": "harness.library.answers",
    "export": "harness.library.measurement",
    "fit": "harness.library.answers",
    "load": "harness.library.measurement",
    "plan": "harness.library.answers",
    "predict": "harness.library.prediction",
    "run": "harness.library.run",
    "run_async": "harness.library.run",
    "send": "harness.library.measurement",
}
__all__ = ["__version__", *_PLACES]


def _named(name: str) -> Any:
    return getattr(importlib.import_module(_PLACES[name]), name)


class _CallablePackage(ModuleType):
    """A package whose name is a function's too, like `load`: called, it is the function."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return _named(self.__name__.rpartition(".")[2])(*arguments, **keywords)

    @property
    def __signature__(self) -> inspect.Signature:
        import inspect

        return inspect.signature(_named(self.__name__.rpartition(".")[2]))


class _Package(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        if name in _PLACES and isinstance(value, ModuleType):  # a package below was imported
            value.__class__ = _CallablePackage
        super().__setattr__(name, value)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in ("load", "predict", "run"):
        return importlib.import_module(f"{__name__}.{name}")
    return _named(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})


sys.modules[__name__].__class__ = _Package
