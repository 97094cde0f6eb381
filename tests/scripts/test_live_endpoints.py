"""The live run of an encoder: what is judged of it, and the committed one; no server is started here."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from harness.data.summary import Summary
from harness.results.result import Result

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts/live"))

import endpoints  # noqa: E402  # its folder is a line above
from endpoints import Counts  # noqa: E402

FOLDER = ROOT / "results/live-embeddings"


def test_two_counts_within_a_hundredth_are_one() -> None:
    assert Counts(1009.0, 1000, [(34, 34)]).wrong == []
    assert Counts(1011.0, 1000, []).wrong == ["1,011 tokens by the server, 1,000 by the records"]
    assert Counts(0.0, 0, []).wrong == ["0 tokens by the server, 0 by the records"]


def test_a_single_text_is_counted_exactly() -> None:
    assert Counts(1000.0, 1000, [(34, 34), (35, 34)]).wrong == ["35 tokens by the tokenizer, 34 in the record"]


def test_the_committed_run_has_the_server_s_tokens_and_no_times_of_tokens() -> None:
    run = Result.open(FOLDER)
    counts = msgspec.json.decode((FOLDER / "tokens.json").read_bytes(), type=Counts)
    assert counts.wrong == []
    assert counts.records == sum(record.input_tokens or 0 for record in run.records)
    summary = msgspec.json.decode((FOLDER / "summary.json").read_bytes(), type=Summary)
    assert summary.unit == "input tokens"
    assert summary.knee_concurrency is not None
    assert all(level.itl_s.n == level.ttft_s.n == 0 for level in summary.levels)
    assert "ITL" not in (FOLDER / "report.md").read_text()


def test_the_texts_of_a_request_are_made_again() -> None:
    """A word is a token here, and two more stand around a text."""
    run = Result.open(FOLDER)
    [text] = endpoints.texts(run.manifest, 7)
    assert len(text.split()) + 2 == run.records[0].input_tokens == endpoints.INPUT_TOKENS
