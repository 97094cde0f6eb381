"""The frame around the program: pins, scripts that work from a bare clone, and the size of the install."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import harness
from harness.data.views import Value
from harness.spec import ready

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SHELL = [
    path
    for folder in (ROOT / "scripts", ROOT / "scripts/live", ROOT / "bench", ROOT / "bench/research")
    for path in sorted(folder.iterdir())
    if path.name in ("_env", "_help") or (path.is_file() and path.read_bytes().startswith(b"#!"))
]


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pins(requirements: list[str]) -> dict[str, str]:
    """Name → version of requirements that each say == exactly once; anything looser is an error."""
    found: dict[str, str] = {}
    for requirement in map(Requirement, requirements):
        (only,) = requirement.specifier
        assert only.operator == "==", requirement
        found[canonicalize_name(requirement.name)] = only.version
    return found


def pinned(*names: str) -> dict[str, list[str]]:
    """'name==version' → its digests, of scripts/constraints*.txt."""
    found: dict[str, list[str]] = {}
    pin = ""
    for line in "\n".join((ROOT / f"scripts/constraints{name}.txt").read_text() for name in names).splitlines():
        if line.startswith("    --hash="):
            found[pin].append(line.strip(" \\").removeprefix("--hash="))
        elif line and not line.startswith("#"):
            pin = line.removesuffix("\\").strip()
            found[pin] = []  # in another file it stands with its digests again
    return found


def constraints(*names: str) -> dict[str, str]:
    """What knee, and its dev extra, are installed with."""
    return pins(list(pinned(*(names or ("", "-dev")))))


def ranges(requirements: list[str]) -> dict[str, SpecifierSet]:
    """Name → range of requirements that each have a lowest version and one that is too new."""
    found: dict[str, SpecifierSet] = {}
    for requirement in map(Requirement, requirements):
        assert sorted(each.operator for each in requirement.specifier) == ["<", ">="], requirement
        found[canonicalize_name(requirement.name)] = requirement.specifier
    return found


def beyond(wanted: dict[str, SpecifierSet], installed: dict[str, str]) -> list[str]:
    """Packages that are installed in a version outside of their range."""
    shared = sorted(wanted.keys() & installed.keys())
    return [f"{name} {installed[name]}" for name in shared if not wanted[name].contains(installed[name])]


def beside_vllm() -> dict[str, str]:
    """Every package of the vLLM that scripts/live/vllm installs, exactly."""
    lines = (ROOT / "scripts/live/vllm.txt").read_text().splitlines()
    return pins([line.split()[0] for line in lines if re.match(r"[A-Za-z0-9._-]+==", line)])


def test_the_versions_that_are_tested_lie_in_the_ranges() -> None:
    declared, base = ranges(PYPROJECT["dependencies"]), constraints("")
    assert declared.keys() <= base.keys()
    assert beyond(declared, base) == []
    assert pins(PYPROJECT["optional-dependencies"]["dev"]).items() <= constraints().items()


def test_the_versions_that_vllm_needs_lie_in_the_ranges() -> None:
    declared, theirs = ranges(PYPROJECT["dependencies"]), beside_vllm()
    assert {"numpy", "transformers", "httpx", "click", "msgspec"} <= declared.keys() & theirs.keys()
    assert beyond(declared, theirs) == []
    assert beyond({"numpy": SpecifierSet(">=2.4")}, theirs) == [f"numpy {theirs['numpy']}"]


@pytest.mark.slow
def test_knee_and_vllm_resolve_into_one_environment(tmp_path: Path) -> None:
    """Of every package that vLLM has, its version; the rest is up to the resolver."""
    (tmp_path / "constraints").write_text("\n".join(f"{name}=={version}" for name, version in beside_vllm().items()))
    (tmp_path / "requirements").write_text("\n".join(PYPROJECT["dependencies"]))
    pip = [sys.executable, "-m", "pip"]
    if subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode:
        pytest.skip("no pip in this environment: not resolved together with vLLM")
    command = [*pip, "install", "--dry-run", "--ignore-installed", "--only-binary", ":all:", "--no-input", "--quiet"]
    command += ["-c", str(tmp_path / "constraints"), "-r", str(tmp_path / "requirements")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and "conflict" not in done.stderr:
        pytest.skip("the package index does not answer: not resolved together with vLLM")
    assert done.returncode == 0, done.stderr


def test_the_base_pins_stand_alone() -> None:
    assert not constraints("").keys() & constraints("-dev").keys()
    assert not constraints("").keys() & {"pytest", "mypy", "ruff"}


def test_the_tools_are_those_that_scripts_pin_names() -> None:
    assert pins(list(script("pin").WANTED)).items() <= constraints("-tools").items()
    assert pins(list(script("pin").SITE)).items() <= constraints("-docs").items()


def test_every_pin_has_the_digests_of_its_files_and_no_other_source() -> None:
    digests = pinned("", "-dev", "-tools", "-docs")
    assert len(digests) >= 100
    assert [pin for pin, found in digests.items() if not found] == []
    assert all(re.fullmatch("sha256:[0-9a-f]{64}", digest) for found in digests.values() for digest in found)
    assert not any("@" in pin or "://" in pin for pin in digests)


def test_nothing_is_installed_that_has_no_digest() -> None:
    """Every pip of the scripts asks for digests, or installs what was just built, without anything below it."""
    files = [
        "scripts/_env",
        "scripts/trust",
        "scripts/pin",
        "scripts/sbom",
        "scripts/docs",
        ".ci/run",
        "docker/Dockerfile",
    ]
    commands = [
        line
        for name in files
        for line in (ROOT / name).read_text().replace("\\\n", " ").splitlines()
        if re.search(r"pip (install|wheel)", line) and not line.startswith("#")
    ]
    assert len(commands) >= 10
    loose = [line for line in commands if "--require-hashes" not in line and "--no-deps" not in line]
    assert loose == []
    assert [line for line in commands if "pip wheel" in line and "--no-build-isolation" not in line] == []


def test_the_container_s_base_image_is_one_image() -> None:
    images = re.findall(r"^FROM (\S+)", (ROOT / "docker/Dockerfile").read_text(), re.MULTILINE)
    assert images
    assert all(re.fullmatch(r"\S+@sha256:[0-9a-f]{64}", image) for image in images)


def test_the_wheel_has_everything_that_a_page_is_made_of() -> None:
    packed = {Path(file.distribution_path) for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    assets = {path.relative_to(ROOT) for path in (ROOT / "harness/report/assets").iterdir()}
    assert {path.suffix for path in assets} == {".css", ".js", ".j2"}
    assert assets <= packed


def test_the_wheel_says_that_it_is_typed() -> None:
    packed = {file.distribution_path for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    assert "harness/py.typed" in packed


def test_the_wheel_has_the_ready_scenarios() -> None:
    packed = {Path(file.distribution_path) for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    files = {Path("harness/scenarios", path.name) for path in (ROOT / "scenarios").glob("*.toml")}
    files |= {Path("harness/scenarios/campaigns", path.name) for path in (ROOT / "scenarios/campaigns").glob("*.toml")}
    files |= {
        Path("harness/run/stacks/recipes", path.name) for path in (ROOT / "harness/run/stacks/recipes").glob("*.toml")
    }
    assert len(files) >= 25
    assert files <= packed


@pytest.mark.slow
def test_what_the_wheel_holds_takes_a_ready_scenario_by_its_name(tmp_path: Path) -> None:
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    printed = [
        subprocess.run(
            [sys.executable, "-m", "harness", "run", *arguments],
            cwd=tmp_path / "installed", capture_output=True, text=True, check=True,
        ).stdout
        for arguments in (["--list"], ["chat", "--print-scenario"])
    ]  # fmt: skip
    assert [line.split()[0] for line in printed[0].splitlines()] == [each.name for each in ready.scenarios()]
    assert 'name = "chat"' in printed[1]


@pytest.mark.slow
@pytest.mark.parametrize("compiler", [True, False])
def test_the_wheel_is_made_with_a_compiler_and_without_one(
    compiler: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiler:
        monkeypatch.setenv("CC", "no-such-compiler")
    (made,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    names = zipfile.ZipFile(made).namelist()
    has = {name for name in names if name.endswith((".so", ".c"))}
    assert has == ({"harness/load/_receive.abi3.so"} if compiler else set())
    assert ("-cp311-abi3-linux_" in made) is compiler
    assert made.endswith("-py3-none-any.whl") is not compiler


def test_a_wheel_that_must_be_compiled_and_cannot_be_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setenv("KNEE_RECEIVE", "compiled")
    with pytest.raises(RuntimeError, match="no-such-compiler: No such file or directory"):
        next(WheelBuilder(str(ROOT)).build(directory="/nowhere", versions=["standard"]))


def test_a_loose_requirement_is_no_pin() -> None:
    with pytest.raises(AssertionError):
        pins(["numpy>=2"])


def test_every_base_dependency_gives_its_reason() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    block = re.search(r"^dependencies = \[\n(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    assert block is not None
    assert [line for line in block[1].splitlines() if not re.search(r'",\s+# \w+', line)] == []


def test_the_base_install_brings_no_torch_and_nothing_unpinned() -> None:
    size = script("install_size")
    needed = {name for line in PYPROJECT["dependencies"] for name in size.closure(Requirement(line).name)}
    assert {"numpy", "tokenizers", "h11"} <= needed  # direct, and needed by what is direct
    assert needed <= constraints().keys()
    assert needed & {"torch", "vllm", "ray", "scipy"} == set()


def test_the_size_counts_what_the_wheel_brought_and_not_its_bytecode(tmp_path: Path) -> None:
    for name, length in {"thing/__init__.py": 700, "thing/data.bin": 300, "thing/__init__.pyc": 5000}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * length)
    info = tmp_path / "thing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
    (info / "RECORD").write_text("thing/__init__.py,,700\nthing/data.bin,,300\nthing/__init__.pyc,,\ngone.py,,9\n")
    size = script("install_size")
    (thing,) = size.Distribution.discover(name="thing", path=[str(tmp_path)])
    assert size.wheel_bytes(thing) == 1000
    assert size.disk_bytes(tmp_path / "thing") == 6000


def test_the_version_is_the_same_everywhere() -> None:
    assert harness.__version__ == PYPROJECT["version"]


def test_the_license_is_the_whole_apache_text() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


@pytest.mark.parametrize("path", [*SHELL, ROOT / ".ci/run"], ids=lambda path: path.name)
def test_a_shell_script_parses_and_stops_at_the_first_failure(path: Path) -> None:
    subprocess.run(["bash", "-n", path], check=True)
    if path.name != "_help":
        text = path.read_text()
        forwards = text.splitlines()[1:] == [text.splitlines()[-1]] and "\nexec " in text
        assert "set -euo pipefail" in text or "/_env" in text or forwards
    assert path.name in ("_env", "_help", "run") or os.access(path, os.X_OK)


class Clone:
    """A bare clone with an interpreter that writes down what it is asked instead of installing it."""

    def __init__(self, root: Path, version: str) -> None:
        self.root, self.log = root, root / "log"
        (root / "scripts").mkdir()
        (root / "bin").mkdir()
        compiled = [str(path.relative_to(ROOT)) for path in (ROOT / "harness/load/compiled").iterdir()]
        pinned = ["scripts/constraints.txt", "scripts/constraints-dev.txt", "pyproject.toml", "hatch_build.py"]
        (root / "harness/load/compiled").mkdir(parents=True)
        for name in ("scripts/_env", *pinned, *compiled):
            (root / name).write_bytes((ROOT / name).read_bytes())
        (root / "scripts/where").write_text('source "$(dirname "$0")/_env"\necho "$PY"\npwd\n')
        for name in ("python3.13", "python3.12", "python3.11", "python3"):
            self.interpreter(root / "bin" / name, version if name == "python3" else "")

    def interpreter(self, path: Path, version: str) -> None:
        """A fake `python`: of some version ('' is a shim with nothing behind it), able to 'make' environments."""
        path.write_text(
            f"""#!/bin/bash
            case "$1 $2" in
              "-c "*) [[ -n "{version}" ]] && exec {sys.executable} -c "import sys
