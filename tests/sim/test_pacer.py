import itertools
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.predict.sequence import SimulatedRequest
from harness.sim.machines import Flood, Pacer


def stream_of(id, tokens=1000):
    return SimulatedRequest(id, 1, tokens)


def written(machine, steps):
    """(step, request, position) of everything that leaves in the next steps."""
    return [(k, token.request, token.position) for k in range(steps) for token in machine.step().tokens]


# ---- the pacer -------------------------------------------------------------------------------------------


def test_a_step_is_a_phase_of_the_itl_and_a_stream_gets_one_token_an_itl():
    pacer = Pacer(ttft_s=0.0, itl_s=0.024, groups=6)
    pacer.submit(stream_of(1))
    assert pacer.step().duration == 0.004
    pacer.submit(stream_of(2))
    for id in (1, 2):
        steps = [(k, position) for k, request, position in written(pacer, 60) if request == id]
        assert {later - earlier for (earlier, _), (later, _) in itertools.pairwise(steps)} == {6}
        assert [position for _, position in steps] == list(range(steps[0][1], steps[0][1] + 10))


def test_in_one_group_all_streams_are_written_in_one_step():
    pacer = Pacer(ttft_s=0.0, itl_s=0.02, groups=1)
    for id in range(512):
        pacer.submit(stream_of(id))
    assert [len(pacer.step().tokens) for _ in range(3)] == [512] * 3


def test_in_64_groups_512_streams_leave_8_at_a_time():
    pacer = Pacer(ttft_s=0.2, itl_s=0.025, groups=64)
    for id in range(512):
        pacer.submit(stream_of(id))
    while not pacer.step().tokens:
        pass
    written(pacer, 64)
    assert [len(pacer.step().tokens) for _ in range(200)] == [8] * 200


def test_a_stream_that_finds_the_pacer_idle_begins_after_exactly_its_ttft():
    pacer = Pacer(ttft_s=0.2, itl_s=0.025, groups=5)
    pacer.submit(stream_of(1, 3))
    # 40 steps of 5 ms: the token leaves at the end of the 40th.
    assert [k + 1 for k, _, _ in written(pacer, 50)] == [40, 45, 50]
    assert pacer.step() is None
    pacer.submit(stream_of(2, 1))
    assert [k + 1 for k, _, _ in written(pacer, 40)] == [40]


def test_a_stream_that_came_while_the_pacer_was_behind_waits_that_much_longer():
    first = {}
    for late in (0.0, 0.0301):
        pacer = Pacer(ttft_s=0.1, itl_s=0.01, groups=1)
        pacer.submit(stream_of(1))
        pacer.step()
        pacer.submit(stream_of(2), late)
        first[late] = next(k for k, request, _ in written(pacer, 30) if request == 2)
    assert first[0.0301] - first[0.0] == 4  # steps of 10 ms


@given(
    ttft=st.floats(0, 0.3),
    itl=st.floats(0.001, 0.1),
    groups=st.integers(1, 20),
    arrivals=st.lists(st.integers(0, 30), min_size=1, max_size=40),
)
def test_a_first_token_is_never_early_and_at_most_an_itl_and_a_step_late(ttft, itl, groups, arrivals):
    pacer = Pacer(ttft, itl, groups)
    step = itl / groups
    pacer.submit(stream_of(-1))  # so that it never idles
    submitted, ended, first = Counter(arrivals), {}, {}
    for k in range(31 + math.ceil((ttft + itl) / step) + groups + 1):
        for token in pacer.step().tokens:
            if token.position == 0:
                first[token.request] = (k + 1) * step
        for _ in range(submitted[k]):  # while step k runs: after its beginning, before its end
            id = len(ended)
            ended[id] = (k + 1) * step
            pacer.submit(stream_of(id))
    for id, end in ended.items():
        assert ttft - 1e-6 <= first[id] - (end - step)
        assert first[id] - end <= ttft + itl + 1e-6


