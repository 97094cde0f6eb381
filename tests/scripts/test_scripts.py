"""Every script says how it is used before it makes anything: without an environment, without a Python."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT / "scripts", ROOT / "bench")
FORWARDED = {"scripts/live-gpu": "scripts/live/gpu", "scripts/live-servers": "scripts/live/servers"}
FOUND = [
    str(path.relative_to(ROOT))
    for folder in (*FOLDERS, ROOT / "scripts/live", ROOT / "bench/research")
    for path in sorted(folder.iterdir())
    if path.is_file() and path.read_bytes().startswith(b"#!")
]
NAMES = [name for name in FOUND if name not in FORWARDED]
PYTHONS = ("python", "python3", "python3.11", "python3.12", "python3.13")


class Bare:
    """A copy of scripts/, bench/ and what an environment is made from; every Python leaves a trace and fails."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in FOLDERS:
            shutil.copytree(folder, root / folder.name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "hatch_build.py"):
            shutil.copy(ROOT / name, root)
        shutil.copytree(ROOT / "harness/load/compiled", root / "harness/load/compiled")
        (root / "bin").mkdir()
        for name in PYTHONS:
            fake = root / "bin" / name
            fake.write_text(f"#!/bin/sh\ntouch {root}/a-python-was-asked\nexit 1\n")
            fake.chmod(0o755)
        self.before = self.files()

    def files(self) -> set[Path]:
        return set(self.root.rglob("*"))

    def run(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        return self.bash("/", str(self.root / name), *words)

    def bash(self, folder: str, *words: str) -> subprocess.CompletedProcess[str]:
        """A script by the path that is typed in a folder, which may be relative to the copy."""
        env = {"PATH": f"{self.root}/bin:/usr/bin:/bin", "HOME": str(self.root), "TMPDIR": str(self.root)}
        return subprocess.run(["bash", *words], cwd=self.root / folder, env=env, capture_output=True, text=True)


@pytest.fixture
def bare(tmp_path: Path) -> Bare:
    return Bare(tmp_path)


def test_all_scripts_are_found() -> None:
    assert {"scripts/test", "scripts/demo", "scripts/live/gpu", "scripts/schema", "bench/engine"} <= set(NAMES)
    assert len(NAMES) >= 20
    assert set(FOUND) - set(NAMES) == FORWARDED.keys()


@pytest.mark.parametrize("name", FORWARDED)
def test_an_earlier_name_forwards_to_the_script(bare: Bare, name: str) -> None:
    forwarded, called = bare.run(name, "--help"), bare.run(FORWARDED[name], "--help")
    assert (forwarded.returncode, forwarded.stdout) == (0, called.stdout)
    assert bare.files() == bare.before


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("words", [["--help"], ["-h"], ["--only", "vllm", "--help"]], ids=" ".join)
def test_help_is_the_usage_and_makes_nothing(bare: Bare, name: str, words: list[str]) -> None:
    run = bare.run(name, *words)
    assert (run.returncode, run.stderr) == (0, "")
    assert re.match(rf"usage: {name}( |$)", run.stdout, re.MULTILINE)
    assert len(run.stdout.splitlines()) >= 2
    assert "_help" not in run.stdout  # the comment, and not the script below it
    assert bare.files() == bare.before


def test_help_is_found_by_a_relative_path_as_well(bare: Bare) -> None:
    for folder, name in ((".", "scripts/test"), ("scripts", "test"), ("bench", "../scripts/live/vllm")):
        run = bare.bash(folder, name, "--help")
        assert (run.returncode, run.stdout[:15], run.stderr) == (0, "usage: scripts/", "")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("scripts/install-size", ["--limit"]),
        ("scripts/lint", ["--fix"]),
        ("scripts/live/endpoints", ["--no-such"]),
        ("scripts/live/servers", ["--repeat", "2", "--no-such"]),
        ("scripts/live/vllm", ["--no-such"]),
        ("scripts/live/vllm", ["--short", "--size", "large"]),
        ("scripts/sbom", ["--no-such"]),
        ("scripts/sbom", ["one", "two", "three"]),
        ("scripts/docs", ["--no-such"]),
        ("scripts/schema", ["--no-such"]),
    ],
)
def test_what_a_script_does_not_know_is_status_2_and_its_usage(bare: Bare, name: str, words: list[str]) -> None:
    run = bare.run(name, *words)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr == bare.run(name, "--help").stdout
    assert bare.files() == bare.before


def test_without_help_an_environment_is_looked_for(bare: Bare) -> None:
    """What the tests above hold shut does open: a Python is asked, and there is none."""
    run = bare.run("scripts/test")
    assert run.returncode == 1
    assert bare.files() - bare.before == {bare.root / "a-python-was-asked"}


@pytest.mark.parametrize("name", NAMES)
def test_every_option_of_the_program_behind_a_script_stands_in_the_script(name: str) -> None:
    """Its usage is its own, so the program's --help is no longer seen there."""
    text = (ROOT / name).read_text()
    for program in re.findall(r'"\$PY" (\S+\.py) .*"\$@"', text):
        options = re.findall(r'add_argument\(\s*"(--[a-z-]+)"', (ROOT / program).read_text())
        assert options
        assert [option for option in options if not re.search(rf"{option}\b(?!-)", text)] == []
