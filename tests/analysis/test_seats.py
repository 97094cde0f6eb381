"""Seats: worked out by hand, counted at a small queue, and refused where there is no fixed number."""

from __future__ import annotations

import math
from collections import deque

import msgspec
import pytest

from harness.analysis import seats
from harness.analysis.seats import Occupancy, Seats
from harness.analysis.table import Table
from harness.data.judgement import Verdict
from harness.data.levels import Service
from harness.data.views import Estimate, ServerView
from harness.results.readers.level import ForeignLevel, Latency
from tests.builders.records import request
from tests.builders.summaries import level

START, END = 10.0, 40.0  # the window of the queue below, which goes on for 5 s
PROMPT = 2  # steps that a prompt takes in it


def served(C: int, limit: float = math.inf, memory: float = math.inf) -> Occupancy:
    """What a closed loop of C shows of a server with so many seats, or with memory for so many tokens of answers.

    A step takes 10 ms, and 1 ms for every request in it; answers have 40 to 59 tokens, and are taken in their order.
    """
    now, born, records = 0.0, C, []
    waiting, sent, running = deque(range(C)), dict.fromkeys(range(C), 0.0), dict[int, list[float]]()
    while now < END + 5:
        while waiting and len(running) < limit and sum(map(length, running)) + length(waiting[0]) <= memory:
            running[waiting.popleft()] = []
        now += 0.010 + 0.001 * len(running)
        for each, steps in list(running.items()):
            steps.append(now)
            if len(steps) == PROMPT + length(each):
                records.append(request(sent[each], steps[PROMPT:]))
                del running[each]
                waiting.append(born)
                sent[born] = now
                born += 1
    table = Table.of(records)
    tpot_s = float(((table.last - table.first) / (table.output_tokens - 1)).mean())
    shown = seats.service(table, START, END, None)
    assert shown is not None
    assert shown.streaming.mean is not None
    return Occupancy(C, C, shown.streaming.mean, tpot_s, END - START, shown.most, shown.most_fraction)


def length(each: int) -> int:
    """Tokens of a request's answer: 40 to 59, in no order."""
    return 40 + each * 7919 % 101 % 20


def means(*rows: tuple[float, float, float]) -> list[Occupancy]:
    """Levels without records: load, mean number that streams, seconds a token."""
    return [Occupancy(load, load, streaming, tpot_s, 20.0) for load, streaming, tpot_s in rows]


def test_the_mean_is_the_integral_of_what_streams_and_the_most_is_what_streamed_at_once() -> None:
    records = [
        request(0.0, [1.0, 4.0]),  # 2 s of it in the window [2, 12)
        request(1.0, [3.0, 8.0]),  # 5 s
        request(3.0, [6.0, 14.0], error="reset"),  # 6 s: it held a seat, whatever came of it
        request(4.0, [5.0]),  # a single chunk: it holds none
        request(5.0, done=9.0, error="http_5xx"),
    ]
    # 2–3 s: one, 3–4: two, 4–6: one, 6–8: two, 8–12: one.
    assert seats.service(Table.of(records), 2.0, 12.0, None) == Service(Estimate(1.3), most=2, most_fraction=0.3)


def test_where_nothing_streams_there_is_no_service() -> None:
    assert seats.service(Table.of([request(0.0, [1.0]), request(1.0, done=2.0)]), 0.0, 10.0, None) is None


def test_who_leaves_as_another_comes_holds_the_same_seat() -> None:
    shown = seats.service(Table.of([request(0.0, [1.0, 5.0]), request(0.0, [5.0, 9.0])]), 1.0, 9.0, None)
    assert shown == Service(Estimate(1.0), most=1, most_fraction=1.0)


