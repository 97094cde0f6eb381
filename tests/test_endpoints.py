"""docs/endpoints.md: a row for each dialect, true by the code, and `live` where a committed result is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from harness.dialects import DIALECTS
from harness.dialects.sse import EVENTS, JSON, NDJSON

ROOT = Path(__file__).parents[1]
STREAMS = {EVENTS: "events", NDJSON: "lines of JSON", JSON: "no"}


class Row(NamedTuple):
    api: str
    path: str
    unit: str
    streams: str
    seen: str


def rows() -> list[Row]:
    lines = [line for line in (ROOT / "docs" / "endpoints.md").read_text().splitlines() if re.match(r"\| `[a-z]", line)]
    return [Row(*(cell.strip().replace("`", "") for cell in line.strip("|").split("|"))) for line in lines]


def test_every_dialect_has_a_row() -> None:
    assert [row.api for row in rows()] == list(DIALECTS)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.api)
def test_a_row_says_what_the_dialect_is(row: Row) -> None:
    dialect = DIALECTS[row.api]
    streams = STREAMS[dialect.decoder().media] + ("; --no-stream" if dialect.whole is not None else "")
    assert row[1:4] == (dialect.root + dialect.path, dialect.unit.value, streams)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.api)
def test_a_live_row_names_results_that_were_measured_by_it(row: Row) -> None:
    named = re.findall(r"\(\.\./(results/[^)]+)\)", row.seen)
    assert bool(named) == row.seen.startswith("live: ")
    assert named or row.seen == "recorded only"
    for folder in named:
        manifest = json.loads((ROOT / folder / "manifest.json").read_text())
        assert (manifest["api"], bool(manifest["simulated"])) == (row.api, False)
