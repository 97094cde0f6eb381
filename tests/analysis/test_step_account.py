"""How a server divides its time between prompts and responses: by steps worked out by hand, and the step machine's."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.random import default_rng

from harness.analysis import checks, seats, step_account
from harness.analysis.step_account import ALWAYS, NO_STREAM
from harness.analysis.summarise import summarise
from harness.analysis.table import Table
from harness.data.levels import LevelPhases, LevelSummary
from harness.data.record import Record
from harness.data.views import Estimate, ServerView, Spread
from harness.report.levels import binding_phase, mean_of
from harness.results.result import Result
from tests.builders import summaries
from tests.builders.records import request

sys.path.append(str(Path(__file__).parents[2] / "bench"))

import phases as bench

ROOT = Path(__file__).parents[2]
PLAIN, PROMPT = 0.010, 0.040  # seconds of a step, without a prompt and with one


def by_hand(rounds: int = 40) -> list[Record]:
    """A stream that goes on, and beside it short responses, one after the other: the prompt of each takes a step.

    A round is ten steps, 0.13 s: one with a prompt of 10 tokens, 0.04 s, and nine without, 0.01 s each. The response
    has its first token with the end of the prompt's step and its last four steps later; nobody waits for the rest.
    """
    ends = np.cumsum([PROMPT, *[PLAIN] * 9] * rounds)
    starts = np.concatenate([[0.0], ends[:-1]])
    short = [request(float(starts[i]), ends[i : i + 5].tolist()) for i in range(0, 10 * rounds, 10)]
    return [request(-0.05, [-0.01, 0.0, *ends.tolist()]), *short]


def account(records: Sequence[Record], start: float, end: float, server: ServerView | None = None) -> LevelPhases:
    table = Table.of(records)
    return step_account.phases(table, start, end, seats.service(table, start, end, None), server)


def test_what_a_step_with_a_prompt_takes_longer_is_the_prompts() -> None:
    found = account(by_hand(), 0.001, 5.2001)
    # A round: 0.04 - 0.01 of 0.13 s is the prompt's. 10 prompt tokens in 0.03 s; 10 + 4 later tokens in 0.1 s.
    assert found.prefill_share.mean == pytest.approx(3 / 13, abs=1e-6)
    assert found.prefill_tokens_per_s.mean == pytest.approx(10 / 0.03, rel=1e-4)
    assert found.decode_tokens_per_s.mean == pytest.approx(14 / 0.1, rel=1e-4)
    assert (found.busy, found.step_s) == (pytest.approx(1.0, rel=1e-3), pytest.approx(PLAIN))
    # A request is taken up as its step begins, at the send.
    assert (found.prefill_s, found.wait_s, found.source) == (pytest.approx(PROMPT), pytest.approx(0.0), "records")


@pytest.mark.parametrize(("server_s", "source"), [(0.041, "both"), (0.060, "records")])
def test_the_servers_own_histogram_agrees_or_is_named(server_s: float, source: str) -> None:
    def of(mean: float) -> Spread:
        return Spread(mean, None, None, None, None, None, 40)

    found = account(by_hand(), 0.001, 5.2001, ServerView(prefill_s=of(server_s), queue_s=of(0.002)))
    assert (found.prefill_s, found.wait_s, found.source) == (server_s, 0.002, source)
    assert ("60 ms by the server" in found.reason) == (source == "records")


def test_what_comes_at_once_is_of_one_step_with_all_of_its_tokens() -> None:
    """Three events in one segment, as after tokens that were drafted: no gap within, and three tokens a step."""
    found = account([request(-PLAIN, (np.arange(400) * PLAIN).repeat(3).tolist())], 0.001, 3.9001)
    assert found.decode_tokens_per_s.mean == pytest.approx(3 / PLAIN, rel=1e-3)
    assert found.step_s == pytest.approx(PLAIN)


def test_where_nobody_streams_all_time_is_the_prompts() -> None:
    """One request after the other: 0.2 s to its first token, then four tokens at 0.1 s."""
    alone = [request(float(t), [t + 0.2 + 0.1 * i for i in range(5)]) for t in np.arange(0.0, 12.0, 0.6)]
    found = account(alone, 0.0, 12.001)
    assert found.prefill_share.mean == pytest.approx(2 / 6)
    assert found.prefill_tokens_per_s.mean == pytest.approx(10 / 0.2)
    assert found.decode_tokens_per_s.mean == pytest.approx(10.0)
    idle = [request(float(t), [t + 0.2 + 0.1 * i for i in range(5)]) for t in np.arange(0.0, 24.0, 1.2)]
    assert account(idle, 0.0, 24.0).busy == pytest.approx(0.5, rel=1e-3)
    assert account(idle, 0.0, 24.0).prefill_share.mean == pytest.approx(2 / 6)


def test_without_streams_or_without_a_step_that_is_surely_plain_nothing_is_said() -> None:
    assert account([request(0.0, [1.0]), request(1.0, [2.0])], 0.0, 3.0).reason == NO_STREAM
    # A prompt in every step, the next one sent before the one before it has its token.
    ends = (PROMPT * np.arange(1, 101)).tolist()
    crowded = [request(0.0, [0.0, *ends]), *(request(end - 1.5 * PROMPT, [end]) for end in ends)]
    found = account(crowded, 0.0, 4.0)
    assert (found.reason, found.prefill_share.mean, found.source) == (ALWAYS, None, "")
    assert found.steps_per_s == pytest.approx(25.0, rel=0.02)


def level(batch: float, step_s: float | None, **more: float) -> LevelSummary:
    found = LevelPhases(
        batch=batch, context=0.0, steps_per_s=40.0, busy=1.0, step_s=step_s, reason="" if step_s else ALWAYS
    )
    return msgspec.structs.replace(summaries.level(int(batch)), phases=found, **more)


def test_a_level_without_a_step_of_its_own_takes_that_of_others() -> None:
    *_, last, beyond = step_account.completed(
        [
            level(4, 0.010),
            level(8, 0.012),
            level(16, None, decode_tokens_per_s=640.0, input_tokens_per_s=Estimate(720.0)),
            level(48, None),
        ]
    )
    # d(16) = 16 ms; 40 of them are 0.64 s of a second: 0.36 s are the prompts'.
    assert last.phases
    assert beyond.phases
    assert last.phases.prefill_share.mean == pytest.approx(0.36)
    assert last.phases.prefill_tokens_per_s.mean == last.prefill_tokens_per_s == pytest.approx(2000)
    assert last.phases.decode_tokens_per_s.mean == pytest.approx(1000)
    low, high = last.phases.prefill_share.ci95 or (1, 0)
    assert (low, high) == (pytest.approx(0.36 - 0.64 * 0.04), pytest.approx(0.36 + 0.64 * 0.04))  # 2 % at 8, 4 % at 16
    assert beyond.phases.reason == ALWAYS  # six times the largest batch that is known


@pytest.mark.parametrize("chunk", [None, 512])
@pytest.mark.parametrize("client", [bench.QUIET, bench.NOISY])
def test_the_records_agree_with_the_step_machines_own_account(chunk: int | None, client: bench.Client) -> None:
    work = bench.Workload(700, 60)
    records, window, truth = bench.served(bench.deployment(work, chunk), work, 8, default_rng(3), client)
    found = bench.judged(bench.summary(records, window, 8).phases or LevelPhases(), truth)
    assert found is not None
    assert found.good, found
    assert 0.2 < truth.share < 0.6  # neither phase is all


def test_seats_that_are_all_taken_leave_no_room_for_a_prompt() -> None:
    work = bench.Workload(512, 64, seats=6)
    records, window, truth = bench.served(bench.deployment(work, 512), work, 24, default_rng(3))
    found = bench.judged(bench.summary(records, window, 24).phases or LevelPhases(), truth)
    assert found is not None
    assert found.good, found


def test_where_every_step_begins_a_response_none_is_without_a_prompt() -> None:
    """Sixteen seats and answers of sixteen tokens: at the end of each step one is over and another has its first.

    The server hands the tokens of a step over within 4 ms: the last ones first, all others in any order.
    """
    rng, ends = default_rng(5), 0.1 * np.arange(1, 401)
    late = rng.uniform(0.001, 0.004, (len(ends), 16)) * (np.arange(16) < 15)
    records = [request(float(ends[i]) - 0.35, (ends[i : i + 16] + late[i]).tolist()) for i in range(len(ends) - 16)]
    found = account(records, 5.0, 35.0)
    assert found.batch == pytest.approx(15, rel=0.02)
    assert (found.reason, found.prefill_share.mean) == (ALWAYS, None)


def divided(share: float) -> LevelPhases:
    return LevelPhases(
        prefill_share=Estimate(share, (share - 0.02, share + 0.02)), source="records",
        prefill_tokens_per_s=Estimate(9000.0), decode_tokens_per_s=Estimate(1200.0),
    )  # fmt: skip


def test_a_sentence_says_which_phase_binds_and_what_would_help() -> None:
    prompts, responses = (
        binding_phase(msgspec.structs.replace(summaries.level(16), phases=divided(share)))[0] for share in (0.62, 0.2)
    )
    assert prompts.value == "62 % of the server's time goes into prompts at C = 16 (60 %–64 %)"
    assert prompts.detail.startswith("shorter prompts or a prefix cache help, more seats do not; 9,000 prompt tok/s")
    assert responses.value == "80 % of the server's time goes into responses at C = 16"
    assert binding_phase(summaries.level(16)) == []


def test_repeats_and_the_check_read_the_same_share() -> None:
    one, two = (msgspec.structs.replace(summaries.level(16), phases=divided(share)) for share in (0.6, 0.64))
    both = mean_of([one, two]).phases
    assert both
    assert both.prefill_share.mean == pytest.approx(0.62)
    check = checks.phases(one, [one])
    assert (check.figures, check.source) == ({"prefill_fraction": 0.6}, "half of the server's busy time")


def test_on_a_real_vllm_a_prompt_takes_as_long_as_its_own_histogram_says() -> None:
    """Seven loads of vLLM on a CPU, 1 to 64 in flight of 16 seats: within 10 % at each."""
    found = summarise(Result.open(ROOT / "results" / "live-vllm-sweep-1"))
    assert [(level.concurrency, level.phases and level.phases.source) for level in found.levels] == [
        (C, "both") for C in (1, 2, 4, 8, 16, 32, 64)
    ]
