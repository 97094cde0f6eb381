"""Numbers as people write them: '50ms', '2s', '1.5k', '1,2,4,8'. Seconds and plain counts come out."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from harness.base.errors import HarnessError, nearest

_NUMBER = re.compile(r"\s*+([0-9]++(?:\.[0-9]*+)?|\.[0-9]++)\s*+([a-zA-Zµ]*+)\s*+")
_SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_COUNTS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9}

_BYTES = {
    "B": 1.0, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
    "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40,
}  # fmt: skip

MOST_STREAMS = 1_000_000  # requests in flight: more connections than a machine can open
MOST_TOKENS = 10_000_000  # most tokens of a prompt or an answer: the longest context of a model that is served

# Times that an SLO may limit (docs/definitions.md, Times of a request).
FIGURES = ("ttft", "ttfat", "itl", "tpot", "e2e", "icl")
_NAMED = {figure: figure for figure in FIGURES} | {"turn": "e2e"}  # an agent's turn is a request
PERCENTILES = ("50", "75", "90", "95", "99", "99.9")
LIMITS: dict[str, tuple[str, float | None]] = {  # SLO limits by name: the figure, and the share that has to meet it
    **{name: (figure, None) for name, figure in _NAMED.items()},
    **{f"{name}_p{q}": (figure, round(float(q) / 100, 4)) for name, figure in _NAMED.items() for q in PERCENTILES},
}

_ELSEWHERE = {  # names of limits in vLLM and AIPerf, whose inter-token latency is one figure a request
    "e2el": "e2e", "request_latency": "e2e", "time_to_first_token": "ttft", "inter_token_latency": "tpot",
    "time_to_first_output_token": "ttfat",
}  # fmt: skip
BEYOND = 1e15  # seconds, tokens, requests: nothing that can be measured has so many
_MOST_CPUS = 65_536  # more than any machine has
_LEAST_SD = 1e-6  # tokens: less is none
_AS_LENGTHS = "write it like 512, '512±64', '100..900', 'lognormal(512,300)' or '512:9,32k:1'"
N = TypeVar("N", int, float)


def _scaled(text: str, table: dict[str, float], what: str, place: str, example: str) -> float:
    """Return the number in a text times its unit's factor in `table`; raise HarnessError for another unit or form."""
    match = _NUMBER.fullmatch(text)
    if not match or match[2] not in table:
        raise HarnessError(f"{text!r} is not {what}", place=place, way_out=f"write it like {example}")
    value = float(match[1]) * table[match[2]]
    if not value < BEYOND:
        raise HarnessError(f"{text[:40]!r} is beyond reason", place=place, way_out=f"write it like {example}")
    return value


def seconds(value: str | float, place: str = "") -> float:
    """Return a duration in seconds; a bare number is seconds already.

    >>> seconds("50ms"), seconds("2s"), seconds("1.5m"), seconds(3)
    (0.05, 2.0, 90.0, 3.0)
    """
    if isinstance(value, int | float):
        return float(value)
    return _scaled(value, _SECONDS, "a duration", place, "'50ms', '2s' or '5m'")


def limit(text: str | float, place: str = "") -> float:
    """Return a limit of a latency in seconds. Its text has a unit, for other tools take bare numbers for milliseconds.

    >>> limit("50ms"), limit(2)
    (0.05, 2.0)
    """
    value, bare = seconds(text, place), str(text).strip()
    if isinstance(text, str) and value and not bare[-1:].isalpha():
        raise HarnessError(f"{text!r} has no unit", place=place, way_out=f"write {bare}ms or {bare}s")
    return value


def number(text: str, place: str = "") -> float:
    """Return a number of 0 or more, whole or not.

    >>> number("0.25"), number("1.5k")
    (0.25, 1500.0)
    """
    return _scaled(text, _COUNTS, "a number", place, "'5', '0.25' or '1.5k'")


def share(text: str, place: str = "") -> float:
    """Return a share, as a percentage or as a number.

    >>> share("30%"), share("0.3"), share("43 %")
    (0.3, 0.3, 0.43)
    """
    body = text.strip().removesuffix("%")
    value = _scaled(body, {"": 1.0}, "a share", place, "'30%' or '0.3'")
    return value / 100 if "%" in text else value


