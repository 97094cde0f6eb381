"""One finished level: its summary, from records, telemetry and the manifest. Pure.

The running ramp, a resumed run and every later reading of the folder use the same function, so a ramp decides on the
figures that the report shows. The caller brings every record that touches the level's window, whichever level it was
sent in; more of them change nothing, but that a session is complete only with all of its requests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import UNSET

from harness.analysis import classes, metrics, patterns, seats, slo, step_account, telemetry, timeline
from harness.analysis.figures import level_summary
from harness.analysis.rules import findings
from harness.analysis.rules.observed import Answered, Observed
from harness.analysis.rules.requests import Conditions
from harness.analysis.server_account import pool_view, server_view
from harness.analysis.table import Table, placed_tokens
from harness.analysis.window import all_requests, began_in, whole_requests
from harness.data.levels import Attainment, LevelPhases, LevelSummary, Service
from harness.data.machines import Client
from harness.data.manifest import Manifest
from harness.data.record import SERVER, Level, LevelNote, Record, Sample
from harness.data.summary import ClientSummary
from harness.data.views import ClientView, ServerView
from harness.spec import traffic
from harness.spec.choices import RANKED, ROUND_ROBIN
from harness.spec.scenario import PRECISION, WorkloadSpec
from harness.spec.work import QUERY_WORDS, Unit

REST_S = 1.0  # the longest rest of a slot after failures (`load.schedule`)


class Facts(Conditions, frozen=True, kw_only=True):
    """The parts of a run's manifest that a level's summary needs; by default nothing is known."""

    limits: tuple[slo.SloLimit, ...] = ()
    class_limits: Mapping[str, Sequence[slo.SloLimit]] = {}  # each class's own limits; one without any has the run's
    tasks: bool = True  # whether requests belong together
    session_requests: int | None = None  # requests in each session, if all have as many
    client: ClientSummary = ClientSummary()
    batch_limit: int | None = None  # requests in the batch of one engine, as stated
    urls: tuple[str, ...] = ()  # the replicas' URLs, if there are several
    pools: tuple[str, ...] = ()  # servers behind the endpoint whose pages are read
    balance: str = ROUND_ROBIN  # how requests are divided over the replicas
    usual: float = math.nan  # work of a request that the server does not count

    def table(self, records: Sequence[Record]) -> Table:
        """Return the records of the run as columns."""
        return Table.of(records, self.unit, self.usual)

    @classmethod
    def of(cls, manifest: Manifest) -> Facts:
        """Return the facts of a run's manifest that the analysis of each of its levels needs."""
        workload, scenario = manifest.workload, manifest.scenario
        ramp, hardware = scenario.ramp, scenario.hardware
        limits = tuple(slo.limits(scenario.slo, scenario.slo_confidence))
        arrivals = traffic.parse(ramp.arrivals, "manifest.json: $.scenario.ramp.arrivals")
        client = _client(manifest)
        unit, inputs = Unit(manifest.unit or Unit.OUTPUT_TOKENS), scenario.workload.inputs or 1
        asked = workload.input_tokens if scenario.one_length else None
        counted = ramp.max_requests is not None and ramp.precision is None and len(ramp.load.loads or ()) == 1
        own_length = counted or ramp.level_seconds or ramp.duration or arrivals.period_s
        return cls(
            unit=unit,
            usual=_usual(manifest, unit),
            inputs=inputs,
            gpus=manifest.gpus,
            replicas=max(1, hardware.gpus // hardware.tp) if hardware.tp else 1,  # the GPUs over those that share one
            slo=slo.per_request(limits),
            input_tokens=asked * inputs if asked else None,
            template_tokens=(workload.template_tokens or 0.0) * inputs,
            output_tokens=(workload.output_tokens or None) if scenario.one_length else None,
            expected_hit_rate=workload.expected_hit_rate or 0.0,
            pauses=manifest.scenario.has_tasks or bool(ramp.think) or ramp.start == "batch",
            max_rps=scenario.target.max_rps,
            counted=counted,
            precision=None if own_length else ramp.precision or PRECISION,
            ceiling=client.events_per_s_ceiling,
            ceiling_is_lower_bound=bool(client.ceiling_is_lower_bound),
            traffic=arrivals,
            limits=limits,
            class_limits={
                spec.name: tuple(slo.limits(spec.slo, scenario.slo_confidence)) for spec in scenario.class_ or ()
            },
            streams=scenario.target.streams,
            images=workload.images or 0,
            image_bytes=workload.image_bytes or 0,
            tasks=scenario.has_tasks,
            session_requests=_session_requests(scenario.workload),
            client=client,
            batch_limit=_batch_limit(manifest),
            urls=tuple(manifest.urls or ()),
            pools=tuple(scenario.target.pool_metrics or ()),
            balance=scenario.target.balance or ROUND_ROBIN,
        )


def _batch_limit(manifest: Manifest) -> int | None:
    """Return the batch limit by `--max-num-seqs`, else by the slots that llama-server publishes."""
    slots = manifest.server.get("slots")
    return manifest.scenario.hardware.max_num_seqs or (slots if isinstance(slots, int) and slots > 0 else None)


def _usual(manifest: Manifest, unit: Unit) -> float:
    """Return the work of a request, in documents or tokens, where the server does not count it; nan: not known."""
    spec, words = manifest.scenario, manifest.workload.prompt_words
    inputs = spec.workload.inputs or 1
    if unit is Unit.DOCUMENTS:
        return float(inputs)
    exact = unit is Unit.INPUT_TOKENS and spec.workload.tokenizer and words
    return float(inputs * (words + QUERY_WORDS * (spec.target.api in RANKED))) if exact and words else math.nan


def _session_requests(workload: WorkloadSpec) -> int | None:
    """Return how many requests each session has; None if that varies, or there are none."""
    if workload.node:
        return sum(node.fan_out for node in workload.node)
    turns = workload.session.turns if workload.session else None
    return turns if isinstance(turns, int) else None


def _client(manifest: Manifest) -> ClientSummary:
    """Return the load generator by the manifest: the ceilings of all its machines added up, the largest error."""
    client, shards = manifest.client, manifest.shards or ()
    machines = [(shard.client or client, shard.host or manifest.host) for shard in shards] or [(client, manifest.host)]
    ceilings = [_ceiling(each, len(host.cpus_allowed or ())) for each, host in machines]
    known = [each.calibration for each, _ in machines if each.calibration is not None]
    calibrated = len(known) == len(machines)
    errors = [row.error_p99_s for each in known for row in each.timing]
    return ClientSummary(
        events_per_s_ceiling=sum(ceilings) if calibrated else None,
        ceiling_is_lower_bound=any(each.single.limited_by != "client" for each in known) if calibrated else None,
        timestamp_error_p99_s=max(errors, default=None) if calibrated else None,
        timestamp_source=client.timestamp_source or None,
        transport=client.transport or "socket",
        workers=client.workers,
    )


def _ceiling(client: Client, processors: int) -> float:
    """Return the events per second that a machine's workers can take in: one worker's, times workers with a processor.

    `processors` are those that Knee may use there, 0 if that is not known.
    """
    known = client.calibration
    return known.single.per_s * min(client.workers, processors or client.workers) if known else 0.0


def summarise_level(
    records: Sequence[Record], table: Table, samples: Sequence[Sample], level: Level, facts: Facts
) -> LevelSummary:
    """Return a level whose window is closed, with every verdict; `table` holds the `records`."""
    # A dataset's rows that are sent one by one are no sessions, though each names its own.
    of_sessions = patterns.sessions(table, level, facts.session_requests) if facts.tasks else None
    level = all_requests(table, level) if LevelNote.COUNTED in level.notes else level
    table = table.around(level.window[0] - REST_S, level.window[1])  # with the failures that slots rest after in it
    level = level if LevelNote.COUNTED in level.notes else whole_requests(table, level)
    window = level.window
    good = began_in(table, level) & table.ok
    itl = metrics.mean_itl(table.first[good], table.last[good], placed_tokens(table)[good], table.first_tokens[good])
    made = level_summary(
        table,
        level,
        facts,
        server=server_view(samples, window, table, itl, facts.batch_limit),
        client=_load_generator(samples, window, facts),
        gpu=telemetry.gpu_view(samples, window),
        stamps_late_s=telemetry.stamp_delay(samples, window),
    )
    made = classes.with_classes(made, table, level, facts, facts.class_limits)
    if facts.urls:
        servers = {
            url: server_view(samples, window, table.only(table.to(url)), itl, facts.batch_limit, f"{SERVER} {url}")
            for url in facts.urls
        }
        made = classes.with_replicas(made, table, level, facts, servers)
    if facts.pools:
        pools = {name: pool_view(samples, window, f"{SERVER} {name}") for name in facts.pools}
        made = msgspec.structs.replace(made, pools=pools)
    in_service = seats.service(table, *window, made.e2e_s.mean)
    phases = _phases(table, window, in_service, made.server, facts)
    moved = timeline.drift(table, samples, level)
    made = msgspec.structs.replace(made, taken_at_once=patterns.taken_at_once(table, level) or UNSET)
    observed = Observed(
        s=made,
        pauses=telemetry.pauses(samples, window),
        balance=facts.balance,
        drift=moved,
    )
    return msgspec.structs.replace(
        made,
        slo=classes.attainments(
            facts.limits, facts.class_limits, _without_canaries(table), level, replicas=facts.replicas
        ),
        sessions=of_sessions or UNSET,
        drift=moved or UNSET,
        service=in_service or UNSET,
        phases=phases or UNSET,
        prefill_tokens_per_s=phases.prefill_tokens_per_s.mean if phases else None,
        verdicts=[*findings(observed), *made.verdicts, *findings(Answered(level, records))],
    )


def _phases(
    table: Table, window: tuple[float, float], service: Service | None, server: ServerView | None, facts: Facts
) -> LevelPhases | None:
    """Return how a level's server divides its time between prompts and decoding, or why that is unknown."""
    if facts.unit is not Unit.OUTPUT_TOKENS:
        return None
    if facts.urls or facts.replicas > 1:
        return LevelPhases(reason="several engines serve, and the steps of one do not show those of another")
    return step_account.phases(table, *window, service, server)


def attainments(table: Table, level: Level, facts: Facts, limits: Sequence[slo.SloLimit]) -> list[Attainment]:
    """Return how much of a finished level met limits that its run did not have; `table` holds the run's records."""
    table = _without_canaries(table.around(*level.window))
    return slo.attainments(limits, table, whole_requests(table, level), replicas=facts.replicas)


def _without_canaries(table: Table) -> Table:
    """Return the table without canaries: latencies are those of the load's other requests."""
    return table.only(~table.canary) if table.canary.any() else table


def _load_generator(samples: Sequence[Sample], window: tuple[float, float], facts: Facts) -> ClientView:
    """Return the client by its telemetry; the source of stamps also by its transport, as short windows have little."""
    seen = telemetry.client_view(samples, window)
    known = "user" if facts.client.transport != "socket" else facts.client.timestamp_source
    return msgspec.structs.replace(seen, timestamp_source=seen.timestamp_source or known)
