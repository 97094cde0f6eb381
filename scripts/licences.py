"""The licences of a CycloneDX bill of materials against those that are allowed: permissive ones, and odd cases by name.

What the wheel ships of others (shipped.json, beside this file) is added to the bill first. A package whose licence is
unknown, or is neither, fails by its name.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

# By SPDX, and by the classifier where a package gives nothing better.
PERMISSIVE = {
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "CNRI-Python", "ISC", "MIT", "MIT-0", "MIT-CMU",
    "PSF-2.0", "Python-2.0", "Unlicense", "Zlib",
    "License :: OSI Approved :: Apache Software License",
    "License :: OSI Approved :: BSD License",
    "License :: OSI Approved :: MIT License",
}  # fmt: skip
MPL = "MPL-2.0 binds changes to its own files, which are installed unchanged"
ODD = {
    "certifi": ({"MPL-2.0"}, MPL),
    "hypothesis": ({"MPL-2.0"}, f"only for tests; {MPL}"),
    "pathspec": ({"License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)"}, f"only builds and checks; {MPL}"),
    "tqdm": ({"MPL-2.0"}, MPL),
    "transformers": ({""}, "its metadata says nothing; its LICENSE is Apache-2.0"),
}  # the licences that are allowed of this package beside, "" being none; and why


SHIPPED = Path(__file__).with_name("shipped.json")


def with_shipped(bill: dict[str, Any]) -> dict[str, Any]:
    """Return the bill with the scripts of others that the wheel contains, by package, version, licence and digest."""
    shipped = json.loads(SHIPPED.read_text(encoding="utf-8"))["components"]
    kept = [each for each in bill.get("components", []) if each.get("purl") not in {one["purl"] for one in shipped}]
    return bill | {"components": kept + shipped} if kept else bill


def declared(component: dict[str, Any]) -> list[str]:
    """Return a component's licence by its metadata: an expression, or names; [''] where there is none.

    A classifier next to an SPDX name repeats it, more vaguely.
    """
    found = []
    for each in component.get("licenses", []):
        licence = each.get("license", {})
        found.append(each.get("expression") or licence.get("id") or licence.get("name") or "")
    exact = [name for name in found if not name.startswith("License ::")]
    return exact or found or [""]


def allowed(expression: str, names: set[str]) -> bool:
    """Return whether an SPDX expression without parentheses is satisfied: all of AND, one of OR."""
    if expression in names:
        return True
    return any(
        all(part.strip() in names for part in either.split(" AND ")) for either in expression.split(" OR ") if either
    )


def refused(bill: dict[str, Any]) -> list[str]:
    """Return a line for every package whose licence is not allowed."""
    out = []
    for component in bill.get("components", []):
        name = component["name"]
        names = PERMISSIVE | ODD.get(name.lower().replace("_", "-"), (set(), ""))[0]
        wrong = [licence for licence in declared(component) if not allowed(licence, names)]
        if wrong:
            out.append(f"{name} {component.get('version', '?')}: {', '.join(x or 'licence unknown' for x in wrong)}")
    return out


def main(path: str) -> int:
    bill = json.loads(Path(path).read_text(encoding="utf-8"))
    count = len(bill.get("components", []))
    if bill.get("bomFormat") != "CycloneDX" or not count:
        print(f"{path}: no CycloneDX bill of materials with packages in it")
        return 1
    bill = with_shipped(bill)
    Path(path).write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")
    count, wrong = len(bill["components"]), refused(bill)
    print(*(f"not allowed: {line}" for line in wrong), f"{count} packages, {len(wrong)} licences not allowed", sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
