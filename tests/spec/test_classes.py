"""How lengths that vary and classes stand in a scenario: read, printed, stored, and refused in one line."""

from __future__ import annotations

import json
import tomllib

import msgspec
import pytest

from harness.base.errors import HarnessError
from harness.spec import classes, reading, scenario

CLASSES = """
[[class]]
name = "chat"
share = 500
input = "512±64"
output = "lognormal(128,80) in 1..1k"

[[class]]
name = "long"
input = "32k"
output = 64
model = "lora-1"
priority = 2
structured = true
slo = { ttft_p99 = "5s", e2e = 60 }
cancel = { share = 0.05, after_tokens = 10 }
"""


def build(text: str) -> scenario.Scenario:
    return reading.build(tomllib.loads(text), place="x.toml")


def test_lengths_that_do_not_vary_are_numbers_and_others_stay_as_written() -> None:
    got = build('[workload]\ninput_tokens = "2k"\noutput_tokens = "100..900"')
    assert (got.workload.input_tokens, got.workload.output_tokens) == (2000, "100..900")
    assert not got.one_length
    assert build("[workload]\ninput_tokens = 2000").one_length


def test_classes_are_read_and_keep_what_they_do_not_say_at_its_default() -> None:
    chat, long = build(CLASSES).class_ or ()
    assert chat == classes.ClassSpec(name="chat", share=500, input="512±64", output="lognormal(128,80) in 1..1k")
    assert (long.share, long.input, long.slo) == (1.0, 32_000, {"ttft_p99": 5.0, "e2e": 60.0})
    assert long.cancel == classes.Cancel(share=0.05, after_tokens=10)
    assert not build(CLASSES).one_length


@pytest.mark.parametrize("text", [CLASSES, '[workload]\ninput_tokens = "512±64"\noutput_tokens = "1k:1,8k:2"'])
def test_what_is_printed_and_what_is_stored_read_back_to_the_same_scenario(text: str) -> None:
    first = build(text)
    again = build(scenario.to_toml(first))
    assert again == first
    assert scenario.digest(again) == scenario.digest(first)
    stored = msgspec.json.encode(first)
    assert reading.build(msgspec.json.decode(stored), place="manifest.json") == first
    assert msgspec.json.decode(stored, type=scenario.Scenario) == first


