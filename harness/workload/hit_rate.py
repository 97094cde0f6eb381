"""The share of prompt tokens that a prefix cache is to serve, by what a workload asks to be the same. Pure.

Worked out from the run's own first requests, with answers of the asked length, for a cache that keeps all of them and
has seen every shared prefix before. A real one serves less where its blocks do not suffice. What a request shares with
an earlier one is its beginning: a prefix, the conversation that it goes on with, or the blocks of a trace that came
before. Left out: definitions of tools, whose tokens only the server knows.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import chain, count

import msgspec

from harness.spec.scenario import Scenario
from harness.workload import shape, tasks
from harness.workload.dataset import Row
from harness.workload.rows import Recorded, Rows, prompt_tokens
from harness.workload.task import Node, Task
from harness.workload.text import Prefixes, Vocabulary, prefixes

_SAMPLE = 100_000_000  # prompt tokens that represent all
_MOST = 100_000  # requests


class Hit(msgspec.Struct, frozen=True, gc=False):
    """One request: the tokens of its prompt, and those that a cache serves."""

    prompt: int
    cached: int


def _hit(prompt: int, shared: int, block: int) -> Hit:
    """Return the hit of a prompt whose beginning is known; whole blocks are served, and never the last token."""
    return Hit(prompt, max(0, min(shared, prompt - 1)) // block * block)


def hashes(tokens: Sequence[Hashable], block: int) -> list[int]:
    """Return a hash of each whole block and all before it, shape [len(tokens) // block].

    >>> [a == b for a, b in zip(hashes("aabb", 2), hashes("aabc", 2))]
    [True, False]
    """
    blocks: list[int] = []
    for at in range(0, len(tokens) - block + 1, block):
        blocks.append(hash((blocks[-1] if blocks else 0, *tokens[at : at + block])))
    return blocks


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """A request as a prefix cache sees it: its prompt's tokens, and hashes of whole blocks, of the answer too."""

    tokens: int
    hashes: list[int]
    tail: tuple[Hashable, ...] = ()  # what of the last block is there
    filled: int = 0  # tokens of that


class Prompts:
    """The prompts of a task, as the cache of a server sees them that answers with as many tokens as are asked for.

    A text is known by its name: equal ones are equal texts from their first token on, as `Rows` and `Tasks` make them.
    """

    def __init__(self, source: tasks.Tasks, task: Task, *, block: int, template: int = 0) -> None:
        self._source, self._task, self._block, self._template = source, task, block, template
        self._known: dict[int, Prompt] = {}
        self._after: dict[int, Prompt] = {}  # what is sent again: with the server's answer, or the one of the script

    def of(self, place: int) -> Prompt:
        """Return the prompt of a task's node as tokens and block hashes: its parent's prompt and answer, its own."""
        if (found := self._known.get(place)) is not None:
            return found
        node, number, recorded = self._task.nodes[place], self._task.number, self._source.recorded
        row = None if recorded is None else recorded.of_turn(number, place)
        again = 0 if recorded is None else number // recorded.table.sessions  # times that its rows began anew
        prompt = Prompt(0, [])
        if node.parents and not node.fresh:
            self.of(node.parents[0])
            prompt = self._after[node.parents[0]]
            others = sum(self._task.nodes[parent].output_tokens for parent in node.answers[1:])
            prompt = self._with(prompt, (number, place, "results"), others)
        else:
            prompt = self._with(prompt, "template", self._template)
            if (system := self._source.system) is not None and (index := system.index(number)) is not None:
                prompt = self._with(prompt, ("prefix", index), system.tokens)
        left = _own_tokens(node, row, self._template)
        for each in (row.hashes or ()) if row is not None else ():
            taken = min(row.block, left) if row is not None else 0
            prompt, left = self._with(prompt, (again, row and row.scope, each), taken), left - taken
        text = number if row is None or row.prompt is None else row.place  # a dataset's come again, words do not
        prompt = self._with(prompt, (text, place), left)
        whole = self._with(prompt, (number, place, "answer"), node.output_tokens)
        self._after[place] = (
            whole if self._source.live else self._with(prompt, (number, place, "script"), node.output_tokens)
        )
        self._known[place] = found = msgspec.structs.replace(whole, tokens=prompt.tokens)
        return found

    def _with(self, prompt: Prompt, name: Hashable, tokens: int) -> Prompt:
        """Return the prompt with `tokens` tokens of the text `name` appended, and the hash of each block this fills."""
        if tokens < 1:
            return prompt
        hashes, tail, at, filled = prompt.hashes.copy(), prompt.tail, 0, prompt.filled
        while filled + tokens - at >= self._block:
            hashes.append(hash((hashes[-1] if hashes else 0, *tail, name, at)))
            at, filled, tail = at + self._block - filled, 0, ()
        if at < tokens:
            tail, filled = (*tail, name, at, tokens), filled + tokens - at
        return Prompt(prompt.tokens + tokens, hashes, tail, filled)


def _own_tokens(node: Node, row: Row | None, template: int) -> int:
    """Return the tokens of a node's own words; a recorded prompt's length has the template in it."""
    return max(1, node.input_tokens - template) if row is not None and row.prompt is None else node.input_tokens


class _Known:
    """How many tokens of each block of a trace were sent so far, by scope and hash; a prompt may end within a block."""

    def __init__(self, template: int = 0) -> None:
        self._template = template
        self._sent: dict[tuple[str, int], int] = {}

    def shared(self, row: Row) -> int:
        """Return how many leading tokens of a row's prompt were sent before, by block hashes; then note its blocks."""
        shared, all_sent, left = self._template, True, prompt_tokens(row) - self._template
        for each in row.hashes or ():
            tokens, sent = max(0, min(row.block, left)), self._sent.get((row.scope, each), 0)
            shared += min(tokens, sent) if all_sent else 0
            all_sent, left = all_sent and sent >= tokens, left - tokens
            self._sent[row.scope, each] = max(tokens, sent)
        return shared


def of_rows(rows: Iterable[Row], block: int | None = None, template: int = 0) -> Iterator[Hit]:
    """Yield the hits of a trace's requests in their order, by tokens of a server's block; None: the trace's own."""
    known = _Known(template)
    for row in rows:
        yield _hit(prompt_tokens(row), known.shared(row), block or row.block)


def expected(scenario: Scenario, *, block: int, template_tokens: int = 0, rows: str = "") -> float | None:
    """Return the prefix-cache hit rate to expect of a scenario's prompts, 0 to 1; None if they share nothing.

    `rows` is the path of the table of its dataset.

    >>> from harness.spec.reading import build
    >>> asked = build({"workload": {"session": {"turns": 2, "user_tokens": 48}, "output_tokens": 16}}, place="")
    >>> round(expected(asked, block=16), 3)  # 48 and 48 + 16 + 48 tokens: four blocks of the second are known
    0.4
    """
    total = served = 0
    for number, hit in enumerate(hits(scenario, block=block, template_tokens=template_tokens, rows=rows)):
        total, served = total + hit.prompt, served + hit.cached
        if total > _SAMPLE or number >= _MOST:
            break
    return served / total if total else None


def hits(scenario: Scenario, *, block: int, template_tokens: int = 0, rows: str = "") -> Iterator[Hit]:
    """Yield prompt tokens and tokens that a full prefix cache has, for each request; nothing if none are shared."""
    source = tasks.of(scenario, rows=rows)
    if source is not None:
        known = _Known(template_tokens)
        limit = range(source.kinds.rows.table.sessions) if isinstance(source.kinds, Recorded) else count()
        yield from chain.from_iterable(_of_task(source, n, block, template_tokens, known) for n in limit)
    elif rows:
        table = Rows(path=rows, words=(), seed=0, output_tokens=1).table
        found = (table.row(number) for number in range(len(table)))
        if table.row(0).hashes is not None:
            yield from of_rows(found, block, template_tokens)
    else:
        system = prefixes(scenario, Vocabulary(words=("a",), seed=scenario.workload.seed or 0))
        mix = shape.of(scenario)
        for number in count() if system is not None else ():
            first = template_tokens + _first(system, number)
            yield _hit(first + mix.shape(number).input_tokens, first, block)


def _first(system: Prefixes | None, number: int) -> int:
    """Return the tokens of the prefix of a request or task."""
    return 0 if system is None or system.index(number) is None else system.tokens


def _of_task(source: tasks.Tasks, number: int, block: int, template: int, known: _Known) -> Iterator[Hit]:
    """Yield prompt and cached tokens of each request of a task; cached: its parent's prompt and answer, or blocks."""
    task, wholes = source.task(number), list[int]()
    first = template + _first(source.system, number)
    for place, node in enumerate(task.nodes):
        parents, shared = node.parents, first
        if node.answers:
            shared = wholes[parents[0]] + sum(task.nodes[parent].output_tokens for parent in node.answers)
        row = None if source.recorded is None else source.recorded.of_turn(number, place)
        wholes.append(shared + _own_tokens(node, row, template))
        # Only the first parent's prompt was sent as it is, and its answer if it is the server's own: other parents'
        # answers are new behind them.
        if parents and not node.fresh:
            shared = wholes[parents[0]] + (task.nodes[parents[0]].output_tokens if source.live else 0)
        if row is not None and row.hashes is not None:
            shared = known.shared(row)
        yield _hit(wholes[-1], shared, block)
