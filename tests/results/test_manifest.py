"""A manifest: written and read by one set of types, whatever version wrote it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from harness.data import manifest
from harness.data.manifest import Manifest, MapManifest, Session
from tests.builders.schemas import unindented

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "manifest.schema.json").read_text())
FITS = Draft202012Validator(SCHEMA)
FOLDERS = sorted(ROOT.glob("results/**/manifest.json"))
CAMPAIGNS = [path for path in FOLDERS if path.with_name("map.json").exists()]
RUNS = [path for path in FOLDERS if path not in CAMPAIGNS]
COMMITTED = [*RUNS, ROOT / "tests" / "data" / "demo" / "manifest.json"]


def stored(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(path.read_text())
    return data


def lost(before: Any, after: Any, place: str = "$") -> list[str]:
    """Where the second lacks something of the first, or has another value."""
    if isinstance(before, dict) and isinstance(after, dict):
        gone = [f"{place}.{key} is gone" for key in before if key not in after]
        kept = [key for key in before if key in after]
        return gone + [each for key in kept for each in lost(before[key], after[key], f"{place}.{key}")]
    if isinstance(before, list) and isinstance(after, list | tuple) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [each for i, (one, other) in pairs for each in lost(one, other, f"{place}[{i}]")]
    return [] if before == after else [f"{place}: {before!r} became {after!r}"]


def test_the_committed_schema_is_the_shape_of_the_manifest() -> None:
    now = json.loads(json.dumps(msgspec.json.schema(Manifest)))
    Draft202012Validator.check_schema(SCHEMA)
    assert unindented(now) == unindented(SCHEMA), "run scripts/schema"


def whole(path: Path, kind: type) -> dict[str, Any]:
    """A stored manifest of that kind, of which reading loses nothing."""
    data = stored(path)
    found = manifest.read(data)
    assert isinstance(found, kind)
    assert lost(data, msgspec.to_builtins(found)) == []
    return data


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.parent.name)
def test_every_committed_manifest_is_read_whole_and_fits_the_schema(path: Path) -> None:
    FITS.validate(whole(path, Manifest))


@pytest.mark.parametrize("path", CAMPAIGNS, ids=lambda path: path.parent.name)
def test_every_committed_campaign_is_read_whole(path: Path) -> None:
    whole(path, MapManifest)


def test_what_a_later_version_adds_is_left_out() -> None:
    data = stored(COMMITTED[0])
    before = manifest.read(data)
    for struct in (data, data["scenario"], data["scenario"]["ramp"], data["client"], data["sittings"][0]):
        struct["of_a_later_version"] = {"a": [1]}
    assert manifest.read(data) == before


def test_a_later_format_and_what_is_no_manifest_are_refused() -> None:
    with pytest.raises(ValueError, match="it has format 9, this program reads 3"):
        manifest.read({"format": 9})
    with pytest.raises(ValueError, match="Expected `object`, got `list`"):
        manifest.read([])
    with pytest.raises(msgspec.ValidationError, match=r"\$\.scenario\.ramp\.rates\[0\]"):
        manifest.read({"scenario": {"ramp": {"rates": [-1]}}})


def test_what_a_folder_does_not_say_is_unset_and_not_written() -> None:
    found = manifest.read({"workload": {"prompt_tokens": None}, "sittings": [{"began_s": 1.5}]})
    assert isinstance(found, Manifest)
    assert msgspec.to_builtins(found.workload) == {"prompt_tokens": None}
    assert msgspec.to_builtins(found.sessions) == [{"began_s": 1.5}]
    assert "clock" not in msgspec.to_builtins(found)


@pytest.mark.parametrize("data", [{"simulated": False}, {"scenario": {"sweep": {"input_tokens": [1, 2]}}}])
def test_a_level_map_says_so_by_its_axes_or_by_its_truth_value(data: dict[str, Any]) -> None:
    assert isinstance(manifest.read(data), MapManifest)
    assert isinstance(manifest.read({"simulated": None}), Manifest)


WHOLE = Session(began_s=0.0, monotonic_ns_origin=1, unix_origin=1.0, ended_s=2.0)


@pytest.mark.parametrize(
    ("changes", "lacking"),
    [
        ({}, None),
        ({"scenario_digest": None}, "scenario_digest"),
        ({"model": None}, "model"),
        ({"workload": manifest.Workload()}, "workload.prompt_words"),
        ({"sessions": [Session(began_s=0.0, unix_origin=1.0)]}, "sittings.monotonic_ns_origin"),
        ({"sessions": [msgspec.structs.replace(WHOLE, ended_s=msgspec.UNSET), WHOLE]}, "sittings.ended_s"),
        ({"sessions": [WHOLE, msgspec.structs.replace(WHOLE, ended_s=msgspec.UNSET)]}, None),
        ({"sessions": [WHOLE, Session()]}, None),
    ],
)
def test_a_run_goes_on_only_where_its_manifest_says_from_where(changes: dict[str, Any], lacking: str | None) -> None:
    workload = manifest.Workload(prompt_words=9)
    whole = Manifest(scenario_digest="x", model="m", workload=workload, sessions=[WHOLE])
    assert manifest.missing(msgspec.structs.replace(whole, **changes)) == lacking
