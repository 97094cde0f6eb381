"""What answers were read in spite of is a note, once a kind."""

from __future__ import annotations

import msgspec

from harness.analysis.rules.observed import Answered, read
from harness.data.record import Level
from tests.builders.records import request

LEVEL = Level(0, 4, 0, 0.0, 1.0, 2.0, 3.0)


def test_each_kind_has_one_note_with_its_details_and_how_many_answers_had_it() -> None:
    noted = ["unlisted:thinking", "", "unlisted:thinking,left_out:usage.prompt_tokens", "left_out:usage.total_tokens"]
    rows = [msgspec.structs.replace(request(0.1 * i, [0.5]), noted=codes) for i, codes in enumerate(noted)]
    other = msgspec.structs.replace(request(0.0, [0.5]), level=1, noted="data_twice")
    found = {verdict.code: verdict for verdict in read.findings(Answered(LEVEL, [*rows, other]))}
    assert list(found) == ["read_left_out", "read_unlisted"]
    assert "the field thinking" in found["read_unlisted"].message
    assert found["read_unlisted"].message.endswith("(2 of 4 answers)")
    assert "usage.prompt_tokens, usage.total_tokens" in found["read_left_out"].message
    assert {verdict.level for verdict in found.values()} == {"note"}


def test_a_code_of_a_later_version_is_shown_as_it_is() -> None:
    row = msgspec.structs.replace(request(0.0, [0.5]), noted="new:thing")
    assert read.findings(Answered(LEVEL, [row]))[0].message == "new thing (1 of 1 answers)"


def test_an_answer_that_was_read_in_spite_of_two_things_of_a_kind_is_one_answer() -> None:
    row = msgspec.structs.replace(request(0.1, [0.5]), noted="left_out:usage.prompt_tokens,left_out:usage.total_tokens")
    (found,) = read.findings(Answered(LEVEL, [row]))
    assert found.message.endswith("usage.prompt_tokens, usage.total_tokens (1 of 1 answers)")
