"""Spans of an agent by OpenTelemetry's conventions for generative AI: requests, and which of them wait for which.

Format: OTLP/JSON, an `ExportTraceServiceRequest` a line (opentelemetry.io/docs/specs/otel/protocol/file-exporter), and
the attributes of opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans. Spans come in no order, so all of a file
are kept, without their texts, until its end. Left out: the messages that a span may carry.

What a request waits for is read off the tree of its trace. A span waits for those of the same parent that had ended
before it began and that no other such span came after. Where there are none it waits for what its parent waits for. A
span that is no request represents the last requests in it. So branches that ran side by side, like sub-agents, stay
side by side.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Annotated

import msgspec

from harness.workload.dataset import PromptTokens, Reader, Row, Tokens

MOST_SPANS = 500_000  # of one file: half a kilobyte each is kept
_REQUESTS = {"chat", "text_completion", "generate_content"}  # of gen_ai.operation.name
_INPUT = "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"  # now, and until 2024
_OUTPUT = "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"

_Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Value(msgspec.Struct, frozen=True):
    string: str | None = msgspec.field(name="stringValue", default=None)
    integer: int | None = msgspec.field(name="intValue", default=None)


_NO_VALUE = _Value()


class _Attribute(msgspec.Struct, frozen=True):
    key: str
    value: _Value = _NO_VALUE


class Span(msgspec.Struct, frozen=True):
    """One span, as far as it is read."""

    trace: str = msgspec.field(name="traceId")
    id: str = msgspec.field(name="spanId")
    began: _Nanoseconds = msgspec.field(name="startTimeUnixNano")
    ended: _Nanoseconds = msgspec.field(name="endTimeUnixNano")
    parent: str = msgspec.field(name="parentSpanId", default="")
    attributes: list[_Attribute] = []


class _Scope(msgspec.Struct, frozen=True):
    spans: list[Span] = []


class _Resource(msgspec.Struct, frozen=True):
    scopes: list[_Scope] = msgspec.field(name="scopeSpans", default_factory=list)


class Record(msgspec.Struct, frozen=True):
    """What is exported at once: spans of any traces."""

    resources: list[_Resource] = msgspec.field(name="resourceSpans")


class _Kept(msgspec.Struct, frozen=True):
    """What stays of a span until the end of the file."""

    span: Waiting
    row: Row | None  # None: it is no request


def gather(records: Iterable[tuple[str, Record | Exception]]) -> Iterator[tuple[str, Row | Exception]]:
    """Yield errors of broken spans, then the requests among all traces' spans in the order in which they began."""
    traces: dict[str, dict[str, _Kept]] = {}
    count = 0
    for place, record in records:
        if isinstance(record, Exception):
            yield place, record
            continue
        for span in (span for resource in record.resources for scope in resource.scopes for span in scope.spans):
            kept = traces.setdefault(span.trace, {})
            try:
                if span.id in kept:
                    raise ValueError(f"two spans have the identifier {span.id[:40]!r}")
                if count == MOST_SPANS:
                    raise ValueError(f"the file has more than {MOST_SPANS:,} spans")
                kept[span.id] = _kept(span, place)
                count += 1
            except ValueError as error:
                yield place, error
    found = []
    for trace, kept in traces.items():
        try:
            found.append((kept, waits({name: each.span for name, each in kept.items()})))
        except ValueError as error:
            yield f"trace {trace[:40]}", error
    yield from _rows(found)


def _kept(span: Span, place: str) -> _Kept:
    """Return a span's times and parent, and its row if it is a request; ValueError for wrong times or tokens."""
    if span.ended < span.began:
        raise ValueError(f"the span {span.id[:40]!r} ended before it began")
    values = {attribute.key: attribute.value for attribute in span.attributes}
    operation = values.get("gen_ai.operation.name", _NO_VALUE).string
    row = None
    if operation in _REQUESTS and "error.type" not in values:  # one that failed has no lengths
        row = Row(
            place=place,
            input_tokens=msgspec.convert(_tokens(values, _INPUT), PromptTokens),
            output_tokens=msgspec.convert(_tokens(values, _OUTPUT), Tokens) or None,
            at_s=span.began / 1e9,
            session=values.get("gen_ai.conversation.id", _NO_VALUE).string or span.trace,
            model=values.get("gen_ai.request.model", _NO_VALUE).string or "",
        )
    return _Kept(Waiting(span.parent, span.began, span.ended, row is not None), row)


def _session(kept: _Kept) -> str | None:
    return None if kept.row is None else kept.row.session


def _tokens(values: dict[str, _Value], names: tuple[str, ...]) -> int:
    """Return the token count in the first of the attributes `names` that a span has; ValueError without any."""
    for name in names:
        value = values.get(name, _NO_VALUE).integer
        if value is not None:
            return value
    raise ValueError(f"a request has no {names[0]}")


def _rows(traces: list[tuple[dict[str, _Kept], dict[str, tuple[str, ...]]]]) -> Iterator[tuple[str, Row]]:
    """Yield the requests of all traces, each with the rows that it waits for."""
    requests = [
        (each.span.began, each.span.ended, trace, name, each.row)
        for trace, (kept, _) in enumerate(traces)
        for name, each in kept.items()
        if each.row is not None
    ]
    requests.sort(key=lambda request: request[:4])
    numbers: dict[tuple[int, str], int] = {}  # of each request, in its session
    count: Counter[str] = Counter()
    for _, _, trace, name, row in requests:
        numbers[trace, name] = count[row.session]
        count[row.session] += 1
    # Of each session and trace: when the last of its requests so far ended, and its number.
    last: defaultdict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
    for began, ends, trace, name, row in requests:
        kept, after = traces[trace]
        before = tuple(sorted(numbers[trace, each] for each in after[name] if _session(kept[each]) == row.session))
        ended = max((kept[each].span.ended for each in after[name]), default=None)
        of_session = last[row.session]
        earlier = max((found for of, found in of_session.items() if of != trace and found[0] <= began), default=None)
        if not before and earlier is not None:  # it begins a later trace of its conversation
            ended, before = earlier[0], (earlier[1],)
        of_session[trace] = max(of_session.get(trace, (0, 0)), (ends, numbers[trace, name]))
        pause_s = None if ended is None else (began - ended) / 1e9
        yield row.place, msgspec.structs.replace(row, after=before, pause_s=pause_s)


_MOST = 1_000_000  # names in all that is found of one trace: a thousand requests that wait for a thousand


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """A span, by its name in its trace."""

    parent: str  # the name of another; any other name: none
    began: int  # ns
    ended: int
    request: bool


def waits(spans: Mapping[str, Waiting]) -> dict[str, tuple[str, ...]]:
    """Return for each span the names of the requests that must end before it begins, by the recorded times.

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
    """Return the names of all spans below the roots (the children of None), each behind its parent."""
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
        """Return the requests that what begins at `moment` (None: after all) waits for: the last that had ended."""
        many = len(self._ends) if moment is None else bisect_right(self._ends, moment)
        if not many:
            return ()
        first = bisect_right(self._ends, self._latest[many - 1], hi=many)
        return tuple(chain.from_iterable(self._last[first:many]))


_KEYS = (frozenset({"resourceSpans"}),)
READERS = (
    Reader(name="spans", what="spans of OpenTelemetry", keys=_KEYS, record=Record, gather=gather, complete=True),
)
