"""The prediction against published curves: measured over predicted at every level, with nothing fitted to them.

Data-sheet constants and the published setup alone. For comparison, the same sheet without the model: a
line, C times the single stream of `BW·MBU/W`, that goes flat at the KV ceiling `BW·MBU/(ctx·kv)`. Errors are
root-mean-square of the log ratio, so 1.10 is off by 10 % either way. Bad rows stay in.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import predict_beside
import predict_groups
import predict_open_loop
import predict_pools

from harness.predict.catalog import gpu, model_config
from harness.predict.deployment import Deployment, deployment
from harness.predict.model import Model, kv_bytes_per_token, model, weights
from harness.predict.roofline import predict
from harness.spec.work import MeanLengths

CURVES = Path(__file__).parents[2] / "tests" / "data" / "measured_curves.csv"

# The published setups: our model and card, precision, GPUs together, answers' mean length.
SETUPS: dict[str, dict[str, Any]] = {
    # vLLM's default on cards of this size
    "nano30b_b200": {"model": "nemotron-3-nano-30b-a3b", "gpu": "b200-sxm", "dtype": "fp8", "max_num_seqs": 1024},
    "mistral7b_4090": {"model": "mistral-7b", "gpu": "rtx4090", "output_tokens": 100},  # its answers stop early
    "qwen05b_l4": {"model": "qwen2.5-0.5b", "gpu": "l4"},
    "llama405b_mi300x_oci": {"model": "llama-3.1-405b", "gpu": "mi300x", "dtype": "fp8"},
}


class Row(NamedTuple):
    """One published level; tok/s."""

    curve: str
    concurrency: int
    measured: float
    low: float
    predicted: float
    high: float
    line_then_flat: float
    bound_by: str
    note: str

    @property
    def ratio(self) -> float:
        return self.measured / self.predicted

    @property
    def within(self) -> bool:
        """Return whether it lies in the band."""
        return self.low <= self.measured <= self.high


def setup(curve: str, levels: Sequence[dict[str, str]]) -> tuple[Model, Deployment, MeanLengths]:
    """Return a published setup as what a prediction takes."""
    figures, first = dict(SETUPS[curve]), levels[0]
    name, card, dtype = figures.pop("model"), figures.pop("gpu"), figures.pop("dtype", "auto")
    lengths = MeanLengths(float(first["isl"]), float(figures.pop("output_tokens", first["osl"])))
    made = model(model_config(name), name, dtype=dtype)
    return made, deployment(gpu(card), tp=int(first["n_gpu"]), **figures), lengths


def line_then_flat(made: Model, where: Deployment, workload: MeanLengths, C: int) -> float:
    """min(C · BW·MBU/W, BW·MBU/(ctx·kv)); tok/s."""
    bandwidth = where.gpu.bandwidth * where.tp
    line = C * bandwidth * where.mbu / weights(made).read(1)
    return min(line, bandwidth * where.mbu / (workload.context * kv_bytes_per_token(made)))


def rows() -> list[Row]:
    """Return every published level and its prediction."""
    with CURVES.open(newline="", encoding="utf-8") as file:
        published = list(csv.DictReader(file))
    out = []
    for curve in SETUPS:
        levels = [each for each in published if each["id"] == curve]
        made, where, workload = setup(curve, levels)
        prediction = predict(made, where, workload, [int(each["c"]) for each in levels])
        for each, level in zip(levels, prediction.levels, strict=True):
            band = level.output_tokens_per_s
            flat = line_then_flat(made, where, workload, level.concurrency)
            measured = float(each["out_tok_s"])
            bound = level.bound_by or ""
            out.append(
                Row(curve, level.concurrency, measured, band.low, band.mid, band.high, flat, bound, each["note"])
            )
    return out


def error(ratios: Sequence[float]) -> float:
    """Root-mean-square of log ratios, as a factor.

    >>> round(error([2.0, 0.5]), 3)
    2.0
    """
    return math.exp(math.sqrt(sum(math.log(ratio) ** 2 for ratio in ratios) / len(ratios)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["levels", "groups", "open", "pools"], default="levels")
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    parser.add_argument("--cross-validate", action="store_true", help="judge each part by constants set on the others")
    parser.add_argument(
        "--beside", metavar="PYTHON|FILE", help="an environment that has aiconfigurator, or its answers: one table"
    )
    parser.add_argument("--record", metavar="FILE.json", help="write the answers of --beside")
    parser.add_argument("--plot", metavar="FILE.png", help="measured over predicted of every level")
    options = parser.parse_args()
    if options.what == "groups":
        published = predict_groups.curves()
        judged = (predict_groups.cross_validated if options.cross_validate else predict_groups.levels)(published)
        medians = predict_groups.medians((level, predict_groups.own(level)) for level in judged)
        print(predict_groups.table(judged), f"Median absolute error: {medians}", predict_groups.counted(), sep="\n\n")
        if options.beside:
            answers = predict_beside.beside(judged, options.beside)
            print("\n" + predict_beside.table(judged, answers))
            theirs = predict_groups.medians(
                (each, answer) for each, answer in zip(judged, answers, strict=True) if answer
            )
            print(f"\nMedian absolute error of aiconfigurator: {theirs}")
            if options.record:
                predict_beside.record(judged, answers, Path(options.record))
        if options.plot:
            predict_groups.picture(judged, Path(options.plot))
        return
    if options.what in ("open", "pools"):
        print(predict_pools.table() if options.what == "pools" else predict_open_loop.table(predict_open_loop.stages()))
        return
    found = rows()
    if options.json:
        print(json.dumps([row._asdict() | {"ratio": row.ratio} for row in found], indent=1))
        return
    print(
        "| curve | C | measured tok/s | predicted | band | measured/predicted | in band | line then flat | bound by |"
    )
    print("|---|--:|--:|--:|---|--:|---|--:|---|")
    for row in found:
        note = f" ({row.note})" if row.note else ""
        print(
            f"| {row.curve} | {row.concurrency} | {row.measured:,.0f} | {row.predicted:,.0f} | "
            f"{row.low:,.0f}–{row.high:,.0f} | {row.ratio:.2f} | {'yes' if row.within else 'no'} | "
            f"{row.measured / row.line_then_flat:.2f} | {row.bound_by}{note} |"
        )
    print("\n| curve | levels | error of the prediction | error of line then flat | levels in band |")
    print("|---|--:|--:|--:|--:|")
    for curve in [*SETUPS, "all"]:
        mine = [row for row in found if curve in (row.curve, "all")]
        ours, flat = error([row.ratio for row in mine]), error([row.measured / row.line_then_flat for row in mine])
        print(f"| {curve} | {len(mine)} | ×{ours:.2f} | ×{flat:.2f} | {sum(row.within for row in mine)} |")


if __name__ == "__main__":
    main()
