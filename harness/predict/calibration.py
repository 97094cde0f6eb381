"""A calibration: what one model's server reached on one kind of card, its file, and the prediction by it.

The same prediction twice, with other efficiencies: what differs is what a server was measured to reach. The band of
the data sheet's is what is not known of any server; that of the calibrated one is how far it missed the levels that it
was not fitted on (predict.fitting).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from harness.base import decoding
from harness.base.errors import HarnessError
from harness.data.prediction import Band, Calibrated, PredictedLevel
from harness.predict import roofline
from harness.predict.catalog import short
from harness.predict.deployment import Deployment
from harness.predict.model import Model, weight_bytes
from harness.spec.work import MeanLengths, Mixture

FORMAT = 1
FIGURES = ("output_tokens_per_s", "itl_s", "ttft_s")
FLOOR = 1e-9  # seconds; an overhead that small is none
_FAR = 2.0  # times beyond the levels that were fitted


class Range(msgspec.Struct, frozen=True):
    """Where a figure may lie, and what is known of it beforehand."""

    low: float
    high: float
    centre: float  # where the fit starts if the deployment has it at 0
    width: float  # a standard deviation of its logarithm: MBU .6-.9, MFU .3-.6, overheads within a factor of three

    @property
    def logs(self) -> tuple[float, float]:
        """Return the logarithms of the range's ends."""
        return math.log(self.low), math.log(self.high)


# The overhead of a step is o_layer's: one model has one number of layers, so that o_step, a tenth of it by the
# published fit, cannot be separated from it. o_req grows with the batch, and o_api delays a request without any step.
RANGES = {
    "mbu": Range(0.01, 1.0, 0.8, 0.3),
    "mfu_prefill": Range(0.01, 1.0, 0.45, 0.5),
    "mfu_decode": Range(0.01, 1.0, 0.45, 0.5),
    "o_layer": Range(FLOOR, 1.0, 32e-6, 1.1),
    "o_req": Range(FLOOR, 1.0, 4.4e-6, 1.1),
    "o_api": Range(FLOOR, 60.0, 1e-3, 1.5),
}


