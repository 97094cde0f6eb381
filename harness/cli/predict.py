"""`knee predict`: what the hardware should give, before anything is measured."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from harness.base import units
from harness.base.errors import HarnessError
from harness.base.terminal import console
from harness.cli import deployed, output
from harness.cli.grouped import Grouped, flag_of, option, under

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from harness.data.prediction import Prediction, SteppedLevel
    from harness.decide.choice import Demand
    from harness.predict.question import PredictionResult, Question
    from harness.report.document import Document
    from harness.spec.scenario import Scenario
    from harness.spec.traffic import Traffic
    from harness.spec.work import MeanLengths


_EXAMPLES = """\b
Examples:
  knee predict --model llama-3.1-8b --gpu h100-sxm --input-tokens 1k --output-tokens 200
  knee predict --model meta-llama/Llama-3.1-70B-Instruct --gpu "NVIDIA H100 80GB HBM3" --tp 4 --dtype fp8
  knee predict --model qwen3-32b --gpu all --rps 5 --slo ttft_p99=2s,itl=50ms"""


@click.command(cls=Grouped, epilog=_EXAMPLES)
@click.argument("scenario", required=False)
@deployed.options
@under(
    "Workload",
    option("--input-tokens", metavar="N", help="Prompt length in tokens; default 512."),
    option("--output-tokens", metavar="N", help="Answer length in tokens; default 128."),
    option("--levels", metavar="1,2,4", help="Users in flight; default 1 to 256."),
    option("--simulate", is_flag=True, help="Also simulate the levels step by step, by the data sheet."),
    option("--rate", metavar="R[,R…]", help="Requests per second of --simulate, in place of levels."),
    option("--arrivals", metavar="KIND", help="How requests of --rate arrive, as in `knee run`; default poisson."),
)
@under(
    "Answer",
    option(
        "--slo",
        metavar="NAME=TIME,…",
        help="Limits, like ttft_p99=2s,itl=50ms: of p99; _p50, _p75, tpot and itl alone of the mean.",
    ),
    option("--price", type=float, metavar="USD", help="Dollars per GPU and hour."),
    option("--rps", metavar="R", help="Requests per second at the peak: which card serves them, in how many replicas."),
    option("--spare", type=click.IntRange(0, 1000), metavar="K", help="Replicas of --rps that may be down; default 1."),
    option("--utilization", metavar="SHARE", help="Most of a replica's best load to use, with --rps; default 70%."),
    option(
        "--rank",
        type=click.Choice(["cost", "speed", "latency", "power"]),
        default="cost",
        help="Order of --gpu all; default cost.",
    ),
    option("--prefill-gpus", type=int, metavar="N", help="GPUs that only prefill; with --decode-gpus."),
    option("--decode-gpus", type=int, metavar="N", help="GPUs that only decode; each pool in replicas of --tp."),
    option("--prefill-tp", type=click.IntRange(1), metavar="N", help="GPUs of a prefill replica; default as --tp."),
    option("--calibration", metavar="FILE", help="Profile of `knee calibrate model`, for a second prediction."),
    option("--measured", metavar="DIR", multiple=True, help="Result folder to compare the prediction with."),
    option("--peak-flops", type=float, metavar="FLOP/s", help="Peak that you assume for the card, to be checked."),
)
@under(
    "Output",
    option("--json", "as_json", is_flag=True, help="Print the `prediction` object of summary.json on stdout."),
    option("--claims", is_flag=True, help="Also list unsourced claims about such a setup."),
    option("--list", "listed", type=click.Choice(["models", "gpus"]), help="List what is known by name and stop."),
)
def predict(scenario: str | None, **flags: Any) -> None:
    """Predict the whole curve from a model's config and a GPU's name.

    SCENARIO is a file as `knee run` takes it; options replace its fields. Lengths that vary are simulated step by step.

    --gpu takes a key, a MIG slice of it (h100-sxm:3g.40gb), some of them after commas, all, host for this machine, or a
    card's figures (bandwidth=936GB/s,memory=24GiB,fp16=71T).
    """
    if flags["listed"] is not None:
        _list(flags["listed"])
        return
    from harness.predict import catalog

    deployed.check_arrivals(flags)
    flags["demand"] = _demand(flags)
    resolved = deployed.scenario_of(scenario, flags)
    missing = (
        ("model_config", "no --model; name a model: `knee predict --list models`"),
        ("gpu", "no --gpu; name a card, or --gpu all: `knee predict --list gpus`"),
    )
    for name, hint in missing:
        flags[name] = flags[name] or getattr(resolved.hardware, name)
        if name == "gpu" and flags[name] is None:
            catalog.model_config(flags["model_config"], "--model")  # a wrong name is said before a missing card
        if flags[name] is None:
            raise click.UsageError(hint)
    if flags["price"] is not None and not 0 <= flags["price"] < units.BEYOND:
        raise HarnessError("a price is a number from 0 on", place="--price", way_out="give USD per GPU and hour")
    if any(flags[name] is not None for name in ("prefill_gpus", "decode_gpus", "prefill_tp")):
        _disaggregated(resolved, flags)
    elif flags["demand"] or flags["gpu"].lower() == "all" or ("," in flags["gpu"] and "=" not in flags["gpu"]):
        _choose(resolved, flags)
    else:
        _one(resolved, flags)


def _list(what: str) -> None:
    """Print the models or the GPUs that are known, one a line; a GPU with its memory and its names in nvidia-smi."""
    from harness.predict import catalog

    if what == "models":
        print(*catalog.models(), sep="\n")
        return
    for card in catalog.gpus():
        names = ", ".join(catalog.driver_names(card.key))
        print(f"{card.key:18}{card.memory_bytes / 2**30:5.0f} GiB  {names}".rstrip())


def _one(resolved: Scenario, flags: dict[str, Any]) -> None:
    """Predict one model on one kind of card; price and calibration of the scenario are of this one."""
    import msgspec

    hardware = resolved.hardware
    flags["price"] = hardware.price if flags["price"] is None else flags["price"]
    flags["calibration"] = flags["calibration"] or hardware.calibration
    cpus = flags["host_cpus"]
    if cpus is None and flags["gpu"].lower() == "host" and hardware.host_cpus:
        cpus = ",".join(map(str, hardware.host_cpus))
    question = deployed.question_of(resolved, flags, deployed.card(flags["gpu"], cpus))
    answer = _answer(question, flags)
    prediction = answer.prediction
    rates, arrivals = deployed.traffic_of(resolved, flags)
    if flags["simulate"] or rates is not None:
        stepped = _stepped(question, prediction, rates, arrivals)
        prediction = msgspec.structs.replace(prediction, step_machine=stepped)
    if flags["measured"]:
        from harness.decide import calibration

        prediction = calibration.with_measured(prediction, question, flags["measured"])
    answer = msgspec.structs.replace(answer, prediction=prediction)

    from harness.report import prediction as predicting

    if flags["as_json"]:
        output.print_json(answer.prediction)
    else:
        _show(predicting.report(answer, with_claims=flags["claims"]))


def _disaggregated(resolved: Scenario, flags: dict[str, Any]) -> None:
    """Predict prefill and decode on GPUs of their own."""
    import msgspec

    from harness.predict import disaggregated
    from harness.predict import question as questions
    from harness.report import prediction as predicted

    for flag in ("prefill_gpus", "decode_gpus"):
        if flags[flag] is None:
            raise HarnessError("two pools need both sizes", place=flag_of(flag), way_out="add it")
    unused = ("simulate", "measured", "calibration", "rate", "price", "gpus", "dp", "ep", "spare", "utilization")
    alone = "of two pools there is only the closed form of one kind of card"
    _leave_out(flags, unused, alone)
    if flags["gpu"].lower() == "all" or ("," in flags["gpu"] and "=" not in flags["gpu"]):
        raise HarnessError(alone, place="--gpu", way_out="name one card")
    question = deployed.question_of(resolved, flags, deployed.card(flags["gpu"], flags["host_cpus"]), several=True)
    tp = {} if flags["prefill_tp"] is None else {"tp": flags["prefill_tp"]}
    made, decode, mean = questions.setup(question)
    _, prefill, _ = questions.setup(msgspec.structs.replace(question, figures={**question.figures, **tp}))
    demand: Demand | None = flags["demand"]
    split = disaggregated.predict(
        made, prefill, decode, mean, question.levels, gpus=(flags["prefill_gpus"], flags["decode_gpus"]),
        slo=question.slo, rate=None if demand is None else demand.requests_per_s,
    )  # fmt: skip
    if flags["as_json"]:
        output.print_json(split)
    else:
        _show(predicted.disaggregated(split))


def _answer(question: Question, flags: Mapping[str, Any]) -> PredictionResult:
    """Return the prediction, with --calibration also the calibrated one; print the notes where there is none."""
    import msgspec

    from harness.predict import question as questions

    try:
        answer = questions.answer(question)
    except HarnessError:  # the notes may tell why the prediction fails
        for note in questions.notes(question):
            print(f"note: {note}", file=sys.stderr)
        raise
    if flags["calibration"] is None:
        return answer
    from harness.predict.calibration import calibrated, doubts
    from harness.run import prediction

    profile = prediction.calibration(flags["calibration"])
    made, where, mean = questions.setup(question)
    both = calibrated(
        made, where, question.mixture or mean, question.levels, profile, slo=question.slo or None, price=question.price
    )
    notes = [*answer.prediction.notes, *doubts(profile, question.levels)]
    return msgspec.structs.replace(
        answer, prediction=msgspec.structs.replace(answer.prediction, calibrated=both, notes=notes)
    )


def _stepped(
    question: Question, prediction: Prediction, rates: list[float] | None, arrivals: Traffic
) -> list[SteppedLevel]:
    """Return the step machine's prediction for the levels, or for rates in their place."""
    from harness.predict import question as questions
    from harness.predict import stepped
    from harness.workload.arrivals import due_times

    made, where, mean = questions.setup(question)
    lengths = question.mixture or mean
    if rates is None:
        return prediction.step_machine or stepped.at_levels(made, where, lengths, prediction.levels)

    def due_s(level: int, rate: float) -> Iterator[float]:
        return due_times(arrivals, rate, seed=0, level=level)

    return stepped.at_rates(made, where, lengths, rates, due_s, arrivals.period_s)


