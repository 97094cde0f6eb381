"""Data sets by name: from a cache folder that is made here, and what is said where there is no such folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.base.errors import HarnessError
from harness.spec.options import _dataset
from harness.workload.dataset import dataset as hub
from tests.builders.datasets import json_lines

pytest.importorskip("huggingface_hub")

SHA = "0123456789abcdef0123456789abcdef01234567"
ROWS = [{"prompt": f"What is {i} and {i}?", "output_tokens": 4 + i} for i in range(3)]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder with one data set of two splits, one of them in Parquet, and its card."""
    folder = tmp_path / "hub" / "datasets--org--chats"
    snapshot = folder / "snapshots" / SHA
    (snapshot / "data").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(SHA)
    (snapshot / "README.md").write_text("---\nlicense: cc-by-4.0\nlanguage: en\n---\n# Chats\n")
    (snapshot / "data" / "test-00000.jsonl").write_text(json_lines(ROWS[:1]))
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(ROWS), snapshot / "data" / "train-00000-of-00001.parquet")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("hf:org/chats", "train-00000-of-00001.parquet"),
        ("hf:org/chats:test", "test-00000.jsonl"),
        ("hf:org/chats:data/test-00000.jsonl", "test-00000.jsonl"),
        (f"hf:org/chats@{SHA}:train", "train-00000-of-00001.parquet"),
    ],
)
def test_a_name_is_a_file_of_the_cache_with_its_revision_and_licence(cache: Path, name: str, file: str) -> None:
    found = hub.named(name)
    assert found is not None
    assert (found.path.name, found.revision, found.licence) == (file, SHA, "cc-by-4.0")
    assert found.path.is_relative_to(cache)


def test_a_short_name_is_one_of_the_hub_unless_there_is_a_file_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(hub.KNOWN, "sharegpt", "hf:org")
    with pytest.raises(HarnessError, match="no name of a data set; write it like hf:org/name:train"):
        hub.named("sharegpt")
    Path("sharegpt").write_text("[]")
    assert hub.named("sharegpt") is None
    assert hub.named("trace.jsonl") is None


def test_the_option_takes_a_name_for_no_format() -> None:
    assert _dataset("hf:org/name:train") == {"path": "hf:org/name:train"}


def knee(cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`knee run` in a process of its own, with this cache and no hub: nobody listens there."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    environ |= {"HF_HUB_CACHE": str(cache), "HF_ENDPOINT": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, "-m", "harness", "run", "--url", "sim:", "--no-plots", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environ, timeout=120)


@pytest.mark.slow
def test_a_run_by_name_needs_no_network_and_its_manifest_has_revision_and_licence(cache: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = knee(cache, "--dataset", "hf:org/chats", "--levels", "1", "--level-seconds", "1", "--out", str(out))
    assert done.returncode in (0, 3), done.stderr
    assert f"train-00000-of-00001.parquet of revision {SHA[:12]}, licence cc-by-4.0" in done.stderr
    found = json.loads((out / "manifest.json").read_text())["scenario"]["workload"]["dataset"]
    assert (found["path"], found["revision"], found["licence"]) == ("hf:org/chats", SHA, "cc-by-4.0")
    assert found["requests"] == 3


@pytest.mark.slow
def test_without_a_network_a_run_says_what_to_download_and_where_to_put_it(tmp_path: Path) -> None:
    done = knee(tmp_path, "--dataset", "sharegpt", "--out", str(tmp_path / "out"))
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("error: sharegpt: it is not in the cache, and not to be had")
    assert "`hf download anon8231489123/ShareGPT_Vicuna_unfiltered --repo-type dataset`" in line
    assert str(tmp_path / "datasets--anon8231489123--ShareGPT_Vicuna_unfiltered") in line
