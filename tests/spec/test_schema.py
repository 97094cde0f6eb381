"""docs/scenario.schema.json takes every scenario that Knee reads, and finds what is misspelt in one."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from harness.base.errors import HarnessError
from harness.spec import reading, ready
from harness.spec.reading import schema

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs" / "scenario.schema.json"
VALIDATOR = Draft202012Validator(schema())


def test_the_file_is_up_to_date() -> None:
    assert json.loads(FILE.read_text()) == schema(), "run scripts/schema"


@pytest.mark.parametrize("path", sorted(ready.FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_a_ready_scenario_fits_and_names_the_schema(path: Path) -> None:
    text = path.read_text()
    assert (path.parent / text.partition("\n")[0].removeprefix("#:schema ")).resolve() == FILE
    VALIDATOR.validate(tomllib.loads(text))


@pytest.mark.parametrize(
    "text",
    [
        'workload.input_tokens = "512±64"\nramp.max_concurrency = "1k"',
        'slo.ttft_p99 = "2s"\nramp.level_seconds = "10s"\nramp.max_ttft = "3s"\nramp.max_disk = "10GB"',
        'workload.input_tokens = 64\nworkload.inputs = "1k"\ntarget.api = "embeddings"\nramp.repeat = "2"',
        'workload.prefix = {tokens = "2k", pool = 8}\n[[class]]\nname = "a"\ncancel = {share = 0.1, after_s = "2s"}',
        '[[class]]\nname = "a"\nmodel = "lora-a"\nslo = {ttft_p99 = "2s"}',
    ],
)
def test_what_knee_reads_fits(text: str) -> None:
    reading.read(tomllib.loads(text), place="test")
    VALIDATOR.validate(tomllib.loads(text))


@pytest.mark.parametrize("text", ["ramp.concurency = 4", "ramp.repeat = 0", 'sim.speed = "fast"', "class = 1"])
def test_what_knee_refuses_in_one_field_does_not(text: str) -> None:
    with pytest.raises(HarnessError):
        reading.read(tomllib.loads(text), place="test")
    assert not VALIDATOR.is_valid(tomllib.loads(text))
