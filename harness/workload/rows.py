"""Requests of a dataset, in its order and again from the first row; the table's file is mapped by every worker.

A row's own text is sent where it has one, a later one of a session behind the turns before it, with the answers that
were recorded. Where a row has lengths only, its prompt is made of words: blocks of equal hashes are equal texts until
the rows begin anew, and all else is drawn by the request's number, so that it is never sent twice.

Rows that belong together may also be one task (`Recorded`). They wait for each other as the file says, else each for
the one before. A row adds its own messages to the conversation; a row with a length alone adds as many words as bring
the history to it. Where it is shorter than that history, as a sub-agent's is, or holds its history itself, as messages
and hashes of blocks do, it begins a conversation of its own. Pauses are the file's, else drawn.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from harness.spec.classes import Cancel
from harness.spec.distribution import Distribution, parse
from harness.spec.scenario import Scenario
from harness.workload.dataset import Row
from harness.workload.dataset.table import Table
from harness.workload.request import Message, Request
from harness.workload.task import MOST_NODES, Node, Task
from harness.workload.text import Passages, PromptWords, Vocabulary, spaced

CHARACTERS_A_TOKEN = 4  # of English text, by OpenAI's rule of thumb, for datasets that have texts without their lengths


class Rows(msgspec.Struct, frozen=True, kw_only=True, dict=True, tag="rows", tag_field="kind"):
    """A source of a table's requests; row = number mod rows."""

    path: str  # path of the table, on the worker's machine
    words: tuple[str, ...]
    seed: int
    prompt_words: int = 1  # words of the mean prompt
    output_tokens: int  # tokens of an answer whose length no row says
    added_tokens: int = 0  # tokens that the server's template adds to every prompt
    tokens_per_word: float = 1.0
    classes: dict[str, Cancel | None] = {}  # by the models that rows were sent to: when their requests are given up

    @cached_property
    def table(self) -> Table:
        return Table(Path(self.path))

    def request(self, number: int) -> Request:
        """Return the n-th request: that of the n-th row, from the first row again behind the last."""
        at = number % len(self.table)
        row = self.table.row(at)
        if row.prompt is None:
            again = number // len(self.table)
            prompt: str | tuple[Message, ...] = self._words(row.input_tokens or 1, f"row:{number}", row, again)
        else:
            prompt = self._texts(at, row)
        tokens = answer_tokens(row) or self.output_tokens
        session = str(self.table.session[at]) if row.session else ""
        class_, cancel = self.classed(row, number)
        return Request(
            number=number,
            prompt=prompt,
            output_tokens=tokens,
            input_tokens=row.input_tokens,
            tools=row.tools,
            class_=class_,
            cancel=cancel,
            session=session,
        )

    def classed(self, row: Row, number: int) -> tuple[str, Cancel | None]:
        """Return (class, cancellation) of a row's request: its model's class or "", and its own or its class's."""
        class_ = row.model if row.model in self.classes else ""
        if row.cancel_s is not None:
            return class_, Cancel(share=1.0, after_s=row.cancel_s)
        cancel = self.classes.get(class_)
        drawn = cancel is not None and random.Random(f"{self.seed}:cancel:{number}").random() < cancel.share
        return class_, cancel if drawn else None

    def of_session(self, number: int) -> list[int]:
        """Return the numbers of the rows of the n-th session, and again from the first."""
        return self.table.of_session(number % self.table.sessions)

    def own(self, session: int, turn: int, tokens: int) -> tuple[Message, ...]:
        """Return the messages that a turn adds to its session; made of words for `tokens` tokens if it has no text."""
        row = self.of_turn(session, turn)
        if row.prompt is None:
            again = session // self.table.sessions
            return (Message("user", self._words(tokens, f"session:{session}:{turn}", row, again)),)
        return _added(row, self.of_turn(session, 0) if turn else None)

    def answer(self, session: int, turn: int) -> str | None:
        """Return the recorded answer of a turn of a session; None if the file has none."""
        return self.of_turn(session, turn).answer

    def of_turn(self, session: int, turn: int) -> Row:
        """Return the row of a turn of a session."""
        return self.table.row(self.of_session(session)[turn])

    def _texts(self, at: int, row: Row) -> str | tuple[Message, ...]:
        """Return a row's prompt: its text, or as messages behind those and the answers of its session so far."""
        if not row.session or row.whole:
            return row.prompt or ""
        members = self.table.of_session(self.table.session[at])
        turns, place = [(at, row)], members.index(at)
        while not turns[-1][1].whole and (parents := _parents(turns[-1][1], place)):
            place = parents[0]
            turns.append((members[place], self.table.row(members[place])))
        messages: list[Message] = []
        first: Row | None = None
        for number, turn in reversed(turns):
            messages += _added(turn, first)
            if number == at:
                break
            first = first or turn
            answered = turn.answer or self._words(answer_tokens(turn) or self.output_tokens, f"answer:{number}")
            messages.append(Message("assistant", answered))
        return tuple(messages)

    def _words(self, tokens: int, key: str, row: Row = Row(), again: int = 0) -> str:
        """Return a prompt of `tokens` tokens made of words: the same text for equal block hashes, the rest by `key`.

        Each time `again` that the rows begin anew they have words of their own, so that no more is cached than before.
        """
        left = max(1, tokens - self.added_tokens)
        texts = []
        for block in row.hashes or ():
            tokens = min(row.block, left)
            if tokens:
                texts.append(self._vocabulary.text(tokens, f"block:{again}:{row.scope}:{block}"))
            left -= tokens
        if left or not texts:
            texts.append(self._passages.text(max(1, round(left / self.tokens_per_word)), key))
        return "".join(texts)

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary(words=self.words, seed=self.seed, tokens_per_word=self.tokens_per_word)

    @cached_property
    def _passages(self) -> Passages:
        return Passages(spaced(self.words), self.seed)


