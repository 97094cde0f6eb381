"""The manifest of a run: all that could explain a difference, written before any load and completed after it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import msgspec
from msgspec import UNSET

from harness.base import __version__
from harness.base.errors import HarnessError
from harness.data.machines import Client, ClientCalibration
from harness.data.manifest import Manifest, Sampling, Session, Simulated, Workload
from harness.data.prediction import Agents, Prediction
from harness.load.messages import Codec
from harness.load.workers import Workers
from harness.observe import host
from harness.observe.gpu import Gpus
from harness.predict import question, roofline
from harness.predict.deployment import Deployment
from harness.predict.model import Model
from harness.run import agents, calibrate, prediction
from harness.run.ending import Ended, RunEnd, receive_path, timestamp_source
from harness.run.launch import published
from harness.run.launch.endpoint import Endpoint, probe_lengths
from harness.run.launch.endpoint import source as sourced
from harness.run.levels import Levels
from harness.run.prediction import predict
from harness.sim.profile import Profile
from harness.spec import scenario as scenarios
from harness.spec.scenario import Scenario
from harness.spec.work import Unit
from harness.workload import hit_rate, image, shape
from harness.workload.request import Request
from harness.workload.tasks import Tasks

_BLOCK = 16  # tokens of a block of a prefix cache, if the server does not publish it: vLLM's on GPUs


def now_iso() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


async def first(
    scenario: Scenario,
    endpoint: Endpoint,
    profile: Profile | None,
    gpus: Gpus | None,
    command: str,
    note: Callable[[str], None],
) -> Manifest:
    """Return a run's manifest as it is before any load, with predictions; `note` shows the operator what is missing."""
    created, here, notes = now_iso(), host.facts(), list(endpoint.notes)
    cards = gpus.facts() if gpus is not None else None
    calibration, why_not = _calibration(scenario)
    # Cores of this machine are measured now, before any load.
    serving = question.ServingCard() if profile else await asyncio.to_thread(prediction.find, scenario.hardware, cards)
    for text in [*filter(None, [why_not]), *serving.notes]:
        notes.append(text)
        note(text)
    deployed = _deployed(scenario, serving, endpoint, profile)
    simulated, workload = _simulated(scenario, endpoint, profile), _workload(scenario, endpoint)
    of_agents = await _agents(scenario, endpoint, profile, deployed, workload.expected_hit_rate or None)
    if of_agents is not None:
        notes.append(agents.sentence(of_agents, scenario.counted))
        note(notes[-1])
    made, unpredicted = await _predicted(scenario, endpoint, deployed, simulated=simulated is not None)
    notes += unpredicted if of_agents is None else []
    shown, spec = scenarios.shown(scenario, endpoint.wire.secrets), scenario.hardware
    card = serving.card.key if serving.card else spec.gpu or (profile.deployment.gpu.key if profile else None)
    return Manifest(
        name=scenario.name,
        created=created,
        command=command,
        harness_version=__version__,
        scenario=shown,
        scenario_digest=scenarios.digest(shown),
        workload=workload,
        url="sim:" if profile else endpoint.address.place,
        urls=[replica.address.place for replica in endpoint.replicas] or UNSET,
        model=endpoint.model.name,
        api=endpoint.api,
        unit=UNSET if endpoint.unit.decodes else endpoint.unit.value,  # type: ignore[arg-type]  # it is one of the two
        server=endpoint.published.facts | shown.target.server_meta,
        cache_config=endpoint.published.cache_config,
        model_listed=endpoint.model.listed,
        dropped_fields=sorted(endpoint.wire.codec.drop),
        simulated=simulated,
        gpu=card,
        gpus=spec.gpus if card else None,
        price=spec.price,
        host=here,
        client=Client(calibration=calibration),
        notes=notes,
        gpu_facts=cards,
        machine=serving.machine,
        prediction=made,
        agents=of_agents or UNSET,
        roof=roofline.data_sheet_roof(*deployed) if deployed else None,
        quality=endpoint.alone.canaries or UNSET,
        cache=endpoint.alone.cache or UNSET,
        sessions=[Session(created=created, command=command)],
    )


def _deployed(
    scenario: Scenario, serving: question.ServingCard, endpoint: Endpoint, profile: Profile | None
) -> tuple[Model, Deployment] | None:
    """Return (model, deployment) to predict for: the simulated endpoint's, else the scenario's; None: unknown."""
    if profile is not None:
        return profile.model, profile.deployment
    return question.deployed(scenario.hardware, serving.card, endpoint.published.cache_config)


async def _predicted(
    scenario: Scenario, endpoint: Endpoint, deployed: tuple[Model, Deployment] | None, *, simulated: bool
) -> tuple[Prediction | None, list[str]]:
    """Return (prediction of the run, no notes), or (None, a note on why it cannot be predicted)."""
    if deployed is None:
        return None, ["no prediction: it needs --gpu and --model-config"]
    if scenario.has_tasks:
        return None, ["no prediction: the prompts of sessions and graphs grow with every answer"]
    if endpoint.unit is Unit.DOCUMENTS:
        return None, ["no prediction: it is of tokens, which nobody counts here"]
    return await asyncio.to_thread(predict, scenario, endpoint, *deployed, simulated=simulated), []