def portion(text: str, place: str = "") -> float:
    """Return a share from 1 % to all."""
    value = share(text, place)
    if not 0.01 <= value <= 1:
        raise HarnessError(f"{text[:40]!r} is not between 1% and 100%", place=place, way_out="write it like 70%")
    return value


def count(text: str | float, place: str = "") -> int:
    """Return a whole count.

    >>> count("1.5k"), count("2M"), count(7)
    (1500, 2000000, 7)
    """
    value = (
        float(text) if isinstance(text, int | float) else _scaled(text, _COUNTS, "a count", place, "'128' or '1.5k'")
    )
    if value != int(value):
        raise HarnessError(f"{text!r} is not a whole number", place=place, way_out="write it like '128' or '1.5k'")
    return int(value)


def lengths(text: str | int, place: str = "") -> dict[str, Any]:
    """Return lengths in tokens as people write them, as the plain data of a distribution (`distribution`).

    A count; a mean and a standard deviation; a range with both its ends; a lognormal distribution by the mean and the
    standard deviation of the lengths themselves, not of their logarithms; lengths with weights. A mean may be followed
    by the bounds that lengths are drawn within.

    >>> lengths("2k")
    {'kind': 'fixed', 'tokens': 2000}
    >>> lengths("512±64 in 16..1k")
    {'kind': 'normal', 'nominal': 512.0, 'sd': 64.0, 'low': 16, 'high': 1000}
    """
    body, bounded, bounds = str(text).replace("+-", "±").partition(" in ")
    try:
        made = _distribution(body.strip())
        if bounded:
            made |= _range(bounds)
            if not made["low"] <= made.get("nominal", 0) <= made["high"]:
                raise ValueError(f"only a mean has bounds, and it is within {bounds.strip()}")
    except ValueError as error:
        raise HarnessError(f"{text!r} is not a length: {error}", place=place, way_out=_AS_LENGTHS) from None
    return made


def _distribution(text: str) -> dict[str, Any]:
    """Return the plain data of a distribution without bounds; raise ValueError if it is none."""
    if "±" in text:
        return {"kind": "normal"} | _mean_and_sd(text, "±")
    if text.startswith("lognormal(") and text.endswith(")"):
        return {"kind": "lognormal"} | _mean_and_sd(text[len("lognormal(") : -1], ",")
    if ".." in text:
        return {"kind": "range"} | _range(text)
    if ":" not in text:
        return {"kind": "fixed", "tokens": _length(text)}
    weights: dict[int, float] = {}
    for part in text.split(","):
        length, _, weight = part.partition(":")
        weights[_length(length)] = _tokens(weight, BEYOND)
    if len(weights) < text.count(":") or not min(weights.values()):
        raise ValueError("each length comes once, with a weight above 0")
    return {"kind": "empirical", "values": sorted(weights), "weights": [weights[each] for each in sorted(weights)]}


def _mean_and_sd(text: str, mark: str) -> dict[str, float]:
    """Return a mean and a standard deviation, apart by a mark."""
    mean, _, sd = text.partition(mark)
    nominal, deviation = _tokens(mean), _tokens(sd)
    if nominal < 1 or deviation < _LEAST_SD:
        raise ValueError("its mean is 1 or more, and its standard deviation above 0")
    return {"nominal": nominal, "sd": deviation}


def _range(text: str) -> dict[str, int]:
    """Return the lowest and the highest length of a range."""
    low, _, high = text.partition("..")
    ends = {"low": _length(low), "high": _length(high)}
    if ends["low"] > ends["high"]:
        raise ValueError("its range is reversed")
    return ends


def _length(text: str) -> int:
    """Return one length in tokens."""
    tokens = _tokens(text)
    if tokens < 1 or tokens != int(tokens):
        raise ValueError(f"{text.strip()} is not a whole number from 1 on")
    return int(tokens)


def _tokens(text: str, most: float = MOST_TOKENS) -> float:
    """Return a number of tokens; raise ValueError if it is none, or more than any model has."""
    match = _NUMBER.fullmatch(text)
    if not match or match[2] not in _COUNTS:
        raise ValueError(f"{text.strip()!r} is not a number")
    value = float(match[1]) * _COUNTS[match[2]]
    if value > most:
        raise ValueError(f"no model has a context of more than {MOST_TOKENS:,} tokens")
    return value


