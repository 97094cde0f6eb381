"""The step machine on a clock that jumps: where it agrees with the closed form, and what it sees that one does not."""

import bisect
import itertools
import math
import random
from unittest import mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.base.errors import HarnessError
from harness.data.prediction import batch_cap
from harness.predict import batching, simulate
from harness.predict.batching import StepMachine
from harness.predict.catalog import gpu, model_config
from harness.predict.deployment import deployment
from harness.predict.model import model
from harness.predict.roofline import predict
from harness.predict.simulate import closed_loop, open_loop
from harness.predict.steady import caps, steady_state
from harness.predict.step import decode_time, prefill_time, step_cost
from harness.predict.stepped import at_levels, at_rates
from harness.spec.work import MeanLengths, means

LLAMA = model(model_config("llama-3.1-8b"), "llama-3.1-8b")
NO_FRONT_END = {"o_token": 0.0, "o_first": 0.0}  # what a first token waits for outside the batch
H100 = deployment(gpu("h100-sxm"), max_num_seqs=16, **NO_FRONT_END)
COST = step_cost(LLAMA, H100)
PLAIN = MeanLengths(256, 64)


def machine(**figures):
    return StepMachine(LLAMA, msgspec.structs.replace(H100, **figures))


def arrivals(rng, rate, k=1.0):
    """Gaps of a gamma distribution: k = 1 is Poisson, less comes in bursts."""
    return itertools.accumulate(rng.gammavariate(k, 1 / (k * rate)) for _ in itertools.count())


def both_ways(served, there, shape, C, rounds=4):
    """A simulated closed loop, staggered over one request, and the closed form."""
    point = steady_state(step_cost(served, there), shape, C, batch_cap(caps(served, there, shape)))
    over = point.ttft + shape.output_tokens * point.itl
    return closed_loop(StepMachine(served, there, shape.context), shape, C, requests=rounds * C, stagger=over), point


# ---- the closed form ------------------------------------------------------------------------------------

SERVERS = [
    ("llama-3.1-8b", "h100-sxm", {}),
    ("llama-3.1-8b", "a100-80-sxm", {"prefix_hit": 0.5}),
    ("qwen2.5-0.5b", "rtx4090", {}),
    ("gemma-3-27b", "h200-sxm", {}),  # windows
    ("qwen3-30b-a3b", "h200-sxm", {}),  # experts
    ("deepseek-v3", "b200-sxm", {"tp": 8, "ep": 8}),  # latent attention
    ("llama-3.1-70b", "h100-sxm", {"tp": 4}),
    ("llama-3.1-70b", "h100-sxm", {"pp": 4}),
    ("llama-3.1-8b", "h100-sxm", {"max_num_batched_tokens": 2048}),
    ("llama-3.1-8b", "h100-sxm", {"draft_tokens": 1, "acceptance": 1.0, "draft_s": 1e-3}),
    ("llama-3.1-8b", "h100-sxm", {"draft_tokens": 3, "acceptance": 0.7, "draft_s": 1e-3}),
]


@pytest.mark.parametrize("C", [1, 7, 24, 48])
@pytest.mark.parametrize(("name", "card", "figures"), SERVERS)
def test_in_steady_state_it_agrees_with_the_closed_form(name, card, figures, C):
    there = deployment(gpu(card), max_num_seqs=24, **figures, **NO_FRONT_END)
    served, shape = model(model_config(name), name), MeanLengths(512, 128)
    seen, point = both_ways(served, there, shape, C)
    assert seen.output_tokens_per_s == pytest.approx(point.throughput, rel=0.02)
    assert seen.requests_per_s == pytest.approx(point.requests_per_s, rel=0.02)
    assert seen.running == pytest.approx(min(C, 24), rel=0.02)
    assert seen.itl_s.mean == pytest.approx(point.itl, rel=0.02)
    assert seen.preemptions == 0
    assert seen.e2e_s.mean == pytest.approx(C * shape.output_tokens / point.throughput, rel=0.02)
    if "draft_tokens" not in figures:
        # What comes into the same step is waited for. At fixed lengths the same prompts meet in every round, by how
        # the load began: up to half more of them than at random.
        cost = step_cost(served, there)
        others = (point.batch - 1) / shape.output_tokens * prefill_time(cost, 512, 512 * cost.cached, point.batch)
        assert 0.98 * point.ttft < seen.ttft_s.mean < 1.02 * (point.ttft + 1.5 * others)


