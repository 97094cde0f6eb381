"""Blocks that are kept for prompts that begin alike: alone, and in the step machine with blocks of 16 tokens."""

from __future__ import annotations

from itertools import count

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.base.errors import HarnessError
from harness.predict.batching import StepMachine
from harness.predict.catalog import gpu, model_config
from harness.predict.deployment import deployment
from harness.predict.model import model
from harness.predict.sequence import PrefixCache, SimulatedRequest
from harness.predict.step import decode_time, prefill_time, step_cost

LLAMA = model(model_config("llama-3.1-8b"), "llama-3.1-8b")
H100 = deployment(gpu("h100-sxm"), max_num_seqs=16, prefix_caching=True)
COST = step_cost(LLAMA, H100)


def machine(**figures):
    return StepMachine(LLAMA, msgspec.structs.replace(H100, **figures))


def request(id, prompt, answer, hashes=(), **more):
    return SimulatedRequest(id, prompt, answer, hashes=tuple(hashes), **more)


def serve(server, *requests):
    """Submit them and let the server end all; prompt tokens of each that it found in its cache."""
    for each in requests:
        server.submit(each)
    found = {}
    while (step := server.step()) is not None:
        found.update({token.request: server.cached_tokens(token.request) for token in step.tokens})
    return [found[each.id] for each in requests]


# ---- the blocks -----------------------------------------------------------------------------------------


def test_blocks_are_found_up_to_the_first_that_is_missing():
    cache = PrefixCache()
    cache.keep([1, 2, 3])
    assert [cache.found(each) for each in ([1, 2, 3, 4], [1, 2, 9], [1, 9, 3], [9, 2, 3], [])] == [3, 2, 1, 0, 0]


def test_a_block_in_use_is_shared_and_stays_whatever_goes():
    cache = PrefixCache()
    cache.use([1, 2])
    cache.keep([7, 8])
    assert (cache.shared([1, 2, 3]), cache.shared([7, 8])) == (2, 0)
    cache.use([1])
    cache.shrink(0)
    assert (cache.found([1, 2]), cache.found([7])) == (2, 0)
    assert cache.leave([1, 2]) == 1  # the other request still uses 1
    cache.shrink(0)
    assert cache.found([1, 2]) == 1
    assert cache.leave([1]) == 1


def test_what_is_in_use_is_not_counted_among_those_that_may_go():
    cache = PrefixCache()
    cache.keep([7, 8])
    cache.use([7])
    cache.shrink(1)
    assert (cache.found([7]), cache.found([8])) == (1, 1)


def test_a_block_that_is_kept_again_is_the_most_recently_used():
    cache = PrefixCache()
    for each in (1, 2, 1):
        cache.keep([each])
    cache.shrink(1)
    assert (cache.found([1]), cache.found([2])) == (1, 0)


def test_the_end_of_what_was_used_longest_ago_goes_first():
    cache = PrefixCache()
    for hashes in ([1, 2], [3, 4], [1]):
        cache.use(hashes)
        cache.leave(hashes)
    left = []
    for blocks in (3, 2, 1, 0):
        cache.shrink(blocks)
        left.append([each for each in (1, 2, 3, 4) if cache.found([each])])
    assert left == [[1, 3, 4], [1, 3], [1], []]


# ---- in the machine -------------------------------------------------------------------------------------


def test_a_prompt_is_computed_only_behind_the_whole_blocks_that_it_shares():
    server = machine()
    assert serve(server, request(1, 100, 2, [1, 2, 3, 4, 5, 6])) == [0]
    server.submit(request(2, 100, 2, [1, 2, 3, 40, 50, 60]))
    step = server.step()
    assert (step.computed, server.cached_tokens(2)) == (52, 48)  # three blocks of 16
    assert step.duration == pytest.approx(decode_time(COST, 1, 100) + prefill_time(COST, 100, 48, decoding=1))


@pytest.mark.parametrize(("prompt", "computed"), [(96, 16), (97, 1), (111, 15)])
def test_the_last_token_of_a_prompt_is_always_computed(prompt, computed):
    """With 96 tokens that is its last block, as a block is there as a whole or not at all."""
    server = machine()
    hashes = [1, 2, 3, 4, 5, 6]
    serve(server, request(1, prompt, 1, hashes))
    server.submit(request(2, prompt, 1, hashes))
    assert server.step().computed == computed


def test_the_next_turn_finds_the_answer_but_for_its_last_token():
    """40 tokens and an answer of 24 are four blocks; the KV of the 64th token was never computed."""
    server = machine()
    talk = [1, 2, 3, 4, 5, 6]
    assert serve(server, request(1, 40, 24, talk[:4]), request(2, 40, 25, [10, 20, 30, 40])) == [0, 0]
    assert serve(server, request(3, 96, 1, talk), request(4, 96, 1, [10, 20, 30, 40, 50, 60])) == [48, 64]