def size(text: str | int, place: str = "") -> int:
    """Return a size in bytes; a text has a unit, for a bare number is a mistake more often than bytes.

    >>> size("500MB"), size("1.5 GiB"), size(4096)
    (500000000, 1610612736, 4096)
    """
    if isinstance(text, int):
        return text
    return round(_scaled(text, _BYTES, "a size", place, "'500MB' or '10GB'"))


def bytes_text(count: float) -> str:
    """Return bytes as people write them, which `size` reads back.

    >>> bytes_text(10_000_000_000), bytes_text(1_500_000), bytes_text(800)
    ('10GB', '1.5MB', '800B')
    """
    unit, scale = next((pair for pair in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if count >= pair[1]), ("B", 1.0))
    return f"{count / scale:.12g}{unit}"


def duration(seconds: float) -> str:
    """Return seconds as `seconds` reads them back, in the unit that leaves the fewest zeros.

    >>> duration(2.0), duration(0.05), duration(2.5e-4), duration(90)
    ('2s', '50ms', '250us', '90s')
    """
    unit, scale = next((pair for pair in (("s", 1.0), ("ms", 1e3)) if seconds * pair[1] >= 1), ("us", 1e6))
    return f"{seconds * scale:.12g}{unit}"


def levels(text: str, place: str = "--levels") -> list[int]:
    """Return concurrency levels, in their order; each at least 1, none twice.

    >>> levels("1,2,4,1k")
    [1, 2, 4, 1000]
    """
    example = "'1,2,4,8'"

    def level(part: str, place: str) -> int:
        _scaled(part, _COUNTS, "a count", place, example)
        return count(part, place)

    loads = _each(text, level, place, "level", "of at least 1", example)
    if max(loads) > MOST_STREAMS:
        fact = f"{max(loads):,} requests in flight are more than the {MOST_STREAMS:,} that a machine can hold"
        raise HarnessError(fact, place=place, way_out=f"give {MOST_STREAMS:,} or less")
    return loads


def cpus(text: str, place: str = "--host-cpus") -> list[int]:
    """Return numbers of processors, single ones and spans.

    >>> cpus("0,2-4")
    [0, 2, 3, 4]
    """
    processors: list[int] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        known = low.isdecimal() and (high.isdecimal() or not dash) and len(low + high) < 12
        if not known or not int(low) <= int(high or low) < _MOST_CPUS:
            raise HarnessError(f"{text[:80]!r} is no list of processors", place=place, way_out="write it like '0,2-4'")
        processors += range(int(low), int(high or low) + 1)
    return list(dict.fromkeys(processors))


def rates(text: str, place: str = "--rate") -> list[float]:
    """Return request rates per second, in their order; each above 0, none twice.

    >>> rates("0.5,2,1k")
    [0.5, 2.0, 1000.0]
    """
    example = "'5' or '5,10,20'"

    def rate(part: str, place: str) -> float:
        if part.lower() in ("inf", "infinity"):
            fact = "all requests at once have no rate"
            raise HarnessError(fact, place=place, way_out="give --levels 64 to keep 64 in flight")
        return _scaled(part, _COUNTS, "a rate", place, example)

    return _each(text, rate, place, "rate", "above 0", example)


def _each(text: str, read: Callable[[str, str], N], place: str, noun: str, bound: str, example: str) -> list[N]:
    """Return the values between the commas, in their order; each above 0, none twice."""
    values = [read(part.strip(), place) for part in text.split(",") if part.strip()]
    if not values or min(values) <= 0:
        raise HarnessError(f"{text!r} names no {noun} {bound}", place=place, way_out=f"write it like {example}")
    if len(set(values)) < len(values):
        raise HarnessError(f"{text!r} names a {noun} twice", place=place, way_out=f"write each {noun} once")
    return values


def slo(text: str, place: str = "--slo") -> dict[str, float]:
    """Return limits of an SLO in seconds, by name (`LIMITS`); each above 0, none twice.

    >>> slo("ttft_p99=2s,itl_p99=50ms e2e=10s")
    {'ttft_p99': 2.0, 'itl_p99': 0.05, 'e2e': 10.0}
    """
    return _limits(re.split(r",\s*+|(?<![\s,])\s++(?=[\w.-]++\s*+=)", text), "=", limit, place, "'ttft_p99=2s,e2e=10s'")