@pytest.mark.parametrize("C", [4, 12, 24, 48])
def test_where_kv_memory_binds_an_engine_that_reserves_agrees_with_the_closed_form(C):
    there = msgspec.structs.replace(H100, max_num_seqs=1024, kv_tokens=12 * 1200, reserve=True)
    seen, point = both_ways(LLAMA, there, MeanLengths(1000, 200), C)
    assert seen.output_tokens_per_s == pytest.approx(point.throughput, rel=0.02)
    assert seen.ttft_s.mean == pytest.approx(point.ttft, rel=0.02)
    assert seen.preemptions == 0


@pytest.mark.parametrize(
    "shape", [MeanLengths(1000, 200), MeanLengths(512, 512), MeanLengths(128, 256), MeanLengths(1000, 400)]
)
def test_where_kv_memory_binds_and_the_engine_preempts_the_closed_form_lacks_what_is_computed_again(shape):
    # The batch is the closed form's. But it is filled with whatever fits by its prompt alone, and the G tokens by which
    # each request grows are taken from the youngest: of every request G tokens are lost and computed again, in
    # ln(1 + G/P) preemptions, for the youngest hold between P and P + G.
    P, G = shape.input_tokens, shape.output_tokens
    there = msgspec.structs.replace(H100, max_num_seqs=1024, kv_tokens=32 * 16 * math.ceil(shape.context / 16))
    seen, point = both_ways(LLAMA, there, shape, 64, rounds=5)
    again = math.log1p(G / P)
    B = point.batch
    assert seen.running == pytest.approx(B, rel=0.03)
    assert seen.preemptions / seen.requests == pytest.approx(again, rel=0.25)
    t_pre = prefill_time(COST, P) + again * prefill_time(COST, G / again)
    step = decode_time(COST, B, B * shape.context) + B / G * t_pre
    assert seen.output_tokens_per_s == pytest.approx(B / step, rel=0.03)
    assert 0.85 < seen.output_tokens_per_s / point.throughput < 0.95


def test_fixed_lengths_that_cost_the_same_stand_for_variable_ones():
    rng = random.Random(5)
    lengths = [(rng.randint(100, 900), rng.randint(20, 180)) for _ in range(1500)]
    shape = means(lengths)
    point = steady_state(COST, shape, 16, 16)
    seen = closed_loop(machine(), lengths, 16, requests=1000, stagger=1.0)
    assert seen.output_tokens_per_s == pytest.approx(point.throughput, rel=0.02)


