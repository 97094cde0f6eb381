"""Nothing that a run leaves, prints or shows holds a secret, and it speaks with nobody but its target."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders.servers import serving
from tests.run.test_safety import LOAD, endpoint
from tests.trust import leaks


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["socket", "httpx"])
def test_nothing_that_a_run_leaves_holds_a_secret(tmp_path: Path, transport: str) -> None:
    found = leaks.traces(tmp_path, transport=transport)
    assert [trace for trace in found if trace.hits] == []
    assert all(trace.amount[0] in "123456789" for trace in found), "each place had something to search"


@pytest.mark.parametrize("text", [leaks.KEY, f"a{leaks.BODY[4:]}", "czUtLi4u" + "c2stOWZRMnhSN3ZMbTNUelc4YQ=="])
def test_a_secret_that_is_left_would_be_found(tmp_path: Path, text: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"said": [f"it was {text}"]}), tmp_path / "x.parquet", compression="zstd")
    assert leaks._hits(leaks._bytes(leaks._values(tmp_path / "x.parquet"))) != ()


_WATCH = """
import sys
def watch(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg") and isinstance(arguments[1], tuple):
        with open({log!r}, "a") as file:
            file.write(repr(arguments[1][:2]) + "\\n")
    elif event == "socket.getaddrinfo":
        with open({log!r}, "a") as file:
            file.write(repr(arguments[:2]) + "\\n")
sys.addaudithook(watch)
"""


@pytest.mark.slow
def test_a_run_and_its_workers_speak_with_nobody_but_the_target(tmp_path: Path) -> None:
    """By the interpreter's own account of every connection and every name that is looked up, in every process."""
    (tmp_path / "sitecustomize.py").write_text(_WATCH.format(log=str(tmp_path / "log")))
    with serving(endpoint, host="127.0.0.2") as port:
        done = subprocess.run(
            [sys.executable, "-m", "harness", "run", "--url", f"http://127.0.0.2:{port}", *LOAD, "--out", "r"],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"},
            capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
    assert done.returncode in (0, 3), done.stderr
    spoken = {ast.literal_eval(line)[0] for line in (tmp_path / "log").read_text().splitlines()}
    assert spoken == {"127.0.0.1", "127.0.0.2"}, "itself (a socket that keeps the kernel's stamps on) and the target"
    assert json.loads((tmp_path / "r" / "summary.json").read_text())["levels"]
