"""The prediction against 1,003 published levels of 228 curves, by group: kind of model, vendor of the card, engine.

Constants of `harness.predict` were set on this file, so the first table flatters. The second one does not: models and
cards go in five parts, and each part is judged with constants that were set on the other four. What is searched there
stands in `_START`, and besides what a first token waits for in each engine; what other sources gave (MBU, MFU of
Hopper cards, overheads of dense models) stays.

What InferenceX launched its servers with (precision of the KV cache, max_num_seqs, memory, waiting for more prompts) is
from its scripts at that time (SemiAnalysisAI/InferenceX, benchmarks/). Its DeepSeek R1 on TensorRT-LLM had attention in
data parallel at more than 64 users, or 32 of long prompts.

The file has rows that were published under two names: the same setup and the same figures to the last digit. Each
counts once.
"""

from __future__ import annotations

import csv
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from harness.base.errors import HarnessError
from harness.data.prediction import PredictedLevel
from harness.predict.catalog import gpu, model_config
from harness.predict.deployment import FRONT_ENDS, Deployment, deployment
from harness.predict.model import Model, kind, model
from harness.predict.roofline import predict
from harness.spec.work import MeanLengths

CURVES = Path(__file__).parents[2] / "tests" / "data" / "measured_curves_2.csv"
_PARTS = 5
_SMALL = 20  # levels: a smaller group has no figure of its own
ENGINES = {"trtllm": "TensorRT-LLM", "trt-llm": "TensorRT-LLM", "vllm": "vLLM", "sglang": "SGLang"}
_BLACKWELL = ("b200", "gb200", "b300", "gb300")

# Constants that are searched: seconds, shares of the MFU, the MFU of Blackwell cards, and the share that meets.
_START = {
    "o_experts": 45e-6, "o_latent": 70e-6, "o_rank": 4e-6, "mfu_blackwell": 0.5, "experts_prefill": 0.6,
    "experts_decode": 0.35,
}  # fmt: skip


class Curve(NamedTuple):
    """One published curve: its setup and its levels."""

    id: str
    group: str
    part: str  # model and card, which are judged together
    model: Model
    where: Deployment
    lengths: MeanLengths
    levels: list[dict[str, str]]
    held: float = 0.0  # steps for which its launch script has the engine wait for more prompts


class Level(NamedTuple):
    """One published level beside its prediction."""

    curve: Curve
    concurrency: int
    measured: float  # output tok/s
    ttft_s: float | None
    itl_s: float | None
    predicted: PredictedLevel

    @property
    def ratio(self) -> float:
        return self.measured / self.predicted.output_tokens_per_s.mid

    @property
    def within(self) -> bool:
        band = self.predicted.output_tokens_per_s
        return band.low <= self.measured <= band.high


def curves(path: Path = CURVES) -> list[Curve]:
    """Return every published curve of the file, in its order; rows that stand twice only where they stand first."""
    levels: dict[str, list[dict[str, str]]] = {}
    for row in once(_rows(path)):
        levels.setdefault(row["id"], []).append(row)
    return [_curve(name, rows) for name, rows in levels.items()]


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def once(rows: Iterable[dict[str, str]]) -> list[dict[str, str]]:
    """Rows without those that say again, under another name or note, what one before says in every other column.

    >>> once([{"id": "R1", "c": "4", "out_tok_s": "378.68"}, {"id": "V3", "c": "4", "out_tok_s": "378.68"}])
    [{'id': 'R1', 'c': '4', 'out_tok_s': '378.68'}]
    """
    found: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
    for row in rows:
        said = tuple((name, value) for name, value in row.items() if name not in ("id", "note"))
        found.setdefault(said, row)
    return list(found.values())


def counted(path: Path = CURVES) -> str:
    """Return what of the file is counted, as a sentence."""
    rows = _rows(path)
    kept = once(rows)
    return (
        f"{len(rows) - len(kept)} of {len(rows):,} rows stand twice, with the same setup and figures under another "
        f"name; {len(kept):,} are counted."
    )


