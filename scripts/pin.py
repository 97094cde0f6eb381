"""Writes the pins: what is installed of a package, exactly, with the digest of every file that its release has.

    scripts/constraints.txt        knee: what a user needs
    scripts/constraints-dev.txt    what tests, checks and building the wheel need above that
    scripts/constraints-tools.txt  what the scripts that keep the pins and the bill of materials need, apart from knee
    scripts/constraints-docs.txt   what builds the documentation site, apart from knee too

pip takes nothing else: `pip install --require-hashes -r FILE…`, then knee itself with `--no-deps`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "scripts"
BASE, DEV, TOOLS, DOCS = (SCRIPTS / f"constraints{name}.txt" for name in ("", "-dev", "-tools", "-docs"))
WANTED = ("uv==0.13.9", "cyclonedx-bom==7.5.0")  # the tools
SITE = ("mkdocs-material==9.8.2", "mkdocs==1.6.1", "pymdown-extensions==12.3")  # of newer ones some Pythons take none
HEAD = "# Made by scripts/pin: {what}. Do not edit.\n"
_ALWAYS = " ; platform_python_implementation == 'CPython' and sys_platform == 'linux'"  # by [tool.uv] in pyproject.toml
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^ \\;]+)", re.MULTILINE)


def blocks(text: str) -> dict[str, str]:
    """'name==version' → its lines, hashes and all, in the file's order."""
    starts = list(_PIN.finditer(text))
    ends = [start.start() for start in starts[1:]] + [len(text)]
    return {start[0]: text[start.start() : end] for start, end in zip(starts, ends, strict=True)}


def compiled(uv: str, source: str, *arguments: str, known: str) -> str:
    """Return what `source` needs on Linux with CPython 3.11 or newer, of the versions `known` where they still fit."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.txt"
        out.write_text(known)  # uv keeps what stands there
        command = [uv, "pip", "compile", source, *arguments, "--universal", "--python-version", "3.11", "--no-header"]
        command += ["--generate-hashes", "--no-annotate", "--output-file", str(out), "--quiet"]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
        subprocess.run(command, check=True, cwd=ROOT, env=environ, stdout=subprocess.DEVNULL)
        return out.read_text().replace(_ALWAYS, "")


def apart(uv: str, wanted: tuple[str, ...], path: Path, *, upgrade: bool) -> dict[str, str]:
    """Return the blocks of an environment without knee, whose versions so far are those of `path`."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "wanted.in"
        source.write_text("\n".join(wanted) + "\n")
        return blocks(compiled(uv, str(source), known=path.read_text() if path.exists() and not upgrade else ""))


def write(uv: str, *, upgrade: bool) -> None:
    """Write all four files."""
    known = "" if upgrade else "".join(path.read_text() for path in (BASE, DEV) if path.exists())
    everything = blocks(compiled(uv, "pyproject.toml", "--extra", "dev", known=known))
    needed = blocks(compiled(uv, "pyproject.toml", known="".join(everything.values())))
    assert needed.keys() <= everything.keys(), "base and dev differ in a version"
    tools, site = (apart(uv, wanted, path, upgrade=upgrade) for wanted, path in ((WANTED, TOOLS), (SITE, DOCS)))
    more = {name: block for name, block in everything.items() if name not in needed}
    for path, what, found in (
        (BASE, "what knee needs", needed),
        (DEV, "what tests, checks and the wheel need above constraints.txt", more),
        (TOOLS, "what scripts/pin and scripts/sbom need", tools),
        (DOCS, "what scripts/docs needs", site),
    ):
        path.write_text(HEAD.format(what=what) + "".join(found.values()))
        print(f"{len(found):4} packages in {path.relative_to(ROOT)}")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Write the pins anew.")
    parser.add_argument("--uv", required=True, help="the command of uv")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that fit")
    options = parser.parse_args(arguments)
    write(options.uv, upgrade=options.upgrade)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