def goodput(text: str, place: str = "--goodput") -> dict[str, float]:
    """Return the same limits as vLLM's benchmark has them: milliseconds a request, after a colon, apart by spaces.

    >>> goodput("ttft:500 tpot:50 e2el:9000")
    {'ttft': 0.5, 'tpot': 0.05, 'e2e': 9.0}
    """
    example = "'ttft:500 tpot:50'"

    def milliseconds(part: str, place: str) -> float:
        return _scaled(part, {"": 1e-3}, "a number of milliseconds", place, example)

    return _limits(re.split(r"[\s,]+", text), ":", milliseconds, place, example)


def _limits(
    parts: list[str], mark: str, read: Callable[[str, str], float], place: str, example: str
) -> dict[str, float]:
    """Return the limits in parts like name=value or name:value, read by `read`, by their names.

    Raise HarnessError for an unknown name, a limit that is given twice or not above 0, or if there is none.
    """
    way_out = f"write it like {example}"
    limits: dict[str, float] = {}
    for part in filter(None, map(str.strip, parts)):
        name, separator, value = (piece.strip() for piece in part.partition(mark))
        name = _ELSEWHERE.get(name, name) if mark == ":" else name
        if separator or _turned(name):
            known_limit(name, place)
        if not separator:
            raise HarnessError(f"{part!r} has no '{mark}'", place=place, way_out=way_out)
        if name in limits:
            raise HarnessError(f"{name!r} is limited twice", place=place, way_out="write each limit once")
        limits[name] = read(value, place)
        if not limits[name] > 0:
            raise HarnessError(f"{part!r} is no limit above 0", place=place, way_out=way_out)
    if not limits:
        raise HarnessError("no limit is given", place=place, way_out=way_out)
    return limits


def _turned(name: str) -> str:
    """Return "did you mean …?" for a limit's name in another spelling, by its figure and percentile; else "".

    >>> _turned("p99ttft"), _turned("ttft-p95"), _turned("latency_p99"), _turned("speed")
    ("did you mean 'ttft_p99'?", "did you mean 'ttft_p95'?", "did you mean 'e2e_p99'?", '')
    """
    known = {figure: figure for figure in FIGURES} | _ELSEWHERE | {"latency": "e2e"}
    figure = next((known[each] for each in sorted(known, key=len, reverse=True) if each in name.lower()), "")
    percentile = re.search(r"[0-9][0-9.]*", name)
    found = f"{figure}_p{percentile[0]}" if percentile else figure
    return f"did you mean '{found}'?" if figure and found in LIMITS and re.fullmatch(r"[\w.-]+", name) else ""


def known_limit(name: str, place: str) -> None:
    """Refuse a name that is no limit's, with the nearest right one."""
    if name not in LIMITS:
        no_figure = not name.strip("p0123456789.")
        near = _turned(name) or ("" if no_figure else nearest(name, LIMITS))
        every = f"known: {', '.join(FIGURES)}, each also with _p and one of {', '.join(PERCENTILES)}"
        raise HarnessError(f"unknown limit {name!r}", place=place, way_out=near if near.endswith("?") else every)


def prices(text: str, place: str = "--price-per-mtok") -> list[float]:
    """Return prices in USD, in their order.

    >>> prices("0.15,0.60,0.075")
    [0.15, 0.6, 0.075]
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise HarnessError(
            f"{text!r} is not a list of prices", place=place, way_out="write it like 0.15,0.60"
        ) from None


def span(seconds: float) -> str:
    """Return a waiting time for people, in s, min or h.

    >>> [span(x) for x in (0.4, 8.2, 59.7, 95, 600, 3720, 90_000)]
    ['1 s', '8 s', '1 min', '1 min 35 s', '10 min', '1 h 2 min', '25 h']
    """
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole >= 3600:
        hours, minutes = divmod(round(whole / 60), 60)
        return f"{hours} h" + (f" {minutes} min" if minutes else "")
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min" + (f" {rest} s" if rest else "")