def _choose(resolved: Scenario, flags: Mapping[str, Any]) -> None:
    """Rank cards: all of the catalog, or those named by --gpu."""
    import msgspec

    from harness.decide import choice
    from harness.predict import catalog, question
    from harness.report import choice as chosen
    from harness.report.document import Document, Section

    one = ", or name one card by --gpu" if flags["rps"] is None else ""
    _leave_out(flags, ("tp", "gpus"), "several cards are tried in every size", f"leave it out{one}")
    _leave_out(
        flags, ("calibration", "simulate", "measured"), "it is for one card", "leave it out, or name one by --gpu"
    )
    demand: Demand | None = flags["demand"]
    apart = [flags["gpu"]] if "=" in flags["gpu"] else flags["gpu"].split(",")
    keys = [] if flags["gpu"].lower() == "all" else [key.strip() for key in apart if key.strip()]
    cards = [deployed.card(key, None) for key in keys] or catalog.gpus()
    first = deployed.question_of(resolved, flags, cards[0], several=True)
    figures = dict(first.figures)
    made, _, workload = question.setup(msgspec.structs.replace(first, figures={}))
    if (price := flags["price"]) is not None:
        cards = [msgspec.structs.replace(card, usd_per_hour=(price, price)) for card in cards]
    choices = choice.choose(made, cards, workload, slo=first.slo, rank=flags["rank"], demand=demand, **figures)
    if flags["as_json"]:
        output.print_json(choices)
    else:
        judged = msgspec.structs.replace(first, slo=choice.with_usual(first.slo, workload))
        best = choice.best_sizes(choices)
        lines = [_heading(judged, made.name, workload, demand, every=not keys)]
        rate = None if demand is None else demand.requests_per_s
        if sentence := chosen.pick(best, flags["rank"], workload.output_tokens, rate):
            card = next(each for each in cards if each.key == best[0].gpu)
            alone = flags["rank"] == "latency" and demand is None
            gained = None if alone else choice.gains(made, card, best[0], workload, **figures)
            lines += [sentence, *chosen.gains(gained)]
        shown = choices if keys else best
        whole = not console(stderr=False).is_terminal
        _show(Document(sections=[Section(lines=lines), *chosen.sections(shown, flags["rank"], whole=whole)]))


