"""When a level's window begins and ends, by numbers alone: no loop, no worker, no clock."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from harness.data.record import Level, LevelNote, Role
from harness.search import pace
from harness.search.budget import Budget, Spent
from harness.search.level import Now, Phase, Task, failing, outcomes_watched
from harness.search.timing import STALL_S, LevelTiming
from harness.spec import reading, scenario
from harness.spec.scenario import Ramp

STEP_S = 0.05  # between two reports


def task(concurrency: int | None = 4, *, role: Role = Role.FIXED, rate: float | None = None, **ramp: Any) -> Task:
    level = Level(0, concurrency, 0, 0.0, rate=rate, role=role)
    spec = reading.build({"ramp": ramp}, place="test")
    return Task(scenario=spec, level=level, alone_s=0.5, settle_s=0.3)


def now(time_s: float, *, takes: float = 0.5, slots: int = 4, **other: Any) -> Now:
    """Slots that keep a request of `takes` seconds in flight each, and 100 chunks a second together."""
    plain = Now(
        time_s=time_s, in_flight=slots, ended=int(slots * time_s / takes), waiting=0, tokens=int(100 * time_s),
        oldest_sent_s=time_s - takes, e2e_s=takes, recent_s=takes, request_s=takes, icl_s=0.01,
    )  # fmt: skip
    return msgspec.structs.replace(plain, **other)


def course(timing: LevelTiming, until_s: float = 400.0, change: Any = lambda known: known) -> list[tuple[Phase, float]]:
    """The level's phases as they come, with their times, each progress changed as a test needs it."""
    found = []
    for i in range(1, int(until_s / STEP_S)):
        known = change(now(i * STEP_S))
        phase = timing.phase
        moment = timing.step(known)
        if timing.phase is not phase:
            found.append((timing.phase, known.time_s))
        assert moment == (timing.phase is not phase and timing.phase is not Phase.ABANDONED)
        if timing.phase in (Phase.FINISHED, Phase.ABANDONED):
            return found
    raise AssertionError(f"it did not end: {found}")


def test_a_level_warms_up_is_measured_and_waits_for_its_last_request() -> None:
    timing = LevelTiming(task(level_seconds=5.0), 0.5, None)
    (window, cooldown, finished) = course(timing)
    assert window == (Phase.WINDOW, pytest.approx(1.0, abs=0.06)), "two requests of each slot"
    assert cooldown == (Phase.COOLDOWN, pytest.approx(6.0, abs=0.11))
    assert finished[1] - cooldown[1] >= 0.5 + 0.3, "a request, and the time until its record is there"
    assert timing.level.notes == ()
    assert (timing.level.window_start_s, timing.level.window_end_s) == (window[1], cooldown[1])


def on_timetable(index: int = 0) -> LevelTiming:
    """A level of a shard, whose moments are those of the scenario's timetable."""
    plain = task(level_seconds=5.0)
    moments = pace.moments(plain.scenario, index)
    level = msgspec.structs.replace(plain.level, index=index, begin_s=moments.begin_s)
    return LevelTiming(msgspec.structs.replace(plain, level=level, moments=moments), 0.5, None)


def test_a_level_of_a_shard_has_the_moments_of_the_timetable_whatever_is_seen() -> None:
    timing = on_timetable()
    phases = course(timing, change=lambda known: msgspec.structs.replace(known, failing=True, ended=0))
    assert [phase for phase, _ in phases] == [Phase.WINDOW, Phase.COOLDOWN, Phase.FINISHED]
    assert [at for _, at in phases] == pytest.approx([5.0, 10.0, 14.0], abs=0.06)
    level = timing.level
    assert (level.window_start_s, level.window_end_s, level.end_s) == (5.0, 10.0, 14.0)
    assert level.notes == ()


def test_what_a_level_of_a_shard_lacked_at_its_moments_is_noted() -> None:
    timing = on_timetable()
    course(timing, change=lambda known: msgspec.structs.replace(known, waiting=1, oldest_sent_s=9.0))
    assert timing.level.notes == (LevelNote.NOT_SETTLED, LevelNote.COOLDOWN_CUT)
    late = on_timetable()
    late.step(now(6.0))
    assert late.phase is Phase.WINDOW
    assert late.level.notes == (LevelNote.NOT_SETTLED,), "its first report came when its window had begun"


