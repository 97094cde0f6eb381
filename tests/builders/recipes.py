"""Recipes of servers that are none: the simulated endpoint, one that forks, one that ends at once."""

from __future__ import annotations

import sys
from pathlib import Path

from harness.spec.recipe import Recipe, Stack, StackSpec

SIM = [sys.executable, "-m", "harness", "sim", "--port", "{port}", "--speed", "20"]
ENDS = [sys.executable, "-c", "print('loading'); print('no \\x1b[31mmemory'); raise SystemExit(3)"]
# The server, a child in its group and one that left it; each writes its pid into the folder of its first argument.
FORKS = """
import os, pathlib, subprocess, sys, time
folder, words = pathlib.Path(sys.argv[1]), sys.argv[2:]
for name, own in (("child", False), ("away", True)):
    code = "import time; time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code], start_new_session=own)
    (folder / name).write_text(str(child.pid))
(folder / "server").write_text(str(os.getpid()))
os.execv(words[0], words)
"""


def recipe(command: list[str] = SIM, **more: object) -> Recipe:
    fields: dict[str, object] = {"title": "a test", "served": "", "health": "/v1/models", "ready_within": 30.0}
    return Recipe(command=command, **(fields | {"stop_within": 5.0} | more))  # type: ignore[arg-type]


def stack(name: str, command: list[str] = SIM, *, max_num_seqs: int | None = None, **more: object) -> Stack:
    flags = {"max_num_seqs": ["--max-num-seqs", "{value}"]}
    spec = StackSpec(recipe=name, name=name, max_num_seqs=max_num_seqs)
    return Stack(spec=spec, recipe=recipe(command, flags=flags, **more))


def forking(folder: Path) -> list[str]:
    """The simulated endpoint, with two children beside it."""
    return [sys.executable, "-c", FORKS, str(folder), *SIM]


def toml(command: list[str]) -> str:
    """A recipe file of such a server."""
    words = ", ".join(f"'''{word}'''" for word in command)
    return f'title = "a test"\ncommand = [{words}]\nserved = ""\nhealth = "/v1/models"\nready_within = "30s"\n'
