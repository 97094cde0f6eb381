"""A threshold as people write it: `output_tokens_per_s@knee >= 1500`, `ttft_p99@32 < 2s`, `plateau >= 0.95*baseline`.

    threshold   = figure ["@" level] comparison bound
    level       = "knee" | "all" | concurrency | rate "/s"
    comparison  = "<" | "<=" | ">" | ">="
    bound       = number [unit] | [factor "*"] "baseline"
    unit        = "us" | "ms" | "s" | "min" | "h" | "%" | "tok/s" | "req/s" | "/s"

A factor is a number or a percentage. Numbers take k, M and G.
Whether a figure of that name exists, and has that unit, is for `figures` to say.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from harness.base import units
from harness.base.errors import HarnessError
from harness.base.terminal import cut

Comparison: TypeAlias = Literal["<", "<=", ">", ">="]
COMPARISONS: Final[tuple[Comparison, ...]] = ("<=", ">=", "<", ">")
KNEE: Final = "knee"
ALL: Final = "all"  # levels that every run has, against a baseline
SECONDS, SHARE, PER_SECOND, NUMBER = "s", "%", "/s", ""  # what a bound counts
MOST = 200  # characters
_MOST_LINES = 1_000  # thresholds of a file
_TIMES = ("us", "µs", "ms", "s", "m", "min", "h")
_RATES = ("tok/s", "req/s", "/s")
_BASELINE = "baseline"
_EXAMPLE = "'plateau >= 1500', 'ttft_p99@32 < 2s' or 'plateau >= 0.95*baseline'"


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A figure, and of which level."""

    figure: str
    at: float | Literal["knee", "all"] | None = None  # a level's load; None: a figure of the whole run
    open_loop: bool = False  # `at` is a rate, requests per second


class Threshold(Subject, frozen=True, kw_only=True):
    """A figure that a bound is set to. One of `bound` and `factor` is there."""

    text: str
    comparison: Comparison
    bound: float | None = None  # in the figure's unit: seconds, a share of 1, per second, or a number
    unit: str = NUMBER  # unit of the bound
    factor: float | None = None  # bound over the baseline's figure

    @property
    def least(self) -> bool:
        """Return whether the bound is a lower one."""
        return self.comparison in (">", ">=")


def parse(text: str, place: str = "--threshold") -> Threshold:
    """Return the threshold (figure, level, comparison, bound) that a text states; raise HarnessError if it states none.

    >>> found = parse("ttft_p99@32 < 2s")
    >>> found.figure, found.at, found.comparison, found.bound, found.unit
    ('ttft_p99', 32.0, '<', 2.0, 's')
    >>> parse("plateau >= 95%*baseline").factor
    0.95
    """
    text = " ".join(text.split())
    at = next((i for i, letter in enumerate(text) if letter in "<>="), None)
    comparison = next((each for each in COMPARISONS if at is not None and text.startswith(each, at)), None)
    if at is None or comparison is None or len(text) > MOST:
        fact = f"{cut(text, 80)!r} is no threshold" + (f" of at most {MOST} characters" if len(text) > MOST else "")
        raise HarnessError(fact, place=place, way_out=f"write it like {_EXAMPLE}")
    named = subject(text[:at], place)
    made = Threshold(text=text, figure=named.figure, at=named.at, open_loop=named.open_loop, comparison=comparison)
    return _bounded(made, text[at + len(comparison) :].replace(" ", ""), place)


def subject(text: str, place: str) -> Subject:
    """Return the figure and the level that a text like "ttft_p99@5/s" names.

    >>> subject("ttft_p99@5/s", "")
    Subject(figure='ttft_p99', at=5.0, open_loop=True)
    """
    name, marked, level = (part.strip() for part in text.partition("@"))
    if not name or (marked and not level):
        missing = "figure" if not name else "level behind its '@'"
        raise HarnessError(f"{cut(text, 80)!r} names no {missing}", place=place, way_out=f"write it like {_EXAMPLE}")
    load, open_loop = _level(level, place) if marked else (None, False)
    return Subject(figure=name, at=load, open_loop=open_loop)


def lines(text: str, place: str) -> list[tuple[Threshold, str]]:
    """Return the thresholds of a file, one a line, each with its place; "#" begins a comment.

    >>> [(found.text, at) for found, at in lines("# speed\\nplateau >= 1500  # tok/s\\n\\n", "thresholds.txt")]
    [('plateau >= 1500', 'thresholds.txt:2')]
    """
    numbered = [(i, line.partition("#")[0].strip()) for i, line in enumerate(text.splitlines(), 1)]
    found = [(i, line) for i, line in numbered if line]
    if len(found) > _MOST_LINES:
        raise HarnessError(f"{len(found):,} thresholds", place=place, way_out=f"give at most {_MOST_LINES:,}")
    return [(parse(line, f"{place}:{i}"), f"{place}:{i}") for i, line in found]


def _level(text: str, place: str) -> tuple[float | Literal["knee", "all"], bool]:
    """Return (level, whether it is a rate) from the text behind @: a number, a number/s, "knee" or "all".

    HarnessError, with `place`, for anything else and for a number that is not above 0.
    """
    if text in (KNEE, ALL):
        return (KNEE if text == KNEE else ALL), False
    load = units.number(text.removesuffix("/s"), place)
    if not load > 0:
        raise HarnessError(f"a level of {text} is not above 0", place=place, way_out="write @32, @5/s or @knee")
    return load, text.endswith("/s")


def _bounded(made: Threshold, bound: str, place: str) -> Threshold:
    """Return the threshold with its bound, parsed from text without spaces: a value with unit, or a baseline factor."""
    if bound.endswith(_BASELINE):
        return msgspec.structs.replace(made, factor=_factor(bound.removesuffix(_BASELINE), made, place))
    if made.at == ALL:
        fact = f"{made.text!r}: only against a baseline all levels make one figure"
        raise HarnessError(fact, place=place, way_out="name a level: @knee or @32")
    value, unit = quantity(bound, place)
    return msgspec.structs.replace(made, bound=value, unit=unit)


def _factor(text: str, made: Threshold, place: str) -> float:
    """Return the factor before "baseline": 1 without one; raise HarnessError unless it is a number or share above 0."""
    if not text:
        return 1.0
    value, unit = quantity(text[:-1], place) if text.endswith("*") else (0.0, NUMBER)
    if unit not in (NUMBER, SHARE) or not value > 0:
        raise HarnessError(f"{made.text!r} has no factor above 0", place=place, way_out="write it like 0.95*baseline")
    return value


def quantity(text: str, place: str) -> tuple[float, str]:
    """Return the number (0 or more) in a text and its unit; times in seconds, percent as a share.

    >>> quantity("50ms", ""), quantity("1.5%", ""), quantity("1.5k tok/s", ""), quantity("0.9", "")
    ((0.05, 's'), (0.015, '%'), (1500.0, '/s'), (0.9, ''))
    """
    for rate in _RATES:
        if text.endswith(rate):
            return units.number(text.removesuffix(rate), place), PER_SECOND
    if text.endswith("%"):
        return units.number(text[:-1], place) / 100, SHARE
    if text.lstrip("0123456789. ") in _TIMES:
        return units.seconds(text, place), SECONDS
    return units.number(text, place), NUMBER
