"""Known vulnerabilities of the pinned packages, by OSV (https://osv.dev), the database that pip-audit uses as well.

Prints what it found, or `not audited` where the database cannot be reached, which is neither failure nor success.
pip-audit itself is not used: where its database answers 404, it skips the package and reports no vulnerability.
"""

from __future__ import annotations

import sys
from pathlib import Path

import httpx
from packaging.requirements import Requirement

PINS = [Path(__file__).parent / f"constraints{name}.txt" for name in ("", "-dev", "-tools", "-docs")]
SERVICE = "https://api.osv.dev"


def pins(text: str) -> list[tuple[str, str]]:
    """(name, version) of each line NAME==VERSION; the digests below it are left out."""
    lines = [line.removesuffix("\\") for line in text.splitlines() if line[:1] not in ("", "#", " ")]
    return [(found.name, next(iter(found.specifier)).version) for found in map(Requirement, lines)]


def known(packages: list[tuple[str, str]], service: str) -> dict[str, list[str]]:
    """'name version' of the packages with known vulnerabilities, and their ids; HTTPError or ValueError if unknown."""
    queries = [{"package": {"name": name, "ecosystem": "PyPI"}, "version": version} for name, version in packages]
    answer = httpx.post(f"{service}/v1/querybatch", json={"queries": queries}, timeout=30.0).raise_for_status().json()
    results = answer.get("results") if isinstance(answer, dict) else None
    if not isinstance(results, list) or len(results) != len(packages):
        raise ValueError("its answer does not fit the question")
    found = {}
    for (name, version), result in zip(packages, results, strict=True):
        ids = [each["id"] for each in (result or {}).get("vulns", [])]
        if ids:
            found[f"{name} {version}"] = ids
    return found


def main(service: str = SERVICE) -> int:
    """0: none known, or not audited; 1: some are."""
    packages = sorted({pin for path in PINS for pin in pins(path.read_text())})
    try:
        found = known(packages, service)
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        print(f"not audited: {service} cannot be asked ({(str(error) or type(error).__name__).splitlines()[0]})")
        return 0
    for package, ids in found.items():
        print(f"{package}: {', '.join(ids)}")
    print(f"{len(packages)} pinned packages audited, {len(found)} of them vulnerable")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
