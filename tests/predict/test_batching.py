"""The step machine: what each step does, and that its running totals are what a look at everybody gives."""

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.data.manifest import RoofWindow
from harness.predict.batching import Step, StepMachine, Token
from harness.predict.catalog import gpu, model_config
from harness.predict.deployment import deployment
from harness.predict.model import model
from harness.predict.sequence import SimulatedRequest
from harness.predict.step import decode_time, prefill_time, step_cost

LLAMA = model(model_config("llama-3.1-8b"), "llama-3.1-8b")
H100 = deployment(gpu("h100-sxm"), max_num_seqs=16)
COST = step_cost(LLAMA, H100)


def machine(**figures):
    return StepMachine(LLAMA, msgspec.structs.replace(H100, **figures))


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
    server.submit(SimulatedRequest(7, 100, 3))
    first, second, third = server.step(), server.step(), server.step()
    assert [step.tokens for step in (first, second, third)] == [[(7, 0, False)], [(7, 1, False)], [(7, 2, True)]]
    assert first.duration == pytest.approx(decode_time(COST, 1, 100) + prefill_time(COST, 100, decoding=1))
    assert second.duration == pytest.approx(decode_time(COST, 1, 101))
    assert server.step() is None


def test_a_step_carries_the_prefills_it_admits_beside_the_decoding():
    server = machine()
    server.submit(SimulatedRequest(1, 100, 9))
    server.step()
    server.submit(SimulatedRequest(2, 50, 9))
    server.submit(SimulatedRequest(3, 60, 9))
    step = server.step()
    assert step.tokens == [(1, 1, False), (2, 0, False), (3, 0, False)]
    assert step.duration == pytest.approx(
        decode_time(COST, 3, 101 + 50 + 60) + prefill_time(COST, 50, decoding=1) + prefill_time(COST, 60, decoding=1)
    )


def test_at_most_max_num_seqs_run_and_the_rest_wait():
    server = machine(max_num_seqs=2)
    for each in range(3):
        server.submit(SimulatedRequest(each, 10, 2))
    server.step()
    assert (server.running, server.waiting) == (2, 1)
    assert [token.request for token in server.step().tokens] == [0, 1]
    # Both have just finished; the third takes a slot in the step after them.
    assert [token.request for token in server.step().tokens] == [2]


def test_a_finished_request_holds_its_slot_while_its_last_step_runs():
    server = machine()
    server.submit(SimulatedRequest(1, 16, 1))
    server.step()
    assert server.running == 1
    assert server.kv_usage > 0
    assert server.step() is None
    assert server.running == 0
    assert server.kv_usage == 0


def test_a_long_request_at_the_head_of_the_queue_is_not_overtaken():
    server = machine(kv_tokens=160)  # ten blocks
    server.submit(SimulatedRequest(1, 90, 5))  # six of them
    server.submit(SimulatedRequest(2, 80, 5))  # five: has to wait for the first
    server.submit(SimulatedRequest(3, 16, 5))  # one, and free, but behind it
    server.step()
    assert (server.running, server.waiting) == (1, 2)
    firsts = [token.request for token in drain(server) if token.position == 0]
    assert firsts == [2, 3]


def test_the_youngest_loses_its_blocks_and_later_prefills_all_it_had_again():
    server = machine(kv_tokens=64)  # four blocks
    server.submit(SimulatedRequest(1, 32, 8))
    server.submit(SimulatedRequest(2, 32, 8))
    assert len(server.step().tokens) == 2  # two blocks each, all full
    step = server.step()  # token 33 of the first needs a third block
    assert step.tokens == [(1, 1, False)]
    assert server.preemptions == 1
    assert server.waiting == 1
    rest = [server.step() for _ in range(6)]
    assert rest[-1].tokens == [(1, 7, True)]
    again = server.step()
    assert again.tokens == [(2, 1, False)]  # goes on where it stopped
    assert again.duration == pytest.approx(decode_time(COST, 1, 33) + prefill_time(COST, 33, decoding=1))


