"""When a level's window begins and ends: what is known at a moment in, the level's moments out.

A level warms up, is measured in a window behind its transient, and goes on until the last request of that window has
ended, so that no window has surviving requests alone. Pure: `LevelTiming.step` takes what is known (`Now`) as often as
there is progress. Left out: where the progress comes from, and what is done with the level's records.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from harness.analysis import window
from harness.analysis.table import Floats, Ints
from harness.data.record import Level, LevelNote
from harness.search import pace
from harness.search.budget import Bound
from harness.search.level import History, Now, Phase, Task, check_lengths
from harness.search.pace import Moments
from harness.spec import traffic
from harness.spec.scenario import PRECISION

LONGEST_OPEN_WARM_UP_S = 30.0
STALL_S, STALL_TIMES = 5.0, 5.0  # seconds without a token, and times the longest silence before, that end a level
REFUSED = 2  # connections in a row that find no server: the level ends
RECENT = 256  # requests whose times count if a level has no number of slots

_FAILING_WINDOW_S = 1.0  # window of a level that fails or stalls: enough to be shown with its errors
_CHECKS_TO_SETTLE = 2  # checks of the transient; what has not settled by then is a trend, which more time does not end
_MEASURED_SPREAD = 2.0  # times the longest silence that was measured, that another request of the load may take
_STOOD_STILL_S = 1.0  # between two reports, which come 20 times a second
_HUNG_TIMES = 5.0  # times the longest request time, and at least STALL_S, after which a request hangs
_COOLDOWN_REQUESTS = 2.0  # request times that a level waits for its last requests, if it need not go on


class LevelTiming:
    """A level while it runs; `level` has the moments that have come, `pace` how its slots begin."""

    def __init__(self, task: Task, e2e_s: float, seconds_left: float | None) -> None:
        self._task = task
        self._e2e_s = e2e_s
        self.level = task.level
        self.pace = task.pace(e2e_s, seconds_left)
        self.phase = Phase.WARM_UP
        self.since_s = task.level.begin_s  # when the phase began
        self.expected_s: float | None = None  # how long the phase will take; None: not known
        self._tokens = History()
        self.token_s = task.level.begin_s  # since when somebody has waited for a token; now, if nobody waits
        self.answered_s = task.level.begin_s  # when the last token came
        self.longest_silence_s = 0.0  # longest silence in this level that a token ended
        self._after_higher = False  # whether more were in flight when the level began than it keeps
        self._from_send = False  # whether the window is that of one request, from its send to its end
        self._alone_at: int | None = None  # how many of the level's requests had ended when none of a higher was left
        self._start_s = self._length_s = 0.0  # start and length of the window, as known so far
        self._fixed_s: float | None = None  # the window's fixed length; None: it ends when it is precise
        self._lengths: list[float] = []  # lengths of the window at which precision is checked
        self._checks = 0
        periodic = traffic.parse(task.scenario.ramp.arrivals).period_s is not None  # its transient never ends
        # A soak's window is not moved behind a change in it, nor extended for a trend: these are what it looks for.
        self._settled = periodic or pace.soaks(task.scenario, task.level.role)
        self._extended = False
        self._last_ended_s: float | None = None  # when the window's last request had ended

    @property
    def requests(self) -> int | None:
        """Return how many requests the level has; None: as many as come in its time."""
        return self._task.requests

    @property
    def silent_s(self) -> float:
        """Return how long no token has come, though somebody waited for one."""
        return self._tokens.latest[0] - self.token_s if self._tokens.latest else 0.0

    def interrupted(self, time_s: float) -> Level | None:
        """Return the level, marked as interrupted, as it is when cut at `time_s`; None if it has nothing to show.

        A window that is open for a second or more ends there; behind the window only the level ends early.
        """
        if self.phase is Phase.COOLDOWN:
            notes = (*self.level.notes, LevelNote.INTERRUPTED)
            return msgspec.structs.replace(self.level, end_s=time_s, notes=notes)
        if self.phase is not Phase.WINDOW or time_s - self._start_s < _FAILING_WINDOW_S:
            return None
        notes = (*self.level.notes, LevelNote.INTERRUPTED)
        return msgspec.structs.replace(
            self.level, window_start_s=self._start_s, window_end_s=time_s, end_s=time_s, notes=notes
        )

    def tokens_per_s(self, span_s: float) -> float:
        """Return the token-carrying chunks per second over the last seconds of this level."""
        return self._tokens.per_s(span_s)

    def step(self, now: Now) -> bool:
        """Advance the level by one report; return whether its window began or ended, or the level ended."""
        self._hear(now)
        self._tokens.add(now.time_s, now.tokens)
        if self._task.moments is not None:
            return self._by_timetable(now, self._task.moments)
        if self._task.requests is not None and self.phase is not Phase.COOLDOWN:
            return self._by_count(now, self._task.requests)
        if self.phase is Phase.WARM_UP:
            return self._warm_up(now)
        if self.phase is Phase.WINDOW:
            return self._measure(now)
        return self._cool_down(now)

    def _hear(self, now: Now) -> None:
        """Note when the last token came and the longest silence; idle time and pauses of the client are no silence."""
        latest = self._tokens.latest
        came = latest is not None and now.tokens > latest[1]
        if came:
            self.answered_s = now.time_s
            if now.in_flight:
                self.longest_silence_s = max(self.longest_silence_s, now.time_s - self.token_s)
        if came or not now.in_flight or latest is None or now.time_s - latest[0] > _STOOD_STILL_S:
            self.token_s = max(now.time_s, self.token_s)

    def _warm_up(self, now: Now) -> bool:
        """Begin the window once the level is warm, or will not get so, and set its length; return whether it has begun.

        A level whose budget is over before that is abandoned.
        """
        if not self._is_warm(now) and not self._hopeless(now):
            if now.budget.over() is not None:
                self.phase = Phase.ABANDONED
            return False
        # A single stream that did not warm up is measured over a whole request, from its send on if it was alone then.
        self._from_send = self._is_single_request and not self._after_higher
        self.phase, self._start_s = Phase.WINDOW, self.level.begin_s if self._from_send else now.time_s
        self.level = msgspec.structs.replace(self.level, window_start_s=self._start_s)
        again = self._task.pace(now.recent_s, now.budget.seconds_left)
        if again.window_s is None:
            self._until_precise(now, now.recent_s)
        else:
            whole = self._e2e_s if self._is_single_request else 0.0
            self._fixed_s = max(again.window_s, whole)
            self._wait(self._fixed_s)
            if self._from_send:
                self._length_s, self.expected_s = pace.SHORTEST_S, self._e2e_s
        return True

    def _is_warm(self, now: Now) -> bool:
        """Return whether the load has run long enough for the window to begin.

        Closed loop: every slot has begun, as many requests of each as the pace requires have ended, and after a higher
        level as many have ended since its last one, so that those which ran at the same time are over too. Open loop:
        after two request times, which an overloaded server stretches, and a low rate, but not for ever.
        """
        C = self.level.concurrency
        if C is None:
            patience = max(LONGEST_OPEN_WARM_UP_S, 2 * self._task.alone_s)
            return now.time_s >= self.level.begin_s + (min(patience, 2 * now.e2e_s) if now.ended else patience)
        gone = not now.surplus if self._task.scenario.has_tasks else now.in_flight <= C  # a task may have several
        self._after_higher = self._after_higher or not gone
        if self._alone_at is None and gone:
            self._alone_at = now.ended
        if now.waiting or self._alone_at is None:
            return False
        return now.ended >= max(self.pace.warm_up * C, self._alone_at + C if self._after_higher else 0)

    def _measure(self, now: Now) -> bool:
        """Close the window and begin the cooldown if the window ends now; return whether it does.

        It ends early where the level is cut; otherwise not before its length, and one for a single request not before
        its end.
        """
        cut = self._cut(now)
        unanswered = self._from_send and not now.ended
        if cut is None and (unanswered or now.time_s < self._start_s + self._length_s):
            return False
        ends = self._precise_window_ends if self._fixed_s is None else self._fixed_window_ends
        if not ends(now, cut):
            return False
        self.phase, self.since_s, self.expected_s = Phase.COOLDOWN, now.time_s, None
        self.level = msgspec.structs.replace(self.level, window_start_s=self._start_s, window_end_s=now.time_s)
        return True

    def _cut(self, now: Now) -> LevelNote | None:
        """Return why the window ends at once, whatever its length: failures, or a budget used up; None: it goes on."""
        measured_s = now.time_s - self._start_s
        if self._hopeless(now) and measured_s >= _FAILING_WINDOW_S:
            return self._dead_note(now) or LevelNote.FAILING
        # The level's last requests still need their time, once the window is worth having.
        reserve_s = now.request_s if self._is_paced and measured_s >= now.request_s / 2 else 0.0
        return LevelNote.CUT_SHORT if now.budget.over(reserve_s) is not None else None

    def _dead_note(self, now: Now) -> LevelNote | None:
        if not self._is_dead(now):
            return None
        return LevelNote.REFUSED if now.refused >= REFUSED else LevelNote.STALLED

    def _fixed_window_ends(self, now: Now, cut: LevelNote | None) -> bool:
        """Return whether a window of fixed length ends now; `cut` ends it in any case, and is noted.

        It goes on once more where its beginning was still a transient (its start moves behind it), and once, for twice
        its length, where no steady part is found; then it ends with a note.
        """
        if cut is not None:
            self._note(cut)
        if cut is not None or self._settled:
            return True
        assert self._fixed_s is not None
        found, width = self._transient(now)
        if not found.checked or self._from_send:
            return True
        if found.settled:
            self._settled = True
            self._start_s = max(self._start_s, self.level.begin_s + found.cut * width)
            self._wait(self._fixed_s)
        elif not self._extended:
            self._extended = True
            self._wait(2 * self._fixed_s)
        else:
            self._note(LevelNote.NOT_SETTLED)
            return True
        return False

    def _precise_window_ends(self, now: Now, cut: LevelNote | None) -> bool:
        """Return whether a window without a fixed length ends now: it is precise after the transient, or cut."""
        self._checks += 1
        last = cut is not None or self._checks >= len(self._lengths)
        if cut is None and not self._settled:
            found, width = self._transient(now)
            self._settled, start_s = found.settled, self.level.begin_s + found.cut * width
            if found.checked and self._settled and start_s > self._start_s:
                self._start_s, self._checks = start_s, 0
                self._until_precise(now, now.request_s)
                return False
            if not self._settled and (last or self._checks >= _CHECKS_TO_SETTLE):
                self._note(LevelNote.NOT_SETTLED)
                last = True
        precise = self._is_precise(now)
        if last or (self._settled and precise):
            if cut is not None:
                self._note(cut)
            if not precise:
                self._note(LevelNote.NOT_PRECISE)
            return True
        self._until_precise(now, now.request_s)
        return False

    def _until_precise(self, now: Now, request_s: float) -> None:
        """Wait for the next length at which precision is checked, by the level's own request time as it is now."""
        request_s += self._task.rest_s
        self._lengths = check_lengths(request_s, self._task.longest(request_s, now.budget))
        self._wait(self._lengths[min(self._checks, len(self._lengths) - 1)])

    def _wait(self, length_s: float) -> None:
        self._length_s = self.expected_s = length_s
        self.since_s = self._start_s

    def _cool_down(self, now: Now) -> bool:
        """End the level once the window's last request has ended and is recorded, or is too late; return if so."""
        end_s = self.level.window_end_s
        assert end_s is not None
        hung = self._hung(now)
        others = now.oldest[hung:]
        if hung and others:
            oldest: float | None = others[0]
        elif hung and len(now.oldest) == now.in_flight:
            oldest = None
        else:  # none hangs, or more do than a report has
            oldest = now.oldest_sent_s
        over = oldest is None or oldest >= end_s or self._is_single_request
        if self._last_ended_s is None and now.time_s > end_s and over:
            self._last_ended_s = now.time_s
            self.level = msgspec.structs.replace(self.level, hung=hung)
        spent, dead = now.budget.over() is not None, self._is_dead(now)
        if self._last_ended_s is not None:  # what is left is on its way here: records
            until_s = self._last_ended_s + self._task.settle_s
        elif spent or dead or now.failing:
            # Its window ended early enough for the last ones, unless the last of so many requests ended it.
            early = spent and self._is_paced and now.budget.reached() != (Bound.REQUESTS,)
            until_s = end_s + (self._task.settle_s if early or dead else _COOLDOWN_REQUESTS * now.e2e_s)
        else:
            return False
        if now.time_s <= until_s:
            return False
        if dead:
            self._note(LevelNote.COOLDOWN_STALLED)
        elif self._last_ended_s is None:
            self._note(LevelNote.COOLDOWN_CUT)
        self.phase = Phase.FINISHED
        self.level = msgspec.structs.replace(self.level, end_s=now.time_s)
        return True

    def _by_count(self, now: Now, requests: int) -> bool:
        """Begin the window with the level and end it with its last request; return whether either happened now."""
        if self.phase is Phase.WARM_UP:
            self.phase, self._start_s = Phase.WINDOW, self.level.begin_s
            self._note(LevelNote.COUNTED)
            self.level = msgspec.structs.replace(self.level, window_start_s=self._start_s)
            return True
        if now.ended < requests:
            cut = self._cut(now)
            # A bound on requests is reached by those of this level: they are sent, and still have to end.
            if cut is None or (cut is LevelNote.CUT_SHORT and now.budget.reached() == (Bound.REQUESTS,)):
                return False
            self._note(cut)
        self.phase, self.since_s, self.expected_s = Phase.COOLDOWN, now.time_s, None
        self.level = msgspec.structs.replace(self.level, window_end_s=now.time_s)
        return True

    def _by_timetable(self, now: Now, moments: Moments) -> bool:
        """Begin or end the window, or end the level, when the timetable says so; return whether it did so now."""
        if self.phase is Phase.WARM_UP and now.time_s >= moments.window_start_s:
            if now.waiting or len(self._tokens.times) == 1:  # slots, or the level itself, came too late
                self._note(LevelNote.NOT_SETTLED)
            self.phase, self.since_s, self._start_s = Phase.WINDOW, moments.window_start_s, moments.window_start_s
            self.expected_s = moments.window_end_s - moments.window_start_s
            self.level = msgspec.structs.replace(self.level, window_start_s=moments.window_start_s)
            return True
        if self.phase is Phase.WINDOW and now.time_s >= moments.window_end_s:
            found, width = self._transient(now)
            steady = found.settled and self.level.begin_s + found.cut * width <= self._start_s
            if found.checked and not (steady or self._settled or LevelNote.NOT_SETTLED in self.level.notes):
                self._note(LevelNote.NOT_SETTLED)
            self.phase, self.since_s = Phase.COOLDOWN, moments.window_end_s
            self.expected_s = moments.end_s - moments.window_end_s
            if (dead := self._dead_note(now)) is not None:
                self._note(dead)
            self.level = msgspec.structs.replace(self.level, window_end_s=moments.window_end_s)
            return True
        if self.phase is Phase.COOLDOWN and now.time_s >= moments.end_s:
            if self._is_dead(now):
                self._note(LevelNote.COOLDOWN_STALLED)
            elif now.oldest_sent_s is not None and now.oldest_sent_s < moments.window_end_s:
                self._note(LevelNote.COOLDOWN_CUT)
            self.phase = Phase.FINISHED
            self.level = msgspec.structs.replace(self.level, end_s=moments.end_s)
            return True
        return False

    def _note(self, note: LevelNote) -> None:
        self.level = msgspec.structs.replace(self.level, notes=(*self.level.notes, note))

    @property
    def _is_paced(self) -> bool:
        return pace.paced(self._task.scenario)

    @property
    def _is_single_request(self) -> bool:
        """Return whether the level is one request in flight without warm-up: its window is that request."""
        return self.level.concurrency == 1 and not self.pace.warm_up

    def _hopeless(self, now: Now) -> bool:
        """Return whether more of the level is useless: most of its requests fail, or nobody answers."""
        return now.failing or self._is_dead(now)

    def _is_dead(self, now: Now) -> bool:
        """Return whether connections find no server, or no token has come for so long that the level ends."""
        return now.refused >= REFUSED or (now.in_flight > 0 and self.silent_s > self._patience_s(now))

    def _patience_s(self, now: Now) -> float:
        """Return the seconds without a token after which a level counts as stalled: several times the longest so far.

        Requests that wait for their first token behind more of them wait longer, by the load, until one has come.
        """
        task, load = self._task, self.level.concurrency or self.level.rate or 1.0
        earlier = max(task.silence_s * min(task.spread, _MEASURED_SPREAD), task.alone_s * task.spread)
        if not now.ended and not now.wait_s:
            earlier *= max(1.0, load / task.silence_load)
        return max(STALL_S, STALL_TIMES * max(earlier, self.longest_silence_s, now.wait_s))

    def _hung(self, now: Now) -> int:
        """Return how many of the oldest requests have been in flight for much longer than any that succeeded took."""
        longest = max(now.longest_s, self._task.alone_s * self._task.spread, now.e2e_s)
        return sum(now.time_s - sent_s > max(STALL_S, _HUNG_TIMES * longest) for sent_s in now.oldest)

    def _transient(self, now: Now) -> tuple[window.Truncation, float]:
        """Return how much of warm-up and window so far is a transient, and the width of the bins it was found by."""
        width, known = window.bin_width(now.icl_s), self._tokens
        return window.truncation(binned(known.times, known.counts, self.level.begin_s, now.time_s, width)), width

    def _is_precise(self, now: Now) -> bool:
        """Return whether the window's throughput, in chunks (whose tokens hardly vary), is as precise as asked."""
        requested = self._task.scenario.ramp.precision
        times, counts = self._tokens.times, self._tokens.counts.astype(np.float64)
        wanted = PRECISION if requested is None else requested
        request_s = now.request_s + self._task.rest_s
        return pace.precise(times, counts, self._start_s, now.time_s, request_s, wanted)


def binned(
    times: Sequence[float] | Floats, counts: Sequence[int] | Ints, start: float, end: float, width: float
) -> Floats:
    """Return by how much a running count rose in each whole bin of `width` in [start, end), shape [bins].

    >>> binned([0.0, 2.0], [10, 30], 0.0, 2.0, 0.5)
    array([5., 5., 5., 5.])
    """
    edges = [start + width * i for i in range(int((end - start) / width) + 1)]
    return np.diff(np.interp(edges, times, counts))
