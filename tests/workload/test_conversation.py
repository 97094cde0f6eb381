"""What the nodes of a task ask: their history and their own message, live and scripted."""

from __future__ import annotations

from typing import Any

import pytest

from harness.workload.request import Message
from harness.workload.task import Node, Task
from harness.workload.tasks import Graph, Tasks
from harness.workload.text import COMMON, Prefixes, Vocabulary
from tests.builders.prefix_hits import Hits, hits

A = Vocabulary(words=("a",), seed=0)  # all its texts are the letter again and again
MANY = Vocabulary(words=COMMON, seed=0)


def node(*parents: int, tokens: int = 1, answer: int = 1, fresh: bool = False) -> Node:
    return Node(parents=parents, input_tokens=tokens, output_tokens=answer, fresh=fresh)


def conversation_with(**fields: Any) -> Tasks:
    """Tasks of any kind: what a node asks goes by the task that it is of."""
    return Tasks(kinds=Graph(steps=(), seed=0), **fields)


def said(conversation: Tasks, task: Task, place: int, answers: dict[int, str]) -> list[tuple[str, str]]:
    prompt = conversation.request(task, place, answers).prompt
    assert not isinstance(prompt, str)
    return [(message.role, message.content) for message in prompt]


SESSION = Task(number=7, nodes=(node(tokens=2, answer=3), node(0, tokens=1, answer=4), node(1, tokens=3)))
# plan → three searches of their own → join, which goes on with the plan
SEARCH = Task(number=1, nodes=(node(tokens=2), *(node(0, tokens=3, fresh=True),) * 3, node(0, 1, 2, 3, tokens=4)))


def test_a_turn_has_all_that_was_said_before_it_in_the_server_s_own_words() -> None:
    live = conversation_with(vocabulary=A)
    assert said(live, SESSION, 0, {}) == [("user", " a a")]
    assert said(live, SESSION, 2, {0: "yes", 1: "no"}) == [
        ("user", " a a"), ("assistant", "yes"), ("user", " a"), ("assistant", "no"), ("user", " a a a"),
    ]  # fmt: skip


def test_a_script_s_answers_have_the_asked_length_whatever_the_server_says() -> None:
    scripted = conversation_with(vocabulary=A, history="scripted")
    prompts = [said(scripted, SESSION, 2, answers) for answers in ({}, {0: "yes", 1: "no"})]
    assert prompts[0] == prompts[1]
    assert [text for role, text in prompts[0] if role == "assistant"] == [" a a a", " a a a a"]


def test_a_request_says_what_it_belongs_to() -> None:
    request = conversation_with(vocabulary=A, tools=({"type": "function"},)).request(SESSION, 1, {0: "yes"})
    assert (request.number, request.after) == (7001, (7000,))
    assert (request.session, request.turn, request.class_) == ("7", 1, "")
    assert (request.output_tokens, request.tools) == (4, ({"type": "function"},))


def test_the_system_prompt_stands_first() -> None:
    system = Prefixes(vocabulary=A, tokens=5)
    conversation = conversation_with(vocabulary=A, system=system)
    assert said(conversation, SESSION, 1, {0: "yes"})[0] == ("system", " a a a a a")
    assert len(said(conversation, SESSION, 1, {0: "yes"})) == 4
    assert said(conversation, SEARCH, 1, {0: "plan"}) == [("system", " a a a a a"), ("user", " a a a")]


def test_a_join_goes_on_with_its_first_parent_and_has_the_answers_of_the_others() -> None:
    answers = {0: "plan", 1: "one", 2: "two", 3: "three"}
    assert said(conversation_with(vocabulary=A), SEARCH, 4, answers) == [
        ("user", " a a"), ("assistant", "plan"), ("user", "one\n\ntwo\n\nthree\n\n a a a a"),
    ]  # fmt: skip


def test_a_sub_agent_knows_nothing_of_what_was_said() -> None:
    assert said(conversation_with(vocabulary=A), SEARCH, 2, {0: "plan"}) == [("user", " a a a")]


def test_each_node_s_own_message_is_another_text() -> None:
    conversation = conversation_with(vocabulary=MANY)
    own = [said(conversation, SEARCH, place, {0: ""})[-1] for place in (1, 2, 3)]
    assert len(set(own)) == 3
    assert own[0] != said(conversation, Task(number=2, nodes=SEARCH.nodes), 1, {0: ""})[-1]


@pytest.mark.parametrize(
    ("fields", "task", "tokens"),
    [
        ({}, SESSION, [2, 2 + 3 + 1, 6 + 4 + 3]),
        ({"system": Prefixes(vocabulary=A, tokens=10)}, SESSION, [12, 16, 23]),
        ({}, SEARCH, [2, 3, 3, 3, 2 + 4 + 4]),
    ],
)
def test_the_tokens_of_prompts_are_known_before(fields: dict[str, Any], task: Task, tokens: list[int]) -> None:
    conversation = conversation_with(vocabulary=A, history="scripted", **fields)
    assert conversation.input_tokens(task) == tokens
    prompts = [said(conversation, task, place, {}) for place in range(len(task.nodes))]
    assert [sum(len(text.split()) for _, text in prompt) for prompt in prompts] == tokens


def test_the_hits_of_a_session_are_the_blocks_of_its_turn_before() -> None:
    """Turns of 4, answers of 4: prompts of 4, 12 and 20 tokens; 1 and 3 blocks of 4 are the prompt's before."""
    nodes = (node(tokens=4, answer=4), node(0, tokens=4, answer=4), node(1, tokens=4))
    scripted = conversation_with(vocabulary=MANY, history="scripted")
    prompts = [said(scripted, Task(number=0, nodes=nodes), place, {}) for place in range(3)]
    words = [" ".join(text for _, text in prompt).split() for prompt in prompts]
    assert hits(words, block=4) == Hits(36, 4 + 12)


def test_messages_are_plain_data() -> None:
    request = conversation_with(vocabulary=A).request(SESSION, 0, {})
    assert request.prompt == (Message("user", " a a"),)
