"""What a phase probe asks: one output token over growing prompts (prefill), long answers to short prompts (decode).

A probe is an ordinary run of `uniform` requests with other lengths, and for prefill with some levels in front of its
ramp: one request in flight at each of several prompt lengths, whose times to the first token rise by what a prompt
token costs. The ramp behind them, at the asked length, has a throughput of as many requests as output tokens a second.
Pure: what a run then holds is decided elsewhere, and what it says is worked out by analysis.phases.
"""

from __future__ import annotations

import msgspec

from harness.spec import distribution
from harness.spec.classes import ClassSpec
from harness.spec.scenario import Scenario
from harness.workload import shape

PREFILL, DECODE = "prefill", "decode"
FEWEST_WORDS = 16  # words of a prompt: fewer might be drawn twice, and a server would know it
SHORT_PROMPT = 32  # tokens of a decode probe's prompts, as far as the server adds less than half of them
LONG_ANSWER = 256  # tokens of its answers at least
_SHORTEST, _LONGEST = 64, 4096  # tokens of a prefill probe's prompts; the longest four times the asked, if that is more
_LENGTHS = 8
_NEARLY_ALL, _ROOM = 0.99, 0.95  # share of the answers; share of the context, since a word may be more than a token
_TOO_NEAR = 1.1  # a length within 10 % of the asked one would tell the same again


def scenario_for(scenario: Scenario, max_context: int | None = None, input_tokens: int | None = None) -> Scenario:
    """Return the scenario with the lengths of its phase probe, if any, and `fit` classes shortened to the context.

    Prefill: one output token. Decode: prompts of 32 tokens, answers of 256 tokens or of as many as are asked, if that
    is more. `max_context` is the most tokens of prompt and answer, `input_tokens` what prompts come to; None: not
    known. A second call changes nothing.

    >>> import msgspec
    >>> asked = msgspec.convert({"ramp": {"probe": "decode"}}, Scenario)
    >>> scenario_for(asked).workload.input_tokens, scenario_for(asked, max_context=200).workload.output_tokens
    (32, 168)
    """
    if max_context is not None and any(spec.fit for spec in scenario.class_ or ()):
        scenario = _fitted(scenario, max_context)
    workload = scenario.workload
    if scenario.ramp.probe == PREFILL:
        workload = msgspec.structs.replace(workload, output_tokens=1)
    elif scenario.ramp.probe == DECODE:
        answer = max(round(shape.of(scenario).mean().output_tokens), LONG_ANSWER)
        if max_context is not None:
            answer = max(1, min(answer, max_context - max(SHORT_PROMPT, input_tokens or 0)))
        workload = msgspec.structs.replace(workload, input_tokens=SHORT_PROMPT, output_tokens=answer)
    return msgspec.structs.replace(scenario, workload=workload)


def _fitted(scenario: Scenario, max_context: int) -> Scenario:
    """Return the scenario with the prompts of `fit` classes shortened so that prefix and answer fit the context too.

    A class whose prompts are shortened comes as much more often, so that its part of all tokens stays.
    """
    prefix = scenario.workload.prefix.tokens if scenario.workload.prefix else 0
    answers = {class_.name: class_.output for class_ in shape.of(scenario).classes}

    def fitted(each: ClassSpec) -> ClassSpec:
        """Return the class with prompts cut to what the context leaves room for; its share grows so that tokens stay.

        A class that asks for no fit, or fits, is returned as it is.
        """
        law, answer = distribution.parse(each.input), answers[each.name]
        most = max(1, int(_ROOM * max_context) - prefix - answer.quantile(_NEARLY_ALL))
        if not each.fit or isinstance(law, distribution.Empirical) or law.quantile(1.0) <= most:
            return each
        bounded = not isinstance(law, distribution.Fixed) and most > law.mean()  # else its bounds would not hold it
        shorter = msgspec.structs.replace(law, high=most) if bounded else distribution.Fixed(most)
        others = prefix + answer.mean()
        share = each.share * (others + law.mean()) / (others + shorter.mean())
        return msgspec.structs.replace(each, input=most if not bounded else str(shorter), share=share)

    return msgspec.structs.replace(scenario, class_=[fitted(spec) for spec in scenario.class_ or ()])


def lengths(tokens: int, fewest: int, most: int | None) -> list[int]:
    """Return the prompt lengths that a prefill probe holds at one request in flight, in tokens, rising.

    Eight in equal ratios from 64 tokens to the larger of 4,096 and four times what is asked, as far as `fewest` and
    `most` leave room, and the asked length among them.

    >>> lengths(512, 24, None)
    [64, 116, 210, 380, 512, 689, 1248, 2261, 4096]
    """
    low, high = max(_SHORTEST, fewest), max(_LONGEST, 4 * tokens)
    if most is not None:
        high = min(high, max(tokens, most))
    if high <= low:
        return [tokens]
    ratio = (high / low) ** (1 / (_LENGTHS - 1))
    steps = [round(low * ratio**i) for i in range(_LENGTHS)]
    far = {step for step in steps if max(step, tokens) > _TOO_NEAR * min(step, tokens)}
    return sorted(far | {tokens})
