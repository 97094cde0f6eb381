"""The table of levels that `knee export --to csv` writes: a level a row; columns as in `exporters.csv`.

Its verdicts say which levels are no points of a curve, and which errors were assumed, so its curve is the folder's.
"""

from __future__ import annotations

from typing import Any

from harness.results.exporters.csv import ERROR
from harness.results.readers.level import KNEE, NO_SERVER, Latencies, Reader, has, number, own_point, positive, validity

_NO = (None, "False", "FALSE", "0")


def _extra(row: Any) -> dict[str, Any]:
    """Return a row's validity and answered requests, by our names, and its error: assumed, else its own."""
    began, *others = (number(row, name) or 0.0 for name in ("requests", "errors", "cancelled", "abandoned"))
    valid, in_flight_ok = validity(row.get("verdicts", "").split())
    assumed = positive(row, "assumed_error")
    return own_point(row) | {
        "valid": valid,
        "in_flight_ok": in_flight_ok,
        "requests": round(began - sum(others)) or None,
        "se": assumed or positive(row, ERROR),
        "se_assumed": assumed is not None,
    }


_SAME = (
    "concurrency", "rate", "output_tokens_per_s", "requests_per_s", "input_tokens_mean", "output_tokens_mean",
    "itl_mean_s",
)  # fmt: skip  # the names of a level's figures here and there
OWN = Reader(
    name=KNEE,
    matches=lambda row: has(row, "repeat", "window_s", "simulated"),
    figures={
        **{name: name for name in _SAME},
        "failed": "errors",
        "ttft_s": "ttft",
        "itl_s": "icl",
        "tpot_s": "tpot",
        "e2e_s": "e2e",
    },
    latencies=Latencies(at="{name}_{statistic}_s"),
    more=_extra,
    facts=lambda row: {"simulated": row.get("simulated") not in _NO},
    lacks=(NO_SERVER,),
)
READERS = {"csv": (OWN,)}