@pytest.mark.parametrize(
    ("change", "dead"),
    [
        ({"refused": 2}, (LevelNote.REFUSED, LevelNote.COOLDOWN_STALLED)),
        ({"tokens": 100}, (LevelNote.STALLED, LevelNote.COOLDOWN_STALLED)),
        ({"failing": True}, ()),
    ],
)
def test_a_level_of_a_shard_that_nobody_answers_to_its_end_says_so(
    change: dict[str, Any], dead: tuple[str, ...]
) -> None:
    timing = on_timetable()
    course(timing, change=lambda known: msgspec.structs.replace(known, **change) if known.time_s > 2.0 else known)
    assert timing.level.notes[-2:] == dead
    assert timing.level.window == (5.0, 10.0), "the others' windows are there as well"


def test_a_trend_through_a_window_of_a_shard_is_noted() -> None:
    timing = on_timetable()
    course(timing, change=lambda known: msgspec.structs.replace(known, tokens=int(10 * known.time_s**2)))
    assert timing.level.notes == (LevelNote.NOT_SETTLED,)


def test_a_window_begins_when_every_slot_has_begun() -> None:
    timing = LevelTiming(task(level_seconds=5.0), 0.5, None)
    late = course(timing, change=lambda known: msgspec.structs.replace(known, waiting=int(known.time_s < 3.0)))
    assert late[0][1] == pytest.approx(3.0, abs=0.06)


def test_after_a_higher_level_the_requests_that_waited_behind_it_are_over_before_the_window() -> None:
    """Also where time is short and nothing warms up: these waited for others, and say nothing of this level."""

    def known(time_s: float, in_flight: int) -> Now:
        return now(time_s, ended=int(2 * max(0.0, time_s - 1.0) / 0.5), in_flight=in_flight)

    short = Budget(reading.build({"ramp": {"max_seconds": 3}}, place="test").ramp)
    for higher, begins in ((6, 1.5), (2, 0.05)):
        timing = LevelTiming(task(2, role=Role.REFINEMENT, max_seconds=3), 0.5, 3.0)
        assert timing.pace.warm_up == 0
        steps = (known(i * STEP_S, higher if i * STEP_S < 1.0 else 2) for i in range(1, 80))
        first = next(each for each in steps if timing.step(msgspec.structs.replace(each, budget=short)))
        assert timing.phase is Phase.WINDOW
        assert first.time_s == pytest.approx(begins, abs=0.06)


def test_an_open_level_warms_up_for_two_request_times_but_not_for_ever() -> None:
    fast = LevelTiming(task(None, rate=8.0, level_seconds=5.0), 0.5, None)
    assert course(fast)[0][1] == pytest.approx(1.0, abs=0.06)
    slow = LevelTiming(task(None, rate=8.0, level_seconds=5.0), 0.5, None)
    assert course(slow, change=lambda known: msgspec.structs.replace(known, e2e_s=99.0))[0][1] == pytest.approx(
        30.0, abs=0.06
    )


def test_a_first_pass_is_short_and_a_refinement_longer() -> None:
    first = LevelTiming(task(role=Role.FIRST_PASS), 0.5, None)
    narrower = LevelTiming(task(role=Role.REPEAT), 0.5, None)
    spans = [course(timing)[1][1] - timing.level.begin_s for timing in (first, narrower)]
    assert spans[0] == pytest.approx(0.5 + 1.0, abs=0.2)  # a warm-up of one request, and the shortest window
    assert spans[1] == pytest.approx(0.5 + 6 * 0.5, abs=0.2)


def test_a_single_stream_that_does_not_warm_up_is_measured_from_its_send_to_its_end() -> None:
    """A request takes 22 s, not 20 as before: it began in the window, and has ended in it."""

    def change(known: Now) -> Now:
        return msgspec.structs.replace(
            now(known.time_s, takes=22.0, slots=1), budget=Budget(Ramp(max_seconds=100.0), Spent(seconds=known.time_s))
        )

    timing = LevelTiming(task(1, role=Role.FIRST_PASS, max_seconds=100.0), 20.0, 100.0)
    (window, cooldown, _) = course(timing, change=change)
    assert (window[0], cooldown[0]) == (Phase.WINDOW, Phase.COOLDOWN)
    assert (timing.level.window_start_s, timing.level.window_end_s) == (0.0, pytest.approx(22.0, abs=0.06))


