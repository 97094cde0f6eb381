"""A server of ill will costs a run neither memory nor time, shows no secret, and is told of in one line.

Some modes here; `scripts/trust` tries every one of them, and `-m slow` likewise.
"""

from __future__ import annotations

import asyncio
import gzip
import time
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from harness.base.errors import HarnessError
from harness.base.secrecy import plain
from harness.load import control
from harness.load.client import client
from harness.observe import server
from harness.predict import quantisation
from harness.run.launch import published
from tests.builders.servers import Request, reached, serving
from tests.builders.stacks import models
from tests.load.test_transport import exchanges_with_script
from tests.trust import expressions, hostile_control
from tests.trust.expressions import Expression
from tests.trust.hostile_control import FIRST, LOAD, MODELS, Mode

WITHIN_S = 0.5


every_client = pytest.mark.parametrize("wire", ["tcp", "httpx"])


def page_of(script: Callable[[Request], None], wire: str, within_s: float = WITHIN_S) -> control.Page:
    """One page of a server that runs this script, by the client for this wire."""

    async def go() -> control.Page:
        with reached(wire, script) as target:
            async with client(target, connect_s=5.0) as asking:
                return await control.page(asking, "/v1/models", within_s)

    return asyncio.run(go())


def mode(name: str) -> Mode:
    return next(each for each in hostile_control.MODES if each.name == name)


@pytest.mark.alone
@pytest.mark.slow
@every_client
@pytest.mark.parametrize("name", [each.name for each in hostile_control.MODES if each.lasts])
def test_a_page_has_one_deadline_whatever_the_server_does(name: str, wire: str) -> None:
    began = time.monotonic()
    with pytest.raises(control.TransportError):
        page_of(mode(name).script, wire)
    assert time.monotonic() - began < WITHIN_S + 1.0


@every_client
def test_headers_that_drip_end_at_the_deadline(wire: str) -> None:
    with pytest.raises(control.DeadlineError, match=r"no end of the answer within 0\.1 s"):
        page_of(hostile_control.dripping(b"HTTP/1.1 200 OK\r\nX-Slow: ", 0.01), wire, 0.1)


@every_client
@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "deflate"])
def test_a_page_that_is_compressed_all_the_same_is_inflated(coding: str, wire: str) -> None:
    packed = zlib.compress(models()) if coding == "deflate" else gzip.compress(models())
    said = hostile_control.said(packed, b"Content-Encoding: " + coding.encode())
    assert page_of(said, wire).json()["data"][0]["id"] == "toy"


@every_client
def test_a_bomb_is_put_out_while_it_is_small(monkeypatch: pytest.MonkeyPatch, wire: str) -> None:
    inflated: list[int] = []
    inner = control._inflated
    monkeypatch.setattr(control, "_inflated", lambda *how: inflated.append(len(out := inner(*how))) or out)
    packed = gzip.compress(bytes(16 << 20))
    with pytest.raises(control.TransportError, match="longer than 4 MiB"):
        page_of(hostile_control.said(packed, b"Content-Encoding: gzip"), wire, 5.0)
    assert sum(inflated) == control.LONGEST + 1


@every_client
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("a coding that it is not", r"compresses \('br'\), though no compression was asked for"),
        ("gzip in gzip, ten times", r"compresses \('gzip, gzip"),
        ("corrupt gzip", "gzip cannot be inflated"),
        ("half of a gzip", "gzip ends in the midst"),
        ("a negative length", "."),
        ("two lengths", "."),
        ("a chunk of no length", "."),
        ("a body shorter than it says", "."),
        ("an end without an answer", "."),
        ("HTTP/0.9", "."),
        ("HTTP/2", "."),
        ("101", "."),
    ],
)
def test_what_cannot_be_read_is_one_kind_of_error(name: str, why: str, wire: str) -> None:
    with pytest.raises(control.TransportError, match=why):
        page_of(mode(name).script, wire)


@pytest.mark.parametrize("name", ["a redirect to another host", "a redirect to itself", "a redirect to nowhere"])
def test_a_redirect_is_an_answer_and_not_followed(name: str) -> None:
    assert page_of(mode(name).script, "tcp").status == 307


