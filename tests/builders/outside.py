"""A package of somebody else's that is installed: its modules, and a dist-info that names its entry points."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def install(folder: Path, name: str, modules: Mapping[str, str], entry_points: Mapping[str, Mapping[str, str]]) -> Path:
    """Write the package where pip would, into a folder that is then to stand on sys.path; returns the folder."""
    for path, source in modules.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    about = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    groups = [
        "\n".join([f"[{group}]", *(f"{each} = {target}" for each, target in points.items())])
        for group, points in entry_points.items()
    ]
    (about / "entry_points.txt").write_text("\n\n".join(groups) + "\n")
    return folder
