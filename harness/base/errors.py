"""What goes wrong without a bug: an operator's mistakes, which only the command line catches, and a server's bytes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from itertools import islice

from harness.base.terminal import clean, few

_MOST = 600  # characters of each part of a mistake
_NEAR = 1_000  # names that are compared, of at most 200 characters: it takes time for each pair of letters
_LONG = 6  # letters of a word from which on one letter is a slip, and no other word


class HarnessError(Exception):
    """A mistake of the operator: a fact, the place it was found, and the way out.

    Printed as one line, `error: place: fact; way out`, with exit status 1. A failed request is not one of
    these (it is data in its record), nor is a bug (it crashes with a traceback). Its parts may quote what came from
    outside: they are cleaned and cut here, wherever they are shown.

    >>> print(HarnessError("unknown GPU 'h100'", place="--gpu", way_out="did you mean 'h100-sxm'?"))
    --gpu: unknown GPU 'h100'; did you mean 'h100-sxm'?
    >>> print(HarnessError("400: the prompt is too long.", way_out="change --input-tokens"))
    400: the prompt is too long; change --input-tokens
    """

    def __init__(self, fact: str, *, place: str = "", way_out: str = "") -> None:
        self.fact, self.place, self.way_out = (clean(part, _MOST) for part in (fact, place, way_out))
        line = f"{self.place}: {self.fact}" if self.place else self.fact
        super().__init__(f"{line.removesuffix('.')}; {self.way_out}" if self.way_out else line)


class ProtocolError(Exception):
    """The bytes are not the answer they should be; `error` names it in the record.

    `pieces` are what the same read had brought before: cut elsewhere, they would have been handed on.
    """

    def __init__(self, message: str, error: str = "protocol") -> None:
        super().__init__(message)
        self.error = error
        self.pieces: list[bytes] = []


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the way out of a wrong name: the nearest right one, or the first of the list when nothing is near.

    >>> nearest("concurency", ["concurrency", "levels"])
    "did you mean 'concurrency'?"
    >>> nearest("x", ["concurrency", "levels"])
    'known: concurrency, levels'
    """
    names = list(known)
    short = islice((each for each in names if len(each) <= 200), _NEAR)
    close = difflib.get_close_matches(name[:200], list(short), n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else "known: " + few(names, 24)


def misspelled(name: str, known: Iterable[str]) -> str:
    """Return the known name that differs from this one by a letter, or two that change places, in one word; else "".

    Short words are left out: `at_ns` is no slip of `at_ms`.

    >>> misspelled("promt_len", ["prompt_len"]), misspelled("/v1/chat/completion", ["/v1/chat/completions"])
    ('prompt_len', '/v1/chat/completions')
    >>> misspelled("timestamp_ns", ["timestamp_ms"]), misspelled("prompt", ["prompt"])
    ('', '')
    """
    words = _words(name[:200])
    for each in known:
        others = _words(each)
        if len(words) == len(others):
            apart = [(a, b) for a, b in zip(words, others, strict=True) if a != b]
            if len(apart) == 1 and len(apart[0][1]) >= _LONG and _slips(*apart[0]):
                return each
    return ""


def _words(name: str) -> list[str]:
    return name.replace("_", " ").replace("/", " ").split(" ")


def _slips(a: str, b: str) -> bool:
    """Return whether two different words differ by one letter, or by two neighbours that change places."""
    same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    a, b = a[same:], b[same:]
    return a[1:] == b[1:] or a[1:] == b or a == b[1:] or (a[:2] == b[1::-1] and a[2:] == b[2:])
