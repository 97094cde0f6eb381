"""A prediction as a document; its charts are in `roofs`.

The data sheet's prediction and a calibrated one have columns of their own. Times in milliseconds. Only units are
computed here; the figures come from `predict.question`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from harness.base import units
from harness.data.prediction import Band, Calibrated, PredictedLevel, Prediction, SteppedLevel
from harness.data.views import Spread
from harness.predict.claims import TITLE as CLAIMS
from harness.report.document import Column, Document, Section, shown
from harness.report.format import MISSING, binding, limit_name, ms, number, percent, plain, ratio

if TYPE_CHECKING:
    from harness.predict.calibration import Calibration
    from harness.predict.disaggregated import Disaggregated, DisaggregatedLevel, Share
    from harness.predict.question import PredictionResult
    from harness.predict.steady import ThroughputLimit

_OUTWEIGHED = {"compute": "the memory traffic", "kv_traffic": "the weights", "prefill": "decoding"}
_ALIKE = 0.01
_SHARES = ("mbu", "mfu_prefill", "mfu_decode")
PARAMETERS = {
    "mbu": "MBU",
    "mfu_prefill": "MFU of prefill",
    "mfu_decode": "MFU of decode",
    "o_layer": "overhead of a layer, µs",
    "o_step": "overhead of a step, µs",
    "o_req": "overhead of a running request, µs",
    "o_api": "overhead outside the batch, µs",
}


def report(answer: PredictionResult, *, with_claims: bool = False) -> Document:
    """Return the report of a prediction for one model on one card; `with_claims`: with wrong claims about it."""
    prediction, stepped, own = answer.prediction, answer.prediction.step_machine, answer.prediction.calibrated
    loop = "open loop" if stepped and stepped[0].concurrency is None else "closed loop"
    claims = [f"{claim.id}: {plain(claim.quote)}" for claim in answer.claims]
    sections = [
        Section(lines=_head(prediction)),
        Section("By users in flight", columns=level_columns(prediction)),
        Section(f"By the step machine, {loop}", columns=stepped_columns(stepped) if stepped else []),
        Section("Limits", columns=limit_columns(answer.limits, prediction)),
        Section("Calibrated, against the data sheet", columns=calibrated_columns(prediction, own) if own else []),
        Section("Notes", lines=[plain(note) for note in prediction.notes]),
        Section(CLAIMS, lines=claims if with_claims else []),
    ]
    return Document(sections=sections)


def _head(prediction: Prediction) -> list[str]:
    """Return the prediction's first lines: plateau, single stream, what binds, memory, and what was assumed."""
    has, bound = prediction.assumptions, binding(prediction)
    lines = [", ".join(subject(prediction))]
    counted, alone = ("output", "single stream") if prediction.output_tokens else ("input", "one request alone")
    plateau, single = _band(prediction.plateau_tokens_per_s), _band(prediction.single_stream_tokens_per_s)
    lines.append(f"plateau {plateau} {counted} tok/s; {alone} {single}; {bound}")
    token, request = has.kv_bytes_per_token or 0.0, has.kv_bytes_per_request or 0.0
    context = prediction.input_tokens + prediction.output_tokens / 2
    kv = f"{number(token)} B of KV a token, " if token else ""
    if token and abs(request / context / token - 1) > _ALIKE:  # windows or states: no figure a token holds for all
        kv = f"{number(request / 1e6)} MB of KV a request of {number(context)} tokens, "
    lines.append(
        f"{_billions(has.parameters)}e9 parameters, {_billions(has.weight_bytes)} GB of weights, {kv}"
        + (f"KV cache of {number(has.kv_tokens)} tokens a replica" if has.kv_tokens else "no KV cache")
    )
    shares = f"MBU {has.mbu or 0:.2f}, MFU {has.mfu_prefill or 0:.2f}"
    assumed = f"{shares}, {number((has.layer_overhead_s or 0) * 1e6)} µs a layer and step"
    by = "by what these cores reach" if prediction.gpu == "host" else "by the data sheet"
    lines.append(f"{by}: {assumed}{_edges(prediction)}")
    if prediction.scaling_efficiency is not None:
        lines.append(f"scaling efficiency {percent(prediction.scaling_efficiency)} of {prediction.gpus} times one GPU")
    if prediction.calibrated is not None:
        lines.append(calibrated_line(prediction.calibrated))
    return lines


def subject(prediction: Prediction) -> tuple[str, str]:
    """Return what was predicted: the model on its cards, and the tokens of a request."""
    answers = f", {number(prediction.output_tokens)} out" if prediction.output_tokens else ""
    served = f"{plain(prediction.model)} on {prediction.gpus} × {plain(prediction.gpu)}"
    texts = f"{prediction.inputs} texts of " if prediction.inputs else ""
    return served, f"{texts}{number(prediction.input_tokens)} tokens in{answers}"


