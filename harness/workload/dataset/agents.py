"""Recorded agents and chats: their requests, and which of them wait for which.

What a request waits for is read off the tree of its trace. A span waits for those of the same parent that had ended
before it began and that no other such span came after. Where there are none it waits for what its parent waits for. A
span that is no request represents the last requests in it. So branches that ran side by side, like sub-agents, stay
side by side.

Spans are OpenTelemetry's, by its conventions for generative AI. Format: OTLP/JSON, an `ExportTraceServiceRequest` a
line (opentelemetry.io/docs/specs/otel/protocol/file-exporter), and the attributes of
opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans. Spans come in no order, so all of a file are kept, without
their texts, until its end. Left out: the messages that a span may carry.

The prompts of Weka's and Bailian's traces are known as hashes of KV blocks. A Weka trace
(github.com/callanjfox/kv-cache-tester, docs/trace_replay_tester.md; SemiAnalysis' data sets have more) is one agent's
conversation: requests, with times in seconds since it began, and sub-agents with theirs. The pause before a request is
the tools' time; a trace without `api_time` has only the times from request to request. A Bailian trace
(github.com/alibaba-edu/qwen-bailian-usagetraces-anon) has a row for each request, with the chat that it follows. Each
prompt is whole, so an answer is never part of a later prompt but by the recorded blocks. Left out: what kind of input
and output a request had, and why it stopped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Annotated

import msgspec

from harness.workload.dataset import PromptTokens, Reader, Row, Seconds, Tokens

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
    parents: dict[str | None, tuple[str, ...]] = {None: ()}
    for parent in (None, *order):
        siblings = _Siblings(spans, children.get(parent, ()), last)
        for name in children.get(parent, ()):
            parents[name] = siblings.before(spans[name].began) or parents[parent]
            left = _less(left, parents[name])
    return {name: parents[name] for name in spans}


def _downwards(children: Mapping[str | None, Sequence[str]]) -> list[str]:
    """Return the names of all spans below the roots (the children of None), each behind its parent."""
    order = list(children.get(None, ()))
    for name in order:  # the list grows meanwhile
        order += children.get(name, ())
    return order


def _less(left: int, names: Sequence[str]) -> int:
    """Return how many more names may follow after these; raise ValueError if these are too many already."""
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


# ---- spans of OpenTelemetry ----------------------------------------------------------------------------------

MOST_SPANS = 500_000  # most spans of one file: half a kilobyte each is kept
_REQUESTS = {"chat", "text_completion", "generate_content"}  # values of gen_ai.operation.name
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
    """Return a span's times and parent, and its row if it is a request; raise ValueError for wrong times or tokens."""
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
    """Return the token count in the first of the attributes `names` that a span has; raise ValueError without any."""
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
    numbers: dict[tuple[int, str], int] = {}  # number of each request in its session
    count: Counter[str] = Counter()
    for _, _, trace, name, row in requests:
        numbers[trace, name] = count[row.session]
        count[row.session] += 1
    # By session and trace: when its latest request ended, and that request's number.
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


# ---- traces of KV blocks -------------------------------------------------------------------------------------

_SUB_AGENT = "subagent"
_DEEPEST = 8  # sub-agents of sub-agents
_BAILIAN_BLOCK = 16  # tokens of a hash, by the data set's README

_Hash = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Block = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]


class Call(msgspec.Struct, frozen=True, gc=False):
    """A request of an agent, or a sub-agent with its own."""

    at_s: Seconds = msgspec.field(name="t")
    type: str = "n"
    model: str = ""
    input_tokens: PromptTokens | None = msgspec.field(name="in", default=None)
    output_tokens: Tokens | None = msgspec.field(name="out", default=None)
    hashes: tuple[_Hash, ...] | None = msgspec.field(name="hash_ids", default=None)
    took_s: Seconds | None = msgspec.field(name="api_time", default=None)
    requests: list[Call] | None = None  # requests of a sub-agent

    @property
    def ended_s(self) -> float:
        return self.at_s + (self.took_s or 0.0)


class Trace(msgspec.Struct, frozen=True):
    """One agent's conversation."""

    requests: list[Call]
    id: str | int = ""
    block: _Block | None = msgspec.field(name="block_size", default=None)
    scope: str = msgspec.field(name="hash_id_scope", default="local")


class _Found(msgspec.Struct, frozen=True):
    """One request of a trace, or a sub-agent, with its place in the tree."""

    name: str
    parent: str
    call: Call
    began_s: float
    ended_s: float
    first: bool  # whether it is a sub-agent's first


