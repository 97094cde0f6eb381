"""An encoder's server as a machine without a clock: texts wait, and as many as fit are one pass.

A pass is launched first and filled then: what comes in the time of its launch is in it. Requests are served in order;
one whose texts do not all fit has the rest in the next pass. Its steps are those that `predict.steady` counts. Left
out: a budget of tokens a pass, and texts that are cached.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

from harness.predict.batching import Step, Token
from harness.predict.deployment import Deployment
from harness.predict.model import Model
from harness.predict.sequence import SimulatedRequest
from harness.predict.step import pass_time, step_cost


class Passes:
    """The state of one replica; used as `batching.StepMachine` is."""

    preemptions = 0
    kv_usage = 0.0
    block_size = num_blocks = 0  # it keeps nothing

    def __init__(self, model: Model, deployment: Deployment) -> None:
        self._cost = step_cost(model, deployment)
        self._most = deployment.max_num_seqs
        self._left: OrderedDict[int, list[int]] = OrderedDict()  # tokens of each request's texts, those not computed
        self._launched = False
        self.running = 0  # requests that have texts in the pass

    @property
    def waiting(self) -> int:
        return len(self._left)

    def cached_tokens(self, request_id: int) -> int | None:
        """None: nothing is cached."""
        return None

    def submit(self, request: SimulatedRequest) -> None:
        """Put a request at the end of the queue."""
        self._left[request.id] = list(request.texts)

    def cancel(self, request_id: int) -> bool:
        """Forget what of a request is not computed; False where nothing is."""
        return self._left.pop(request_id, None) is not None

    def step(self) -> Step | None:
        """The launch of a pass, at whose end nobody gets anything, or the pass; None when there is nothing to do."""
        self.running = 0
        if not self._left:
            self._launched = False
            return None
        self._launched = not self._launched
        if self._launched:
            return Step(self._cost.step + self._cost.api, [], 0)
        lengths: Counter[int] = Counter()
        whole: list[Token] = []
        while self._left and lengths.total() < self._most:
            request, texts = next(iter(self._left.items()))
            taken = texts[: self._most - lengths.total()]
            lengths.update(taken)
            self.running += 1
            if len(taken) < len(texts):
                self._left[request] = texts[len(taken) :]
                break
            del self._left[request]
            whole.append(Token(request, 0, True))
        seconds = pass_time(self._cost, [(n, tokens) for tokens, n in lengths.items()], self.running)
        return Step(seconds, whole, len(whole), sum(n * tokens for tokens, n in lengths.items()))