def test_a_first_token_waits_for_the_prompts_that_came_into_the_same_step():
    # The closed form knows t_dec + t_pre. Of the B - 1 others each comes into the same step once in G.
    P, G, B = 1000, 200, 128
    rng = random.Random(3)
    lengths = [(P, rng.randint(G // 2, 3 * G // 2)) for _ in range(1200)]
    seen = closed_loop(machine(max_num_seqs=512), lengths, B, requests=900, stagger=5.0)
    t_dec, t_pre = decode_time(COST, B, B * (P + G / 2)), prefill_time(COST, P)
    assert seen.ttft_s.mean == pytest.approx(t_dec + (1 + (B - 1) / G) * t_pre, rel=0.03)
    assert seen.ttft_s.mean > 1.3 * (t_dec + t_pre)


def test_below_the_cap_chunks_cost_little_as_the_weights_are_read_for_those_who_decode():
    there = msgspec.structs.replace(H100, max_num_seqs=512, max_num_batched_tokens=512)
    below, point = both_ways(LLAMA, there, MeanLengths(1000, 200), 48)
    assert 0.98 < below.output_tokens_per_s / point.throughput < 1.0
    above, point = both_ways(
        LLAMA, there, MeanLengths(1000, 200), 128, rounds=2
    )  # the budget binds: every pass is full
    assert above.output_tokens_per_s == pytest.approx(point.throughput, rel=0.005)


def test_chunks_shorten_the_longest_gap_between_tokens():
    lengths = itertools.cycle([(200, 50), (8000, 50)])
    whole = closed_loop(machine(), lengths, 8, requests=40, stagger=1.0)
    lengths = itertools.cycle([(200, 50), (8000, 50)])
    chunks = closed_loop(machine(max_num_batched_tokens=512), lengths, 8, requests=40, stagger=1.0)
    assert chunks.itl_s.max < 0.2 * whole.itl_s.max


def test_speculation_multiplies_the_single_stream_by_what_it_gains_a_step():
    slow = closed_loop(machine(), MeanLengths(100, 400), 1, requests=3)
    fast = closed_loop(machine(draft_tokens=3, acceptance=0.8), MeanLengths(100, 400), 1, requests=3)
    gain = (1 - 0.8**4) / (1 - 0.8)
    assert fast.output_tokens_per_s / slow.output_tokens_per_s == pytest.approx(gain, rel=0.02)
    assert fast.itl_s.p50 is None  # tokens come several at a time


# ---- properties -----------------------------------------------------------------------------------------

figures = st.fixed_dictionaries(
    {"max_num_seqs": st.integers(1, 12), "kv_tokens": st.sampled_from([400, 1000, 20000])},
    optional={
        "max_num_batched_tokens": st.sampled_from([40, 300]),
        "reserve": st.booleans(),
        "prefix_hit": st.floats(0, 1),
        "o_api": st.just(0.003),
    },
)
requests = st.lists(st.tuples(st.integers(1, 200), st.integers(1, 150)), min_size=1, max_size=30)
gaps = st.lists(st.floats(0, 0.5), min_size=30, max_size=30)


def one_by_one():
    """No steps are taken together."""
    return mock.patch.object(batching, "_WORTHWHILE", math.inf)


def same(one, other):
    for field in one.__struct_fields__:
        a, b = getattr(one, field), getattr(other, field)
        if isinstance(a, msgspec.Struct):
            same(a, b)
        else:
            assert a == (pytest.approx(b, rel=1e-9, abs=1e-12) if isinstance(b, float) else b), field


@settings(max_examples=20)
@given(figures, requests, gaps)
def test_steps_taken_together_give_what_they_give_one_by_one(server, lengths, apart):
    times = list(itertools.accumulate(apart))
    together = open_loop(machine(**server), lengths, times)
    with one_by_one():
        same(together, open_loop(machine(**server), lengths, times))


@settings(max_examples=8)
@given(figures, st.integers(1, 8), st.integers(0, 2**32), st.sampled_from([0.0, 0.004]))
def test_in_a_closed_loop_too_and_equal_seeds_give_equal_results(server, C, seed, turnaround):
    def run():
        rng = random.Random(seed)
        lengths = ((rng.randint(1, 200), rng.randint(1, 150)) for _ in itertools.count())
        return closed_loop(machine(**server), lengths, C, requests=20, stagger=0.3, turnaround=turnaround)

    together = run()
    assert together == run()
    with one_by_one():
        same(together, run())


@settings(max_examples=20)
@given(figures, requests, gaps)
def test_littles_law_is_an_identity_over_a_whole_trace_and_no_token_is_lost(server, lengths, apart):
    times = list(itertools.accumulate(apart))[: len(lengths)]
    seen = open_loop(machine(**server), lengths, times)
    if seen.unstable:
        return
    assert seen.requests == seen.e2e_s.n == len(times)
    assert seen.output_tokens_per_s * seen.window_s == pytest.approx(sum(G for _, G in lengths[: len(times)]))
    assert seen.in_flight * seen.window_s == pytest.approx(seen.e2e_s.mean * seen.e2e_s.n)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(0, 0.05), st.integers(1, 4000)), min_size=1, max_size=40))
def test_one_place_and_one_token_a_request_is_lindleys_queue(plan):
    # W' = max(0, W + S - A): a single server, first come, first served.
    times = list(itertools.accumulate(gap for gap, _ in plan))
    lengths = [(P, 1) for _, P in plan]
    seen = open_loop(machine(max_num_seqs=1), lengths, times, warm_up=0.0)
    free, waits = 0.0, []
    for at, (P, _) in zip(times, lengths, strict=True):
        free = max(free, at) + decode_time(COST, 1, P) + prefill_time(COST, P, decoding=1)
        waits.append(free - at)
    assert seen.window_s == pytest.approx(free)
    if not seen.unstable:
        assert seen.ttft_s.mean == pytest.approx(sum(waits) / len(waits))
        assert seen.ttft_s.max == pytest.approx(max(waits))


@settings(max_examples=25)
@given(st.integers(1, 40), st.integers(64, 100), st.floats(0, 3), st.floats(0, 0.01))
def test_littles_law_holds_within_the_requests_that_cross_the_windows_edges(C, G, stagger, turnaround):
    seen = closed_loop(machine(), MeanLengths(64, G), C, requests=3 * C, stagger=stagger, turnaround=turnaround)
    assert seen.in_flight <= C + 1e-9
    # At most C requests cross either edge, of at least 3 C in the window.
    assert seen.requests_per_s * seen.e2e_s.mean == pytest.approx(seen.in_flight, rel=1 / 3)
    assert seen.e2e_s.mean == pytest.approx(seen.ttft_s.mean + (G - 1) * seen.itl_s.mean)


