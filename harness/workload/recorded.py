"""Sessions of a dataset: the rows that belong together, as a task. Pure, but for the table that it reads.

A session's rows wait for each other as the file says, else each for the one before. A row adds its own messages to the
conversation; a row with a length alone adds as many words as bring the history to it. Where it is shorter than that
history, as a sub-agent's is, or holds its history itself, it begins a conversation of its own. Pauses are the file's,
else drawn.
"""

from __future__ import annotations

import random

import msgspec

from harness.spec.distribution import Distribution
from harness.workload.dataset.row import Row
from harness.workload.rows import Rows, answer_tokens, prompt_tokens
from harness.workload.task import MOST_NODES, Node, Task


class Recorded(msgspec.Struct, frozen=True, kw_only=True, dict=True, tag="recorded", tag_field="kind"):
    """The sessions of a table, in the order of their first rows, and again from the first."""

    rows: Rows
    think_ms: Distribution | None = None  # before a row whose file says no pause; None: no time

    @property
    def seed(self) -> int:
        return self.rows.seed

    def task(self, number: int) -> Task:
        """The n-th session, at most MOST_NODES rows of it; its first request is due at once."""
        rng = random.Random(f"{self.seed}:recorded:{number}")
        members = self.rows.of_session(number)[:MOST_NODES]
        nodes: list[Node] = []
        whole: list[int] = []  # tokens of each prompt, with its history
        for place, at in enumerate(members):
            row = self.rows.table.row(at)
            parents = _parents(row, place, members)
            history = whole[parents[0]] + sum(nodes[parent].output_tokens for parent in parents) if parents else 0
            own = _own_tokens(row, history)
            fresh = own < 1 or (row.whole and bool(parents))
            if fresh:
                own, history = prompt_tokens(row), 0
            drawn_s = self.think_ms.draw(rng) / 1000 if self.think_ms and parents else 0.0
            nodes.append(
                Node(
                    name=f"turn {place + 1}",
                    parents=parents,
                    input_tokens=own,
                    output_tokens=answer_tokens(row) or self.rows.output_tokens,
                    pause_s=drawn_s if row.pause_s is None or not parents else row.pause_s,
                    fresh=fresh,
                )
            )
            whole.append(history + own)
        return Task(number=number, nodes=tuple(nodes))


def _parents(row: Row, place: int, members: list[int]) -> tuple[int, ...]:
    """The places in the session of the rows that a row waits for."""
    if row.after is None:
        return (place - 1,) if place else ()
    return tuple(before for before, at in enumerate(members[:place]) if at in row.after)


def _own_tokens(row: Row, history: int) -> int:
    """Tokens that a row adds to so many of its history; below 1 where its whole prompt is no longer than that."""
    if row.prompt is None and row.input_tokens is not None:
        return row.input_tokens - history
    return prompt_tokens(msgspec.structs.replace(row, input_tokens=None, tools=None) if history else row)