def test_cancelling_frees_the_slot_and_the_blocks_at_once():
    server = machine(max_num_seqs=1)
    server.submit(SimulatedRequest(1, 100, 50))
    server.submit(SimulatedRequest(2, 100, 1))
    server.step()
    assert server.cancel(1)
    assert server.kv_usage == 0
    assert server.step().tokens == [(2, 0, True)]
    assert not server.cancel(1)


def test_cancelling_a_waiting_request_forgets_it():
    server = machine(max_num_seqs=1)
    server.submit(SimulatedRequest(1, 10, 2))
    server.submit(SimulatedRequest(2, 10, 2))
    server.step()
    assert server.cancel(2)
    assert {token.request for token in drain(server)} == {1}


def test_a_request_that_can_never_finish_is_not_taken():
    server = machine(kv_tokens=64)
    assert server.fits(SimulatedRequest(1, 60, 4))
    assert not server.fits(SimulatedRequest(1, 60, 5))
    with pytest.raises(ValueError, match="can never finish"):
        server.submit(SimulatedRequest(1, 60, 5))


def test_an_engine_that_reserves_admits_by_whole_answers_and_preempts_nobody():
    server = machine(kv_tokens=64, reserve=True)  # four blocks
    server.submit(SimulatedRequest(1, 32, 8))  # three of them
    server.submit(SimulatedRequest(2, 16, 8))  # two: has to wait
    server.step()
    assert (server.running, server.waiting, server.free_blocks) == (1, 1, 1)
    drain(server)
    assert (server.preemptions, server.free_blocks) == (0, 4)


# ---- chunks of prompts ----------------------------------------------------------------------------------


def test_decoding_goes_first_and_prompts_share_the_rest_of_the_budget():
    server = machine(max_num_batched_tokens=100)
    server.submit(SimulatedRequest(1, 60, 9))
    server.submit(SimulatedRequest(2, 150, 9))
    first, second, third = server.step(), server.step(), server.step()
    assert (first.computed, second.computed, third.computed) == (100, 99, 11)  # 60 + 40, 1 decodes beside 99, the rest
    assert [step.tokens for step in (first, second)] == [[(1, 0, False)], [(1, 1, False)]]
    assert third.tokens == [(1, 2, False), (2, 0, False)]
    cost = step_cost(LLAMA, msgspec.structs.replace(H100, max_num_batched_tokens=100))
    assert second.duration == pytest.approx(decode_time(cost, 1, 61) + prefill_time(cost, 139, 40, decoding=1))
    rest = prefill_time(cost, 150, 139, decoding=1)
    assert third.duration == pytest.approx(decode_time(cost, 2, 62 + 150) + rest)


def test_a_step_that_only_computes_part_of_a_prompt_gives_no_token():
    server = machine(max_num_batched_tokens=100)
    server.submit(SimulatedRequest(1, 250, 2))
    steps = [server.step() for _ in range(4)]
    assert [(step.computed, len(step.tokens)) for step in steps] == [
        (100, 0),
        (100, 0),
        (50, 1),
        (0, 1),
    ]
    cost = step_cost(LLAMA, msgspec.structs.replace(H100, max_num_batched_tokens=100))
    assert steps[1].duration == pytest.approx(cost.step + prefill_time(cost, 200, 100))


def test_no_more_run_than_the_budget_lets_decode():
    server = machine(max_num_batched_tokens=9, draft_tokens=2, acceptance=0.5)  # three tokens a request
    for each in range(5):
        server.submit(SimulatedRequest(each, 1, 50))
    server.step()
    server.step()
    assert (server.running, server.waiting) == (3, 2)


# ---- prefixes, speculation, fused passes ----------------------------------------------------------------


def test_a_cached_prefix_is_not_computed():
    server = machine(prefix_hit=0.75)
    server.submit(SimulatedRequest(1, 100, 2))
    step = server.step()
    assert step.computed == 25
    assert step.duration == pytest.approx(decode_time(COST, 1, 100) + prefill_time(COST, 100, 75, decoding=1))


