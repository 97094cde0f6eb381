"""Requests that hold several texts: what an encoder computes together, and for a reranker a query in front of them.

Each text is a prompt of another source, with a number of its own, so that no two in a run are alike.
"""

from __future__ import annotations

from functools import cached_property

import msgspec

from harness.spec.scenario import Scenario
from harness.spec.work import QUERY_WORDS, RANKED
from harness.workload import text
from harness.workload.mixed import Mixed
from harness.workload.request import Message, Request
from harness.workload.uniform import Uniform

QUERY, DOCUMENT = "query", "document"  # roles of a request's messages


class Inputs(msgspec.Struct, frozen=True, kw_only=True, dict=True, tag="inputs", tag_field="kind"):
    """A source that any worker can hold, of requests with `inputs` texts each.

    >>> texts = Uniform(words=("a", "b"), prompt_words=3, output_tokens=1, seed=0)
    >>> request = Inputs(texts=texts, inputs=2, ranked=True).request(7)
    >>> [(each.role, len(each.content.split())) for each in request.prompt]
    [('query', 16), ('document', 3), ('document', 3)]
    """

    texts: Uniform | Mixed
    inputs: int
    ranked: bool = False  # a query comes first

    @property
    def seed(self) -> int:
        return self.texts.seed

    @property
    def prompt_words(self) -> int:
        """Of all its texts together."""
        return self.inputs * self.texts.prompt_words

    def request(self, number: int) -> Request:
        """The n-th request."""
        found = [self.texts.request(number * self.inputs + i) for i in range(self.inputs)]
        query = [Message(QUERY, text.text(self._spaced, QUERY_WORDS, self.seed, f"query:{number}"))]
        known = [each.input_tokens for each in found if each.input_tokens is not None]
        return Request(
            number=number,
            prompt=(*(query if self.ranked else ()), *(Message(DOCUMENT, str(each.prompt)) for each in found)),
            output_tokens=0,
            input_tokens=sum(known) if known else None,
        )

    @cached_property
    def _spaced(self) -> tuple[str, ...]:
        return text.spaced(self.texts.words)


def together(scenario: Scenario, texts: Uniform | Mixed) -> Uniform | Mixed | Inputs:
    """The requests that a scenario makes of these texts: each alone, or several in one."""
    inputs, ranked = scenario.workload.inputs or 1, scenario.target.api in RANKED
    return Inputs(texts=texts, inputs=inputs, ranked=ranked) if ranked or inputs > 1 else texts