def test_a_budget_that_is_reached_while_it_warms_up_abandons_the_level() -> None:
    timing = LevelTiming(task(level_seconds=5.0), 0.5, None)
    spent = Budget(scenario.Ramp(max_requests=10), Spent(0.5, 10))
    assert course(timing, change=lambda known: msgspec.structs.replace(known, budget=spent)) == [
        (Phase.ABANDONED, STEP_S)
    ]
    assert timing.level.window_start_s is None


def test_a_paced_window_ends_while_its_last_requests_still_fit_into_the_budget() -> None:
    """Of 1.8 s half a second is kept for the last requests; the window alone would end at 1.5 s."""

    def spending(known: Now) -> Now:
        return msgspec.structs.replace(known, budget=Budget(scenario.Ramp(max_seconds=1.8), Spent(known.time_s)))

    timing = LevelTiming(task(role=Role.REFINEMENT, max_seconds=1.8), 0.5, None)
    phases = course(timing, change=spending)
    assert phases[1][1] == pytest.approx(1.3, abs=0.06)
    assert timing.level.notes[0] is LevelNote.CUT_SHORT


@pytest.mark.parametrize(
    ("change", "note", "at_s"),
    [
        (lambda known: msgspec.structs.replace(known, failing=known.time_s > 10), LevelNote.FAILING, 10.0),
        (lambda known: msgspec.structs.replace(known, tokens=min(known.tokens, 500)), LevelNote.STALLED, 5.0 + STALL_S),
    ],
)
def test_a_level_that_is_of_no_more_use_ends(change: Any, note: LevelNote, at_s: float) -> None:
    timing = LevelTiming(task(level_seconds=300.0), 0.5, None)
    phases = course(timing, change=change)
    assert phases[1] == (Phase.COOLDOWN, pytest.approx(at_s, abs=0.11))
    assert timing.level.notes[0] is note


def test_a_pause_in_which_nobody_waits_for_a_token_is_no_stall() -> None:
    """Longer than a stall: users that think, sessions that pause, an open loop that sends nothing for a while."""

    def pausing(known: Now) -> Now:
        if not 5.0 < known.time_s < 51.0:
            return known
        waits = known.time_s >= 50.0  # the next request, whose first token comes a second later
        return msgspec.structs.replace(known, tokens=500, in_flight=int(waits), oldest_sent_s=50.0 if waits else None)

    timing = LevelTiming(task(2, level_seconds=60.0), 0.5, None)
    course(timing, change=pausing)
    assert LevelNote.STALLED not in timing.level.notes


def test_a_request_that_hangs_is_waited_for_only_while_the_budget_lasts() -> None:
    def hanging(known: Now) -> Now:
        spent = Budget(scenario.Ramp(max_seconds=20.0), Spent(known.time_s))
        return msgspec.structs.replace(known, oldest_sent_s=2.0, budget=spent)

    timing = LevelTiming(task(level_seconds=5.0), 0.5, None)
    phases = course(timing, change=hanging)
    assert phases[-1] == (Phase.FINISHED, pytest.approx(20.0, abs=0.11))
    assert timing.level.notes == (LevelNote.COOLDOWN_CUT,)


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"failing": True}, LevelNote.COOLDOWN_CUT),
        ({"tokens": 500}, LevelNote.COOLDOWN_STALLED),
    ],
)
def test_what_is_wrong_with_the_server_is_noted_where_it_ends_the_wait_for_a_last_request(
    change: dict[str, Any], note: LevelNote
) -> None:
    def hanging(known: Now) -> Now:
        late = {} if known.time_s < 40.0 else change
        return msgspec.structs.replace(known, oldest_sent_s=2.0, **late)

    timing = LevelTiming(task(level_seconds=5.0), 0.5, None)
    course(timing, change=hanging)
    assert timing.level.notes == (note,)


def test_a_transient_pushes_the_window_and_a_trend_extends_it_once() -> None:
    pushed = LevelTiming(task(level_seconds=10.0), 0.5, None)
    slow = course(pushed, change=lambda k: msgspec.structs.replace(k, tokens=_tokens(k.time_s, 3.0)))
    assert pushed.level.window_start_s == pytest.approx(3.0, abs=0.3)
    assert slow[1][1] - (pushed.level.window_start_s or 0.0) == pytest.approx(10.0, abs=0.11)
    trending = LevelTiming(task(level_seconds=5.0), 0.5, None)
    course(trending, change=lambda k: msgspec.structs.replace(k, tokens=int(500 * k.time_s**2)))
    assert trending.level.notes == (LevelNote.NOT_SETTLED,)