def test_a_preempted_request_finds_its_prefix_again():
    server = machine(kv_tokens=64, prefix_hit=0.5)
    server.submit(SimulatedRequest(1, 32, 8))
    server.submit(SimulatedRequest(2, 32, 8))
    computed = [server.step().computed for _ in range(9)]
    assert server.preemptions == 1
    assert computed == [32, 0, 0, 0, 0, 0, 0, 0, 33 - 16]


def test_a_step_that_preempts_a_prompt_in_the_midst_of_it_starts_no_other():
    server = machine(max_num_seqs=2, kv_tokens=160, max_num_batched_tokens=7)
    server.submit(SimulatedRequest(1, 58, 40))
    server.submit(SimulatedRequest(2, 43, 23))
    before, preempting = 0, []
    while (step := server.step()) is not None:
        if server.preemptions > before:
            preempting.append(step.computed)
        before = server.preemptions
    assert preempting
    assert set(preempting) == {0}


def test_the_last_token_of_a_prompt_is_always_computed():
    server = machine(prefix_hit=1.0)
    server.submit(SimulatedRequest(1, 100, 2))
    assert server.step().computed == 1


def test_a_request_can_say_itself_how_much_of_it_is_cached():
    server = machine(prefix_hit=0.75)
    server.submit(SimulatedRequest(1, 100, 2, 0))
    server.submit(SimulatedRequest(2, 100, 2, 90))
    assert server.step().computed == 110


def test_speculation_gains_its_mean_and_carries_fractions_on():
    server = machine(draft_tokens=2, acceptance=0.5)  # 1 + 1/2 + 1/4 tokens a step
    server.submit(SimulatedRequest(1, 100, 14))
    assert [len(server.step().tokens) for _ in range(8)] == [1, 2, 2, 2, 1, 2, 2, 2]
    assert server.step() is None


def test_what_is_drafted_beyond_the_end_is_lost():
    server = machine(draft_tokens=2, acceptance=1.0)
    server.submit(SimulatedRequest(1, 100, 4))
    assert server.step().tokens == [(1, 0, False), (1, 1, False), (1, 2, False)]
    assert server.step().tokens == [(1, 3, True)]


def test_a_fused_step_hides_a_prompt_behind_the_decoding_of_others():
    figures = {"mfu_decode": 0.45, "mfu_prefill": 0.45}
    plain, fused = machine(**figures), machine(fused=1.0, **figures)
    for server in (plain, fused):
        for each in range(9):
            server.submit(SimulatedRequest(each, 500, 9))
        server.step()
        server.submit(SimulatedRequest(9, 100, 9))
    alone = decode_time(COST, 10, 9 * 501 + 100)
    serial = alone + prefill_time(COST, 100, decoding=9)
    assert plain.step().duration == pytest.approx(serial)
    # The prompt computes for less time than decoding reads, so all that is not hidden is the share of its own decoding.
    assert fused.step().duration == pytest.approx(0.9 * alone + 0.1 * serial, rel=1e-3)


# ---- priorities -----------------------------------------------------------------------------------------


def first_tokens(server):
    return [token.request for token in drain(server) if token.position == 0]


def test_the_lowest_priority_number_goes_first_and_the_earlier_of_two_alike():
    server = machine(max_num_seqs=1, scheduling_policy="priority")
    for id, priority in enumerate((0, 5, -1, 5, -1)):
        server.submit(SimulatedRequest(id, 10, 2, priority=priority))
    assert first_tokens(server) == [2, 4, 0, 1, 3]


def test_priorities_mean_nothing_to_a_server_that_does_not_schedule_by_them():
    server = machine(max_num_seqs=1)
    for id, priority in enumerate((0, 5, -1)):
        server.submit(SimulatedRequest(id, 10, 2, priority=priority))
    assert first_tokens(server) == [0, 1, 2]