def _curve(name: str, rows: list[dict[str, str]]) -> Curve:
    first = rows[0]
    made = model(
        model_config(first["model"]), first["model"],
        dtype=first["dtype"] or "auto", kv_dtype=first["kv_dtype"] or "auto",
    )  # fmt: skip
    figures: dict[str, Any] = {name: int(first[name]) for name in ("tp", "dp", "ep") if int(first[name]) > 1}
    if "0.95" in first["extra"]:  # --gpu-memory-utilization
        figures["gpu_memory_utilization"] = 0.95
    engine = ENGINES[first["engine"].split()[0].lower()]
    figures["engine"] = engine.lower().replace("tensorrt-llm", "trtllm")
    where = deployment(gpu(first["gpu"]), **figures)
    held = float(first["extra"].partition("batch_wait_timeout_iters ")[2] or 0)
    if held:
        where = msgspec.structs.replace(where, o_first=FRONT_ENDS[where.engine].steps + held)
    return Curve(
        id=name,
        group=f"{kind(made)}, {where.gpu.vendor}, {engine}",
        part=f"{first['model']} on {first['gpu']}",
        model=made,
        where=where,
        lengths=MeanLengths(float(first["isl"]), float(first["osl"])),
        levels=rows,
        held=held,
    )


def levels(found: Iterable[Curve], constants: Mapping[str, float] | None = None) -> list[Level]:
    """Return every level of the curves with its prediction, by other constants where they are given."""
    out = []
    for curve in found:
        where = curve.where if constants is None else _with(curve, constants)
        for limit, rows in itertools.groupby(curve.levels, lambda row: int(row["max_num_seqs"])):  # some have the load
            same = list(rows)
            loads = [int(float(row["c"])) for row in same]
            try:
                own = msgspec.structs.replace(where, max_num_seqs=limit)
                predicted = predict(curve.model, own, curve.lengths, loads).levels
            except HarnessError as error:
                raise HarnessError(error.fact, place=curve.id, way_out=error.way_out) from None
            for row, load, level in zip(same, loads, predicted, strict=True):
                ttft, itl = (float(row[name]) / 1e3 if row[name] else None for name in ("ttft_ms", "itl_ms"))
                out.append(Level(curve, load, float(row["out_tok_s"]), ttft, itl, level))
    return out


def _with(curve: Curve, constants: Mapping[str, float]) -> Deployment:
    """Return the curve's deployment by these constants."""
    sort = kind(curve.model)
    names = ("experts_prefill", "experts_decode", *(("o_rank",) if curve.where.o_rank else ()))
    figures: dict[str, Any] = {name: constants[name] for name in names}
    if sort != "dense":
        figures["o_layer"] = constants["o_experts" if sort == "experts" else "o_latent"]
    if curve.where.gpu.key.startswith(_BLACKWELL):
        figures |= {"mfu_prefill": constants["mfu_blackwell"], "mfu_decode": constants["mfu_blackwell"]}
    return msgspec.structs.replace(curve.where, **figures)


def error(ratios: Sequence[float]) -> float:
    """Root-mean-square of log ratios, as a factor; nan of none."""
    if not ratios:
        return math.nan
    return math.exp(math.sqrt(sum(math.log(ratio) ** 2 for ratio in ratios) / len(ratios)))


def cross_validated(found: Sequence[Curve]) -> list[Level]:
    """Return every level, judged by constants that were set without its model and card."""
    parts = sorted({curve.part for curve in found})
    out: list[Level] = []
    for fold in range(_PARTS):
        left = set(parts[fold::_PARTS])
        constants = _searched([curve for curve in found if curve.part not in left])
        waits = _waits([curve for curve in found if curve.part not in left], constants)
        judged = [curve for curve in found if curve.part in left]
        out += levels([_waiting(curve, *waits[curve.where.engine]) for curve in judged], constants)
    return out


def _waiting(curve: Curve, steps: float, together: float) -> Curve:
    """Return the curve with what a first token waits for in the place of the engine's."""
    return curve._replace(where=msgspec.structs.replace(curve.where, o_first=curve.held + steps, together=together))