@pytest.mark.parametrize(("level_seconds", "window_s"), [(None, 4.0), (4.0, 4.0), (5.0, 8.0)])
def test_a_rate_that_varies_is_measured_over_whole_periods_and_has_no_transient(
    level_seconds: float | None, window_s: float
) -> None:
    ramp = {"level_seconds": level_seconds, "arrivals": "wave(period=4s,low=1,high=9)"}
    timing = LevelTiming(task(None, rate=5.0, **ramp), 0.5, None)
    course(timing, change=lambda k: msgspec.structs.replace(k, tokens=int(500 * k.time_s**2)))
    start, end = timing.level.window
    assert end - start == pytest.approx(window_s, abs=0.06)
    assert timing.level.notes == ()


def _tokens(time_s: float, steady_s: float) -> int:
    """A tenth of the rate until it is steady."""
    return round(100 * min(time_s, steady_s) + 1000 * max(0.0, time_s - steady_s))


def test_a_level_s_speed_is_that_of_the_last_second() -> None:
    timing = LevelTiming(task(level_seconds=300.0), 0.5, None)
    assert timing.tokens_per_s(1.0) == 0.0
    for i in range(1, 100):
        timing.step(now(i * STEP_S))
    assert timing.tokens_per_s(1.0) == pytest.approx(100.0, rel=0.06)
    assert timing.silent_s == 0.0


def test_whether_a_level_fails_takes_two_outcomes_of_each_slot() -> None:
    assert outcomes_watched(256) == 512
    assert not failing([True] * 511, 512)
    assert failing([True] * 256 + [False] * 256, 512)


def test_a_window_has_pauses_as_well_as_requests() -> None:
    """A user who thinks 2 s between requests of half a second: windows by 2.5 s, not by 0.5."""
    thinking = msgspec.structs.replace(task(role=Role.FIRST_PASS, levels=None), rest_s=2.0)
    assert LevelTiming(thinking, 0.5, None).pace.window_s == 1.5 * 2.5


def test_a_level_ends_at_once_where_two_connections_in_a_row_find_no_server() -> None:
    timing = LevelTiming(task(level_seconds=60.0), 0.5, None)
    course(timing, change=lambda known: msgspec.structs.replace(known, refused=2 if known.time_s > 4.0 else 0))
    assert timing.level.notes[0] is LevelNote.REFUSED
    assert timing.level.window_end_s == pytest.approx(4.1, abs=0.1)


def silent_after(at_s: float, **other: Any) -> Any:
    return lambda known: msgspec.structs.replace(known, tokens=int(100 * min(known.time_s, at_s)), **other)


def test_how_long_no_token_may_come_follows_from_the_longest_silence_before() -> None:
    """A server that computes prompts for 4 s is waited for five times as long; more load waits in proportion."""
    for known, at_s in ({}, 3.0 + STALL_S), ({"silence_s": 4.0}, 3.0 + 20.0), ({"spread": 8.0}, 3.0 + 20.0):
        timing = LevelTiming(msgspec.structs.replace(task(level_seconds=60.0), **known), 0.5, None)
        course(timing, change=silent_after(3.0))
        assert LevelNote.STALLED in timing.level.notes
        assert timing.level.window_end_s == pytest.approx(at_s, abs=0.2)
    first = msgspec.structs.replace(task(32, level_seconds=60.0), silence_s=1.0, silence_load=4.0)
    timing = LevelTiming(first, 0.5, None)
    course(timing, change=silent_after(0.0, ended=0))
    assert timing.level.window_end_s == pytest.approx(40.0 + 1.0, abs=0.3), "8 times the load, 5 times the silence"


def test_answers_that_come_whole_are_no_silence_as_long_as_they_come() -> None:
    """Without streaming a token is an answer: at one in flight, every 9 s."""
    slow = msgspec.structs.replace(task(1, level_seconds=60.0), alone_s=9.0)
    timing = LevelTiming(slow, 9.0, None)
    course(timing, change=lambda known: now(known.time_s, takes=9.0, slots=1, tokens=int(known.time_s / 9.0)))
    assert timing.level.notes == ()


