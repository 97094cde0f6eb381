"""The options for the model and the hardware, shared by `predict` and `sim`, and the question of `predict`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.base import units
from harness.base.errors import HarnessError
from harness.cli.grouped import F, Spec, flag_of, option, under

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.predict.catalog import Gpu
    from harness.predict.question import Question
    from harness.spec.scenario import Scenario
    from harness.spec.traffic import Traffic

_SPLIT = {"gpus", "tp", "pp", "dp", "ep"}  # how GPUs share the work


_HEADINGS: tuple[tuple[str, *tuple[Spec, ...]], ...] = (
    (
        "Model and card",
        option("--model-config", "--model", metavar="PATH|NAME", help="config.json, model folder or shipped name."),
        option("--hub", is_flag=True, help="Look that name up at the hub; needs a network."),
        option("--dtype", default="auto", metavar="TYPE", help="Weights as served: fp8, int8, int4, mxfp4, nvfp4."),
        option("--kv-dtype", default="auto", metavar="TYPE", help="KV cache of the server, like fp8."),
        option("--gpu", metavar="KEY|host", help="GPU of the server, like h100-sxm; host measures this machine."),
        option("--host-cpus", metavar="0,1", help="Cores of this machine that serve; default all."),
    ),
    (  # named like the fields of predict.deployment.Deployment, as are the shares and times below
        "How it is served",
        option("--gpus", type=click.IntRange(1), metavar="N", help="How many GPUs serve; default tp · pp · dp."),
        option("--tp", type=click.IntRange(1), metavar="N", help="GPUs that share every matrix (tensor parallel)."),
        option("--pp", type=click.IntRange(1), metavar="N", help="Stages of layers (pipeline parallel)."),
        option("--dp", type=click.IntRange(1), metavar="N", help="Replicas side by side (data parallel)."),
        option("--ep", type=click.IntRange(1), metavar="N", help="GPUs that hold whole experts (expert parallel)."),
        option(
            "--max-num-seqs",
            type=int,
            metavar="N",
            help="Running requests of one replica, at most; default 1024 on large NVIDIA cards, else 256.",
        ),
        option("--max-num-batched-tokens", type=int, metavar="N", help="Tokens of one step, at most."),
        option("--gpu-memory-utilization", type=float, metavar="SHARE", help="Memory for the engine; default 0.9."),
        option("--kv-tokens", type=int, metavar="N", help="KV cache of one replica, where the server publishes it."),
        option("--prefix-hit", type=float, metavar="SHARE", help="Share of prompt tokens whose KV is cached."),
        option("--fused", type=float, metavar="SHARE", help="Share of steps in which prefill and decode run as one."),
        option("--acceptance", type=float, metavar="SHARE", help="Speculative decoding: share of drafts accepted."),
        option("--draft-tokens", type=int, metavar="N", help="Speculative decoding: tokens drafted in a step."),
        option("--draft-time", "draft_s", metavar="TIME", help="Speculative decoding: time to draft one token."),
    ),
    (
        "What is assumed of it",
        option("--mbu", type=float, metavar="SHARE", help="Share of the bandwidth that is reached; default 0.8."),
        option("--mfu", type=float, metavar="SHARE", help="Share of the FLOP/s that is reached; default by card."),
        option(
            "--layer-overhead",
            "o_layer",
            metavar="TIME",
            help="Overhead of a layer in a step; default 32us, with experts 50us, with latent attention 70us.",
        ),
        option("--step-overhead", "o_step", metavar="TIME", help="Overhead of a step; default 126us."),
        option("--request-overhead", "o_req", metavar="TIME", help="Overhead of a request in a step; default 4.4us."),
        option("--weight-bytes", type=float, metavar="BYTES", help="Size of the weights in memory."),
    ),
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
_ABOVE_0 = (
    "mbu", "mfu_prefill", "gpu_memory_utilization", "weight_bytes", "max_num_seqs", "max_num_batched_tokens",
    "kv_tokens",
)  # fmt: skip


def options(command: F) -> F:
    """Give a command all of these options."""
    for heading, *specs in reversed(_HEADINGS):
        command = under(heading, *specs)(command)
    return command


def figures(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a Deployment that the options set, in seconds; raise HarnessError if one is out of range."""
    values = {name: flags[name] for name in _FIELDS if flags[name] is not None}
    values |= {name: units.seconds(flags[name], flag) for name, flag in _TIMES.items() if flags[name] is not None}
    if flags["mfu"] is not None:
        values |= {"mfu_prefill": flags["mfu"], "mfu_decode": flags["mfu"]}
    for name, value in values.items():
        if not abs(value) < units.BEYOND**2:
            raise HarnessError(
                f"{value:g} is beyond reason", place=_flag(name), way_out="give what a server could have"
            )
    for name in _ABOVE_0:
        if name in values and not values[name] > 0:
            raise HarnessError(f"{values[name]:g} is not above 0", place=_flag(name), way_out="give one above 0")
    return values


def _flag(name: str) -> str:
    return {**_TIMES, "mfu_prefill": "--mfu", "mfu_decode": "--mfu"}.get(name, flag_of(name))


def model(name: str, *, hub: bool) -> tuple[str, str]:
    """Return (path or name of a config.json to read, name to show); with `hub` the path is that in the hub's cache."""
    if not hub:
        return name, ""
    from harness.predict import catalog

    return catalog.from_hub(name), name


