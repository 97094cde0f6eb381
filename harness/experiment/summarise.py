"""From a result folder to its summary: the same way for a run that just ended, an old one, and one that died."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from harness.analysis import curve, gap, metrics, verdicts
from harness.analysis.table import Table
from harness.decide import cost
from harness.observe import client, gpu, server
from harness.record import Level
from harness.store import Run, Sample
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

PAUSED = 0.01  # of a window, above which a worker that stood still voids it


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


def lost(run: Run) -> int:
    """Requests that were sent and have no record, by the last that is known of each worker: at least so many."""
    sent: dict[str, int] = {}  # by the beginning of their ids
    for sample in run.samples:
        if sample.source == "client" and sample.metric.endswith("/sent"):
            sent[sample.metric.removesuffix("/sent")] = int(sample.value)
    for sitting in run.manifest.get("sittings", []):
        sent |= sitting.get("sent", {})
    kept = Counter(record.request_id.rpartition("-")[0] for record in run.records)
    return sum(max(0, count - kept[begins]) for begins, count in sent.items())


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
    of_host = _client(run.manifest.get("client", {}))
    figures |= {
        "ceiling": of_host.events_per_s_ceiling,
        "ceiling_is_lower_bound": bool(of_host.ceiling_is_lower_bound),
    }
    table = table.around(*window)
    good = metrics.began_in(table, level) & table.ok
    itl = metrics.mean_itl(table.first[good], table.last[good], table.output_tokens[good], table.first_tokens[good])
    of_client = client.view(run.samples, window)
    of_server = _server(run, table, window, itl)
    of_gpu = gpu.view(run.samples, window)
    summary = metrics.level_summary(table, level, server=of_server, client=of_client, gpu=of_gpu, **figures)
    found = [*_pauses(run.samples, level), *summary.verdicts, *_said(run, level)]
    return msgspec.structs.replace(summary, verdicts=found)


def _pauses(samples: Sequence[Sample], level: Level) -> list[Verdict]:
    """Where somebody stood still inside the window: requests were not sent then, and answers not waited for."""
    assert level.window_start_s is not None
    assert level.window_end_s is not None
    start, end = level.window_start_s, level.window_end_s
    stood: dict[str, float] = {}
    for sample in samples:
        if sample.source == "client" and sample.metric.endswith(("paused_s", "slept_s")):
            inside = min(end, sample.time_s) - max(start, sample.time_s - sample.value)
            if sample.metric == "slept_s":  # a moment on this clock, which stood still
                inside = sample.value if start <= sample.time_s <= end else 0.0
            if inside > 0:
                stood[sample.metric] = stood.get(sample.metric, 0.0) + inside
    out, at, window = [], level.concurrency or level.rate, end - start
    for metric, seconds in sorted(stood.items()):
        worker, _, _ = metric.rpartition("/")
        if metric == "slept_s":
            said = f"the machine slept for {seconds:.3g} s in the window, and the server did not"
            out.append(Verdict("machine_slept", "invalid", said, "keep it awake, hold the level again", at))
        elif metric == "parent_paused_s":
            said = f"the main process stood still for {seconds:.3g} s of the window; load went on"
            out.append(Verdict("parent_paused", "note", said, "the figures of server and GPU have a gap there", at))
        else:
            grave = "invalid" if seconds > PAUSED * window else "doubt"
            said = f"worker {worker} stood still for {seconds:.3g} s of the window of {window:.3g} s"
            out.append(
                Verdict("worker_paused", grave, said, "give it a processor of its own, hold the level again", at)
            )
    return out


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
    complete = bool(run.complete and run.manifest.get("complete"))
    sittings = run.manifest.get("sittings") or [{}]
    void = [level for level in run.levels if "void" in level.notes]
    if not complete:
        begun, held = len(run.levels) - len(void), sum(level.finished for level in run.levels)
        why = sittings[-1].get("ended")
        message = f"the run ended early: {held} of the {begun} levels begun are finished"
        advice = "the finished levels stand; `knee run --resume` goes on with the rest"
        out.append(Verdict("incomplete", "doubt", f"{message} ({why})" if why else message, advice))
    if void:
        at = ", ".join(str(level.concurrency or f"{level.rate:g} req/s") for level in void)
        message = f"measured in {len(sittings)} sittings; the levels that the earlier ones broke off are void: {at}"
        out.append(Verdict("resumed", "note", message))
    servers = [each["server"] for each in sittings if "server" in each]
    changed = sorted({key for server in servers for key in server if server[key] != servers[0].get(key)})
    if changed:
        message = f"the server was another one in a later sitting: {', '.join(changed)}"
        out.append(Verdict("server_changed", "doubt", message, "measure all levels anew on one of them"))
    if missing := lost(run):
        message = f"{missing} requests that were sent have no record"
        advice = "they were in flight, or not yet written, when a process was lost; no finished level counts on them"
        out.append(Verdict("requests_lost", "note" if complete else "doubt", message, advice))
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
    """The load generator as the manifest has it; a calibration says what one worker follows."""
    workers, known = facts.get("workers", 1), facts.get("calibration") or {}
    single = known.get("single") or {}
    return ClientSummary(
        events_per_s_ceiling=single["per_s"] * workers if single else None,
        ceiling_is_lower_bound=single["limited_by"] != "client" if single else None,
        timestamp_error_p99_s=max((row["error_p99_s"] for row in known.get("timing", [])), default=None),
        timestamp_source=facts.get("timestamp_source"),
        transport=facts.get("transport", "socket"),
        workers=workers,
    )


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
