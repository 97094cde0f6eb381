"""The data sheet's prediction and the calibrated one, side by side.

The same prediction twice, with other efficiencies: what differs is what a server was measured to reach. The band of
the data sheet's is what is not known of any server; that of the calibrated one is how far it missed the levels that it
was not fitted on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from harness.data.summary import Band, Calibrated, PredictedLevel
from harness.predict import mixture, tune
from harness.predict.deployment import Deployment
from harness.predict.model import Model
from harness.predict.question import short
from harness.predict.tune import RANGES, Calibration
from harness.spec.work import MeanLengths, Mixture

_FAR = 2.0  # times beyond the levels that were fitted


def calibrated(
    model: Model,
    deployment: Deployment,
    lengths: MeanLengths | Mixture,
    levels: Sequence[int],
    calibration: Calibration,
    *,
    slo: Mapping[str, float] | None = None,
    price: float | None = None,
) -> Calibrated:
    """The prediction by a calibration; `deployment` is the data sheet's. Another model or card is refused."""
    applied = tune.apply(msgspec.structs.replace(model, name=short(model.name)), deployment, calibration)
    found = mixture.predict(model, applied, lengths, levels, slo=slo, price=price)
    error = calibration.rms().calibrated
    names = [*RANGES, "o_step"]
    return Calibrated(
        source=calibration.source,
        fitted_on=list(calibration.fitted_on),
        parameters={name: getattr(calibration, name) for name in sorted(names, key=_place)},
        fitted=list(calibration.fitted),
        kept=calibration.kept,
        error_unseen=error,
        single_stream_tokens_per_s=found.single_stream_tokens_per_s.mid,
        plateau_tokens_per_s=found.plateau_tokens_per_s.mid,
        hinge_concurrency=found.hinge_concurrency,
        levels=[_banded(level, error or 0.0) for level in found.levels],
    )


def doubts(calibration: Calibration, levels: Iterable[float]) -> list[str]:
    """Where the data sheet is known to be nearer, and which of the levels lie far from those that were fitted.

    Far is more than twice as many users as at the highest level, or fewer than half of those at the lowest.
    """
    found, rms = [], calibration.rms()
    if rms.calibrated is not None and rms.data_sheet is not None and rms.calibrated > rms.data_sheet:
        found.append(
            f"at levels that were not fitted the data sheet is nearer than this calibration: "
            f"{rms.data_sheet:.0%} beside {rms.calibrated:.0%} rms of output tok/s"
        )
    least, most = min(calibration.fitted_on), max(calibration.fitted_on)
    far = [f"{C:g}" for C in levels if not least / _FAR <= C <= most * _FAR]
    if far:
        on = " to ".join(dict.fromkeys(f"{C:g}" for C in (least, most)))
        found.append(f"C = {', '.join(far)}: far from the levels that were fitted ({on})")
    return found


def _place(name: str) -> int:
    return Deployment.__struct_fields__.index(name)


def _banded(level: PredictedLevel, error: float) -> PredictedLevel:
    """The level with the calibration's own error as its band."""

    def around(band: Band | None) -> Band | None:
        return band and Band(band.mid * (1 - min(error, 1.0)), band.mid, band.mid * (1 + error))

    tokens = around(level.output_tokens_per_s)
    assert tokens is not None
    return msgspec.structs.replace(
        level,
        output_tokens_per_s=tokens,
        requests_per_s=around(level.requests_per_s),
        usd_per_million=around(level.usd_per_million),
    )