@pytest.mark.parametrize("limit", [1, 4, 16])
def test_a_server_with_seats_is_counted_at_the_loads_that_pass_them(limit: int) -> None:
    levels = [served(C, limit) for C in sorted({1, max(1, limit // 2), limit, 2 * limit, 4 * limit})]
    found = seats.find(levels)
    assert isinstance(found, Seats)
    assert (found.value, found.counted, found.loads) == (limit, True, (2 * limit, 4 * limit))
    assert found.ci95[0] == limit <= found.ci95[1] <= 1.15 * limit
    assert found.onset == 2 * limit
    assert seats.waiting(levels) == [2 * limit, 4 * limit]


def test_repeats_of_a_level_are_one_load() -> None:
    levels = [served(8, 16), served(32, 16), served(32, 16)]
    assert seats.waiting(levels) == [32]
    assert seats.find(levels) is None


def test_a_server_without_a_limit_is_refused() -> None:
    levels = [served(C) for C in (1, 4, 16, 32, 64)]
    assert seats.waiting(levels) == []
    assert seats.find(levels) is None


def test_memory_for_so_many_tokens_is_never_counted_and_its_mean_is_what_it_serves() -> None:
    # Answers of 40 to 59 tokens, 49.5 on average: memory for 1,000 has 20 of them at once, now more, now less.
    found = seats.find([served(C, memory=1000) for C in (2, 4, 8, 16, 64, 128)])
    assert isinstance(found, Seats)
    assert not found.counted
    assert found.value == pytest.approx(1000 / 49.5, rel=0.1)


def test_what_grows_with_load_is_no_fixed_number() -> None:
    # From 64 on far fewer stream than are in flight, but twice as many at twice the load.
    rising = means((8, 7.6, 0.01), (16, 15.2, 0.01), (64, 24.0, 0.012), (128, 48.0, 0.02), (256, 96.0, 0.03))
    assert seats.find(rising) is None


def test_without_records_the_mean_is_corrected_for_the_prompts() -> None:
    # At 8 one in twenty computes its prompt, 0.05·8/7.6 of an answer; at 32 and 64 a token takes twice as long, and
    # the prompt as long as before, or twice as long: 15.2·(1 + 0.4/7.6/2) = 15.6, or 15.2·8/7.6 = 16.
    found = seats.find(means((4, 3.8, 0.01), (8, 7.6, 0.01), (32, 15.2, 0.02), (64, 15.2, 0.02)))
    assert isinstance(found, Seats)
    assert found.value == pytest.approx(math.sqrt(15.6 * 16))
    assert not found.counted
    # Two loads that agree count with two that scatter by 5 %: s² = 2·0.05²/3, and t with three degrees is 3.18.
    half = 3.1824 * math.sqrt(2 * 0.05**2 / 3 / 2)
    assert found.ci95 == pytest.approx((15.6 * math.exp(-half), 16 * math.exp(half)), rel=1e-4)


def test_where_requests_wait_at_every_load_only_counting_helps() -> None:
    assert seats.find(means((64, 15.2, 0.02), (32, 15.2, 0.02))) is None
    found = seats.find([served(32, 16), served(64, 16)])
    assert isinstance(found, Seats)
    assert (found.value, found.ci95) == (16, (16, 17))


def test_prompts_that_came_all_at_once_do_not_hide_what_was_counted() -> None:
    """16 seats, as measured on a real server: a short window at 16 had all its prompts at its begin.

    There 16/11.6 - 1 = 0.38 of an answer would be a prompt, and 14 × 1.38 = 19.3 served past the seats. With 14 that
    stream on average, nobody but the lone request is known not to wait: its prompt is 0.235 of an answer.
    """
    rows = (1, 0.81, 0.017, 1), (16, 11.6, 0.067, 16), (24, 14.0, 0.075, 16), (32, 14.0, 0.075, 16)
    found = seats.find([Occupancy(N, N, streaming, tpot, 10.0, most, 0.2) for N, streaming, tpot, most in rows])
    assert isinstance(found, Seats)
    assert (found.value, found.counted, found.loads) == (16, True, (24, 32))
    assert found.ci95 == pytest.approx((16, 14 / 0.81))


def test_the_queue_of_one_replica_is_no_time_of_a_prompt() -> None:
    """Replicas of 8 and 24 seats that get half of the users each; prompts take 4 % of the time in service.

    With 32 users 8 and 16 are in service while 8 wait for the smaller replica. Only from 48 on all seats are taken.
    """
    rows = (1, 1), (8, 8), (16, 16), (32, 24), (48, 32), (64, 32), (96, 32), (128, 32)
    found = seats.find([Occupancy(N, N, 0.96 * taken, 0.02, 10.0, taken, 0.01) for N, taken in rows])
    assert isinstance(found, Seats)
    assert not found.counted
    assert found.value == pytest.approx(32, rel=0.1)
    low, high = found.ci95
    assert low < 32 < high < 40


def test_the_greatest_number_is_no_count_where_fewer_are_served_while_others_wait() -> None:
    """Memory lets 19 short requests in at times, and 14 on average; none of those that wait takes a free seat."""
    rows = (1, 0.97, 1), (8, 7.8, 8), (12, 11.7, 12), (24, 14.0, 19), (32, 14.0, 19), (64, 14.0, 19)
    found = seats.find([Occupancy(N, N, streaming, 0.02, 10.0, most, 0.1) for N, streaming, most in rows])
    assert isinstance(found, Seats)
    assert not found.counted
    assert found.value == pytest.approx(14.4, rel=0.02)


def test_one_waiting_load_is_refused_and_no_level_is() -> None:
    assert seats.find(means((4, 3.8, 0.01), (8, 7.6, 0.01), (32, 15.2, 0.02))) is None
    assert seats.find([]) is None


def test_prompts_that_take_most_of_the_time_are_refused() -> None:
    assert seats.find(means((4, 1.2, 0.01), (32, 4.0, 0.01), (64, 4.0, 0.01))) is None


def test_the_servers_own_count_has_to_agree() -> None:
    levels = [served(C, 16) for C in (8, 16, 32, 64)]

    def told(running: float) -> list[Occupancy]:
        return [
            msgspec.structs.replace(each, running=min(each.load, running), waiting=max(0.0, each.load - running))
            for each in levels
        ]

    agreed = seats.find(told(15.8))
    assert isinstance(agreed, Seats)
    assert agreed.source == "both"
    assert seats.find(told(24.0)) is None


def test_a_level_is_an_occupancy_where_it_is_a_point_and_its_answers_stream() -> None:
    shown = level(32, service=Service(Estimate(15.4), 16, 0.4), server=ServerView(running=15.5, waiting=16.0))
    assert seats.occupancy(shown) == Occupancy(
        32, shown.in_flight or 0.0, 15.4, shown.tpot_s.mean or 0.0, 30.0, 16, 0.4, 15.5, 16.0
    )
    assert seats.occupancy(msgspec.structs.replace(shown, concurrency=None, rate=3.0)) is None
    void = [Verdict("client_limited", "invalid", "the client is limited")]
    assert seats.occupancy(msgspec.structs.replace(shown, verdicts=void)) is None
    assert seats.occupancies([shown, msgspec.structs.replace(shown, input_tokens_asked=64)]) == [seats.occupancy(shown)]


def test_a_level_of_another_tools_file_streams_by_littles_law() -> None:
    given = ForeignLevel(concurrency=32, output_tokens_per_s=800.0, tpot_s=Latency(mean=0.02), requests=120)
    assert seats.occupancy_of_file(32, given) == Occupancy(32, 32, 16.0, 0.02, 1.0)
    timed = msgspec.structs.replace(given, requests_per_s=6.0, in_flight=31.0)
    assert seats.occupancy_of_file(32, timed) == Occupancy(32, 31.0, 16.0, 0.02, 20.0)
    assert seats.occupancy_of_file(32, msgspec.structs.replace(given, tpot_s=Latency())) is None
