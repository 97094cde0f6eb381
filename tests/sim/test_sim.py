import contextlib
import http.client
import itertools
import json
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from array import array
from pathlib import Path

import msgspec
import psutil
import pytest
from click.testing import CliRunner

from harness.base.errors import HarnessError
from harness.cli import cli
from harness.data.prediction import batch_cap
from harness.predict import fitting, question
from harness.predict.batching import StepMachine
from harness.predict.calibration import RANGES, encode
from harness.predict.roofline import predict
from harness.predict.sequence import SimulatedRequest
from harness.predict.steady import caps, steady_state
from harness.predict.step import decode_time, step_cost
from harness.sim.api import CHAT_OVERHEAD, WORDS, EventWriter, RefusalError, read
from harness.sim.connection import Entry, WriteLog, entries
from harness.sim.process import running, serving
from harness.sim.profile import Profile, Reference, StreamPace, profile
from harness.spec.work import MeanLengths

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
WITH_USAGE = {"stream": True, "stream_options": {"include_usage": True}}
fresh_id = map("request-{}".format, itertools.count()).__next__


class Server:
    def __init__(self, url, log):
        self.url, self.log = url, log
        self.address = ("127.0.0.1", int(url.rsplit(":", 1)[1]))

    def ask(self, path, body, **headers):
        """Status and body of one POST (or GET, without a body) on a connection of its own."""
        connection = http.client.HTTPConnection(*self.address, timeout=10)
        raw = json.dumps(body) if isinstance(body, dict) else body
        connection.request("GET" if raw is None else "POST", path, raw, headers)
        with contextlib.closing(connection), connection.getresponse() as response:
            return response.status, response.read()

    def stream(self, words, tokens, *, id=None, path=CHAT, **more):
        """The events of a streamed answer."""
        body = asking(words, tokens, path=path, **{**WITH_USAGE, **more})
        status, raw = self.ask(path, body, **{"X-Request-Id": id or fresh_id()})
        assert status == 200
        return events(raw)

    def connect(self):
        sock = socket.create_connection(self.address, timeout=10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def metrics(self):
        _, text = self.ask("/metrics", None)
        rows = (line.rsplit(" ", 1) for line in text.decode().splitlines() if line[0] != "#")
        return {name.split("{")[0]: float(value) for name, value in rows if "finished_reason" not in name}

    def until(self, seen, seconds=5):
        """Wait until `seen()` is true; its value."""
        end = time.monotonic() + seconds
        while not (value := seen()):
            assert time.monotonic() < end, "it never came"
            time.sleep(0.002)
        return value

    def entry(self, id):
        return self.until(lambda: next((each for each in entries(self.log) if each.id == id), None))


def asking(words, tokens, *, path=CHAT, **more):
    text = " ".join(["word"] * words)
    prompt = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    return {**prompt, "max_tokens": tokens, "ignore_eos": True, **more}


def posting(body, id="", path=CHAT):
    """The bytes of a request."""
    raw = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nX-Request-Id: {id}\r\nContent-Length: {len(raw)}\r\n\r\n"
    return head.encode() + raw


def events(raw):
    *parts, done, end = raw.decode().split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    return [json.loads(part.removeprefix("data: ")) for part in parts]


@contextlib.contextmanager
def server_of(tmp_path_factory, served=None, **figures):
    log = tmp_path_factory.mktemp("sim") / "writes"
    with running(served or profile(**figures), log=log) as url:
        yield Server(url, log)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with server_of(tmp_path_factory, speed=40, max_num_seqs=8, kv_tokens=4096) as server:
        yield server


@pytest.fixture(scope="module")
def flood(tmp_path_factory):
    """The reference endpoint, a token a write without a pace."""
    with server_of(tmp_path_factory, Reference(pace=StreamPace(flood=1))) as server:
        yield server


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """One request at a time; a step takes a few milliseconds."""
    with server_of(tmp_path_factory, speed=4, max_num_seqs=1) as server:
        yield server


# ---- what it says ---------------------------------------------------------------------------------------


def test_a_chat_stream_has_vllms_shape(server):
    role, *texts, usage = server.stream(5, 6, id="abc")
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [len(each["choices"][0]["delta"]["content"].split()) for each in texts] == [1] * 6
    assert [each["choices"][0]["finish_reason"] for each in texts] == [None] * 5 + ["length"]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 6
    assert {each["id"] for each in [role, *texts, usage]} == {"chatcmpl-abc"}


def test_a_completion_stream_has_text_and_no_role(server):
    *texts, usage = server.stream(5, 4, path=COMPLETIONS)
    assert [each["object"] for each in texts] == ["text_completion"] * 4
    assert all(each["choices"][0]["text"] for each in texts)
    assert usage["usage"]["prompt_tokens"] == 5


def test_without_include_usage_there_is_none(server):
    answer = server.stream(5, 3, stream_options={"continuous_usage_stats": True})
    assert len(answer) == 1 + 3
    assert not any("usage" in each for each in answer)


def test_continuous_usage_counts_up_with_the_tokens(server):
    options = {"include_usage": True, "continuous_usage_stats": True}
    answer = server.stream(5, 4, stream_options=options)
    assert [each["usage"]["completion_tokens"] for each in answer] == [0, 1, 2, 3, 4, 4]


def test_a_prompt_has_its_words_and_a_fixed_overhead(server):
    for words in (1, 17, 300):
        assert server.stream(words, 1)[-1]["usage"]["prompt_tokens"] == words + CHAT_OVERHEAD


def test_the_role_chunk_leaves_in_the_same_write_as_the_first_token(server):
    with server.connect() as sock:
        sock.sendall(posting(asking(5, 2, stream=True)))
        while b"assistant" not in (data := sock.recv(65536)):
            pass
    assert data.count(b'"content":') >= 2


def test_an_answer_that_is_not_streamed_comes_whole(server):
    status, raw = server.ask(CHAT, asking(5, 7))
    answer = json.loads(raw)
    assert status == 200
    assert len(answer["choices"][0]["message"]["content"].split()) == 7
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"] == {
        "prompt_tokens": 13, "total_tokens": 20, "completion_tokens": 7, "prompt_tokens_details": None
    }  # fmt: skip