@given(st.lists(st.one_of(st.none(), st.integers(0, 20)), max_size=40), st.integers(1, 9))
def test_a_new_stream_always_goes_to_one_of_the_smallest_groups(deeds, groups):
    pacer = Pacer(ttft_s=0.0, itl_s=0.02, groups=groups)
    here = {}  # stream: its group
    for id, gone in enumerate(deeds):
        if gone in here:
            assert pacer.cancel(gone)
            del here[gone]
        sizes = [list(here.values()).count(group) for group in range(groups)]
        pacer.submit(stream_of(id))
        here = {request: k for k, request, _ in written(pacer, groups)}  # once round: the next step is group 0's again
        assert sizes[here[id]] == min(sizes)


def test_a_cancelled_stream_gets_nothing_more_whether_it_had_begun_or_not():
    pacer = Pacer(ttft_s=0.01, itl_s=0.01, groups=2)
    for id in (1, 2, 3):
        pacer.submit(stream_of(id))
    assert pacer.cancel(1)
    assert {request for _, request, _ in written(pacer, 10)} == {2, 3}
    assert pacer.cancel(2)
    assert not pacer.cancel(2)
    assert {request for _, request, _ in written(pacer, 10)} == {3}
    assert pacer.running == 1
    assert pacer.cancel(3)
    assert pacer.step() is None


def test_an_answer_has_as_many_tokens_as_were_asked_for_and_its_last_one_says_so():
    pacer = Pacer(ttft_s=0.01, itl_s=0.01, groups=3)
    for id, tokens in ((1, 1), (2, 2), (3, 7)):
        pacer.submit(stream_of(id, tokens))
    seen = []
    while (step := pacer.step()) is not None:
        seen += step.tokens
    for id, tokens in ((1, 1), (2, 2), (3, 7)):
        mine = [(token.position, token.finished) for token in seen if token.request == id]
        assert mine == [(position, position == tokens - 1) for position in range(tokens)]


def test_a_pacer_without_streams_has_no_step_and_one_whose_streams_wait_has_empty_ones():
    pacer = Pacer(ttft_s=1.0, itl_s=0.02, groups=2)
    assert pacer.step() is None
    pacer.submit(stream_of(1))
    assert pacer.step().tokens == []


# ---- the flood -------------------------------------------------------------------------------------------


def test_a_round_of_a_flood_lasts_no_time_and_gives_everybody_the_same():
    flood = Flood(1)
    for id in range(5):
        flood.submit(stream_of(id))
    assert flood.step().duration == 0
    assert Counter(request for _, request, _ in written(flood, 30)) == dict.fromkeys(range(5), 30)


def test_a_held_stream_gets_nothing_until_it_is_released_and_then_goes_on_where_it_was():
    flood = Flood(4)
    for id in (1, 2):
        flood.submit(stream_of(id))
    flood.step()
    flood.pause(1)
    assert written(flood, 3) == [(0, 2, 4), (1, 2, 8), (2, 2, 12)]
    assert flood.running == 2
    flood.release(1)
    assert sorted(flood.step().tokens) == [(1, 4, False), (2, 16, False)]


def test_a_flood_whose_streams_are_all_held_has_no_round():
    flood = Flood(1)
    flood.submit(stream_of(1))
    flood.pause(1)
    assert flood.step() is None
    assert flood.cancel(1)
    flood.release(1)
    assert flood.running == 0


@pytest.mark.parametrize(("tokens", "positions"), [(1, [0]), (3, [0]), (4, [0]), (5, [0, 4]), (9, [0, 4, 8])])
def test_a_burst_is_cut_where_the_answer_ends(tokens, positions):
    flood = Flood(4)
    flood.submit(stream_of(1, tokens))
    seen = []
    while (step := flood.step()) is not None:
        seen += step.tokens
    assert [token.position for token in seen] == positions
    assert [token.finished for token in seen] == [False] * (len(positions) - 1) + [True]
