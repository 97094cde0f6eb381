"""What one finished level says: its summary, from records and telemetry, and what the ramp takes from that.

There is one way for all who ask: the run that goes on, the one that is resumed, and every later reading of the folder.
So a ramp decides on the figures that the report shows, whenever it is asked. The caller brings every record that
touches the level's window, whichever level it was sent in; more of them change nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from harness.analysis import grade, metrics, precision, ramp, slo
from harness.analysis.table import Table
from harness.analysis.window import began_in, whole_requests
from harness.observe import client, gpu, server
from harness.record import Level, Record
from harness.store import Sample
from harness.summary import ClientSummary, ClientView, LevelSummary, ServerView, Spread, Verdict

PAUSED = 0.01  # of a window, above which a worker that stood still voids it if that did harm


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What of a run's manifest bears on its levels; by default nothing is known, and nothing asked."""

    gpus: int | None = None
    replicas: int = 1
    input_tokens: float | None = None  # as asked
    template_tokens: float = 0.0  # that every prompt begins with
    output_tokens: float | None = None
    precision: float | None = None  # None: windows had a length
    limits: tuple[slo.Limit, ...] = ()
    client: ClientSummary = ClientSummary()

    @classmethod
    def of(cls, manifest: dict[str, Any]) -> Facts:
        workload, scenario = manifest.get("workload", {}), manifest.get("scenario", {})
        asked = scenario.get("ramp", {})
        return cls(
            gpus=manifest.get("gpus"),
            replicas=_replicas(scenario.get("hardware", {})),
            input_tokens=workload.get("input_tokens"),
            template_tokens=workload.get("template_tokens") or 0.0,
            output_tokens=workload.get("output_tokens"),
            precision=None if asked.get("level_seconds") else asked.get("precision") or precision.DEFAULT,
            limits=tuple(slo.limits(scenario.get("slo", {}))),
            client=_client(manifest.get("client", {}), len(manifest.get("host", {}).get("cpus_allowed", []))),
        )