def weka_rows(trace: Trace, place: str) -> Iterator[Row]:
    """Yield a trace's requests in the order in which they began; raise ValueError if they cannot be replayed."""
    flat = list(_flat(trace.requests, "", 0.0, _relative(trace.requests)))
    requests = sorted((each for each in flat if each.call.type != _SUB_AGENT), key=lambda each: each.began_s)
    if not requests:
        raise ValueError("it holds no requests")
    if trace.block is None and any(request.call.hashes for request in requests):
        raise ValueError("it has hash_ids and no block_size")
    after = waits({each.name: _waiting(each) for each in flat})
    places = {each.name: number for number, each in enumerate(requests)}
    ends = {each.name: each.ended_s for each in flat}
    notes = []
    if all(request.call.took_s is None for request in requests) and len(requests) > 1:
        notes.append("it has no api_time: pauses hold the recorded answers' time")
    for request in requests:
        call, earlier = request.call, after[request.name]
        if call.input_tokens is None:
            raise ValueError(f"its request {places[request.name] + 1} has no 'in'")
        yield Row(
            place=place,
            input_tokens=call.input_tokens,
            output_tokens=call.output_tokens,
            at_s=request.began_s,
            session=f"{trace.id} at {place}",
            after=tuple(sorted(places[name] for name in earlier)),
            pause_s=request.began_s - max((ends[name] for name in earlier), default=requests[0].began_s),
            hashes=call.hashes or None,
            whole=request.first,
            notes=tuple(notes),
            block=trace.block or 1,
            scope="" if trace.scope == "global" else f"{trace.id} at {place}",
            model=call.model,
        )


def _relative(calls: Sequence[Call]) -> bool:
    """Say whether the times in sub-agents are since those began: published traces have both."""
    inner = ((call, call.requests[0]) for call in calls if call.type == _SUB_AGENT and call.requests)
    return any(first.at_s < each.at_s for each, first in inner)


def _flat(calls: Sequence[Call], parent: str, since_s: float, relative: bool) -> Iterator[_Found]:
    """Yield the requests and sub-agents of a tree of calls, in absolute time; raise ValueError if a clock runs back."""
    if parent.count(".") >= _DEEPEST:
        raise ValueError(f"its sub-agents are more than {_DEEPEST} deep")
    latest = 0.0
    for number, each in enumerate(calls):
        if each.at_s < latest:
            raise ValueError(f"its clock runs back, from {latest:g} to {each.at_s:g} s")
        latest = each.at_s
        name, began_s = f"{parent}.{number}", since_s + each.at_s
        if each.type != _SUB_AGENT:
            yield _Found(name, parent, each, began_s, since_s + each.ended_s, bool(parent) and number == 0)
            continue
        inner = list(_flat(each.requests or (), name, began_s if relative else 0.0, relative))
        if inner:
            yield _Found(name, parent, each, began_s, max(found.ended_s for found in inner), False)
            yield from inner


def _waiting(found: _Found) -> Waiting:
    began, ended = round(found.began_s * 1e9), round(found.ended_s * 1e9)
    return Waiting(found.parent, began, max(began, ended), found.call.type != _SUB_AGENT)


class Chat(msgspec.Struct, frozen=True, gc=False):
    """A request of a Bailian trace."""

    chat: int | str = msgspec.field(name="chat_id")
    at_s: Seconds = msgspec.field(name="timestamp")
    input_tokens: PromptTokens = msgspec.field(name="input_length")
    output_tokens: Tokens = msgspec.field(name="output_length")
    parent: int | str = msgspec.field(name="parent_chat_id", default=-1)
    hashes: tuple[_Hash, ...] | None = msgspec.field(name="hash_ids", default=None)
    block: _Block = msgspec.field(name="block_size", default=_BAILIAN_BLOCK)


class _Chats:
    """Reads the requests of a Bailian trace, each in the session of the chat that its conversation began with."""

    def __init__(self) -> None:
        self._known: dict[int | str, tuple[str, int, float]] = {}  # by chat: session, place in it, time
        self._counts: Counter[str] = Counter()

    def __call__(self, chat: Chat, place: str) -> Iterator[Row]:
        """Yield a chat as a request of the session that its parent belongs to, or of a new one if that is not there.

        Raise ValueError for a chat that comes twice or before its parent.
        """
        if chat.chat in self._known or chat.chat == chat.parent:
            raise ValueError(f"the chat {str(chat.chat)[:40]} follows itself, or comes twice")
        session, parent, at_s = self._known.get(chat.parent, (str(chat.chat), None, chat.at_s))
        if chat.at_s < at_s:
            raise ValueError(f"its clock runs back: the chat before it began {at_s - chat.at_s:g} s later")
        lost = parent is None and chat.parent not in (-1, "-1")
        self._known[chat.chat] = session, self._counts[session], chat.at_s
        self._counts[session] += 1
        yield Row(
            place=place,
            input_tokens=chat.input_tokens,
            output_tokens=chat.output_tokens,
            at_s=chat.at_s,
            session=session,
            after=() if parent is None else (parent,),
            pause_s=None if parent is None else chat.at_s - at_s,
            hashes=chat.hashes,
            notes=("its parent is not in the file before it: it begins a session",) if lost else (),
            block=chat.block,
        )


_SPANS = (frozenset({"resourceSpans"}),)
_WEKA, _BAILIAN = frozenset({"requests"}), frozenset({"chat_id", "timestamp", "input_length", "output_length"})
READERS = (
    Reader(name="spans", what="spans of OpenTelemetry", keys=_SPANS, record=Record, gather=gather, complete=True),
    Reader(name="weka", what="a Weka trace", keys=(_WEKA,), record=Trace, rows=weka_rows, complete=True),
    Reader(name="bailian", what="a request of a Bailian trace", keys=(_BAILIAN,), record=Chat, begin=_Chats,
           complete=True),
)  # fmt: skip
