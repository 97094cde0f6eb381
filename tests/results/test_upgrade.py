"""Folders of earlier formats have today's fields: roles of levels, and whether a ramp was stopped."""

from __future__ import annotations

from string import Formatter

import msgspec
import pytest

from harness.data.manifest import Manifest
from harness.data.record import FORMAT, Level
from harness.data.roles import Role
from harness.data.summary import RampStep
from harness.results.upgrade import of_manifest, of_summary, role_of, upgraded
from harness.search.decision import Part, Reason, measure
from tests.builders import summaries


def test_a_role_is_read_from_its_sentence_only_where_the_folder_is_of_an_earlier_format() -> None:
    doubling = Level(0, 2, 0, 0.0, reason="doubling")
    assert upgraded(doubling, FORMAT - 1).role is Role.FIRST_PASS
    assert upgraded(doubling, FORMAT).role is None
    resumed = msgspec.structs.replace(doubling, role=Role.REPEAT)
    assert upgraded(resumed, 1).role is Role.REPEAT, "a later session wrote it"


def test_a_manifest_and_a_summary_of_an_earlier_format_have_todays_fields() -> None:
    steps = [RampStep(1, "given"), RampStep(None, "stopped: known"), RampStep(None, "all given levels are held")]
    now = [RampStep(1, "given", role=Role.FIXED), RampStep(None, "stopped: known", stopped=True), steps[2]]
    made = of_manifest(Manifest(format=1, ramp=steps))
    assert isinstance(made, Manifest)
    assert (made.format, made.ramp) == (FORMAT, now)
    old = msgspec.structs.replace(summaries.full(), format=2, ramp=steps, levels=[summaries.level(8, reason="given")])
    found = of_summary(old)
    assert (found.format, found.ramp, found.levels[0].role) == (FORMAT, now, Role.FIXED)


@pytest.mark.parametrize(
    ("sentence", "role"),
    [
        ("", None),
        ("given", Role.FIXED),
        ("soak at 80% of the SLO knee", Role.SOAK),
        ("the ramp begins with a single stream", Role.FIRST_PASS),
        ("half a doubling: 16 gained nothing", Role.FIRST_PASS),
        ("twice a doubling: the time allows for few levels", Role.FIRST_PASS),
        ("31 again: throughput seems to fall past the hinge", Role.REPEAT),
        ("31 again: throughput seems to fall past the knee", Role.REPEAT),
        ("repeat of 16 against drift", Role.REPEAT),
        ("back to 11 from above", Role.REPEAT),
        ("the hinge lies between 5.63 and 7.54 (95 %): 9 tells most per second", Role.REFINEMENT),
        ("9.7 s are left: 192 tells whether there is a plateau", Role.REFINEMENT),
        ("the SLO is met at 16 and not at 32: 22.6 lies between", Role.SLO),
        ("begin", Role.SLO),
        ("prefill probe: prompts of 116 tokens, one request in flight", Role.PROBE),
        ("as a later version words it", Role.REFINEMENT),
    ],
)
def test_the_role_of_a_level_is_read_from_the_sentence_of_any_version(sentence: str, role: Role | None) -> None:
    assert role_of(sentence) is role


@pytest.mark.parametrize("why", Reason)
def test_every_sentence_reads_back_as_the_role_that_it_is_made_for(why: Reason) -> None:
    first = {Reason.SINGLE_STREAM, Reason.DOUBLING, Reason.FOURFOLD, Reason.HALF_A_DOUBLING}
    again = {Reason.INVALID, Reason.FALLS_AGAIN, Reason.CONTROL}
    rates = {Reason.ONE_IN_FLIGHT, Reason.FIRST_RATE, Reason.RATE_MET, Reason.RATE_MISSED}
    limits = {Reason.SLO_UNRESOLVED, Reason.SLO_MET, Reason.SLO_BETWEEN} | rates
    roles = {
        Reason.SLO_UNDECIDED: Role.SLO_DECISION,
        Reason.FIXED: Role.FIXED,
        Reason.PROMPT_LENGTH: Role.PROBE,
        Reason.SOAK: Role.SOAK,
    }
    roles |= dict.fromkeys(first, Role.FIRST_PASS) | dict.fromkeys(again, Role.REPEAT) | dict.fromkeys(limits, Role.SLO)
    texts = {"known": Part.BETWEEN.words(low=5.0, high=7.0), "what": "the SLO knee"}
    figures = {name: texts.get(name, 1) for _, name, _, _ in Formatter().parse(why.value) if name and name != "level"}
    assert role_of(measure(7, why, **figures).reason) is roles.get(why, Role.REFINEMENT)
