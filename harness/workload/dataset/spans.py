"""Spans of an agent by OpenTelemetry's conventions for generative AI: requests, and which of them wait for which.

Format: OTLP/JSON, an `ExportTraceServiceRequest` a line (opentelemetry.io/docs/specs/otel/protocol/file-exporter), and
the attributes of opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans. Spans stand in no order, so all of a file
are kept, without their texts, until its end. Left out: the messages that a span may carry.
What a request waits for is read off the tree of its trace (`waits`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec

from harness.workload.dataset.row import PromptTokens, Row, Tokens
from harness.workload.dataset.waits import Waiting, waits

WHAT = "spans of OpenTelemetry"
KEYS = (frozenset({"resourceSpans"}),)
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
    """The requests of all spans in the order they began, behind what is broken."""
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


def rows(row: Row, _place: str) -> Iterator[Row]:
    """The request that `gather` made."""
    yield row


def _kept(span: Span, place: str) -> _Kept:
    """A span without what is not needed; ValueError where it is a request that does not say how long it was."""
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
        )
    return _Kept(Waiting(span.parent, span.began, span.ended, row is not None), row)


def _tokens(values: dict[str, _Value], names: tuple[str, ...]) -> int:
    """The first of the attributes that is there."""
    for name in names:
        value = values.get(name, _NO_VALUE).integer
        if value is not None:
            return value
    raise ValueError(f"a request has no {names[0]}")


def _rows(traces: list[tuple[dict[str, _Kept], dict[str, tuple[str, ...]]]]) -> Iterator[tuple[str, Row]]:
    """The requests of all traces, each with the rows that it waits for."""
    requests = [
        (each.span.began, each.span.ended, trace, name, each.row)
        for trace, (kept, _) in enumerate(traces)
        for name, each in kept.items()
        if each.row is not None
    ]
    requests.sort(key=lambda request: request[:4])
    numbers = {(trace, name): number for number, (_, _, trace, name, _) in enumerate(requests)}
    # Of each session and trace: when the last of its requests so far ended, and its number.
    last: defaultdict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
    for number, (began, ends, trace, name, row) in enumerate(requests):
        kept, after = traces[trace]
        before = tuple(sorted(numbers[trace, each] for each in after[name]))
        ended = max((kept[each].span.ended for each in after[name]), default=None)
        of_session = last[row.session]
        earlier = max((found for of, found in of_session.items() if of != trace and found[0] <= began), default=None)
        if not before and earlier is not None:  # it begins a later trace of its conversation
            ended, before = earlier[0], (earlier[1],)
        of_session[trace] = max(of_session.get(trace, (0, 0)), (ends, number))
        pause_s = None if ended is None else (began - ended) / 1e9
        yield row.place, msgspec.structs.replace(row, after=before, pause_s=pause_s)
