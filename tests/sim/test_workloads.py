"""What the endpoint does with prompts that begin alike, with priorities, reasoning and replicas."""

from __future__ import annotations

import json
import threading
import urllib.request

import pytest

from harness.base.errors import HarnessError
from harness.predict.batching import StepMachine
from harness.predict.sequence import SimulatedRequest
from harness.sim.api import CHAT_OVERHEAD, read
from harness.sim.connection import entries
from harness.sim.process import running
from harness.sim.profile import embedded, profile
from harness.spec.reading import build
from harness.spec.scenario import Sim
from tests.builders.prefix_hits import Hits, hits

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def post(url, path, **body):
    """The events of a streamed answer, or the body of one that is not."""
    body = {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True} | body
    id = {"X-Request-Id": body.pop("id", "")}
    request = urllib.request.Request(url + path, json.dumps(body).encode(), id)
    with urllib.request.urlopen(request, timeout=10) as response:
        raw = response.read().decode()
    if not body["stream"]:
        return json.loads(raw)
    *events, done, _ = raw.split("\n\n")
    assert done == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


def cached(events):
    return events[-1]["usage"]["prompt_tokens_details"]["cached_tokens"]


def words(n, word="word"):
    return " ".join(f"{word}{i}" for i in range(n))


def user(text):
    return {"role": "user", "content": text}


def metric(url, name):
    with urllib.request.urlopen(url + "/metrics", timeout=10) as response:
        rows = response.read().decode().splitlines()
    return next(float(row.rsplit(" ", 1)[1]) for row in rows if row.startswith(f"vllm:{name}{{"))


def prefix_counters(url):
    """Tokens looked up, and found."""
    return metric(url, "prefix_cache_queries_total"), metric(url, "prefix_cache_hits_total")


@pytest.fixture(scope="module")
def caching():
    with running(profile(speed=40, prefix_caching=True)) as url:
        yield url


# ---- the prefix cache -----------------------------------------------------------------------------------


def test_usage_and_counters_say_what_of_a_prompt_was_cached(caching):
    """50 words are three blocks of 16; the second prompt shares 40 of them, which are two."""
    before = prefix_counters(caching)
    first = post(caching, COMPLETIONS, prompt=words(50, "a"), max_tokens=2)
    second = post(caching, COMPLETIONS, prompt=words(40, "a") + " " + words(10, "b"), max_tokens=2)
    assert (cached(first), cached(second)) == (0, 32)
    after = prefix_counters(caching)
    assert (after[0] - before[0], after[1] - before[1]) == (100, 32)
    assert first[-2].get("usage") is None


def test_only_the_last_usage_says_so_as_vllms_does(caching):
    options = {"include_usage": True, "continuous_usage_stats": True}
    *running_usage, last = post(caching, CHAT, messages=[user(words(9))], max_tokens=3, stream_options=options)
    assert [each["usage"]["prompt_tokens_details"] for each in running_usage] == [None] * 4
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    whole = post(caching, COMPLETIONS, prompt=words(33, "c"), max_tokens=3, stream=False)
    again = post(caching, COMPLETIONS, prompt=words(33, "c"), max_tokens=3, stream=False)
    assert [each["usage"]["prompt_tokens_details"] for each in (whole, again)] == [
        {"cached_tokens": 0},
        {"cached_tokens": 32},
    ]