def _waits(training: Sequence[Curve], constants: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Return for each engine the steps and the share that meets of least error in TTFT, which is linear in both.

    Of an engine with one model alone nothing is set: SGLang computes prompts first, so all of a batch meets, and its
    steps are the others'.
    """
    none, step, all_meet = (
        levels([_waiting(curve, *each) for curve in training], constants)
        for each in ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0))
    )
    rows: dict[str, list[tuple[float, float, float, float]]] = {}
    models: dict[str, set[str]] = {}
    for at_once, by_step, by_share in zip(none, step, all_meet, strict=True):
        if at_once.ttft_s:
            least, curve = at_once.predicted.ttft_s, at_once.curve
            parts = (least, by_step.predicted.ttft_s - least, by_share.predicted.ttft_s - least)
            rows.setdefault(curve.where.engine, []).append((at_once.ttft_s, *parts))
            models.setdefault(curve.where.engine, set()).add(curve.part)
    tried = [(float(steps), share / 50) for steps in range(21) for share in range(51)]
    found = {
        engine: min(tried, key=lambda each: error([got / (a + each[0] * b + each[1] * c) for got, a, b, c in mine]))
        for engine, mine in rows.items()
        if len(models[engine]) > 1
    }
    usual = sum(steps for steps, _ in found.values()) / len(found)
    return {engine: found.get(engine, (usual, 1.0)) for engine in FRONT_ENDS}


def _searched(training: Sequence[Curve]) -> dict[str, float]:
    """Return the constants of least error in throughput, each by steps of a fifth, twice in turn."""
    best = dict(_START)
    least = error([level.ratio for level in levels(training, best)])
    for step in (1.2, 1.1):
        for name in best:
            for factor in (step, 1 / step):
                while True:
                    tried = {**best, name: best[name] * factor}
                    got = error([level.ratio for level in levels(training, tried)])
                    if got >= least - 1e-4:
                        break
                    best, least = tried, got
    return best


def table(found: Sequence[Level]) -> str:
    """Return the groups as Markdown: rms factors of throughput, ITL and TTFT, and the share in band."""
    lines = [
        "| group | levels | tok/s | median measured/predicted | in band | ITL | mean TTFT | TTFT in its range |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    groups = sorted({level.curve.group for level in found})
    for group in [*groups, "all"]:
        mine = [level for level in found if group in (level.curve.group, "all")]
        if len(mine) < _SMALL:
            continue
        timed = [(x.ttft_s, x.itl_s, x.predicted) for x in mine]
        ttft = [got / of.ttft_s for got, _, of in timed if got]
        itl = [got / of.itl_s for _, got, of in timed if got and of.itl_s]
        inside = [of.ttft_mean_s.low <= got <= of.ttft_mean_s.high for got, _, of in timed if got and of.ttft_mean_s]
        ratios = sorted(level.ratio for level in mine)
        share = sum(level.within for level in mine) / len(mine)
        lines.append(
            f"| {group} | {len(mine):,} | ×{error(ratios):.2f} | {ratios[len(ratios) // 2]:.2f} | {share:.0%} | "
            f"×{error(itl):.2f} | ×{error(ttft):.2f} | {_share(inside)} |"
        )
    return "\n".join(lines)


def own(level: Level) -> tuple[float, float, float | None]:
    """Return Knee's tok/s, mean TTFT and ITL of a level."""
    return level.predicted.output_tokens_per_s.mid, level.predicted.ttft_s, level.predicted.itl_s


def medians(found: Iterable[tuple[Level, Sequence[float | None]]]) -> str:
    """Return the median absolute errors of predicted tok/s, TTFT and ITL, as a sentence."""
    errors: dict[str, list[float]] = {"tok/s": [], "mean TTFT": [], "ITL": []}
    for level, predicted in found:
        measured = (level.measured, level.ttft_s, level.itl_s)
        for each, got, of in zip(errors.values(), measured, predicted, strict=True):
            each += [abs(of / got - 1)] if got and of else []
    return ", ".join(f"{name} {statistics.median(each):.1%}" for name, each in errors.items())


def _share(which: Sequence[bool]) -> str:
    return f"{sum(which) / len(which):.0%}" if which else "–"


_COLOURS = {"dense": "#0072B2", "experts": "#D55E00", "latent attention": "#009E73"}


def picture(found: Sequence[Level], path: Path) -> None:
    """Measured over predicted output tok/s of every level, by load; the shades are the band of each kind of model."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), dpi=110, layout="constrained")
    panels = figure.subplots(1, len(_COLOURS), sharey=True)
    for panel, (sort, colour) in zip(panels, _COLOURS.items(), strict=True):
        mine = [level for level in found if level.curve.group.startswith(sort)]
        band = mine[0].predicted.output_tokens_per_s
        panel.axhspan(band.low / band.mid, band.high / band.mid, color=colour, alpha=0.12, linewidth=0)
        panel.axhline(1.0, color="#7a828c", linewidth=0.8)
        panel.scatter(
            [x.concurrency for x in mine], [x.ratio for x in mine], s=8, color=colour, alpha=0.5, linewidths=0
        )
        panel.set_xscale("log", base=2)
        panel.set_yscale("log", base=2)
        panel.set_yticks([0.5, 0.71, 1.0, 1.41, 2.0], ["0.5", "0.71", "1", "1.41", "2"])
        panel.set_title(
            f"{sort}: {len(mine)} levels, {sum(x.within for x in mine) / len(mine):.0%} in band", fontsize=9
        )
        panel.set_xlabel("requests in flight")
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("measured / predicted output tok/s")
    figure.savefig(path, metadata={"Software": None})
