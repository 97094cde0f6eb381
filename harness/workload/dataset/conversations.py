"""Conversations: ShareGPT's lists of messages, and AIPerf's whose turns begin others (its docs/benchmark-modes/dag.md).

A conversation of ShareGPT is a list of messages, each from a human or from a model. Each message of the user is a
request of the conversation's session, and what the model then says is its answer. What a tool says is sent as the
user's: the call before it is a text, which no API takes for one. What comes before the first message of the user is
left out, and so are messages without text; both occur in the data that everybody uses. SGLang's conversations hold rows
in place of messages.

A fork of AIPerf's goes on with all that was said before it, an agent that is spawned begins with nothing, and a later
turn waits for it. So a conversation that no other one names is a task of its own, with all that it begins, which others
may begin too. Both are expected within 1,000 lines of each other, so that a file is read as a stream. Left out:
`extra`, which is other fields of a body, and rounds of an orchestrator, which has no turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from harness.base import decoding
from harness.workload.dataset import Reader, Row
from harness.workload.dataset.messages import Entry, messages, text, tools
from harness.workload.dataset.plain import turns_of
from harness.workload.request import Message
from harness.workload.task import MOST_NODES

_HUMAN, _ASSISTANT, _TOOL = "user", "assistant", "tool"
BRANCHES = ("forks", "spawns")  # fields of a turn
_AROUND = 1_000  # lines between a conversation and those that it begins, at most
_WHOLE = "message_array_with_responses"  # mode in which each turn's messages are all that is sent
_READ = ("messages", "model", "max_tokens", "tools", "delay")


class Conversation(msgspec.Struct, frozen=True):
    """One conversation; files have its messages by one of three names."""

    conversations: list[Entry | list[dict[str, Any]]] | str | None = None
    items: list[Entry] | None = None
    conversation: list[Entry] | str | None = None
    id: str | int = ""
    system: Any = None
    tools: Any = None
    model: str = ""


def conversation_rows(record: Conversation, place: str) -> Iterator[Row]:
    """Yield a request for each turn of the user in a conversation, with the recorded answer."""
    entries = next(
        (each for each in (record.conversations, record.items, record.conversation) if each is not None), None
    )
    if entries is None:
        raise ValueError("it has neither 'conversations' nor 'items'")
    # Identifiers repeat in such files: with the place they do not.
    session = f"{record.id} at {place}"
    if isinstance(entries, list):
        for number, each in enumerate(entries):
            if isinstance(each, list):
                yield from turns_of(each, f"{session}, {number}", place)
        entries = [entry for entry in entries if isinstance(entry, Entry)]
    system = [Message("system", whole)] if (whole := text(record.system)).strip() else []
    notes: list[str] = []
    defined = tools(record.tools, notes)
    sent = [_sent(message) for message in messages(entries)]
    for prompt, answer in _exchanges([*system, *(each for each in sent if each.content.strip() or each.parts)]):
        yield Row(place=place, prompt=prompt, answer=answer, session=session, tools=defined, notes=tuple(notes),
                  model=record.model)  # fmt: skip


def _sent(message: Message) -> Message:
    """Return a message as it is sent: of the assistant and of tools the text alone, a tool's as the user's."""
    if message.role not in (_ASSISTANT, _TOOL):
        return message
    return Message(_HUMAN if message.role == _TOOL else _ASSISTANT, message.text)


def _exchanges(messages: Iterable[Message]) -> Iterator[tuple[tuple[Message, ...], str | None]]:
    """Yield (messages sent, recorded answer or None) for each turn of a conversation."""
    prompt: list[Message] = []
    answers: list[str] = []
    for message in messages:
        if message.role != _ASSISTANT:
            if answers:
                yield tuple(prompt), "\n".join(answers)
                prompt, answers = [], []
            prompt.append(message)
        elif _asks(prompt):
            answers.append(message.content)
    if _asks(prompt):
        yield tuple(prompt), "\n".join(answers) or None


def _asks(prompt: Iterable[Message]) -> bool:
    return any(message.role == _HUMAN for message in prompt)


# ---- that branch
class _Fork(msgspec.Struct, frozen=True):
    child: str


class _Spawn(msgspec.Struct, frozen=True):
    children: list[str]
    join_at: int


class _Turn(msgspec.Struct, frozen=True):
    forks: list[str | _Fork] | None = None
    spawns: list[str | _Spawn] | None = None

    def begins(self, number: int) -> Iterator[tuple[str, int | None]]:
        """Yield each conversation that this turn begins, and the turn that waits for its end (None for a fork)."""
        for spawn in self.spawns or ():
            for child in [spawn] if isinstance(spawn, str) else spawn.children:
                yield child, number + 1 if isinstance(spawn, str) else spawn.join_at
        for fork in self.forks or ():
            yield fork if isinstance(fork, str) else fork.child, None


class Branching(msgspec.Struct, frozen=True):
    """A line of a file."""

    session_id: str
    turns: list[dict[str, Any]]
    pre_session_spawns: list[str] = []
    context_mode: str = ""


class _Tree:
    """The requests of a conversation and of all that it begins."""

    def __init__(self, known: dict[str, tuple[str, Branching]], used: set[str]) -> None:
        self.rows: list[Row] = []
        self._known = known
        self._used = used
        self._path: list[str] = []

    def add(self, name: str, after: tuple[int, ...], *, fresh: bool) -> tuple[int, ...]:
        """Append the requests of a conversation, and of all it begins, behind those in `after`; return its last one."""
        if name not in self._known or name in self._path:
            how = "begins itself" if name in self._path else f"is not in the file, within {_AROUND:,} lines"
            raise ValueError(f"the conversation {name[:40]!r} {how}")
        self._path.append(name)
        self._used.add(name)
        place, known = self._known[name]
        for child in known.pre_session_spawns:
            self.add(child, after, fresh=True)
        joins: dict[int, tuple[int, ...]] = {}
        for k, turn in enumerate(known.turns):
            if len(self.rows) == MOST_NODES:
                raise ValueError(f"it has more than {MOST_NODES:,} requests with all that it begins")
            whole = known.context_mode == _WHOLE or (fresh and k == 0)
            (row,) = turns_of([{each: turn[each] for each in _READ if each in turn}], self._path[0], place)
            notes = (*row.notes, *(["extra is left out"] if turn.get("extra") else []))
            waits = (*after, *joins.pop(k, ()))
            self.rows.append(msgspec.structs.replace(row, after=waits, whole=whole, notes=notes))
            after = (len(self.rows) - 1,)
            for child, join in msgspec.convert(turn, _Turn).begins(k):
                ended = self.add(child, after, fresh=join is not None)
                if join is not None:
                    joins[join] = (*joins.get(join, ()), *ended)
        self._path.pop()
        return after


def gather(records: Iterable[tuple[str, Branching | Exception]]) -> Iterator[tuple[str, Row | Exception]]:
    """Yield the requests of each conversation that no other begins, once what it begins must have come."""
    known: dict[str, tuple[str, Branching]] = {}
    seen, begun, used = set[str](), set[str](), set[str]()
    lines = deque[str | None]()  # the name on each of the latest lines; None: it has none
    for place, record in records:
        lines.append(None)
        try:
            if isinstance(record, Exception):
                raise record
            if record.session_id in seen:
                raise ValueError(f"the conversation {record.session_id[:40]!r} comes twice")
            seen.add(record.session_id)
            begun.update(record.pre_session_spawns)
            begun.update(name for turn in record.turns for name, _ in msgspec.convert(turn, _Turn).begins(0))
            known[record.session_id] = place, record
            lines[-1] = record.session_id
        except decoding.WRONG as error:
            yield place, error
        if len(lines) > 2 * _AROUND and (name := lines[-2 * _AROUND - 1]) is not None and name not in begun:
            yield from _task(name, known, used)
        if len(lines) > 3 * _AROUND and (name := lines.popleft()) in known:
            place, _ = known.pop(name)
            if name not in used:
                why = f"no conversation that can be read begins {name[:40]!r} within {_AROUND:,} lines"
                yield place, ValueError(why)
    if seen and seen <= begun:
        yield "its end", ValueError("each of its conversations is begun by another one")
    for name in [each for each in known if each not in begun]:
        yield from _task(name, known, used)


def _task(name: str, known: dict[str, tuple[str, Branching]], used: set[str]) -> Iterator[tuple[str, Row | Exception]]:
    """Yield the requests of a conversation that no other begins, and forget it; another may begin what it begins."""
    tree, (place, _) = _Tree(known, used), known[name]
    try:
        tree.add(name, (), fresh=False)
        yield from ((row.place, row) for row in tree.rows)
    except decoding.WRONG as error:
        yield place, error
    del known[name]


_KEYS = tuple(frozenset({"turns", name}) for name in BRANCHES)
READERS = (
    Reader(
        name="sharegpt",
        what="a conversation of ShareGPT",
        keys=(frozenset({"conversations"}), frozenset({"items"}), frozenset({"conversation"})),
        record=Conversation,
        rows=conversation_rows,
    ),
    Reader(name="dag", what="a conversation that branches", keys=_KEYS, record=Branching, gather=gather,
           complete=True),
)  # fmt: skip
