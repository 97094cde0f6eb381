"""A task: requests that wait for each other, of an agent's graph (`graph`) or of a session of turns (`session`).

A session is a chain, in which each request waits for the one before. A graph also has fan-outs, joins and sub-agents.
Whoever has a clock and sockets runs both in the same way (`load.requests`), one task in a slot:

    task = tasks.task(number)
    progress = TaskProgress(task, start_s=now)
    while not progress.over:
        for node, due_s in progress.ready(now):
            send conversation.request(task, node, progress.answers), due at due_s
        wait until one of them has ended, or until progress.next_due_s
        progress.ended(node, at_s, text)

Pure: times come in as arguments, and may be of any clock. Left out: deadlines of a whole task.
"""

from __future__ import annotations

import heapq

import msgspec

MOST_NODES = 1000  # most nodes of a task: so a request's number can be worked out from its task's


class Node(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request of a task."""

    name: str = ""
    parents: tuple[int, ...] = ()  # places in the task of the nodes that it waits for; each is before it
    input_tokens: int  # tokens of its own message: what it answers to and what came before come on top
    output_tokens: int
    pause_s: float = 0.0  # from the end of its last parent, or from the task's start, until it is due
    fresh: bool = False  # begins a conversation of its own, as a sub-agent does; else goes on with its first parent's
    results: bool = True  # its own message holds what its other parents answered; else it only waits for them

    @property
    def answers(self) -> tuple[int, ...]:
        """Return the parents whose answers are new in its prompt: of the first one it goes on with the conversation."""
        return () if self.fresh else self.parents if self.results else self.parents[:1]


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that belong together, each behind its parents."""

    number: int  # number in a run, each once
    nodes: tuple[Node, ...]

    def request_number(self, node: int) -> int:
        """Return the number of a node's request, each once in a run.

        >>> Task(number=3, nodes=()).request_number(2)
        3002
        """
        return self.number * MOST_NODES + node


class TaskProgress:
    """How far one task has come: which of its nodes may be sent, and when.

    A node is due when all its parents have ended and its pause is over. What waits for a node that failed, directly
    or through others, is never sent; the rest goes on, and the task is over when nothing more can be sent or end.
    """

    def __init__(self, task: Task, start_s: float = 0.0) -> None:
        self.answers: dict[int, str] = {}  # answers of the nodes that have ended, by their place in the task
        self.failed = False
        self._nodes = task.nodes
        self._waits_for = [len(node.parents) for node in task.nodes]
        self._ended_s = [start_s] * len(task.nodes)  # the last of each node's parents, so far
        self._children: list[list[int]] = [[] for _ in task.nodes]
        self._due: list[tuple[float, int]] = []  # a heap, of nodes that wait for nothing but their pause
        self._in_flight: set[int] = set()
        for child, node in enumerate(task.nodes):
            for parent in node.parents:
                self._children[parent].append(child)
            if not node.parents:
                self._release(child)

    @property
    def over(self) -> bool:
        """Return whether nothing is in flight and nothing can be sent any more."""
        return not self._due and not self._in_flight

    @property
    def next_due_s(self) -> float | None:
        """Return when the next node is due that only waits for its pause; None if there is none."""
        return self._due[0][0] if self._due else None

    def ready(self, now_s: float) -> list[tuple[int, float]]:
        """Return (node, when it is due) of every request of the task that is due by `now_s`, each once, earliest first.

        With a time to come it returns what can be built ahead.
        """
        due = []
        while self._due and self._due[0][0] <= now_s:
            due_s, node = heapq.heappop(self._due)
            self._in_flight.add(node)
            due.append((node, due_s))
        return due

    def ended(self, node: int, at_s: float, text: str | None) -> None:
        """Note that a node has ended with an answer (None: it failed), and when nodes that wait for it are due."""
        self._in_flight.remove(node)
        if text is None:
            self.failed = True
            return
        self.answers[node] = text
        for child in self._children[node]:
            self._waits_for[child] -= 1
            self._ended_s[child] = max(self._ended_s[child], at_s)
            if not self._waits_for[child]:
                self._release(child)

    def _release(self, node: int) -> None:
        heapq.heappush(self._due, (self._ended_s[node] + self._nodes[node].pause_s, node))
