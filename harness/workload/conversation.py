"""What a node of a task asks: the conversation that it goes on with, and its own new message.

The first message is the system's, where there is a system prompt. A node goes on with the conversation of its first
parent, whose answer is the assistant's message; answers of its other parents stand in its own message, as results of
tools and sub-agents do. Answers are the server's own (`live`), or texts of the asked length (`scripted`), with which
all prompts are known before the run. A dataset's texts, where it has any, stand in place of such texts. A fresh node
begins anew, with the same system prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from harness.workload.prefix import Prefixes
from harness.workload.request import Message, Request
from harness.workload.rows import Rows
from harness.workload.task import Task
from harness.workload.text import Vocabulary

BETWEEN = "\n\n"  # texts that stand in one message


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """How the conversations of a run's tasks are worded: a request is a function of its task and of earlier answers."""

    vocabulary: Vocabulary
    history: Literal["live", "scripted"] = "live"
    system: Prefixes | None = None  # system prompts; which one goes by the task
    tools: tuple[dict[str, Any], ...] | None = None
    recorded: Rows | None = None  # whose messages and answers stand in place of words

    def request(self, task: Task, node: int, answers: Mapping[int, str]) -> Request:
        """The request of a node whose parents have ended; `answers` are those of the nodes so far, by their place."""
        return Request(
            number=task.request_number(node),
            prompt=self._messages(task, node, answers),
            output_tokens=task.nodes[node].output_tokens,
            tools=self.tools or (None if self.recorded is None else self.recorded.tools(task.number, node)),
            class_=task.class_,
            session=str(task.number),
            turn=node,
            after=tuple(task.request_number(parent) for parent in task.nodes[node].parents),
        )

    def input_tokens(self, task: Task) -> list[int]:
        """Tokens that each node's prompt comes to if every answer has its asked length, shape [nodes].

        Without what a server's template and the tools add.
        """
        system = self.system
        first = system.tokens if system is not None and system.index(task.number) is not None else 0
        found: list[int] = []
        for node in task.nodes:
            parents = node.parents
            before = first
            if parents and not node.fresh:
                before = found[parents[0]] + sum(task.nodes[parent].output_tokens for parent in parents)
            found.append(before + node.input_tokens)
        return found

    def _messages(self, task: Task, node: int, answers: Mapping[int, str]) -> tuple[Message, ...]:
        newest_first = self._own(task, node, answers)
        while (parents := task.nodes[node].parents) and not task.nodes[node].fresh:
            node = parents[0]
            newest_first.append(Message("assistant", self._answer(task, node, answers)))
            newest_first += self._own(task, node, answers)
        if self.system is not None and (text := self.system.text(task.number)):
            newest_first.append(Message("system", text))
        return tuple(reversed(newest_first))

    def _own(self, task: Task, node: int, answers: Mapping[int, str]) -> list[Message]:
        """What a node adds, its newest message first."""
        asked = task.nodes[node]
        if self.recorded is not None:
            *before, last = self.recorded.own(task.number, node, asked.input_tokens)
        else:
            before, last = [], Message("user", self.vocabulary.text(asked.input_tokens, f"task:{task.number}:{node}"))
        results = [] if asked.fresh else [self._answer(task, parent, answers) for parent in asked.parents[1:]]
        joined = msgspec.structs.replace(last, content=BETWEEN.join([*results, last.content])) if results else last
        return [joined, *reversed(before)]

    def _answer(self, task: Task, node: int, answers: Mapping[int, str]) -> str:
        if self.history == "live":
            return answers[node]
        if self.recorded is not None and (text := self.recorded.answer(task.number, node)) is not None:
            return text
        return self.vocabulary.text(task.nodes[node].output_tokens, f"task:{task.number}:{node}:answer")
