"""Folders of earlier formats in today's form.

Formats 1 and 2 had the role of a level, and whether a ramp was stopped, in sentences alone, which versions worded
differently. They are read here, and nowhere else.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import UNSET

from harness.data.levels import LevelSummary
from harness.data.manifest import Manifest, MapManifest
from harness.data.record import FORMAT, Level
from harness.data.roles import Role
from harness.data.summary import RampStep, Summary

_FIRST_PASS = ("the ramp begins with", "doubling", "twice a doubling", "half a doubling")
_FIRST_RATES = ("begin", "the search begins with about one request in flight")

Chosen = TypeVar("Chosen", Level, LevelSummary, RampStep)


def upgraded(found: Chosen, stored: int) -> Chosen:
    """Return a level or a decision, as a folder of the stored format has it, with its role or whether it stopped."""
    if stored >= FORMAT or found.role is not None:
        return found
    if isinstance(found, RampStep) and found.concurrency is None and found.rate is None:
        return msgspec.structs.replace(found, stopped=found.reason.startswith("stopped: "))
    return msgspec.structs.replace(found, role=role_of(found.reason))


def of_manifest(found: Manifest | MapManifest) -> Manifest | MapManifest:
    """Return a manifest of any format in today's."""
    if isinstance(found, Manifest) and found.ramp is not UNSET:
        found = msgspec.structs.replace(found, ramp=[upgraded(step, found.format) for step in found.ramp])
    return msgspec.structs.replace(found, format=FORMAT)


def of_summary(found: Summary) -> Summary:
    """Return a summary of any format in today's."""
    levels = [upgraded(level, found.format) for level in found.levels]
    ramp = [upgraded(step, found.format) for step in found.ramp]
    return msgspec.structs.replace(found, format=FORMAT, levels=levels, ramp=ramp)


def role_of(reason: str) -> Role | None:
    """Return what a level was measured for, by its sentence; None where there is none.

    >>> role_of("given"), role_of("31 again: throughput seems to fall past the hinge"), role_of("")
    (<Role.FIXED: 'given'>, <Role.REPEAT: 'repeat'>, None)
    """
    if not reason:
        return None
    if reason == "given":
        return Role.FIXED
    if reason.startswith("prefill probe: "):
        return Role.PROBE
    if reason.startswith("soak at "):
        return Role.SOAK
    if reason.startswith(_FIRST_PASS):
        return Role.FIRST_PASS
    if reason.endswith("enough requests to decide the SLO"):
        return Role.SLO_DECISION
    if "the SLO" in reason or "requests per second" in reason or reason in _FIRST_RATES:
        return Role.SLO
    again = " again: " in reason or reason.startswith(("repeat of ", "back to "))
    return Role.REPEAT if again else Role.REFINEMENT