sys.version_info = tuple(map(int, '{version}'.split('.')))
$2" ;;
              "-m venv") echo venv >>{self.log}; mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
              "-m pip") [[ $3 == --version ]] || echo "${{@:3}}" >>{self.log} ;;
            esac"""
        )
        path.chmod(0o755)

    def run(self, cwd: Path) -> subprocess.CompletedProcess[str]:
        path = f"{self.root / 'bin'}:/usr/bin:/bin"
        return subprocess.run(
            ["bash", self.root / "scripts/where"], cwd=cwd, env={"PATH": path}, capture_output=True, text=True
        )

    def installs(self) -> list[str]:
        """What was installed of the package index; knee itself is apart."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        assert sum("--no-deps" in line for line in lines) == sum("--require-hashes" in line for line in lines)
        return [line for line in lines if line.startswith("install") and "--require-hashes" in line]


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path, "3.12.1")


def test_the_environment_is_made_once_from_any_directory(clone: Clone, tmp_path: Path) -> None:
    first, second = clone.run(Path("/")), clone.run(tmp_path / "bin")
    assert first.stdout.splitlines() == [f"{tmp_path}/.venv/bin/python", str(tmp_path)] == second.stdout.splitlines()
    assert len(clone.installs()) == 1
    assert "installed in" in first.stderr
    assert second.stderr == ""


