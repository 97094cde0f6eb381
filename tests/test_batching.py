import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.predict.batching import Machine, Request, closed_loop
from harness.predict.catalog import gpu, model_config
from harness.predict.model import model
from harness.predict.roofline import (
    Workload,
    batch_cap,
    caps,
    decode_time,
    deployment,
    prefill_time,
    steady_state,
    step_cost,
)

LLAMA = model(model_config("llama-3.1-8b"), "llama-3.1-8b")
H100 = deployment(gpu("h100-sxm"), max_num_seqs=16)
COST = step_cost(LLAMA, H100)


def machine(**figures):
    return Machine(LLAMA, msgspec.structs.replace(H100, **figures))


def drain(server):
    """Every token in order, until nothing is left to do."""
    out = []
    while (step := server.step()) is not None:
        out += step.tokens
    return out


def test_a_machine_without_requests_has_nothing_to_do():
    assert machine().step() is None


def test_the_first_token_leaves_with_the_prefill_and_one_with_every_step_after_it():
    server = machine()
    server.submit(Request(7, 100, 3))
    first, second, third = server.step(), server.step(), server.step()
    assert [step.tokens for step in (first, second, third)] == [[(7, 0, False)], [(7, 1, False)], [(7, 2, True)]]
    assert first.duration == pytest.approx(decode_time(COST, 1, 100) + prefill_time(COST, 100))
    assert second.duration == pytest.approx(decode_time(COST, 1, 101))
    assert server.step() is None


def test_a_step_carries_the_prefills_it_admits_beside_the_decoding():
    server = machine()
    server.submit(Request(1, 100, 9))
    server.step()
    server.submit(Request(2, 50, 9))
    server.submit(Request(3, 60, 9))
    step = server.step()
    assert step.tokens == [(1, 1, False), (2, 0, False), (3, 0, False)]
    assert step.prefilled == 2
    assert step.duration == pytest.approx(
        decode_time(COST, 3, 101 + 50 + 60) + prefill_time(COST, 50) + prefill_time(COST, 60)
    )


def test_at_most_max_num_seqs_run_and_the_rest_wait():
    server = machine(max_num_seqs=2)
    for each in range(3):
        server.submit(Request(each, 10, 2))
    server.step()
    assert (server.running, server.waiting) == (2, 1)
    assert [token.request for token in server.step().tokens] == [0, 1]
    # Both have just finished; the third takes a slot in the step after them.
    assert [token.request for token in server.step().tokens] == [2]


def test_a_finished_request_holds_its_slot_while_its_last_step_runs():
    server = machine()
    server.submit(Request(1, 16, 1))
    server.step()
    assert server.running == 1
    assert server.kv_usage > 0
    assert server.step() is None
    assert server.running == 0
    assert server.kv_usage == 0


def test_a_long_request_at_the_head_of_the_queue_is_not_overtaken():
    server = machine(kv_tokens=160)  # ten blocks
    server.submit(Request(1, 90, 5))  # six of them
    server.submit(Request(2, 80, 5))  # five: has to wait for the first
    server.submit(Request(3, 16, 5))  # one, and free, but behind it
    server.step()
    assert (server.running, server.waiting) == (1, 2)
    firsts = [token.request for token in drain(server) if token.position == 0]
    assert firsts == [2, 3]


def test_the_youngest_loses_its_blocks_and_later_prefills_all_it_had_again():
    server = machine(kv_tokens=64)  # four blocks
    server.submit(Request(1, 32, 8))
    server.submit(Request(2, 32, 8))
    assert len(server.step().tokens) == 2  # two blocks each, all full
    step = server.step()  # token 33 of the first needs a third block
    assert step.tokens == [(1, 1, False)]
    assert server.preemptions == 1
    assert server.waiting == 1
    rest = [server.step() for _ in range(6)]
    assert rest[-1].tokens == [(1, 7, True)]
    again = server.step()
    assert again.tokens == [(2, 1, False)]  # goes on where it stopped
    assert again.prefilled == 1
    assert again.duration == pytest.approx(decode_time(COST, 1, 33) + prefill_time(COST, 33))


def test_cancelling_frees_the_slot_and_the_blocks_at_once():
    server = machine(max_num_seqs=1)
    server.submit(Request(1, 100, 50))
    server.submit(Request(2, 100, 1))
    server.step()
    assert server.cancel(1)
    assert server.kv_usage == 0
    assert server.step().tokens == [(2, 0, True)]
    assert not server.cancel(1)


def test_cancelling_a_waiting_request_forgets_it():
    server = machine(max_num_seqs=1)
    server.submit(Request(1, 10, 2))
    server.submit(Request(2, 10, 2))
    server.step()
    assert server.cancel(2)
    assert {token.request for token in drain(server)} == {1}


