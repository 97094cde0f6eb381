"""The prediction of a run, made before any load."""

from __future__ import annotations

import msgspec

from harness.experiment import hardware
from harness.experiment.endpoint import Launch
from harness.predict import claims, model, roofline
from harness.predict.calibrated import calibrated
from harness.scenario import Scenario
from harness.summary import Prediction
from harness.workload import shape


def predict(
    scenario: Scenario, launch: Launch, of: model.Model, where: roofline.Deployment, *, simulated: bool
) -> Prediction:
    """From the data sheet, at the levels that the run may reach; a second one from --calibration."""
    levels = scenario.ramp.levels or _doubling(scenario.ramp.max_concurrency)
    mean = shape.of(scenario).mean()
    workload = roofline.MeanLengths(launch.input_tokens or mean.input_tokens, mean.output_tokens)
    slo, price, path = scenario.slo or None, scenario.hardware.price, scenario.hardware.calibration
    notes = claims.notes(of, where, workload, levels)
    made = roofline.predict(of, where, workload, levels, simulated=simulated, slo=slo, price=price, notes=notes)
    if path is None:
        return made
    both = calibrated(of, where, workload, levels, hardware.calibration(path), slo=slo, price=price)
    return msgspec.structs.replace(made, calibrated=both)


def _doubling(highest: int) -> list[int]:
    """1, 2, 4, … up to the highest level."""
    out = [1]
    while out[-1] < highest:
        out.append(min(2 * out[-1], highest))
    return out
