"""The question of `knee predict`: its options over the fields of a scenario."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.base import units
from harness.base.errors import HarnessError
from harness.cli import deployed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.predict.question import Question
    from harness.spec.scenario import Scenario
    from harness.spec.traffic import Traffic

_SPLIT = {"gpus", "tp", "pp", "dp", "ep"}  # how GPUs share the work


def check_arrivals(flags: Mapping[str, Any]) -> None:
    """HarnessError where requests are to arrive on a schedule and nothing is simulated."""
    for flag in ("rate", "arrivals"):
        if flags[flag] is not None and not flags["simulate"]:
            raise HarnessError("it has no effect without --simulate", place=f"--{flag}", way_out="add --simulate")


def scenario_of(path: str | None, flags: Mapping[str, Any]) -> Scenario:
    """The scenario of the file, else an empty one, with the lengths of the options in place of its own."""
    import msgspec

    from harness.predict import catalog
    from harness.spec import classes, reading, ready, scenario
    from harness.workload import shape

    if path and not Path(path).exists() and catalog.is_model(path):
        raise HarnessError("it is a model, not a scenario", place=path, way_out=f"give --model {path}")
    found = reading.load(str(ready.path(path))) if path else scenario.Scenario()
    if not shape.predictable(found):
        fact = "the prompts of sessions and graphs grow with every answer"
        raise HarnessError(fact, place=f"{path}: $.workload", way_out="leave them out to predict single requests")
    given = flags["input_tokens"] is not None and flags["output_tokens"] is not None
    if found.workload.dataset and not given:
        fact, way_out = "the lengths of a dataset are not predicted", "give its means: --input-tokens, --output-tokens"
        raise HarnessError(fact, place=f"{path}: $.workload.dataset", way_out=way_out)
    lengths = {}
    for field in ("input_tokens", "output_tokens"):
        flag, text = f"--{field.replace('_', '-')}", flags[field]
        if text is None:
            continue
        if found.class_:
            raise HarnessError("classes have lengths of their own", place=flag, way_out="leave it out")
        if field == "input_tokens" or not _prefill_alone(flags):
            lengths[field] = classes.length(text, flag)
    workload = msgspec.structs.replace(found.workload, **lengths, dataset=msgspec.UNSET)  # its means are given
    return msgspec.structs.replace(found, workload=workload)


def traffic_of(resolved: Scenario, flags: Mapping[str, Any]) -> tuple[list[float] | None, Traffic]:
    """Rates in place of the levels, if there are any, and how requests arrive at them."""
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
    """The question about one card; `several`: there are more to ask about, which are tried in every size."""
    from harness.predict import question
    from harness.spec.work import MeanLengths, means
    from harness.workload import shape

    path, name = deployed.model(flags["model_config"], hub=flags["hub"])
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
    """Fields of a Deployment: the options', else the file's; how GPUs share the work is from one of the two."""
    from harness.predict import served
    from harness.workload import shape

    own, hardware = deployed.figures(flags), resolved.hardware
    of_file: dict[str, Any] = {} if hardware.max_num_seqs is None else {"max_num_seqs": hardware.max_num_seqs}
    if not several and not own.keys() & _SPLIT:
        of_file = served.figures(hardware)
    if cached := shape.cached_share(resolved):
        of_file["prefix_hit"] = cached
    return of_file | own


def _stored(typed: str, of_file: str | None) -> str:
    """How weights or the cache are stored: what the file says, unless an option does."""
    return of_file or typed if typed == "auto" else typed


def _prefill_alone(flags: Mapping[str, Any]) -> bool:
    """Whether no tokens are wanted, as for embeddings and scores."""
    return flags["output_tokens"] is not None and flags["output_tokens"].strip() == "0"
