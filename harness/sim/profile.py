"""Which server to simulate: a model on a GPU, as `llama-3.1-8b/h100-sxm`, and how it is set up; or the reference.

The deployment in a profile is the one to predict with, so the simulated endpoint and its prediction agree by
construction: they test the harness, never the hardware. The reference endpoint has no model and no GPU but a
pace: the load generator itself is measured against it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from harness.base.errors import HarnessError
from harness.predict.batching import StepMachine
from harness.predict.catalog import Gpu, gpu, model_config, short
from harness.predict.deployment import Deployment, deployment
from harness.predict.model import Model, model

if TYPE_CHECKING:
    from harness.spec.scenario import Sim


DEFAULT = "llama-3.1-8b/h100-sxm"


class Profile(msgspec.Struct, frozen=True, kw_only=True, tag="model", tag_field="kind"):
    """A simulated server; it travels as JSON to the process that runs it."""

    name: str
    model: Model
    deployment: Deployment
    max_model_len: int  # tokens of the longest request, prompt and answer
    reasoning_tokens: int = 0  # tokens with which an answer to a chat begins

    @property
    def model_name(self) -> str:
        return self.model.name


class StreamPace(msgspec.Struct, frozen=True, kw_only=True):
    """When the reference endpoint writes; with a flood, as fast as the sockets take it."""

    ttft_s: float = 0.2
    itl_s: float = 0.025
    groups: int = 64  # phases of the ITL over which streams are spread; 1: all of them in one engine step
    flood: int = 0  # tokens a write without any pace; 0: paced
    lump: int = 1  # paced: tokens a write, all in one chunk, one lump every itl_s · lump


class Reference(msgspec.Struct, frozen=True, kw_only=True, tag="reference", tag_field="kind"):
    """The reference endpoint: every request gets the tokens that it requests, and any number of them runs at once."""

    pace: StreamPace = StreamPace()
    name: str = "reference"
    model_name: str = "reference"
    max_model_len: int = 2**20  # tokens; the length of an answer without max_tokens


def profile(
    text: str = DEFAULT,
    *,
    max_num_seqs: int = 16,
    speed: float = 4.0,
    reasoning_tokens: int = 0,
    **more: Any,
) -> Profile:
    """Return a profile from `MODEL/GPU`; MODEL may be a config.json or its folder. `more` goes to `served`.

    >>> profile("llama-3.1-8b/H100-SXM").name
    'llama-3.1-8b/h100-sxm'
    """
    place = "--profile"
    which, slash, card = text.rpartition("/")
    if not slash or not which:
        raise HarnessError(f"{text!r} is not MODEL/GPU", place=place, way_out=f"write it like '{DEFAULT}'")
    made = served(which, gpu(card, place), place=place, max_num_seqs=max_num_seqs, speed=speed, **more)
    return msgspec.structs.replace(made, reasoning_tokens=reasoning_tokens)


def embedded(sim: Sim, *, prefix_caching: bool = False) -> Profile:
    """Return the endpoint that a run starts for `sim:`; `prefix_caching` counts where the scenario does not say.

    >>> from harness.spec.scenario import Sim
    >>> embedded(Sim(replicas=2)).deployment.gpus
    2
    """
    own: dict[str, Any] = {
        "block_size": sim.block_size,
        "kv_tokens": sim.kv_tokens,
        "scheduling_policy": sim.scheduling_policy,
        "dp": sim.replicas,
    }
    return profile(
        sim.profile,
        max_num_seqs=sim.max_num_seqs,
        speed=sim.speed,
        reasoning_tokens=sim.reasoning_tokens or 0,
        prefix_caching=prefix_caching if sim.prefix_caching is UNSET else sim.prefix_caching,
        **{name: value for name, value in own.items() if value is not UNSET},
    )


def served(
    path: str,
    card: Gpu,
    *,
    name: str = "",
    place: str = "--model-config",
    dtype: str = "auto",
    kv_dtype: str = "auto",
    **figures: Any,
) -> Profile:
    """Return any model's profile on any card, with `figures` of its Deployment; raise HarnessError if it cannot serve.

    `path` is a shipped name, a config.json or its folder, `name` what to call it where that is not the same.
    """
    made = model(model_config(path, place), name or short(path), dtype=dtype, kv_dtype=kv_dtype)
    where = deployment(card, **{"o_token": 0.0, "o_first": 0.0, **figures})  # it takes requests in at once
    if where.max_num_seqs < 1:
        fact = f"{where.max_num_seqs} sequences at once"
        raise HarnessError(fact, place="--max-num-seqs", way_out="give at least 1")
    if not 0 < where.speed < math.inf:
        raise HarnessError(f"{where.speed:g} times real time", place="--speed", way_out="give a number above 0")
    if not made.generates:
        raise HarnessError(f"{made.name} generates no text", place=place, way_out="name a model that does")
    machine = StepMachine(made, where)
    if machine.num_blocks < 1:
        fact = f"its KV cache is smaller than a block of {where.block_size} tokens"
        raise HarnessError(fact, place="--kv-tokens", way_out="give more, or a larger GPU")
    return Profile(
        name=f"{made.name}/{card.key}",
        model=made,
        deployment=where,
        max_model_len=min(made.max_context, machine.num_blocks * machine.block_size),
    )