def test_a_scenario_without_either_is_printed_and_stored_as_before() -> None:
    plain = build("[workload]\ninput_tokens = 100")
    assert scenario.to_toml(plain).partition("[ramp]")[0] == (
        'name = "run"\n\n[target]\napi = "chat"\nrequest_timeout = 600.0\ninsecure = false\ntransport = "socket"\n\n'
        "[workload]\ninput_tokens = 100\noutput_tokens = 128\n\n"
    )
    stored = json.loads(msgspec.json.encode(plain))
    assert stored["workload"] == {"input_tokens": 100, "output_tokens": 128, "tokenizer": None, "seed": None}
    assert "class" not in stored
    assert scenario.digest(plain) == "4932d96d436eb032"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            '[workload]\ninput_tokens = "lognorml(5,2)"',
            "x.toml: $.workload.input_tokens: 'lognorml(5,2)' is not a length: 'lognorml(5,2)' is not a number; "
            "write it like 512, '512±64', '100..900', 'lognormal(512,300)' or '512:9,32k:1'",
        ),
        (
            '[[class]]\nname = "a"\n[[class]]\nname = "b"\noutput = "900..100"',
            "x.toml: $.class[1].output: '900..100' is not a length: its range is reversed; "
            "write it like 512, '512±64', '100..900', 'lognormal(512,300)' or '512:9,32k:1'",
        ),
        (
            '[[class]]\nname = "a"\nshre = 2',
            "x.toml: unknown field 'shre' at $.class[0].shre; did you mean 'share'?",
        ),
        (
            '[[class]]\nname = "a"\n[[class]]\nname = "b"\ncancel = { share = 0.1, after = 2 }',
            "x.toml: unknown field 'after' at $.class[1].cancel.after; did you mean 'after_s'?",
        ),
        (
            '[[clas]]\nname = "a"',
            "x.toml: unknown field 'clas' at $.clas; did you mean 'class'?",
        ),
        ("[[class]]\nshare = 2", "x.toml: no 'name' at $.class[0]; write name = …"),
        ('[class]\nname = "a"', "x.toml: one table is no list at $.class; write it [[class]]"),
        ('[[class]]\nname = ""', "x.toml: it is no name at $.class[0].name; one line of at most 100 characters"),
        (
            '[[class]]\nname = "a"\n[[class]]\nname = "a"',
            "x.toml: 'a' is the name of class[0] already at $.class[1].name; give each its own name",
        ),
        (
            '[[class]]\nname = "a"\nshare = 0\n[[class]]\nname = "b"\nshare = 0',
            "x.toml: the shares sum to nothing at $.class; give one class a share above 0",
        ),
        (
            '[[class]]\nname = "a"\nshare = -1',
            "x.toml: a share is not negative at $.class[0].share; give 0 or more",
        ),
        (
            '[[class]]\nname = "a"\ninput = 0',
            "x.toml: a prompt has 1 to 10,000,000 tokens at $.class[0].input; give a number in that range",
        ),
        (
            '[[class]]\nname = "a"\noutput = 20_000_000',
            "x.toml: an answer has 1 to 10,000,000 tokens at $.class[0].output; give a number in that range",
        ),
        (
            '[[class]]\nname = "a"\nslo = { tfft = "2s" }',
            "x.toml: $.class[0].slo: unknown limit 'tfft'; did you mean 'ttft'?",
        ),
        (
            '[[class]]\nname = "a"\nslo = { ttft = 0 }',
            "x.toml: a limit is above 0 at $.class[0].slo.ttft; write it like '2s' or '50ms'",
        ),
        (
            '[[class]]\nname = "a"\ncancel = { share = 5, after_s = 2 }',
            "x.toml: a share of requests is from 0 to 1 at $.class[0].cancel.share; write 0.05 for 5 %",
        ),
        (
            '[[class]]\nname = "a"\ncancel = { share = 0.5, after_s = "2 parsecs" }',
            "x.toml: $.class[0].cancel.after_s: '2 parsecs' is not a duration; write it like '50ms', '2s' or '5m'",
        ),
        (
            '[[class]]\nname = "a"\ncancel = { share = 0.5 }',
            "x.toml: a request is given up after a time or after some tokens at $.class[0].cancel; "
            "give after_s or after_tokens",
        ),
        (
            '[workload]\ninput_tokens = 64\n[[class]]\nname = "a"',
            "x.toml: classes have lengths of their own at $.workload.input_tokens; leave it out",
        ),
        (
            '[workload]\ninput_tokens = "1..9"\n[ramp]\nprobe = "prefill"',
            "x.toml: it needs prompts and answers of one length at $.ramp.probe; give numbers",
        ),
        (
            '[sweep]\ninput_tokens = [64]\n[[class]]\nname = "a"',
            "x.toml: it needs prompts and answers of one length at $.sweep; give numbers",
        ),
    ],
)
def test_a_mistake_names_file_key_and_way_out(text: str, line: str) -> None:
    with pytest.raises(HarnessError) as caught:
        build(text)
    assert str(caught.value) == line


@pytest.mark.parametrize("text", ["class = 5", "class = [1]", '[[class]]\nname = "a"\nslo = 5', "[[class]]\nname = 5"])
def test_a_wrong_type_names_its_path(text: str) -> None:
    with pytest.raises(HarnessError, match=r"Expected .* at '\$\.class"):
        build(text)


def test_too_many_classes_are_refused() -> None:
    many = {"class": [{"name": str(i)} for i in range(classes.MOST + 1)]}
    with pytest.raises(HarnessError, match="1,001 classes are too many at"):
        reading.build(many, place="x.toml")
