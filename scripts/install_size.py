"""How large the base install is: what `pip install knee-harness` brings, summed over its wheels' files.

Counted from the RECORDs of knee's base dependencies and theirs, without the extras, bytecode, or pip. What
lies on the disk in the end (bytecode, pip and the development tools too) is printed too.
"""

from __future__ import annotations

import sys
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LIMIT = 480e6  # bytes; torch alone would be more
BASE = "knee-harness"


def closure(root: str) -> dict[str, Distribution]:
    """Return the installed distributions that `root` needs, by name, with the extras that it requires."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    todo = [(root, "")]
    while todo:
        name, extra = key = todo.pop()
        if key in seen:
            continue
        seen.add(key)
        found[name] = distribution(name)
        for line in found[name].requires or []:
            need = Requirement(line)
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                wanted = canonicalize_name(need.name)
                todo += [(wanted, ""), *((wanted, e) for e in need.extras)]
    return found


def wheel_bytes(package: Distribution) -> int:
    """Size of the files that the distribution's RECORD names, bytecode apart; bytes."""
    return sum(
        Path(str(file.locate())).stat().st_size
        for file in package.files or []
        if file.suffix != ".pyc" and Path(str(file.locate())).exists()
    )


def disk_bytes(folder: Path) -> int:
    """Size of every file under the folder, links apart; bytes."""
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file() and not f.is_symlink())


def main() -> int:
    sizes = {name: wheel_bytes(package) for name, package in closure(BASE).items()}
    total = sum(sizes.values())
    print(f"base install {total / 1e6:.1f} MB of at most {LIMIT / 1e6:.0f} MB; the largest of {len(sizes)}:")
    for name, size in sorted(sizes.items(), key=lambda item: -item[1])[:10]:
        print(f"  {size / 1e6:7.1f} MB  {name}")
    disk = disk_bytes(Path(sys.prefix))
    print(f"on the disk {disk / 1e6:.1f} MB, with bytecode, pip and the development tools")
    return int(total > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
