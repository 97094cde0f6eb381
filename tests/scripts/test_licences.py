"""Licences that are not permissive, or not known, fail by the package's name."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.test_packaging import ROOT, constraints, script

licences: Any = script("licences")


def bill(*licence: dict[str, Any], name: str = "thing") -> dict[str, Any]:
    return {"bomFormat": "CycloneDX", "components": [{"name": name, "version": "1", "licenses": list(licence)}]}


@pytest.mark.parametrize(
    "licence",
    [
        {"license": {"id": "MIT"}},
        {"expression": "BSD-3-Clause AND 0BSD AND MIT"},
        {"expression": "GPL-3.0-only OR Apache-2.0"},
        {"license": {"name": "License :: OSI Approved :: BSD License"}},
    ],
)
def test_permissive_licences_are_allowed(licence: dict[str, Any]) -> None:
    assert licences.refused(bill(licence)) == []


@pytest.mark.parametrize(
    ("licence", "line"),
    [
        ([{"license": {"id": "GPL-3.0-only"}}], "thing 1: GPL-3.0-only"),
        ([{"expression": "MIT AND AGPL-3.0-only"}], "thing 1: MIT AND AGPL-3.0-only"),
        ([{"expression": "(MIT)"}], "thing 1: (MIT)"),
        ([{"license": {"name": "License :: Other/Own"}}], "thing 1: License :: Other/Own"),
        ([{"license": {"id": "MIT"}}, {"license": {"id": "SSPL-1.0"}}], "thing 1: SSPL-1.0"),
        ([{"license": {"id": "MPL-2.0"}}], "thing 1: MPL-2.0"),
        ([{"license": {}}], "thing 1: licence unknown"),
        ([], "thing 1: licence unknown"),
    ],
)  # fmt: skip
def test_any_other_is_refused_by_name(licence: list[dict[str, Any]], line: str) -> None:
    assert licences.refused(bill(*licence)) == [line]


def test_an_odd_case_is_that_package_s_alone_and_has_its_reason() -> None:
    assert licences.refused(bill({"license": {"id": "MPL-2.0"}}, name="certifi")) == []
    assert licences.refused(bill({"license": {"id": "GPL-3.0-only"}}, name="certifi")) != []
    assert licences.ODD.keys() <= constraints().keys()
    assert all(reason for _, reason in licences.ODD.values())


def test_a_file_that_lists_nothing_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, text in enumerate(({}, {"bomFormat": "CycloneDX", "components": []})):
        (tmp_path / f"{number}").write_text(json.dumps(text))
        assert licences.main(str(tmp_path / f"{number}")) == 1


def test_the_build_checks_the_licences() -> None:
    assert "scripts/sbom" in (ROOT / ".ci/run").read_text()
    assert "scripts/licences.py" in (ROOT / "scripts/sbom").read_text()


def test_the_scripts_that_the_wheel_ships_are_in_the_bill_with_their_versions_digests_and_licences(
    tmp_path: Path,
) -> None:
    out = tmp_path / "sbom.json"
    out.write_text(json.dumps(bill({"license": {"id": "MIT"}})))
    assert licences.main(str(out)) == 0
    assert licences.main(str(out)) == 0  # again: they are not added twice
    shipped = json.loads(out.read_text())["components"][1:]
    assert [each["name"] for each in shipped] == ["d3", "@observablehq/plot"]
    for each in shipped:
        source = (ROOT / each["properties"][0]["value"]).read_bytes()
        assert hashlib.sha256(source).hexdigest() == each["hashes"][0]["content"]
        assert each["version"] in source[:80].decode()
    minified = {f"harness/report/assets/{path.name}" for path in (ROOT / "harness/report/assets").glob("*.min.js")}
    assert minified == {each["properties"][0]["value"] for each in shipped}