def _replicas(hardware: dict[str, Any]) -> int:
    """How many engines serve side by side: the GPUs over those that share one."""
    gpus, tp = hardware.get("gpus") or 1, hardware.get("tp")
    return max(1, gpus // tp) if tp else 1


def _client(facts: dict[str, Any], processors: int) -> ClientSummary:
    """The load generator as the manifest has it; a calibration says what one worker follows on a processor of its own.

    `processors` are those that it was allowed, 0 where that is not known.
    """
    workers, known = facts.get("workers", 1), facts.get("calibration") or {}
    single = known.get("single") or {}
    return ClientSummary(
        events_per_s_ceiling=single["per_s"] * min(workers, processors or workers) if single else None,
        ceiling_is_lower_bound=single["limited_by"] != "client" if single else None,
        timestamp_error_p99_s=max((row["error_p99_s"] for row in known.get("timing", [])), default=None),
        timestamp_source=facts.get("timestamp_source"),
        transport=facts.get("transport", "socket"),
        workers=workers,
    )


def summary(
    records: Sequence[Record], table: Table, samples: Sequence[Sample], level: Level, facts: Facts
) -> LevelSummary:
    """A level whose window is closed, with every verdict and its grade; `table` holds the `records`."""
    assert level.window_start_s is not None
    assert level.window_end_s is not None
    table = table.around(level.window_start_s, level.window_end_s)
    level = whole_requests(table, level)
    assert level.window_start_s is not None
    assert level.window_end_s is not None
    window = (level.window_start_s, level.window_end_s)
    good = began_in(table, level) & table.ok
    itl = metrics.mean_itl(table.first[good], table.last[good], table.output_tokens[good], table.first_tokens[good])
    made = metrics.level_summary(
        table,
        level,
        server=_server(samples, table, window, itl),
        client=_load_generator(samples, window, facts),
        gpu=gpu.view(samples, window),
        gpus=facts.gpus,
        replicas=facts.replicas,
        slo=slo.per_request(facts.limits),
        ceiling=facts.client.events_per_s_ceiling,
        ceiling_is_lower_bound=bool(facts.client.ceiling_is_lower_bound),
        input_tokens_asked=facts.input_tokens,
        template_tokens=facts.template_tokens,
        output_tokens_asked=facts.output_tokens,
        precision=facts.precision,
        stamps_late_s=client.mean_delay(samples, window),
    )
    made = msgspec.structs.replace(
        made,
        slo=slo.attainments(facts.limits, table, level, replicas=facts.replicas) if facts.limits else [],
        verdicts=[*_pauses(samples, level, made.client), *made.verdicts, *_said(records, level)],
    )
    return msgspec.structs.replace(made, grade=grade.of_level(made))


def _load_generator(samples: Sequence[Sample], window: tuple[float, float], facts: Facts) -> ClientView:
    """By its telemetry; whose stamps it had also by its transport, since a short window has little telemetry."""
    seen = client.view(samples, window)
    known = "user" if facts.client.transport != "socket" else facts.client.timestamp_source
    return msgspec.structs.replace(seen, timestamp_source=seen.timestamp_source or known)


def held(made: LevelSummary, level: Level) -> ramp.Held:
    """A finished level as the ramp sees it.

    How many requests it took is told by those of its window: those of the whole level are not all over yet when the
    ramp asks, and it shall see the same later.
    """
    assert level.end_s is not None
    invalid = {v.code for v in made.verdicts if v.level == "invalid"}
    seconds = level.end_s - level.begin_s
    return ramp.Held(
        concurrency=level.concurrency,
        rate=level.rate,
        in_flight=made.in_flight,
        output_tokens_per_s=made.output_tokens_per_s.mean or 0.0,
        se=made.output_tokens_per_s_se,
        assumed=made.output_tokens_per_s_se_assumed,
        error_rate=made.error_rate or 0.0,
        seconds=seconds,
        requests=round(made.requests * seconds / made.window_s),
        request_s=made.e2e_s.mean,
        valid=not invalid - {"in_flight_low"} and made.output_tokens_per_s.mean is not None,
        in_flight_ok="in_flight_low" not in invalid,
        ttft_p99_s=_p99_at_least(made.ttft_s),
        slo=slo.outcome(made.slo) if made.slo else None,
        unstable="unstable" in invalid,
        stalled="stalled" in level.notes,
    )


def _p99_at_least(spread: Spread) -> float | None:
    """What p99 is or passes, by the highest percentile that the samples carry."""
    carried = (spread.p99, spread.p95, spread.p90, spread.p50)
    return next((value for value in carried if value is not None), None)


def _pauses(samples: Sequence[Sample], level: Level, client: ClientView) -> list[Verdict]:
    """Where somebody stood still inside the window: requests were not sent then, and answers not waited for.

    That voids it where requests were sent late for it, or arrivals have the clock's stamps, which it has moved.
    """
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
            harm = client.limited or client.timestamp_source == "user"
            grave = "invalid" if harm and seconds > PAUSED * window else "doubt"
            said = f"worker {worker} stood still for {seconds:.3g} s of the window of {window:.3g} s"
            out.append(
                Verdict("worker_paused", grave, said, "give it a processor of its own, hold the level again", at)
            )
    return out


def _said(records: Sequence[Record], level: Level) -> list[Verdict]:
    """What was said of the level's errors, once for each kind."""
    words: dict[str, str] = {}
    for record in records:
        if record.level == level.index and record.error not in ("", "cancelled") and record.error_message:
            words.setdefault(record.error, record.error_message)
    return [
        Verdict(f"said_{kind}", "note", f"{kind}: {text}", "", level.concurrency or level.rate)
        for kind, text in sorted(words.items())
    ]


def _server(
    samples: Sequence[Sample], table: Table, window: tuple[float, float], itl: float | None
) -> ServerView | None:
    if not any(s.source == "server" and window[0] <= s.time_s <= window[1] for s in samples):
        return None
    inside = np.flatnonzero((table.arrival >= window[0]) & (table.arrival <= window[1]))  # the scrapes lie in it too
    order = inside[np.argsort(table.arrival[inside], kind="stable")]
    prompts = (table.first >= window[0]) & (table.first <= window[1]) & ~np.isnan(table.input_tokens)
    fresh = table.input_tokens - np.nan_to_num(table.cached_tokens)
    ended = (table.last >= window[0]) & (table.last <= window[1]) & ~np.isnan(table.output_tokens)
    return server.view(
        samples,
        window,
        array("d", table.arrival[order].tobytes()),
        array("i", table.tokens[order].tobytes()),
        list(zip(table.first[prompts].tolist(), table.input_tokens[prompts].tolist(), strict=True)),
        steps_per_s=1.0 / itl if itl else None,
        computed=list(zip(table.first[prompts].tolist(), fresh[prompts].tolist(), strict=True)),
        ended=list(zip(table.last[ended].tolist(), table.output_tokens[ended].tolist(), strict=True)),
    )
