"""Hostile bytes: no exception, one record however they are cut, and bounded memory.

A few hundred inputs a property here; scripts/fuzz takes the same inputs and the same property to millions.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from harness.base import decoding
from harness.base.errors import ProtocolError
from harness.dialects import decoder, sse
from harness.dialects.decoder import StreamDecoder
from harness.dialects.sse import EventParser
from harness.load import http1, receive
from harness.load.http1 import ResponseParser
from tests.builders.streams import DONE, VLLM, delta, usage
from tests.trust.fuzzing import (
    BODIES,
    FRAMINGS,
    OTHERS,
    Both,
    Encrypted,
    Reader,
    ReadOutcome,
    cut,
    difference,
    framed,
    mutated,
    small_limits,
)
from tests.trust.fuzzing_readers import SHARES, Readers

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
bounded = settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@functools.cache
def reader() -> Reader:
    return Reader()


@functools.cache
def both() -> Both:
    return Both()


@functools.cache
def encrypted() -> Encrypted:
    return Encrypted()


def same_outcome(data: bytes, places: list[int], *, reset: bool = False) -> ReadOutcome:
    """The record of these bytes, read byte by byte; and that other reads make the same one."""
    exact = reader().outcome(cut(data, range(len(data))), reset=reset)
    for reads in (cut(data, ()), cut(data, places)):
        assert difference(exact, reader().outcome(reads, reset=reset), reads) == ""
    return exact


places = st.lists(st.integers(0, 2000), max_size=4)


@bounded
@given(st.binary(max_size=200), places)
def test_any_bytes_make_a_record_and_the_same_one_however_they_are_cut(data: bytes, cuts: list[int]) -> None:
    assert same_outcome(data, cuts).error != ""


@bounded
@given(st.lists(st.binary(max_size=60), max_size=6), st.sampled_from(FRAMINGS), places, st.booleans())
@example([b"error:an event longer than can be kept"], "events", [], False)  # nor can a server say what only we may
@example([sse.TOO_LONG], "events", [], True)
def test_any_body_in_a_sound_frame_is_judged_by_its_events_alone(
    parts: list[bytes], how: str, cuts: list[int], events: bool
) -> None:
    body = b"".join(b"data: " + part + b"\n\n" if events else part for part in parts)
    outcome = same_outcome(framed(body, how), cuts)
    assert outcome.error in ("malformed_event", "truncated", "stream_error", "content_type", "empty_response")
    assert outcome.status == 200


@bounded
@given(st.integers(0, 2**48), places, st.booleans(), st.booleans())
def test_real_streams_after_any_accident_are_told_alike(seed: int, cuts: list[int], reset: bool, small: bool) -> None:
    data = mutated(random.Random(seed))
    if small:
        with small_limits():
            same_outcome(data, cuts, reset=reset)
    else:
        same_outcome(data, cuts, reset=reset)


@pytest.mark.skipif(receive.poller is None, reason="the receive path is not compiled here")
@bounded
@given(st.integers(0, 2**48), st.booleans(), st.booleans())
def test_the_compiled_path_makes_the_record_that_the_pure_one_makes(seed: int, reset: bool, small: bool) -> None:
    data = mutated(random.Random(seed))
    with small_limits() if small else contextlib.nullcontext():
        assert both().difference(data, reset=reset) == ""


@pytest.mark.skipif(receive.poller is None, reason="the receive path is not compiled here")
@settings(bounded, max_examples=100)
@given(st.integers(0, 2**48))
def test_over_tls_both_paths_make_one_record_too(seed: int) -> None:
    assert encrypted().difference(mutated(random.Random(seed))) == ""


@pytest.mark.slow
@pytest.mark.parametrize("how", FRAMINGS)
def test_every_single_cut_of_every_sound_answer_tells_the_same(how: str) -> None:
    for body in BODIES:
        data = framed(body, how)
        exact = same_outcome(data, [])
        for place in range(1, len(data), 3):
            reads = [data[:place], data[place:]]
            assert difference(exact, reader().outcome(reads), reads) == ""


def test_a_difference_is_seen() -> None:
    data = framed(VLLM, "events")
    exact = same_outcome(data, [])
    assert exact.error == ""
    late = tuple(stamp + 1 for stamp in exact.arrivals)
    for wrong in (exact._replace(error="x"), exact._replace(tokens=(2,)), exact._replace(arrivals=late)):
        assert difference(exact, wrong, cut(data, range(len(data)))) != ""


@pytest.mark.skipif(receive.poller is None, reason="the receive path is not compiled here")
def test_both_paths_give_up_an_endless_answer_at_the_same_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, pure = Reader(), Reader(pure=True)
    body = b"".join(delta(content="x" * n, usage=usage(7, n)) for n in range(1, 30)) + delta("stop") + DONE
    data = framed(body, "events")
    for most in range(1, 32):
        monkeypatch.setattr(decoder, "MOST_CHUNKS", most)
        for step in (1, 50, 173, 700, 4000):
            reads = cut(data, range(0, len(data), step))
            found = [reader.outcome(reads) for reader in (compiled, pure)]
            assert compiled.last == pure.last, (most, step)
            assert found[0].error == ("endless" if most < 29 else "")


# Memory: bytes that never come to an end, after anything that may come before them.

CHUNK = HEAD + b"ffffffffffff\r\n"
_ENDLESS = {
    "the head": (b"", b"HTTP/1.1 200 OK\r\nX: " + b"y" * 65_536, "protocol"),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n", "protocol"),
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n", "protocol"),
    "a chunk's length": (HEAD, b"0", "protocol"),
    "a chunk's extension": (HEAD + b"5;", b"a=b;", "protocol"),
    "trailers": (HEAD + b"0\r\n", b"X: y\r\n", "protocol"),
    "events in one chunk": (CHUNK, b": x\n\n", ""),
    "carriage returns": (CHUNK, b"\r", ""),
    "a line": (CHUNK + b"data: ", b"x", "line_too_long"),
    "an event of many lines": (CHUNK, b"data: x\n", "line_too_long"),
    "comments without a blank line": (CHUNK, b": ping\r\n", "line_too_long"),
    "a line by length": (b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999999999\r\n\r\n", b"x", "line_too_long"),
    "a line by close": (b"HTTP/1.1 200 OK\r\n\r\n", b"x", "line_too_long"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", _ENDLESS)
@pytest.mark.parametrize("read", [1500, 65_536])
def test_what_never_ends_is_refused_or_handed_on_and_never_kept(what: str, read: int) -> None:
    begin, more, error = _ENDLESS[what]
    response, decoder, kept = ResponseParser(), StreamDecoder(), 0
    data = begin + more * (read // len(more) + 1)
    refused = ""
    for _ in range((6 << 20) // len(data) + 1):
        try:
            for piece in response.feed(data):
                decoder.feed(piece, 1)
        except ProtocolError as refusal:
            refused = refusal.error
            break
        kept = max(kept, len(response._tail) + len(decoder._events._tail))
        data = more * (read // len(more) + 1)
    assert kept <= sse.LONGEST + http1._LONGEST_HEAD + read + 3
    assert refused == error
    decoder.end(2)
    assert EventParser.buffered == 0


@pytest.mark.slow
def test_lines_that_256_servers_never_end_hold_no_more_than_their_share_together() -> None:
    streams, piece, most, ended = [EventParser() for _ in range(256)], b"x" * 16_384, 0, 0
    while ended < len(streams):
        for stream in streams:
            ended += stream.feed(piece) == [sse.TOO_LONG]
        most = max(most, sum(len(stream._tail) for stream in streams))
    assert sse.TOGETHER - (8 << 20) < most <= sse.TOGETHER + 256 * 65_536
    assert EventParser.buffered == 0
    lone = EventParser()
    assert lone.feed(b"data: " + b"x" * (sse.LONGEST - 6)) == []
    assert len(lone.end()[0]) == sse.LONGEST - 6, "a stream alone may hold the longest event there is"
    assert EventParser.buffered == 0


def test_an_event_too_long_is_the_last_that_comes_out_and_those_before_it_stay() -> None:
    with small_limits():
        long = b"data: " + b"x" * 700
        for parts in (
            [b"data: a\n\n" + long[:400], long[400:] + b"\n\ndata: b\n\n"],
            [b"data: a\n\n", long, b"\n\n", b"data: b\n\n"],
        ):
            stream = EventParser()
            got = [data for part in parts for data in stream.feed(part)]
            assert got == [b"a", sse.TOO_LONG]
            assert stream.feed(b"data: c\n\n") == stream.end() == []


@pytest.mark.slow
def test_single_bytes_of_a_long_line_cost_the_same_each() -> None:
    """Kept bytes are appended, not copied: 300,000 reads of one byte would copy 45 GB."""
    stream = EventParser()
    for _ in range(300_000):
        stream.feed(b"x")
    assert stream.end() == [b"x" * 300_000], "a line without a field comes out as it is"


# The script.


def fuzz_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz", Path(__file__).parents[2] / "scripts" / "fuzz.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_script_counts_its_inputs_and_finds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz_script().main(["--inputs", "1200", "--seed", "7"]) == 0
    assert capsys.readouterr().out.startswith("1,200 inputs, ")


@pytest.fixture(scope="module")
def readers() -> Iterator[Readers]:
    made = Readers()
    yield made
    made.close()


@pytest.mark.parametrize("name", SHARES)
def test_a_damaged_file_is_read_or_refused_in_a_line(name: str, readers: Readers) -> None:
    choose, refused = random.Random(name), 0
    for data in readers.all[name].files:
        assert readers.wrong(name, data) == ""
        assert not readers.refused or name == "config", "a sound one is read; a large model fits on no card"
    for _ in range(10 * SHARES[name]):
        assert readers.wrong(name, readers.mutated(name, choose)) == ""
        refused += readers.refused
    assert refused > 0 or name == "spool", "a damaged spool is read up to its damage"


@pytest.mark.slow
def test_the_script_fuzzes_the_readers_and_finds_what_leaves_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fuzz_script().main(["--readers", "--inputs", "400", "--seed", "7"]) == 0
    assert capsys.readouterr().out.startswith("400 damaged files, ")
    monkeypatch.setattr(decoding, "WRONG", (KeyError,))
    assert fuzz_script().main(["--readers", "--inputs", "400"]) == 1
    assert "FINDING: seed 1, input " in capsys.readouterr().out


@pytest.mark.slow
def test_the_script_finds_a_planted_fault_and_shows_the_shortest_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http1, "_chunk_length", lambda line: int(line.partition(b";")[0], 16))
    assert fuzz_script().main(["--inputs", "5000"]) == 1
    output = capsys.readouterr().out
    assert "FINDING: seed 1, input " in output
    assert "ValueError" in output
    assert len(output) < 1000


def test_every_kind_of_answer_of_the_corpus_is_told_as_it_is() -> None:
    errors = [same_outcome(data, []).error for data in OTHERS]
    assert errors == ["oom", "http_429", "content_type", "", "http_2xx", "http_3xx", "encoding"]
    errors = [same_outcome(framed(body, how), []).error for body, how in itertools.product(BODIES[:-2], FRAMINGS)]
    assert set(errors) == {""}
    assert {same_outcome(framed(body, "events"), []).error for body in BODIES[-2:]} == {"stream_error"}
