"""Recorded agents and chats whose prompts are known as hashes of KV blocks: Weka's traces and Bailian's.

A Weka trace (github.com/callanjfox/kv-cache-tester, docs/trace_replay_tester.md; SemiAnalysis' data sets have more) is
one agent's conversation: requests, with times in seconds since it began, and sub-agents with theirs. Which of them wait
for which follows from when they began and ended, as it does for spans. The pause before a request is the
tools' time; a trace without `api_time` has only the times from request to request. A Bailian trace
(github.com/alibaba-edu/qwen-bailian-usagetraces-anon) has a row for each request, with the chat that it follows.

Each prompt is whole, so an answer is never part of a later prompt but by the recorded blocks. Left out: what kind of
input and output a request had, and why it stopped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import msgspec

from harness.workload.dataset import PromptTokens, Reader, Row, Seconds, Tokens
from harness.workload.dataset.spans import Waiting, waits

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
    requests: list[Call] | None = None  # of a sub-agent

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
    first: bool  # of a sub-agent


def weka_rows(trace: Trace, place: str) -> Iterator[Row]:
    """Yield a trace's requests in the order in which they began; ValueError where they cannot be replayed."""
    found = list(_flat(trace.requests, "", 0.0, _relative(trace.requests)))
    requests = sorted((each for each in found if each.call.type != _SUB_AGENT), key=lambda each: each.began_s)
    if not requests:
        raise ValueError("it holds no requests")
    if trace.block is None and any(each.call.hashes for each in requests):
        raise ValueError("it has hash_ids and no block_size")
    after = waits({each.name: _waiting(each) for each in found})
    places = {each.name: number for number, each in enumerate(requests)}
    ends = {each.name: each.ended_s for each in found}
    notes = []
    if all(each.call.took_s is None for each in requests) and len(requests) > 1:
        notes.append("it has no api_time: pauses hold the recorded answers' time")
    for each in requests:
        call, earlier = each.call, after[each.name]
        if call.input_tokens is None:
            raise ValueError(f"its request {places[each.name] + 1} has no 'in'")
        yield Row(
            place=place,
            input_tokens=call.input_tokens,
            output_tokens=call.output_tokens or None,
            at_s=each.began_s,
            session=f"{trace.id} at {place}",
            after=tuple(sorted(places[name] for name in earlier)),
            pause_s=each.began_s - max((ends[name] for name in earlier), default=requests[0].began_s),
            hashes=call.hashes or None,
            whole=each.first,
            notes=tuple(notes),
            block=trace.block or 1,
            scope="" if trace.scope == "global" else f"{trace.id} at {place}",
            model=call.model,
        )


def _relative(calls: Sequence[Call]) -> bool:
    """Say whether the times in sub-agents are since those began: published traces have both."""
    inner = ((each, each.requests[0]) for each in calls if each.type == _SUB_AGENT and each.requests)
    return any(first.at_s < each.at_s for each, first in inner)


def _flat(calls: Sequence[Call], parent: str, since_s: float, relative: bool) -> Iterator[_Found]:
    """Yield all requests and sub-agents of a tree of calls, with absolute times; ValueError if a clock runs back."""
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


def _chats(records: Iterable[tuple[str, Chat | Exception]]) -> Iterator[tuple[str, Row | Exception]]:
    """Yield the requests of a Bailian trace, each in the session of the chat that its conversation began with."""
    known: dict[int | str, tuple[str, int, float]] = {}  # of each chat: session, place in it, time
    counts: Counter[str] = Counter()
    for place, chat in records:
        if isinstance(chat, Exception):
            yield place, chat
            continue
        try:
            yield place, _chat(chat, place, known, counts)
        except ValueError as error:
            yield place, error


def _chat(chat: Chat, place: str, known: dict[int | str, tuple[str, int, float]], counts: Counter[str]) -> Row:
    if chat.chat in known or chat.chat == chat.parent:
        raise ValueError(f"the chat {str(chat.chat)[:40]} follows itself, or comes twice")
    session, parent, at_s = known.get(chat.parent, (str(chat.chat), None, chat.at_s))
    if chat.at_s < at_s:
        raise ValueError(f"its clock runs back: the chat before it began {at_s - chat.at_s:g} s later")
    lost = parent is None and chat.parent not in (-1, "-1")
    row = Row(
        place=place,
        input_tokens=chat.input_tokens,
        output_tokens=chat.output_tokens or None,
        at_s=chat.at_s,
        session=session,
        after=() if parent is None else (parent,),
        pause_s=None if parent is None else chat.at_s - at_s,
        hashes=chat.hashes,
        notes=("its parent is not in the file before it: it begins a session",) if lost else (),
        block=chat.block,
    )
    known[chat.chat] = session, counts[session], chat.at_s
    counts[session] += 1
    return row


_WEKA, _BAILIAN = frozenset({"requests"}), frozenset({"chat_id", "timestamp", "input_length", "output_length"})
READERS = (
    Reader(name="weka", what="a Weka trace", keys=(_WEKA,), record=Trace, rows=weka_rows, complete=True),
    Reader(name="bailian", what="a request of a Bailian trace", keys=(_BAILIAN,), record=Chat, gather=_chats,
           complete=True),
)  # fmt: skip
