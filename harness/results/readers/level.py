"""Another tool's result as plain data, and how a reader finds it: a map of our figures to the names in the tool's file.

Figures are in seconds and in tokens per second. A value that is not what it should be counts as absent, and is None.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from harness.data.judgement import Gravity
from harness.data.levels import Service
from harness.data.views import Estimate

WHOLE_RUN = "throughput is over the whole run, its beginning and end included"
NO_ERROR = "no error of its own: one figure a level"
NO_SERVER = "it names no GPU, precision or server setting"
LACKS = (WHOLE_RUN, NO_ERROR, NO_SERVER)
SHARED = ("source", "simulated", "model", "engine", "gpu", "gpus", "precision")  # facts that all levels have alike
KNEE = "knee"  # the tool of Knee's own exports
IN_FLIGHT_LOW = "in_flight_low"  # the code of the rule, which is above this room
# Seconds of a unit of time, by its names without a plural's s; "s/token" is seconds as well.
_UNITS = {
    "s": 1.0, "sec": 1.0, "second": 1.0, "ms": 1e-3, "msec": 1e-3, "millisecond": 1e-3, "us": 1e-6, "µs": 1e-6,
    "usec": 1e-6, "microsecond": 1e-6, "ns": 1e-9, "nsec": 1e-9, "nanosecond": 1e-9,
}  # fmt: skip
_MOST = 1e15  # bound of any figure
_LONGEST = 200  # characters of a name
_THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+(\.\d*)?")  # commas that are no decimal points


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution of seconds, as far as it is given."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None


class ForeignLevel(msgspec.Struct, frozen=True, kw_only=True):
    """One load: closed loop by `concurrency`, open loop by `rate`; neither where the file names no load."""

    concurrency: float | None = None
    rate: float | None = None  # requests per second that were to be sent
    in_flight: float | None = None  # mean, as the tool counted it, or the most that were possible
    output_tokens_per_s: float | None = None
    se: float | None = None  # one standard error of it
    se_assumed: bool = False  # `se` is a weight by the number of requests
    valid: bool = True  # whether it is a point of a curve
    in_flight_ok: bool = True  # whether as many were in flight as were requested
    requests_per_s: float | None = None
    requests: int | None = None  # requests that were answered
    failed: int | None = None  # not among these
    input_tokens_mean: float | None = None
    output_tokens_mean: float | None = None
    ttft_s: Latency = Latency()
    itl_s: Latency = Latency()  # gaps between chunks, which are tokens where each chunk carries one
    tpot_s: Latency = Latency()  # a token after the first, means of requests
    itl_mean_s: float | None = None  # a token after the first, over all of them
    e2e_s: Latency = Latency()
    window_s: float | None = None
    service: Service | None = None  # only in Knee's own exports, as are the server's counts
    running: float | None = None
    waiting: float | None = None

    @property
    def requested(self) -> float | None:
        """Return the requests in flight that were asked for, or that were in flight if only this is known."""
        return self.concurrency or (self.in_flight if self.rate is None else None)


class ForeignResult(msgspec.Struct, frozen=True, kw_only=True):
    """All levels of a file. Texts in it come from outside."""

    source: str  # the tool
    levels: list[ForeignLevel]
    simulated: bool = False  # no GPU was measured
    model: str | None = None
    engine: str | None = None
    gpu: str | None = None
    gpus: int | None = None
    precision: str | None = None
    lacks: tuple[str, ...] = ()  # what the file cannot support


# ---- a map of names -------------------------------------------------------------------------------------------------


class Latencies(msgspec.Struct, frozen=True, kw_only=True):
    """Where a file keeps the statistics of a latency: dotted paths, in which {name} is the latency's name there."""

    at: str = "{name}.{statistic}"  # path of a statistic
    names: Mapping[str, tuple[str, ...]] = {}  # other names of statistics, the likeliest first
    unit_at: str = ""  # path of a word that says the unit; "": the latency's name ends in `_ms`, or it is seconds

    def read(self, tree: Any, name: str) -> Latency:
        """Return the latency called `name` in a file: mean and percentiles, in seconds; empty without a known unit."""
        unit: float | None = _UNITS["ms"] if name.endswith("_ms") else 1.0
        if self.unit_at:
            unit = _seconds(text(tree, *self.unit_at.format(name=name).split(".")) or "")
        if unit is None:
            return Latency()
        figures: dict[str, float | None] = {}
        for ours in ("mean", "p50", "p90", "p95", "p99"):
            paths = (self.at.format(name=name, statistic=each).split(".") for each in self.names.get(ours, (ours,)))
            values = (number(tree, *path, unit=unit) for path in paths)
            figures[ours] = next((value for value in values if value is not None), None)
        return Latency(**figures)


def _seconds(unit: str) -> float | None:
    """Return the seconds of a unit of time; None if it is none.

    >>> _seconds("ms/token"), _seconds("Nanoseconds"), _seconds("tokens/s")
    (0.001, 1e-09, None)
    """
    name = unit.partition("/")[0].strip().lower()
    return _UNITS.get(name) or _UNITS.get(name.removesuffix("s"))


def level(tree: Any, names: Mapping[str, str], latencies: Latencies, **known: Any) -> ForeignLevel:
    """Return a level whose figures are read from a tree; names[figure] is the dotted path; `known` has further figures.

    Of several paths, parted by " | ", the first that has a value counts.

    >>> found = level({"done": {"rate": 20.0}}, {"requests_per_s": "done.rate"}, Latencies(at="{name}"), rate=25.0)
    >>> found.requests_per_s, found.rate
    (20.0, 25.0)
    """
    for ours, theirs in names.items():
        if ours in _LATENCIES:
            known[ours] = latencies.read(tree, theirs)
        else:
            kind: Callable[..., float | None] = _KINDS.get(ours, number)
            values = (kind(tree, *path.split(".")) for path in theirs.split(" | "))
            known[ours] = next((each for each in values if each is not None), None)
    return ForeignLevel(**known)