# ---- the closed loop ------------------------------------------------------------------------------------


def test_littles_law_is_an_identity_over_whole_rounds():
    seen = closed_loop(machine(), MeanLengths(128, 64), 32, requests=128, stagger=1.0)
    assert seen.in_flight == pytest.approx(32)
    assert seen.requests_per_s * seen.e2e_s.mean == pytest.approx(32, rel=1e-6)


def test_a_user_who_misses_the_step_that_has_begun_loses_one_step_a_request():
    # One step of G + 1, which with prefills in some steps is not exactly 1/65.
    prompt = closed_loop(machine(), MeanLengths(16, 64), 8, requests=64, stagger=1.0)
    late = closed_loop(machine(), MeanLengths(16, 64), 8, requests=64, stagger=1.0, turnaround=1e-4)
    assert late.output_tokens_per_s / prompt.output_tokens_per_s == pytest.approx(64 / 65, rel=5e-3)


def test_overhead_outside_the_batch_lengthens_the_first_token():
    plain = closed_loop(machine(), PLAIN, 1, requests=4)
    slow = closed_loop(machine(o_api=0.05), PLAIN, 1, requests=4)
    assert slow.ttft_s.mean - plain.ttft_s.mean == pytest.approx(0.05)
    assert slow.itl_s.mean == pytest.approx(plain.itl_s.mean)


def test_a_percentile_of_the_gaps_is_one_of_the_gaps_and_each_stream_counts():
    # One user: 62 gaps of each request are decode steps of growing context, and their median is the middle one.
    seen = closed_loop(machine(), MeanLengths(100, 64), 1, requests=1)
    steps = [decode_time(COST, 1, 100 + k) for k in range(1, 64)]
    assert seen.itl_s.p50 == pytest.approx(steps[31])
    assert seen.itl_s.max == pytest.approx(steps[-1])
    assert seen.itl_s.mean == pytest.approx(sum(steps) / 63)
    assert seen.itl_s.p90 is None  # 63 steps do not carry it


def test_lengths_that_end_within_the_warm_up_are_an_error():
    with pytest.raises(ValueError, match="takes 4 requests"):
        closed_loop(machine(), [(10, 10)] * 3, 2, requests=5)


def test_a_request_that_the_cache_cannot_hold_is_the_operators_mistake():
    with pytest.raises(HarnessError, match="a request of 600 tokens does not fit into a KV cache of 400"):
        closed_loop(machine(kv_tokens=400), [(500, 100)], 1, requests=1)


# ---- the open loop --------------------------------------------------------------------------------------


def sustainable(shape=PLAIN):
    """Requests/s at the cap."""
    return steady_state(COST, shape, 64, 16).requests_per_s


@pytest.mark.parametrize("k", [1.0, 0.25])
def test_what_comes_is_what_is_answered_below_the_sustainable_rate(k):
    rate = 0.8 * sustainable()
    seen = open_loop(machine(), PLAIN, arrivals(random.Random(1), rate, k), warm_up=5, seconds=60)
    assert not seen.unstable
    assert seen.requests_per_s == pytest.approx(seen.offered_requests_per_s, rel=0.05)
    assert seen.ttft_s.n == pytest.approx(seen.offered_requests_per_s * seen.window_s, abs=1)


@pytest.mark.parametrize("k", [1.0, 0.25])
def test_above_the_sustainable_rate_it_says_so_and_gives_no_latencies(k):
    rate = 1.25 * sustainable()
    seen = open_loop(machine(), PLAIN, arrivals(random.Random(1), rate, k), warm_up=5, seconds=20)
    assert seen.unstable
    assert seen.requests_per_s == pytest.approx(sustainable(), rel=0.02)
    assert seen.offered_requests_per_s > 1.1 * seen.requests_per_s
    assert (seen.ttft_s, seen.itl_s, seen.e2e_s) == (None, None, None)


def test_regular_arrivals_are_told_from_too_many_to_five_percent():
    for share, unstable in ((0.99, False), (1.05, True)):
        times = (i / (share * sustainable()) for i in itertools.count())
        assert open_loop(machine(), PLAIN, times, warm_up=4, seconds=12).unstable is unstable