def test_a_request_that_can_never_finish_is_not_taken():
    server = machine(kv_tokens=64)
    assert server.fits(Request(1, 60, 4))
    assert not server.fits(Request(1, 60, 5))
    with pytest.raises(ValueError, match="can never finish"):
        server.submit(Request(1, 60, 5))


operations = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 120), st.integers(1, 40)),
        st.tuples(st.just("step"), st.just(0), st.just(0)),
        st.tuples(st.just("cancel"), st.integers(0, 20), st.just(0)),
    ),
    max_size=60,
)


@given(operations, st.integers(1, 6), st.integers(10, 30))
def test_tokens_and_blocks_are_conserved_whatever_happens(plan, seqs, blocks):
    server = machine(max_num_seqs=seqs, kv_tokens=16 * blocks)
    asked, seen, cancelled = {}, {}, set()

    def take(step):
        for request, position, finished in step.tokens if step else ():
            assert position == seen.get(request, 0)  # none lost, none twice, none after a cancel
            assert request not in cancelled
            seen[request] = position + 1
            assert finished == (seen[request] == asked[request])

    for what, a, b in plan:
        if what == "submit":
            asked[len(asked)] = b
            server.submit(Request(len(asked) - 1, a, b))
        elif what == "cancel":
            if server.cancel(a):
                cancelled.add(a)
        else:
            take(server.step())
        assert 0 <= server.free_blocks <= server.num_blocks
        assert server.running <= seqs
    while (step := server.step()) is not None:
        take(step)
    assert server.free_blocks == server.num_blocks
    assert (server.running, server.waiting) == (0, 0)
    assert all(seen[each] == asked[each] for each in asked if each not in cancelled)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=40), st.integers(1, 8))
def test_first_tokens_come_in_the_order_of_the_queue(prompts, seqs):
    server = machine(max_num_seqs=seqs)
    for each, prompt in enumerate(prompts):
        server.submit(Request(each, prompt, 3))
    firsts = [token.request for token in drain(server) if token.position == 0]
    assert firsts == list(range(len(prompts)))


SHAPES = [Workload(128, 64), Workload(1000, 200)]


@pytest.mark.parametrize("workload", SHAPES)
@pytest.mark.parametrize("C", [1, 4, 16, 32])
def test_in_steady_state_it_agrees_with_the_closed_form(workload, C):
    point = steady_state(COST, workload, C, batch_cap(caps(LLAMA, H100, workload)))
    one_request = point.ttft + workload.output_tokens * point.itl
    seen = closed_loop(machine(), workload, C, requests=4 * C, stagger=one_request)
    assert seen.throughput == pytest.approx(point.throughput, rel=0.02)
    assert seen.itl == pytest.approx(point.itl, rel=0.02)
    assert seen.ttft == pytest.approx(point.ttft, rel=0.02)
    assert seen.preemptions == 0


@settings(max_examples=25)
@given(st.integers(1, 40), st.integers(64, 100), st.floats(0, 3), st.floats(0, 0.01))
def test_littles_law_holds_within_the_requests_that_cross_the_windows_edges(C, G, stagger, turnaround):
    seen = closed_loop(machine(), Workload(64, G), C, requests=3 * C, stagger=stagger, turnaround=turnaround)
    in_system = seen.requests_per_s * (seen.ttft + (G - 1) * seen.itl)
    assert seen.in_flight <= C + 1e-9
    # At most C requests cross either edge, of at least 3 C in the window.
    assert in_system == pytest.approx(seen.in_flight, rel=1 / 3)


def test_littles_law_is_an_identity_over_whole_rounds():
    seen = closed_loop(machine(), Workload(128, 64), 32, requests=128, stagger=1.0)
    assert seen.in_flight == pytest.approx(32)
    assert seen.requests_per_s * (seen.ttft + 63 * seen.itl) == pytest.approx(32, rel=1e-6)


def test_a_user_who_misses_the_step_that_has_begun_loses_one_step_a_request():
    # One step of G + 1, which with prefills in some steps is not exactly 1/65.
    prompt = closed_loop(machine(), Workload(16, 64), 8, requests=64, stagger=1.0)
    late = closed_loop(machine(), Workload(16, 64), 8, requests=64, stagger=1.0, turnaround=1e-4)
    assert late.throughput / prompt.throughput == pytest.approx(64 / 65, rel=5e-3)


def test_where_kv_memory_binds_preemption_costs_a_little_of_the_closed_form():
    # Reservation is by prompt alone, so it admits until the blocks run out, and then pays by recomputing.
    tight = msgspec.structs.replace(H100, max_num_seqs=64, kv_tokens=11_040)
    workload = Workload(1000, 200)
    point = steady_state(COST, workload, 32, batch_cap(caps(LLAMA, tight, workload)))
    seen = closed_loop(Machine(LLAMA, tight), workload, 32, requests=128, stagger=10.0)
    assert seen.preemptions > 0
    assert 0.9 < seen.throughput / point.throughput < 1
