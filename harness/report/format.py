"""Numbers as a person reads them: three figures, thousands separated, "–" for what is missing.

Arguments are in seconds, results in milliseconds. Text from outside is made safe to print; `page` and `markdown`
escape it for their media.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.base.terminal import clean, cut
from harness.data.levels import LevelSummary
from harness.data.prediction import Prediction

MISSING = "–"
NO_INTERVAL = "no interval"
_FEW = 4  # levels that a line names one by one
_MOST = 1_000  # characters of one text, and of one list of them


def number(value: float | None, figures: int = 3) -> str:
    """Return a number to three figures (whole digits are never cut); "–" where there is none.

    >>> [number(x) for x in (0.09259, 7.1234, 16.24, 99.96, 2104.4, 16.0, None, float("nan"))]
    ['0.0926', '7.12', '16.2', '100', '2,104', '16', '–', '–']
    """
    if value is None or math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == int(value):
        return f"{int(value):,}"
    if abs(value) < 1e-4:
        return f"{value:.{figures}g}"
    leading = math.floor(math.log10(abs(float(f"{value:.{figures}g}"))))
    return f"{value:,.{max(0, figures - 1 - leading)}f}"


def ms(seconds: float | None) -> str:
    """Return seconds as milliseconds, without the unit.

    >>> ms(0.00712), ms(1.5), ms(None)
    ('7.12', '1,500', '–')
    """
    return number(None if seconds is None else seconds * 1e3)


def time(seconds: float | None) -> str:
    """Return a time with its unit, for a sentence.

    >>> time(0.0493), time(1.0724), time(None)
    ('49.3 ms', '1.07 s', '–')
    """
    if seconds is None:
        return MISSING
    return f"{number(seconds)} s" if seconds >= 1 else f"{ms(seconds)} ms"


def percent(fraction: float | None) -> str:
    """Return a fraction as a percentage.

    >>> percent(0.0123), percent(None)
    ('1.23 %', '–')
    """
    return MISSING if fraction is None else f"{number(fraction * 100)} %"


def ratio(value: float | None, digits: int = 2) -> str:
    """Return a ratio to so many digits behind the point.

    >>> ratio(0.987), ratio(1.0042, 3), ratio(None)
    ('0.99', '1.004', '–')
    """
    return MISSING if value is None else f"{value:.{digits}f}"


def interval(ends: tuple[float | None, float | None] | None) -> str:
    """Return an interval in words, also one with an unbounded end; "" if there is no interval.

    >>> interval((15.4, 17.1)), interval((14.1, None)), interval((None, 9.0)), interval(None)
    ('15.4–17.1', '14.1 or more', '9 or less', '')
    """
    low, high = ends or (None, None)
    if low is None and high is None:
        return ""
    if low is None or high is None:
        return f"{number(high)} or less" if low is None else f"{number(low)} or more"
    return f"{number(low)}–{number(high)}"


def listed(parts: Sequence[str]) -> str:
    """Return parts of a sentence.

    >>> listed(["8"]), listed(["8", "16", "23"])
    ('8', '8, 16 and 23')
    """
    return " and ".join(part for part in (", ".join(parts[:-1]), *parts[-1:]) if part)


def confidence(ends: tuple[float | None, float | None] | None) -> str:
    """Return the 95 % interval in words, or that there is none.

    >>> confidence((15.4, 17.1)), confidence(None)
    ('95 % interval 15.4–17.1', 'no interval')
    """
    words = interval(ends)
    return f"95 % interval {words}" if words else NO_INTERVAL


def joined(*parts: str) -> str:
    """Return the parts that are not empty, joined by semicolons.

    >>> joined("band 1–2", "", "no knee")
    'band 1–2; no knee'
    """
    return "; ".join(part for part in parts if part)


def load(open_loop: bool, *at: int | float) -> str:
    """Return as words the loads of levels: concurrency, or requests per second in an open loop.

    >>> load(False, 1, 16), load(True, 2.5)
    ('C = 1, 16', '2.5 req/s')
    """
    values = ", ".join(f"{value:g}" if open_loop else f"{value:.12g}" for value in at)
    return f"{values} req/s" if open_loop else f"C = {values}"


def loads(open_loop: bool, at: Sequence[int | float], of: str = "") -> str:
    """Return as words the loads of levels if these are few, else their number; `of` is put before "levels".

    >>> loads(False, [1, 16]), loads(False, [1, 2, 4, 8, 16], of="of 9 ")
    ('C = 1, 16', '5 of 9 levels')
    """
    return load(open_loop, *at) if len(at) <= _FEW else f"{len(at)} {of}levels"


def load_of(level: LevelSummary) -> str:
    """Return one level by its load."""
    return load(level.rate is not None, level.load or 0)


def label(level: LevelSummary) -> str:
    """Return one level by the number of its load, and of its repeat if it is not the first."""
    load = level.concurrency if level.rate is None else f"{level.rate:g}"
    return f"{load}{f' #{level.repeat + 1}' if level.repeat else ''}"


def half_width(ends: tuple[float, float] | None) -> float | None:
    """Return half the width of an interval, the figure after ±; in the unit of the interval.

    >>> half_width((98.0, 102.0))
    2.0
    """
    return None if ends is None else (ends[1] - ends[0]) / 2


def limit_name(limit: str) -> str:
    """Return a limit's name for people; options keep their own names.

    >>> limit_name("kv_traffic"), limit_name("max_num_seqs"), limit_name("slo")
    ('KV traffic', 'max_num_seqs', 'SLO')
    """
    spoken = {"kv_traffic": "KV traffic", "kv_memory": "KV memory", "slo": "SLO"}
    return spoken.get(limit, plain(limit))


def binding(prediction: Prediction) -> str:
    """Return in words which cap limits the predicted batch, and at how many in flight; or that the SLO does."""
    cap = prediction.binding_cap
    limit = prediction.caps.get(cap) if cap else None
    if cap is None or limit is None:
        return "no cap binds"
    if cap == "slo":
        return f"the SLO is met up to {number(limit)} in flight" if limit else "the SLO is missed at any load"
    return f"bound by {limit_name(cap)} at {number(limit)} in flight"


def plain(text: object) -> str:
    r"""Return text from outside on one line, as `terminal.clean` shows it.

    >>> print(plain("evil\x1b[2Jname"))
    evil\u001b[2Jname
    """
    return clean(text, _MOST)


def flat(value: object) -> str:
    """Return any value of the manifest as one line of text.

    >>> flat({"name": "vllm", "version": None, "tp": 2, "eager": True})
    'name vllm, version –, tp 2, eager yes'
    """
    match value:
        case None:
            return MISSING
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return number(value)
        case dict():
            return cut(", ".join(f"{plain(key)} {flat(item)}" for key, item in value.items()), 4 * _MOST) or MISSING
        case list() | tuple():
            return cut(", ".join(flat(item) for item in value), 4 * _MOST) or MISSING
        case _:
            return plain(value) or MISSING
