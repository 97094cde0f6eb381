"""Compile the receive path when Knee is built or installed; without a C compiler Knee has the pure one alone.

`pip install .`, `pip install -e .` and `pip wheel .` call this. It uses the compiler and the headers that Python was
built with and nothing else. One file serves CPython 3.11 and later, by the limited API. KNEE_RECEIVE=pure builds
without it, KNEE_RECEIVE=compiled fails where it cannot be compiled; CFLAGS are added.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path(__file__).parent / "harness" / "load"
MODULE = "harness/load/_receive.abi3.so"
FLAGS = ("-O3", "-g0", "-std=c11", "-D_GNU_SOURCE", "-fPIC", "-shared", "-fvisibility=hidden")


class ReceivePath(BuildHookInterface):  # type: ignore[type-arg]
    """The build hook of pyproject.toml."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and have the wheel hold what was compiled and say for which Python and machine it is."""
        made, wanted = Path(self.root, MODULE), os.environ.get("KNEE_RECEIVE", "")
        failure = "KNEE_RECEIVE=pure" if wanted == "pure" else compiled(made)
        if not failure:
            build_data["pure_python"] = False
            build_data["artifacts"].append(MODULE)
            build_data["tag"] = f"cp311-abi3-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        elif wanted == "compiled":
            raise RuntimeError(f"the receive path was not compiled: {failure}")
        else:
            self.app.display_warning(f"the pure receive path alone, no compiled one: {failure}")
            if version == "editable":
                made.unlink(missing_ok=True)


def compiled(made: Path) -> str:
    """Compile the extension; return why it failed, empty if it did not."""
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "only CPython with its global lock is served"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    sources = sorted(map(str, (FOLDER / "compiled").glob("*.c")))
    with tempfile.TemporaryDirectory(dir=FOLDER, prefix=".build-") as folder:  # renamed: others may import it meanwhile
        command = [*compiler, *FLAGS, *shlex.split(os.environ.get("CFLAGS", ""))]
        command += [f"-I{sysconfig.get_paths()['include']}", "-o", f"{folder}/made", *sources]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            return f"{compiler[0]}: {error.strerror}"
        if done.returncode:
            return (done.stderr.strip().splitlines() or ["no reason given"])[0]
        os.replace(f"{folder}/made", made)
    return ""
