"""A published sweep of prefill and decode pools beside the prediction: DeepSeek R1 in nvfp4 on 4 + 32 GB200.

Nothing was set on it. Prompts and answers of 1,024 tokens are drawn from 0.8 to 1 of that.
"""

from __future__ import annotations

import csv
from pathlib import Path

from predict_groups import error

from harness.predict.catalog import gpu, model_config
from harness.predict.deployment import deployment
from harness.predict.disaggregated import predict
from harness.predict.model import model
from harness.spec.work import MeanLengths

SWEEP = Path(__file__).parents[2] / "tests" / "data" / "disaggregated_gb200.csv"


def table(path: Path = SWEEP) -> str:
    """Return every level as Markdown, measured over predicted, and the errors (rms of the log ratio, as a factor)."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    first = rows[0]
    made = model(model_config(first["model"]), first["model"], dtype=first["dtype"], kv_dtype=first["kv_dtype"])
    prefill, decode = (
        deployment(gpu(first["gpu"]), tp=int(first[f"{pool}_tp"]), engine=first["engine"])
        for pool in ("prefill", "decode")
    )
    sizes = int(first["prefill_gpus"]), int(first["decode_gpus"])
    lengths = MeanLengths(float(first["isl"]), float(first["osl"]))
    found = predict(made, prefill, decode, lengths, [int(row["c"]) for row in rows], gpus=sizes)
    lines = ["| C | tok/s | in band | ITL | mean TTFT | bound by |", "|--:|--:|--:|--:|--:|---|"]
    ratios = []
    for row, level in zip(rows, found.levels, strict=True):
        band, got = level.output_tokens_per_s, float(row["out_tok_s"])
        seconds = (float(row["itl_mean_ms"]) / 1e3 / level.itl_s, float(row["ttft_mean_ms"]) / 1e3 / level.ttft_s)
        ratios.append((got / band.mid, *seconds))
        figures = [f"{each:.2f}" for each in ratios[-1]]
        inside = "yes" if band.low <= got <= band.high else "no"
        cells = [str(level.concurrency), figures[0], inside, *figures[1:], level.bound_by]
        lines.append(f"| {' | '.join(cells)} |")
    errors = [f"×{error(column):.2f}" for column in zip(*ratios, strict=True)]
    return "\n".join([*lines, f"| all | {errors[0]} | | {errors[1]} | {errors[2]} | |"])
