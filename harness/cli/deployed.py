"""The options for the model and the hardware, shared by `predict` and `sim`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from harness import units
from harness.errors import HarnessError

if TYPE_CHECKING:
    from harness.predict.catalog import Gpu

Command = Callable[..., Any]

_MODEL = (
    click.option("--model-config", "--model", metavar="PATH|NAME", help="config.json, model folder or shipped name."),
    click.option("--hub", is_flag=True, help="Look that name up at the hub; needs a network."),
    click.option("--dtype", default="auto", help="Weights as the server loads them: fp8, int8, int4, mxfp4, nvfp4."),
    click.option("--kv-dtype", default="auto", help="KV cache of the server, like fp8."),
)
# By the names of predict.deployment.Deployment.
_FIGURES = (
    click.option("--gpus", type=int, help="How many GPUs serve; default tp · pp · dp."),
    click.option("--tp", type=int, help="GPUs that share every matrix (tensor parallel)."),
    click.option("--pp", type=int, help="Stages of layers (pipeline parallel)."),
    click.option("--dp", type=int, help="Replicas side by side (data parallel)."),
    click.option("--ep", type=int, help="GPUs that hold whole experts (expert parallel)."),
    click.option(
        "--max-num-seqs",
        type=int,
        help="Running requests of one replica, at most; default 1024 on large NVIDIA cards, else 256.",
    ),
    click.option("--max-num-batched-tokens", type=int, help="Tokens of one step, at most."),
    click.option("--gpu-memory-utilization", type=float, metavar="SHARE", help="Memory for the engine; default 0.9."),
    click.option("--kv-tokens", type=int, help="KV cache of one replica, where the server publishes it."),
    click.option("--prefix-hit", type=float, metavar="SHARE", help="Share of prompt tokens whose KV is cached."),
    click.option("--fused", type=float, metavar="SHARE", help="Share of steps in which prefill and decode run as one."),
    click.option("--acceptance", type=float, metavar="SHARE", help="Speculative decoding: share of drafts accepted."),
    click.option("--draft-tokens", type=int, help="Speculative decoding: tokens drafted in a step."),
    click.option("--draft-time", "draft_s", metavar="TIME", help="Speculative decoding: time to draft one token."),
    click.option("--mbu", type=float, metavar="SHARE", help="Share of the bandwidth that is reached; default 0.8."),
    click.option("--mfu", type=float, metavar="SHARE", help="Share of the FLOP/s that is reached; default by card."),
    click.option(
        "--layer-overhead",
        "o_layer",
        metavar="TIME",
        help="Overhead of a layer in a step; default 32us, with experts 50us, with latent attention 70us.",
    ),
    click.option("--step-overhead", "o_step", metavar="TIME", help="Overhead of a step; default 126us."),
    click.option("--request-overhead", "o_req", metavar="TIME", help="Overhead of a request in a step; default 4.4us."),
    click.option("--weight-bytes", type=float, metavar="BYTES", help="Size of the weights in memory."),
)
_CARD = (
    click.option("--gpu", metavar="KEY|host", help="GPU of the server, like h100-sxm; host measures this machine."),
    click.option("--host-cpus", metavar="0,1", help="Cores of this machine that serve; default all."),
)
_FIELDS = (
    "gpus", "tp", "pp", "dp", "ep", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "kv_tokens",
    "prefix_hit", "fused", "acceptance", "draft_tokens", "mbu", "weight_bytes",
)  # fmt: skip
_TIMES = {
    "draft_s": "--draft-time",
    "o_layer": "--layer-overhead",
    "o_step": "--step-overhead",
    "o_req": "--request-overhead",
}

_RATIOS = {
    "mbu": "--mbu",
    "mfu_prefill": "--mfu",
    "gpu_memory_utilization": "--gpu-memory-utilization",
    "weight_bytes": "--weight-bytes",
    "max_num_seqs": "--max-num-seqs",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "kv_tokens": "--kv-tokens",
}


def options(command: Command) -> Command:
    """Give a command all of these options."""
    for option in reversed((*_MODEL, *_CARD, *_FIGURES)):
        command = option(command)
    return command


def figures(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a Deployment that the options set."""
    values = {name: flags[name] for name in _FIELDS if flags[name] is not None}
    values |= {name: units.seconds(flags[name], flag) for name, flag in _TIMES.items() if flags[name] is not None}
    if flags["mfu"] is not None:
        values |= {"mfu_prefill": flags["mfu"], "mfu_decode": flags["mfu"]}
    for name, value in values.items():
        if not abs(value) < units.BEYOND**2:
            raise HarnessError(
                f"{value:g} is beyond reason", place=_flag(name), way_out="give what a server could have"
            )
    for name, flag in _RATIOS.items():
        if name in values and not values[name] > 0:
            raise HarnessError(f"{values[name]:g} is not above 0", place=flag, way_out="give one above 0")
    return values


def _flag(name: str) -> str:
    return {**_TIMES, **_RATIOS, "mfu_decode": "--mfu"}.get(name, f"--{name.replace('_', '-')}")


def model(name: str, *, hub: bool) -> tuple[str, str]:
    """(path or name to read, name to show); `hub` looks the name up at the hub."""
    if not hub:
        return name, ""
    from harness.results import hub as hubs

    return hubs.config(name), name


def card(key: str, cpus: str | None) -> Gpu:
    """The GPU with that key; "host" measures this machine now."""
    if key.lower() != "host":
        if cpus is not None:
            raise HarnessError(f"it is for --gpu host, not for {key}", place="--host-cpus", way_out="leave it out")
        from harness.predict import catalog

        return catalog.gpu(key)
    from harness.experiment import hardware
    from harness.predict import served

    return served.host(hardware.measure(None if cpus is None else units.cpus(cpus)))
