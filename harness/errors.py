"""The operator's mistakes, as one exception that only the command line catches."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HarnessError(Exception):
    """A mistake of the operator: a fact, the place it was found, and the way out.

    Printed as one line, `error: place: fact; way out`, with exit status 1. A failed request is not one of
    these (it is data in its record), nor is a bug (it crashes with a traceback).

    >>> print(HarnessError("unknown GPU 'h100'", place="--gpu", way_out="did you mean 'h100-sxm'?"))
    --gpu: unknown GPU 'h100'; did you mean 'h100-sxm'?
    """

    def __init__(self, fact: str, *, place: str = "", way_out: str = "") -> None:
        self.fact, self.place, self.way_out = fact, place, way_out
        line = f"{place}: {fact}" if place else fact
        super().__init__(f"{line}; {way_out}" if way_out else line)


def nearest(name: str, known: Iterable[str]) -> str:
    """The way out of a wrong name: the nearest right one, or the list when nothing is near.

    >>> nearest("concurency", ["concurrency", "levels"])
    "did you mean 'concurrency'?"
    >>> nearest("x", ["concurrency", "levels"])
    'known: concurrency, levels'
    """
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else "known: " + ", ".join(names)
