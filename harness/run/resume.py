"""What a session of a run takes from its folder: its scenario, its clock, its checks, and what earlier sessions did."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import UNSET

from harness.analysis.level import Facts, summarise_level
from harness.base.errors import HarnessError
from harness.base.secrecy import HIDDEN
from harness.data.manifest import Manifest
from harness.data.record import Level, LevelNote, Role
from harness.data.summary import RampStep
from harness.observe import host
from harness.results import result
from harness.results.folder import MANIFEST
from harness.results.result import Result
from harness.run.launch.endpoint import Endpoint
from harness.search.budget import Usage
from harness.search.decision import Decision
from harness.search.state import MeasuredLevel, measured
from harness.spec import reading
from harness.spec import scenario as scenarios
from harness.spec.choices import APIS
from harness.spec.reuse import DatasetSpec
from harness.spec.scenario import Scenario
from harness.workload.dataset.dataset import readers


def begun_with(place: str, headers: Mapping[str, str]) -> Scenario:
    """Return the scenario with which a run's folder was begun; `headers` supply the secrets, which are not stored."""
    manifest = result.read_manifest(place)
    if not manifest.sessions:
        raise HarnessError("nothing was measured in it", place=place, way_out="start a new run")
    result.must_go_on(Path(place), manifest)
    return rebuilt(manifest.scenario, manifest.scenario_digest, headers, place=place, file=MANIFEST)


def rebuilt(written: Scenario, digest: str | None, headers: Mapping[str, str], *, place: str, file: str) -> Scenario:
    """Return a stored scenario with the `headers` whose secret values are hidden in it.

    Raise HarnessError if a header is missing, or the scenario was changed since: it has another digest.
    """
    stored = written.target.headers
    hidden = [name for name, value in stored.items() if value == HIDDEN]
    for name in headers:
        if name not in hidden:
            raise HarnessError(f"the run has no header '{name}'", place="--header", way_out="leave it out")
    for name in hidden:
        if name not in headers:
            raise HarnessError(
                f"the value of its header '{name}' is not stored", place=place, way_out=f"add --header '{name}: …'"
            )
    tree = msgspec.to_builtins(written)
    tree["target"]["headers"] = {**stored, **headers}
    scenario = reading.read(tree, place=f"{place}/{file}")
    if scenarios.digest(scenario) != digest:
        fact = f"the scenario in its {file.removesuffix('.json')} is not the one that it was begun with"
        raise HarnessError(fact, place=place, way_out="undo the change, or start a new run")
    return scenario


def must_be_named(scenario: Scenario, *, api: str | None, dataset: str | None, place: str) -> None:
    """Raise HarnessError if the operator names another API or dataset format than the run, or not a plug-in of it.

    A folder may come from others: no code of another package is loaded because it says so.
    """
    spec = scenario.workload.dataset or DatasetSpec(path="")
    file = f"{spec.format}:{spec.path}" if spec.format else spec.path
    for option, begun, named, own in (
        ("--api", scenario.target.api, api, scenario.target.api in APIS),
        ("--dataset", file, dataset, spec.format in (None, *readers())),
    ):
        if named not in (None, begun):
            fact = f"the run was begun with {begun or 'none'}"
            raise HarnessError(fact, place=f"{option} {named}", way_out="give that, or start a new run")
        if named is None and not own:
            way_out = f"add {option} {begun} if its package may be loaded"
            raise HarnessError(f"only the folder names the plug-in of {option} {begun}", place=place, way_out=way_out)


def origin(manifest: Manifest, last_s: float) -> tuple[int, float]:
    """Return CLOCK_MONOTONIC and the wall clock at a resumed folder's t = 0.

    The folder's own origin if the machine has not been restarted since. Else the wall clock gives the time since then;
    times are later than the folder's last one in any case.
    """
    before = manifest.loaded[-1]
    origin_ns, unix_origin = before.monotonic_ns_origin or 0, before.unix_origin or 0.0
    now_ns = time.monotonic_ns()
    if before.boot and before.boot == host.boot() and now_ns > origin_ns + last_s * 1e9:
        return origin_ns, unix_origin
    now_s = max(last_s + 1.0, time.time() - unix_origin)
    return now_ns - round(now_s * 1e9), time.time() - now_s


def ended_at(manifest: Manifest, last_s: float) -> Manifest:
    """Return the manifest with an end time of the last session: if it was killed, the last time in its files."""
    last = manifest.loaded[-1]
    if last.ended_s is not UNSET:
        return manifest
    ended = msgspec.structs.replace(last, ended_s=last_s)
    sessions = [ended if session is last else session for session in manifest.sessions]
    return msgspec.structs.replace(manifest, sessions=sessions)


