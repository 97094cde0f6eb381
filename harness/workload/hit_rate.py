"""The share of prompt tokens that a prefix cache is to serve, by what a scenario asks to be the same. Pure.

Worked out from the run's own first requests, with answers of the asked length, for a cache that keeps all of them and
has seen every shared prefix before. A real one serves less where its blocks do not suffice. Left out: definitions of
tools, whose tokens only the server knows.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import chain

from harness.spec.scenario import Scenario
from harness.workload import shape, tasks
from harness.workload.text import Prefixes, Vocabulary, prefixes

_SAMPLE = 1_000_000  # prompt tokens that represent all

_Tokens = list[int]


class _Numbers:
    """Numbers in place of tokens: a text has the same each time, and no two texts have any in common."""

    def __init__(self) -> None:
        self._first: dict[object, int] = {}
        self._used = 0

    def of(self, text: object, count: int) -> range:
        first = self._first.setdefault(text, self._used)
        self._used = max(self._used, first + count)
        return range(first, first + count)


class _Cache:
    """The whole blocks of all that was sent, for requests one after the other; none of them ever goes."""

    def __init__(self, block: int) -> None:
        self._block = block  # tokens
        self._known: set[int] = set()

    def serve(self, hashes: Sequence[int], prompt_tokens: int) -> int:
        """Return the tokens of a prompt that are served, by the hashes of its blocks; its answer's may follow them.

        The last token of a prompt is always computed.
        """
        whole = hashes[: max(0, prompt_tokens - 1) // self._block]
        found = next((i for i, each in enumerate(whole) if each not in self._known), len(whole))
        self._known.update(hashes)
        return found * self._block


def hashes(tokens: Sequence[Hashable], block: int) -> list[int]:
    """Return a hash of each whole block and all before it, shape [len(tokens) // block].

    >>> [a == b for a, b in zip(hashes("aabb", 2), hashes("aabc", 2))]
    [True, False]
    """
    found: list[int] = []
    for at in range(0, len(tokens) - block + 1, block):
        found.append(hash((found[-1] if found else 0, *tokens[at : at + block])))
    return found


def expected(scenario: Scenario, *, block: int, template_tokens: int = 0, rows: str = "") -> float | None:
    """Return the hit rate to expect, by tokens of a block and of the template; None where no reuse is asked.

    `rows` is the path of the table of its dataset.

    >>> from harness.spec.reading import build
    >>> asked = build({"workload": {"session": {"turns": 2, "user_tokens": 48}, "output_tokens": 16}}, place="")
    >>> round(expected(asked, block=16), 3)  # of 48 and of 48 + 16 + 48 tokens the second has four blocks
    0.4
    """
    numbers, cache = _Numbers(), _Cache(block)
    common = list(numbers.of("template", template_tokens))
    source = tasks.of(scenario, rows=rows)
    asked: Iterator[tuple[_Tokens, _Tokens, range]]
    if source is not None:
        asked = chain.from_iterable(_of_task(source, n, numbers, common) for n in range(_SAMPLE))
    else:
        system = prefixes(scenario, Vocabulary(words=("a",), seed=scenario.workload.seed or 0))
        if system is None:
            return None
        asked = _single(scenario, system, numbers, common)
    total = served = 0
    for first, prompt, answer in asked:
        cache.serve(hashes(first, block), len(first))
        total += len(prompt)
        served += cache.serve(hashes([*prompt, *answer], block), len(prompt))
        if total > _SAMPLE:
            break
    return served / total


def _first(system: Prefixes | None, number: int, numbers: _Numbers, common: _Tokens) -> _Tokens:
    """Return what a request or task begins with."""
    index = None if system is None else system.index(number)
    return common if system is None or index is None else [*common, *numbers.of(("prefix", index), system.tokens)]


def _of_task(
    source: tasks.Tasks, number: int, numbers: _Numbers, common: _Tokens
) -> Iterator[tuple[_Tokens, _Tokens, range]]:
    """Yield (shared beginning, prompt, answer) of each request of a task."""
    task, prompts, answers = source.task(number), list[_Tokens](), list[range]()
    first = _first(source.system, number, numbers, common)
    for place, node in enumerate(task.nodes):
        before, parents = first, node.parents
        if parents and not node.fresh:
            before = [*prompts[parents[0]], *chain.from_iterable(answers[parent] for parent in parents)]
        prompts.append([*before, *numbers.of((number, place), node.input_tokens)])
        answers.append(numbers.of((number, place, "answer"), node.output_tokens))
        yield first, prompts[-1], answers[-1]


def _single(
    scenario: Scenario, system: Prefixes, numbers: _Numbers, common: _Tokens
) -> Iterator[tuple[_Tokens, _Tokens, range]]:
    """Yield the same of each single request."""
    mix = shape.of(scenario)
    for number in range(_SAMPLE):
        first, asked = _first(system, number, numbers, common), mix.shape(number)
        yield first, [*first, *numbers.of(number, asked.input_tokens)], range(0)