def test_requests_at_once_share_blocks_and_each_takes_only_what_is_its_own():
    """Seven blocks each, six of them the same: the second begins in the same step and computes four tokens."""
    server = machine(kv_tokens=16 * 10)
    server.submit(request(1, 100, 9, [1, 2, 3, 4, 5, 6]))
    server.submit(request(2, 100, 9, [1, 2, 3, 4, 5, 6]))
    assert (server.step().computed, server.free_blocks) == (104, 2)
    server.cancel(1)
    assert server.free_blocks == 3
    server.cancel(2)
    assert (server.free_blocks, server.kv_usage) == (10, 0)


def test_prefixes_go_when_the_blocks_run_out_the_one_used_longest_ago_first():
    server = machine(kv_tokens=16 * 10)
    first, second = [1, 2, 3, 4], [11, 12, 13, 14]
    assert serve(server, request(1, 65, 1, first)) == [0]
    assert serve(server, request(2, 65, 1, second)) == [0]
    assert serve(server, request(3, 80, 1)) == [0]  # five of ten blocks: eight are kept, three go
    assert serve(server, request(4, 65, 1, second), request(5, 65, 1, first)) == [64, 16]


def test_decoding_takes_the_blocks_of_prefixes_too():
    server = machine(kv_tokens=16 * 4)
    serve(server, request(1, 33, 1, [1, 2]))
    serve(server, request(2, 16, 40))  # 56 tokens: all four
    assert serve(server, request(3, 33, 1, [1, 2])) == [0]


def test_a_preempted_request_finds_its_own_blocks_again():
    """Each has two full blocks; the first takes the fifth, so the second yields and waits until the first is done."""
    server = machine(kv_tokens=16 * 5)
    server.submit(request(1, 32, 10, [1, 2]))
    server.submit(request(2, 32, 3, [11, 12, 13]))
    server.step()
    assert [token.request for token in server.step().tokens] == [1]
    assert server.preemptions == 1
    steps = [server.step() for _ in range(9)]
    assert [token.request for token in steps[-1].tokens] == [2]
    assert (steps[-1].computed, server.cached_tokens(2)) == (1, 0)  # what it found when it first began
    assert (server.step().tokens, server.step(), server.free_blocks) == ([(2, 2, True)], None, 5)


def test_a_prompt_in_chunks_finds_its_prefix_once():
    server = machine(max_num_batched_tokens=20)
    serve(server, request(1, 33, 1, [1, 2]))
    server.submit(request(2, 80, 1, [1, 2, 3, 4, 5]))
    steps = [server.step() for _ in range(3)]
    assert [step.computed for step in steps] == [20, 20, 8]
    assert server.cached_tokens(2) == 32


def test_without_a_cache_nothing_is_found_and_nothing_is_said():
    server = machine(prefix_caching=False)
    hashes = [1, 2, 3, 4, 5, 6]
    assert serve(server, request(1, 100, 2, hashes)) == serve(server, request(2, 100, 2, hashes)) == [None]


def test_an_assumed_share_of_hits_beside_a_cache_is_refused():
    with pytest.raises(HarnessError, match="a prefix cache has its own share of hits"):
        deployment(gpu("h100-sxm"), prefix_caching=True, prefix_hit=0.5)


talks = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 120), st.integers(1, 40), st.integers(0, 8), st.integers(0, 2)),
        st.tuples(st.just("step")),
        st.tuples(st.just("cancel"), st.integers(0, 20)),
    ),
    min_size=12,
    max_size=60,
)
servers = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 6),
        "kv_tokens": st.integers(10, 20).map(lambda blocks: 16 * blocks),
        "max_num_batched_tokens": st.sampled_from([None, 7, 50]),
        "reserve": st.booleans(),
        "scheduling_policy": st.sampled_from(["fcfs", "priority"]),
    }
)


@settings(max_examples=60)
@given(talks, servers)
def test_all_answers_come_and_all_blocks_come_back(plan, figures):
    """Requests share their first 0 to 8 blocks with all others; each block that is kept has a free one to lie in."""
    server, fresh = machine(**figures), count(100)
    wanted, seen, cancelled = {}, {}, set()

    def take(step):
        for request_id, position, finished in step.tokens if step else ():
            assert position == seen.get(request_id, 0)
            seen[request_id] = position + 1
            assert finished == (seen[request_id] == wanted[request_id])

    for what, *numbers in plan:
        if what == "submit":
            prompt, answer, shared, priority = numbers
            own = range(shared, (prompt + answer) // 16)
            hashes = [*range(shared), *(next(fresh) for _ in own)][: (prompt + answer) // 16]
            server.submit(request(len(wanted), prompt, answer, hashes, priority=priority))
            wanted[len(wanted)] = answer
        elif what == "cancel":
            cancelled |= {numbers[0]} if server.cancel(numbers[0]) else set()
        else:
            take(server.step())
        assert 0 <= server.free_blocks <= server.num_blocks
    for _ in range(10_000):
        step = server.step()
        if step is None:
            break
        take(step)
    assert (server.running, server.waiting, server.free_blocks) == (0, 0, server.num_blocks)
    assert all(seen[each] == wanted[each] for each in wanted if each not in cancelled)
