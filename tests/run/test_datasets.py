"""A run's dataset: what it holds is found before any load, and its requests are sent in its order and at its times."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from harness.analysis.summarise import summarise
from harness.base.errors import HarnessError
from harness.cli import cli
from harness.results.result import Result
from harness.run import requests
from harness.run.requests import planned
from harness.spec import reading, scenario
from harness.spec.scenario import Scenario
from harness.spec.work import MeanLengths
from harness.workload import shape
from harness.workload.rows import Rows, text_tokens
from tests.builders.datasets import MOONCAKE, file, json_lines

PROMPTS = json_lines([{"prompt": "x" * 400, "completion": "y" * 40}, {"prompt": "z" * 200, "output_tokens": 30}])


def asked(path: Path, *, workload: dict[str, Any] | None = None, **ramp: Any) -> Scenario:
    dataset = {"path": str(path)} | (workload or {})
    return reading.build({"workload": {"seed": 1, "dataset": dataset}, "ramp": ramp}, place="x.toml")


def read(spec: Scenario, notes: list[str] | None = None) -> Scenario:
    with requests.read(spec, (notes if notes is not None else []).append) as (found, rows):
        assert Path(rows).exists()
    assert not Path(rows).exists(), "it goes away with the run"
    return found


def test_the_mean_request_is_known_before_any_load(tmp_path: Path) -> None:
    """Prompts of 400 and 200 characters, answers of 40 characters and of 30 tokens: a token for four characters."""
    found = read(asked(file(tmp_path, "p.jsonl", PROMPTS)))
    dataset = found.workload.dataset
    assert dataset
    assert (dataset.requests, dataset.input_tokens, dataset.output_tokens) == (2, 75.0, 20.0)
    assert shape.of(found).mean() == MeanLengths(75, 20)
    again = reading.build(json.loads(json.dumps(_plain(found))), place="manifest.json")
    assert again == found


def _plain(spec: Scenario) -> Any:
    return msgspec.to_builtins(spec)


def test_a_trace_comes_at_its_own_rate_by_its_speed_or_at_the_operator_s(tmp_path: Path) -> None:
    """Three requests in 3.052 s: two gaps."""
    path = file(tmp_path, "m.jsonl", MOONCAKE)
    assert read(asked(path, arrivals="trace")).ramp.rates == pytest.approx([2 / 3.052])
    assert read(asked(path, arrivals="trace(speed=2)")).ramp.rates == pytest.approx([4 / 3.052])
    assert read(asked(path, arrivals="trace", rates=[5.0])).ramp.rates == [5.0]
    assert read(asked(path)).ramp.rates is None


def test_the_requests_of_a_trace_and_their_times_are_the_same_for_any_number_of_workers(tmp_path: Path) -> None:
    path = file(tmp_path, "m.jsonl", MOONCAKE)

    def first(workers: int) -> list[Any]:
        with requests.read(asked(path, arrivals="trace(speed=2)", workers=workers), print) as (found, rows):
            return list(itertools.islice(planned(found, rows), 12))

    assert first(1) == first(2) == first(4)
    assert [each.input_tokens for each in first(1)[:4]] == [6755, 7319, 600, 6755]
    assert [each.due_s for each in first(1)[:3]] == pytest.approx([0.0, 0.0, 1.526])


def test_a_text_without_its_length_is_planned_by_its_characters(tmp_path: Path) -> None:
    path = file(tmp_path, "p.jsonl", "\n".join(json.dumps({"prompt": "x" * n}) for n in (40, 400)))
    with requests.read(asked(path), print) as (found, rows):
        assert [each.input_tokens for each in itertools.islice(planned(found, rows), 3)] == [10, 100, 10]


def test_broken_rows_are_left_out_only_where_it_is_allowed(tmp_path: Path) -> None:
    path = file(tmp_path, "p.jsonl", PROMPTS + '{"prompt": 5}\n')
    with pytest.raises(HarnessError, match="line 3, byte"):
        read(asked(path))
    notes: list[str] = []
    found = read(asked(path, workload={"skip_broken": True}), notes)
    assert found.workload.dataset
    assert found.workload.dataset.skipped == 1
    assert notes == [f"{path}: 1 broken rows are left out, 2 are sent"]


def test_what_is_left_out_of_rows_is_named_once_with_how_many(tmp_path: Path) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    seen = [{"role": "user", "content": [{"type": "text", "text": "What?"}, image]}]
    rows = [{"prompt": "a", "image": "cat.png"}, {"prompt": "b", "thought_tokens": 9}, {"messages": seen}]
    path = file(tmp_path, "p.jsonl", json_lines(rows))
    notes: list[str] = []
    read(asked(path), notes)
    unread = "no reader knows the fields thought_tokens: rename what is to be sent, or leave it out"
    assert notes == [f"{path}: images are left out (1 of 3 rows); {unread}"]
    notes.clear()
    texts = reading.build({"workload": {"dataset": {"path": str(path)}}, "target": {"api": "completions"}}, place="x")
    read(texts, notes)
    assert "images are left out, as they are for chat (1 of 3 rows)" in notes[0]
    notes.clear()
    read(asked(file(tmp_path, "q.jsonl", PROMPTS)), notes)
    assert notes == []


def test_rows_out_of_order_are_replayed_by_their_times(tmp_path: Path) -> None:
    """As a gateway writes them, when they end."""
    lengths = {"output_tokens": 5}
    times = [0.4, 0.1, 0.9, 0.2]
    rows = [{"input_tokens": n, "at_s": at} | lengths for n, at in enumerate(times, 1)]
    path = file(tmp_path, "g.jsonl", json_lines(rows))
    notes: list[str] = []
    with requests.read(asked(path, arrivals="trace"), notes.append) as (found, table):
        first = list(itertools.islice(planned(found, table), 4))
    assert [each.input_tokens for each in first] == [2, 4, 1, 3]
    assert [each.due_s for each in first] == pytest.approx([0.0, 0.1, 0.3, 0.8])
    assert notes == [f"{path}: rows behind a later one are sorted by their times (2 of 4 rows)"]


def test_tools_are_part_of_the_prompt(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "x" * 400}}
    path = file(tmp_path, "p.jsonl", json_lines([{"prompt": "x" * 40}, {"prompt": "x" * 40, "tools": [tool]}]))
    with requests.read(asked(path), print) as (found, rows):
        alone, with_tools = (each.input_tokens for each in itertools.islice(planned(found, rows), 2))
    assert alone == 10
    assert with_tools
    assert with_tools > 110
    assert found.workload.dataset
    assert found.workload.dataset.input_tokens == (alone + with_tools) / 2


def test_sessions_of_a_dataset_are_sent_turn_by_turn_and_their_prompts_hold_the_history(tmp_path: Path) -> None:
    """Messages of 10 and 5 tokens, answers of 5: prompts of 10 and of 10 + 5 + 5 tokens."""
    entries = [("human", "x" * 40), ("gpt", "y" * 20), ("human", "z" * 20), ("gpt", "w" * 20)]
    record = {"id": "a", "conversations": [{"from": who, "value": text} for who, text in entries]}
    spec = asked(file(tmp_path, "s.json", json.dumps([record])), workload={"sessions": True})
    found = read(spec)
    assert found.workload.dataset
    assert (found.workload.dataset.requests, shape.of(found).mean()) == (2, MeanLengths(15, 5))
    with requests.read(spec, print) as (scenario_, rows):
        lines = list(itertools.islice(planned(scenario_, rows), 4))
    assert [(each.session, each.turn, each.after) for each in lines] == [
        ("0", 0, ()), ("0", 1, (0,)), ("1", 0, ()), ("1", 1, (1000,)),
    ]  # fmt: skip


SESSIONS = [
    {"session_id": "a", "timestamp": 0, "input_length": 20, "output_length": 4, "hash_ids": [1]},
    {"session_id": "b", "timestamp": 3000, "input_length": 30, "output_length": 5, "hash_ids": [2]},
    {"session_id": "a", "delay": 4000, "input_length": 40, "output_length": 6, "hash_ids": [1]},
    {"session_id": "c", "timestamp": 6000, "input_length": 50, "output_length": 7, "hash_ids": [3]},
]


def test_sessions_of_a_trace_begin_as_recorded_and_their_later_turns_wait_for_the_earlier_ones(tmp_path: Path) -> None:
    """Four rows in 6 s are one every 2 s, so the trace comes again after 8 s; twice as fast, all that in half of it."""
    path = file(tmp_path, "s.jsonl", json_lines(SESSIONS))
    for speed, workers in ((1, 1), (2, 1), (2, 3)):
        spec = asked(path, workload={"sessions": True}, arrivals=f"trace(speed={speed})", workers=workers)
        with requests.read(spec, print) as (scenario_, rows):
            assert scenario_.ramp.rates == [0.5 * speed]
            lines = list(itertools.islice(planned(scenario_, rows), 6))
        due = [0.0, None, 3.0, 6.0, 8.0, None]
        assert [(each.session, each.turn, each.due_s) for each in lines] == [
            (session, turn, None if at is None else at / speed)
            for session, turn, at in zip("001233", (0, 1, 0, 0, 0, 1), due, strict=True)
        ]


def test_sessions_that_do_not_say_when_they_began_are_not_replayed(tmp_path: Path) -> None:
    """A Weka trace counts from its own beginning: two of them begin at one moment."""
    calls = [{"t": at, "type": "n", "in": 10, "out": 2} for at in (0, 5)]
    path = file(tmp_path, "w.jsonl", json_lines([{"id": name, "requests": calls} for name in "ab"]))
    with pytest.raises(HarnessError, match=r"it does not say when its sessions began: .* --agents N"):
        read(asked(path, workload={"sessions": True}, arrivals="trace"))


def test_the_mean_prompt_of_conversations_holds_what_is_sent_before_each_turn(tmp_path: Path) -> None:
    """Rows are sent one by one, each behind its conversation so far: 100, then 100 + 10 + 50; and one alone of 25."""

    def turn(speaker: str, characters: int) -> dict[str, str]:
        return {"from": speaker, "value": "x" * characters}

    talk = [turn("human", 400), turn("gpt", 40), turn("human", 200), turn("gpt", 80)]
    alone = [turn("human", 100), turn("gpt", 40)]
    data = json.dumps([{"id": "a", "conversations": talk}, {"id": "b", "conversations": alone}])
    path = file(tmp_path, "s.json", data)
    spec = asked(path)
    dataset = read(spec).workload.dataset
    assert dataset
    assert (dataset.requests, dataset.input_tokens) == (3, (100 + 160 + 25) / 3)
    with requests.read(spec, print) as (_, rows):
        sent = Rows(path=rows, words=("a",), seed=1, output_tokens=10)
        assert [text_tokens(sent.request(i).prompt or "") for i in range(3)] == [100, 160, 25]


def test_sessions_of_rows_that_stand_alone_are_refused_before_any_load(tmp_path: Path) -> None:
    spec = asked(file(tmp_path, "m.jsonl", MOONCAKE), workload={"sessions": True})
    with pytest.raises(
        HarnessError, match=r"no two of its rows belong to one session; leave \$.workload.dataset.sessions"
    ):
        read(spec)


@pytest.mark.parametrize(
    ("more", "ramp", "line"),
    [
        ({"history": "scripted"}, {}, "rows are sent by themselves at $.workload.dataset.history; add sessions = true"),
        ({"think": "2s"}, {}, "rows are sent by themselves at $.workload.dataset.think; add sessions = true"),
        (
            {"sessions": True, "pauses": "drawn"},
            {},
            "nothing to draw them from at $.workload.dataset.pauses;",
        ),
        ({"sessions": True, "think": "soon"}, {}, "'soon' is no pause; write it like"),
        ({"sessions": True}, {"rates": [2.0]}, "sessions and graphs are closed loops so far at $.workload.dataset;"),
        (
            {"sessions": True},
            {"arrivals": "trace", "search_rate": True},
            "sessions and graphs are closed loops so far at $.workload.dataset;",
        ),
        ({"sessions": True}, {"think": "2s"}, "sessions and graphs have pauses of their own at $.ramp.think;"),
    ],
)
def test_what_sessions_of_a_dataset_exclude_is_refused(more: dict[str, Any], ramp: dict[str, Any], line: str) -> None:
    with pytest.raises(HarnessError) as caught:
        asked(Path("x"), workload=more, **ramp)
    assert line in str(caught.value)


def test_a_dataset_without_times_and_one_that_has_changed_are_refused(tmp_path: Path) -> None:
    path = file(tmp_path, "p.jsonl", PROMPTS)
    with pytest.raises(HarnessError, match="--arrivals trace: its rows have no times to replay"):
        read(asked(path, arrivals="trace"))
    with pytest.raises(HarnessError, match="it holds 2 requests now, and the run began with 3"):
        read(asked(path, workload={"requests": 3}))


def test_a_dataset_is_among_what_requests_carry_so_that_consent_is_asked_for(tmp_path: Path) -> None:
    assert scenario.carried(asked(tmp_path / "p.jsonl")) == [f"the requests of {tmp_path / 'p.jsonl'}"]
    assert scenario.carried(Scenario()) == []


def test_the_command_line_names_a_dataset(tmp_path: Path) -> None:
    path = file(tmp_path, "p.jsonl", PROMPTS)
    done = CliRunner().invoke(cli, ["run", "--dataset", str(path), "--print-requests", "2"])
    assert done.exit_code == 0, done.output
    assert [json.loads(line)["output_tokens"] for line in done.stdout.splitlines()] == [10, 30]
    alone = CliRunner().invoke(cli, ["run", "--skip-broken", "--print-requests", "2"])
    assert "--skip-broken: no dataset to read; give --dataset FILE" in alone.stderr


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"class": [{"name": "a", "input": 9}]}, "a dataset has requests of its own at $.class[0].input; leave it out"),
        ({"ramp": {"probe": "prefill"}}, "it needs prompts and answers of one length at $.ramp.probe; give numbers"),
        ({"ramp": {"arrivals": "trace", "levels": [1]}}, "levels exclude them at $.ramp.arrivals"),
    ],
)
def test_what_a_dataset_excludes_is_refused(more: dict[str, Any], line: str) -> None:
    with pytest.raises(HarnessError) as caught:
        reading.build({"workload": {"dataset": {"path": "x"}}} | more, place="x.toml")
    assert line in str(caught.value)


MODELS = json_lines([{"prompt": "Why?", "output_tokens": 4, "model": model} for model in ("big", "small", "small")])


def test_models_of_a_dataset_are_one_unless_they_have_classes_whose_shares_are_the_rows(tmp_path: Path) -> None:
    path, notes = file(tmp_path, "models.jsonl", MODELS), list[str]()
    assert not read(asked(path), notes).class_
    assert any("its models are one here (big, small)" in each for each in notes)
    tree = {"workload": {"dataset": {"path": str(path)}}, "class": [{"name": "small", "model": "tiny"}]}
    found = read(reading.build(tree, place="x.toml"), notes := [])
    assert [(each.name, each.share, each.model) for each in found.class_ or ()] == [("small", 2.0, "tiny")]
    assert not notes
    tree["class"][0]["name"] = "smal"  # type: ignore[index]
    with pytest.raises(HarnessError, match="no row was sent to a model 'smal', which has a class; did you mean"):
        read(reading.build(tree, place="x.toml"))


@pytest.mark.slow
@pytest.mark.parametrize("sessions", [False, True])
def test_each_request_of_a_trace_is_sent_to_the_model_of_its_class_and_given_up_as_recorded(
    tmp_path: Path, sessions: bool
) -> None:
    """The second turn is given up after 50 ms, long before its 4,000 tokens; the third goes on with what there was."""
    rows = [
        {"prompt": "One?", "output_tokens": 4, "model": "big", "session": "a"},
        {"prompt": "Two?", "output_tokens": 4000, "model": "small", "session": "a", "cancel_s": 0.05},
        {"prompt": "Three?", "output_tokens": 4, "model": "big", "session": "a"},
        {"prompt": "Four?", "output_tokens": 4, "model": "other", "session": "b"},
    ]
    path = file(tmp_path, "a.jsonl", json_lines(rows))
    scenario = tmp_path / "x.toml"
    scenario.write_text(
        f'[workload.dataset]\npath = "{path}"\nsessions = {str(sessions).lower()}\n[ramp]\nlevels = [2]\n'
        'level_seconds = 1.0\n[[class]]\nname = "big"\nslo = { ttft_p95 = "5s" }\n[[class]]\nname = "small"\n'
    )
    out = tmp_path / "out"
    done = CliRunner().invoke(cli, ["run", str(scenario), "--url", "sim:", "--out", str(out), "--no-plots"])
    assert done.exit_code in (0, 3), done.output
    result = Result.open(out)
    kinds = {(each.class_, each.turn, each.error) for each in result.records if each.session_id}
    thirds = {("big", 2, ""), ("big", 0, ""), ("", 0, "")} if sessions else {("big", 0, ""), ("", 0, "")}
    assert thirds | {("small", 1 if sessions else 0, "abandoned")} <= kinds
    assert not {error for class_, _, error in kinds if class_ != "small"} - {"", "cancelled"}
    assert {each.class_ for each in summarise(result).levels[0].slo} == {"big"}


def test_what_is_left_out_of_a_long_session_is_said(tmp_path: Path) -> None:
    rows = [{"input_tokens": 9, "output_tokens": 1, "session": name} for name in ["a"] * 1_001 + ["b"] * 2]
    notes: list[str] = []
    read(asked(file(tmp_path, "long.jsonl", json_lines(rows)), workload={"sessions": True}), notes)
    assert any("the end of 1 sessions with more than 1,000 requests is left out" in each for each in notes)
