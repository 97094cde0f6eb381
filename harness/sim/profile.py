"""Which server to simulate: a model on a GPU, as `llama-3.1-8b/h100-sxm`, and how it is set up.

The deployment in it is the one to predict with, so the simulated endpoint and its prediction agree by
construction: they test the harness, never the hardware.
"""

from __future__ import annotations

import msgspec

from harness.errors import HarnessError
from harness.predict.catalog import gpu, model_config
from harness.predict.model import Model, model
from harness.predict.roofline import Deployment, deployment, kv_capacity

DEFAULT = "llama-3.1-8b/h100-sxm"


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """A simulated server; it travels as JSON to the process that runs it."""

    name: str
    model: Model
    deployment: Deployment
    max_model_len: int  # tokens of the longest request, prompt and answer
    seed: int = 0  # of the answers' words and natural lengths
    api_key: str | None = None  # guards /v1/*


def profile(
    text: str = DEFAULT,
    *,
    max_num_seqs: int = 16,
    kv_tokens: int | None = None,
    speed: float = 4.0,
    seed: int = 0,
    api_key: str | None = None,
) -> Profile:
    """A profile from `MODEL/GPU`; MODEL may be the path of a config.json or of its folder.

    >>> profile("llama-3.1-8b/H100-SXM").name
    'llama-3.1-8b/h100-sxm'
    """
    place = "--profile"
    which, slash, card = text.rpartition("/")
    if not slash or not which:
        raise HarnessError(f"{text!r} is not MODEL/GPU", place=place, way_out=f"write it like '{DEFAULT}'")
    if max_num_seqs < 1:
        raise HarnessError(f"{max_num_seqs} sequences serve nobody", place="--max-num-seqs", way_out="at least 1")
    if speed <= 0:
        raise HarnessError(f"a clock at {speed:g} times never ticks", place="--speed", way_out="above 0")
    served = model(model_config(which, place), which.rstrip("/").removesuffix("/config.json").rsplit("/")[-1])
    there = deployment(gpu(card, place), max_num_seqs=max_num_seqs, kv_tokens=kv_tokens, speed=speed)
    return Profile(
        name=f"{served.name}/{there.gpu.key}",
        model=served,
        deployment=there,
        max_model_len=min(served.max_context, kv_capacity(served, there)),
        seed=seed,
        api_key=api_key,
    )