def test_bursts_wait_longer_at_the_same_rate():
    rate = 0.7 * sustainable()
    regular = open_loop(machine(), PLAIN, (i / rate for i in itertools.count()), warm_up=5, seconds=60)
    poisson, bursts = (
        open_loop(machine(), PLAIN, arrivals(random.Random(2), rate, k), warm_up=5, seconds=60) for k in (1.0, 0.2)
    )
    assert regular.ttft_s.p99 < 0.6 * poisson.ttft_s.p99
    assert poisson.ttft_s.p99 < 0.6 * bursts.ttft_s.p99


def test_latencies_are_of_the_requests_that_came_in_the_window_to_their_end():
    # One before the window, two in it of which the second ends far after it, one that comes later.
    seen = open_loop(machine(), [(10, 5), (10, 5), (10, 500), (10, 5)], [0.0, 1.0, 1.4, 2.0], warm_up=0.5, seconds=1.0)
    assert seen.e2e_s.n == 2
    assert seen.e2e_s.max > 500 * COST.weights
    assert seen.requests == 1
    assert seen.offered_requests_per_s == pytest.approx(2.0, rel=0.02)


def test_an_idle_server_waits_for_the_next_request():
    alone = open_loop(machine(), PLAIN, [0.0])
    apart = open_loop(machine(), PLAIN, [0.0, 100.0])
    assert apart.e2e_s.mean == pytest.approx(alone.e2e_s.mean)
    assert apart.window_s == pytest.approx(100 + alone.window_s)


def test_arrivals_that_go_back_in_time_are_an_error():
    with pytest.raises(ValueError, match=r"go back from 1 to 0\.5 s"):
        open_loop(machine(), PLAIN, [0.0, 1.0, 0.5])


def test_a_window_in_which_nothing_is_served_is_an_error():
    with pytest.raises(ValueError, match="nothing is served"):
        open_loop(machine(), PLAIN, [0.0], warm_up=100)


# ---- beside the closed form -----------------------------------------------------------------------------


def levels(there, shape, *users):
    return at_levels(LLAMA, there, shape, predict(LLAMA, there, shape, list(users)).levels)


def test_the_levels_of_a_closed_form_stand_beside_it_with_the_tails_that_it_has_not():
    alone, full, queued = levels(H100, PLAIN, 1, 16, 24)
    for level, users, running in ((alone, 1, 1), (full, 16, 16), (queued, 24, 16)):
        assert (level.concurrency, level.rate, level.unstable, level.preemptions) == (users, None, False, 0)
        assert level.over_closed_form == pytest.approx(1, abs=0.02)
        assert level.in_flight == pytest.approx(users)
        assert level.running == pytest.approx(running, rel=0.01)
        assert level.ttft_s.p50 <= level.ttft_s.p99
        assert level.itl_s.p50 <= level.itl_s.p99
    assert full.itl_s.p99 > 1.5 * full.itl_s.p50, "the steps that prefill"
    assert queued.ttft_s.p50 > 10 * full.ttft_s.p50, "the queue"


def test_where_the_machine_preempts_it_says_how_often():
    there, shape = msgspec.structs.replace(H100, max_num_seqs=1024, kv_tokens=32 * 1104), MeanLengths(1000, 200)
    below, above = levels(there, shape, 16, 64)
    assert below.preemptions == 0
    assert above.preemptions / above.requests == pytest.approx(math.log1p(200 / 1000), rel=0.25)


def test_replicas_share_the_users_and_the_fullest_one_says_the_latencies():
    two = msgspec.structs.replace(H100, dp=2, gpus=2)
    (both,), (one, more) = levels(two, PLAIN, 3), levels(H100, PLAIN, 1, 2)
    assert both.output_tokens_per_s == pytest.approx(one.output_tokens_per_s + more.output_tokens_per_s, rel=1e-3)
    assert (both.in_flight, both.running) == (pytest.approx(3), pytest.approx(3))
    assert both.ttft_s.mean == pytest.approx(more.ttft_s.mean, rel=1e-3)
    (idle,) = levels(two, PLAIN, 1)
    assert idle.output_tokens_per_s == pytest.approx(one.output_tokens_per_s)


def regular(level, rate):
    return (i / rate for i in itertools.count())


