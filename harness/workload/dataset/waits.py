"""What each request of a trace waited for, read off its spans: who called whom, and when.

A span waits for those beside it, of the same parent, that had ended before it began and that no other such span came
after. Where there are none it waits for what its parent waits for. A span that is no request stands for the last
requests in it. So branches that ran side by side, like sub-agents, stay side by side.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain

import msgspec

_MOST = 1_000_000  # names in all that is found of one trace: a thousand requests that wait for a thousand


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """A span, by its name in its trace."""

    parent: str  # the name of another; any other name: none
    began: int  # ns
    ended: int
    request: bool


def waits(spans: Mapping[str, Waiting]) -> dict[str, tuple[str, ...]]:
    """The requests whose ends each span waits for, by names; ValueError where spans are parents of each other.

    >>> calls = {"plan": Waiting("agent", 0, 3, True), "answer": Waiting("agent", 5, 9, True)}
    >>> waits({"agent": Waiting("", 0, 9, False), **calls})["answer"]
    ('plan',)
    """
    children: dict[str | None, list[str]] = {}
    for name, span in spans.items():
        children.setdefault(span.parent if span.parent in spans else None, []).append(name)
    order = _downwards(children)
    if len(order) < len(spans):
        (lost, *_) = spans.keys() - set(order)
        raise ValueError(f"the span {lost[:40]!r} is one of its own parents")
    last: dict[str, tuple[str, ...]] = {}
    left = _MOST
    for name in reversed(order):
        inner = _Siblings(spans, children.get(name, ()), last)
        last[name] = (name,) if spans[name].request else inner.before(None)
        left = _less(left, last[name])
    found: dict[str | None, tuple[str, ...]] = {None: ()}
    for parent in (None, *order):
        siblings = _Siblings(spans, children.get(parent, ()), last)
        for name in children.get(parent, ()):
            found[name] = siblings.before(spans[name].began) or found[parent]
            left = _less(left, found[name])
    return {name: found[name] for name in spans}


def _downwards(children: Mapping[str | None, Sequence[str]]) -> list[str]:
    """All that hangs on the roots, each behind its parent."""
    order = list(children.get(None, ()))
    for name in order:  # which grows meanwhile
        order += children.get(name, ())
    return order


def _less(left: int, names: Sequence[str]) -> int:
    if len(names) > left:
        raise ValueError("its requests wait for more others than are followed")
    return left - len(names)


class _Siblings:
    """The spans of one parent that requests are in, by their ends."""

    def __init__(self, spans: Mapping[str, Waiting], names: Sequence[str], last: Mapping[str, tuple[str, ...]]) -> None:
        # Each lasts a nanosecond at least: none comes after itself.
        ends = {name: max(spans[name].ended, spans[name].began + 1) for name in names if last[name]}
        among = sorted(ends, key=ends.__getitem__)
        self._ends = [ends[name] for name in among]
        self._last = [last[name] for name in among]
        self._latest = list(accumulate((spans[name].began for name in among), max))  # beginning up to each

    def before(self, moment: int | None) -> tuple[str, ...]:
        """The last requests of those that had ended by then, or at all, and that none of these came after."""
        many = len(self._ends) if moment is None else bisect_right(self._ends, moment)
        if not many:
            return ()
        first = bisect_right(self._ends, self._latest[many - 1], hi=many)
        return tuple(chain.from_iterable(self._last[first:many]))