def _billions(value: float | None) -> str:
    return number(None if value is None else value / 1e9)


def _edges(prediction: Prediction) -> str:
    """Return in words by what factor steps are slower at the low end and faster at the high end (docs/predict.md)."""
    band = prediction.single_stream_tokens_per_s if prediction.output_tokens else None
    if band is None or not band.low:
        return ""
    return f"; low and high: steps {band.mid / band.low:.2f} times slower, {band.high / band.mid:.2f} times faster"


def _band(band: Band) -> str:
    return f"{number(band.mid)} ({number(band.low)}–{number(band.high)})"


def calibrated_line(fitted: Calibrated) -> str:
    """Return the calibrated prediction in a line of its own."""
    on = ", ".join(f"{load:g}" for load in fitted.fitted_on)
    error = f"error {percent(fitted.error_unseen)} at the other levels" if fitted.error_unseen is not None else ""
    unseen = error or "there are no other levels to judge it by"
    return (
        f"calibrated on C = {on} of {plain(fitted.source) or 'a measurement'}: plateau "
        f"{number(fitted.plateau_tokens_per_s)} output tok/s, single stream "
        f"{number(fitted.single_stream_tokens_per_s)}; {unseen}"
    )


def level_columns(prediction: Prediction) -> list[Column]:
    """Return the table over concurrency."""
    levels, decodes = prediction.levels, prediction.output_tokens > 0
    tokens = [level.throughput if decodes or level.input_tokens_per_s else None for level in levels]
    rates = [level.requests_per_s for level in levels]
    return shown([
        Column("C", [f"{level.concurrency:,}" for level in levels]),
        *_ends("tok/s" if decodes else "in tok/s", tokens),
        Column("ITL ms", [ms(level.itl_s) for level in levels]),
        Column("TTFT ms" if decodes else "latency ms", [ms(level.ttft_s) for level in levels]),
        *([Column("req/s", _mids(rates))] if decodes else _ends("req/s", rates)),
        Column("$/1M" if decodes else "$/1M in", _mids([level.usd_per_million for level in levels])),
        _slo(levels),
        Column("meas./pred.", [ratio(level.measured_over_predicted) for level in levels]),
        Column("mostly", [limit_name(level.bound_by) if level.bound_by else MISSING for level in levels], words=True),
    ])  # fmt: skip


def _ends(unit: str, bands: Sequence[Band | None]) -> list[Column]:
    return [
        Column(f"{unit} low", [number(band.low if band else None) for band in bands]),
        Column(f"{unit} mid", _mids(bands)),
        Column(f"{unit} high", [number(band.high if band else None) for band in bands]),
    ]


def _mids(bands: Sequence[Band | None]) -> list[str]:
    return [number(band.mid if band else None) for band in bands]


def _slo(levels: Sequence[PredictedLevel | DisaggregatedLevel]) -> Column:
    words = {True: "met", False: "missed", None: MISSING}
    return Column("SLO", [words[level.meets_slo] for level in levels], words=True)


def stepped_columns(levels: Sequence[SteppedLevel]) -> list[Column]:
    """Return the step machine's table, over concurrency or over the target rate; percentiles follow their mean."""

    def spread(head: str, get: Callable[[SteppedLevel], Spread | None]) -> list[Column]:
        values = [get(level) for level in levels]

        def of(figure: str) -> list[str]:
            return [ms(getattr(each, figure) if each else None) for each in values]

        return [Column(f"{head} ms", of("mean")), *(Column(f"{head} {p}", of(p)) for p in ("p50", "p99"))]

    columns = [
        Column("C", [number(level.concurrency) for level in levels]),
        Column("target req/s", [number(level.rate) for level in levels]),
        Column("tok/s", [number(level.output_tokens_per_s) for level in levels]),
        *spread("ITL", lambda level: level.itl_s),
        *spread("TTFT", lambda level: level.ttft_s),
        Column("req/s", [number(level.requests_per_s) for level in levels]),
        Column("in flight", [number(level.in_flight) for level in levels]),
        Column("preempted", [f"{level.preemptions:,}" for level in levels]),
        Column("/ closed form", [ratio(level.over_closed_form, 3) for level in levels]),
        Column("", ["overloaded" if level.unstable else "" for level in levels], words=True),
    ]
    return shown(columns, empty=(MISSING, ""))


def limit_columns(limits: Sequence[ThroughputLimit], prediction: Prediction) -> list[Column]:
    """Return every named limit with its value, and which one binds."""
    unit = "tok/s" if prediction.output_tokens else ""
    effects = [_effect(limit) + " ← binds" * (limit.name == prediction.binding_cap) for limit in limits]
    return shown([
        Column("limit", [limit_name(limit.name) for limit in limits], words=True),
        Column("from C", ["never" if limit.concurrency is None else number(limit.concurrency) for limit in limits]),
        Column(unit, [number(limit.tokens_per_s) for limit in limits]),
        Column("", effects, words=True),
    ])  # fmt: skip


