"""The checks of several replicas: each is checked as one server is, and all have to serve the same model alike."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

import msgspec

from harness.base.errors import HarnessError
from harness.run.launch import checks as launching
from harness.run.launch import silence
from harness.run.launch.endpoint import Launch
from harness.spec.scenario import Scenario

_WAY_OUT = "serve the same on all replicas, or add --allow-different-replicas"


async def check(
    scenario: Scenario,
    urls: Sequence[str],
    first_prompt: int = 0,
    *,
    trust_remote_code: bool = False,
    busy: Awaitable[object] | None = None,
    note: silence.Note = silence.nowhere,
) -> Launch:
    """What the checks of the first replica found, with the others' as `replicas`; see `launch.check`.

    HarnessError where one serves another model, or differs in version or limits, unless the scenario allows it. A field
    that one of them refuses is sent to none.
    """
    trust = trust_remote_code
    first = await launching.check(scenario, urls[0], first_prompt, trust_remote_code=trust, busy=busy, note=note)
    if len(urls) == 1:
        return first
    allowed = bool(scenario.target.allow_different_replicas)
    named = msgspec.structs.replace(scenario, target=msgspec.structs.replace(scenario.target, model=first.wire_model))
    found, notes = [first], list(first.notes)
    for url in urls[1:]:
        next_prompt = found[-1].prompts_used
        replica = await launching.check(
            named, url, next_prompt, trust_remote_code=trust, any_model=allowed, secrets=first.secrets, note=note
        )
        replica = msgspec.structs.replace(replica, model=first.model)
        if not allowed and (other := _other_model(first, replica)):
            raise HarnessError(other, place=url, way_out=_WAY_OUT)
        if differences := differ(first, replica):
            fact = f"it differs from {first.address.place}: {'; '.join(differences)}"
            if not allowed:
                raise HarnessError(fact, place=url, way_out=_WAY_OUT)
            notes.append(f"{replica.address.place}: {fact}")
        notes += [note for note in replica.notes if note not in notes]
        found.append(replica)
    return msgspec.structs.replace(
        first,
        drop=frozenset().union(*(each.drop for each in found)),
        prompts_used=found[-1].prompts_used,
        notes=tuple(notes),
        replicas=tuple(found),
    )


def _other_model(first: Launch, replica: Launch) -> str:
    """Why a replica may serve another model, "" where nothing says so: what takes any name serves anything under it."""
    if first.listed and not replica.listed:
        return f"it does not serve '{first.model}'"
    if replica.listed and not first.listed:
        return f"{first.address.place} does not list '{first.model}', and it does"
    if not first.listed and {*first.models} != {*replica.models}:
        return f"it lists other models than {first.address.place}"
    return ""


def differ(first: Launch, other: Launch) -> list[str]:
    """What two servers publish of themselves that is not the same; what only one of them publishes is not compared."""
    both = sorted(first.server.keys() & other.server.keys())
    facts = [(key, first.server[key], other.server[key]) for key in both]
    if first.api != other.api:
        facts.append(("API", first.api, other.api))
    return [f"{key} {theirs}, there {ours}" for key, ours, theirs in facts if ours != theirs]