def test_max_completion_tokens_is_taken_too(server):
    _, raw = server.ask(CHAT, {**asking(5, 50), "max_completion_tokens": 3})
    assert json.loads(raw)["usage"]["completion_tokens"] == 3


def test_the_model_list_names_the_model_and_its_context(server):
    _, raw = server.ask("/v1/models", None)
    (card,) = json.loads(raw)["data"]
    assert (card["id"], card["max_model_len"]) == ("llama-3.1-8b", 4096)


LLAMA = profile(kv_tokens=4096)


def test_without_ignore_eos_an_answer_ends_by_itself_and_its_length_varies():
    def ask(words):
        return read(CHAT, json.dumps(asking(words, 3000, ignore_eos=False)).encode(), LLAMA)

    asks = [ask(words) for words in range(1, 30)]
    assert {each.finish_reason for each in asks} == {"stop"}
    assert len({each.output_tokens for each in asks}) > 20
    assert asks[0] == ask(1)


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        (CHAT, b"{", 400, "truncated"),
        (CHAT, asking(5, 5) | {"max_tokens": "many"}, 400, "max_tokens"),
        (CHAT, asking(5, 0), 400, "max_tokens must be at least 1"),
        (CHAT, asking(4000, 200), 400, "4008 in the prompt and 200 in the answer"),
        (CHAT, {"max_tokens": 5}, 400, "messages"),
        (CHAT, asking(5, 5, n=2), 400, "n = 1"),
        (COMPLETIONS, {"prompt": "", "max_tokens": 5}, 400, "prompt"),
        (COMPLETIONS, {"prompt": ["a", "b"], "max_tokens": 5}, 400, "prompt"),
        (CHAT, asking(5, 5, model="gpt-9"), 404, "gpt-9"),
    ],
)
def test_a_wrong_request_is_refused_with_its_reason(path, body, status, message):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(RefusalError) as refused:
        read(path, raw, LLAMA)
    assert refused.value.status == status
    assert message in json.loads(refused.value.body)["error"]["message"]


def test_a_prompt_may_be_token_ids_and_content_may_come_in_parts():
    ids = {"prompt": [1, 2, 3], "max_tokens": 5}
    assert read(COMPLETIONS, json.dumps(ids).encode(), LLAMA).prompt_tokens == 3
    parts = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a b"}]}], "max_tokens": 1}
    assert read(CHAT, json.dumps(parts).encode(), LLAMA).prompt_tokens == 2 + CHAT_OVERHEAD


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    "options", [{}, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}]
)
def test_every_chunk_is_framed_to_the_byte_whatever_the_request_id(path, options):
    generation = read(path, json.dumps(asking(5, 70, path=path, stream=True, stream_options=options)).encode(), LLAMA)
    writer = EventWriter(generation, 'a "quoted" id about ä', "llama-3.1-8b", 1)
    data, seen = b"".join(writer.chunk(each, each == 69) for each in range(70)), b""
    while data:
        size, _, data = data.partition(b"\r\n")
        seen += data[: int(size, 16)]
        assert data[int(size, 16) :][:2] == b"\r\n"
        data = data[int(size, 16) + 2 :]
    ids = {each["id"] for each in events(seen)}
    assert len(ids) == 1
    assert ids.pop().endswith('a "quoted" id about ä')


@pytest.mark.parametrize(
    "options", [{}, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}]
)
@pytest.mark.parametrize("burst", [1, 2, 63, 64, 65, 200])
def test_tokens_that_leave_together_are_the_bytes_of_each_alone(burst, options):
    generation = read(CHAT, json.dumps(asking(5, 333, stream=True, stream_options=options)).encode(), LLAMA)
    writer = EventWriter(generation, "id", "llama-3.1-8b", 1)
    alone = b"".join(writer.chunk(each, each == 332) for each in range(333))
    starts = range(0, 333, burst)
    together = b"".join(writer.run(at, min(burst, 333 - at), at + burst >= 333) for at in starts)
    assert together == alone


