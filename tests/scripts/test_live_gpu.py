"""scripts/live/gpu.py: which cores and flags, the table of the committed runs, and the tokenizer it makes for them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts/live"))

import gpu  # noqa: E402  # its folder is a line above
import make_model  # noqa: E402

RESULTS = sorted((ROOT / "results").glob("live-h[12]00-*"))


def test_server_and_client_share_no_core_and_leave_none() -> None:
    assert gpu.cores(16) == ("0-11", "12-15")
    assert gpu.cores(3) == ("0-1", "2-2")
    with pytest.raises(SystemExit, match="a core each"):
        gpu.cores(1)


PARTS = gpu.parts("ttft_p99=1s", 384, 512, 128)  # 630 s in six runs, 12 s around each


def test_the_runs_end_in_the_budget_that_the_servers_starts_leave() -> None:
    ramp, *more = PARTS
    assert gpu.seconds_of(ramp, 630 + 6 * 12 + 40, more, start_s=40) == 150
    assert gpu.seconds_of(ramp, 600, more, start_s=60) == pytest.approx(150 * (600 - 60 - 6 * 12) / 630)
    assert gpu.seconds_of(ramp, 5000, more, start_s=60) == 150 * 1.3  # some more, where there is time
    assert gpu.seconds_of(more[-1], 100, [], start_s=60) == pytest.approx(100 - 12)  # no server is to be started
    assert gpu.seconds_of(ramp, 50, more, start_s=60) == 0


def test_the_last_runs_are_left_out_before_all_get_too_short() -> None:
    assert gpu.fitting(PARTS, 630 + 6 * 12 + 40, start_s=40) == PARTS
    assert gpu.fitting(PARTS, 400, start_s=120) == PARTS[:4]  # 400 - 4 · 12 s is 90 % of 390 s
    assert gpu.fitting(PARTS, 30, start_s=120) == PARTS[:1]


def test_every_run_says_what_its_load_is_and_only_searches_have_a_bound() -> None:
    for part in PARTS:
        assert ("--levels" in part.options) != ("--max-concurrency" in part.options)


@pytest.mark.parametrize("what", ["int3", "max-num-seqs", "max-num-seqs=many", ""])
def test_what_cannot_be_varied_is_refused_with_what_can(what: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"fp8 or max-num-seqs=N"):
        gpu.varied(what)


def test_every_committed_run_on_a_gpu_has_its_power_and_stands_in_the_docs() -> None:
    docs = (ROOT / "docs" / "live-gpu.md").read_text()
    assert len(RESULTS) == 10
    for folder in RESULTS:
        cells = dict(zip(gpu.HEAD, gpu.row(folder), strict=True))
        assert float(cells["highest power W"]) > 300
        assert cells["exit"] == ("3" if folder.name == "live-h200-decode" else "0")  # which ended before its last level
        assert f"`results/{folder.name}`" in docs
        if folder.name.rpartition("-")[2] in ("bf16", "seqs64", "fp8", "kv", "ramp"):
            value, _, ends = cells["plateau tok/s [95 %]"].partition(" [")
            assert f"| {value} [{ends}" in docs


@pytest.mark.slow
def test_a_padded_tokenizer_has_a_text_for_every_token_but_the_special_ones() -> None:
    tokenizer = make_model.pad(make_model.train(), 20_000)
    assert tokenizer.get_vocab_size() == 20_000
    texts = [tokenizer.decode([i]) for i in range(20_000)]
    assert [i for i, text in enumerate(texts) if not text] == [19_997, 19_998, 19_999]
    assert tokenizer.token_to_id(make_model.END) >= 19_997
    whole = tokenizer.encode("a request of some words, and what it returns").ids
    assert tokenizer.decode(whole).strip() == "a request of some words, and what it returns"