def test_requests_that_come_are_answered_up_to_what_is_sustained():
    below, above = at_rates(LLAMA, H100, PLAIN, [0.8 * sustainable(), 1.25 * sustainable()], regular)
    assert (below.concurrency, below.rate, below.unstable) == (None, 0.8 * sustainable(), False)
    assert below.requests_per_s == pytest.approx(below.offered_requests_per_s, rel=0.01)
    assert below.in_flight == pytest.approx(below.requests_per_s * below.e2e_s.mean, rel=0.02), "Little"
    assert below.over_closed_form is None
    assert above.unstable
    assert above.requests_per_s == pytest.approx(sustainable(), rel=0.02)
    assert (above.ttft_s, above.itl_s, above.e2e_s) == (None, None, None)


def test_replicas_share_the_requests_that_come():
    two = msgspec.structs.replace(H100, dp=2, gpus=2)
    (both,), (one,) = at_rates(LLAMA, two, PLAIN, [10.0], regular), at_rates(LLAMA, H100, PLAIN, [5.0], regular)
    assert both.output_tokens_per_s == pytest.approx(2 * one.output_tokens_per_s)
    assert both.offered_requests_per_s == pytest.approx(2 * one.offered_requests_per_s)
    assert (both.in_flight, both.requests) == (pytest.approx(2 * one.in_flight), 2 * one.requests)
    assert both.ttft_s == one.ttft_s


def test_a_flood_is_the_operators_mistake_and_says_what_is_sustained():
    with pytest.raises(HarnessError, match=r"--rate: 1e\+06 requests/s are far above the [0-9.]+ that can be served"):
        at_rates(LLAMA, H100, PLAIN, [1e6], regular)


def test_a_machine_without_steps_to_take_is_the_operators_mistake():
    with pytest.raises(HarnessError, match="--simulate: the workload has no output tokens"):
        levels(H100, MeanLengths(512, 0), 1)
    narrow = msgspec.structs.replace(H100, max_num_batched_tokens=3, draft_tokens=3, acceptance=0.5)
    with pytest.raises(HarnessError, match="--max-num-batched-tokens: a step of 3 tokens cannot verify the 4"):
        levels(narrow, PLAIN, 1)


@given(
    st.lists(
        st.tuples(st.floats(1e-4, 0.1), st.sampled_from([0.0, 1e-9, 3e-6]), st.integers(1, 40), st.integers(1, 9)),
        min_size=1,
        max_size=30,
    ),
)
def test_percentiles_of_gaps_are_those_of_all_gaps_in_order(gaps):
    ordered = sorted((first + k * growth, weight) for first, growth, steps, weight in gaps for k in range(steps))
    seen = simulate._spread_of_gaps([simulate._Gaps(*each) for each in gaps], 0.01)
    ranks = list(itertools.accumulate(weight for _, weight in ordered))
    for share, found in ((0.5, seen.p50), (0.9, seen.p90), (0.95, seen.p95)):
        if found is not None:
            wanted = ordered[bisect.bisect_left(ranks, share * ranks[-1] * (1 - 1e-12))][0]
            assert found == pytest.approx(wanted, rel=1e-12)
    assert (seen.n, seen.max) == (len(ordered), pytest.approx(ordered[-1][0], rel=1e-12))


def test_what_takes_requests_in_delays_every_token_alike():
    there = msgspec.structs.replace(H100, o_token=1e-5, o_first=6.0)
    shape = MeanLengths(1000, 100)
    (seen, _), (plain, _) = both_ways(LLAMA, there, shape, 1), both_ways(LLAMA, H100, shape, 1)
    # 1000 tokens are taken in for 10 ms, and the first token is six steps late
    later = 1000 * 1e-5 + 6 * decode_time(COST, 1, 1000)
    assert seen.ttft_s.mean - plain.ttft_s.mean == pytest.approx(later, rel=1e-2)
    assert seen.e2e_s.mean - plain.e2e_s.mean == pytest.approx(later, rel=1e-2)
    assert (seen.itl_s.mean, seen.output_tokens_per_s) == pytest.approx((plain.itl_s.mean, plain.output_tokens_per_s))
    cached = [msgspec.structs.replace(each, prefix_hit=0.9) for each in (there, H100)]
    (seen, _), (plain, _) = (both_ways(LLAMA, each, shape, 1) for each in cached)
    # 100 tokens that are not cached are in a CUDA graph
    later = 1000 * 1e-5 + 1.1 * decode_time(COST, 1, 1000)
    assert seen.ttft_s.mean - plain.ttft_s.mean == pytest.approx(later, rel=1e-2)
