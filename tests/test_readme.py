"""The sentences of README and guide are short, and the commands that they show run as shown."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.sim.process import running
from harness.sim.profile import profile

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", "docs/guide.md"]
PORT_8000 = "http://127.0.0.1:8000"
MEASURED = ["live-h100-bf16", "live-h100-fp8"]  # committed results that the pages' commands read


def commands(page: str) -> list[str]:
    """The commands of a page's blocks of shell, in their order, without comments."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / page).read_text(), re.S)
    lines = [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_one_that_this_file_knows_how_to_run(page: str) -> None:
    assert commands(page)
    assert {command.split()[0] for command in commands(page)} <= {"knee", "scripts/demo", "scripts/test"}
    for command in commands(page):
        if command.startswith("scripts/"):
            assert os.access(ROOT / command, os.X_OK)


def test_the_readme_shows_what_it_is_on_one_screen() -> None:
    screen = (ROOT / "README.md").read_text().splitlines()[:40]
    assert sum(line.startswith("![") for line in screen) == 1
    first, *uses = [line for line in screen if line.startswith("knee ")]
    assert first.startswith("knee run http"), "it measures first"
    assert len(uses) == 4
    assert any("docs/guide.md" in line for line in screen)


def sentences(page: str) -> list[str]:
    """The sentences of a page's prose, without headings, tables, pictures and code; of a link its words."""
    page = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    lines = ["" if line.startswith(("#", "|", "    ", "![")) else line for line in page.splitlines()]
    items = re.split(r"\n\s*\n|\n(?=(?:\d+\.|-) )", "\n".join(lines))
    prose = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"^\s*(\d+\.|-) ", "", item)) for item in items]
    found = [each for item in prose for each in re.split(r"(?<=[.!?])\s+(?=[A-Z`*\d])", " ".join(item.split()))]
    return [each for each in found if each]


def test_a_page_s_sentences_are_its_prose_without_tables_and_code() -> None:
    page = (
        "# Head\n\nOne is short. Two has\na [link](x.md). 3 is `code`.\n\n    no prose\n\n| a |\n\n- Four.\n- Five.\n"
    )
    assert sentences(page) == ["One is short.", "Two has a link.", "3 is `code`.", "Four.", "Five."]


@pytest.mark.parametrize("page", PAGES)
def test_the_sentences_are_short(page: str) -> None:
    words = [len(each.split()) for each in sentences((ROOT / page).read_text())]
    assert len(words) > 50
    assert sum(words) / len(words) < 20
    assert max(words) <= 35


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_knee_command_runs_as_shown(page: str, tmp_path: Path) -> None:
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios")
    for name in MEASURED:
        shutil.copytree(ROOT / "results" / name, tmp_path / "results" / name)
    with running(profile(max_num_seqs=8, speed=4.0)) as url:
        for command in commands(page):
            if not command.startswith("knee"):
                continue
            words = shlex.split(command.replace(PORT_8000, url))[1:]
            done = subprocess.run(
                [sys.executable, "-m", "harness", *words],
                cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False,
                env=os.environ | {"XDG_STATE_HOME": str(tmp_path / "state")},
            )  # fmt: skip
            # 3: on a machine this busy a given level may be void for requests that the client sent late
            assert done.returncode in (0, 3), f"{command}\n{done.stderr}"
    made = {path.name: path for path in (tmp_path / "results").iterdir() if path.name not in MEASURED}
    assert len(made) == sum(command.startswith("knee run http") for command in commands(page))
    if page == "docs/guide.md":
        assert set(made) == {"first", "second", "third", "slo", "after", "canaries"}
        first = json.loads((made["first"] / "summary.json").read_text())
        assert first["curve"]["state"] in ("found", "provisional"), "the first measuring command ends in a knee"
        attached = json.loads((made["first"] / "manifest.json").read_text())["client"]["calibration"]
        assert attached["single"]["per_s"] > 0
