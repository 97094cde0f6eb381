"""Sweeps as people publish them, through a result folder and through a CSV: `knee fit` gives the same for both.

A folder is made of requests that send as many tokens a second as was published, evenly staggered, in a window so short
that nearly no level has an error of its own. Their true knees are unknown; a flat tail is plain to see.
"""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from knee_table import Bench, Line

from harness.base import files
from harness.data.record import Level, Record, Role
from harness.data.summary import FOUND, PROVISIONAL, Curve
from harness.data.views import Value
from harness.results import frames
from harness.results.spool import Spool, header

DATA = Path(__file__).parents[1] / "tests" / "data" / "published_sweeps.csv"
WINDOWS_S = {"sixteen_seats": 3.0}  # the window as it was; those of the others are not published
WINDOW_S = 60.0
FLAT = ("sixteen_seats",)  # whose tail is so flat that they are to be found, not only provisional
SAME = 0.05  # relative difference of the two hinges
_CHUNKS = 512  # that an answer comes in, at most


class PublishedLevel(NamedTuple):
    """One published level; `waits` is the share of a request before its first token."""

    concurrency: int
    output_tokens_per_s: float
    answer_tokens: int
    waits: float


def sweeps() -> dict[str, list[PublishedLevel]]:
    """Return the published levels by the name of their sweep."""
    found: dict[str, list[PublishedLevel]] = {}
    for row in csv.DictReader(DATA.read_text(encoding="utf-8").splitlines()):
        C, X, answer = int(row["c"]), float(row["out_tok_s"]), int(row["osl"])
        if row["ttft_ms"]:
            ttft, decode = float(row["ttft_ms"]), answer * float(row["itl_ms"])
            waits = ttft / (ttft + decode)
        else:
            waits = max(0.03, 1 - 16 / C)
        found.setdefault(row["id"], []).append(PublishedLevel(C, X, answer, waits))
    return found


def folder(path: Path, levels: Sequence[PublishedLevel], window_s: float) -> None:
    """Write a result folder in which each level was measured so long, with the fields that are needed here."""
    files.write_json(path / "manifest.json", {})
    spool = Spool(path, header(0, 0.0))
    now = 0.0
    for index, level in enumerate(levels):
        C, answer = level.concurrency, level.answer_tokens
        request_s = C * answer / level.output_tokens_per_s
        start, end = now + 2 * request_s, now + 2 * request_s + window_s
        over = end + request_s
        spool.level(Level(index, C, 0, now, start, end, over, reason="given", role=Role.FIXED))
        chunks = min(answer, _CHUNKS)
        share = np.diff(np.round(np.linspace(0, answer, chunks + 1)).astype(np.int32))
        at = request_s * (level.waits + (1 - level.waits) * np.cumsum(share) / answer)
        records = []
        for user in range(C):
            sent = now + user / C * request_s
            while sent < over:
                arrivals = sent + at
                records.append(_record(index, C, f"{index}-{len(records)}", sent, arrivals.tolist(), share.tolist()))
                sent += request_s
        for i in range(0, len(records), 100):
            spool.write(frames.batch(records[i : i + 100]))
        now = over
    spool.close()


def _record(level: int, C: int, name: str, sent: float, arrivals: list[float], tokens: list[int]) -> Record:
    first, last = arrivals[0], arrivals[-1]
    return Record(
        request_id=name, level=level, repeat=0, concurrency=C, worker=0, url="http://127.0.0.1", scheduled_s=sent,
        sent_s=sent, connect_s=None, first_token_s=first, first_content_s=first, last_token_s=last, done_s=last,
        input_tokens=64, cached_tokens=None, output_tokens=sum(tokens), reasoning_tokens=None,
        token_source="continuous", status=200, error="", finish_reason="length", bytes_received=0,
        arrivals=array("q", [round(t * 1e9) for t in arrivals]).tobytes(), tokens=array("i", tokens).tobytes(),
    )  # fmt: skip


def table(levels: Sequence[PublishedLevel]) -> str:
    """Return the same levels as a CSV."""
    lines = [f"{level.concurrency},{level.output_tokens_per_s:g}" for level in levels]
    return "\n".join(["concurrency,output_tokens_per_s", *lines, ""])


def fitted(source: Path) -> Curve:
    """Return the curve by `knee fit`."""
    command = [sys.executable, "-m", "harness", "fit", str(source), "--json"]
    done = subprocess.run(command, capture_output=True, check=True)
    return msgspec.json.decode(done.stdout, type=Curve)


def both(name: str) -> tuple[Curve, Curve]:
    """One sweep's curve from its folder and from its CSV."""
    levels = sweeps()[name]
    with tempfile.TemporaryDirectory() as out:
        path = Path(out)
        run, flat = path / "run", path / "sweep.csv"
        run.mkdir()
        folder(run, levels, WINDOWS_S.get(name, WINDOW_S))
        flat.write_text(table(levels))
        return fitted(run), fitted(flat)


def published(work: Bench) -> Iterator[Line]:
    """Each sweep through both ways."""
    for name in sweeps():
        of_folder, of_csv = both(name)
        states = of_folder.state, of_csv.state
        hinges = of_folder.hinge_concurrency, of_csv.hinge_concurrency
        a, b = hinges[0].value, hinges[1].value
        same = states[0] == states[1] and a is not None and b is not None and abs(a / b - 1) <= SAME
        enough = (FOUND,) if name in FLAT else (FOUND, PROVISIONAL)
        yield Line(
            f"published-{name}", f"{len(sweeps()[name])} levels through folder and CSV",
            f"both {' or '.join(enough)}, hinges ± {SAME:.0%}",
            f"{states[0]} {_text(hinges[0])}; {states[1]} {_text(hinges[1])}",
            same and states[0] in enough,
            f"plateau {_text(of_folder.plateau_tokens_per_s)}; {_text(of_csv.plateau_tokens_per_s)}",
        )  # fmt: skip


def _text(value: Value) -> str:
    """Return a value and its interval.

    >>> _text(Value(16.2, (15.0, None))), _text(Value(None))
    ('16.2 [15, ∞]', 'none')
    """
    if value.value is None:
        return "none"
    if value.ci95 is None:
        return f"{value.value:.4g}"
    ends = ["∞" if end is None else f"{end:.4g}" for end in value.ci95]
    return f"{value.value:.4g} [{', '.join(ends)}]"
