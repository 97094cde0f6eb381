"""One replica of an encoder's server, as a machine: texts wait, and as many as fit are one pass.

A pass is launched first and filled then: what comes in the time of its launch is in it. Requests are served in order;
one whose texts do not all fit has the rest in the next pass. Its steps are those that `predict.steady` counts.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence

from harness.predict.batching import Step, Token
from harness.predict.deployment import Deployment
from harness.predict.model import Model
from harness.predict.step import pass_time, step_cost


class Passes:
    def __init__(self, model: Model, deployment: Deployment) -> None:
        self._cost = step_cost(model, deployment)
        self._most = deployment.max_num_seqs
        self._left: OrderedDict[int, list[int]] = OrderedDict()  # tokens of each request's texts, those not computed
        self._launched = False

    def submit(self, number: int, texts: Sequence[int]) -> None:
        """Put a request, by the tokens of its texts, at the end of the queue."""
        self._left[number] = list(texts)

    def step(self) -> Step | None:
        """Return the launch of a pass, at whose end nobody gets anything, or the pass; None without work."""
        if not self._left:
            self._launched = False
            return None
        self._launched = not self._launched
        if self._launched:
            return Step(self._cost.step + self._cost.api, [])
        lengths: Counter[int] = Counter()
        whole: list[Token] = []
        requests = 0
        while self._left and lengths.total() < self._most:
            request, texts = next(iter(self._left.items()))
            taken = texts[: self._most - lengths.total()]
            lengths.update(taken)
            requests += 1
            if len(taken) < len(texts):
                self._left[request] = texts[len(taken) :]
                break
            del self._left[request]
            whole.append(Token(request, 0, True))
        seconds = pass_time(self._cost, [(n, tokens) for tokens, n in lengths.items()], requests)
        return Step(seconds, whole, sum(n * tokens for tokens, n in lengths.items()))