class UnseenError(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Predicted over measured, minus 1, of one figure at a level that no fit has seen."""

    figure: str  # one of FIGURES
    concurrency: float
    measured: float
    calibrated: float
    data_sheet: float
    line_then_flat: float | None = None  # throughput by a line that turns flat; None for other figures


class Rms(msgspec.Struct, frozen=True):
    """Root mean square of relative errors over the unseen levels; None if there are none."""

    calibrated: float | None
    data_sheet: float | None
    line_then_flat: float | None


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one model's server reached on one kind of card: a Deployment's own figures, and how far they hold."""

    format: int = FORMAT
    model: str
    weight_bytes: float  # distinguishes the quantisations of a model
    gpu: str
    mbu: float
    mfu_prefill: float
    mfu_decode: float
    o_layer: float
    o_step: float
    o_req: float
    o_api: float
    fitted: tuple[str, ...]  # the figures that the levels settle
    kept: dict[str, str]  # those that stay as they were assumed, with the reason
    fitted_on: tuple[float, ...]  # concurrencies
    input_tokens: float
    output_tokens: float
    errors_unseen: tuple[UnseenError, ...]
    notes: tuple[str, ...] = ()
    source: str = ""  # the measurement's folder

    def rms(self, figure: str = FIGURES[0]) -> Rms:
        """Return a figure's RMS error at levels not fitted on: calibrated, by data sheet, and of a line then flat."""
        rows = [row for row in self.errors_unseen if row.figure == figure]
        ways = ([row.calibrated for row in rows], [row.data_sheet for row in rows])
        flat = [row.line_then_flat for row in rows if row.line_then_flat is not None]
        return Rms(*(rms(errors) for errors in (*ways, flat)))


def rms(errors: Sequence[float]) -> float | None:
    """Return the root mean square; None of nothing.

    >>> rms([0.03, -0.04, 0.0, 0.0])
    0.025
    """
    return math.sqrt(sum(e * e for e in errors) / len(errors)) if errors else None


def apply(model: Model, deployment: Deployment, calibration: Calibration) -> Deployment:
    """Return the deployment with the calibrated figures; raise HarnessError for another model or card."""
    wanted = (model.name, weight_bytes(model), deployment.gpu.key)
    calibrated = (calibration.model, calibration.weight_bytes, calibration.gpu)
    if wanted != calibrated:
        these, those = (f"{name} ({size / 1e9:.3g} GB) on {card}" for name, size, card in (calibrated, wanted))
        way_out = "calibrate on that one, or leave --calibration out"
        raise HarnessError(f"it was made for {these}, not for {those}", place="--calibration", way_out=way_out)
    return msgspec.structs.replace(  # what it fitted outside the batch has what takes requests in
        deployment,
        o_step=calibration.o_step,
        o_token=0.0,
        o_first=0.0,
        **{name: getattr(calibration, name) for name in RANGES},
    )


def encode(calibration: Calibration) -> str:
    """Return the calibration as the text of its file."""
    return msgspec.json.format(msgspec.json.encode(calibration), indent=2).decode() + "\n"


def decode(text: str | bytes, place: str = "--calibration") -> Calibration:
    """Return a calibration from the text of its file; `place` names that file."""
    way_out = "write one with `knee calibrate model DIR --out FILE`"
    with decoding.reading(place, "a calibration", way_out):
        data = text.encode() if isinstance(text, str) else text
        calibration = decoding.typed(decoding.json(data), Calibration)
    if calibration.format != FORMAT:
        raise HarnessError(f"a calibration of format {calibration.format}, not {FORMAT}", place=place, way_out=way_out)
    return calibration


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
    """Return the prediction at `levels` with the calibration's fitted parameters in place of the data sheet's.

    A level's band is as wide as the calibration's error at levels that it was not fitted on. Raise HarnessError if the
    calibration is of another model or card.
    """
    applied = apply(msgspec.structs.replace(model, name=short(model.name)), deployment, calibration)
    prediction = roofline.predict(model, applied, lengths, levels, slo=slo, price=price)
    error = calibration.rms().calibrated
    names = sorted([*RANGES, "o_step"], key=Deployment.__struct_fields__.index)
    return Calibrated(
        source=calibration.source,
        fitted_on=list(calibration.fitted_on),
        parameters={name: getattr(calibration, name) for name in names},
        fitted=list(calibration.fitted),
        kept=calibration.kept,
        error_unseen=error,
        single_stream_tokens_per_s=prediction.single_stream_tokens_per_s.mid,
        plateau_tokens_per_s=prediction.plateau_tokens_per_s.mid,
        hinge_concurrency=prediction.hinge_concurrency,
        levels=[_banded(level, error or 0.0) for level in prediction.levels],
    )


def doubts(calibration: Calibration, levels: Iterable[float]) -> list[str]:
    """Return notes if the data sheet is nearer than the calibration, and on levels far from those it was fitted on.

    Far is more than twice as many users as at the highest level, or fewer than half of those at the lowest.
    """
    doubts, rms = [], calibration.rms()
    if rms.calibrated is not None and rms.data_sheet is not None and rms.calibrated > rms.data_sheet:
        doubts.append(
            f"at levels that were not fitted the data sheet is nearer than this calibration: "
            f"{rms.data_sheet:.0%} beside {rms.calibrated:.0%} rms of output tok/s"
        )
    least, most = min(calibration.fitted_on), max(calibration.fitted_on)
    far = [f"{C:g}" for C in levels if not least / _FAR <= C <= most * _FAR]
    if far:
        on = " to ".join(dict.fromkeys(f"{C:g}" for C in (least, most)))
        doubts.append(f"C = {', '.join(far)}: far from the levels that were fitted ({on})")
    return doubts


def _banded(level: PredictedLevel, error: float) -> PredictedLevel:
    """Return the level with a band of ± `error`, the calibration's relative error, around its middle."""

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