def test_the_words_are_all_different_and_of_one_length():
    assert len(set(WORDS)) == 64
    assert {len(word) for word in WORDS} == {6}


# ---- how it behaves on the wire --------------------------------------------------------------------------


def test_what_does_not_exist_is_404_and_a_wrong_method_405(server):
    assert server.ask("/v2", None)[0] == 404
    assert server.ask(CHAT, None)[0] == 405
    assert server.ask("/metrics", b"{}")[0] == 405


def test_a_wrong_request_leaves_the_connection_usable(server):
    connection = http.client.HTTPConnection(*server.address, timeout=10)
    with contextlib.closing(connection):
        for body, status in ((b"{", 400), (json.dumps(asking(5, 2)).encode(), 200)):
            connection.request("POST", CHAT, body)
            response = connection.getresponse()
            response.read()
            assert response.status == status


@pytest.mark.parametrize("raw", [b"NONSENSE\r\n\r\n", b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"])
def test_what_cannot_be_read_as_a_request_is_refused_and_closed(server, raw):
    with server.connect() as sock:
        sock.sendall(raw)
        answer = b"".join(iter(lambda: sock.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 4")


def test_pipelined_requests_are_answered_in_order(server):
    with server.connect() as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\n\r\n" * 2000 + posting(asking(5, 3)) + posting(asking(6, 4)))
        seen = b""
        while b'"completion_tokens":4' not in seen:
            seen += sock.recv(65536)
    assert seen.count(b"HTTP/1.1 200 OK") == 2002
    assert 0 < seen.find(b'"completion_tokens":3') < seen.find(b'"completion_tokens":4')


def test_a_request_may_come_a_byte_at_a_time(server):
    with server.connect() as sock:
        for byte in posting(asking(1, 2)):
            sock.sendall(bytes([byte]))
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 OK")


def test_a_client_that_asks_first_is_told_to_continue(server):
    head, _, body = posting(asking(5, 2)).partition(b"\r\n\r\n")
    with server.connect() as sock:
        sock.sendall(head + b"\r\nExpect: 100-continue\r\n\r\n")
        assert sock.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(body)
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 OK")


def test_connection_close_is_kept_to(server):
    with server.connect() as sock:
        sock.sendall(posting(asking(5, 2)).replace(b"Host: x", b"Connection: close"))
        answer = b"".join(iter(lambda: sock.recv(65536), b""))
    assert b'"completion_tokens":2' in answer


def test_headers_come_at_once_while_the_request_is_queued(single):
    with single.connect() as first, single.connect() as second:
        first.sendall(posting(asking(5, 5000, stream=True)))
        first.recv(65536)
        second.sendall(posting(asking(5, 2, stream=True)))
        assert second.recv(65536).endswith(b"transfer-encoding: chunked\r\n\r\n")
        seen = single.metrics()
        assert (seen["vllm:num_requests_running"], seen["vllm:num_requests_waiting"]) == (1, 1)
    single.until(lambda: single.metrics()["vllm:num_requests_running"] == 0)


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_client_that_goes_away_frees_its_slot(single, how):
    id = fresh_id()
    with single.connect() as first:
        first.sendall(posting(asking(5, 5000, stream=True), id))
        data = first.recv(65536)
        while b"assistant" not in data:
            data += first.recv(65536)
        if how == "reset":
            first.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert single.stream(5, 2)[-1]["usage"]["completion_tokens"] == 2  # there is only one slot
    cut = single.entry(id)
    assert not cut.finished
    assert 1 <= cut.tokens == len(cut.writes_ns) < 5000


def test_a_queued_request_that_goes_away_is_forgotten(single):
    with single.connect() as first:
        first.sendall(posting(asking(5, 5000, stream=True)))
        first.recv(65536)
        with single.connect() as second:
            second.sendall(posting(asking(5, 5000, stream=True)))
            second.recv(65536)
        single.until(lambda: single.metrics()["vllm:num_requests_waiting"] == 0)
    single.until(lambda: single.metrics()["vllm:num_requests_running"] == 0)
    assert single.metrics()["vllm:kv_cache_usage_perc"] == 0


def test_the_write_log_agrees_with_what_was_received(server):
    ids = [fresh_id() for _ in range(24)]
    lengths = {id: 1 + 7 * k % 60 for k, id in enumerate(ids)}
    received = {}

    def client(mine):
        for id in mine:
            answer = server.stream(5, lengths[id], id=id)
            received[id] = sum(1 for each in answer if each["choices"] and each["choices"][0]["delta"]["content"])

    clients = [threading.Thread(target=client, args=(ids[k::12],)) for k in range(12)]
    begun = time.monotonic_ns()
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    for id in ids:
        entry = server.entry(id)
        assert entry.finished
        assert entry.tokens == received[id] == lengths[id] == len(entry.writes_ns)
        times = [begun, entry.received_ns, *entry.writes_ns, entry.end_ns, time.monotonic_ns()]
        assert times == sorted(times)


def test_a_finished_request_is_in_the_log_within_a_tenth_of_a_second(server):
    id = fresh_id()
    server.stream(5, 3, id=id)
    time.sleep(0.1)
    assert entries(server.log)[-1].id == id


def test_the_write_log_gives_back_what_was_put_in_and_only_whole_entries(tmp_path):
    log = WriteLog(tmp_path / "writes")
    put = [Entry(f"r{k}", 10, array("q", range(k)).tobytes(), k, k != 1, 10**18) for k in range(3)]
    for each in put:
        log.append(each)
    log.close()
    assert entries(tmp_path / "writes") == put
    cut = (tmp_path / "writes").read_bytes()[:-1]
    (tmp_path / "writes").write_bytes(cut)
    assert entries(tmp_path / "writes") == put[:2]


def test_an_answer_in_one_piece_is_one_write_of_all_its_tokens(server):
    id = fresh_id()
    server.ask(CHAT, asking(5, 9), **{"X-Request-Id": id})
    entry = server.entry(id)
    assert (entry.tokens, len(entry.writes_ns), entry.finished) == (9, 1, True)


def test_the_counters_conserve_tokens_and_requests(server):
    before = server.metrics()
    for words, tokens in ((5, 1), (9, 20), (30, 3)):
        server.stream(words, tokens)
    after = server.metrics()
    gained = {name: after[name] - before[name] for name in after}
    assert gained["vllm:generation_tokens_total"] == 24
    assert gained["vllm:prompt_tokens_total"] == 44 + 3 * CHAT_OVERHEAD
    assert gained["vllm:prefix_cache_queries_total"] == gained["vllm:prompt_tokens_total"]
    assert gained["vllm:prefix_cache_hits_total"] == 0


def test_successes_are_counted_by_reason_and_cut_requests_are_not(single):
    def successes():
        _, text = single.ask("/metrics", None)
        return [line for line in text.decode().splitlines() if line.startswith("vllm:request_success_total")]

    before = successes()
    with single.connect() as cut:
        cut.sendall(posting(asking(5, 5000, stream=True)))
        cut.recv(65536)
    single.until(lambda: single.metrics()["vllm:num_requests_running"] == 0)
    assert successes() == before
    single.stream(5, 2)
    changed = [new for old, new in zip(before, successes(), strict=True) if old != new]
    assert len(changed) == 1
    assert 'finished_reason="length"' in changed[0]


@pytest.mark.slow
def test_a_slow_reader_gets_everything_and_holds_up_nobody(tmp_path_factory):
    id, tokens = fresh_id(), 30_000  # 9 MB: more than the kernel keeps for one socket
    with server_of(tmp_path_factory, speed=1000) as quick, socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(quick.address)
        options = {"include_usage": True, "continuous_usage_stats": True}
        slow.sendall(posting(asking(5, tokens, stream=True, stream_options=options), id))
        quick.until(lambda: quick.metrics()["vllm:generation_tokens_total"] == tokens, seconds=60)
        assert quick.stream(5, 3)[-1]["usage"]["completion_tokens"] == 3
        assert id not in [each.id for each in entries(quick.log)]  # not all of it has left
        seen = b""
        while not seen.endswith(b"0\r\n\r\n"):
            piece = slow.recv(1 << 20)
            assert piece
            seen = seen[-64:] + piece
        assert quick.entry(id).tokens == tokens


# ---- the clock -------------------------------------------------------------------------------------------


@pytest.mark.alone
@pytest.mark.slow
def test_steps_follow_the_machine_and_do_not_drift(single):
    figures = profile(speed=4, max_num_seqs=1)
    machine = StepMachine(figures.model, figures.deployment)
    machine.submit(SimulatedRequest(1, 5 + CHAT_OVERHEAD, 400))
    machine.step()
    planned = sum(machine.step().duration for _ in range(399))
    id = fresh_id()
    single.stream(5, 400, id=id)
    writes = single.entry(id).writes_ns
    # Within two of 399 steps: had each step waited for the writes of the one before, it would be many more.
    assert (writes[-1] - writes[0]) / 1e9 == pytest.approx(planned, abs=2 * planned / 399)


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("C", [8, 24])
def test_steady_throughput_is_the_predicted_one(tmp_path_factory, C):
    figures, shape = profile(speed=2, max_num_seqs=12), MeanLengths(64, 64)
    cap = batch_cap(caps(figures.model, figures.deployment, shape))
    point = steady_state(step_cost(figures.model, figures.deployment), shape, C, cap)
    one_request = point.ttft + 63 * point.itl
    with server_of(tmp_path_factory, speed=2, max_num_seqs=12) as server:
        begin = time.monotonic() + 2 * one_request  # staggered over one request, and one more
        end = begin + 1.5

        def user(k):
            time.sleep(k / C * one_request)
            while time.monotonic() < end:
                server.stream(64 - CHAT_OVERHEAD, 64)

        users = [threading.Thread(target=user, args=(k,)) for k in range(C)]
        for each in users:
            each.start()
        for each in users:
            each.join()
        server.until(lambda: server.metrics()["vllm:generation_tokens_total"] == _logged_tokens(server))
        inside = sum(begin <= write / 1e9 < end for each in entries(server.log) for write in each.writes_ns)
    assert inside / (end - begin) == pytest.approx(point.throughput, rel=0.1)


def _logged_tokens(server):
    return sum(each.tokens for each in entries(server.log))


# ---- the reference endpoint ------------------------------------------------------------------------------


def streams(server, n, tokens):
    """Ask for n streams at once; the write log's entries when all have ended."""
    ids = [fresh_id() for _ in range(n)]
    clients = [threading.Thread(target=server.stream, args=(5, tokens), kwargs={"id": id}) for id in ids]
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    return [server.entry(id) for id in ids]


@pytest.mark.alone
@pytest.mark.slow
def test_paced_writes_are_one_itl_apart_in_bursts_of_streams_by_groups(tmp_path_factory):
    itl, groups, n, tokens = 0.1, 4, 24, 30  # groups are so far apart that a busy machine's time slices do not mix them
    with server_of(tmp_path_factory, Reference(pace=StreamPace(ttft_s=0.1, itl_s=itl, groups=groups))) as paced:
        logged = streams(paced, n, tokens)
    phases = []
    for entry in logged:
        writes = [write / 1e9 for write in entry.writes_ns]
        assert len(writes) == tokens
        # A write is late now and then, never early: the typical one says where in the ITL the stream lies.
        ahead = sorted(write - writes[0] - k * itl for k, write in enumerate(writes))
        phases.append((writes[0] + ahead[tokens // 2]) % itl)
        assert (writes[-1] - writes[0]) / (tokens - 1) == pytest.approx(itl, rel=0.02)
        assert writes[0] - entry.received_ns / 1e9 >= 0.1 - 1e-6
    # Phases lie on a circle: turned so that the first burst is at the start, each is at a multiple of ITL / groups.
    slots = [(phase - phases[0]) / itl * groups for phase in phases]
    assert all(abs(slot - round(slot)) < 0.2 for slot in slots)
    assert [[round(slot) % groups for slot in slots].count(k) for k in range(groups)] == [n // groups] * groups


def test_the_reference_endpoint_gives_what_max_tokens_says_without_ignore_eos(flood):
    for n in (1, 2, 700):
        answer = flood.stream(5, n, ignore_eos=False)
        assert answer[-1]["usage"]["completion_tokens"] == n
        assert answer[-2]["choices"][0]["finish_reason"] == "length"
    _, raw = flood.ask(CHAT, asking(5, 7))
    assert json.loads(raw)["usage"]["completion_tokens"] == 7


def test_a_flood_writes_each_token_alone_and_a_bulk_flood_many_at_once(flood, tmp_path_factory):
    id = fresh_id()
    flood.stream(5, 150, id=id)
    assert len(flood.entry(id).writes_ns) == 150
    with server_of(tmp_path_factory, Reference(pace=StreamPace(flood=64))) as bulk:
        assert len(bulk.stream(5, 150, id=id)) == 1 + 150 + 1  # a role, 150 tokens, the usage
        entry = bulk.entry(id)
        assert (len(entry.writes_ns), entry.tokens) == (3, 150)


@pytest.mark.alone
def test_a_lump_is_one_write_and_one_chunk_of_several_tokens_at_the_same_pace(tmp_path_factory):
    with server_of(tmp_path_factory, Reference(pace=StreamPace(ttft_s=0.01, itl_s=0.002, groups=1, lump=4))) as lumps:
        id = fresh_id()
        assert len(lumps.stream(5, 42, id=id)) == 1 + 42 + 1  # a role, 42 tokens, the usage
        entry = lumps.entry(id)
        assert (len(entry.writes_ns), entry.tokens) == (11, 42)
        apart = (entry.writes_ns[-1] - entry.writes_ns[0]) / 10e9
        assert apart == pytest.approx(0.008, rel=0.2)
        with lumps.connect() as sock:
            sock.sendall(posting(asking(5, 8, stream=True), fresh_id()))
            raw = b""
            while not raw.endswith(b"0\r\n\r\n"):
                raw += sock.recv(65_536)
    chunks = [part for part in raw.split(b"\r\n") if part.startswith(b"data: ")]
    assert [chunk.count(b'"content"') for chunk in chunks[:2]] == [5, 4], "the role came with the first four"


def test_a_reader_that_reads_nothing_does_not_stop_the_flood_of_the_others(flood):
    id, tokens = fresh_id(), 100_000
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(flood.address)
        slow.sendall(posting(asking(5, tokens, stream=True), id))
        before = flood.metrics()["vllm:generation_tokens_total"]
        for entry in streams(flood, 4, 500):
            assert entry.tokens == 500
        assert flood.metrics()["vllm:num_requests_running"] == 1
        written = flood.metrics()["vllm:generation_tokens_total"] - before
        assert written < 4 * 500 + tokens  # it waits for its reader
    assert 0 < flood.entry(id).tokens < tokens


@pytest.mark.slow
def test_a_reader_that_wakes_up_gets_all_of_its_flood(flood):
    id, tokens = fresh_id(), 20_000
    with flood.connect() as sock:
        sock.sendall(posting(asking(5, tokens, stream=True), id))
        time.sleep(0.2)
        seen = b""
        while not seen.endswith(b"0\r\n\r\n"):
            seen = seen[-64:] + sock.recv(1 << 20)
    entry = flood.entry(id)
    assert (entry.finished, entry.tokens, len(entry.writes_ns)) == (True, tokens, tokens)


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_client_that_leaves_a_flood_is_forgotten(flood, how):
    id = fresh_id()
    with flood.connect() as sock:
        sock.sendall(posting(asking(5, 1_000_000, stream=True), id))
        sock.recv(65536)
        if how == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert not flood.entry(id).finished
    flood.until(lambda: flood.metrics()["vllm:num_requests_running"] == 0)


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("pace", [StreamPace(), StreamPace(flood=1)])
def test_an_endpoint_with_nothing_to_write_sleeps(tmp_path, pace):
    with serving(Reference(pace=pace), log=tmp_path / "writes") as served:
        server = Server(served.url, tmp_path / "writes")
        server.stream(5, 3)
        with socket.socket() as slow:  # a flood that waits for its reader is no reason to be awake
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect(server.address)
            if pace.flood:
                slow.sendall(posting(asking(5, 100_000, stream=True)))
            time.sleep(0.2)
            process = psutil.Process(*served.pids)
            before = process.cpu_times()
            time.sleep(0.5)
            after = process.cpu_times()
    assert after.user + after.system - before.user - before.system <= 0.05


def test_two_processes_share_one_port_and_keep_a_log_each(tmp_path):
    with serving(Reference(pace=StreamPace(flood=1)), log=tmp_path / "writes", processes=2) as served:
        server = Server(served.url, served.logs[0])
        ids = [fresh_id() for _ in range(24)]
        for id in ids:
            server.stream(5, 2, id=id)
    logged = [[entry.id for entry in entries(log)] for log in served.logs]
    assert [log.name for log in served.logs] == ["writes", "writes.1"]
    assert sorted(logged[0] + logged[1]) == sorted(ids)
    assert all(logged)  # the kernel deals by the client's port: 24 to one process is a chance of 2^-23
    with pytest.raises(ConnectionRefusedError):
        server.connect()


# ---- the process -----------------------------------------------------------------------------------------


def test_the_process_ends_with_its_block_and_logs_what_it_cut(tmp_path):
    log, id = tmp_path / "writes.jsonl", fresh_id()
    with running(profile(), log=log) as url:
        server = Server(url, log)
        with server.connect() as sock:
            sock.sendall(posting(asking(5, 5000, stream=True), id))
            sock.recv(65536)
            server.until(lambda: server.metrics()["vllm:generation_tokens_total"] > 3)
    (cut,) = entries(log)
    assert (cut.id, cut.finished) == (id, False)
    with pytest.raises(ConnectionRefusedError):
        server.connect()


def launched(*arguments):
    command, pipe = [sys.executable, "-m", "harness.sim", *arguments], subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    process.stdin.write(msgspec.json.encode(profile()).decode() + "\n")
    process.stdin.flush()
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(number):
    with launched() as process:
        assert process.stdout.readline().startswith("ready http://127.0.0.1:")
        process.send_signal(number)
        assert process.wait(5) == 0
        assert process.stderr.read() == ""


def test_it_ends_when_the_one_that_started_it_is_gone():
    with launched() as process:
        assert process.stdout.readline().startswith("ready ")
        process.stdin.close()
        assert process.wait(5) == 0


def test_an_operators_mistake_is_one_line_and_status_1():
    with launched("--log", "/nowhere/at/all") as process:
        _, stderr = process.communicate(timeout=10)
        assert process.returncode == 1
    assert stderr.startswith("error: ")
    assert "/nowhere/at/all: cannot be written" in stderr
    assert stderr.count("\n") == 1


def test_a_taken_port_is_an_operators_mistake():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with launched("--port", str(port)) as process:
            _, stderr = process.communicate(timeout=10)
    fact = f"cannot listen on 127.0.0.1:{port}: Address already in use"
    assert stderr == f"error: --port: {fact}; --port 0 takes a free one\n"


def test_it_starts_without_the_heavy_imports():
    heavy = {"numpy", "httpx", "click", "rich", "asyncio"}
    code = f"import sys, harness.sim.__main__; print(*{heavy} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"


def test_an_endpoint_that_cannot_start_says_so(tmp_path):
    with pytest.raises(HarnessError, match="ended with status 1"), running(profile(), log=tmp_path / "no" / "log"):
        pass


@pytest.mark.parametrize(
    "served",
    [
        profile(max_num_seqs=3, kv_tokens=999, speed=1.7),
        Reference(pace=StreamPace(groups=3, flood=2)),
    ],
    ids=["model", "reference"],
)
def test_a_profile_travels_unchanged(served):
    assert msgspec.json.decode(msgspec.json.encode(served), type=Profile | Reference) == served


@pytest.mark.parametrize(
    "figures", [{"max_num_seqs": 0}, {"speed": 0}, {"speed": float("nan")}, {"kv_tokens": 15}, {"tp": 0}, {"dp": 0}]
)
def test_a_profile_that_serves_nobody_is_refused(figures):
    with pytest.raises(HarnessError):
        profile(**figures)


def test_the_prediction_for_a_profile_names_its_max_num_seqs():
    served = profile(max_num_seqs=16)
    prediction = predict(served.model, served.deployment, MeanLengths(128, 64), [1, 16, 32], simulated=True)
    assert prediction.binding_cap == "max_num_seqs"
    assert prediction.simulated
    assert StepMachine(served.model, served.deployment).max_num_seqs == prediction.hinge_concurrency == 16


# ---- knee sim --------------------------------------------------------------------------------------------

DEPLOYED = (
    "--model-config", "qwen2.5-7b", "--gpu", "h200-sxm", "--tp", "2", "--dtype", "fp8", "--kv-dtype", "fp8",
    "--max-num-seqs", "64", "--max-num-batched-tokens", "2048", "--draft-tokens", "2", "--acceptance", "0.5",
    "--layer-overhead", "1ms", "--mfu", "0.3",
)  # fmt: skip
FIGURES = {
    "tp": 2, "max_num_seqs": 64, "max_num_batched_tokens": 2048, "draft_tokens": 2, "acceptance": 0.5,
    "o_layer": 1e-3, "mfu_prefill": 0.3, "mfu_decode": 0.3,
}  # fmt: skip


def setup_of(model="llama-3.1-8b", gpu="h100-sxm", figures=None, **more):
    """What a prediction takes for the same words: model and deployment, where requests are taken in at once."""
    figures = {"o_token": 0.0, "o_first": 0.0} | (figures or {})
    asked = question.Question(model=model, gpu=gpu, input_tokens=1, output_tokens=1, figures=figures, **more)
    return question.setup(asked)[:2]


@pytest.fixture
def chosen(monkeypatch):
    """What `knee sim` would serve."""

    def ask(*arguments):
        kept = []
        with monkeypatch.context() as patched:
            patched.setattr("harness.sim.process.serve", lambda profile, *_, **__: kept.append(profile))
            got = CliRunner().invoke(cli, ["sim", *arguments])
        assert got.exit_code == 0, got.output
        return kept[0]

    return ask


def test_sim_serves_what_predict_predicts_by_the_same_options(chosen):
    served = chosen(*DEPLOYED)
    made, where = setup_of("qwen2.5-7b", "h200-sxm", dtype="fp8", kv_dtype="fp8", figures=FIGURES)
    assert (served.model, served.deployment) == (made, where)
    assert (served.name, served.model_name) == ("qwen2.5-7b/h200-sxm", "qwen2.5-7b")
    assert chosen(*DEPLOYED, "--speed", "3").deployment == msgspec.structs.replace(where, speed=3.0)


def test_sim_says_how_it_serves_what_prompts_share_and_who_goes_first(chosen):
    served = chosen(
        "--prefix-caching", "--block-size", "128", "--scheduling-policy", "priority", "--reasoning-tokens", "40"
    )
    assert (served.deployment.prefix_caching, served.deployment.scheduling_policy) == (True, "priority")
    assert served.deployment.block_size == 128
    assert served.reasoning_tokens == 40
    plain = chosen()
    assert (plain.deployment.prefix_caching, plain.deployment.scheduling_policy) == (False, "fcfs")
    assert plain.reasoning_tokens == 0


def test_a_model_or_a_card_alone_is_beside_the_other_of_the_default(chosen):
    served = chosen("--model-config", "qwen2.5-7b")
    assert (served.model, served.deployment) == setup_of("qwen2.5-7b")
    served = chosen("--gpu", "h200-sxm")
    assert (served.model, served.deployment) == setup_of(gpu="h200-sxm")


def test_a_profile_is_as_it_was_and_takes_the_other_figures(chosen):
    assert chosen() == chosen("--profile", "llama-3.1-8b/h100-sxm") == profile(speed=1.0)
    assert chosen("--max-num-seqs", "4", "--speed", "2") == profile(max_num_seqs=4, speed=2.0)
    shared = chosen("--profile", "llama-3.1-70b/h100-sxm", "--tp", "4", "--dtype", "fp8")
    assert shared == profile("llama-3.1-70b/h100-sxm", speed=1.0, tp=4, dtype="fp8")


def test_a_config_json_is_called_by_its_folder(chosen, tmp_path):
    config = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 1000, "max_position_embeddings": 2048,
    }  # fmt: skip
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    for path in (folder, folder / "config.json"):
        served = chosen("--model-config", str(path), "--gpu", "l4")
        assert (served.name, served.max_model_len) == ("tiny/l4", 2048)


@pytest.fixture
def calibration(tmp_path):
    """The profile file of a server that reads at half of its bandwidth, on two cards."""
    made, where = setup_of(gpu="h200-sxm", figures={"tp": 2})
    slow, shape = msgspec.structs.replace(where, mbu=0.4), MeanLengths(1000, 200)
    points = [
        fitting.CalibrationPoint(
            concurrency=level.concurrency, output_tokens_per_s=level.output_tokens_per_s.mid,
            itl_s=level.itl_s, ttft_s=level.ttft_s,
        )
        for level in predict(made, slow, shape, [1, 4, 16, 64]).levels
    ]  # fmt: skip
    path = tmp_path / "calibration.json"
    path.write_text(encode(fitting.fit(made, where, shape, points, [1, 16], source="results/x")))
    return str(path)


def test_a_calibration_makes_it_as_slow_as_that_server_was(chosen, calibration):
    named = ("--model-config", "llama-3.1-8b", "--gpu", "h200-sxm", "--tp", "2")
    sheet, slow = chosen(*named), chosen(*named, "--calibration", calibration)
    figures = json.loads(Path(calibration).read_text())
    assert all(getattr(slow.deployment, name) == figures[name] for name in RANGES)
    assert (slow.model, slow.deployment.tp) == (sheet.model, 2)
    one_step = [StepMachine(each.model, each.deployment).cost for each in (sheet, slow)]
    assert decode_time(one_step[1], 1, 1000) > 1.3 * decode_time(one_step[0], 1, 1000)
    assert chosen("--profile", "llama-3.1-8b/h200-sxm", "--tp", "2", "--calibration", calibration).deployment == (
        msgspec.structs.replace(slow.deployment, max_num_seqs=16)
    )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--profile", "llama-3.1-8b/l4", "--gpu", "l4"], "--profile: it names a model and a card, as --gpu does"),
        (["--profile", "a/b", "--model-config", "c"], "--profile: it names a model and a card, as --model-config does"),
        (["--profile", ""], "--profile: '' is not MODEL/GPU"),
        (["--hub"], "--hub: it has no effect without --model-config"),
        (["--host-cpus", "0"], "--host-cpus: it has no effect without --gpu"),
        (["--gpu", "l4", "--host-cpus", "0"], "--host-cpus: it is for --gpu host, not for l4"),
        (["--model-config", "llama-3.1-9b"], "--model-config: unknown model 'llama-3.1-9b'"),
        (["--model-config", "llama-3.1-70b"], "--gpu: llama-3.1-70b (141 GB of weights) does not fit on one h100-sxm"),
        (["--gpu", "h1000"], "--gpu: unknown GPU 'h1000'"),
        (["--dtype", "int3"], "--dtype: unknown precision 'int3'"),
        (["--tp", "3"], "--tp: 3 GPUs cannot share the 32 heads"),
        (["--max-num-seqs", "0"], "--max-num-seqs: "),
        (["--kv-tokens", "15"], "--kv-tokens: its KV cache is smaller than a block of 16 tokens"),
        (
            ["--max-num-batched-tokens", "2", "--draft-tokens", "4", "--acceptance", "0.5"],
            "--max-num-batched-tokens: a step of 2 tokens cannot verify the 5 of one request",
        ),
        (["--speed", "nan"], "--speed: nan times real time"),
        (["--layer-overhead", "soon"], "--layer-overhead: 'soon' is not a duration"),
        (
            ["--gpu", "l40s", "--calibration", "FILE"],
            "--calibration: it was made for llama-3.1-8b (16.1 GB) on h200-sxm",
        ),
    ],
)
def test_what_cannot_be_served_is_one_line_and_status_1(arguments, line, calibration):
    got = CliRunner().invoke(cli, ["sim", *(calibration if each == "FILE" else each for each in arguments)])
    assert got.exit_code == 1, got.output
    assert got.output.startswith(f"error: {line}")
    assert got.output.count("\n") == 1


@pytest.mark.alone
@pytest.mark.slow
def test_two_servers_of_one_model_pace_their_streams_by_how_many_cards_share_it(tmp_path):
    tokens, planned, measured = 200, [], []
    for tp in (1, 4):
        made, where = setup_of(figures={"tp": tp, "max_num_seqs": 64, "speed": 2.0})
        machine = StepMachine(made, where)
        machine.submit(SimulatedRequest(1, 5 + CHAT_OVERHEAD, tokens))
        machine.step()
        planned.append(sum(machine.step().duration for _ in range(tokens - 1)))
        log, id = tmp_path / f"writes-{tp}", fresh_id()
        named = ("--model-config", "llama-3.1-8b", "--gpu", "h100-sxm", "--tp", str(tp), "--max-num-seqs", "64")
        command = [sys.executable, "-m", "harness", "sim", *named, "--speed", "2", "--port", "0", "--log", str(log)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            server = Server(process.stdout.readline().split()[1], log)
            _, raw = server.ask("/v1/models", None)
            assert [card["id"] for card in json.loads(raw)["data"]] == ["llama-3.1-8b"]
            assert server.stream(5, tokens, id=id, model="llama-3.1-8b")[-1]["usage"]["completion_tokens"] == tokens
            writes = server.entry(id).writes_ns
            process.terminate()
            assert process.wait(5) == 0
        measured.append((writes[-1] - writes[0]) / 1e9)
    assert planned[0] > 1.5 * planned[1], "else they could not be told apart"
    assert measured[0] / measured[1] == pytest.approx(planned[0] / planned[1], rel=0.1)
    assert measured == pytest.approx(planned, rel=0.1)