def test_the_highest_priority_number_yields_its_blocks_and_of_two_alike_the_younger():
    server = machine(kv_tokens=16 * 7, scheduling_policy="priority")
    for id, priority in enumerate((7, 7, 0)):
        server.submit(SimulatedRequest(id, 32, 40, priority=priority))
    assert [token.request for token in server.step().tokens] == [2, 0, 1]  # two blocks each, one is free
    assert [token.request for token in server.step().tokens] == [2, 0]
    assert (server.preemptions, server.waiting) == (1, 1)


def test_a_prompt_in_chunks_takes_the_blocks_of_a_request_of_a_higher_number():
    """The urgent prompt of six blocks comes in three chunks; for the third the other one yields."""
    server = machine(kv_tokens=16 * 8, max_num_batched_tokens=33, scheduling_policy="priority")
    server.submit(SimulatedRequest(1, 32, 60, priority=1))
    server.step()
    server.submit(SimulatedRequest(2, 90, 5))
    steps = [server.stride(most=1) for _ in range(3)]
    assert [(each.computed, each.batch, list(each.preempted)) for each in steps] == [
        (32, 1, []), (32, 1, []), (26, 1, [1]),
    ]  # fmt: skip
    assert (list(steps[2].started), server.preemptions, server.waiting) == ([2], 1, 1)


# ---- properties -----------------------------------------------------------------------------------------


operations = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 120), st.integers(1, 40)),
        st.tuples(st.just("step"), st.just(0), st.just(0)),
        st.tuples(st.just("cancel"), st.integers(0, 20), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=50)
@given(operations, st.integers(1, 6), st.integers(10, 30))
def test_tokens_and_blocks_are_conserved_whatever_happens(plan, seqs, blocks):
    server = machine(max_num_seqs=seqs, kv_tokens=16 * blocks)
    wanted, seen, cancelled = {}, {}, set()

    def take(step):
        for request, position, finished in step.tokens if step else ():
            assert position == seen.get(request, 0)  # none lost, none twice, none after a cancel
            assert request not in cancelled
            seen[request] = position + 1
            assert finished == (seen[request] == wanted[request])

    for what, a, b in plan:
        if what == "submit":
            wanted[len(wanted)] = b
            server.submit(SimulatedRequest(len(wanted) - 1, a, b))
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
    assert all(seen[each] == wanted[each] for each in wanted if each not in cancelled)


@settings(max_examples=50)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=40), st.integers(1, 8))
def test_first_tokens_come_in_the_order_of_the_queue(prompts, seqs):
    server = machine(max_num_seqs=seqs)
    for each, prompt in enumerate(prompts):
        server.submit(SimulatedRequest(each, prompt, 3))
    firsts = [token.request for token in drain(server) if token.position == 0]
    assert firsts == list(range(len(prompts)))


