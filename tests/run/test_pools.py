"""Prefill and decode on servers of their own: started, measured behind their proxy, and compared."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from harness.analysis.server_account import pool_view
from harness.base.errors import HarnessError
from harness.cli import cli
from harness.data.record import SERVER
from harness.decide.compare.comparison import Comparison
from harness.observe.server import Pages
from harness.results.result import read_summary, run_manifest
from harness.run.stacks import command
from harness.spec.recipe import Stack, StackSpec
from tests.builders import recipes

PAGES = Path(__file__).parents[1] / "data" / "metrics"
ROUTERS = Path(__file__).parents[1] / "data" / "engines" / "routers"
PROXY = Path(__file__).parents[1] / "builders" / "pd_proxy.py"
SIM = ", ".join(f"'{word}'" for word in recipes.SIM)
APART = f"""
title = "prefill and decode apart"
command = ['{sys.executable}', '{PROXY}', "--port", "{{port}}"]
served = ""
health = "/v1/models"
[pools.prefill]
command = [{SIM}]
named = ["--prefill", "{{url}}"]
[pools.decode]
command = [{SIM}]
named = ["--decode", "{{url}}"]
"""


@pytest.mark.parametrize(("name", "engine"), [("vllm-pools", "vllm"), ("sglang-pools", "sglang")])
def test_a_recipe_with_pools_uses_options_that_its_engine_and_its_router_have(name: str, engine: str) -> None:
    (stack,) = command.stacks([StackSpec(recipe=name, tp=2, pools={"prefill": 2})])
    *servers, router = command.processes(stack, "/models/m", iter(range(8000, 8100)))
    assert [each.pool for each in servers] == ["prefill 1", "prefill 2", "decode"]
    assert [each.env["CUDA_VISIBLE_DEVICES"] for each in servers] == ["0,1", "2,3", "4,5"]
    assert [each.port for each in (*servers, router)] == [8000, 8002, 8004, 8006]
    assert [word for word in router.words if word.startswith("http")] == [
        f"http://127.0.0.1:{p}" for p in (8000, 8002, 8004)
    ]
    options = {word for each in servers for word in each.words if word.startswith("--")}
    assert options <= set((ROUTERS.parent / f"{engine}.txt").read_text().split("\n"))
    assert {word for word in router.words if word.startswith("--")} <= set(
        (ROUTERS / f"{engine}.txt").read_text().split("\n")
    )
    assert "{" not in " ".join(router.words)


def test_a_pool_that_the_recipe_does_not_have_is_one_line() -> None:
    done = CliRunner().invoke(cli, ["stacks", "run", "prefill-decode", "--print", "--model", "/m"])
    assert len(done.output.splitlines()) == 5, "two servers with both phases; two of the pools and their router"
    stack = Stack(spec=StackSpec(recipe="x", name="x", pools={"prefil": 2}), recipe=command.shipped("vllm-pools"))
    with pytest.raises(HarnessError, match=r"no pool prefil.*did you mean 'prefill'"):
        command.processes(stack, "m", iter(range(9)))


@pytest.mark.parametrize(
    ("page", "seconds", "megabytes"),
    [("vllm-nixl-0.32.0", 0.08, 60.0), ("sglang-pools-0.5.23", 0.04, 2.0**20 * 50 / 1e6)],
)
def test_the_transfer_of_kv_caches_is_read_from_an_engine_s_page(page: str, seconds: float, megabytes: float) -> None:
    """Two pages of one server; between them one transfer, as the engine's own classes write it."""
    pages = Pages(f"{SERVER} decode")
    texts = (PAGES / f"{page}.txt").read_text().split("# the next page\n")
    samples = [sample for at, text in enumerate(texts) for sample in pages.samples(float(at), text)]
    found = pool_view(samples, (0.0, 1.0), f"{SERVER} decode")
    assert found.transfer_s is not None
    assert found.transfer_bytes is not None
    assert (found.transfer_s.n, found.transfer_s.mean) == (1, pytest.approx(seconds))
    assert found.transfer_bytes.mean == pytest.approx(megabytes * 1e6)


@pytest.mark.slow
def test_two_simulated_servers_split_the_phases_behind_a_proxy_and_are_compared_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "apart.toml").write_text(APART)
    (tmp_path / "one.toml").write_text(recipes.toml(recipes.SIM))
    common = ["--model", "m", "--yes", "--quiet", "--levels", "1,4", "--level-seconds", "1", "--input-tokens", "64"]
    done = CliRunner().invoke(
        cli, ["stacks", "run", "--stack", "./one.toml", "--stack", "./apart.toml", *common, "--output-tokens", "16",
              "--out", "out"],
    )  # fmt: skip
    assert done.exit_code in (0, 3), done.output
    apart, one = tmp_path / "out" / "apart-1", tmp_path / "out" / "one-1"
    started, summary = run_manifest(apart).stack, read_summary(apart)
    assert started
    assert [each.name for each in started.pools or ()] == ["prefill", "decode"]
    assert run_manifest(apart).gpus in (None, 2)
    last = summary.levels[-1]
    assert last.pools
    prefill, decode = (last.pools[name].server for name in ("prefill", "decode"))
    assert prefill
    assert decode
    assert prefill.generation_tokens_per_s
    assert decode.generation_tokens_per_s
    # One token of sixteen is made by the prefill server, and the request's sixteen by the decode server.
    assert decode.generation_tokens_per_s / prefill.generation_tokens_per_s == pytest.approx(16, rel=0.3)
    shown = CliRunner().invoke(cli, ["report", str(apart), "--verbose"]).output
    assert "Servers of the pools" in shown
    done = CliRunner().invoke(cli, ["compare", f"one={one}", f"apart={apart}", "--json"], catch_exceptions=False)
    assert done.exit_code in (0, 3), done.output
    found = msgspec.json.decode(done.stdout, type=Comparison)
    assert "pools" in found.differ
    (row,) = [row for row in found.fairness if row.name == "pools"]
    assert row.values == ["together", "1 prefill, 1 decode"]
    shutil.rmtree(tmp_path / "out")
