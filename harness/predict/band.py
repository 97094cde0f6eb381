"""How far off a prediction may be: a slow and a fast end beside the middle.

Each step is as many times slower or faster as published levels of such models were (docs/predict.md), and a GPU has
1 GiB less or more for KV than its memory says. Constants of untested cards are those of others, so their slow end lies
lower.
"""

from __future__ import annotations

import msgspec

from harness.predict.catalog import constants
from harness.predict.deployment import Deployment
from harness.predict.model import Model
from harness.predict.step import kind

# Times slower and faster within which about four in five published levels lie, by the kind of model.
_SPREAD = {"dense": (1.15, 1.22), "experts": (1.22, 1.3), "latent attention": (1.35, 1.35)}
_UNTESTED = 1.6  # times slower still where the constants are a guess: other vendors, older cards, this machine's cores
MEMORY = 2**30  # bytes a GPU


def spread(model: Model, deployment: Deployment) -> tuple[float, float]:
    """How many times slower and faster than the middle the two ends are."""
    slower, faster = _SPREAD[kind(model)]
    return slower * (_UNTESTED if constants(deployment.gpu) == "guess" else 1.0), faster


def slow(model: Model, deployment: Deployment) -> Deployment:
    """The slow end, with the memory of the middle."""
    return msgspec.structs.replace(deployment, speed=deployment.speed / spread(model, deployment)[0])


def fast(model: Model, deployment: Deployment) -> Deployment:
    """The fast end, with the memory of the middle."""
    return msgspec.structs.replace(deployment, speed=deployment.speed * spread(model, deployment)[1])
