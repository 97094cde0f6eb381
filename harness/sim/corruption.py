"""Answers that are other words than they should be: a fault that no clock shows, for what is to find it."""

from __future__ import annotations

import random

import msgspec

from harness.sim.api import Generation
from harness.sim.profile import Profile, Reference

_OTHER = 0x55  # words begin elsewhere, and come in another order


def corrupted(generation: Generation, profile: Profile | Reference, number: int, in_flight: int) -> Generation:
    """The number-th request's answer, in other words by chance; `in_flight` counts the request itself."""
    if not isinstance(profile, Profile) or not profile.corrupt_share or in_flight <= profile.corrupt_above:
        return generation
    if random.Random(f"{profile.seed}:corrupt:{number}").random() >= profile.corrupt_share:
        return generation
    return msgspec.structs.replace(generation, salt=generation.salt ^ _OTHER)