def _leave_out(flags: Mapping[str, Any], names: Iterable[str], fact: str, way_out: str = "leave it out") -> None:
    for name in names:
        if flags[name]:
            raise HarnessError(fact, place=f"--{name}", way_out=way_out)


def _demand(flags: Mapping[str, Any]) -> Demand | None:
    """Return the demand that cards are ranked for: --rps, with spares or utilisation; None without --rps."""
    shares = {name: flags[name] for name in ("spare", "utilization") if flags[name] is not None}
    if flags["rps"] is None:
        for name in shares:
            raise HarnessError("it has no effect without --rps", place=f"--{name}", way_out="add --rps")
        return None
    rate, *more = units.rates(flags["rps"], "--rps")
    if more:
        raise HarnessError("several rates", place="--rps", way_out="give that of the peak")
    if "utilization" in shares:
        shares["utilization"] = units.portion(shares["utilization"], "--utilization")
    from harness.decide import choice

    return choice.Demand(requests_per_s=rate, **shares)


def _heading(question: Question, name: str, workload: MeanLengths, demand: Demand | None, *, every: bool) -> str:
    """Return the line above the table of cards: model, workload and limits."""
    limits = ", ".join(f"{limit} = {units.duration(seconds)}" for limit, seconds in question.slo.items())
    tokens = f"{workload.input_tokens:g} tokens in"
    if workload.output_tokens:
        tokens += f", {workload.output_tokens:g} out"
    sizes = ", in its best size (--json has all)" if every else ""
    load = "at its best load"
    if demand is not None:
        down = f"with {demand.spare} that may be down" if demand.spare else "none of which may be down"
        used = f"at {demand.utilization:.0%} of the best load"
        load = f"in replicas for {demand.requests_per_s:g} a second, {down}, {used}"
    return f"{name}, {tokens}" + (f", {limits}" if limits else "") + f"; each card {load}{sizes}"


def _show(document: Document) -> None:
    from harness.report import terminal

    with output.closed_stdout_ignored():
        terminal.show(document, console(stderr=False))