def _effect(limit: ThroughputLimit) -> str:
    """Return in words what a named limit does to throughput, and from its load on, by the limit's kind."""
    if limit.kind == "ceiling":
        from_there = f"; from there it outweighs {_OUTWEIGHED[limit.name]}"
        return "no batch exceeds it" + (from_there if limit.concurrency is not None else "")
    if limit.kind == "slo":
        if limit.concurrency is None:
            return "met at any load"
        return "the limits are met up to there" if limit.concurrency else "missed at any load"
    return {"slope": "reading the weights gives no user more", "stop": "the batch grows no further"}[limit.kind]


def calibrated_columns(prediction: Prediction, calibrated: Calibrated) -> list[Column]:
    """Return columns of the data sheet's and the calibrated prediction by level, with measured ÷ predicted."""
    sheet, own = prediction.levels, calibrated.levels
    return shown([
        Column("C", [f"{each.concurrency:,}" for each, _ in zip(sheet, own, strict=True)]),
        Column("sheet tok/s", _mids([level.output_tokens_per_s for level in sheet])),
        Column("calibrated tok/s", _mids([level.output_tokens_per_s for level in own])),
        Column("sheet ITL ms", [ms(level.itl_s) for level in sheet]),
        Column("calibrated ITL ms", [ms(level.itl_s) for level in own]),
        Column("sheet TTFT ms", [ms(level.ttft_s) for level in sheet]),
        Column("calibrated TTFT ms", [ms(level.ttft_s) for level in own]),
        Column("meas./sheet", [ratio(level.measured_over_predicted) for level in sheet]),
        Column("meas./calibrated", [ratio(level.measured_over_predicted) for level in own]),
    ])  # fmt: skip


def calibration(fitted: Calibration, assumed: Mapping[str, float]) -> Document:
    """Return the report of a calibration: each parameter as `assumed` and as fitted, and the error at other levels."""
    from harness.predict.calibration import doubts  # reports of other things start without it

    def figure(parameter: str, value: float) -> str:
        return f"{value:.3f}" if parameter in _SHARES else number(value * 1e6)

    on = ", ".join(f"{load:g}" for load in fitted.fitted_on)
    why = {each: f"kept: {fitted.kept.get(each, 'part of a layer’s')}" for each in PARAMETERS}
    how = ["fitted" if each in fitted.fitted else why[each] for each in PARAMETERS]
    unseen = list(dict.fromkeys(row.concurrency for row in fitted.errors_unseen))
    parameters = [
        Column("", list(PARAMETERS.values()), words=True),
        Column("data sheet", [figure(each, assumed[each]) for each in PARAMETERS]),
        Column("calibrated", [figure(each, getattr(fitted, each)) for each in PARAMETERS]),
        Column("", how, words=True),
    ]
    sections = [
        Section(f"{fitted.model} on {fitted.gpu}, calibrated on C = {on}", columns=parameters),
        *_errors(fitted),
        Section("Notes", lines=[plain(note) for note in (*fitted.notes, *doubts(fitted, unseen))]),
    ]
    return Document(sections=sections)


def _errors(fitted: Calibration) -> list[Section]:
    """Return the table of RMS errors at levels not fitted on: calibrated, by data sheet, and of a line then flat."""
    unseen = [row for row in fitted.errors_unseen if row.figure == "output_tokens_per_s"]
    if not unseen:
        return [Section("Error at other levels", lines=["unknown: every valid level was fitted on"])]
    rms = {
        "output tok/s": fitted.rms("output_tokens_per_s"), "ITL": fitted.rms("itl_s"), "TTFT": fitted.rms("ttft_s"),
    }  # fmt: skip
    overall = [
        Column("", list(rms), words=True),
        Column("calibrated", [percent(each.calibrated) for each in rms.values()]),
        Column("data sheet", [percent(each.data_sheet) for each in rms.values()]),
        Column("line, then flat", [percent(each.line_then_flat) for each in rms.values()]),
    ]
    return [Section("Root mean square error at the other levels", columns=overall)]


# ---- prefill and decode on GPUs of their own ----