@pytest.mark.parametrize(
    "name",
    ["pyproject.toml", "scripts/constraints.txt", "scripts/constraints-dev.txt", "harness/load/compiled/stream.c"],
)
def test_a_changed_pin_installs_again_without_a_new_environment(clone: Clone, tmp_path: Path, name: str) -> None:
    clone.run(tmp_path)
    with (tmp_path / name).open("a") as file:
        file.write("# changed\n")
    clone.run(tmp_path)
    assert len(clone.installs()) == 2
    assert clone.log.read_text().count("venv\n") == 1


def test_an_old_python_is_one_clear_line(tmp_path: Path) -> None:
    run = Clone(tmp_path, "3.10.9").run(tmp_path)
    assert run.returncode == 1
    assert run.stderr.splitlines() == [
        "error: no Python ≥ 3.11 among: python3.13 python3.12 python3.11 python3; install one, "
        f"or name it: PYTHON=/path/to/python3 {tmp_path}/scripts/where"
    ]
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize(
    ("hinge", "found"),
    [
        (Value(16.5, (15.0, 19.0)), ("16.5 [15.0, 19.0]", True, True)),
        (Value(16.0, (12.0, 20.0)), ("16.0 [12.0, 20.0]", True, True)),
        (Value(16.0, (11.9, 20.0)), ("16.0 [11.9, 20.0]", True, False)),
        (Value(19.0, (17.0, 21.0)), ("19.0 [17.0, 21.0]", False, True)),
        (Value(12.0, (11.0, None)), ("12.0 [11.0, ∞]", True, False)),
        (Value(None), ("–", False, False)),
    ],
)
def test_a_live_run_is_judged_by_its_interval(hinge: Value, found: tuple[str, bool, bool]) -> None:
    assert script("live/table").judge(hinge, 16.0) == found
