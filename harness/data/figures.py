"""How a figure is declared: its field's annotation has what it is and how it is made, its marks, and its columns.

Whatever treats all figures alike reads the annotations: `analysis.figures` makes the figures by them, the tables of the
report, the exports and docs/definitions.md list them. The type of the field says how several values become one: a
`Spread` is of values, a `Estimate` has an interval, a whole number is a count.
"""

# Annotations are not put off, so that what makes a figure is compiled here, with this module's names.
import enum
import types
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

import msgspec
from msgspec import UNSET, UnsetType

from harness.data.views import NO_SPREAD, Estimate, Spread


class Group(enum.IntEnum):
    """Figures of one sort; tables and exports show them in this order."""

    COUNT = enum.auto()
    LOAD = enum.auto()
    LENGTH = enum.auto()
    RATE = enum.auto()
    LATENCY = enum.auto()  # has no meaning where requests are sent faster than they are answered
    DELAY = enum.auto()
    GOAL = enum.auto()


class Of(enum.Enum):
    """What a row of a table is about."""

    LEVEL = enum.auto()
    CLASS = enum.auto()
    REPLICA = enum.auto()


class Column(msgspec.Struct, frozen=True):
    """A column of the report: its heading, in a line or two, and in which tables it is."""

    head: str
    of: tuple[Of, ...]
    part: str = "p50"  # field of a `Spread` that is shown, in milliseconds
    spare: int = 0  # see `report.document.Column`
    sparse: bool = False  # 0 is not shown


class Mark(enum.Enum):
    """What holds for some figures only."""

    DECODED = enum.auto()  # it counts or times tokens of answers, and is empty if nothing is decoded
    NOT_EXPORTED = enum.auto()


class Figure(msgspec.Struct, frozen=True):
    """A declared figure. Its name is its field's, which ends with the unit if that is a second or a rate."""

    group: Group
    what: str  # for docs/definitions.md
    unit: str = ""  # what is counted, as "token/s"; "1": a share; "": a number without a unit
    # Makes it from `analysis.figures.Counted`, which is above this room; None: several levels or parts make it.
    made: Callable[[Any], Any] | None = None


class Declared(NamedTuple):
    """A figure with its place in the summary."""

    name: str
    kind: type  # Spread, Estimate, int or float
    about: Figure
    marks: frozenset[Mark]
    columns: tuple[Column, ...]

    @property
    def nothing(self) -> Any:
        """Return the value of the figure if it has no meaning."""
        return {Spread: NO_SPREAD, Estimate: NO_ESTIMATE, int: 0}.get(self.kind)


NO_ESTIMATE = Estimate(None)
LEVEL, CLASS, REPLICA = Of
COUNT, LOAD, LENGTH, RATE, LATENCY, DELAY, GOAL = Group
DECODED, NOT_EXPORTED = Mark


def over(value: Any, divisor: float | None) -> Any:
    """Return a quotient; None if one of the two is unknown or the divisor is 0."""
    return value / divisor if divisor and value is not None else None