class Reader(msgspec.Struct, frozen=True, kw_only=True):
    """A tool's file as a map: how it is recognised, and where our figures are in it.

    Its functions get one piece of JSON, as plain data, or with `rows` all rows of a CSV, each a list of cells.
    """

    name: str  # name of the tool in messages
    matches: Callable[[Any], bool]
    figures: Mapping[str, str]  # our names, like "ttft_s", and dotted paths in a level; several are parted by " | "
    latencies: Latencies = Latencies()
    levels: Callable[[Any], Sequence[Any]] = lambda found: [found]  # each the tree of one load
    more: Callable[[Any], dict[str, Any]] = lambda _: {}  # figures of a level found in other ways, as its load
    facts: Callable[[Any], dict[str, Any]] = lambda _: {}  # facts of the whole result: the model and others in SHARED
    lacks: tuple[str, ...] = LACKS  # what no file of the tool supports
    rows: bool = False

    def read(self, document: Any) -> ForeignResult:
        """Return the result in a document that this reader matches: its levels and the facts about the run."""
        levels = [level(tree, self.figures, self.latencies, **self.more(tree)) for tree in self.levels(document)]
        return ForeignResult(levels=levels, **({"source": self.name, "lacks": self.lacks} | self.facts(document)))


def at(tree: Any, *path: str) -> Any:
    """Return the value at a path of names in nested mappings; None if there is none.

    >>> at({"a": {"b": 1}}, "a", "b"), at({"a": 1}, "a", "b")
    (1, None)
    """
    for name in path:
        if not isinstance(tree, Mapping):
            return None
        tree = tree.get(name)
    return tree


def has(document: Any, *names: str) -> bool:
    """Return whether it is a mapping that has all these names."""
    return isinstance(document, Mapping) and document.keys() >= set(names)


def number(tree: Any, *path: str, unit: float = 1.0) -> float | None:
    """Return the number at a path, times `unit`, also from text with thousands commas; None unless finite and ≥ 0.

    >>> number({"a": 20}, "a", unit=1e-3), number({"a": "n/a"}, "a"), number({"a": -1}, "a"), number({"a": True}, "a")
    (0.02, None, None, None)
    """
    value = at(tree, *path)
    if isinstance(value, str):
        try:
            value = float(value.replace(",", "") if _THOUSANDS.fullmatch(value.strip()) else value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) * unit if math.isfinite(value) and 0 <= value < _MOST else None


def positive(tree: Any, *path: str) -> float | None:
    """Return the number at a path; None if it is missing, 0 or out of bounds."""
    return number(tree, *path) or None


def whole(tree: Any, *path: str) -> int | None:
    """Return a whole number from 0 on."""
    found = number(tree, *path)
    return None if found is None else round(found)


def count(tree: Any, *path: str) -> int | None:
    """Return a whole number above 0."""
    return whole(tree, *path) or None


def text(tree: Any, *path: str) -> str | None:
    """Return a name that is not empty."""
    value = at(tree, *path)
    return value[:_LONGEST] if isinstance(value, str) and value else None


_LATENCIES = ("ttft_s", "itl_s", "tpot_s", "e2e_s")
_KINDS: Mapping[str, Callable[..., float | None]] = {
    "concurrency": positive, "rate": positive, "in_flight": positive, "requests": count, "failed": whole,
}  # fmt: skip


def validity(verdicts: Any) -> tuple[bool, bool]:
    """Return (valid as a point of a curve, as many in flight as were requested), by verdicts of Knee's own exports.

    A verdict is like "invalid: stalled"; other words among them mean nothing.

    >>> validity(["note: too_few_samples", "invalid: in_flight_low"]), validity(["invalid:stalled", "knee"])
    ((True, False), (False, True))
    """
    words = [verdict for verdict in verdicts if isinstance(verdict, str)] if isinstance(verdicts, list) else []
    parts = (word.partition(":") for word in words)
    invalid = {code.strip() for gravity, _, code in parts if gravity == Gravity.INVALID}
    return invalid <= {IN_FLIGHT_LOW}, IN_FLIGHT_LOW not in invalid  # the same as `analysis.rules.usable` for a point


def own_point(tree: Any, *path: str) -> dict[str, Any]:
    """Return the figures that a curve and seats need of a level, as Knee's own exports have them (`of_point`)."""
    own = at(tree, *path)
    mean_, most, fraction = (number(own, f"in_service{name}") for name in ("", "_most", "_most_fraction"))
    return {
        "in_flight": positive(own, "in_flight"),
        "se": positive(own, "output_tokens_per_s_se"),
        "se_assumed": at(own, "output_tokens_per_s_se_assumed") is True,
        "window_s": positive(own, "window_s"),
        "service": None if mean_ is None else Service(Estimate(mean_), round(most or 0), fraction or 0.0),
        "running": number(own, "server_running"),
        "waiting": number(own, "server_waiting"),
    }


def in_words(fact: str | int) -> str:
    """Return a fact that files of one result share as words: simulated or real, a number of GPUs, or a name.

    >>> in_words(True), in_words(1), in_words("vllm")
    ('a simulated server', '1 GPU', 'vllm')
    """
    if isinstance(fact, bool):
        return "a simulated server" if fact else "a real one"
    return f"{fact} GPU{'s' if fact != 1 else ''}" if isinstance(fact, int) else fact