async def _agents(
    scenario: Scenario,
    endpoint: Endpoint,
    profile: Profile | None,
    deployed: tuple[Model, Deployment] | None,
    kept: float | None,
) -> Agents | None:
    """Predict how many sessions or agents the prefix cache holds and serves, at the run's levels.

    None without a known model and card, without sessions, without prefix caching, at an open loop, and where the model
    does not fit.
    """
    caching = endpoint.published.cache_config.get("enable_prefix_caching") != "False"
    if profile is not None:
        caching = profile.deployment.prefix_caching
    levels = [level for level in prediction.levels(scenario) if level <= agents.MOST]
    if deployed is None or not caching or not scenario.has_tasks or scenario.load.is_open or not levels:
        return None
    source, template, (made, where) = sourced(scenario, endpoint.prompts), endpoint.prompts.added_tokens, deployed
    where = msgspec.structs.replace(where, block_size=_block(endpoint))
    assert isinstance(source, Tasks)
    with contextlib.suppress(HarnessError):  # what does not fit is refused by the server, if it does not fit there
        return await asyncio.to_thread(agents.predict, made, where, source, levels, kept, template=template)
    return None


def _block(endpoint: Endpoint) -> int:
    """Return the tokens of a block of the server's prefix cache."""
    published = endpoint.published.cache_config.get("block_size", "")
    return (int(published) if published.isdecimal() and len(published) < 7 else 0) or _BLOCK


def _workload(scenario: Scenario, endpoint: Endpoint) -> Workload:
    """Return the workload as the manifest records it: mean lengths, prompts as the server counts them, images."""
    mean, prompts = shape.of(scenario).mean(), endpoint.prompts
    template = max(0, prompts.added_tokens)
    return Workload(
        input_tokens=mean.input_tokens,
        output_tokens=mean.output_tokens,
        seed=scenario.workload.seed or 0,
        prompt_words=UNSET if prompts.count is None else prompts.count,
        prompt_tokens=prompts.tokens,
        template_tokens=prompts.added_tokens,
        tokens_per_word=prompts.tokens_per_word,
        probe_lengths=probe_lengths(scenario, endpoint),
        expected_hit_rate=hit_rate.expected(
            scenario, block=_block(endpoint), template_tokens=template, rows=prompts.rows
        ),
        images=scenario.workload.images,
        image_bytes=image.request_bytes(scenario.workload) or UNSET,
        sampling=sampling(endpoint.wire.codec),
    )


def sampling(codec: Codec) -> Sampling:
    """Return temperature and ignore_eos as the request bodies have them; None or False if an API lacks them."""
    request = Request(number=0, prompt="", output_tokens=1)
    body = msgspec.json.decode(Codec(api=codec.api, model=codec.model, drop=codec.drop).encoder.encode(request))
    fields = body | body.get("options", {}) | body.get("parameters", {})
    return Sampling(temperature=fields.get("temperature"), ignore_eos=fields.get("ignore_eos", False))


def _simulated(scenario: Scenario, endpoint: Endpoint, profile: Profile | None) -> Simulated | None:
    """Return which simulated endpoint is measured, Knee's own or a server that names itself so; None: a real one."""
    if profile is not None:
        return Simulated(profile=scenario.sim.profile, speed=scenario.sim.speed)
    return (
        Simulated(profile=endpoint.model.name) if endpoint.published.facts.get("name") == published.SIMULATED else None
    )


def _calibration(scenario: Scenario) -> tuple[ClientCalibration | None, str | None]:
    """Return (calibration of this host's load generator, None), or (None, why there is none that holds)."""
    if scenario.target.transport != "socket":
        return None, "the client's ceiling is not known: calibration measures the socket transport only"
    calibration = calibrate.load()
    if calibration is None:
        return None, "this client was never calibrated: run `knee calibrate client` once"
    why = calibrate.stale(calibration)
    if why is not None:
        return None, f"the client's calibration is stale ({why}): run `knee calibrate client` again"
    return calibration, None


def with_session(manifest: Manifest, **found: object) -> Manifest:
    """Return the manifest with these fields in its last session."""
    last = msgspec.structs.replace(manifest.sessions[-1], **found)
    return msgspec.structs.replace(manifest, sessions=[*manifest.sessions[:-1], last])


def ended(
    manifest: Manifest,
    levels: Levels,
    workers: Workers,
    placed: Sequence[tuple[int, ...]],
    end: Ended,
    *,
    transport: str,
) -> Manifest:
    """Return the manifest completed after the load: how it ended, its decisions, its client, resent requests."""
    resent = sum(report.resent for report in workers.done) + (manifest.client.resent or 0)
    notes = list(manifest.notes)
    if resent:
        notes.append(
            f"{resent} requests were sent again: the server closed kept-alive connections; "
            "since then each request opens its own"
        )
    client = msgspec.structs.replace(
        manifest.client,
        timestamp_source=timestamp_source(workers.done),
        receive=receive_path(workers.done),
        transport=transport,
        workers=len(placed),
        cpus=[list(cpus) for cpus in placed],
        clocks=workers.clocks or UNSET,
        resent=resent,
    )
    if manifest.shards and manifest.clock:
        (own,), origin = manifest.shards, manifest.clock
        stepped_s = (host.ahead_ns() + origin.monotonic_ns_origin) * 1e-9 - origin.unix_origin
        own = msgspec.structs.replace(own, clock=msgspec.structs.replace(own.clock, stepped_s=stepped_s))
        manifest = msgspec.structs.replace(manifest, shards=[own])
    manifest = with_session(manifest, ended=end.words, ended_s=levels.live.now(), sent=levels.live.sent)
    return msgspec.structs.replace(
        manifest,
        complete=end.why is RunEnd.COMPLETE,
        client=client,
        notes=notes,
        ramp=levels.steps,
        host=msgspec.structs.replace(manifest.host, load_average_end=list(os.getloadavg())),
    )