# ---- of levels, classes and replicas ---------------------------------------------------------------------------------


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures that a level, a class of its requests and a replica have; `x` is `analysis.figures.Counted`."""

    requests: Annotated[
        int,
        Figure(COUNT, "that began in the window", "request", lambda x: x.requests.began.sum()),
        Column("requests", (CLASS, REPLICA)),
    ]
    errors: Annotated[
        int,
        Figure(COUNT, "of these, failed", "request", lambda x: x.requests.failed.sum()),
        Column("errors", (LEVEL, CLASS, REPLICA)),
    ]
    cancelled: Annotated[int, Figure(COUNT, "of these, cut by us", "request", lambda x: x.began("cancelled"))]
    error_rate: Annotated[
        float | None,
        Figure(
            COUNT,
            "errors/(requests − cancelled − abandoned)",
            "1",
            lambda x: over(x.requests.failed.sum(), x.requests.counted),
        ),
    ]
    in_flight: Annotated[
        float | None,
        Figure(LOAD, "N by the records", "request", lambda x: x.in_flight),
        Column("in\nflight", (REPLICA,)),
    ]
    output_tokens_per_s: Annotated[
        Estimate,
        Figure(
            RATE,
            "output throughput: tokens that arrived in the window; for windows shorter than a request "
            "[The window](method.md#2-the-window)",
            "token/s",
            lambda x: x.rates.output,
        ),
        DECODED,
        Column("output\ntok/s", (CLASS, REPLICA)),
    ]
    input_tokens_per_s: Annotated[
        Estimate,
        Figure(RATE, "prompt tokens, counted when the first token arrives", "token/s", lambda x: x.rates.input),
    ]
    requests_per_s: Annotated[
        Estimate,
        Figure(
            RATE,
            "successes that ended in the window; in one shorter than a request as for tokens",
            "request/s",
            lambda x: x.rates.requests,
        ),
        Column("req/s", (LEVEL,), spare=9),
    ]
    ttft_s: Annotated[
        Spread,
        Figure(LATENCY, "TTFT of the successes that began in the window", "s", lambda x: x.requests.figures["ttft"]),
        DECODED,
        Column("TTFT ms\np50", (CLASS, REPLICA)),
        Column("TTFT ms\np99", (CLASS, REPLICA), part="p99"),
    ]
    itl_s: Annotated[
        Spread,
        Figure(
            LATENCY,
            "ITL of the same, of the tokens that were seen to arrive; n counts engine steps",
            "s",
            lambda x: x.chunks.itl,
        ),
        DECODED,
        Column("ITL ms\nmean", (CLASS,), part="mean"),
    ]
    e2e_s: Annotated[
        Spread,
        Figure(LATENCY, "E2E of the same", "s", lambda x: x.requests.e2e),
        Column("E2E ms\np50", (CLASS, REPLICA)),
    ]


class RequestFigures(Figures, frozen=True, kw_only=True):
    """The figures that a level and a class have, but no replica."""

    abandoned: Annotated[
        int | UnsetType,
        Figure(
            COUNT,
            "that began in the window and were given up; in a level only where there are some",
            "request",
            lambda x: x.began("abandoned") or UNSET,
        ),
        Column("given\nup", (CLASS,), sparse=True),
    ] = UNSET
    input_tokens_mean: Annotated[
        float | None,
        Figure(LENGTH, "of the successes that began in the window", "token", lambda x: x.mean(x.table.input_tokens)),
        Column("input\ntokens", (CLASS,)),
    ]
    output_tokens_mean: Annotated[
        float | None,
        Figure(LENGTH, "of the same", "token", lambda x: x.mean(x.requests.output_tokens)),
        DECODED,
        Column("output\ntokens", (CLASS,)),
    ]
    cached_input_fraction: Annotated[
        float | None,
        Figure(
            LENGTH,
            "of the prompt tokens, from the prefix cache: by the usage of every request, else by the server's counters",
            "1",
            lambda x: x.rates.cached,
        ),
    ]
    ttfat_s: Annotated[
        Spread,
        Figure(LATENCY, "TTFAT of the successes that began in the window", "s", lambda x: x.requests.figures["ttfat"]),
        DECODED,
    ]
    icl_s: Annotated[
        Spread, Figure(LATENCY, "ICL of the same; n counts engine steps", "s", lambda x: x.chunks.icl), DECODED
    ]
    tpot_s: Annotated[
        Spread,
        Figure(
            LATENCY,
            "TPOT of the same, of the tokens that were seen to arrive",
            "s",
            lambda x: x.requests.figures["tpot"],
        ),
        DECODED,
    ]
    goodput_requests_per_s: Annotated[
        float | None,
        Figure(
            GOAL,
            "requests that began in the window and met every limit, over its length; of a class by its own "
            "limits, else by the run's",
            "request/s",
            lambda x: None if x.met is None else x.met.sum() / x.seconds,
        ),
    ]
    goodput_tokens_per_s: Annotated[
        float | None,
        Figure(
            GOAL,
            "their output tokens, over the same",
            "token/s",
            lambda x: None if x.met is None else x.requests.output_tokens[x.requests.good][x.met].sum() / x.seconds,
        ),
        NOT_EXPORTED,
    ]
    slo_met_fraction: Annotated[
        float | None,
        Figure(
            GOAL,
            "these requests over all that began in the window, without those cut by us",
            "1",
            lambda x: None if x.met is None else over(x.met.sum(), x.requests.judged),
        ),
        Column("SLO\nmet", (CLASS,)),
    ]


# ---- all of them -----------------------------------------------------------------------------------------------------


@cache
def declared(kind: type[msgspec.Struct]) -> Mapping[str, Declared]:
    """Return the figures of a level, a class or a replica by their names, in the order in which they are shown."""
    return {each.name: each for each in sorted(_declared(kind), key=lambda each: each.about.group)}


def _declared(kind: type[msgspec.Struct]) -> Iterator[Declared]:
    """Yield the fields of a struct that are declared as figures, with their marks and columns."""
    for field in msgspec.structs.fields(kind):
        about, *more = getattr(field.type, "__metadata__", ()) or (None,)
        if isinstance(about, Figure):
            marks = frozenset(each for each in more if isinstance(each, Mark))
            columns = tuple(each for each in more if isinstance(each, Column))
            yield Declared(field.name, value_types(field.type)[0], about, marks, columns)


def value_types(annotated: Any) -> list[type]:
    """Return the classes that a field's value may be of; `UNSET` and None too, no list or dictionary."""
    plain = get_args(annotated)[0] if get_origin(annotated) is Annotated else annotated
    members = get_args(plain) if get_origin(plain) in (Union, types.UnionType) else (plain,)
    return [member for member in members if isinstance(member, type)]
