"""The table [quality] of a scenario: what it may be, and beside what."""

from __future__ import annotations

from typing import Any

import pytest

from harness.base.errors import HarnessError
from harness.spec import reading, scenario


def built(quality: dict[str, Any], **sections: dict[str, Any]) -> scenario.Scenario:
    return reading.build({"quality": quality, **sections}, place="x.toml")


def test_an_empty_table_asks_for_the_prompts_that_come_with_knee() -> None:
    found = built({})
    assert found.quality
    assert (found.quality.file, found.quality.share, found.quality.repeats) == (None, 0.02, 3)
    assert reading.build({}, place="x.toml").quality is scenario.UNSET


def test_it_survives_being_printed() -> None:
    found = built({"file": "questions.jsonl", "share": 0.01})
    import tomllib

    assert reading.build(tomllib.loads(scenario.to_toml(found)), place="printed") == found


@pytest.mark.parametrize(
    ("quality", "sections", "message"),
    [
        ({"share": 0.03}, {}, "canaries are more than 0 and at most 2 % of the load at $.quality.share"),
        ({"share": 0}, {}, "canaries are more than 0 and at most 2 % of the load at $.quality.share"),
        ({"repeats": 1}, {}, "a first answer is compared with at least one more, at most 100 at $.quality.repeats"),
        ({"files": "x"}, {}, "unknown field 'files' at $.quality.files"),
        ({}, {"target": {"api": "embeddings"}}, "this API generates no answer at $.quality"),
        ({}, {"ramp": {"probe": "prefill"}}, "a probe has lengths of its own at $.quality"),
        (
            {},
            {"workload": {"session": {"turns": 2, "user_tokens": 9}}},
            "sessions and graphs have no place for canaries so far at $.quality",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(
    quality: dict[str, Any], sections: dict[str, dict[str, Any]], message: str
) -> None:
    with pytest.raises(HarnessError) as error:
        built(quality, **sections)
    assert error.value.fact == message


def test_the_work_is_the_same_with_and_without_canaries() -> None:
    """So that stacks can be compared with and without; the scenario is not the same."""
    plain, watched = scenario.Scenario(), built({})
    assert scenario.workload_digest(plain) == scenario.workload_digest(watched)
    assert scenario.digest(plain) != scenario.digest(watched)


def test_a_file_of_prompts_is_named_before_it_is_sent_to_somebody() -> None:
    assert scenario.carried(built({"file": "own.jsonl"})) == ["the prompts of own.jsonl"]