def test_a_conversation_finds_all_its_turns_but_the_last_message(caching):
    """Turn by turn 40 words and an answer of 30: the next finds the whole blocks of all but the answer's last token."""
    messages, known, found, expected = [], 0, [], [0]
    for turn in range(4):
        messages.append(user(words(40, f"turn{turn}-")))
        _, *texts, usage = events = post(caching, CHAT, messages=messages, max_tokens=30)
        known = usage["usage"]["prompt_tokens"] + 30
        found.append(cached(events))
        expected.append((known - 1) // 16 * 16)
        answer = "".join(each["choices"][0]["delta"]["content"] for each in texts)
        messages.append({"role": "assistant", "content": answer})
    assert known == CHAT_OVERHEAD + 4 * 70
    assert found == expected[:-1] == [0, 64, 144, 208]


def test_what_is_served_one_after_the_other_is_what_is_expected():
    served = profile(prefix_caching=True)
    machine = StepMachine(served.model, served.deployment)
    texts = [words(20 * (k % 4), f"shared{k % 3}-") + " " + words(30, f"own{k}-") for k in range(24)]
    found = 0
    for k, text in enumerate(texts):
        generation = read(COMPLETIONS, json.dumps({"prompt": text, "max_tokens": 1}).encode(), served)
        machine.submit(SimulatedRequest(k, generation.prompt_tokens, 1, hashes=generation.hashes))
        machine.step()
        found += machine.cached_tokens(k)
    expected = hits([text.split() for text in texts], block=16)
    assert expected == Hits(24 * 30 + 6 * (20 + 40 + 60), found)
    assert found > 0


def test_without_prefix_caching_nothing_is_hashed_and_usage_says_nothing():
    body = json.dumps({"prompt": words(50), "max_tokens": 20}).encode()
    assert read(COMPLETIONS, body, profile()).hashes == ()
    assert len(read(COMPLETIONS, body, profile(prefix_caching=True)).hashes) == 4  # 70 tokens
    with running(profile(speed=40)) as url:
        for _ in range(2):
            usage = post(url, COMPLETIONS, prompt=words(50), max_tokens=2)[-1]["usage"]
            assert usage["prompt_tokens_details"] is None
        assert prefix_counters(url) == (100, 0)


# ---- priorities -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "order"), [("fcfs", "first late urgent"), ("priority", "first urgent late")])
def test_a_request_of_a_lower_number_passes_others_in_the_queue(tmp_path, policy, order):
    log = tmp_path / "writes"
    with running(profile(speed=4, max_num_seqs=1, scheduling_policy=policy), log=log) as url:

        def send(id, priority, tokens):
            body = {"prompt": "one two", "max_tokens": tokens, "priority": priority, "id": id}
            thread = threading.Thread(target=post, args=(url, COMPLETIONS), kwargs=body)
            thread.start()
            return thread

        threads = []
        for id, priority, tokens, state in (
            ("first", 9, 200, "running"),
            ("late", 5, 2, "waiting"),
            ("urgent", -1, 2, "waiting"),
        ):
            before = metric(url, f"num_requests_{state}")
            threads.append(send(id, priority, tokens))
            while metric(url, f"num_requests_{state}") == before:
                pass
        for thread in threads:
            thread.join()
    assert [each.id for each in entries(log)] == order.split()


# ---- reasoning ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reasoning():
    with running(profile(speed=40, reasoning_tokens=3)) as url:
        yield url


def test_an_answer_begins_with_its_reasoning(reasoning):
    role, *texts, usage = post(reasoning, CHAT, messages=[user("why")], max_tokens=5)
    assert [list(each["choices"][0]["delta"]) for each in texts] == [["reasoning"]] * 3 + [["content"]] * 2
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert usage["usage"]["completion_tokens"] == 5
    assert usage["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}


def test_reasoning_counts_up_with_the_tokens_and_may_be_all_there_is(reasoning):
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = post(reasoning, CHAT, messages=[user("why")], max_tokens=2, stream_options=options)
    counts = [each["usage"]["completion_tokens_details"]["reasoning_tokens"] for each in events]
    assert counts == [0, 1, 2, 2]
    assert "content" not in events[-2]["choices"][0]["delta"]


def test_an_answer_in_one_piece_holds_reasoning_and_text_apart(reasoning):
    answer = post(reasoning, CHAT, messages=[user("why")], max_tokens=5, stream=False)
    message = answer["choices"][0]["message"]
    assert (len(message["reasoning"].split()), len(message["content"].split())) == (3, 2)
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}


def test_a_completion_has_no_reasoning(reasoning):
    *texts, usage = post(reasoning, COMPLETIONS, prompt="why", max_tokens=5)
    assert [len(each["choices"][0]["text"].split()) for each in texts] == [1] * 5
    assert "completion_tokens_details" not in usage["usage"]


# ---- replicas -------------------------------------------------------------------------------------------


def test_two_replicas_of_one_seat_answer_two_requests_at_once(tmp_path):
    log = tmp_path / "writes"
    with running(profile(speed=4, max_num_seqs=1, dp=2), log=log) as url:
        asks = [
            threading.Thread(
                target=post, args=(url, COMPLETIONS), kwargs={"prompt": "one two", "max_tokens": 60, "id": id}
            )
            for id in ("a", "b")
        ]
        for each in asks:
            each.start()
        for each in asks:
            each.join()
    one, other = entries(log)
    assert (one.tokens, other.tokens) == (60, 60)
    assert max(one.received_ns, other.received_ns) < min(one.end_ns, other.end_ns)
    assert one.writes_ns[0] < other.writes_ns[-1]
    assert other.writes_ns[0] < one.writes_ns[-1]


def test_a_scenario_says_what_its_embedded_endpoint_does() -> None:
    usual = embedded(Sim(), prefix_caching=True)
    assert usual == profile(max_num_seqs=16, speed=1.0, prefix_caching=True)
    own = {
        "prefix_caching": False,
        "block_size": 32,
        "scheduling_policy": "priority",
        "reasoning_tokens": 9,
        "replicas": 2,
    }
    made = embedded(build({"sim": own}, place="test").sim, prefix_caching=True)
    where = made.deployment
    assert (where.prefix_caching, where.block_size, where.scheduling_policy) == (False, 32, "priority")
    assert (made.reasoning_tokens, where.dp, where.gpus) == (9, 2, 2)


@pytest.mark.parametrize(("key", "value"), [("block_size", 0), ("replicas", 0), ("reasoning_tokens", -1)])
def test_an_embedded_endpoint_that_cannot_be_is_refused(key: str, value: int) -> None:
    with pytest.raises(HarnessError, match=rf"\$\.sim\.{key}"):
        build({"sim": {key: value}}, place="test")