def test_where_a_redirect_leads_need_not_be_an_address_for_httpx_either() -> None:
    with pytest.raises(control.TransportError):
        page_of(mode("a redirect to nowhere").script, "httpx")


@every_client
@pytest.mark.parametrize("name", ["UTF-16", "a charset of zlib", "half a surrogate", "JSON as deep as it goes", "null"])
def test_what_is_no_json_in_utf_8_is_no_data(name: str, wire: str) -> None:
    found = page_of(mode(name).script, wire, 5.0)
    assert found.json() is None
    assert isinstance(found.text, str)
    assert published.entries(found) == []


@every_client
def test_cookies_of_an_answer_are_not_read(wire: str) -> None:
    async def go() -> list[int]:
        with reached(wire, hostile_control.cookies) as target:
            async with client(target, connect_s=5.0) as asking:
                return [(await control.page(asking, "/", 5.0)).status for _ in range(2)]

    assert asyncio.run(go()) == [200, 200], "the server fails where a cookie comes back"


def test_the_httpx_transport_inflates_nothing() -> None:
    """Errors' bodies too are kept as they came, and no more of them than of any other."""
    packed = gzip.compress(bytes(16 << 20))

    def script(r: Request) -> None:
        r.answer(200 if r.number else 500, packed, "text/event-stream", "Content-Encoding: gzip\r\n")

    for answer, error in zip(exchanges_with_script(script, "httpx", times=2), ("http_5xx", "encoding"), strict=True):
        assert answer.error == error
        assert len(answer.message) < 5000


@pytest.mark.slow
@pytest.mark.parametrize("wire", ["tcp", "httpx"])
@pytest.mark.parametrize("name", [each.name for each in hostile_control.MODES if FIRST in each.places])
def test_under_load_every_mode_is_a_record_by_its_deadline(name: str, wire: str) -> None:
    """The measured path, which a check's bounds do not cover: whatever the bytes, one failed request and no more."""
    began = time.monotonic()
    (answer,) = exchanges_with_script(mode(name).script, wire, timeout_s=WITHIN_S, body=b'{"max_tokens": 1}')
    assert answer.complete
    assert bool(answer.error) == ("usage" not in name), "a count that can be is recorded as it came, another left out"
    assert len(answer.message) < 5000
    assert time.monotonic() - began < WITHIN_S + 2.0


def test_a_name_of_a_model_is_a_short_line_that_shows() -> None:
    assert [published.is_name(each) for each in ("toy", "org/模型-7b", "x" * 512)] == [True] * 3
    odd = ("", "x" * 513, "a\x1b[2J", "a\nb", "a\u202eb", "a\x00", "\x9b", 7, None)
    assert [published.is_name(each) for each in odd] == [False] * len(odd)


def test_figures_that_are_no_counts_say_nothing() -> None:
    page = "\n".join(f"vllm:num_requests_running {each}" for each in ("NaN", "+Inf", "-1", "1e400", "1e18", "1" * 99))
    assert server.figures(page) == {}
    assert server.figures(page + "\nvllm:num_requests_running 2 1700000000") == {"running": 2.0}
    assert server.figures("vllm:num_requests_running 1\n" * 20_001) == {}


def test_a_page_of_many_engines_or_of_odd_labels_costs_little_and_shows_nothing() -> None:
    many = "\n".join(f'vllm:num_requests_running{{engine="{i}"}} 1' for i in range(6_000))
    assert server.Pages().samples(0.0, many) == []
    odd = 'vllm:num_requests_running{engine="\x1b[2J\u202e' + "x" * 300 + '"} 1'
    (sample,) = server.Pages().samples(0.0, odd)
    assert sample.metric.isprintable()
    assert sample.metric.isascii()
    assert len(sample.metric) < 80
    falling = [f'vllm:request_queue_time_seconds_bucket{{le="{end}"}} {n}' for end, n in ((1, 9), (2, 3), ("x", 5))]
    pages = server.Pages()
    assert pages.samples(0.0, "\n".join(falling)) == []
    assert all(each.value >= 0 for each in pages.samples(1.0, "\n".join(falling).replace(" 9", " 2")))