def disaggregated(split: Disaggregated) -> Document:
    """Return the report of a disaggregated prediction: answer, splits and GPUs that do both, each pool, the levels."""
    pools = [("prefill", split.prefill), ("decode", split.decode)]
    rates = [pool.requests_per_s for _, pool in pools]
    alone = [
        Column("", [name for name, _ in pools], words=True),
        Column("GPUs", [number(pool.gpus) for _, pool in pools]),
        Column("replicas", [number(pool.replicas) for _, pool in pools]),
        Column("most req/s", [number(rate.mid) for rate in rates]),
        Column("low", [number(rate.low) for rate in rates]),
        Column("high", [number(rate.high) for rate in rates]),
    ]
    at = "At most" if split.rate is None else f"At {number(split.rate)} requests/s"
    levels = split.levels
    bands = [level.output_tokens_per_s for level in levels]
    together = [
        Column("C", [number(level.concurrency) for level in levels]),
        Column("tok/s", [number(band.mid) for band in bands]),
        Column("low", [number(band.low) for band in bands]),
        Column("high", [number(band.high) for band in bands]),
        Column("req/s", [number(level.requests_per_s.mid) for level in levels]),
        Column("ITL ms", [ms(level.itl_s) for level in levels]),
        Column("TTFT ms", [ms(level.ttft_s) for level in levels]),
        _slo(levels),
        Column("bound by", [level.bound_by for level in levels], words=True),
    ]
    return Document(
        sections=[
            Section(lines=_pools_head(split)),
            Section(at, columns=_share_columns(split)),
            Section("Each pool alone, without limits", columns=alone),
            Section("Both pools, by users in flight", columns=shown(together)),
            Section("Notes", lines=[plain(note) for note in split.notes]),
        ]
    )


def _pools_head(split: Disaggregated) -> list[str]:
    """Return lines on model and limits, on requests/s of separate pools and of GPUs that do both, on KV transfer."""
    limits = "".join(f", {name} = {units.duration(seconds)}" for name, seconds in split.slo.items())
    asked, both = split.asked.requests_per_s_slow, split.together.requests_per_s_slow
    apart = f", so pools serve {asked / both:.2f} times as many" if asked and both else ""
    size = number(split.transfer_bytes / 1e9)
    return [
        f"{plain(split.model)} on {plain(split.gpu)}, {number(split.input_tokens)} tokens in, "
        f"{number(split.output_tokens)} out{limits}",
        f"{_shared_out(split.asked)} GPUs serve {_served(asked)}{_bound_of_pools(split)}; "
        f"as many GPUs that do both serve {_served(both)}{apart}",
        *_best_split(split),
        f"A prompt's KV of {size} GB takes {ms(split.transfer_s)} ms to the other pool: {plain(split.transfer_by)}",
    ]


def _best_split(split: Disaggregated) -> list[str]:
    """Return a line on the best split of the GPUs into pools, and for a given rate the fewest GPUs that are enough."""
    best, total = split.best, split.asked.prefill_gpus + split.asked.decode_gpus
    rate = "" if split.rate is None else f" at {number(split.rate)} requests/s"
    if not best.requests_per_s_slow or (rate and best.concurrency is None):
        return [f"No split of {total} GPUs serves it within the limits{rate}"]
    enough = f", for which {split.enough[0]} + {split.enough[1]} are enough" if split.enough else ""
    why = "the shortest answers" if rate else "the most requests"
    return [f"Of {total} GPUs {_shared_out(best)} have {why}{rate}{enough}"]


def _served(most: float) -> str:
    return f"at least {number(most)} requests/s" if most else "none: one request misses the limits"


def _bound_of_pools(split: Disaggregated) -> str:
    """Return in words what limits the split that was asked about: the full pool, or the SLO."""
    asked = split.asked.requests_per_s_slow
    if not asked:
        return ""
    pools = {"prefill": split.prefill.requests_per_s.low, "decode": split.decode.requests_per_s.low}
    full = min(pools, key=pools.__getitem__)
    return f", bound by {full if asked >= pools[full] * (1 - 1e-4) else 'the SLO'}"


def _shared_out(share: Share) -> str:
    return f"{share.prefill_gpus} + {share.decode_gpus}" if share.prefill_gpus else f"{share.decode_gpus} for both"


def _share_columns(split: Disaggregated) -> list[Column]:
    """Return the table of the split that was asked about, the best one, and as many GPUs that do both."""
    other = split.best.requests_per_s_slow and _shared_out(split.best) != _shared_out(split.asked)
    rows = [split.asked, *([split.best] if other else []), split.together]
    used = [split.rate / row.requests_per_s_slow if split.rate and row.concurrency else None for row in rows]
    return shown([
        Column("GPUs", [_shared_out(row) for row in rows], words=True),
        Column("most req/s, at least", [number(row.requests_per_s_slow or None) for row in rows]),
        Column("used", [percent(each) for each in used]),
        Column("C", [number(row.concurrency) for row in rows]),
        Column("tok/s", [number(row.output_tokens_per_s) for row in rows]),
        Column("ITL ms", [ms(row.itl_s) for row in rows]),
        Column("TTFT ms", [ms(row.ttft_s) for row in rows]),
        Column("p99", [ms(row.ttft_p99_s) for row in rows]),
    ])  # fmt: skip
