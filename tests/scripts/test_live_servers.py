"""The table of the live servers: what is judged, and how; no server is started here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.data.summary import BEYOND, FOUND, NONE, PROVISIONAL, Curve, Headline, Summary
from harness.data.views import Estimate, Value
from tests.builders.summaries import full, level

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts/live"))

import servers  # noqa: E402  # its folder is a line above
from servers import (  # noqa: E402
    Live,
    Run,
    bend,
    faults,
    interval,
    meets,
    nginx_conf,
    report,
    server_of,
    share_near,
    sweep_seconds,
    verdict,
)


def live(**changes: Any) -> Live:
    usual = Live(name="llama-8", server="llama-server", version="1", limit=8, max_seconds=240, seconds=238, status=0)
    return msgspec.structs.replace(usual, **changes)


def knee(state: str = FOUND, value: float | None = 8.2, kind: str = "hinge") -> Headline:
    return Headline(kind, state, value, (7.0, 9.1) if value else None)


def summary(head: Headline | None, rates: dict[int, float] | None = None, **changes: Any) -> Summary:
    rates = rates or {1: 10.0}
    levels = [
        msgspec.structs.replace(level(concurrency), output_tokens_per_s=Estimate(rate))
        for concurrency, rate in rates.items()
    ]
    curve = Curve(
        state=head.state if head else NONE,
        single_stream_tokens_per_s=Value(10.0),
        hinge_concurrency=Value(head.value, head.ci95) if head else Value(None),
        plateau_tokens_per_s=Value(60.0, (58.0, None)),
        plateau_reached=True,
        dip=None,
        parameters={},
        verdicts=[],
        **changes,
    )
    return msgspec.structs.replace(full(), curve=curve, knee=head, levels=levels)


def run(about: Live, head: Headline | None, **changes: Any) -> Run:
    return Run(Path("live"), about, summary(head, **changes))


def folder(path: Path, about: Live, found: Summary | None) -> servers.Run:
    servers.write(path, about)
    if found is not None:
        (path / "summary.json").write_bytes(msgspec.json.encode(found))
    return servers.read(path)


def test_a_found_knee_at_the_servers_limit_is_as_it_should_be() -> None:
    assert verdict(run(live(), knee())) == "yes"
    assert verdict(run(live(limit=None), knee(value=3.0))) == "yes"


@pytest.mark.parametrize(("value", "right"), [(7.3, True), (7.1, False), (8.7, True), (8.9, False)])
def test_a_knee_lies_within_a_tenth_of_the_limit(value: float, right: bool) -> None:
    for state in (FOUND, PROVISIONAL):
        assert (faults(live(), knee(state, value)) == []) == right


def test_a_found_interval_holds_the_limit() -> None:
    assert faults(live(limit=10), Headline("hinge", FOUND, 9.2, (8.5, 9.9))) == ["the found interval leaves out 10"]
    assert faults(live(limit=10), Headline("hinge", PROVISIONAL, 9.2, (8.5, None))) == []


def test_a_server_without_a_limit_has_no_seats() -> None:
    assert faults(live(limit=None), knee(kind="seats")) == ["seats of a server that has none"]


def test_a_provisional_answer_is_one_with_its_reason() -> None:
    reasons = ["no level above the knee"]
    found = run(live(), knee(PROVISIONAL, 8.0), reasons=reasons)
    assert verdict(found) == "yes, provisional: no level above the knee"


def test_the_time_near_the_knee_is_a_share_of_all_windows() -> None:
    assert share_near(summary(knee(value=8.0), {1: 10.0, 4: 30.0, 12: 60.0, 13: 60.0})) == 0.5
    assert share_near(summary(knee(BEYOND, None))) is None


@pytest.mark.parametrize(
    ("about", "head", "why"),
    [
        (live(status=3), knee(), "no: exit status 3"),
        (live(status=1, error="error: no model"), None, "no: exit status 1: error: no model; no answer"),
        (live(seconds=300.0), knee(), "no: 300 s, more than 240"),
        (live(), knee(BEYOND, None), "no: throughput still rises at the last level"),
        (live(), knee(NONE, None), "no: no answer"),
        (live(status=None, error="did not start"), None, "no: did not start"),
    ],
    ids=["status", "refused", "late", "beyond", "none", "not started"],
)
def test_what_is_wrong_is_named(about: Live, head: Headline | None, why: str) -> None:
    assert verdict(run(about, head)) == why


def test_levels_of_its_own_have_no_answer_to_give() -> None:
    assert verdict(run(live(max_seconds=None, seconds=20.0), None)) == "yes"


@pytest.mark.parametrize(
    ("rates", "between"),
    [
        ({1: 10.0, 2: 20.0, 4: 40.0, 8: 41.0}, (2, 4)),
        ({1: 10.0, 2: 20.0, 4: 30.0, 8: 60.0, 16: 58.0, 32: 20.0}, (4, 8)),  # a dip above it changes nothing
        ({1: 10.0, 2: 20.0, 4: 40.0}, None),
        ({1: 10.0, 2: 10.0}, (1, 1)),
        ({4: 10.0}, None),
    ],
)
def test_the_bend_lies_where_throughput_stops_rising(rates: dict[int, float], between: tuple[int, int] | None) -> None:
    assert bend(rates) == between


def test_an_interval_meets_a_bend_that_it_touches() -> None:
    assert meets(Value(9.0, (8.0, 10.0)), (4, 8)) is True
    assert meets(Value(9.0, (8.1, 10.0)), (4, 8)) is False
    assert meets(Value(3.0, (2.0, None)), (4, 8)) is True
    assert meets(Value(None), (4, 8)) is None
    assert meets(Value(3.0, (2.0, 4.0)), None) is None


def test_an_interval_says_which_end_is_open() -> None:
    assert interval(Value(8.0, (None, None))) == "8.0 [0, ∞]"
    assert interval(Value(8.0)) == "8.0"
    assert interval(Value(None)) == interval(None) == "–"


def test_a_sweep_lasts_as_long_as_the_ramp_before_it() -> None:
    rates = {1: 64.0, 16: 512.0}  # of a server whose requests of 64 tokens take 1 s alone and 2 s at 16
    window = sweep_seconds(240.0, rates, [1, 16, 32])
    assert 3 * window + 3 * (1.0 + 2.0 + 4.0) == pytest.approx(240.0)
    assert sweep_seconds(1.0, rates, [1, 16, 32]) == 2.0
    assert sweep_seconds(70.0, {}, [1, 2]) == 17.5


def test_the_table_is_made_from_the_folders(tmp_path: Path) -> None:
    found = folder(tmp_path / "live-llama-8", live(), summary(knee(value=8.0), {1: 10.0, 8: 60.0}))
    failed = folder(tmp_path / "live-litellm", live(status=None, seconds=None, error="did not start"), None)
    text = report([found, failed])
    hinge = "8.0 [7.0, 9.1]"
    assert (
        f"| live-llama-8 | llama-server 1 | found, hinge {hinge} | 8 | {hinge} | 60 [58, ∞] | 50% | 238 | 0 | yes |"
        in text
    )
    assert "| live-litellm | llama-server 1 | – | 8 | – | – | – | – | – | no: did not start |" in text
    assert text.endswith("1 of 2 runs are as they should be.")
    assert "sweep" not in text


def test_a_sweep_stands_in_the_row_of_its_ramp_and_is_no_run_of_its_own(tmp_path: Path) -> None:
    ramp = folder(tmp_path / "ramp-1", live(), summary(knee()))
    about = live(max_seconds=None, seconds=231.0, ramp="ramp-1")
    sweep = folder(tmp_path / "sweep-1", about, summary(knee(PROVISIONAL), {1: 10.0, 8: 60.0, 16: 61.0}))
    text = report([ramp, sweep])
    hinge = "8.2 [7.0, 9.1]"
    row = f"| ramp-1 | found, hinge {hinge} | provisional, hinge {hinge} | 1–8 | yes | 238 / 231 |"
    assert row in text
    assert text.endswith("1 of 1 runs are as they should be.")


def test_each_nginx_differs_in_one_thing() -> None:
    conf = {kind: nginx_conf(81, "http://127.0.0.1:82", kind, Path("/pem")) for kind in servers.NGINX}
    assert "proxy_buffering off" not in conf["buffered"]
    assert all("proxy_buffering off" in text for kind, text in conf.items() if kind != "buffered")
    assert [kind for kind, text in conf.items() if "gzip on" in text] == ["gzip"]
    assert [kind for kind, text in conf.items() if "listen 127.0.0.1:81 ssl;" in text] == ["tls"]
    assert [kind for kind, text in conf.items() if "location /llm/ { proxy_pass http://127.0.0.1:82/; }" in text] == [
        "prefix"
    ]
    assert all(text.count("{") == text.count("}") for text in conf.values())


def test_help_names_every_server() -> None:
    said = subprocess.run([ROOT / "scripts/live/servers", "--help"], capture_output=True, text=True, check=True).stdout
    assert [name for name in ("vllm-N", "llama-N", *servers.OTHERS) if name not in said] == []


def test_every_server_has_its_version_from_the_pins() -> None:
    versions = {name: server_of(name).version() for name in ("vllm-10", "llama-6", *servers.OTHERS)}
    assert versions["vllm-10"] == "0.32.0"
    assert versions["transformers"].startswith("5.23")
    assert all(versions.values())