def as_before(endpoint: Endpoint, manifest: Manifest) -> tuple[Endpoint, Manifest]:
    """Return the endpoint with the first session's prompt length, and its manifest; refuse another served model."""
    model, place = endpoint.model, endpoint.address.base
    if model.name != manifest.model:
        fact = f"it serves '{model.name}' now, the run began with '{manifest.model}'"
        raise HarnessError(fact, place=place, way_out="start a new run")
    if manifest.model_listed and not model.listed:  # a server that answers to any name may have another model now
        fact = f"its list of models no longer has '{model.name}'"
        raise HarnessError(fact, place=place, way_out="start a new run")
    notes = [*manifest.notes, *(note for note in endpoint.notes if note not in manifest.notes)]
    before = manifest.workload
    prompts = msgspec.structs.replace(endpoint.prompts, count=before.prompt_words or endpoint.prompts.count)
    if before.prompt_tokens and before.tokens_per_word:  # what the words of any other length are worked out from
        counted, per_word = round(before.prompt_tokens), before.tokens_per_word
        prompts = msgspec.structs.replace(prompts, tokens=counted, tokens_per_word=per_word)
    return msgspec.structs.replace(endpoint, prompts=prompts), msgspec.structs.replace(manifest, notes=notes)


class RampInputs(msgspec.Struct, frozen=True, kw_only=True):
    """What the ramp takes from the manifest; the scenario says the rest."""

    facts: Facts = Facts()
    predicted_hinge: float | None = None  # a hint where refinement starts, no more
    probes: tuple[int, ...] = ()  # prompt tokens of the levels that a prefill probe measures before its ramp

    @classmethod
    def of(cls, manifest: Manifest) -> RampInputs:
        prediction, slots = manifest.prediction, manifest.server.get("slots")
        replicas = len(manifest.urls or ()) or 1
        hint = slots * replicas if isinstance(slots, int) else None  # requests that the servers say they run at once
        return cls(
            facts=Facts.of(manifest),
            predicted_hinge=(prediction.hinge_concurrency if prediction else None) or hint,
            probes=tuple(manifest.workload.probe_lengths or ()),
        )


class Earlier(msgspec.Struct, frozen=True):
    """The earlier sessions of a run; empty for a run that is not resumed."""

    levels: tuple[tuple[Level, MeasuredLevel | None], ...] = ()  # None: void, to be measured again
    seconds: float = 0.0
    requests: int = 0
    usage: Usage = Usage()
    resumed: bool = False  # whether there were any, if only one that began no level

    @classmethod
    def of(cls, run: Result, seconds: float) -> Earlier:
        """Return what earlier sessions measured: levels, finished ones with figures from their records, and usage."""
        facts = Facts.of(run.manifest)
        table = facts.table(run.records)

        def found(level: Level) -> MeasuredLevel | None:
            if not level.finished or level.window_end_s is None or LevelNote.INTERRUPTED in level.notes:
                return None
            return measured(summarise_level(run.records, table, run.samples, level, facts), level)

        usage = sum(map(Usage.of, run.records), Usage())
        return cls(tuple((level, found(level)) for level in run.levels), seconds, len(run.records), usage, True)

    @property
    def next_index(self) -> int:
        return max((level.index + 1 for level, _ in self.levels), default=0)

    @property
    def last_repeat(self) -> int:
        return max((level.repeat for level, _ in self.levels), default=0)

    @property
    def took(self) -> list[float]:
        """Return the seconds of each level that counts, a probe's included."""
        return [m.seconds for _, m in self.levels if m is not None]

    def measured(self, repeat: int) -> list[MeasuredLevel]:
        """Return the finished levels of a repeat's ramp, in order, but for the last ones that stalled or failed.

        Those are measured again.
        """
        points = [(x, m) for x, m in self._counting(repeat) if x.input_tokens is None and x.role is not Role.LOSS]
        while points and (points[-1][1].stalled or (points[-1][1].fails and points[-1][0].role is Role.FIXED)):
            points.pop()
        return [m for _, m in points]

    def probed(self, repeat: int) -> set[int]:
        """Return the prompt lengths of a repeat that a probe need not measure again."""
        return {level.input_tokens or 0 for level, _ in self._counting(repeat)} - {0}

    def steps(self, repeat: int) -> list[RampStep]:
        """Return the decisions of a repeat, as far as its levels count."""
        return [RampStep.of(level) for level, _ in self._counting(repeat)]

    def _counting(self, repeat: int) -> list[tuple[Level, MeasuredLevel]]:
        return [(level, m) for level, m in self.levels if m is not None and level.repeat == repeat]


def end_step(end: Decision, repeat: int) -> RampStep:
    """Return the decision to end a ramp, as the manifest has it."""
    return RampStep(None, end.reason, None, repeat, stopped=end.stopped)


def void(level: Level) -> Level:
    """Return the level without a window, for it was not finished."""
    notes = (*level.notes, LevelNote.VOID)
    return msgspec.structs.replace(level, window_start_s=None, window_end_s=None, end_s=None, notes=notes)
