"""A page in Prometheus' text format, as series with their labels. The page may come from anybody.

Format: prometheus.io/docs/instrumenting/exposition_formats, Text-based format. Left out: comments, time stamps,
exemplars, and every series whose name nobody wants.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

# Both expressions take a time that grows with the text's length alone, whatever the text is: what a part has taken it
# never gives back (`++`), and a line that is no sample is read once.
_SAMPLE = re.compile(
    r"\n([a-zA-Z_:][a-zA-Z0-9_:]*+)"
    r'(\{(?:[^"}\n]++|"(?:[^"\\\n]++|\\[^\n])*+")*+\})?+'
    r"[ \t]++([^\s]{1,64}+)(?=\s|\Z)"
)
_LABEL = re.compile(r'[ \t,{]*+([a-zA-Z_][a-zA-Z0-9_]*+)="((?:[^"\\]++|\\.)*+)"')
MOST = 1e18  # of anything that is counted; more is no count
_MOST_LABELS, _LONGEST_LABEL = 64, 200  # that are kept of a series, and characters of each


class Series(NamedTuple):
    """One line of a page."""

    name: str
    labels: dict[str, str]
    value: float


def series(page: str, wanted: Callable[[str], object]) -> Iterator[Series]:
    """The series whose names are `wanted`, with a value that can be counted: a number from 0 to 1e18.

    >>> list(series('# HELP up …\\nup{job="a",x="\\\\""} 1 1700000000000\\ndown NaN', lambda name: True))
    [Series(name='up', labels={'job': 'a', 'x': '\\\\"'}, value=1.0)]
    """
    text, at = "\n" + page, 0
    # Not by `finditer`: of each page it leaves a string in Python's cache of attributes, which fills for hours.
    while (sample := _SAMPLE.search(text, at)) is not None:
        at = sample.end()
        if not wanted(sample[1]):
            continue
        try:
            value = float(sample[3])
        except ValueError:  # not a number
            continue
        if 0 <= value < MOST:
            yield Series(sample[1], _labels(sample[2] or ""), value)


def _labels(text: str) -> dict[str, str]:
    """The labels between braces, as they are written."""
    found: dict[str, str] = {}
    at = 0
    while len(found) < _MOST_LABELS and (label := _LABEL.match(text, at)) is not None:
        found[label[1][:_LONGEST_LABEL]] = label[2][:_LONGEST_LABEL]
        at = label.end()  # each begins where the one before ended: nothing is read twice
    return found
