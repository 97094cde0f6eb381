"""The card that serves, the calibration profile of a server, and the prediction of a run, made before any load.

Measuring this machine as the card loads its cores fully for about two seconds: before load, never during it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from harness.base import decoding, kernel
from harness.data.machines import Card, Machine
from harness.data.prediction import Prediction
from harness.observe import machine
from harness.predict import claims, deployment, model, question, roofline
from harness.predict.calibration import Calibration, calibrated, decode
from harness.run.launch.endpoint import Endpoint, Prompts
from harness.spec.scenario import Hardware, Scenario
from harness.spec.work import MeanLengths, Mixture, means
from harness.workload import shape


def find(hardware: Hardware, cards: Sequence[Card] | None) -> question.ServingCard:
    """Return the card by its key, else by the drivers; `host` measures this machine's cores now."""
    return question.find(hardware, cards, measure)


def measure(cpus: Sequence[int] | None = None) -> Machine:
    """Return what these processors of this machine reach; None: all that this process may use."""
    return machine.measure(len(kernel.cpus()), cpus)


def calibration(path: str) -> Calibration:
    """Read the profile file that `knee calibrate model` wrote."""
    with decoding.reading(path, "a calibration", "write one with `knee calibrate model DIR --out FILE`"):
        text = decoding.content(Path(path))
    return decode(text, path)


def predict(
    scenario: Scenario, endpoint: Endpoint, served: model.Model, where: deployment.Deployment, *, simulated: bool
) -> Prediction:
    """Return the data-sheet prediction for the levels that the run may reach, with --calibration's beside it."""
    loads = levels(scenario)
    lengths, cached = _as_counted(scenario, endpoint.prompts), where.prefix_hit or shape.cached_share(scenario)
    where = msgspec.structs.replace(where, prefix_hit=cached, prefix_caching=False)  # the share says what is found
    slo, price, path = scenario.slo or None, scenario.hardware.price, scenario.hardware.calibration
    notes = claims.notes(served, where, means(lengths), loads)
    made = roofline.predict(served, where, lengths, loads, simulated=simulated, slo=slo, price=price, notes=notes)
    if path is None:
        return made
    both = calibrated(served, where, lengths, loads, calibration(path), slo=slo, price=price)
    return msgspec.structs.replace(made, calibrated=both)


def _as_counted(scenario: Scenario, prompts: Prompts) -> MeanLengths | Mixture:
    """Return the requests' lengths for a prediction, prompts as long as the server counted them in the checks.

    Those of a mixture stay as asked, but for prompts shorter than the template and one word.
    """
    lengths = shape.representative(scenario)
    if isinstance(lengths, MeanLengths):
        wanted = shape.of(scenario).mean().input_tokens
        missed = 0 if prompts.tokens is None else prompts.tokens - wanted
        return msgspec.structs.replace(lengths, input_tokens=lengths.input_tokens + missed)
    fewest = prompts.added_tokens + math.ceil(prompts.tokens_per_word)  # the template, and one word
    return [(max(P, fewest), G) for P, G in lengths]


def levels(scenario: Scenario) -> Sequence[int]:
    """Return the levels that a run may reach: those that it has, or 1, 2, 4, … up to the highest."""
    if scenario.ramp.levels:
        return scenario.ramp.levels
    out, highest = [1], scenario.ramp.max_concurrency
    while out[-1] < highest:
        out.append(min(2 * out[-1], highest))
    return out
