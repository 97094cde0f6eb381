"""Several replicas in a scenario: how they are written, what stays as it was, and what is refused."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.base.errors import HarnessError
from harness.cli import cli
from harness.spec import reading, scenario

TWO = 'urls = ["http://a", "http://b"]'


def build(text: str) -> scenario.Scenario:
    return reading.build(tomllib.loads(text), place="x.toml")


def test_the_first_of_several_urls_is_the_url_and_one_url_is_a_list_of_one() -> None:
    assert build(f"[target]\n{TWO}").target.every_url == ["http://a", "http://b"]
    assert build(f"[target]\n{TWO}").target.url == "http://a"
    assert build('[target]\nurl = "http://a"').target.every_url == ["http://a"]
    assert build("").target.every_url == []


def test_replicas_read_back_to_the_same_scenario_and_change_the_digest() -> None:
    built = build(f'[target]\n{TWO}\nbalance = "least-in-flight"')
    again = build(scenario.to_toml(built))
    assert again == built
    assert scenario.digest(built) != scenario.digest(build('[target]\nurl = "http://a"'))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("urls = []", "x.toml: 1 to 64 urls are expected at $.target.urls; give one for each replica"),
        ('urls = ["http://a", "http://a"]', "x.toml: a url is given twice at $.target.urls; write each url once"),
        (f'url = "http://c"\n{TWO}', "x.toml: url and urls exclude each other at $.target.url; leave url out"),
        (
            'urls = ["sim:", "http://a"]',
            "x.toml: sim: is one endpoint at $.target.urls; start several by `knee sim`, give their urls",
        ),
        (
            f'{TWO}\nmetrics_url = "http://a/metrics"',
            "x.toml: it is one page, and there are several replicas at $.target.metrics_url; leave it out: each "
            "replica's /metrics is read",
        ),
        (
            'url = "http://a"\nbalance = "round-robin"',
            "x.toml: there is one server at $.target.balance; give --url several times",
        ),
        (
            f'{TWO}\nbalance = "random"',
            "x.toml: unknown balance 'random' at $.target.balance; known: round-robin, least-in-flight, session",
        ),
        (
            f'{TWO}\nbalance = "session"',
            "x.toml: no request has a session at $.target.balance; give [workload.session] or --dataset",
        ),
        (
            'url = "http://a"\nsession_header = "X: y"\n[workload.session]\nturns = 2\nuser_tokens = 20',
            "x.toml: it is no header's name at $.target.session_header; write it like X-Session-Id",
        ),
        (
            f"{TWO}\n[sweep]\ninput_tokens = [1, 2]",
            "x.toml: a level map has one server a cell at $.target.urls; leave urls out",
        ),
        (
            f"urls = [{', '.join(f'{chr(34)}http://h{i}{chr(34)}' for i in range(65))}]",
            "x.toml: 1 to 64 urls are expected at $.target.urls; give one for each replica",
        ),
    ],
)
def test_what_no_fleet_can_be_is_refused_in_one_line(text: str, line: str) -> None:
    with pytest.raises(HarnessError) as refused:
        build(f"[target]\n{text}")
    assert str(refused.value) == line


def test_a_key_in_any_url_is_refused_without_repeating_it() -> None:
    with pytest.raises(HarnessError) as refused:
        build('[target]\nurls = ["http://a", "http://me:s3cret@b"]')
    assert "$.target.urls" in str(refused.value)
    assert "s3cret" not in str(refused.value)


def printed(*arguments: str) -> scenario.Scenario:
    run = CliRunner().invoke(cli, ["run", *arguments, "--print-scenario"])
    assert run.exit_code == 0, run.output
    return build(run.stdout)


def test_url_several_times_is_a_fleet_and_takes_the_place_of_a_files_own(tmp_path: Path) -> None:
    both = printed("--url", "http://a", "--url", "http://b", "--balance", "least-in-flight")
    assert both.target.every_url == ["http://a", "http://b"]
    assert both.target.balance == "least-in-flight"
    path = tmp_path / "x.toml"
    path.write_text(f"[target]\n{TWO}\n")
    assert printed(str(path)).target.every_url == ["http://a", "http://b"]
    assert printed(str(path), "--url", "http://c").target.every_url == ["http://c"]