class Plain:
    """The same machine without any running totals: it looks at everybody in every step."""

    def __init__(self, cost, served):
        self.cost, self.served = cost, served
        self.size = served.block_size
        self.blocks = self.free = served.kv_tokens // self.size
        self.budget = served.max_num_batched_tokens or math.inf
        self.seqs = min(served.max_num_seqs, self.budget // cost.verified)
        self.waiting, self.running, self.steps, self.preemptions = [], [], 0, 0

    def submit(self, request):
        self.waiting.append({"request": request, "done": 0, "held": 0, "computed": self.cached(request), "over": False})

    def cached(self, request):
        return min(int(self.served.prefix_hit * request.prompt_tokens + 1e-9), request.prompt_tokens - 1)

    def need(self, tokens, request):
        if self.served.reserve:
            tokens = request.prompt_tokens + request.output_tokens
        return -(-tokens // self.size)

    def cancel(self, request_id):
        for queue in (self.waiting, self.running):
            for each in queue:
                if each["request"].id == request_id:
                    self.free += each["held"]
                    queue.remove(each)
                    return

    def preempt(self):
        each = self.running.pop()
        self.free += each["held"]
        self.waiting.insert(0, each | {"held": 0, "computed": self.cached(each["request"])})
        self.preemptions += 1

    def take(self, each, tokens):
        more = self.need(tokens, each["request"]) - each["held"]
        if more > self.free:
            return False
        self.free -= more
        each["held"] += more
        return True

    def step(self):
        for each in [each for each in self.running if each["over"]]:
            self.free += each["held"]
            self.running.remove(each)
        before, chunks, known = self.preemptions, [], lambda each: each["request"].prompt_tokens + each["done"]
        for each in list(self.running):
            if each["computed"] >= known(each) - each["done"] and each.get("decodes"):
                while any(each is other for other in self.running) and not self.take(each, known(each)):
                    self.preempt()
        left = self.budget - self.cost.verified * sum(bool(each.get("decodes")) for each in self.running)
        while left > 0 and self.preemptions == before:
            partial = [each for each in self.running if not each.get("decodes")]
            if not partial and (not self.waiting or len(self.running) >= self.seqs):
                break
            each = (partial or self.waiting)[0]
            end = min(known(each), each["computed"] + left)
            if not self.take(each, end):
                if partial:
                    self.preempt()
                break
            if not partial:
                self.running.append(self.waiting.pop(0))
            chunks.append((each["computed"], end))
            left -= end - each["computed"]
            each["computed"], each["decodes"] = end, end == known(each)
        if not self.running:
            return None
        ready = [each for each in self.running if each.get("decodes")]
        seconds = decode_time(self.cost, len(ready), sum(map(known, ready))) if ready else self.cost.step
        cost = self.cost
        weights = 0.0 if ready else cost.weights  # which they read anyway
        computing = [
            cost.prompt * (end - start) + cost.prompt_head + cost.prompt_attend * (end**2 - start**2)
            for start, end in chunks
        ]
        if self.budget == math.inf:  # one prompt after the other; else one pass for all
            seconds += sum(max(each, weights) for each in computing)
        elif chunks:
            seconds += max(sum(computing), weights)
        gain = self.cost.accepted
        gained = int((self.steps + 1) * gain + 1e-9) - int(self.steps * gain + 1e-9)
        self.steps += 1
        tokens = []
        for each in ready:
            request = each["request"]
            for _ in range(min(gained, request.output_tokens - each["done"])):
                each["done"] += 1
                each["over"] = each["done"] == request.output_tokens
                tokens.append(Token(request.id, each["done"] - 1, each["over"]))
        return Step(seconds, tokens, sum(end - start for start, end in chunks))


servers = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 6),
        "kv_tokens": st.integers(10, 30).map(lambda blocks: 16 * blocks),
        "max_num_batched_tokens": st.sampled_from([None, 7, 16, 50, 200]),
        "reserve": st.booleans(),
        "prefix_hit": st.sampled_from([0.0, 0.3, 1.0]),
    },
    optional={"draft_tokens": st.integers(1, 4), "acceptance": st.sampled_from([0.3, 0.8, 1.0])},
)


@settings(max_examples=60)
@given(operations, servers)
def test_it_does_what_a_machine_does_that_looks_at_everybody_in_every_step(plan, figures):
    if figures["max_num_batched_tokens"] and figures.get("draft_tokens", 0) >= figures["max_num_batched_tokens"]:
        figures["max_num_batched_tokens"] = None
    server = machine(**figures)
    served = msgspec.structs.replace(H100, **figures)
    plain = Plain(server.cost, served)
    ids = 0
    for what, a, b in [*plan, *[("step", 0, 0)] * 60]:
        if what == "submit":
            server.submit(SimulatedRequest(ids, a, b))
            plain.submit(SimulatedRequest(ids, a, b))
            ids += 1
        elif what == "cancel":
            server.cancel(a)
            plain.cancel(a)
        else:
            ours, theirs = server.step(), plain.step()
            assert (ours is None) == (theirs is None)
            if ours is not None:
                assert ours.tokens == theirs.tokens
                assert ours.computed == theirs.computed
                assert ours.duration == pytest.approx(theirs.duration, rel=1e-12)
        assert (server.free_blocks, server.preemptions) == (plain.free, plain.preemptions)
        assert (server.running, server.waiting) == (len(plain.running), len(plain.waiting))


