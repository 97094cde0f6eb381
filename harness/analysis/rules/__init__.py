"""The registry of rules: what a result is warned of, each in one function, and what an invalid level is still good for.

A rule is a function that takes one context and returns what it found, or None. Its name is the code of its verdicts on
disk; its docstring's first paragraph is its line in docs/reference.md; its decorator says how serious it is and what
the first screen prints. `findings` asks every rule of a context, in the order of `_MODULES` and of the lines in them.
A package outside adds rules by an entry point of the group `knee.rules`, which `load` imports by its name.
"""

from __future__ import annotations

import enum
import functools
import importlib
import inspect
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from harness.base import plugins
from harness.base.errors import HarnessError
from harness.data.judgement import Gravity, Verdict
from harness.data.levels import LevelSummary

_MODULES = ("observed", "requests", "figures", "levels", "run")


class Context(Protocol):
    """What a rule looks at."""

    @property
    def at(self) -> float | None:
        """The load of the level that it is about; None: the whole run."""


class Finding(msgspec.Struct, frozen=True):
    """What a rule found: the fact with its figures, and what to do about it."""

    message: str
    advice: str = ""
    severity: Gravity | None = None  # None: the first of the rule's
    at: float | None = None  # the load that it is about, where the context has none
    kind: str = ""  # the kind, if the rule has kinds: `timeout` in `said_timeout`


class Purpose(enum.Enum):
    """What a level is wanted for; rules name those for which they are excused.

    Cost at the fastest level, drift between repeats and the signs of a dip are read off all levels, usable or not.
    """

    # Its own figures: exit status 0, the headline, an SLO that is met, to compare with, to calibrate by.
    ANSWER = enum.auto()
    # A point of the curve, in the ramp and in the fit; a probe; the single stream against its prediction.
    POINT = enum.auto()
    # The highest level against its prediction: where the client ended the ramp, the gap has to name it.
    TOP = enum.auto()
    # A load at which the SLO is missed: overload is a miss, too.
    MISS = enum.auto()


class Place(enum.Enum):
    """Where the first screen prints what a rule found."""

    FIRST = enum.auto()
    LAST = enum.auto()  # most results have it
    NOWHERE = enum.auto()  # what it says is there already


T = TypeVar("T", bound=Context)
Found = Finding | Iterable[Finding] | None


class Rule(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A registered rule."""

    judge: Callable[[T], Found]
    code: str
    of: type[T]
    severities: tuple[Gravity, ...]
    brief: str  # its line on the first screen, {} is where; "": its message
    place: Place  # place on the first screen
    kinds: bool  # a kind follows the code
    excused_for: tuple[Purpose, ...]  # for which an invalid level is still good

    def findings(self, context: T) -> list[Verdict]:
        """Return what the rule says of a context, as verdicts."""
        found = self.judge(context)
        every = [found] if isinstance(found, Finding) else list(found or ())
        return [self._verdict(each, context.at) for each in every]

    def _verdict(self, found: Finding, at: float | None) -> Verdict:
        severity = found.severity or self.severities[0]
        assert severity in self.severities, f"{self.code} may not be {severity}"
        code = f"{self.code}_{found.kind}" if self.kinds else self.code
        return Verdict(code, severity, found.message, found.advice, at if found.at is None else found.at)

    def voids(self, level: LevelSummary) -> bool:
        """Return whether the rule makes a level invalid."""
        return self.code in invalid_by(level)

    def made(self, verdict: Verdict) -> bool:
        """Return whether the verdict is one of this rule."""
        return verdict.code.startswith(f"{self.code}_") if self.kinds else verdict.code == self.code

    @property
    def description(self) -> str:
        """What it means, in Markdown: the first paragraph of its docstring."""
        return " ".join((inspect.getdoc(self.judge) or "").partition("\n\n")[0].split())


_registered: dict[str, list[Rule[Any]]] = {}  # every rule, by the module that defines it


def rule(
    of: type[T],
    *severities: Gravity,
    brief: str = "",
    place: Place = Place.FIRST,
    kinds: bool = False,
    excused_for: tuple[Purpose, ...] = (),
) -> Callable[[Callable[[T], Found]], Rule[T]]:
    """Return a decorator that registers a function as a rule that judges an `of`; severities[0] is the default one."""

    def register(judge: Callable[[T], Found]) -> Rule[T]:
        made = Rule(
            judge=judge,
            code=judge.__name__,
            of=of,
            severities=severities,
            brief=brief,
            place=place,
            kinds=kinds,
            excused_for=excused_for,
        )
        _registered.setdefault(judge.__module__, []).append(made)
        _by_code.cache_clear()
        return made

    return register


def load(name: str) -> None:
    """Register the rules of an installed package, by the name of their module in the group `knee.rules`."""
    if plugins.find(plugins.RULES, name, ModuleType) is None:
        known = ", ".join(plugins.names(plugins.RULES)) or "none is installed"
        raise HarnessError(f"no rules are called {name!r}", place="--rules", way_out=f"installed: {known}")


def registered() -> list[Rule[Any]]:
    """Return every rule in its order, those of other packages last."""
    own = [f"{__name__}.{module}" for module in _MODULES]
    for module in own:
        importlib.import_module(module)  # not at the top: what they look at is judged by `usable`
    others = [module for module in _registered if module not in own]
    return [each for module in (*own, *others) for each in _registered[module]]


def by_code(code: str) -> Rule[Any] | None:
    """Return the rule that a verdict on disk is of; None for one of another version."""
    known = _by_code()
    of_kind = (each for each in known.values() if each.kinds and code.startswith(f"{each.code}_"))
    return known.get(code) or next(of_kind, None)


@functools.cache
def _by_code() -> dict[str, Rule[Any]]:
    return {each.code: each for each in reversed(registered())}


def findings(context: Context) -> list[Verdict]:
    """Return what all rules of a kind of context say of this one, in their order."""
    return [verdict for each in registered() if each.of is type(context) for verdict in each.findings(context)]


def invalid_by(level: LevelSummary) -> set[str]:
    """Return the codes of the verdicts that make a level invalid; empty for a valid one."""
    return {verdict.code for verdict in level.verdicts if verdict.level == Gravity.INVALID}


def usable(level: LevelSummary, for_: Purpose) -> bool:
    """Return whether a level may be used for a purpose: every rule that makes it invalid is excused."""
    rules = [by_code(code) for code in invalid_by(level)]
    return all(rule is not None and for_ in rule.excused_for for rule in rules)
