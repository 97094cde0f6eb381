"""The tables of prefixes, sessions and graphs: read, printed and read again, refused in one line; and their order."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.base.errors import HarnessError
from harness.spec import reading, reuse, scenario


def build(text: str) -> scenario.Scenario:
    return reading.build(tomllib.loads(text), place="x.toml")


PREFIX = "[workload.prefix]\ntokens = 9\n"
SESSION = "[workload.session]\nturns = 3\nuser_tokens = 9\n"
NODE = '[[workload.node]]\nname = "plan"\n'


def test_numbers_may_be_written_with_units_and_distributions_stay_texts() -> None:
    workload = build(
        '[workload.prefix]\ntokens = "1.5k"\npool = "2k"\nshare = 0.8\nzipf = 1\n'
        '[workload.session]\nturns = "2..8"\nuser_tokens = "1k"\nthink = "500ms"'
    ).workload
    assert workload.prefix
    assert workload.session
    assert (workload.prefix.tokens, workload.prefix.pool, workload.prefix.zipf) == (1500, 2000, 1.0)
    assert (workload.session.turns, workload.session.user_tokens, workload.session.think) == ("2..8", 1000, 0.5)


@pytest.mark.parametrize(
    "text",
    [
        PREFIX + "pool = 4\nzipf = 0.5",
        PREFIX + SESSION + 'think = "lognormal(2,1)"\nhistory = "scripted"',
        NODE
        + '[[workload.node]]\nname = "search"\nafter = ["plan"]\nfan_out = 3\nfresh = true\ninput_tokens = "9..99"',
        '[[workload.tools]]\ntype = "function"\nfunction = { name = "look", parameters = { type = "object" } }',
    ],
)
def test_the_resolved_toml_reads_back_to_the_same_scenario(text: str) -> None:
    first = build(text)
    assert build(scenario.to_toml(first)) == first
    assert scenario.digest(build(scenario.to_toml(first))) == scenario.digest(first) != scenario.digest(build(""))


@pytest.mark.parametrize(
    ("pause", "ms"),
    [
        (0, None), (0.0001, 1), (2, 2000), ("1.5s", 1500), ("0.5..2", (500, 2000)), ("500ms..2s", (500, 2000)),
        ("2s±500ms", (2000.0, 500.0)), ("lognormal(1m,10s) in 20s..2m", (60_000.0, 10_000.0, 20_000, 120_000)),
        ("1s:3,5s:1", ([1000, 5000], [3000.0, 1000.0])),
    ],
)  # fmt: skip
def test_pauses_are_distributions_of_milliseconds(pause: float | str, ms: Any) -> None:
    found = reuse.pauses(pause)
    if ms is None:
        assert found is None
    else:
        assert found is not None
        assert list(found.values())[1:] == list(ms if isinstance(ms, tuple) else (ms,))


def test_an_empty_list_says_nothing() -> None:
    assert build("[workload]\nnode = []\ntools = []") == build("")


def test_a_scenario_without_these_tables_has_the_digest_that_it_had_before_there_were_any() -> None:
    assert scenario.digest(build("[workload]\nseed = 1")) == "17046087d0d6c3fd"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "[workload.prefix]\ntokens = 0",
            "a number from 1 to 10,000,000 is expected at $.workload.prefix.tokens; give one",
        ),
        (
            PREFIX + "share = 0",
            "a share of requests is above 0, at most 1 at $.workload.prefix.share; write 0.8 for 80 %",
        ),
        (PREFIX + "pol = 9", "unknown field 'pol' at $.workload.prefix.pol; did you mean 'pool'?"),
        (PREFIX + 'pool = "2M"', "a number from 1 to 1,000,000 is expected at $.workload.prefix.pool; give one"),
        (
            '[workload.prefix]\ntokens = "20M"',
            "a number from 1 to 10,000,000 is expected at $.workload.prefix.tokens; give one",
        ),
        ("[workload.session]\nturns = 3", "no 'user_tokens' at $.workload.session; write user_tokens = …"),
        (
            "[workload.session]\nturns = 0\nuser_tokens = 9",
            "a number from 1 to 1,000 is expected at $.workload.session.turns; give one",
        ),
        (
            "[workload.session]\nturns = 1001\nuser_tokens = 9",
            "a number from 1 to 1,000 is expected at $.workload.session.turns; give one",
        ),
        (SESSION + 'history = "dead"', "unknown history 'dead' at $.workload.session.history; known: live, scripted"),
        (
            SESSION.replace("3", "'2..'"),
            "$.workload.session.turns: '2..' is not a length: '' is not a number; "
            "write it like 512, '512±64', '100..900', 'lognormal(512,300)' or '512:9,32k:1'",
        ),
        (
            SESSION + "think = 'soon'",
            "$.workload.session.think: 'soon' is no pause; write it like '2s', '500ms..5s' or 'lognormal(8s,4s)'",
        ),
        (
            NODE + "pause = '5s..2s'",
            "$.workload.node[0].pause: '5s..2s' is no pause; write it like '2s', '500ms..5s' or 'lognormal(8s,4s)'",
        ),
        (
            NODE + "input_tokens = 'no'",
            "$.workload.node[0].input_tokens: 'no' is not a length: 'no' is not a number; "
            "write it like 512, '512±64', '100..900', 'lognormal(512,300)' or '512:9,32k:1'",
        ),
        (
            SESSION + '[workload.dataset]\npath = "x.jsonl"',
            "a dataset has prompts of its own at $.workload.session; leave one of them out",
        ),
        (
            "[ramp]\nrates = [1]\n" + SESSION,
            "sessions and graphs are closed loops so far at $.workload.session; give --levels in place of --rate",
        ),
        ("[ramp]\nrates = [1]\nthink = 2", "an open loop has no think time at $.ramp.think; leave one of them out"),
        ("[ramp]\nstart = 'batch'\nworkers = 2", "static batches come from one worker at $.ramp.workers; leave it out"),
        (
            "[ramp]\nstart = 'batch'\n" + NODE,
            "a batch has single requests, not sessions or graphs at $.ramp.start; leave it out",
        ),
        (
            "[ramp]\nthink = 1\n" + SESSION,
            "sessions and graphs have pauses of their own at $.ramp.think; write them there",
        ),
        (
            SESSION + "[[class]]\nname = 'a'",
            "sessions and graphs are of one class so far at $.class; leave [[class]] out",
        ),
        (
            SESSION + "[ramp]\nprobe = 'prefill'",
            "it needs prompts and answers of one length at $.ramp.probe; give numbers",
        ),
        (SESSION + "think = -1", "a pause is not negative at $.workload.session.think; write it like '2s'"),
        (
            PREFIX + SESSION + "system_tokens = 9",
            "the prefix is the system prompt already at $.workload.session.system_tokens; leave one of them out",
        ),
        (SESSION + NODE, "a session and a graph exclude each other at $.workload.node; leave one of them out"),
        (NODE + "fanout = 3", "unknown field 'fanout' at $.workload.node[0].fanout; did you mean 'fan_out'?"),
        (NODE + NODE, "the name 'plan' is given twice at $.workload.node; give each a name of its own"),
        (
            NODE + '[[workload.node]]\nname = "write"\nafter = ["paln"]',
            "'write' waits for 'paln', which is not there at $.workload.node; did you mean 'plan'?",
        ),
        (
            NODE + 'after = ["write"]\n[[workload.node]]\nname = "write"\nafter = ["plan"]',
            "plan → write → plan is a circle at $.workload.node; let one of them wait for none of the others",
        ),
        (NODE + "fan_out = 1001", "a number from 1 to 1,000 is expected at $.workload.node[0].fan_out; give one"),
        ('[[workload.node]]\nname = " "', "it is no name at $.workload.node[0].name; write one line"),
        (
            '[workload.node]\nname = "plan"',
            "one table is no list at $.workload.node; write it [[workload.node]]",
        ),
    ],
)
def test_a_mistake_is_one_line_with_place_and_way_out(text: str, line: str) -> None:
    with pytest.raises(HarnessError) as caught:
        build(text)
    assert str(caught.value) == f"x.toml: {line}"


@pytest.mark.parametrize(
    "text", ["workload = 3", "[workload]\nprefix = 3", "[workload]\nnode = [3]", "[workload]\nnode = 3"]
)
def test_what_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(HarnessError, match=r"^x.toml: Expected "):
        build(text)


@given(st.permutations(range(8)), st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7))))
def test_each_stands_behind_all_that_it_waits_for(names: list[int], pairs: set[tuple[int, int]]) -> None:
    after = {f"n{high}": [f"n{low}" for low, up in sorted(pairs) if up == high and low < high] for high in range(8)}
    found = reuse.order([f"n{name}" for name in names], after, path="$")
    assert sorted(found) == sorted(after)
    assert all(found.index(parent) < found.index(name) for name, parents in after.items() for parent in parents)


@pytest.mark.parametrize(
    ("names", "after", "line"),
    [
        ("aa", {}, "f: the name 'a' is given twice at $.n; give each a name of its own"),
        ("ab", {"a": "bc"}, "f: 'a' waits for 'c', which is not there at $.n; known: a, b"),
        ("ab", {"a": "bb"}, "f: 'a' waits for 'b' twice at $.n; name it once"),
        ("a", {"a": "a"}, "f: a → a is a circle at $.n; let one of them wait for none of the others"),
        ("abc", {"a": "b", "b": "a"}, "f: a → b → a is a circle at $.n; let one of them wait for none of the others"),
    ],
)
def test_what_has_no_order_is_refused(names: str, after: dict[str, str], line: str) -> None:
    with pytest.raises(HarnessError) as caught:
        reuse.order(list(names), {name: list(parents) for name, parents in after.items()}, path="$.n", place="f")
    assert str(caught.value) == line