def _added(row: Row, first: Row | None) -> tuple[Message, ...]:
    """Return a row's messages, without the system prompts that the first row of its session has already sent."""
    if isinstance(row.prompt, str):
        return (Message("user", row.prompt),)
    known = first.prompt if first is not None and not row.whole and isinstance(first.prompt, tuple) else ()
    return tuple(message for message in row.prompt or () if message.role != "system" or message not in known)


def answer_tokens(row: Row) -> int | None:
    """Return the tokens of a row's answer: as it says, or by its recorded answer; None if it has neither."""
    if row.output_tokens is not None:
        return row.output_tokens
    return max(1, round(len(row.answer) / CHARACTERS_A_TOKEN)) if row.answer else None


def prompt_tokens(row: Row) -> int:
    """Return the tokens of a row's own prompt: as it says, or by its characters."""
    return text_tokens(row.prompt or "", row.tools) if row.input_tokens is None else row.input_tokens


def text_tokens(prompt: str | Sequence[Message], tools: Sequence[dict[str, Any]] | None = None) -> int:
    """Return the estimated tokens of a prompt and of definitions of tools, from their number of characters."""
    texts = [prompt] if isinstance(prompt, str) else [message.text for message in prompt]
    if tools:
        texts.append(msgspec.json.encode(tools).decode())
    return max(1, round(sum(map(len, texts)) / CHARACTERS_A_TOKEN))


class Recorded(msgspec.Struct, frozen=True, kw_only=True, dict=True, tag="recorded", tag_field="kind"):
    """The sessions of a table, in the order of their first rows, and again from the first."""

    rows: Rows
    think_ms: Distribution | None = None  # pause before a row whose file says none; None: no time
    drawn: bool = False  # whether pauses are drawn although the file says them

    @property
    def seed(self) -> int:
        return self.rows.seed

    def task(self, number: int) -> Task:
        """Return the n-th session, at most MOST_NODES rows of it; its first request is due at once."""
        rng = random.Random(f"{self.seed}:recorded:{number}")
        members = self.rows.of_session(number)[:MOST_NODES]
        nodes: list[Node] = []
        whole: list[int] = []  # tokens of each prompt, with its history
        for place, at in enumerate(members):
            row = self.rows.table.row(at)
            parents = _parents(row, place)
            answered = parents if row.prompt is None else parents[:1]  # a text holds what is known of its other parents
            history = whole[parents[0]] + sum(nodes[parent].output_tokens for parent in answered) if parents else 0
            own = _own_tokens(row, history)
            fresh = own < 1 or ((row.whole or row.hashes is not None) and bool(parents))
            if fresh:
                own, history = prompt_tokens(row), 0
            drawn_s = self.think_ms.draw(rng) / 1000 if self.think_ms and parents else 0.0
            nodes.append(
                Node(
                    name=f"turn {place + 1}",
                    parents=parents,
                    input_tokens=own,
                    output_tokens=answer_tokens(row) or self.rows.output_tokens,
                    pause_s=drawn_s if row.pause_s is None or place == 0 or (self.drawn and parents) else row.pause_s,
                    fresh=fresh,
                    results=row.prompt is None,
                )
            )
            whole.append(history + own)
        return Task(number=number, nodes=tuple(nodes))


def _parents(row: Row, place: int) -> tuple[int, ...]:
    """Return the places in the session of the rows that a row waits for."""
    if row.after is None:
        return (place - 1,) if place else ()
    return tuple(before for before in row.after if before < place)


def _own_tokens(row: Row, history: int) -> int:
    """Return the tokens that a row adds to its history's; below 1 where its whole prompt is no longer than that."""
    if row.prompt is None and row.input_tokens is not None:
        return row.input_tokens - history
    return prompt_tokens(msgspec.structs.replace(row, input_tokens=None, tools=None) if history else row)


def of(scenario: Scenario, words: PromptWords, path: str, prompt_words: int = 1) -> Rows:
    """Return the source that sends the rows of the table at `path` as requests.

    A row without text gets a prompt made of `words`, a row without a length of answer the workload's mean.
    `prompt_words` is the length of the mean prompt, in words.
    """
    return Rows(
        path=path,
        words=words.words,
        seed=scenario.workload.seed or 0,
        prompt_words=prompt_words,
        output_tokens=round(parse(scenario.workload.output_tokens).mean()),
        added_tokens=words.added_tokens,
        tokens_per_word=words.tokens_per_word,
        classes={spec.name: spec.cancel for spec in scenario.class_ or ()},
    )