@settings(max_examples=50)
@given(operations, servers)
def test_a_step_never_holds_more_tokens_than_its_budget(plan, figures):
    budget = figures["max_num_batched_tokens"] = figures["max_num_batched_tokens"] or 64
    server = machine(**figures)
    verified, ids, decoding = server.cost.verified, 0, 0
    for what, a, b in plan:
        if what == "submit":
            server.submit(SimulatedRequest(ids, a, b))
            ids += 1
        elif what == "step" and (stride := server.stride(most=1)) is not None:
            decoding = stride.batch - len(stride.started) - len(stride.resumed)
            assert stride.computed + verified * decoding <= budget


@settings(max_examples=30)
@given(operations, servers, st.floats(0.0, 0.3))
def test_strides_are_the_steps_that_they_stand_for(plan, figures, until):
    one, other = machine(**figures), machine(**figures)
    ids = 0
    for what, a, b in [*plan, *[("step", 0, 0)] * 20]:
        if what == "submit":
            one.submit(SimulatedRequest(ids, a, b))
            other.submit(SimulatedRequest(ids, a, b))
            ids += 1
        elif what == "cancel":
            assert one.cancel(a) == other.cancel(a)
        elif (stride := one.stride(until=until)) is not None:
            steps = [other.step() for _ in range(stride.steps)]
            assert stride.duration == pytest.approx(sum(step.duration for step in steps), rel=1e-12)
            assert stride.tokens == sum(len(step.tokens) for step in steps)
            assert stride.computed == sum(step.computed for step in steps)
            ended = [token.request for step in steps for token in step.tokens if token.finished]
            assert sorted(stride.finished) == sorted(ended)
            assert stride.steps == 1 or not any(token.finished for step in steps[:-1] for token in step.tokens)
            assert stride.steps == 1 or sum(step.duration for step in steps[:-1]) < until
        else:
            assert other.step() is None
        assert (one.free_blocks, one.running, one.preemptions) == (other.free_blocks, other.running, other.preemptions)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-3-27b", "gpt-oss-20b", "qwen3-30b-a3b"])
def test_a_stride_across_a_full_window_or_from_one_roof_to_the_other_is_its_steps(name):
    served = model(model_config(name), name)
    slow = deployment(gpu("h100-sxm"), mfu_decode=0.002)  # where attention comes to outweigh reading
    for each in (slow, deployment(gpu("h100-sxm"))):
        one, other = StepMachine(served, each), StepMachine(served, each)
        for server in (one, other):
            server.submit(SimulatedRequest(1, 20, 6000))
            server.submit(SimulatedRequest(2, 700, 6000))
        while (stride := one.stride()) is not None:
            total = math.fsum(other.step().duration for _ in range(stride.steps))
            assert stride.duration == pytest.approx(total, rel=1e-9)


def test_two_bends_that_cancel_in_three_points_are_seen():
    # From reading to computing at a context of 1001, and back to its slope where the window is full, at 3002: over
    # 2 to 4001 both bends lie alike, and the middle is on the line between the ends.
    slope, window = 2.0**-30, 3002
    cost = msgspec.structs.replace(
        COST, weights=1000 * slope, kv=slope, attend=slope, token=0.0, step=0.0, request=0.0,
        windows=(RoofWindow(tokens=window, kv=0.0, attend=slope, prompt_attend=0.0),),
    )  # fmt: skip
    assert decode_time(cost, 1, 2001.5) == (decode_time(cost, 1, 2) + decode_time(cost, 1, 4001)) / 2
    server = machine()
    server.cost = cost
    server.submit(SimulatedRequest(1, 1, 4001))
    context = 1 + server.stride().steps
    while (stride := server.stride(until=500 * decode_time(cost, 1, 2))) is not None:  # well within the first bend
        steps = [decode_time(cost, 1, context + i) for i in range(stride.steps)]
        assert stride.duration == pytest.approx(math.fsum(steps), rel=1e-9)
        context += stride.steps
    assert context == 4002
