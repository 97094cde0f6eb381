"""From a result folder to its summary: the same way for a run that just ended, an old one, and one that died."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec
import numpy as np

from harness.analysis import curve, gap, metrics, verdicts
from harness.analysis.table import Table
from harness.decide import cost
from harness.observe import client, gpu, server
from harness.record import Level
from harness.store import Run
from harness.summary import (
    ClientSummary,
    Cost,
    Curve,
    Knees,
    LevelSummary,
    Prediction,
    ServerView,
    Summary,
    Verdict,
)


def summarise(run: Run) -> Summary:
    """Everything that the folder's records, levels, telemetry and manifest say; finished levels only."""
    table = Table.of(run.records)
    finished = [level for level in run.levels if level.finished and level.window_end_s is not None]
    levels = [_level(run, table, level) for level in finished]
    usable = [s for s in levels if s.output_tokens_per_s.mean]
    points = curve.points_of(usable)
    fit = curve.fit(points) if points else None
    knees = fit.knees if fit else Knees()
    fitted = fit.curve if fit else None
    # Without an SLO the knee is the hinge, and only if the plateau was reached (contract.md).
    knee = knees.hinge.value if fitted and fitted.plateau_reached and knees.hinge else None
    prediction = _prediction(run.manifest)
    found = [*_of_run(run), *(fitted.verdicts if fitted else []), *_drift(levels)]
    return Summary(
        simulated=bool(run.manifest.get("simulated")),
        complete=bool(run.manifest.get("complete")) and run.complete,
        verdicts=found,
        knee_concurrency=knee,
        levels=levels,
        curve=fitted,
        knees=knees,
        prediction=gap.beside(prediction, levels) if prediction else None,
        cost=_cost(run.manifest, fitted, levels),
        client=_client(run.manifest.get("client", {})),
    )


def exit_status(summary: Summary) -> int:
    """0, or 3 when the answer rests on an invalid level.

    The level whose errors ended its ramp, the last one of each repeat, voids nothing unless it stands alone.
    """
    last = {level.repeat: level for level in summary.levels}
    ended = [s for s in last.values() if any(v.code == "errors_above_1_percent" for v in s.verdicts)]
    levels = [level for level in summary.levels if not any(level is s for s in ended)]
    if summary.levels and not levels:
        return 3
    invalid = any(v.level == "invalid" for level in levels for v in level.verdicts)
    return 3 if invalid or any(v.level == "invalid" for v in summary.verdicts) else 0


def _level(run: Run, table: Table, level: Level) -> LevelSummary:
    assert level.window_start_s is not None
    assert level.window_end_s is not None
    window = (level.window_start_s, level.window_end_s)
    workload = run.manifest.get("workload", {})
    figures: dict[str, Any] = {
        "gpus": run.manifest.get("gpus"),
        "input_tokens_asked": workload.get("input_tokens"),
        "output_tokens_asked": workload.get("output_tokens"),
    }
    table = table.around(*window)
    good = metrics.began_in(table, level) & table.ok
    itl = metrics.mean_itl(table.first[good], table.last[good], table.output_tokens[good], table.first_tokens[good])
    of_client = client.view(run.samples, window)
    of_server = _server(run, table, window, itl)
    of_gpu = gpu.view(run.samples, window)
    summary = metrics.level_summary(table, level, server=of_server, client=of_client, gpu=of_gpu, **figures)
    return msgspec.structs.replace(summary, verdicts=[*summary.verdicts, *_said(run, level)])


def _said(run: Run, level: Level) -> list[Verdict]:
    """What was said of the level's errors, once for each kind."""
    words: dict[str, str] = {}
    for record in run.records:
        if record.level == level.index and record.error not in ("", "cancelled") and record.error_message:
            words.setdefault(record.error, record.error_message)
    return [
        Verdict(f"said_{kind}", "note", f"{kind}: {text}", "", level.concurrency or level.rate)
        for kind, text in sorted(words.items())
    ]


def _server(run: Run, table: Table, window: tuple[float, float], itl: float | None) -> ServerView | None:
    inside = np.flatnonzero((table.arrival >= window[0]) & (table.arrival <= window[1]))  # the scrapes lie in it too
    order = inside[np.argsort(table.arrival[inside], kind="stable")]
    prompts = (table.first >= window[0]) & (table.first <= window[1]) & ~np.isnan(table.input_tokens)
    return server.view(
        run.samples,
        window,
        array("d", table.arrival[order].tobytes()),
        array("i", table.tokens[order].tobytes()),
        list(zip(table.first[prompts].tolist(), table.input_tokens[prompts].tolist(), strict=True)),
        steps_per_s=1.0 / itl if itl else None,
    )


def _prediction(manifest: dict[str, Any]) -> Prediction | None:
    made = manifest.get("prediction")
    return msgspec.convert(made, Prediction) if made else None


def _of_run(run: Run) -> list[Verdict]:
    out = []
    if not (run.complete and run.manifest.get("complete")):
        held = sum(level.finished for level in run.levels)
        out.append(
            Verdict(
                "incomplete",
                "doubt",
                f"the run ended early: {held} of the {len(run.levels)} levels begun are finished",
                "the finished levels stand; run again for the rest",
            )
        )
    if not any(level.finished for level in run.levels):
        out.append(
            Verdict("nothing_measured", "invalid", "no level is finished: there is no answer", "give the run more time")
        )
    stops = [step["reason"] for step in run.manifest.get("ramp", []) if step["reason"].startswith("stopped")]
    said = [*run.manifest.get("notes", []), *dict.fromkeys(stops)]
    return out + [Verdict("run_note", "note", text) for text in said]


def _drift(levels: list[LevelSummary]) -> list[Verdict]:
    found = verdicts.drift(levels)
    return [found] if found else []


def _client(facts: dict[str, Any]) -> ClientSummary:
    return ClientSummary(timestamp_source=facts.get("timestamp_source"), workers=facts.get("workers", 1))


def _cost(manifest: dict[str, Any], fitted: Curve | None, levels: list[LevelSummary]) -> Cost | None:
    """Cost at the plateau where it was reached, else at the best level; all of it on the output tokens."""
    price, gpus = manifest.get("price"), manifest.get("gpus")
    means = {s.concurrency or s.in_flight: s.output_tokens_per_s.mean for s in levels if s.output_tokens_per_s.mean}
    if price is None or not gpus or not means:
        return None
    best = max(means, key=lambda c: means[c] or 0.0)
    rate, at = means[best], float(best or 0)
    if fitted and fitted.plateau_reached and fitted.plateau_tokens_per_s.value:
        rate, at = fitted.plateau_tokens_per_s.value, fitted.hinge_concurrency.value or at
    assert rate is not None
    return Cost(
        usd_per_million_output_tokens=cost.usd_per_million_tokens(price * gpus, rate),
        usd_per_gpu_hour=price,
        gpus=gpus,
        at_concurrency=at,
    )
