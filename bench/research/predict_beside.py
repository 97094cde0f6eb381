"""aiconfigurator's predictions beside Knee's, on the levels that both can predict.

aiconfigurator is NVIDIA's, with kernel tables of each card and engine; it is installed in an environment of its own:

    python -m venv .live/aiconfigurator && .live/aiconfigurator/bin/pip install aiconfigurator==0.12.0

Its tables are slow to load, about two seconds a level. aiconfigurator_answers.json has its answers of 0.12.0.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from predict_groups import ENGINES, Level, error

from harness.base.errors import HarnessError

_ROWS = Path(__file__).with_name("aiconfigurator_rows.py")
_DIGITS = 6  # of a recorded figure


class Answer(NamedTuple):
    """What it predicts of one level; tok/s and seconds."""

    tokens_per_s: float
    ttft_s: float
    itl_s: float


def beside(found: Sequence[Level], source: str) -> list[Answer | None]:
    """Its answer to each level, None where it has none: by its environment's interpreter, or as a JSON file has it."""
    if source.endswith(".json"):
        recorded = json.loads(Path(source).read_text())
        answers = [recorded.get(_key(question(level))) for level in found]
        return [each and Answer(*each) for each in answers]
    got = subprocess.run(  # the operator's own interpreter
        [source, str(_ROWS)], input=json.dumps([question(level) for level in found]), capture_output=True, text=True
    )
    if got.returncode:
        reason = got.stderr.strip().splitlines()[-1:] or [f"exit status {got.returncode}"]
        raise HarnessError(reason[0][:200], place="--beside", way_out="give the python of its environment")
    return [each and Answer(*each) for each in json.loads(got.stdout)]


def record(found: Sequence[Level], answers: Sequence[Answer | None], path: Path) -> None:
    """Write its answers, one a line, as `beside` reads them."""
    pairs = {_key(question(level)): answer for level, answer in zip(found, answers, strict=True)}
    lines = [
        f"{json.dumps(key)}: {json.dumps(answer and [float(f'{each:.{_DIGITS}g}') for each in answer])}"
        for key, answer in sorted(pairs.items())
    ]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _key(asked: dict[str, str | float]) -> str:
    return " ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in asked.items()
    )


def question(level: Level) -> dict[str, str | float]:
    """One level as `aiconfigurator_rows` takes it."""
    curve, row = level.curve, level.curve.levels[0]
    return {
        "model": row["model"],
        "dtype": row["dtype"],
        "gpu": row["gpu"],
        "engine": ENGINES[row["engine"].split()[0].lower()].lower().replace("tensorrt-llm", "trtllm"),
        "tp": curve.where.tp,
        "dp": curve.where.dp,
        "ep": curve.where.ep,
        "isl": curve.lengths.input_tokens,
        "osl": curve.lengths.output_tokens,
        "c": level.concurrency,
    }


def table(found: Sequence[Level], answers: Sequence[Answer | None]) -> str:
    """Both on the common levels, by group, as Markdown: rms factors of throughput, TTFT and ITL, Knee's first."""
    lines = [
        "| group | levels | tok/s | aiconfigurator | mean TTFT | aiconfigurator | ITL | aiconfigurator |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    common = [(level, answer) for level, answer in zip(found, answers, strict=True) if answer and level.ttft_s]
    groups = sorted({level.curve.group for level, _ in common})
    for group in [*groups, "all"]:
        mine = [pair for pair in common if group in (pair[0].curve.group, "all")]
        figures = [
            error([level.ratio for level, _ in mine]),
            error([level.measured / answer.tokens_per_s for level, answer in mine]),
            error([level.ttft_s / level.predicted.ttft_s for level, _ in mine if level.ttft_s]),
            error([level.ttft_s / answer.ttft_s for level, answer in mine if level.ttft_s]),
            error([level.itl_s / level.predicted.itl_s for level, _ in mine if level.itl_s and level.predicted.itl_s]),
            error([level.itl_s / answer.itl_s for level, answer in mine if level.itl_s and answer.itl_s]),
        ]
        lines.append(f"| {group} | {len(mine)} | " + " | ".join(f"×{each:.2f}" for each in figures) + " |")
    return "\n".join(lines)