def card(key: str, cpus: str | None) -> Gpu:
    """Return the GPU with that key; "host" measures this machine now."""
    if key.lower() != "host":
        if cpus is not None:
            raise HarnessError(f"it is for --gpu host, not for {key}", place="--host-cpus", way_out="leave it out")
        from harness.predict import catalog

        return catalog.gpu(key)
    from harness.predict import question
    from harness.run import prediction

    return question.host(prediction.measure(None if cpus is None else units.cpus(cpus)))


def check_arrivals(flags: Mapping[str, Any]) -> None:
    """Raise HarnessError if requests are to arrive on a schedule and nothing is simulated."""
    for flag in ("rate", "arrivals"):
        if flags[flag] is not None and not flags["simulate"]:
            raise HarnessError("it has no effect without --simulate", place=f"--{flag}", way_out="add --simulate")


def scenario_of(path: str | None, flags: Mapping[str, Any]) -> Scenario:
    """Return the scenario of the file, else an empty one, with the lengths of the options in place of its own."""
    import msgspec

    from harness.predict import catalog
    from harness.spec import classes, reading, ready, scenario

    if path and not Path(path).exists() and catalog.is_model(path):
        raise HarnessError("it is a model, not a scenario", place=path, way_out=f"give --model {path}")
    base = reading.load(str(ready.path(path))) if path else scenario.Scenario()
    if base.has_tasks:
        fact = "the prompts of sessions and graphs grow with every answer"
        raise HarnessError(fact, place=f"{path}: $.workload", way_out="leave them out to predict single requests")
    own_lengths = flags["input_tokens"] is not None and flags["output_tokens"] is not None
    if base.workload.dataset and not own_lengths:
        fact, way_out = "the lengths of a dataset are not predicted", "give its means: --input-tokens, --output-tokens"
        raise HarnessError(fact, place=f"{path}: $.workload.dataset", way_out=way_out)
    lengths = {}
    for field in ("input_tokens", "output_tokens"):
        flag, text = flag_of(field), flags[field]
        if text is None:
            continue
        if base.class_:
            raise HarnessError("classes have lengths of their own", place=flag, way_out="leave it out")
        if field == "input_tokens" or not _prefill_alone(flags):
            lengths[field] = classes.length(text, flag)
    workload = msgspec.structs.replace(base.workload, **lengths, dataset=msgspec.UNSET)  # its means are given
    return msgspec.structs.replace(base, workload=workload)


def traffic_of(resolved: Scenario, flags: Mapping[str, Any]) -> tuple[list[float] | None, Traffic]:
    """Return (rates to predict instead of levels, None if none are given; how requests arrive), by options and file."""
    from harness.spec import traffic

    arrivals = traffic.parse(flags["arrivals"] or resolved.ramp.arrivals)
    if arrivals.speed is not None:
        raise HarnessError("no dataset has times to replay", place="--arrivals", way_out="name another kind")
    if flags["rate"] is not None:
        return units.rates(flags["rate"]), arrivals
    if resolved.ramp.rates is not None:
        return resolved.ramp.rates, arrivals
    if flags["arrivals"] is None or arrivals.own_rate is not None:
        return None if arrivals.own_rate is None else [arrivals.own_rate], arrivals
    raise HarnessError("it has no effect without --rate", place="--arrivals", way_out="add --rate")


def question_of(resolved: Scenario, flags: Mapping[str, Any], card: Any, *, several: bool = False) -> Question:
    """Return what to predict for one card, by options and scenario; `several` if cards are ranked, in every TP size."""
    from harness.predict import question
    from harness.spec.work import MeanLengths, means
    from harness.workload import shape

    path, name = model(flags["model_config"], hub=flags["hub"])
    levels = resolved.ramp.levels if flags["levels"] is None else units.levels(flags["levels"])
    lengths, prefill_alone = shape.representative(resolved), _prefill_alone(flags)
    mean = means(lengths)
    return question.Question(
        model=path,
        name=name,
        gpu=card,
        input_tokens=mean.input_tokens,
        output_tokens=0 if prefill_alone else mean.output_tokens,
        inputs=mean.inputs,
        mixture=() if prefill_alone or isinstance(lengths, MeanLengths) else lengths,
        levels=levels or question.LEVELS,
        dtype=_stored(flags["dtype"], resolved.hardware.dtype),
        kv_dtype=_stored(flags["kv_dtype"], resolved.hardware.kv_dtype),
        slo=units.slo(flags["slo"]) if flags["slo"] else resolved.slo,
        price=flags["price"],
        peak_flops=flags["peak_flops"],
        figures=_figures(resolved, flags, several=several),
    )


def _figures(resolved: Scenario, flags: Mapping[str, Any], *, several: bool) -> dict[str, Any]:
    """Return fields of a Deployment from options, else from the scenario; TP, DP and such only from one of the two."""
    from harness.predict import question
    from harness.workload import shape

    own, hardware = figures(flags), resolved.hardware
    of_file: dict[str, Any] = {} if hardware.max_num_seqs is None else {"max_num_seqs": hardware.max_num_seqs}
    if not several and not own.keys() & _SPLIT:
        of_file = question.figures(hardware)
    if cached := shape.cached_share(resolved):
        of_file["prefix_hit"] = cached
    return of_file | own


def _stored(typed: str, of_file: str | None) -> str:
    """Return how weights or the cache are stored: what the file says, unless an option does."""
    return of_file or typed if typed == "auto" else typed


def _prefill_alone(flags: Mapping[str, Any]) -> bool:
    """Return whether no tokens are wanted, as for embeddings and scores."""
    return flags["output_tokens"] is not None and flags["output_tokens"].strip() == "0"