def test_a_level_does_not_wait_for_a_request_that_hangs_but_for_all_others() -> None:
    """One request of the warm-up is never answered; the others of the window take half a second."""
    timing = LevelTiming(task(level_seconds=6.0), 0.5, None)

    def hung(known: Now) -> Now:
        others = [known.time_s - 0.4, known.time_s - 0.2]
        return msgspec.structs.replace(known, oldest_sent_s=0.1, oldest=(0.1, *others), longest_s=0.5)

    (_, (_, cooled_s), (_, end_s)) = course(timing, change=hung)
    assert timing.level.hung == 1
    assert 0.4 < end_s - cooled_s < 1.0


def test_a_level_of_a_given_number_of_requests_has_all_of_them_in_its_window() -> None:
    timing = LevelTiming(msgspec.structs.replace(task(), requests=20), 0.5, None)
    course(timing, change=lambda known: msgspec.structs.replace(
        known, ended=min(20, known.ended), oldest_sent_s=None if known.ended >= 20 else known.oldest_sent_s
    ))  # fmt: skip
    assert timing.level.notes == (LevelNote.COUNTED,)
    assert timing.level.window == (0.0, pytest.approx(2.5, abs=0.06))


@pytest.mark.parametrize(
    ("refused", "notes"), [(0, (LevelNote.COUNTED,)), (2, (LevelNote.COUNTED, LevelNote.COOLDOWN_STALLED))]
)
def test_the_last_of_a_given_number_of_requests_leaves_time_for_its_record(
    refused: int, notes: tuple[LevelNote, ...]
) -> None:
    """Without it the summary lacks requests that were answered; a server that died is noted all the same."""

    def fast(known: Now) -> Now:
        spent = Budget(scenario.Ramp(max_requests=20), Spent(known.time_s, 20))
        ended, short = min(20, known.ended), {"e2e_s": 0.02, "recent_s": 0.02, "request_s": 0.02}
        oldest = None if ended == 20 else known.oldest_sent_s
        return msgspec.structs.replace(
            known, ended=ended, oldest_sent_s=oldest, budget=spent, refused=refused if ended == 20 else 0, **short
        )

    timing = LevelTiming(msgspec.structs.replace(task(), requests=20), 0.02, None)
    (_, (_, cooled_s), (_, end_s)) = course(timing, change=fast)
    assert timing.level.notes == notes
    assert end_s - cooled_s > 0.3


def test_a_level_that_is_interrupted_in_its_window_is_kept_as_far_as_it_came() -> None:
    timing = LevelTiming(task(level_seconds=20.0), 0.5, None)
    for i in range(1, 100):
        timing.step(now(i * STEP_S))
        if timing.phase is Phase.WARM_UP:
            assert timing.interrupted(i * STEP_S) is None
    partial = timing.interrupted(5.0)
    assert partial is not None
    assert partial.window == (pytest.approx(1.0, abs=0.06), 5.0)
    assert partial.finished
    assert partial.notes == (LevelNote.INTERRUPTED,)


def test_a_client_that_stood_still_does_not_take_it_for_the_server() -> None:
    """The process sleeps for 20 s and finds all that came in the next report but one."""
    timing = LevelTiming(task(level_seconds=60.0), 0.5, None)

    def slept(known: Now) -> Now:
        return msgspec.structs.replace(known, tokens=500) if 5.0 < known.time_s <= 25.05 else known

    for i in range(1, 2000):
        known = slept(now(i * STEP_S))
        if 5.0 < known.time_s < 24.9:
            continue  # no report comes
        timing.step(known)
        if timing.phase is Phase.FINISHED:
            break
    assert LevelNote.STALLED not in timing.level.notes


def test_more_requests_hang_than_a_report_has_and_the_others_are_waited_for() -> None:
    timing = LevelTiming(task(level_seconds=6.0), 0.5, None)

    def hung(known: Now) -> Now:
        others = known.time_s < 9.0  # a request of the window is still in flight
        return msgspec.structs.replace(
            known, in_flight=4 if others else 2, oldest_sent_s=0.1, oldest=(0.1, 0.2), longest_s=0.5
        )

    (*_, (_, end_s)) = course(timing, change=hung)
    assert end_s > 9.0
    assert timing.level.hung == 2