def test_labels_hold_whatever_is_quoted() -> None:
    line = 'vllm:num_requests_running{a="}",b="x\\"{",} 3 # {trace="y"} 0.5\n'
    assert server.figures(line) == {"running": 3.0}
    assert server.figures('vllm:num_requests_running{a="no end 3\nvllm:num_requests_waiting 1') == {"waiting": 1.0}
    info = server.cache_config("vllm:cache_config_info{" + ",".join(f'k{n}="{"v" * 300}"' for n in range(99)) + "} 1")
    assert (len(info), {len(value) for value in info.values()}) == (64, {200})


def test_a_secret_cut_up_by_what_does_not_show_is_whole_again_before_it_is_hidden() -> None:
    for between in ("\x00", "\x1b", "\u202e", "\ufeff", "\x9b"):
        assert plain(between.join("s3cret")) == "s3cret"


def test_a_pattern_of_a_config_never_takes_for_ever() -> None:
    """With backtracking the first takes 2^40 steps."""
    for slow in ("(a+)+$", "(a|a)*$", "a*a*a*a*a*a*$"):
        assert quantisation._means(f"re:{slow}", ["a" * 40 + "b"]) == [False]
    for bad in ("(" * 400, "a(?=b)"):
        with pytest.raises(ValueError, match="regular expression"):
            quantisation._means(f"re:{bad}", ["a"])


def test_every_expression_is_listed_with_its_worst_text() -> None:
    assert expressions.missing() == []


@pytest.mark.parametrize("expression", expressions.TABLE, ids=lambda each: f"{each.file} {each.source}")
def test_no_text_costs_an_expression_the_square_of_its_length(expression: Expression) -> None:
    assert min(expressions.growth(expression) for _ in range(2)) < expressions.WORST


def test_a_quadratic_expression_would_be_found() -> None:
    import re

    old = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-zA-Zµ]*)\s*")
    worst = expressions.times(" ", before="1", after="!")
    old_one = Expression("", "", old.fullmatch, worst, 40_000)
    assert expressions.growth(old_one) > expressions.WORST


def test_a_scenario_s_field_may_be_named_like_a_place() -> None:
    from harness.spec import reading

    for tree in ({"a` - at `$.zz": 1}, {"ramp": {"x` - at `$.q": 1}}, {"` - at `" * 20_000: 1}):
        with pytest.raises(HarnessError, match="unknown field"):
            reading.build(tree, place="here")


@pytest.mark.slow
def test_a_scrape_that_fails_is_said_once_and_the_next_is_taken(tmp_path: Any) -> None:
    """Every second page of figures is corrupt; the others stand in the telemetry."""
    import pandas as pd

    from tests.run.test_safety import endpoint, knee_run

    pages = [0]

    def script(r: Request) -> None:
        if r.path != "/metrics":
            return endpoint(r)
        pages[0] += 1
        if pages[0] % 2:
            return r.answer(200, b"vllm:num_requests_running 1\n", "text/plain")
        return mode("corrupt gzip").script(r)

    with serving(script) as port:
        status, talk = knee_run(f"http://127.0.0.1:{port}", tmp_path / "out", "--level-seconds", "2")
    assert status in (0, 3), talk
    assert talk.count("a gap in the server's own figures: its gzip cannot be inflated") == 1
    figures = pd.read_parquet(tmp_path / "out" / "telemetry.parquet")
    assert (figures.metric == "vllm:num_requests_running").sum() >= 2


QUICK = [("a gzip bomb of 3 GiB", MODELS), ("a storm of 1xx", FIRST), ("half a surrogate", LOAD)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "place"), QUICK)
def test_a_run_against_a_hostile_server_ends_in_order(name: str, place: str) -> None:
    assert hostile_control.held(mode(name), place).problems == ()


@pytest.mark.slow
@pytest.mark.parametrize("place", [MODELS, LOAD])
def test_ctrl_c_is_heard_while_a_server_keeps_a_check_busy(place: str) -> None:
    assert hostile_control.held(mode("a storm of 1xx"), place, interrupt=True).problems == ()


def test_the_table_has_forty_modes_and_more() -> None:
    assert len(hostile_control.MODES) >= 40
    assert len({each.name for each in hostile_control.MODES}) == len(hostile_control.MODES)
